"""Batches of upserts that the driver cannot hold: Spark tasks resolve them and write their rows.

The rows are shuffled once, by the hash of their key, so that each task has all events of its keys. What the tasks
resolved stays in Spark's cache. Then the rows are routed to writers as those of an append are; rows of an unpartitioned
table need no second shuffle for that.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark

from icesize.errors import IcesizeError
from icesize.parquet.files.data_file import Written
from icesize.parquet.files.lineage_fields import LINEAGE_FIELDS
from icesize.parquet.files.partitioning import source_columns
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.files import Layout
from icesize.spark.engine import jobs, session
from icesize.spark.engine.worker import prepare
from icesize.spark.routing.statistics import plan_write
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.process_state import TableState
from icesize.table.state.handle import Current
from icesize.table.upserts.shards import ShardResult, ShardTask

SHARD_ROWS = 1_000_000
"""Events of a shard: a worker holds them twice, at some 100 bytes each, and reads the key columns of the table once."""
_ANSWER = "_icesize_answer"


@dataclass(frozen=True)
class ResolveShard:
    """A function for `mapInArrow`: the rows of a task's shard that are to be written, and one row with the result.

    An error that a retry does not repair is a result, too.
    """

    task: ShardTask
    is_delete: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        parts = list(batches)
        if not parts:
            return
        rows = pa.Table.from_batches(parts)
        mask = np.asarray(rows.column(self.is_delete), np.bool_)
        # all columns may be NULL: the row with the result has no other value
        fields = [pa.field(field.name, field.type) for field in rows.schema if field.name != self.is_delete]
        if self.task.keeps_ids:
            fields += [pa.field(each.name, pa.int64()) for each in LINEAGE_FIELDS]
        schema = pa.schema([*fields, pa.field(_ANSWER, pa.binary())])
        result: ShardResult | IcesizeError
        try:
            written, result = self.task(rows.drop_columns([self.is_delete]), mask)
            columns = [*written.columns, pa.nulls(written.num_rows, pa.binary())]
            yield from pa.Table.from_arrays(columns, schema=schema).to_batches()
        except IcesizeError as error:
            result = error
        values = [*(pa.nulls(1, field.type) for field in fields), pa.array([pickle.dumps(result)], pa.binary())]
        yield pa.RecordBatch.from_arrays(values, schema=schema)


@contextmanager
def resolved(
    df: DataFrame, is_delete: str, task: ShardTask, keys: list[str], rows: int
) -> Iterator[tuple[DataFrame, list[ShardResult]]]:
    """Resolve a batch with this number of rows; yield the rows to write, from Spark's cache, and the results.

    Raises the errors of `ShardTask`, and those of `run_job`.
    """
    shards = max(session.parallelism(df.sparkSession), -(-rows // SHARD_ROWS))
    fields = [spark.StructField(each.name, each.dataType) for each in df.schema.fields if each.name != is_delete]
    if task.keeps_ids:
        fields += [spark.StructField(each.name, spark.LongType()) for each in LINEAGE_FIELDS]
    target = spark.StructType([*fields, spark.StructField(_ANSWER, spark.BinaryType())])
    by_key = df.repartition(shards, *(F.col(f"`{key}`") for key in keys))
    done = by_key.mapInArrow(ResolveShard(task, is_delete), target).persist()
    try:
        answers = jobs.fetch(done.where(F.col(_ANSWER).isNotNull()).select(_ANSWER)).column(0).to_pylist()
        results = [pickle.loads(each) for each in answers]  # noqa: S301 - made by icesize's workers in this job
        for each in results:
            if isinstance(each, IcesizeError):
                raise each
        yield done.where(F.col(_ANSWER).isNull()).drop(_ANSWER), results
    finally:
        done.unpersist()


def write(
    rows: DataFrame, task: ShardTask, current: Current, layout: Layout, owner: Uncommitted, options: SinkOptions,
    state: TableState,
) -> Written:  # fmt: skip
    """Write resolved rows into few files."""
    settings = task.settings
    plan = plan_write(
        rows, settings, layout, current.policy, state.learned, limits=options.environment.limits,
        statistics="exact", write_tasks=options.write_tasks, cheap=True,
    )  # fmt: skip
    if plan.rows == 0:
        return Written()
    settings = replace(settings, bytes_per_row=plan.bytes_per_row)
    # each task writes the rows of several shards
    is_whole = not source_columns(settings.spec, settings.schema)
    divided = rows.coalesce(plan.tasks) if is_whole else plan.to_tasks(rows)
    return jobs.write_in_tasks(divided, settings.with_lineage if task.keeps_ids else settings, owner)
