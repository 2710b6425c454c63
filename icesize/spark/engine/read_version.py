"""An older version of a partition as a Spark DataFrame, read by icesize's own projection, without Iceberg's runtime."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from icesize.errors import RewriteFailed, TableError, UnsupportedTable
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.inputs import read_inputs
from icesize.planning.files import UNREADABLE, FileFact, PartitionKey
from icesize.planning.plan import FileGroup
from icesize.spark.engine import session
from icesize.spark.engine.columns import spark_schema
from icesize.spark.engine.jobs import balanced, bin_numbers
from icesize.spark.engine.worker import bins_of
from icesize.table.state.handle import Current
from icesize.table.state.live_files import files_at
from icesize.table.state.naming import Labels, known_snapshot

TASK_BYTES = 128 * 2**20
"""Bytes of files that one task reads at most; only this limit makes more tasks than the session has slots.

Spark puts as many bytes into one partition of files (`spark.sql.files.maxPartitionBytes`).
"""

_BATCH_ROWS = 10_000
"""Rows passed to the JVM at a time: Spark's default of `spark.sql.execution.arrow.maxRecordsPerBatch`."""


def read_version(spark: SparkSession, current: Current, partition: PartitionKey, snapshot_id: int) -> DataFrame:
    """Return the rows of a partition at a snapshot, with the table's current columns, as a lazy DataFrame.

    Columns are found by field id: renamed columns keep their values, and added ones have their initial default, or are
    NULL without one. Types are those that Iceberg's own Spark integration gives the table, with every column nullable.
    If a file is gone, for example because its snapshot has expired since, an action fails with a TableError inside
    Spark's exception.

    Raises TableError for an unknown snapshot, UnsupportedTable for files that icesize cannot read.
    """
    metadata = current.table.metadata
    snapshot = known_snapshot(metadata, snapshot_id)
    files = files_at(metadata, current.table.io, snapshot, partition)
    _check(files, current, Labels(metadata).of(partition), snapshot_id)
    session.use_this_python(spark)
    settings = current.settings().of_spec(partition.spec_id)
    schema = spark_schema(metadata.schema())
    tasks = max(session.parallelism(spark), -(-sum(f.size_bytes for f in files) // TASK_BYTES))
    bins = [[files[i] for i in bin_] for bin_ in balanced({i: f.size_bytes for i, f in enumerate(files)}, tasks)]
    read = ReadFiles(bins, settings, partition, to_arrow_schema(schema))
    return bin_numbers(spark, len(bins)).mapInArrow(read, schema)


def _check(files: list[FileFact], current: Current, label: str, snapshot_id: int) -> None:
    bad = [f for f in files if f.obstacle is not None]
    if bad:
        where = f"partition {label}" if label else "the table"
        why = " or ".join(sorted({UNREADABLE[f.obstacle] for f in bad if f.obstacle}))
        query = f"SELECT ... FROM {current.name} VERSION AS OF {snapshot_id}"  # noqa: S608 - for people to run
        raise UnsupportedTable(
            f"Cannot read {where} at snapshot {snapshot_id}: {len(bad)} of its {len(files)} files {why}; "
            f"Spark with Iceberg's runtime can: {query}",
            snapshot_id=snapshot_id,
        )


@dataclass(frozen=True)
class ReadFiles:
    """Reads files in a worker, from bin numbers to rows of the Arrow schema `target`."""

    bins: Sequence[Sequence[FileFact]]
    settings: WriteSettings
    partition: PartitionKey
    target: pa.Schema

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _, files in bins_of(batches, self.bins):
            group = FileGroup(tuple(files), self.partition)
            try:
                deleted = deleted_rows(group.inputs, self.settings, self.partition)
                for table in read_inputs(group, self.settings, deleted=deleted.positions):
                    yield from for_spark(table, self.target).to_batches(max_chunksize=_BATCH_ROWS)
            except RewriteFailed as error:
                why = f"{error}; when its snapshot has expired, read another version"
                raise TableError(why, path=error.path) from None


def for_spark(table: pa.Table, target: pa.Schema) -> pa.Table:
    """Return the same rows in Spark's Arrow types: everything nullable, 32-bit offsets, UUIDs as strings."""
    columns = []
    for column, field in zip(table.columns, target, strict=True):
        # The printed type also shows UUIDs inside lists, maps and structs.
        if str(pa.uuid()) in str(column.type):
            column = pa.chunked_array([pa.array(_printed(chunk.to_pylist()), field.type) for chunk in column.chunks])
        columns.append(column.cast(field.type))
    return pa.Table.from_arrays(columns, schema=target)


def _printed(value: Any) -> Any:
    """Return the value with UUIDs as strings at any depth; pyarrow has no cast for them."""
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, dict):
        return {name: _printed(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_printed(each) for each in value)
    return value
