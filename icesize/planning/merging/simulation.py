"""What merging makes of batches: of sizes that arrive in one partition, and of the batches that a table got, replayed
through the planner under several policies. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from icesize.planning.files import FileFact, Head, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeGroup, Plan
from icesize.planning.sizing import expected_files
from icesize.policy import SizePolicy
from icesize.results import Result

Choose = Callable[[Sequence[float]], int]
"""Small sizes in ascending order, the new one included -> how many of the smallest to merge."""
PutOff = Callable[[float, float], bool]
"""(newest size, bytes of a merge) -> whether the merge waits for a later arrival."""
Batch = Mapping[PartitionKey, int]
"""Bytes of new rows by partition."""

MOST_BATCHES = 500
"""Batches that are replayed, the newest."""
MOST_ARRIVALS = 100_000
"""Partitions of all batches together that are replayed: some seconds for each policy."""


class Outcome(NamedTuple):
    """What became of sizes that arrived: W, the most small files after any arrival, the sizes of finished files."""

    write_amplification: float
    most_small_files: int
    finished: list[float]


def simulate(choose: Choose, sizes: Iterable[float], limit: float, put_off: PutOff | None = None) -> Outcome:
    """One partition: files of these sizes arrive one after the other, those below `limit` are small.

    Arrivals after which a merge is put off do not count for `most_small_files`.
    """
    small: list[float] = []
    finished: list[float] = []
    arrived, written, most = 0.0, 0.0, 0
    for size in sizes:
        small = sorted([*small, size])
        arrived += size
        written += size
        count = choose(small)
        merged = sum(small[:count])
        waits = put_off is not None and put_off(size, merged)
        if count >= 2 and not waits:
            written += merged
            small = sorted([*small[count:], merged])
        finished += [size for size in small if size >= limit]
        small = [size for size in small if size < limit]
        if not waits:
            most = max(most, len(small))
    return Outcome(written / arrived, most, finished)


@dataclass(frozen=True)
class Replayed:
    """What batches would have come to under one policy.

    `write_amplification` is W: bytes written per byte ingested. `small_files_max` are the most small files that a
    partition held after any batch, `files` those of the table after the last one, and `files_scanned` what a scan of
    all of it opened, on average over the batches. Bytes are those rewritten by the merges of one batch.
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
    """The batches of a table, replayed under several policies from an empty table, the present policy first."""

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
    """As many as are affordable, at least one, oldest first; without those that brought nothing."""
    chosen: list[Batch] = []
    arrivals = 0
    for batch in reversed([known for batch in batches if (known := {k: b for k, b in batch.items() if b > 0})]):
        arrivals += len(batch)
        if chosen and arrivals > most_arrivals:
            break
        chosen.append(batch)
    return chosen[::-1]


def replay(name: str, batches: Sequence[Batch], policy: SizePolicy) -> Replayed:
    """Carry out each batch as a sink with inline merges does: new rows become few files of equal size beside the older
    ones, of which the planner merges what makes place for them or has gone cold, within the budget of the batch.

    Merged files are taken to be as large as what was merged into them.
    """
    table = _Table(policy)
    counted = [table.take(batch) for batch in batches]
    ingested = sum(sum(batch.values()) for batch in batches)
    rewritten = [each.rewritten_bytes for each in counted]
    return Replayed(
        name,
        (ingested + sum(rewritten)) / ingested if ingested else 1.0,
        max((each.small_files_max for each in counted), default=0),
        table.files,
        sum(each.files for each in counted) / len(counted) if counted else 0.0,
        sum(rewritten) / len(counted) if counted else 0.0,
        max(rewritten, default=0),
    )


class _Taken(NamedTuple):
    """One batch: bytes that its merges rewrote, files of the table after it, most small files where it wrote."""

    rewritten_bytes: int
    files: int
    small_files_max: int


@dataclass
class _Table:
    """A table in the making: small files by partition; the others are counted.

    Partitions are looked at when a batch writes to them, and when they have gone cold, until nothing is due there.
    """

    policy: SizePolicy
    files: int = 0
    batch: int = 0
    small: defaultdict[PartitionKey, list[FileFact]] = field(default_factory=lambda: defaultdict(list))
    last: dict[PartitionKey, int] = field(default_factory=dict)
    cooling: defaultdict[int, set[PartitionKey]] = field(default_factory=lambda: defaultdict(set))
    waiting: set[PartitionKey] = field(default_factory=set)

    def take(self, batch: Batch) -> _Taken:
        """Merge what is due, and add the batch."""
        limit_bytes, new = self.policy.small_file_limit_bytes, {key: self._new(key, batch[key]) for key in batch}
        incoming = {key: sum(file.size_bytes < limit_bytes for file in files) for key, files in new.items()}
        plan = self._plan(batch, incoming)
        for number, group in enumerate(plan.groups):
            self._merge(number, group)
        self.waiting = {skip.partition for skip in plan.skipped if skip.reason is SkipReason.OVER_BUDGET} - set(batch)
        for key, files in new.items():
            self._add(key, files)
            self.last[key] = self.batch
            self.cooling[self.batch + self.policy.cold_after_commits].add(key)
        self.batch += 1
        return _Taken(plan.bytes_to_write, self.files, max((len(self.small[key]) for key in batch), default=0))

    def _new(self, key: PartitionKey, size_bytes: int) -> list[FileFact]:
        count = max(1, expected_files(size_bytes, self.policy.target_file_size_bytes))
        return [self._file(key, f"{n}", part) for n, part in enumerate(_equal_parts(size_bytes, count))]

    def _file(self, key: PartitionKey, name: str, size_bytes: int) -> FileFact:
        return FileFact(f"{self.batch}/{name}", size_bytes, 1, key, self.batch)

    def _plan(self, batch: Batch, incoming: Mapping[PartitionKey, int]) -> Plan:
        cold = {key for key in self.cooling.pop(self.batch, ()) if self._age(key) >= self.policy.cold_after_commits}
        facts = {key: self._facts(key) for key in (*batch, *((cold | self.waiting) - batch.keys()))}
        layout = Layout(Head(None, self.batch), 0, self.policy.small_file_limit_bytes, facts)
        budget_bytes = self.policy.budget_for(sum(batch.values()))
        return plan_merges(layout, self.policy, incoming=incoming, budget_bytes=budget_bytes)

    def _age(self, key: PartitionKey) -> int:
        return self.batch - self.last[key]

    def _facts(self, key: PartitionKey) -> PartitionFacts:
        small = tuple(self.small[key])
        size_bytes = sum(file.size_bytes for file in small)
        quiet = max(0, self._age(key) - 1) if key in self.last else 0
        return PartitionFacts(key, "", len(small), size_bytes, len(small), small, quiet)

    def _merge(self, number: int, group: MergeGroup) -> None:
        gone = {file.path for file in group.inputs}
        self.small[group.partition] = [file for file in self.small[group.partition] if file.path not in gone]
        self.files -= len(gone)
        parts = _equal_parts(group.size_bytes, group.outputs)
        self._add(group.partition, [self._file(group.partition, f"{number}-{n}m", p) for n, p in enumerate(parts)])

    def _add(self, key: PartitionKey, files: Sequence[FileFact]) -> None:
        self.files += len(files)
        self.small[key] += [file for file in files if file.size_bytes < self.policy.small_file_limit_bytes]


def _equal_parts(total: int, parts: int) -> list[int]:
    return [total * (n + 1) // parts - total * n // parts for n in range(parts)]
