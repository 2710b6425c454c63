"""The cost of merging the batches of a table's history, replayed through the planner under several policies. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count

from icesize.planning.file_sizes import expected_files, is_small_file
from icesize.planning.files import FileFact, Head, Layout, PartitionFacts, PartitionKey
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.merging.standing import Standing
from icesize.planning.plan import Plan
from icesize.policy import SizePolicy
from icesize.results import Result

BatchSizes = Mapping[PartitionKey, int]
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
    table: str, batches: Sequence[BatchSizes], policies: Mapping[str, SizePolicy], most_arrivals: int = MOST_ARRIVALS
) -> PolicyComparison:
    """Replay batches, oldest first, under policies by their names; of very many the newest."""
    chosen = _newest(batches, most_arrivals)
    keys = {key for batch in chosen for key in batch}
    ingested = sum(sum(batch.values()) for batch in chosen)
    replayed = tuple(replay(name, chosen, policy) for name, policy in policies.items()) if chosen else ()
    return PolicyComparison(table, len(chosen), len(keys), ingested, replayed)


def _newest(batches: Sequence[BatchSizes], most_arrivals: int) -> list[BatchSizes]:
    """Return the newest batches within the limit, at least one, oldest first, without batches that brought nothing."""
    chosen: list[BatchSizes] = []
    arrivals = 0
    for batch in reversed([known for batch in batches if (known := {k: b for k, b in batch.items() if b > 0})]):
        arrivals += len(batch)
        if chosen and arrivals > most_arrivals:
            break
        chosen.append(batch)
    return chosen[::-1]


def replay(name: str, batches: Sequence[BatchSizes], policy: SizePolicy) -> Replayed:
    """Carry out each batch as a sink with inline merges does.

    New rows become few files of equal size beside the older ones. The planner merges older files within the budget of
    the batch, to make place for new ones or because their partition is cold. A merged file is taken to be as large as
    its inputs.
    """
    table = ReplayedTable(policy, spec_of(batches))
    rewritten, scanned, small_files_max = list[int](), list[int](), 0
    for batch in batches:
        planned = table.plan(batch)
        table.apply(planned.changes)
        rewritten.append(planned.plan.bytes_to_write)
        scanned.append(table.layout.files)
        small_files_max = max([small_files_max, *(len(table.layout.partitions[key].small) for key in batch)])
    ingested, number = sum(sum(batch.values()) for batch in batches), max(1, len(batches))
    return Replayed(
        name,
        (ingested + sum(rewritten)) / ingested if ingested else 1.0,
        small_files_max,
        table.layout.files,
        sum(scanned) / number,
        sum(rewritten) / number,
        max(rewritten, default=0),
    )


def spec_of(batches: Iterable[BatchSizes]) -> int:
    """Return the partition spec of the rows. Files of another one are not merged."""
    return next((key.spec_id for batch in batches for key in batch), 0)


@dataclass(frozen=True)
class Exchange:
    """Files of one partition that are added, in place of `inputs` if there are any."""

    inputs: tuple[FileFact, ...]
    outputs: tuple[FileFact, ...]

    @property
    def written_bytes(self) -> int:
        """Bytes of the added files."""
        return sum(file.size_bytes for file in self.outputs)


@dataclass(frozen=True)
class SimulatedBatch:
    """The plan of a batch, the files of its rows, and those of its merges in the order of the plan."""

    plan: Plan
    appends: tuple[Exchange, ...]
    merges: tuple[Exchange, ...]

    @property
    def changes(self) -> tuple[Exchange, ...]:
        """Merges and rows, in this order."""
        return self.merges + self.appends


class ReplayedTable:
    """A table without bytes. Its `layout` and the summary in it are made as the reader of a table makes them.

    `batch` is the number of batches so far, which stamps the rows of the next one. Paths are numbers in the order of
    the files.
    """

    def __init__(self, policy: SizePolicy, spec_id: int = 0) -> None:
        self.policy, self.batch, self.paths = policy, 0, count()
        standing, limit_bytes = Standing(policy), policy.small_file_limit_bytes
        self.layout = Layout(Head(), spec_id, limit_bytes, commits_since=self._commits_since, now=-1, standing=standing)

    def _commits_since(self, stamp: int) -> int:
        return self.batch - 1 - stamp

    def plan(self, batch: BatchSizes) -> SimulatedBatch:
        """Return the plan of a batch, and all files that it adds."""
        appends, limit_bytes = self.appends(batch), self.layout.small_file_limit_bytes
        incoming = {
            key: sum(is_small_file(file.size_bytes, limit_bytes) for file in append.outputs)
            for key, append in zip(batch, appends, strict=True)
        }
        budget = MergeBudget.of_batch(self.policy, sum(batch.values()))
        plan = plan_merges(self.layout, self.policy, Occasion.BATCH, incoming, budget=budget)
        return SimulatedBatch(plan, appends, tuple(self.merged(group.inputs, group.outputs) for group in plan.groups))

    def appends(self, batch: BatchSizes) -> tuple[Exchange, ...]:
        """Return the rows of a batch, by partition, in as few files of equal size as the target allows."""
        target_bytes = self.policy.target_file_size_bytes
        return tuple(
            Exchange((), self._files(key, size, 1, self.batch, max(1, expected_files(size, target_bytes))))
            for key, size in batch.items()
        )

    def merged(self, inputs: tuple[FileFact, ...], outputs: int) -> Exchange:
        """Return a merge of files of one partition into `outputs` files of equal size."""
        size_bytes, rows = sum(file.size_bytes for file in inputs), sum(file.rows for file in inputs)
        newest = max(file.sequence_number for file in inputs)
        return Exchange(inputs, self._files(inputs[0].partition, size_bytes, rows, newest, outputs))

    def _files(self, key: PartitionKey, size_bytes: int, rows: int, number: int, files: int) -> tuple[FileFact, ...]:
        def part(whole: int, n: int) -> int:
            return whole * (n + 1) // files - whole * n // files

        return tuple(
            FileFact(str(next(self.paths)), part(size_bytes, n), part(rows, n), key, number) for n in range(files)
        )

    def apply(self, changes: Iterable[Exchange]) -> None:
        """Commit the files of a batch."""
        self.change(changes)
        self.layout = replace(self.layout, now=self.batch)
        self.batch += 1

    def change(self, changes: Iterable[Exchange]) -> None:
        """Commit files without a batch. A partition is as young as the newest rows that came to it."""
        changed, limit_bytes = dict[PartitionKey, PartitionFacts | None](), self.layout.small_file_limit_bytes
        for change in changes:
            key = change.outputs[0].partition
            old = changed.get(key) or self.layout.partitions.get(key) or PartitionFacts(key, "", 0, 0, 0)
            facts = old.without(change.inputs) if change.inputs else old
            for file in change.outputs:
                facts = facts.adding(file, limit_bytes)
            newest = max(old.newest, *(file.sequence_number for file in change.outputs))
            changed[key] = replace(facts, newest=newest)
        self.layout = self.layout.with_partitions(changed)
