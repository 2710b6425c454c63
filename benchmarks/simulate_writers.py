"""Writers of a simulated table: icesize with its planner, and peers with the rules of theirs.

Each writes the rows of a batch as few files of equal size by partition; they differ in what they merge, and when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from icesize.planning.file_sizes import merged_files
from icesize.planning.files import PartitionFacts
from icesize.planning.merging.simulation import BatchSizes, Exchange, ReplayedTable
from icesize.policy import MIB, SizePolicy

MIN_INPUT_FILES = 5
"""Iceberg's `min-input-files` of `rewrite_data_files`."""
DELTA_TARGET_BYTES, DELTA_MIN_FILES, DELTA_MOST_PARTITIONS = 128 * MIB, 50, 128
"""Delta's `autoCompact`: `maxFileSize`, `minNumFiles`, and the most partitions that a commit compacts."""

Snapshots = Sequence[Sequence[Exchange]]


@dataclass(frozen=True)
class Commit:
    """The snapshots of a batch, and the CPU time of planning it with the update of the layout; 0 for peers."""

    snapshots: Snapshots
    plan_ms: float = 0.0


Take = Callable[[ReplayedTable, BatchSizes, bool], Commit]
"""Takes a batch into a table; True with the last batch of a day."""


def by_icesize(table: ReplayedTable, batch: BatchSizes, is_last: bool) -> Commit:
    """Append, and replace what the planner merges, in one commit."""
    began = time.process_time()
    planned = table.plan(batch)
    table.apply(planned.changes)
    plan_ms = 1000 * (time.process_time() - began)
    return Commit(tuple(filter(None, (planned.appends, planned.merges))), plan_ms)


def always_merging(table: ReplayedTable, batch: BatchSizes, is_last: bool) -> Commit:
    """Write the rows of each partition together with its small file, as Hudi does."""
    appends, merged = table.appends(batch), list[Exchange]()
    for key, append in zip(batch, appends, strict=True):
        known = table.layout.partitions.get(key)
        small = known.small if known else ()
        size_bytes = sum(file.size_bytes for file in (*small, *append.outputs))
        outputs = table.merged((*small, *append.outputs), _files(table, size_bytes)).outputs
        merged.append(Exchange(small, outputs))
    table.apply(merged)
    return Commit((merged,))


def each_night(table: ReplayedTable, batch: BatchSizes, is_last: bool) -> Commit:
    """Append, and after each day run `rewrite_data_files` with its defaults."""
    appends = table.appends(batch)
    table.apply(appends)
    if not is_last:
        return Commit((appends,))
    # a call when a day is over looks at every partition, and finds what has enough small files
    every = table.layout.partitions.values()
    merges = [merged_whole(table, facts) for facts in every if _is_worth_rewriting(facts, table.policy)]
    table.change(merges)
    return Commit(tuple(filter(None, (appends, merges))))


def after_fifty(table: ReplayedTable, batch: BatchSizes, is_last: bool) -> Commit:
    """Append, and compact the written partitions that have 50 small files, as Delta does."""
    appends = table.appends(batch)
    table.apply(appends)
    full = [facts for key in batch if len((facts := table.layout.partitions[key]).small) >= DELTA_MIN_FILES]
    merges = [merged_whole(table, facts) for facts in full[:DELTA_MOST_PARTITIONS]]
    table.change(merges)
    return Commit(tuple(filter(None, (appends, merges))))


@dataclass(frozen=True)
class Writer:
    """How a table is written: by which policy, of which peers only have the sizes, and by which rule."""

    policy: SizePolicy
    take: Take

    @property
    def finishes(self) -> bool:
        """True if a partition without new rows is merged to the fewest files."""
        return self.take is by_icesize

    def empty_table(self) -> ReplayedTable:
        """Return a table without files; only icesize needs a summary of its layout."""
        table = ReplayedTable(self.policy)
        if not self.finishes:
            table.layout = replace(table.layout, standing=None)
        return table


WRITERS = {
    "icesize": Writer(SizePolicy(), by_icesize),
    "always merging": Writer(SizePolicy(), always_merging),
    "rewrite_data_files each night": Writer(SizePolicy(), each_night),
    "Delta's 50 files": Writer(
        SizePolicy(target_file_size_bytes=DELTA_TARGET_BYTES, small_file_limit_bytes=DELTA_TARGET_BYTES // 2),
        after_fifty,
    ),
}


def merged_whole(table: ReplayedTable, facts: PartitionFacts) -> Exchange:
    """Return the merge of all small files of a partition."""
    return table.merged(facts.small, _files(table, sum(file.size_bytes for file in facts.small)))


def _is_worth_rewriting(facts: PartitionFacts, policy: SizePolicy) -> bool:
    is_large = sum(file.size_bytes for file in facts.small) > policy.target_file_size_bytes
    return len(facts.small) >= MIN_INPUT_FILES or (len(facts.small) >= 2 and is_large)


def _files(table: ReplayedTable, size_bytes: int) -> int:
    """Return the number of merged files. No writer gets parts that are small again, which some merge for ever."""
    return merged_files(size_bytes, table.policy.target_file_size_bytes, table.policy.small_file_limit_bytes)
