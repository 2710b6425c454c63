"""Settings of a table that follow from its last days: chosen by simulation, stored, and changed at most once a day."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import ClassVar

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation

from icesize.errors import IcesizeError, TableError
from icesize.maintenance.table_context import Selection, TableContext
from icesize.planning.advice.autopilot import (
    ASSUMED_READS_PER_DAY,
    FEWEST_BATCHES,
    LEAST_DAYS,
    MOST_BATCHES,
    MOST_BEFORE,
    Choice,
    Question,
    Settings,
    Workload,
    choose,
)
from icesize.planning.cluster_by import HILBERT, SORT, ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.filters import FilterUse, columns_to_cluster
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.planning.scan_cost import Prices
from icesize.planning.upsert_rule import UpsertRule
from icesize.policy import AUTOPILOT, SizePolicy, origins_of
from icesize.results import Keys, Result, keys
from icesize.table.autopilot_settings import AutopilotRecord, keep_choice
from icesize.table.catalog.history import count_of, is_ours, known_ancestors, main_history, operation_of
from icesize.table.catalog.locations import is_object_store
from icesize.table.cluster_settings import resolve, stored_columns
from icesize.table.commit import submit
from icesize.table.state.filter_scan import partition_columns
from icesize.table.state.handle import Current
from icesize.table.state.partition_changes import Append, append_times, recent_appends
from icesize.table.state.query_log import PartitionOrder, queries_in, reads_of
from icesize.units import format_bytes, format_count

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS


@dataclass(frozen=True)
class SettingChange:
    """A setting that the autopilot changes, with its value before and after; None is the default."""

    key: str
    before: int | str | None
    after: int | str | None


@dataclass(frozen=True)
class AutopilotReport(Result):
    """The settings that cost least, if the next days are like the last ones.

    Attributes:
        table: The full name of the table.
        changes: The settings that were changed, or that would be: by a dry run, or without the reason to wait.
        reason: The facts about the table from which the choice follows.
        cost_now: Cost per day of merges, of opening files, and of requests under the present settings.
        cost_then: The same under the chosen settings.
        unit: "USD", or "s" (seconds of one core) for a table on local disks.
        write_amplification_now: Bytes written per byte ingested under the present settings.
        write_amplification_then: The same under the chosen settings.
        files_per_read_now: Files that a read opens on average under the present settings.
        files_per_read_then: The same under the chosen settings.
        waits: The reason why nothing was changed yet, or not even compared; empty otherwise.
    """

    table: str
    changes: tuple[SettingChange, ...] = ()
    reason: str = ""
    cost_now: float = 0.0
    cost_then: float = 0.0
    unit: str = "USD"
    write_amplification_now: float = 1.0
    write_amplification_then: float = 1.0
    files_per_read_now: float = 0.0
    files_per_read_then: float = 0.0
    waits: str = ""

    KEYS: ClassVar[Keys] = keys("gain")

    @property
    def is_changed(self) -> bool:
        """True if settings were changed, or would be by a dry run."""
        return bool(self.changes) and not self.waits

    @property
    def gain(self) -> float:
        """Share of the cost that the change saves."""
        return 1 - self.cost_then / self.cost_now if self.cost_now else 0.0


def tune_if_on(context: TableContext, *, dry_run: bool = False) -> AutopilotReport | None:
    """Choose settings if the policy of the table has `auto` and the last look is a day old; return None otherwise."""
    current = context.load()
    if not current.policy.auto:
        return None
    record = AutopilotRecord.of(current.table.metadata.properties)
    # a time in the future is one of another clock
    if 0 <= context.environment.now_ms() - record.looked_ms < DAY_MS:
        return None
    return _tuned(context, current, record, dry_run=dry_run)


def tune(context: TableContext, queries: Sequence[str] = (), *, dry_run: bool = False) -> AutopilotReport:
    """Choose settings now. A change waits until the last one is a day old.

    The reads of `queries`, the lines of a log, are stored for later choices. A dry run needs no `auto`.

    Raises TableError if the policy has no `auto`, ArgumentError for a malformed line.
    """
    current = context.load()
    if not (current.policy.auto or dry_run):
        raise TableError(
            f"Cannot tune '{current.name}': its policy has no 'auto'. Set the table's property "
            "icesize.policy.auto=true; --dry-run shows the choice without it",
            table=current.name,
        )
    record = AutopilotRecord.of(current.table.metadata.properties)
    return _tuned(context, current, record, queries, dry_run=dry_run)


def _tuned(
    context: TableContext,
    current: Current,
    stored: AutopilotRecord,
    queries: Sequence[str] = (),
    *,
    dry_run: bool,
) -> AutopilotReport:
    metadata, io = current.table.metadata, current.table.io
    waits = _why_left_alone(metadata, context.environment.now_ms())
    if waits and not queries:
        return AutopilotReport(current.name, waits=waits)
    selection = context.select(current=current)
    appends = recent_appends(metadata, io, context.handle.store, MOST_BATCHES)
    record = stored
    if log := queries_in(queries, current.name):
        record = replace(stored, reads=reads_of(log, metadata, io, selection.layout, appends, context.handle.store))
    now_ms, times_ms = context.environment.now_ms(), [append.timestamp_ms for append in appends]
    report = AutopilotReport(current.name, waits=waits or _why_not_yet(times_ms, metadata, now_ms))
    if report.waits:
        # manifests were read in vain, for example after a change of the partition spec: once a day is enough
        record = replace(record, looked_ms=record.looked_ms if waits else now_ms)
    else:
        days = _days(times_ms, now_ms)
        workload, asked = _workload(selection, appends, days, record.reads), question(context, current, record, days)
        report, record = _decided(report, choose(workload, asked), asked, record)
        report = replace(report, reason=_reason(workload, asked.knows_reads))
        record = _dated(record, report, now_ms)
    if stored.changed_ms != record.changed_ms and record.changed_ms - stored.changed_ms < DAY_MS:
        hours = format_count((record.changed_ms - stored.changed_ms) // HOUR_MS, "hour")
        report = replace(report, waits=f"the last change is {hours} old, and the next one waits until it is a day old")
        record = replace(stored, reads=record.reads)
    if not dry_run and record != stored and not _store(context, current, record, stored):
        return replace(report, waits="another process chose settings at the same time")
    return report


def _dated(record: AutopilotRecord, report: AutopilotReport, now_ms: int) -> AutopilotRecord:
    """Return the record with the time of this look, and with that of a change and its reason."""
    looked = replace(record, looked_ms=now_ms)
    return replace(looked, changed_ms=now_ms, why=report.reason) if report.is_changed else looked


def _why_left_alone(metadata: TableMetadata, now_ms: int) -> str:
    if UpsertRule.of(metadata.properties) is not None:
        return "the table has upserts, and only appends can be simulated"
    return _why_not_yet(append_times(metadata, MOST_BATCHES), metadata, now_ms)


def _why_not_yet(times_ms: Sequence[int], metadata: TableMetadata, now_ms: int) -> str:
    days, number = _days(times_ms, now_ms), len(times_ms)
    oldest = next(reversed([*known_ancestors(metadata)]), None)
    # a table that keeps its snapshots for hours never shows a day; PyIceberg removes the parents of expired snapshots
    is_cut = oldest is not None and (
        oldest.parent_snapshot_id is not None or count_of(oldest, "total-records") > count_of(oldest, "added-records")
    )
    if number >= FEWEST_BATCHES and (days >= LEAST_DAYS or number >= MOST_BATCHES or is_cut):
        return ""
    seen = f"{format_count(number, 'commit')} with rows in {days * 24:.1f} hours are known"
    return f"{seen}, and a choice needs {FEWEST_BATCHES} in {LEAST_DAYS * 24:.0f} hours"


def _days(times_ms: Sequence[int], now_ms: int) -> float:
    """Return the days since the first of some commits. Until now, because they may have come at once."""
    return max(1_000, now_ms - times_ms[0]) / DAY_MS if times_ms else 0.0


def _workload(selection: Selection, appends: Sequence[Append], days: float, reads: tuple[Reads, ...]) -> Workload:
    """Return the last days of a table as a workload."""
    metadata, layout = selection.current.table.metadata, selection.layout
    batches = tuple(_bytes_of(append) for append in appends)
    arrived = dict[PartitionKey, int]()
    for batch in batches:
        for key, size_bytes in batch.items():
            arrived[key] = arrived.get(key, 0) + size_bytes
    order = PartitionOrder.of(layout, appends).keys
    kept = [key for key in order if key not in arrived][-MOST_BEFORE:] + [key for key in order if key in arrived]
    before = {
        key: size_bytes
        for key, facts in layout.partitions.some(kept).items()
        if (size_bytes := facts.size_bytes - arrived.get(key, 0)) > 0
    }
    other_bytes = layout.size_bytes - sum(facts.size_bytes for facts in layout.partitions.some(kept).values())
    is_inline = sum(append.is_ours for append in appends) * 2 > len(appends)
    files = [seen.files for append in appends for seen in append.partitions.values()]
    return Workload(
        batches, days, reads or (Reads(ASSUMED_READS_PER_DAY, len(arrived)),), before,
        1 if is_inline else round(median(files)), is_inline, _passes_per_day(metadata, appends[0].timestamp_ms, days),
        other_bytes=other_bytes,
    )  # fmt: skip


def _bytes_of(append: Append) -> Batch:
    return {key: seen.size_bytes for key, seen in append.partitions.items()}


def _passes_per_day(metadata: TableMetadata, since_ms: int, days: float) -> float:
    """Return the passes of maintenance that merged something, at least one each day."""
    history = list(main_history(metadata))
    merged = (
        snapshot
        for snapshot, parent in pairwise(history)
        if snapshot.timestamp_ms >= since_ms
        and is_ours(snapshot)
        and operation_of(snapshot) == Operation.REPLACE
        # the merges of a batch follow its rows in one commit
        and not (is_ours(parent) and operation_of(parent) == Operation.APPEND)
    )
    return max(1.0, sum(1 for _ in merged) / days)


def question(context: TableContext, current: Current, record: AutopilotRecord, known_days: float = 1.0) -> Question:
    """Return what may be chosen for the table, of which so many days are known: what its users set stays."""
    metadata, policy = current.table.metadata, current.policy
    origins = origins_of(policy, metadata.properties, context.handle.policy, current.name)
    theirs = {origin.key.replace("-", "_") for origin in origins if origin.source not in ("default", AUTOPILOT)}
    if "small_file_limit_bytes" in theirs:
        theirs.add("target_file_size_bytes")
    stored = stored_columns(metadata)
    if stored != record.cluster_by or not (stored or metadata.sort_order().is_unsorted):
        theirs.add("cluster_by")
    fixed = theirs & {"max_small_files", "target_file_size_bytes", "cluster_by"}
    present = _cluster_by(metadata, policy)
    return Question(
        policy,
        Settings.of(policy, present.columns if present else ()),
        _columns(current, record.reads) if "cluster_by" not in fixed else (),
        frozenset(fixed),
        knows_reads=bool(record.reads),
        prices=Prices() if is_object_store(metadata.location) else None,
        missed=record.missed,
        days=(context.environment.now_ms() - record.looked_ms) / DAY_MS if record.looked_ms else min(1.0, known_days),
    )


def _columns(current: Current, reads: Sequence[Reads]) -> tuple[str, ...]:
    """Return the columns that the table may be clustered by: those of which reads select single values."""
    uses = [FilterUse("", each.points, (), 2, max(1, round(each.per_day * 100))) for each in reads]
    columns = columns_to_cluster(uses, partition_columns(current.table.metadata))
    return columns if columns and _cluster_by(current.table.metadata, current.policy, columns) else ()


def _cluster_by(metadata: TableMetadata, policy: SizePolicy, columns: tuple[str, ...] = ()) -> ClusterBy | None:
    """Return the clustering by columns, or the present one; None if there is none, or if the table cannot have it."""
    strategy = (SORT if len(columns) == 1 else HILBERT) if columns else None
    with suppress(IcesizeError):
        return resolve(metadata, policy, columns or None, strategy)
    return None


def _decided(
    report: AutopilotReport, choice: Choice, asked: Question, record: AutopilotRecord
) -> tuple[AutopilotReport, AutopilotRecord]:
    """Return the report of a choice, and the record to store."""
    now, then, usual = choice.now.settings, choice.then.settings, SizePolicy()
    changes = tuple(
        SettingChange(key, before, after)
        for key, before, after in (
            ("max-small-files", now.max_small_files, then.max_small_files),
            ("target-file-size-bytes", now.target_file_size_bytes, then.target_file_size_bytes),
            ("icesize.cluster.by", ",".join(now.cluster_by) or None, ",".join(then.cluster_by) or None),
        )
        if before != after
    )
    report = replace(
        report, changes=changes, unit=choice.unit,
        cost_now=choice.price_now, cost_then=choice.price_then,
        write_amplification_now=choice.now.write_amplification,
        write_amplification_then=choice.then.write_amplification,
        files_per_read_now=choice.now.files_per_read, files_per_read_then=choice.then.files_per_read,
    )  # fmt: skip
    if not choice.is_paid:
        missed, once = _price(choice.missed, choice.unit), _price(choice.once, choice.unit)
        waits = f"the change rewrites files for {once}, and would have saved {missed} so far"
        return replace(report, waits=waits), replace(record, missed=choice.missed)
    chosen = {"max-small-files": then.max_small_files, "target-file-size-bytes": then.target_file_size_bytes}
    mine = {
        key: value
        for key, value in chosen.items()
        if (name := key.replace("-", "_")) not in asked.fixed and value != getattr(usual, name)
    }
    # a clustering that people removed is not chosen again
    cluster_by = record.cluster_by if "cluster_by" in asked.fixed else then.cluster_by
    return report, replace(record, policy=mine, cluster_by=cluster_by, missed=0.0)


def _price(cost: float, unit: str) -> str:
    return f"{cost:.2g} {unit}"


def _reason(workload: Workload, knows_reads: bool) -> str:
    """Return the facts about a workload in one sentence."""
    arrivals = sum(map(len, workload.batches))
    mean_bytes = round(sum(sum(batch.values()) for batch in workload.batches) / max(1, arrivals))
    batches, reads = len(workload.batches) / workload.days, sum(each.per_day for each in workload.reads)
    touched = arrivals / len(workload.batches)
    come = f"{batches:,.0f} commits a day add {format_bytes(mean_bytes)} to each of {touched:,.1f} partitions"
    source = "the log of queries shows" if knows_reads else "without a log of queries, it assumes"
    return f"{come}; {source} {reads:,.0f} reads a day"


def _store(context: TableContext, current: Current, record: AutopilotRecord, old: AutopilotRecord) -> bool:
    """Store a record with the clustering that it chose; return False if another process stored one first."""
    by = _cluster_by(current.table.metadata, current.policy, record.cluster_by) if record.cluster_by else None
    change = keep_choice(record, by, old, context.environment.new_id())
    return submit.change(context.handle, current, change, context.environment)
