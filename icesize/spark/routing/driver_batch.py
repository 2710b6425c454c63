"""Small batches are written where the driver is: fetched once, counted in memory, without a shuffle or a Python worker.

A Spark job that starts workers costs 0.3 s before it writes a byte; below 100,000 rows the driver has written them by
then (10,000 rows: 0.04 s here, 0.33 s by a job that places rows exactly).
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql import DataFrame

from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.column_matching import ColumnAligner
from icesize.parquet.rewriting.absorb import Absorption, Written
from icesize.parquet.rewriting.threads import write_in_threads
from icesize.parquet.writing.size_estimates import row_size
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.routing.router import route
from icesize.planning.sizing import expected_files
from icesize.policy import SizePolicy
from icesize.spark.engine import session
from icesize.spark.engine.jobs import fetch
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.write_plan import WritePlan, nothing_to_write, small_files

SMALL_BATCH_BYTES = 4 * 2**20
"""Size of a batch at its source (compressed files) up to which the driver writes it: about 100,000 rows."""

MOST_ROWS = 200_000
"""Rows that are fetched at most: a small file can hold millions of equal rows, which are large in memory."""

MOST_THREADS = 4
"""Writing holds Python's lock for a third of the time, so more threads than this only wait."""

UNDIVIDED = sys.maxsize
"""A target that no partition of a small batch exceeds: a thread writes all files of a partition."""

MOST_BYTES_ALONG = 32 * 2**20
"""Older small files that one thread decodes and writes again at most: it takes half a second, as long as counting the
batch and starting a Spark job for it."""


@dataclass(frozen=True)
class DriverWriter:
    """Threads of this process write the rows that it has already, each one of `parts`."""

    parts: tuple[pa.Table, ...]
    starts_a_job = False

    def can_take_along(self, absorption: Absorption) -> bool:
        """Not where a Spark job has decoded them sooner."""
        return absorption.most_bytes <= MOST_BYTES_ALONG

    def write(self, placed: DataFrame, settings: WriteSettings, prefix: str, absorption: Absorption) -> Written:
        """Raises RewriteFailed; the DataFrame is not computed again."""
        return write_in_threads(self.parts, settings, prefix, absorption)


def is_small(df: DataFrame) -> bool:
    """Whether the batch is cheap to read and its source surely small, by what Spark's optimizer knows of it."""
    return session.is_cheap_to_read_again(df) and session.source_bytes(df) <= SMALL_BATCH_BYTES


def plan_rows_in_hand(
    df: DataFrame, settings: WriteSettings, layout: Layout, policy: SizePolicy, learned: Learned
) -> WritePlan | None:
    """Fetch the batch and divide its partitions over threads; None when it has more than `MOST_ROWS` rows.

    Raises SchemaMismatch when a row does not fit.
    """
    fetched = fetch(df.limit(MOST_ROWS + 1))
    if fetched.num_rows > MOST_ROWS:
        return None
    rows = ColumnAligner(settings)(fetched)
    if rows.num_rows == 0:
        return nothing_to_write()
    groups = dict(split_by_partition(rows, settings))
    sizes = learned.sizes(policy, layout) or learned.expect(row_size(rows, settings))
    weights = {partition: sizes.size_of(partition, part.num_rows) or 0.0 for partition, part in groups.items()}
    parts, owners = _divided(groups, weights, policy)
    return WritePlan(
        tasks=len(parts),
        place=lambda given: given,
        incoming={
            p: small_files(weight, max(1, expected_files(weight, policy.target_file_size_bytes)), policy)
            for p, weight in weights.items()
        },
        rows=rows.num_rows,
        size_bytes=sum(weights.values()),
        bytes_per_row=sizes.bytes_per_row,
        writer=DriverWriter(parts),
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
    owners = {partition: routed.assignment[partition][0][0] for partition in groups}
    busy = {thread: n for n, thread in enumerate(sorted(set(owners.values())))}
    owners = {partition: busy[thread] for partition, thread in owners.items()}
    parts: list[list[pa.Table]] = [[] for _ in busy]
    for partition, rows in groups.items():
        parts[owners[partition]].append(rows)
    return tuple(pa.concat_tables(part) for part in parts), owners
