"""The settings of a table that cost least, found by simulating its last days under other ones. Pure.

The costs are those of merging and clustering, of creating the files of new rows, and of opening files to read them.
Costs that no setting changes are left out: encoding new rows, and decoding all rows of a partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zlib import crc32

from icesize.planning.cluster_by import NEW_SHARE
from icesize.planning.files import PartitionFacts, PartitionKey
from icesize.planning.merging.planner import plan_merges
from icesize.planning.merging.simulation import Batch, Exchange, ReplayedTable, spec_of
from icesize.planning.reads import Reads
from icesize.planning.scan_cost import (
    COPIED_BYTES_PER_SECOND,
    DECODED_BYTES_PER_SECOND,
    MS_PER_ENTRY,
    Prices,
    ScanCost,
    puts_of,
)
from icesize.planning.sizing import merged_files
from icesize.policy import MIB, SizePolicy

MAX_SMALL_FILES = (2, 3, 4, 6, 8, 12, 16, 24)
TARGET_BYTES = tuple(size * MIB for size in (16, 32, 64, 128, 256, 512, 1024))
"""Settings that are tried. Still larger files save little: readers ask for each row group."""

ASSUMED_READS_PER_DAY = 24.0
"""Reads of the partitions that the last days wrote to, if no query is known: one each hour."""
UNSURE = 64.0
"""Without known queries, a choice has to save as much if reads are so many times more or less, or if they read all
partitions. With 4 instead, a small table that was read 1,200 times a day cost 2 % more than with the defaults."""
IN_ORDER = 0.1
"""Share of the files of a partition that bounds leave for a value, up to which its column is in order already."""
LEAST_GAIN = 0.05
"""Share of the cost that a change has to save."""
SWITCH_DAYS = 14.0
"""Days over which the costs that a change has once are counted when settings are compared."""
FEWEST_BATCHES = 20
MOST_BATCHES = 500
"""Batches that are looked at, the newest."""
LEAST_DAYS = 0.25
"""Days that the looked at batches cover, unless there are as many as are looked at. A first look after a whole day left
a table of 240 reads a day with the defaults for so long that two weeks cost 15 % more than with the best settings."""
MOST_ARRIVALS = 3_000
"""Partitions of all batches together that are simulated: 0.2 s for each setting. More are sampled by partition."""
MOST_BEFORE = 500
"""Partitions without new rows that are looked at, the newest."""
READ_TIMES = 61
"""Times at which reads are simulated, evenly spread: a prime number, so that no rhythm of merges hides."""

OPEN_SECONDS = 0.002
"""Time of one core to open or to close a file, without requests: `CLOSE_FILE_COST_BYTES`, measured."""
READ_BYTES_PER_SECOND = 250_000_000
"""Bytes of Parquet files that one core decodes: measured with PyArrow, zstd, 20 columns."""
REQUEST_SECONDS = 0.025
"""Time for which a core waits for a request to an object store: 100 ms, of which a reader has four at a time."""


@dataclass(frozen=True)
class Settings:
    """The settings that the autopilot chooses: two keys of the policy, and the columns of the clustering."""

    max_small_files: int
    target_file_size_bytes: int
    cluster_by: tuple[str, ...] = ()

    @classmethod
    def of(cls, policy: SizePolicy, cluster_by: tuple[str, ...] = ()) -> Settings:
        """Return the settings of a policy."""
        return cls(policy.max_small_files, policy.target_file_size_bytes, cluster_by)

    def to_policy(self, policy: SizePolicy) -> SizePolicy:
        """Return the policy with these settings instead of its own."""
        mine = (self.max_small_files, self.target_file_size_bytes)
        if mine == (policy.max_small_files, policy.target_file_size_bytes):
            return policy
        names = {"max-small-files": mine[0], "target-file-size-bytes": mine[1]}
        return policy.changed(names)


@dataclass(frozen=True)
class Workload:
    """The commits and reads of a table in `days`.

    Attributes:
        batches: Bytes of new rows by partition, oldest first.
        days: Days from the first batch to the last one.
        reads: The reads of these days.
        before: Bytes of partitions before the first batch, in the order of their first rows.
        other_bytes: Bytes of partitions that are in none of them.
        files_per_arrival: Files that a batch adds to a partition.
        is_inline: True if each batch merges; otherwise a pass of maintenance does.
        passes_per_day: Passes of maintenance.
        scale: Partitions of the table, per partition here.
    """

    batches: tuple[Batch, ...]
    days: float
    reads: tuple[Reads, ...] = ()
    before: Mapping[PartitionKey, int] = field(default_factory=dict)
    files_per_arrival: int = 1
    is_inline: bool = True
    passes_per_day: float = 1.0
    scale: float = 1.0
    other_bytes: int = 0

    @property
    def batches_per_pass(self) -> int:
        """Batches between two passes of maintenance."""
        return max(1, round(len(self.batches) / self.days / self.passes_per_day))

    def sampled(self, most_arrivals: int = MOST_ARRIVALS) -> Workload:
        """Return the workload of a part of the partitions, chosen by their values."""
        arrivals = sum(map(len, self.batches))
        parts = -(-arrivals // most_arrivals)
        if parts <= 1:
            return self
        kept = {key for batch in self.batches for key in batch if _hash(key) % parts == 0}
        if not kept:
            # few partitions with many arrivals each: the one with the most rows shows how all of them come
            totals = dict[PartitionKey, int]()
            for batch in self.batches:
                for key, size in batch.items():
                    totals[key] = totals.get(key, 0) + size
            kept = {max(totals, key=lambda key: (totals[key], key.rank))}
        batches = tuple({key: size for key, size in batch.items() if key in kept} for batch in self.batches)
        before = {key: size for key, size in self.before.items() if key in kept or _hash(key) % parts == 0}
        whole, part = (sum(sum(batch.values()) for batch in each) for each in (self.batches, batches))
        scale = whole / part if part else float(parts)
        return replace(self, batches=batches, before=before, scale=scale)


def _hash(key: PartitionKey) -> int:
    return crc32(repr(key.rank).encode())


@dataclass(frozen=True)
class Spent:
    """Costs of a day: seconds of one core, and requests to storage."""

    seconds: float = 0.0
    gets: float = 0.0
    puts: float = 0.0

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.seconds + other.seconds, self.gets + other.gets, self.puts + other.puts)

    def times(self, factor: float) -> Spent:
        """Return these costs so many times."""
        return Spent(self.seconds * factor, self.gets * factor, self.puts * factor)

    def price(self, prices: Prices | None) -> float:
        """Return the costs in USD; in seconds without prices, as for a table on local disks."""
        if prices is None:
            return self.seconds
        seconds = self.seconds + REQUEST_SECONDS * (self.gets + self.puts)
        requests = self.gets * prices.per_1000_gets + self.puts * prices.per_1000_puts
        return requests / 1000 + seconds * prices.per_core_hour / 3600

    @classmethod
    def writing(cls, sizes: tuple[int, ...]) -> Spent:
        """Return the costs of creating files of these sizes, without their rows."""
        return cls(OPEN_SECONDS * len(sizes), 0, sum(map(puts_of, sizes)))

    @classmethod
    def rewriting(cls, exchange: Exchange, is_copied: bool) -> Spent:
        """Return the costs of a merge, or of one that decodes."""
        read = sum(file.size_bytes for file in exchange.inputs)
        rate = COPIED_BYTES_PER_SECOND if is_copied else DECODED_BYTES_PER_SECOND
        opened = cls.reading(len(exchange.inputs), read, 0)
        made = cls.writing(tuple(file.size_bytes for file in exchange.outputs))
        return cls(read / rate + OPEN_SECONDS * len(exchange.inputs), opened.gets) + made

    @classmethod
    def reading(cls, files: float, size_bytes: float, entries: float) -> Spent:
        """Return the costs of reading so many files with these bytes, of so many that were planned."""
        requests = ScanCost.of(round(files), round(size_bytes), 0, 0).requests
        seconds = MS_PER_ENTRY * entries / 1000 + OPEN_SECONDS * files + size_bytes / READ_BYTES_PER_SECOND
        return cls(seconds, requests)


@dataclass(frozen=True)
class Outcome:
    """The costs of a workload under some settings, per day: of writes, of known or assumed reads, and in figures."""

    settings: Settings
    writes: Spent
    reads: Spent
    write_amplification: float
    files_per_read: float

    def price(self, prices: Prices | None, reads: float = 1.0) -> float:
        """Return the costs of a day if there are so many times the reads."""
        return self.writes.price(prices) + reads * self.reads.price(prices)


class Trial:
    """A table without bytes that takes a workload under settings, which may change between batches."""

    def __init__(
        self, workload: Workload, policy: SizePolicy, settings: Settings, before: Settings | None = None
    ) -> None:
        """Make a table whose older rows lie in files as the settings `before` leave them; None: as `settings` do."""
        self.workload, self._policy, self._settings = workload, policy, before or settings
        self.table = ReplayedTable(self._settings.to_policy(policy), spec_of(workload.batches))
        self.writes, self.reads = Spent(), Spent()
        self.opened, self.scans, self.ingested, self.written = 0.0, 0.0, 0, 0
        self._order = dict.fromkeys(workload.before)
        self._ordered = dict[PartitionKey, int]()
        self.table.change([self._standing(key, size) for key, size in workload.before.items()])
        if self._settings.cluster_by:
            self._ordered.update(workload.before)
        if before is not None:
            self.use(settings)

    @property
    def partitions(self) -> Sequence[PartitionKey]:
        """The partitions in the order of their first rows."""
        return list(self._order)

    def use(self, settings: Settings) -> None:
        """Change the settings. Files stay as they are until the next batch or pass looks at them."""
        if settings.cluster_by != self._settings.cluster_by:
            self._ordered.clear()
        self._settings = settings
        self.table = self.table.under(settings.to_policy(self._policy))

    def take(self, batch: Batch) -> None:
        """Write a batch, with the merges that come with it."""
        self._order |= dict.fromkeys(batch)
        if self.workload.is_inline:
            planned = self.table.plan(batch)
            appends, merges = planned.appends, planned.merges
        else:
            appends, merges = self.table.appends(batch, self.workload.files_per_arrival), ()
        self.table.apply((*merges, *appends))
        self.ingested += sum(batch.values())
        self._count(merges, self.table.policy.merge_by_copying)
        for append in appends:
            self.written += append.written_bytes
            self.writes += Spent.writing(tuple(file.size_bytes for file in append.outputs))

    def maintain(self) -> None:
        """Run a pass of maintenance."""
        if not self.workload.is_inline:
            self._change(self.table.merges(plan_merges(self.table.layout, self.table.policy)), is_copied=True)
        if self._settings.cluster_by:
            self._change(tuple(self._clusterings()), is_copied=False)

    def read(self, reads: Reads, times: float) -> None:
        """Read so often what these reads select."""
        files = opened = size_bytes = 0.0
        window, of_all = self._window(reads)
        for key in window:
            facts = self.table.layout.partitions[key]
            some, some_bytes = self._opened(facts, reads)
            files, opened, size_bytes = files + facts.files, opened + some, size_bytes + some_bytes
        self.reads += Spent.reading(opened, size_bytes, files).times(times * of_all)
        self.opened, self.scans = self.opened + opened * times * of_all, self.scans + times

    def _window(self, reads: Reads) -> tuple[Sequence[PartitionKey], float]:
        """Return the partitions that are read, and the number of partitions of the table that each represents."""
        keys, scale = self.partitions, self.workload.scale
        end = max(0, len(keys) - round(reads.skipped / scale))
        if reads.partitions is None:
            return keys[:end], scale
        wanted = max(1, round(reads.partitions / scale))
        return keys[max(0, end - wanted) : end], reads.partitions / wanted

    def _opened(self, facts: PartitionFacts, reads: Reads) -> tuple[float, float]:
        """Return the files of a partition that a read opens, and their bytes if they depend on the settings."""
        ordered_bytes = min(self._ordered.get(facts.key, 0), facts.size_bytes)
        columns = self._settings.cluster_by
        is_pruned = bool(reads.points) or reads.share < 1
        if not ordered_bytes:
            return facts.files * reads.share, facts.size_bytes * reads.share if is_pruned else 0
        ordered = max(1.0, ordered_bytes / self.table.policy.target_file_size_bytes)
        # a curve over d columns narrows each of them less; an order by other columns mixes what bounds kept apart
        opened = ordered ** (1 - 1 / len(columns)) if set(columns) & set(reads.points) else ordered
        others = max(0.0, facts.files - ordered)
        other_bytes = facts.size_bytes - ordered_bytes
        size_bytes = ordered_bytes * opened / ordered + other_bytes * reads.share
        return opened + others * reads.share, size_bytes if is_pruned else 0

    def _clusterings(self) -> Iterator[Exchange]:
        """Yield the rewrites of partitions of which enough bytes are not in order."""
        policy = self.table.policy
        for key in self._order:
            facts, ordered_bytes = self.table.layout.partitions[key], self._ordered.get(key, 0)
            new_bytes = facts.size_bytes - ordered_bytes
            if facts.size_bytes < 2 * policy.target_file_size_bytes or new_bytes < NEW_SHARE * ordered_bytes:
                continue
            self._ordered[key] = facts.size_bytes
            yield self.table.merged(self.table.every_file(facts), self._files(facts.size_bytes))

    def _standing(self, key: PartitionKey, size_bytes: int) -> Exchange:
        return self.table.filled(key, size_bytes, self._files(size_bytes))

    def _files(self, size_bytes: int) -> int:
        policy = self.table.policy
        return merged_files(size_bytes, policy.target_file_size_bytes, policy.small_file_limit_bytes)

    def _change(self, exchanges: tuple[Exchange, ...], is_copied: bool) -> None:
        self.table.change(exchanges)
        self._count(exchanges, is_copied)

    def _count(self, exchanges: tuple[Exchange, ...], is_copied: bool) -> None:
        for exchange in exchanges:
            self.written += exchange.written_bytes
            self.writes += Spent.rewriting(exchange, is_copied)

    def outcome(self, days: float) -> Outcome:
        """Return the costs per day."""
        return Outcome(
            self._settings,
            self.writes.times(self.workload.scale / days),
            self.reads.times(1 / days),
            self.written / max(1, self.ingested),
            self.opened / max(1e-9, self.scans),
        )


def tried(workload: Workload, policy: SizePolicy, settings: Settings) -> Outcome:
    """Return the costs of a workload under settings that the table has had for long."""
    trial = Trial(workload, policy, settings)
    number, per_pass = len(workload.batches), workload.batches_per_pass
    times = Counter(number * (2 * n + 1) // (2 * READ_TIMES) for n in range(READ_TIMES))
    for place, batch in enumerate(workload.batches):
        trial.take(batch)
        if (place + 1) % per_pass == 0:
            trial.maintain()
        for reads in workload.reads if times[place] else ():
            trial.read(reads, reads.per_day * workload.days * times[place] / READ_TIMES)
    return trial.outcome(workload.days)


@dataclass(frozen=True)
class Choice:
    """The settings that cost least, and the costs of a day of them and of the present ones.

    `unit` is "USD" or "s" (seconds of one core). `once` is what the change costs once, and `missed` what the settings
    would have saved since they first cost least; they are not `paid` for before `missed` reaches `once`.
    """

    now: Outcome
    then: Outcome
    price_now: float
    price_then: float
    unit: str
    once: float = 0.0
    missed: float = 0.0

    @property
    def is_paid(self) -> bool:
        """True if the settings may change: a change that comes too early costs at most as much as one too late."""
        return self.missed >= self.once


@dataclass(frozen=True)
class Question:
    """The choices that the autopilot has for a table.

    Attributes:
        policy: The policy of the table.
        present: The present settings.
        columns: Columns that the table may be clustered by.
        fixed: Names of settings that users set.
        knows_reads: False if the reads of the workload are assumed.
        prices: Prices; None for a table on local disks.
        missed: What other settings would have saved until the last look.
        days: Days since the last look.
    """

    policy: SizePolicy
    present: Settings
    columns: tuple[str, ...] = ()
    fixed: frozenset[str] = frozenset()
    knows_reads: bool = True
    prices: Prices | None = None
    missed: float = 0.0
    days: float = 1.0


def choose(workload: Workload, question: Question) -> Choice:
    """Return the settings under which the workload costs least, or the present ones if a change saves too little.

    Small files and targets are searched in turn, twice; targets with and without clustering. What a change rewrites
    once has to be earned first: as in the problem of renting or buying skis, settings change when they would have saved
    that much already. So reads that come for a few days rewrite no table.
    """
    search = _Search(workload.sampled(), question)
    now, best = search.of(question.present), search.best()
    saved = search.price(now) - search.price(best)
    unit = "s" if question.prices is None else "USD"
    if saved < LEAST_GAIN * search.price(now) or best is now:
        return Choice(now, now, search.price(now), search.price(now), unit)
    missed = question.missed + saved * min(question.days, SWITCH_DAYS)
    return Choice(now, best, search.price(now), search.price(best), unit, search.once(best), missed)


class _Search:
    """Outcomes by settings, each computed once."""

    def __init__(self, workload: Workload, question: Question) -> None:
        self._workload, self._question = workload, question
        self._known = dict[tuple[Settings, bool], Outcome]()
        fixed = {name: getattr(question.present, name) for name in question.fixed}
        self._default = replace(Settings.of(SizePolicy()), **fixed)

    def of(self, settings: Settings, reads_all: bool = False) -> Outcome:
        """Return the outcome of settings, for the reads of the workload or for as many of all partitions."""
        if (settings, reads_all) not in self._known:
            workload = self._workload
            if reads_all:
                workload = replace(workload, reads=tuple(Reads(reads.per_day) for reads in workload.reads))
            self._known[settings, reads_all] = tried(workload, self._question.policy, settings)
        return self._known[settings, reads_all]

    def price(self, outcome: Outcome, reads: float = 1.0) -> float:
        """Return the price of a day."""
        return outcome.price(self._question.prices, reads)

    def once(self, outcome: Outcome) -> float:
        """Return the price of bringing the files of the table into the settings of an outcome."""
        return self._switching(outcome.settings).price(self._question.prices)

    def _in_the_long_run(self, outcome: Outcome) -> float:
        return self.price(outcome) + self.once(outcome) / SWITCH_DAYS

    def _switching(self, settings: Settings) -> Spent:
        present, workload = self._question.present, self._workload
        size_bytes = sum(workload.before.values()) * workload.scale + workload.other_bytes
        is_new_order = bool(settings.cluster_by) and settings.cluster_by != present.cluster_by
        target_bytes = settings.target_file_size_bytes
        if not is_new_order and target_bytes <= present.target_file_size_bytes:
            return Spent()
        read, written = size_bytes / present.target_file_size_bytes, size_bytes / target_bytes
        rate = DECODED_BYTES_PER_SECOND if is_new_order else COPIED_BYTES_PER_SECOND
        made = Spent(size_bytes / rate + OPEN_SECONDS * written, 0, puts_of(target_bytes) * written)
        return made + Spent.reading(read, 0, 0)

    def best(self) -> Outcome:
        """Return the cheapest outcome, found from the present settings and from the defaults."""
        best = min(self.of(self._question.present), self.of(self._default), key=self._in_the_long_run)
        for _ in range(2):
            for line in self._lines(best.settings):
                tries = map(self.of, line)
                best = min([best, *filter(self._is_safe, tries)], key=self._in_the_long_run)
        return best

    def _lines(self, settings: Settings) -> Iterator[Iterator[Settings]]:
        """Yield lines of settings around some: other small files, and other targets with each clustering.

        Clustering of small partitions pays only with small files, so that these two are searched together.
        """
        question = self._question
        if self._workload.is_inline and "max_small_files" not in question.fixed:
            yield (replace(settings, max_small_files=k) for k in MAX_SMALL_FILES)
        targets = TARGET_BYTES if "target_file_size_bytes" not in question.fixed else (settings.target_file_size_bytes,)
        orders = [settings.cluster_by] if "cluster_by" in question.fixed else [(), self._columns()]
        for columns in dict.fromkeys(orders):
            yield (replace(settings, target_file_size_bytes=size, cluster_by=columns) for size in targets)

    def _columns(self) -> tuple[str, ...]:
        """Return the columns to cluster by, unless bounds separate the values that reads select."""
        columns = self._question.columns
        asking = (reads for reads in self._workload.reads if set(reads.points) & set(columns))
        return columns if any(reads.share > IN_ORDER for reads in asking) else ()

    def _is_safe(self, outcome: Outcome) -> bool:
        """Return whether an outcome saves enough over the defaults, also with other reads than those assumed."""
        if self._question.knows_reads:
            return True
        pairs = [(self.of(outcome.settings, is_all), self.of(self._default, is_all)) for is_all in (False, True)]
        rates = (1 / UNSURE, UNSURE)
        enough = 1 - LEAST_GAIN
        return all(
            self.price(mine, rate) <= enough * self.price(usual, rate) for mine, usual in pairs for rate in rates
        )
