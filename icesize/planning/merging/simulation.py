"""The cost of merging the batches of a table's history, replayed through the planner under several policies. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from icesize.planning.files import FileFact, Head, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import Plan
from icesize.planning.sizing import expected_files
from icesize.policy import SizePolicy
from icesize.results import Result

Batch = Mapping[PartitionKey, int]
"""Bytes of new rows by partition."""

MOST_BATCHES = 500
"""Batches that are replayed, the newest."""
MOST_ARRIVALS = 100_000
"""Partitions of all batches together that are replayed: some seconds for each policy."""


@dataclass(frozen=True)
class Replayed:
    """The cost of the batches under one policy.

    `write_amplification` is the bytes written per byte ingested. `small_files_max` is the largest number of small files
    in a partition after any batch, `files` the number of files after the last batch, `files_scanned` the mean number of
    files that a full scan opens after a batch. Rewritten bytes are those of the merges of one batch.
    """

    name: str
    write_amplification: float
    small_files_max: int
    files: int
    files_scanned: float
    rewritten_bytes_mean: float
    rewritten_bytes_max: int


@dataclass(frozen=True)
class PolicyComparison(Result):
    """The batches of a table, replayed under several policies from an empty table; the present policy comes first."""

    table: str
    batches: int
    partitions: int
    bytes_ingested: int
    replayed: tuple[Replayed, ...]


def compare(
    table: str, batches: Sequence[Batch], policies: Mapping[str, SizePolicy], most_arrivals: int = MOST_ARRIVALS
) -> PolicyComparison:
    """Replay batches, oldest first, under policies by their names; of very many the newest."""
    chosen = _newest(batches, most_arrivals)
    keys = {key for batch in chosen for key in batch}
    ingested = sum(sum(batch.values()) for batch in chosen)
    replayed = tuple(replay(name, chosen, policy) for name, policy in policies.items()) if chosen else ()
    return PolicyComparison(table, len(chosen), len(keys), ingested, replayed)


def _newest(batches: Sequence[Batch], most_arrivals: int) -> list[Batch]:
    """Return the newest batches within the limit, at least one, oldest first, without batches that brought nothing."""
    chosen: list[Batch] = []
    arrivals = 0
    for batch in reversed([known for batch in batches if (known := {k: b for k, b in batch.items() if b > 0})]):
        arrivals += len(batch)
        if chosen and arrivals > most_arrivals:
            break
        chosen.append(batch)
    return chosen[::-1]


def replay(name: str, batches: Sequence[Batch], policy: SizePolicy) -> Replayed:
    """Carry out each batch as a sink with inline merges does.

    New rows become few files of equal size beside the older ones. The planner merges older files within the budget of
    the batch, to make place for new ones or because their partition is cold. A merged file is taken to be as large as
    its inputs.
    """
    table = _Table(policy)
    for batch in batches:
        table.take(batch)
    ingested, rewritten, count = sum(sum(batch.values()) for batch in batches), table.rewritten, max(1, len(batches))
    return Replayed(
        name,
        (ingested + sum(rewritten)) / ingested if ingested else 1.0,
        table.small_files_max,
        table.files,
        sum(table.scanned) / count,
        sum(rewritten) / count,
        max(rewritten, default=0),
    )


@dataclass
class _Table:
    """A table during the replay, with the bytes `rewritten` for each batch, and the files `scanned` after it.

    A partition is planned when a batch writes to it, and when it is cold, until nothing in it is due.
    """

    policy: SizePolicy
    files: int = 0
    batch: int = 0
    partitions: dict[PartitionKey, PartitionFacts] = field(default_factory=dict)
    last: dict[PartitionKey, int] = field(default_factory=dict)
    cooling: defaultdict[int, set[PartitionKey]] = field(default_factory=lambda: defaultdict(set))
    waiting: set[PartitionKey] = field(default_factory=set)
    rewritten: list[int] = field(default_factory=list)
    scanned: list[int] = field(default_factory=list)
    small_files_max: int = 0

    def take(self, batch: Batch) -> None:
        """Merge the due files, and add the batch."""
        target_bytes, limit_bytes = self.policy.target_file_size_bytes, self.policy.small_file_limit_bytes
        counts = {key: max(1, expected_files(size, target_bytes)) for key, size in batch.items()}
        new = {key: self._files(key, "", size, counts[key]) for key, size in batch.items()}
        incoming = {key: sum(file.size_bytes < limit_bytes for file in files) for key, files in new.items()}
        plan = self._plan(batch, incoming)
        for number, group in enumerate(plan.groups):
            key = group.partition
            self.partitions[key] = self.partitions[key].without(group.inputs)
            self._add(self._files(key, f"{number}-", group.size_bytes, group.outputs))
        self.files -= plan.files_removed
        self.waiting = {skip.partition for skip in plan.skipped if skip.reason is SkipReason.OVER_BUDGET} - set(batch)
        for key, files in new.items():
            self._add(files)
            self.last[key] = self.batch
            self.cooling[self.batch + self.policy.cold_after_commits].add(key)
        self.batch += 1
        self.rewritten.append(plan.bytes_to_write)
        self.scanned.append(self.files)
        self.small_files_max = max([self.small_files_max, *(len(self.partitions[key].small) for key in batch)])

    def _files(self, key: PartitionKey, name: str, size_bytes: int, count: int) -> list[FileFact]:
        """Return files of equal size."""
        sizes = [size_bytes * (n + 1) // count - size_bytes * n // count for n in range(count)]
        return [FileFact(f"{self.batch}/{name}{n}", size, 1, key, self.batch) for n, size in enumerate(sizes)]

    def _plan(self, batch: Batch, incoming: Mapping[PartitionKey, int]) -> Plan:
        cold = {key for key in self.cooling.pop(self.batch, ()) if self._age(key) >= self.policy.cold_after_commits}
        facts = {
            key: replace(self._facts(key), newest=min(0, 1 - self._age(key)))
            for key in (*batch, *((cold | self.waiting) - batch.keys()))
        }
        layout = Layout(Head(None, self.batch), 0, self.policy.small_file_limit_bytes, facts)
        budget_bytes = self.policy.budget_for(sum(batch.values()))
        return plan_merges(layout, self.policy, incoming=incoming, budget_bytes=budget_bytes)

    def _age(self, key: PartitionKey) -> int:
        return self.batch - self.last.get(key, self.batch)

    def _facts(self, key: PartitionKey) -> PartitionFacts:
        return self.partitions.get(key) or PartitionFacts(key, "", 0, 0, 0)

    def _add(self, files: Sequence[FileFact]) -> None:
        self.files += len(files)
        for file in files:
            facts = self._facts(file.partition)
            self.partitions[file.partition] = facts.adding(file, self.policy.small_file_limit_bytes)
