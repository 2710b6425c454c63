"""What the tests of the Spark floor share: tables, batches whose contents are known, and what became of them."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, Transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.sized_table import SizedTable
from icesize.spark.stream.sink import Sink

EVENTS = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "hour", StringType()),
    NestedField(3, "text", StringType()),
)
SCHEMA = "id long, hour string, text string"
"""The same for Spark."""

TARGET_BYTES = 1_000_000
"""Files of these tests are a few kB: all of them are small."""

Rows = list[tuple[Any, ...]]
Make = Callable[[SparkSession, pa.Table], DataFrame]


def with_options(sink: Sink, **changed: object) -> Sink:
    """A sink of the same stream with other options."""
    return Sink(sink.source, sink.stream_id, replace(sink.options, **changed))  # type: ignore[arg-type]


def lake_catalog(folder: Path) -> SqlCatalog:
    """The catalog `lake` of a folder, in the file `lake.db`; other processes open the same."""
    return SqlCatalog("lake", uri=f"sqlite:///{folder}/lake.db", warehouse=f"file://{folder}/lake")


@dataclass
class Lake:
    """A catalog, the folder it lives in, and short ways to make and read tables."""

    catalog: SqlCatalog
    folder: Path
    limits: WorkLimits = field(default_factory=WorkLimits, kw_only=True)
    """Of the tables that are opened from now on."""
    observe: Callable[[object], object] = field(default=lambda event: None, kw_only=True)
    """The observer of the tables that are opened from now on."""

    def create(
        self,
        name: str = "events",
        schema: Schema = EVENTS,
        by: Mapping[str, Transform[Any, Any]] | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Table:
        """Table `db.<name>`, partitioned by `by` (column -> transform; None: by identity of `hour`)."""
        by = {"hour": IdentityTransform()} if by is None else by
        fields = [
            PartitionField(schema.find_field(column.split("|")[0]).field_id, 1000 + i, transform, f"p{i}_{column}")
            for i, (column, transform) in enumerate(by.items())
        ]
        spec = PartitionSpec(*fields) if fields else UNPARTITIONED_PARTITION_SPEC
        return self.catalog.create_table(f"db.{name}", schema, partition_spec=spec, properties=dict(properties or {}))

    def open(self, spark: SparkSession, name: str = "events", **policy: object) -> SizedTable:
        """The table with small files below 750,000 bytes and k = 3, other policy keys as given."""
        settings = {"target-file-size-bytes": TARGET_BYTES, "max-small-files": 3}
        settings |= {key.replace("_", "-"): value for key, value in policy.items()}
        environment = Environment(limits=self.limits, observe=self.observe)
        return icesize.open(spark, f"db.{name}", catalog=self.catalog, policy=settings, environment=environment)

    def without_driver(self) -> None:
        """No batch is so small that the driver writes it: Spark counts, places and writes."""
        self.limits = replace(self.limits, driver_source_bytes=-1)

    @contextmanager
    def unremembered(self) -> Iterator[Lake]:
        """The same tables through another catalog object, of which this process remembers nothing yet."""
        with closing(lake_catalog(self.folder)) as catalog:
            yield replace(self, catalog=catalog)

    def table(self, name: str = "events") -> Table:
        """The table as the catalog has it now."""
        return self.catalog.load_table(f"db.{name}")

    def rows(self, name: str = "events") -> Rows:
        """All rows as tuples, as often as they are there, read by PyIceberg."""
        return rows_of(self.table(name).scan().to_arrow())

    def files(self, name: str = "events") -> list[DataFile]:
        """Live data files."""
        return [task.file for task in self.table(name).scan().plan_files()]

    def files_per_partition(self, name: str = "events") -> Counter[tuple[object, ...]]:
        """Live data files, all of them small, by partition values."""
        return Counter(tuple(file.partition._data) for file in self.files(name))

    def operations(self, name: str = "events") -> list[str]:
        """Operations of all snapshots, oldest first."""
        return [s.summary.operation.value for s in self.table(name).metadata.snapshots if s.summary]

    def on_disk(self) -> set[str]:
        """Names of all Parquet files below the warehouse, referenced or not."""
        return {path.name for path in (self.folder / "lake").rglob("*.parquet")}

    def orphans(self, name: str = "events") -> set[str]:
        """Names of Parquet files that no snapshot of the table refers to."""
        entries = self.table(name).inspect.all_files().column("file_path").to_pylist()
        return self.on_disk() - {path.rsplit("/", 1)[1] for path in entries}


def rows_of(table: pa.Table) -> Rows:
    """Rows of an Arrow table as tuples, in an order that nulls and nested values have too."""
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def events(ids: range | list[int], hours: int = 1) -> pa.Table:
    """One event per id; hours take turns. The text is not compressible, so that files have a size."""
    numbers = list(ids)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "hour": pa.array([f"h{i % hours}" for i in numbers]),
            "text": pa.array([f"{i * 2654435761 % 2**32:x}" for i in numbers]),
        }
    )


def write_json(folder: Path, number: int, rows: pa.Table) -> None:
    """One more file of a stream's source; files are read in the order of their numbers."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{number:03}.json"
    path.write_text("\n".join(json.dumps(row) for row in rows.to_pylist()))
    # the file source orders by modification time, whose clock may stand still between two files
    os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))


def counted(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A batch that is cheap to read again: its partitions are known before they are written."""
    return spark.createDataFrame(rows)


def uncounted(spark: SparkSession, rows: pa.Table) -> DataFrame:
    """A batch from a Python function: it is written without having been looked at."""
    df = spark.createDataFrame(rows)
    return df.mapInArrow(_same, df.schema)


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


@contextmanager
def conf(spark: SparkSession, **settings: str) -> Iterator[None]:
    """Session settings that hold inside; `__` in a name stands for a dot."""
    names = {key.replace("__", "."): value for key, value in settings.items()}
    before = {name: spark.conf.get(name, None) for name in names}
    for name, value in names.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def await_file(path: Path, seconds: float) -> None:
    """Return when another process has made this file."""
    for _ in range(round(100 * seconds)):
        if path.exists():
            return
        threading.Event().wait(0.01)
    raise AssertionError(f"{path} was never made")


def feed(lake: Lake, first: int, last: int) -> None:
    """Source files `first` .. `last` - 1: each one batch of 30 rows in three partitions."""
    for number in range(first, last):
        write_json(lake.folder / "in", number, events(range(number * 30, number * 30 + 30), hours=3))


def run(spark: SparkSession, lake: Lake, sink: Sink, checkpoint: str = "checkpoint") -> StreamingQuery:
    """All files that are there, one per batch; returns the ended query."""
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{lake.folder}/in")
    writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", f"{lake.folder}/{checkpoint}")
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    return query


def forget_commit(lake: Lake, batch: int) -> None:
    """As if the driver had died between the sink's commit and Spark's own note of it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (lake.folder / "checkpoint" / "commits" / name).unlink()


ALL_TYPES = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "hour", StringType()),
    NestedField(3, "day", DateType()),
    NestedField(4, "at", TimestampType()),
    NestedField(5, "attz", TimestamptzType()),
    NestedField(6, "money", DecimalType(20, 3)),
    NestedField(7, "key", UUIDType()),
    NestedField(8, "fixed", FixedType(2)),
    NestedField(9, "bytes", BinaryType(), required=True),
    NestedField(10, "double", DoubleType()),
    NestedField(
        11,
        "nested",
        ListType(
            12,
            StructType(
                NestedField(13, "key", UUIDType()),
                NestedField(14, "m", MapType(15, StringType(), 16, FixedType(1), value_required=True), required=True),
            ),
            element_required=True,
        ),
    ),
)
