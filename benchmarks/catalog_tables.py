"""A catalog of many tables, with real manifests of the newest snapshot. `Contents` are their data files.

The number of files and of snapshots of a table is lognormal around a median. A third of the tables has files of the
target size. Older snapshots of a table share one manifest list. Data files exist only with the contents of
`benchmarks.linked_files`.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pyiceberg.catalog.sql import IcebergTables, SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil, new_table_metadata
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType
from sqlalchemy.orm import Session

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.packing import Split

MEDIAN_FILES, MEDIAN_SNAPSHOTS = 300, 200
SPREAD = 1.0
"""Standard deviation of the logarithm of both."""
MOST_FILES, MOST_SNAPSHOTS = 10_000, 4_000
"""Of a table that is not among the large ones."""
FILES_PER_COMMIT = 15
MOST_COMMITS = 40
"""Appends, each with a manifest of its own, in which the files of a table come."""
FILE_BYTES = (2_000_000, 20_000_000, 600_000_000)
"""Bytes of the files of a table: one of these."""
SNAPSHOT_MS = 3_600_000
"""Time between two snapshots of a table, and since the newest one."""
FILES_PER_PARTITION = 30
_KINDS = (LongType(), StringType(), TimestampType(), DoubleType(), LongType(), StringType(), LongType())
SCHEMA = Schema(*(NestedField(i, f"c{i}", kind, required=False) for i, kind in enumerate(_KINDS, 1)))
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "day"), spec_id=0)
_COLUMNS = range(1, 8)
_METRICS: dict[str, Any] = {
    "column_sizes": dict.fromkeys(_COLUMNS, 140_000),
    "value_counts": dict.fromkeys(_COLUMNS, 20_000),
    "null_value_counts": dict.fromkeys(_COLUMNS, 0),
    "lower_bounds": dict.fromkeys(_COLUMNS, b"\0" * 8),
    "upper_bounds": dict.fromkeys(_COLUMNS, b"\x7f" * 8),
}


@dataclass(frozen=True)
class Shape:
    """The numbers of data files, delete files and snapshots of a table, and the bytes of each file.

    A table that `is_young` was written within an hour, in one commit, so that none of its snapshots is due. Without
    `partitions`, each has about 30 files.
    """

    files: int
    snapshots: int
    deletes: int = 0
    file_bytes: int = FILE_BYTES[0]
    is_young: bool = False
    partitions: int = 0

    @property
    def days(self) -> Iterator[str]:
        """The partition of each file."""
        count = self.partitions or max(1, self.files // FILES_PER_PARTITION)
        return (f"d{number * count // self.files:06}" for number in range(self.files))

    @property
    def commits(self) -> int:
        """Commits with manifests of their own."""
        return 1 if self.is_young else min(MOST_COMMITS, self.snapshots, -(-self.files // FILES_PER_COMMIT))

    @property
    def pause_ms(self) -> int:
        """Time between two snapshots, in milliseconds."""
        return SNAPSHOT_MS // self.snapshots if self.is_young else SNAPSHOT_MS


@dataclass(frozen=True)
class Sizes:
    """How many tables there are, how many of them are large or have deletes, and the files of each large one."""

    tables: int
    large: int
    large_files: int
    most_snapshots: int
    with_deletes: int
    large_deletes: int = 0
    large_partitions: int = 0


def shapes(sizes: Sizes, seed: int = 29) -> Iterator[Shape]:
    """Yield the shapes of the tables: the large ones, the one of many snapshots, those with deletes, the others."""
    dice = np.random.default_rng(seed)

    def around(median: int, most: int) -> int:
        return int(min(most, max(1, dice.lognormal(np.log(median), SPREAD))))

    for number in range(sizes.tables):
        files, snapshots = around(MEDIAN_FILES, MOST_FILES), around(MEDIAN_SNAPSHOTS, MOST_SNAPSHOTS)
        file_bytes = FILE_BYTES[number % len(FILE_BYTES)]
        if number < sizes.large:
            yield Shape(sizes.large_files, snapshots, sizes.large_deletes, partitions=sizes.large_partitions)
        elif number == sizes.large:
            yield Shape(files, sizes.most_snapshots, 0, file_bytes)
        else:
            has_deletes = number <= sizes.large + sizes.with_deletes
            yield Shape(files, snapshots, max(1, files // 4) if has_deletes else 0, file_bytes)


class Contents(Protocol):
    """Makes the data files and delete files of tables, or only what manifests say of them."""

    def properties(self, shape: Shape) -> dict[str, str]:
        """Return the properties of a table, beside the format version."""

    def data(self, location: str, shape: Shape) -> Iterator[NewDataFile]:
        """Yield the data files of a table, those of one partition after the other."""

    def deletes(self, location: str, files: Sequence[NewDataFile], shape: Shape) -> Iterator[NewDeleteFile]:
        """Yield the position delete files of a table with these data files."""


class OnlyListed:
    """Files that are in manifests, and nowhere else."""

    def properties(self, shape: Shape) -> dict[str, str]:
        """Return none."""
        return {}

    def data(self, location: str, shape: Shape) -> Iterator[NewDataFile]:
        """Yield files of 20,000 rows and 7 columns."""
        for number, day in enumerate(shape.days):
            path, key = data_path(location, number, day), PartitionKey(0, (day,))
            yield NewDataFile(path, shape.file_bytes, 20_000, key, split_offsets=(4,), **_METRICS)

    def deletes(self, location: str, files: Sequence[NewDataFile], shape: Shape) -> Iterator[NewDeleteFile]:
        """Yield a position delete file for each of the first files."""
        for file in files[: shape.deletes]:
            bounds = {2147483546: file.path.encode()}
            path = f"{location}/data/{uuid.uuid4()}-deletes.parquet"
            yield NewDeleteFile(
                path, 4_000, 100, file.partition, lower_bounds=bounds, upper_bounds=bounds, deletes_of=file.path
            )


def data_path(location: str, number: int, day: str) -> str:
    """Return a new path for a data file; all paths of a table are equally long."""
    return f"{location}/data/day={day}/0a1b2c3d4e5f-{number:07}-{uuid.uuid4()}.parquet"


def make(
    catalog: SqlCatalog,
    folder: Path,
    tables: Sequence[Shape],
    now_ms: int,
    namespaces: int = 10,
    contents: Contents | None = None,
) -> list[str]:
    """Make tables of these shapes in namespaces of the catalog, with their files below `folder`; return their names.

    Without `contents`, no data file exists.
    """
    names = [(f"db{number % namespaces}", f"t{number:05}") for number in range(len(tables))]
    for namespace in sorted({namespace for namespace, _ in names}):
        catalog.create_namespace_if_not_exists(namespace)
    with Session(catalog.engine) as session:
        for (namespace, name), shape in zip(names, tables, strict=True):
            location = write_table(catalog, folder / namespace / name, shape, now_ms, contents or OnlyListed())
            session.add(
                IcebergTables(
                    catalog_name=catalog.name,
                    table_namespace=namespace,
                    table_name=name,
                    metadata_location=location,
                    previous_metadata_location=None,
                )
            )
        session.commit()
    return [".".join((catalog.name, *name)) for name in names]


def write_table(catalog: SqlCatalog, folder: Path, shape: Shape, now_ms: int, contents: Contents) -> str:
    """Write one table; return the location of its metadata file."""
    (folder / "metadata").mkdir(parents=True)
    commits, older = shape.commits, shape.snapshots - shape.commits
    first_ms = now_ms - SNAPSHOT_MS - shape.snapshots * shape.pause_ms
    properties = {"format-version": "2", **contents.properties(shape)}
    empty = new_table_metadata(SCHEMA, _SPEC, UNSORTED_SORT_ORDER, folder.as_uri(), properties)
    document = json.loads(empty.model_dump_json()) | {"last-sequence-number": older, "last-updated-ms": first_ms}
    location = f"{folder.as_uri()}/metadata/00001-{uuid.uuid4()}.metadata.json"
    io = catalog._load_file_io(location=location)
    table = Table(("db", "t"), TableMetadataUtil.parse_obj(document), location, io, catalog)
    builder = SnapshotBuilder(table, first_ms)
    files = list(contents.data(folder.as_uri(), shape))
    ends = [len(files) * n // commits for n in range(commits + 1)]
    staged = []
    for number, (start, end) in enumerate(pairwise(ends)):
        added: list[NewDataFile | NewDeleteFile] = list(files[start:end])
        if number == commits - 1:
            added += contents.deletes(folder.as_uri(), files, shape)
        operation = Operation.OVERWRITE if len(added) > end - start else Operation.APPEND
        staged.append(json.loads(builder.exchange(operation, Split(), added, {}).model_dump_json()))
    document |= _history(_older(staged[0], older) + staged, first_ms, shape.pause_ms)
    Path(location.removeprefix("file://")).write_text(json.dumps(document))
    return location


def _history(snapshots: list[dict[str, Any]], first_ms: int, pause_ms: int) -> dict[str, Any]:
    """Return the parts of a metadata file about its snapshots, which follow each other at equal distances."""
    for number, snapshot in enumerate(snapshots, 1):
        parent = {"parent-snapshot-id": snapshots[number - 2]["snapshot-id"]} if number > 1 else {}
        snapshot |= {"sequence-number": number, "timestamp-ms": first_ms + number * pause_ms, **parent}
    head = snapshots[-1]["snapshot-id"]
    log = [{"snapshot-id": each["snapshot-id"], "timestamp-ms": each["timestamp-ms"]} for each in snapshots]
    return {
        "snapshots": snapshots, "snapshot-log": log, "current-snapshot-id": head,
        "last-sequence-number": len(snapshots), "last-updated-ms": snapshots[-1]["timestamp-ms"],
        "refs": {"main": {"snapshot-id": head, "type": "branch"}},
    }  # fmt: skip


def _older(first: dict[str, Any], count: int) -> list[dict[str, Any]]:
    return [dict(first) | {"snapshot-id": 1 + number} for number in range(count)]
