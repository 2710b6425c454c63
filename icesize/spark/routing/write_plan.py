"""The number of write tasks of a batch, the rows of each task, and the predicted files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyspark.sql import Column, DataFrame

from icesize.parquet.files.data_file import NewDataFile, Written
from icesize.parquet.files.partitioning import source_columns
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.absorb import Absorption
from icesize.parquet.rewriting.threads import write_in_threads
from icesize.planning.file_sizes import is_small_file, merged_files
from icesize.planning.files import PartitionKey
from icesize.planning.routing.router import Routing, route, side_by_side, skew
from icesize.planning.routing.row_sizes import RowSizes
from icesize.policy import SizePolicy
from icesize.spark.engine import jobs
from icesize.spark.routing import partition_keys as keys
from icesize.spark.routing.task_column import TaskAssignment, TaskShares, to_tasks, with_task

UNKNOWN = PartitionKey(-1, ())
"""Represents a partition that no batch has had yet; spec ids are never negative."""

CLOSING_SHARE = 1 / 12
"""Most that the closing of files may count, as a share of the bytes of a batch.

With more, writers of many small files would get much less to write, and bytes would not be balanced (1.1 is promised).
The files would save only milliseconds.
"""


@dataclass(frozen=True)
class PartitionRows:
    """Rows of each partition of a batch, counted or predicted.

    `keys` are the routing keys of partitions, including known partitions that are unlikely to have rows and are not
    among `rows`. `in_all` counts all rows. `unknown_rows` are predicted for the heaviest partition that has none of
    these keys. `is_complete`: every partition is named.
    """

    rows: Mapping[PartitionKey, float]
    keys: Mapping[int, PartitionKey]
    in_all: float
    unknown_rows: float = 0.0
    is_counted: bool = True
    is_complete: bool = False


@dataclass(frozen=True)
class KnownBatch:
    """Facts about a batch that is not written yet, counted or predicted.

    Attributes:
        incoming: The small files that each partition will receive.
        weights: The bytes of each partition.
        owners: The task of the first rows of each partition.
        rows: The number of rows; None unless they were counted.
        size_bytes: The bytes of all rows; None if the size of a row is unknown.
        is_complete: The batch has rows in these partitions and no other.
    """

    incoming: Mapping[PartitionKey, int]
    weights: Mapping[PartitionKey, float]
    owners: Mapping[PartitionKey, int]
    rows: int | None
    size_bytes: float | None
    is_complete: bool


@dataclass(frozen=True)
class WritePlan:
    """A plan to write a batch.

    Attributes:
        tasks: The number of writers.
        to_tasks: Returns the DataFrame to `write`.
        known: Facts about the batch; None if nothing is known of it.
        bytes_per_row: The size of a row; None if it is unknown.
        fetched: The rows themselves if they are in this process: a table per thread, which counts as a task.
        merge_tasks: The most tasks that merge beside the write job; None means one per core.
        routed: The batch, if it can be divided again.
        expected: The batch that would have been written without counting.
    """

    tasks: int
    to_tasks: Callable[[DataFrame], DataFrame]
    known: KnownBatch | None = None
    bytes_per_row: float | None = None
    fetched: Sequence[pa.Table] | None = None
    merge_tasks: int | None = None
    routed: RoutedBatch | None = None
    expected: RoutedBatch | None = None

    @property
    def is_predicted(self) -> bool:
        """True if all that is known of the batch is predicted from earlier ones."""
        return self.known is not None and self.known.rows is None

    def write(self, divided: DataFrame, settings: WriteSettings, owner: Uncommitted, absorption: Absorption) -> Written:
        """Write the rows as `to_tasks` has divided them; after an error, no written file stays.

        Raises RewriteFailed, and SchemaMismatch for rows that were not fetched.
        """
        if self.fetched is None:
            return jobs.write_in_tasks(divided, settings, owner, absorption)
        return write_in_threads(self.fetched, settings, owner, absorption)

    def beside(self, merges_bytes: list[int], cores: int) -> WritePlan:
        """Return a plan for the same batch while merge groups of these sizes run as Spark tasks."""
        if self.routed is None or not merges_bytes:
            return self
        tasks, merge_tasks = side_by_side(self.routed.work_bytes, merges_bytes, self.tasks, cores)
        plan = self if tasks == self.tasks else self.routed.over(tasks)
        return replace(plan, merge_tasks=merge_tasks, expected=self.expected)


@dataclass(frozen=True)
class RoutedBatch:
    """A batch with the weight of each partition, which can be divided over any number of tasks.

    `taken_along` are bytes of older files that the writers of a partition's rows absorb. With it, a partition is not
    split into parts that would be small files. `is_cheap`: computing the rows needs no tasks of its own.
    """

    partition_rows: PartitionRows
    sizes: RowSizes[PartitionKey]
    settings: WriteSettings
    policy: SizePolicy
    taken_along: Mapping[PartitionKey, int] | None = None
    is_cheap: bool = False

    def over(self, tasks: int) -> WritePlan:
        """Divide the batch over tasks by weight."""
        weights, routed = self.weights, self._route(tasks)
        by_key = self._by_key(routed)
        owners = dict[PartitionKey, int]()
        for key, partition in self.partition_rows.keys.items():
            # The owner of a partition is the first task of its first key.
            owners.setdefault(partition, by_key[key][0][0])
        known = KnownBatch(
            incoming={p: small_files(weights[p], routed.files[p], self.policy) for p in weights},
            weights=weights,
            owners=owners,
            rows=int(self.partition_rows.in_all) if self.partition_rows.is_counted else None,
            size_bytes=self.new_bytes if self.sizes.is_known else None,
            is_complete=self.partition_rows.is_complete,
        )
        bytes_per_row = self.sizes.table.bytes_per_row if self.sizes.is_known else None
        return WritePlan(tasks, lambda df: self._to_tasks(df, routed, by_key), known, bytes_per_row, routed=self)

    @cached_property
    def weights(self) -> Mapping[PartitionKey, float]:
        """Predicted bytes of each partition's new rows."""
        return {p: self.sizes.size_of(p, rows) for p, rows in self.partition_rows.rows.items()}

    @property
    def new_bytes(self) -> float:
        """Predicted bytes of all new rows, including rows of unnamed partitions."""
        unnamed = self.partition_rows.in_all - sum(self.partition_rows.rows.values())
        return sum(self.weights.values()) + max(0.0, unnamed) * self.sizes.table.bytes_per_row

    @property
    def work_bytes(self) -> float:
        """Bytes to write, plus the cost of closing files."""
        closing = len(self.partition_rows.rows) * self.policy.close_file_cost_bytes
        return self.new_bytes + closing + sum((self.taken_along or {}).values())

    def skew_of(self, files: Iterable[NewDataFile], tasks: int) -> float:
        """Return the most bytes of a writer over their mean, if this plan had divided the batch that became `files`."""
        routed, keys_of = self._route(tasks), keys.keys_of(self.settings.spec, self.settings.schema)
        by_key, unknown = self._by_key(routed), routed.assignment.get(UNKNOWN)
        loads = [0.0] * tasks
        for file in files:
            key = next(iter(keys_of(file.partition)), 0)
            for task, share in by_key.get(key) or unknown or ((key % tasks, 1.0),):
                loads[task] += share * file.size_bytes
        return skew(loads)

    def _route(self, tasks: int) -> Routing[PartitionKey]:
        load = dict(self.weights)
        for partition, size_bytes in (self.taken_along or {}).items():
            load[partition] = load.get(partition, 0.0) + size_bytes
        if self.partition_rows.unknown_rows:
            load[UNKNOWN] = self.sizes.size_of(UNKNOWN, self.partition_rows.unknown_rows)
        policy = self.policy
        closing = min(policy.close_file_cost_bytes, CLOSING_SHARE * sum(load.values()) / max(1, len(load)))
        routed = route(load, tasks, policy.target_file_size_bytes, closing, most_files=policy.max_small_files // 2)
        return routed if self.taken_along is None else _whole(routed, self.weights, policy)

    def _by_key(self, routed: Routing[PartitionKey]) -> dict[int, TaskShares]:
        """Return shares by routing key, the heaviest first; a partition whose rows cannot be spread is not split."""
        weights = self.weights
        by_weight = sorted(self.partition_rows.keys.items(), key=lambda item: (-weights.get(item[1], 0.0), item[0]))
        by_key = {key: routed.assignment.get(partition) or ((key % routed.tasks, 1.0),) for key, partition in by_weight}
        if self._spread is None:
            return {key: ((max(shares, key=lambda pair: pair[1])[0], 1.0),) for key, shares in by_key.items()}
        return by_key

    def _to_tasks(self, df: DataFrame, routed: Routing[PartitionKey], by_key: Mapping[int, TaskShares]) -> DataFrame:
        if routed.tasks == 1:
            # An expensive computation of the rows keeps its own tasks; `coalesce(1)` would run it in this one task.
            return df.coalesce(1) if self.is_cheap else df.repartition(1)
        key = keys.partition_key(self.settings.spec, self.settings.schema)
        unknown = routed.assignment.get(UNKNOWN)
        assignment = TaskAssignment(routed.tasks, by_key, self._spread, unknown)
        return to_tasks(with_task(df, key, assignment), routed.tasks)

    @property
    def _spread(self) -> Column | None:
        return keys.spread(self.settings.spec, self.settings.schema)


def nothing_to_write() -> WritePlan:
    """Return the plan for an empty batch."""
    return WritePlan(1, lambda df: df, KnownBatch({}, {}, {}, 0, 0.0, is_complete=True))


def unseen(
    settings: WriteSettings, policy: SizePolicy, cores: int, write_tasks: int | None, bytes_per_row: float | None
) -> WritePlan:
    """Return the plan for a batch of which nothing is known.

    The hash of a partition selects its only task. Rows of an unpartitioned table are spread over `write_tasks` tasks,
    or by default over one task per core, and at most half of `max_small_files`.
    """
    spec, schema = settings.spec, settings.schema
    key: Column | None = keys.partition_key(spec, schema)
    tasks = write_tasks or cores
    if not source_columns(spec, schema):
        key = keys.spread(spec, schema)
        tasks = 1 if key is None else write_tasks or max(1, min(cores, policy.max_small_files // 2))

    def by_hash(df: DataFrame) -> DataFrame:
        if key is None or tasks == 1:
            return df.repartition(1)
        return to_tasks(with_task(df, key, TaskAssignment(tasks)), tasks)

    return WritePlan(tasks, by_hash, bytes_per_row=bytes_per_row)


def small_files(weight_bytes: float, files: int, policy: SizePolicy) -> int:
    """Return how many of `files` equal files of one partition will be small: all of them or none."""
    return files if is_small_file(weight_bytes / files, policy.small_file_limit_bytes) else 0


def _whole(
    routed: Routing[PartitionKey], weights: Mapping[PartitionKey, float], policy: SizePolicy
) -> Routing[PartitionKey]:
    """Return the same routing, with fewer tasks for partitions whose parts would be small files."""
    limits = policy.target_file_size_bytes, policy.small_file_limit_bytes
    assignment, files = dict(routed.assignment), dict(routed.files)
    for partition, weight in weights.items():
        most = merged_files(int(weight), *limits)
        kept = assignment[partition][:most]
        assignment[partition] = tuple((task, 1 / len(kept)) for task, _ in kept)
        files[partition] = min(files[partition], most)
    return Routing(routed.tasks, assignment, files)
