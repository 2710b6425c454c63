"""What a batch holds, before it is written: rows per partition, counted where that is cheap.

Counting reads the batch once more, only the columns that partition values come from. It is done where the batch is
cached or made of columnar files; never for a source that would have to be run again in full.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from icesize.parquet.settings import WriteSettings
from icesize.planning.layout import Layout, PartitionKey
from icesize.planning.routing import Routing, route
from icesize.planning.sizing import learn_bytes_per_row, merged_files
from icesize.policy import SizePolicy
from icesize.spark import routing, session
from icesize.spark.jobs import count_rows, measure_rows

CLOSE_FILE_BYTES = 64 * 1024
"""What opening and closing a file costs, in bytes of writing: 2 ms at 35 MB/s, measured."""

TASK_BYTES = 2**20
"""Work below which another Spark task is not worth starting (0.03 s of writing, a task costs 0.02 s)."""

DEFAULT_BYTES_PER_ROW = 100.0
"""Weight of a row while nothing is known; only ratios between partitions matter then."""


@dataclass(frozen=True)
class BatchShape:
    """How a batch will be written.

    `incoming` are the small files each partition is expected to get, None when the batch was not counted; `rows`,
    `size_bytes`, the bytes of each partition (`weights`) and the task that its first rows go to (`owners`) are then
    unknown too. `task` places rows, None leaves them where they are. `parts` are the rows themselves, one table for
    each thread, when the batch is in this process already; a thread counts as a task.
    """

    tasks: int
    task: Column | None
    incoming: Mapping[PartitionKey, int] | None = None
    rows: int | None = None
    size_bytes: float = 0.0
    bytes_per_row: float | None = None
    parts: tuple[pa.Table, ...] | None = None
    weights: Mapping[PartitionKey, float] = field(default_factory=dict)
    owners: Mapping[PartitionKey, int] = field(default_factory=dict)


def shape_of(
    df: DataFrame,
    settings: WriteSettings,
    layout: Layout,
    policy: SizePolicy,
    *,
    cheap: bool | None = None,
    whole: bool = False,
) -> BatchShape:
    """Count the batch when that is cheap and route it by weight; else route it by the hash of its partitions.

    `cheap` is known to callers that have kept the batch; None looks at what it is made of. With `whole` the writers of
    new rows may take older small files along: a task's load counts them, and a partition is not split over tasks where
    the parts would be small files.
    """
    spec, schema = settings.spec, settings.schema
    key = routing.partition_key(spec, schema)
    cores = session.parallelism(df.sparkSession)
    if not (session.is_cheap_to_read_again(df) if cheap is None else cheap):
        return _unseen(settings, policy, key, cores, learned(layout, policy))
    columns = routing.source_columns(spec, schema)
    counted = count_rows(df, settings, columns, key)
    if not counted:
        return BatchShape(1, None, {}, 0)
    bytes_per_row = learned(layout, policy) or measure_rows(df, settings) or DEFAULT_BYTES_PER_ROW
    rows: dict[PartitionKey, int] = {}
    for (_, partition), n in counted.items():
        rows[partition] = rows.get(partition, 0) + n
    weights = {p: n * bytes_per_row for p, n in rows.items()}
    # a task with many small partitions is as busy as one with few large ones
    work = {p: weight + CLOSE_FILE_BYTES + (_small_bytes(layout, p) if whole else 0) for p, weight in weights.items()}
    tasks = max(1, min(cores, math.ceil(sum(work.values()) / TASK_BYTES)))
    routed = route(work, tasks, policy.target_file_size_bytes, policy.max_small_files)
    if whole:
        routed = _whole(routed, weights, policy)
    spread_by = routing.spread(spec, schema)
    placed = _placed(counted, routed)
    if spread_by is None:
        placed = {k: t[:1] for k, t in placed.items()}
    return BatchShape(
        tasks=tasks,
        task=routing.task_of(key, tasks, placed, spread_by),
        incoming={p: small_files(weights[p], routed.files[p], policy) for p in rows},
        rows=sum(rows.values()),
        size_bytes=sum(weights.values()),
        bytes_per_row=bytes_per_row,
        weights=weights,
        owners=_owners(counted, routing.first_tasks(tasks, placed)),
    )


def small_files(weight_bytes: float, files: int, policy: SizePolicy) -> int:
    """How many of `files` equal files of one partition will be small: all of them or none."""
    return files if weight_bytes / files < policy.small_file_limit_bytes else 0


def _placed(
    counted: Mapping[tuple[int, PartitionKey], int], routed: Routing[PartitionKey]
) -> dict[int, tuple[int, ...]]:
    """Tasks by routing key, the heaviest keys first; a key shared by two partitions goes where the first one goes."""
    placed: dict[int, tuple[int, ...]] = {}
    for (key, partition), _ in sorted(counted.items(), key=lambda item: (-item[1], item[0][0])):
        placed.setdefault(key, routed.assignment[partition])
    return placed


def _small_bytes(layout: Layout, partition: PartitionKey) -> int:
    facts = layout.partitions.get(partition)
    return sum(file.size_bytes for file in facts.small) if facts else 0


def _owners(counted: Mapping[tuple[int, PartitionKey], int], first: Mapping[int, int]) -> dict[PartitionKey, int]:
    """The task of each partition: where its heaviest key goes first."""
    owners: dict[PartitionKey, int] = {}
    for (key, partition), _ in sorted(counted.items(), key=lambda item: (-item[1], item[0][0])):
        owners.setdefault(partition, first[key])
    return owners


def _whole(
    routed: Routing[PartitionKey], weights: Mapping[PartitionKey, float], policy: SizePolicy
) -> Routing[PartitionKey]:
    """The same tasks, fewer for partitions whose parts would be small files."""
    limits = policy.target_file_size_bytes, policy.small_file_limit_bytes
    most = {p: merged_files(int(weight), *limits) for p, weight in weights.items()}
    return Routing(
        routed.tasks,
        {p: tasks[: most[p]] for p, tasks in routed.assignment.items()},
        {p: min(files, most[p]) for p, files in routed.files.items()},
    )


def _unseen(
    settings: WriteSettings, policy: SizePolicy, key: Column, cores: int, bytes_per_row: float | None
) -> BatchShape:
    """One task per partition by its hash; rows of an unpartitioned table spread over as many tasks as P1 allows."""
    if routing.source_columns(settings.spec, settings.schema):
        return BatchShape(cores, routing.task_of(key, cores, {}, None), bytes_per_row=bytes_per_row)
    spread_by = routing.spread(settings.spec, settings.schema)
    tasks = 1 if spread_by is None else max(1, min(cores, policy.max_small_files // 2))
    task = None if spread_by is None else routing.task_of(spread_by, tasks, {}, None)
    return BatchShape(tasks, task, bytes_per_row=bytes_per_row)


def learned(layout: Layout, policy: SizePolicy) -> float | None:
    """Bytes per row of this table's files, recent partitions first; None when it has none."""
    if policy.bytes_per_row is not None:
        return policy.bytes_per_row
    partitions = [p for p in layout.partitions.values() if p.rows and p.key.spec_id == layout.spec_id]
    if not partitions:
        return None
    samples = [
        (p.size_bytes // p.files, max(1, p.rows // p.files), p.files / (1.0 + p.commits_since_append))
        for p in partitions
    ]
    mean = sum(p.size_bytes for p in partitions) / sum(p.rows for p in partitions)
    return learn_bytes_per_row(samples, mean)
