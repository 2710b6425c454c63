"""Small batches are written where the driver is: fetched once, counted in memory, without a shuffle or a Python worker.

A Spark job that starts workers costs 0.3 s before it writes a byte; below 100,000 rows the driver has written them by
then (10,000 rows: 0.04 s here, 0.33 s by a job that places rows exactly).
"""

from __future__ import annotations

import os
import sys

import pyarrow as pa
from pyspark.sql import DataFrame

from icesize.clock import WorkLimits
from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.projection import ColumnAligner
from icesize.parquet.writing.encoding import row_size
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.routing.router import route
from icesize.planning.sizing import expected_files
from icesize.policy import SizePolicy
from icesize.spark.engine import session
from icesize.spark.engine.jobs import fetch
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.write_plan import WritePlan, nothing_to_write, small_files

MOST_THREADS = 4
"""Writing holds Python's lock for a third of the time, so more threads than this only wait."""

UNDIVIDED = sys.maxsize
"""A target that no partition of a small batch exceeds: a thread writes all files of a partition."""


def is_small(df: DataFrame, limits: WorkLimits) -> bool:
    """Whether the batch is cheap to read and its source surely small, by what Spark's optimizer knows of it."""
    return session.is_cheap_to_read_again(df) and session.source_bytes(df) <= limits.driver_source_bytes


def plan_rows_in_hand(
    df: DataFrame, settings: WriteSettings, layout: Layout, policy: SizePolicy, learned: Learned, *, limits: WorkLimits
) -> WritePlan | None:
    """Fetch the batch and divide its partitions over threads; None when it has more than `driver_rows` rows.

    Raises SchemaMismatch when a row does not fit.
    """
    fetched = fetch(df.limit(limits.driver_rows + 1))
    if fetched.num_rows > limits.driver_rows:
        return None
    rows = ColumnAligner(settings)(fetched)
    if rows.num_rows == 0:
        return nothing_to_write()
    groups = dict(split_by_partition(rows, settings))
    sizes = learned.sizes(policy, layout)
    if not sizes.is_known:
        sizes = learned.expect(row_size(rows, settings))
    weights = {partition: sizes.size_of(partition, part.num_rows) for partition, part in groups.items()}
    parts, owners = _divided(groups, weights, policy)
    return WritePlan(
        tasks=len(parts),
        to_tasks=lambda given: given,
        incoming={
            p: small_files(weight, max(1, expected_files(weight, policy.target_file_size_bytes)), policy)
            for p, weight in weights.items()
        },
        rows=rows.num_rows,
        size_bytes=sum(weights.values()),
        bytes_per_row=sizes.table.bytes_per_row,
        fetched=parts,
        is_complete=True,
        weights=weights,
        owners=owners,
    )


def _divided(
    groups: dict[PartitionKey, pa.Table], weights: dict[PartitionKey, float], policy: SizePolicy
) -> tuple[tuple[pa.Table, ...], dict[PartitionKey, int]]:
    """One table per thread, and the thread of each partition; a partition is never divided, so that it gets as few
    files as it can."""
    threads = max(1, min(MOST_THREADS, os.cpu_count() or 1, len(groups)))
    routed = route(weights, threads, UNDIVIDED, policy.close_file_cost_bytes, most_files=1)
    busy = sorted({shares[0][0] for shares in routed.assignment.values()})
    owners = {partition: busy.index(shares[0][0]) for partition, shares in routed.assignment.items()}
    parts = ([rows for partition, rows in groups.items() if owners[partition] == n] for n in range(len(busy)))
    return tuple(map(pa.concat_tables, parts)), owners
