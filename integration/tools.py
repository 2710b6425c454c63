"""What the integration tests share: rows as Spark reads them, and files as PyIceberg's own planning lists them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyspark.sql import Row, SparkSession

import icesize
from icesize.sized_table import SizedTable

POLICY: Mapping[str, object] = {"target-file-size-bytes": 1_000_000, "max-small-files": 3}
"""Files of these tests are a few kB: all of them are small, and a partition may hold three."""


def sized(spark: SparkSession, name: str, **policy: object) -> SizedTable:
    """The table through the session's own catalog settings, as after a restart."""
    return icesize.open(spark, name, policy={**POLICY, **{k.replace("_", "-"): v for k, v in policy.items()}})


def spark_rows(spark: SparkSession, query: str) -> list[tuple[Any, ...]]:
    """Rows of a table or query, as often as they are there, in an order that nulls and nested values have too."""
    found = spark.sql(query) if " " in query else spark.table(query)
    return sorted((plain(row) for row in found.collect()), key=repr)


def plain(value: Any) -> Any:
    """Spark's rows as tuples, also inside of other values, so that they compare with a model."""
    if isinstance(value, Row):
        return tuple(plain(v) for v in value)
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    return bytes(value) if isinstance(value, bytearray) else value


def data_files(catalog: Catalog, name: str) -> list[DataFile]:
    """Live data files, planned by PyIceberg; `name` is `namespace.table`."""
    return [task.file for task in catalog.load_table(name).scan().plan_files()]


def files_per_partition(catalog: Catalog, name: str) -> Counter[tuple[object, ...]]:
    """Live data files that no delete applies to, by partition values: those that could be merged."""
    tasks = catalog.load_table(name).scan().plan_files()
    return Counter(tuple(t.file.partition._data) for t in tasks if not t.delete_files)


def rows_per_partition(files: Sequence[DataFile]) -> Counter[tuple[object, ...]]:
    """Rows by partition values, from manifests alone. Floats are told apart by their text: -0.0 is not 0.0."""
    counts: Counter[tuple[object, ...]] = Counter()
    for file in files:
        counts[tuple(repr(v) if isinstance(v, float) else v for v in file.partition._data)] += file.record_count
    return counts


def local_path(location: str) -> str:
    """A `file:` location as a path: Java writes one slash where Python writes three."""
    return "/" + location.removeprefix("file:").lstrip("/")


def operations(catalog: Catalog, name: str) -> list[str]:
    """Operations of all snapshots, oldest first."""
    return [s.summary.operation.value for s in catalog.load_table(name).metadata.snapshots if s.summary]
