"""Commits one batch of upserts: resolve, write, merge, commit.

The commit resolves the batch again if another writer came first. Files that still fit are used again. A batch that this
process cannot hold has several slices, each with the events of some keys. They are resolved one after the other.
"""

from __future__ import annotations

import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes
from typing import Protocol

import pyarrow as pa

from icesize import failpoints
from icesize.environment import Environment, Stopwatch
from icesize.errors import CommitConflict, TableError
from icesize.parquet.files.data_file import Results, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.parquet.rewriting.threads import merge_in_threads
from icesize.planning.deletes.delete_reach import PartitionDeletes, plain_path
from icesize.planning.file_counts import is_small_file
from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeTask, Plan
from icesize.planning.upsert_rule import UpsertRule
from icesize.policy import SizePolicy
from icesize.table.commit import batch_commit
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.batch_commit import (
    BatchOutcome,
    CommitContext,
    MergeResults,
    WrittenBatch,
    commit_written,
    outcome_of,
)
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.move_tombstones import MoveTombstones
from icesize.table.commit.steps.row_delta import RowChanges, RowDelta, pending
from icesize.table.manifests.repeated_files import check_listed_once
from icesize.table.records.ledger import LedgerEntry, entries, file_prefix, is_done
from icesize.table.state.concurrent_writers import rolled_back
from icesize.table.state.handle import Current, TableHandle
from icesize.table.state.live_files import without_row_ids
from icesize.table.upserts.changes import ChangeCounts, Slice, UpsertFiles
from icesize.table.upserts.deletes import Dying
from icesize.table.upserts.events import Events, Mask, newest_events
from icesize.table.upserts.index_files import IndexFolder, MapSettings, index_folder
from icesize.table.upserts.lookup import Lookup, Scan, TableFiles
from icesize.table.upserts.maps import KeyMaps
from icesize.table.upserts.resolver import DeletedIn, bounds_reader
from icesize.table.upserts.settings import WantedRule, keep_rule
from icesize.table.upserts.tombstones import Tombstones, tombstone_settings

MOST_ATTEMPTS = 4
"""Times that a batch is planned if the schema, the spec or the format of the table keeps changing."""


class Merges(Protocol):
    """Merges beside a batch."""

    def start(self, groups: Mapping[int, MergeTask]) -> None:
        """Start merging these groups."""

    def finish(self, timeout_seconds: float | None) -> Results:
        """Return results by number; a merge that had not begun at the deadline has none."""


MakeMerges = Callable[[WriteSettings, Uncommitted], AbstractContextManager[Merges]]


@dataclass
class MergesInTurn:
    """Merges in threads of this process, after the rows are written."""

    settings: WriteSettings
    owner: Uncommitted
    _groups: dict[int, MergeTask] = field(default_factory=dict)

    def start(self, groups: Mapping[int, MergeTask]) -> None:
        """Remember the groups."""
        self._groups |= groups

    def finish(self, timeout_seconds: float | None) -> Results:
        """Merge all groups."""
        return merge_in_threads(self._groups, self.settings, self.owner) if self._groups else {}


def merges_in_turn(settings: WriteSettings, owner: Uncommitted) -> AbstractContextManager[Merges]:
    """Return merges that run in this process after the rows are written."""
    return nullcontext(MergesInTurn(settings, owner))


@dataclass
class UpsertMemory:
    """The memory of a process about a table with upserts between batches. Losing it costs time."""

    secret: bytes = field(default_factory=partial(token_bytes, 32), repr=False)
    deleted_in: DeletedIn = field(default_factory=DeletedIn)


@dataclass(frozen=True)
class UpsertJob:
    """The values that all batches of upserts into a table share.

    Attributes:
        handle: The table.
        environment: Clock, ids and limits.
        wanted: The rule as the caller passed it.
        secret: The secret of the codes of keys. With `maps`, the directory has one.
        skip_null_keys: Leave out events whose key has a NULL.
        merges: Makes the merges of a batch; None: no merges.
        table_uuid: The table that was opened; None for any.
        commit_lock: Held while a batch is committed.
        deleted_in: Deleted rows of data files that are known.
        maps: Where maps of keys are kept: below the `spill_folder` of the environment, if no directory is given. None
            to read the key columns in each batch.
        pausing: Partitions in which no merge begins, because merges there recently conflicted with other writers.
    """

    handle: TableHandle
    environment: Environment
    wanted: WantedRule
    secret: bytes
    skip_null_keys: bool = False
    merges: MakeMerges | None = merges_in_turn
    table_uuid: str | None = None
    commit_lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    deleted_in: DeletedIn = field(default_factory=DeletedIn)
    maps: MapSettings | None = None
    pausing: frozenset[PartitionKey] = frozenset()

    def keys_of(self, table_uuid: str) -> BatchKeys:
        """Return what a batch finds the keys of this table with."""
        if self.maps is None:
            return BatchKeys(self.secret)
        directory = self.maps.directory or self.environment.spill_folder
        folder = index_folder(replace(self.maps, directory=directory), table_uuid)
        return BatchKeys(folder.begin_batch(), folder)


@dataclass(frozen=True)
class BatchKeys:
    """The means by which one batch finds keys: the secret of their codes, and maps if there is a folder of them."""

    secret: bytes
    folder: IndexFolder | None = None

    def lookup(self, files: TableFiles, key: Sequence[int]) -> Lookup:
        """Return the lookup of these key columns, given by their field ids."""
        if self.folder is None:
            return Scan(files, tuple(files.names(key)), self.secret)
        return KeyMaps.of(files, key, self.secret, self.folder)


FetchSlice = Callable[[], tuple[pa.Table, Mask]]
"""Returns the events of some keys, with the table's column names, and which of them are deletes."""
FetchEvents = Callable[[Current, UpsertRule], Sequence[FetchSlice]]
"""Returns the slices of a batch, one or more. All events of a key are in one slice."""


@dataclass(frozen=True)
class UpsertBatch:
    """One batch: its events, its entry in the ledger, and the run that commits it.

    `prepare` adds the columns to the table that the batch has and the table lacks, and returns the newest state.
    """

    fetch: FetchEvents
    ledger: LedgerEntry | None
    run_id: str
    accept_new_checkpoint: bool = False
    prepare: Callable[[Current], Current] = lambda current: current


def upsert(job: UpsertJob, batch: UpsertBatch) -> BatchOutcome:
    """Commit a batch, exactly once.

    Raises BatchError for events that must not be committed, TableError, RewriteFailed, CommitConflict and
    CommitStateUnknown, as batches of appended rows do.
    """
    watch, conflicts = Stopwatch(job.environment), tuple[str, ...]()
    for _ in range(MOST_ATTEMPTS):
        try:
            return _once(job, batch, watch, conflicts)
        except ConcurrentChange as lost:
            conflicts = (*conflicts, f"the batch was written again: {lost}")
    raise CommitConflict(
        f"Cannot upsert into '{job.handle.name}': the table was changed {MOST_ATTEMPTS} times while the batch was "
        f"written, last: {conflicts[-1]}; nothing was committed",
        table=job.handle.name,
    )


def _once(job: UpsertJob, batch: UpsertBatch, watch: Stopwatch, conflicts: tuple[str, ...]) -> BatchOutcome:
    current, entry = job.handle.load(job.environment), batch.ledger
    current.check_same(job.table_uuid, "upsert into")
    metadata = current.table.metadata
    undone = rolled_back(metadata, entry) if entry else ()
    batch_id = entry.batch_id if entry else None
    if entry and is_done(metadata.properties, entry, batch.accept_new_checkpoint):
        done = CommitOutcome(already_committed=True)
        return outcome_of(current, done, None, {}, undone, batch_id=batch_id)
    rule = job.wanted.in_table(metadata, current.name)
    _check_streams(rule, current, entry)
    watch.lap("load")
    current, keys = batch.prepare(current), job.keys_of(current.uuid)
    fetches, settings = batch.fetch(current, rule), current.settings()

    def events(fetch: FetchSlice, watch: Stopwatch | None = None) -> Events:
        rows, is_delete = fetch()
        if watch is not None:
            watch.lap("fetch")
        return newest_events(rows, is_delete, rule, settings, keys.secret, skip_null_keys=job.skip_null_keys)

    slices = [Slice(partial(events, each)) for each in fetches]
    if len(fetches) == 1:
        # the rows as they were fetched are not needed after this
        only = events(fetches[0], watch)
        watch.lap("events")
        if not len(only):
            return outcome_of(current, CommitOutcome(), None, watch.seconds, undone, batch_id=batch_id)
        slices = [Slice(lambda: only)]
    if UpsertRule.of(metadata.properties) is None:
        current = _with_rule(job, current, rule)
    prefix = file_prefix(batch.run_id, entry)
    with uncommitted(current.settings().storage, prefix, job.environment) as (owner, environment):
        files = _files(job, current, rule, keys, slices, owner)
        written = _written(job, current, files, owner, watch)
        how = CommitContext(batch.run_id, environment, watch, job.commit_lock, entry, batch.accept_new_checkpoint)
        outcome = commit_written(written, job.handle, how)
    outcome = replace(outcome, conflicts=(*conflicts, *outcome.conflicts))
    notes = (*current.warnings, *undone, *_doubled(files.counts))
    return outcome_of(current, outcome, written, watch.seconds, notes, batch_id=batch_id, upsert=files.counts.numbers)


def _with_rule(job: UpsertJob, current: Current, rule: UpsertRule) -> Current:
    """Store the rule in a table that has none, and return the newest state. Raises ConcurrentChange."""
    keep = keep_rule(rule, current.name, job.environment.new_id())
    batch_commit.change(job.handle, current, keep, job.environment)
    schema_id, current = current.table.metadata.current_schema_id, job.handle.load(job.environment)
    if current.table.metadata.current_schema_id != schema_id:
        raise ConcurrentChange("the schema changed while the rule was stored")
    return current


def _check_streams(rule: UpsertRule, current: Current, entry: LedgerEntry | None) -> None:
    """Refuse a second stream without an order: its events and those of the first could not be ordered."""
    if rule.order or entry is None:
        return
    others = [
        each.stream_id for each in entries(current.table.metadata.properties) if each.stream_id != entry.stream_id
    ]
    if others:
        raise TableError(
            f"Cannot upsert into '{current.name}' by stream '{entry.stream_id}': stream '{others[0]}' writes to it, "
            "too, and without 'order_by' the newer row of a key would depend on which batch is committed first. Name "
            "the columns of the order, or remove the other stream with `icesize streams TABLE --forget "
            f"{shlex.quote(others[0])}`",
            table=current.name,
        )


def _files(
    job: UpsertJob, current: Current, rule: UpsertRule, keys: BatchKeys, slices: Sequence[Slice], owner: Uncommitted
) -> UpsertFiles:
    metadata, settings = current.table.metadata, current.settings()
    files, names, tombstones = TableFiles(settings, dict(metadata.specs())), FileNames(owner.prefix, 0, 0, owner), None
    if rule.tombstones_ms is not None:
        others = TableFiles(tombstone_settings(settings, rule), {})
        tombstones = Tombstones(rule, others, keys.lookup(others, rule.key), names, job.environment.now_ms())
    return UpsertFiles(
        rule, files, keys.lookup(files, rule.key), bounds_reader(rule, metadata.schema(), job.handle.store), slices,
        current.policy, names, job.deleted_in, tombstones,
    )  # fmt: skip


def _written(
    job: UpsertJob, current: Current, files: UpsertFiles, owner: Uncommitted, watch: Stopwatch
) -> WrittenBatch:
    """Write the files for the current state, and merge what is due with the batch's own deletes."""
    state = batch_commit.state_of(job.handle, current)
    changes = files.at(state)
    write_seconds = watch.lap("write")
    layout = job.handle.reader(current.policy).read(current.table.metadata, current.table.io)
    rows, delta, tombstones = Written(changes.files), RowDelta(files, changes), files.tombstones
    beside = () if tombstones is None else (MoveTombstones(tombstones, tombstones.changes),)
    if job.merges is None:
        return WrittenBatch(current, layout, _no_merges(layout), rows=rows, delta=delta, beside=beside)
    plan = _plan(job, current, layout, changes, files)
    groups = dict(enumerate(plan.groups))
    watch.lap("plan")
    failpoints.reach("planned")
    with job.merges(current.settings(), owner) as merging:
        merging.start(groups)
        results = merging.finish(_merge_deadline_seconds(current.policy, write_seconds))
    watch.lap("merge_wait")
    return WrittenBatch(current, layout, plan, MergeResults.of(groups, results), rows, delta, beside)


def _merge_deadline_seconds(policy: SizePolicy, write_seconds: float) -> float | None:
    """Return the seconds for which merges may delay a batch; None for no limit.

    A file whose merge outlasts a deadline would be due in each batch again, and its share of dead rows would grow. So
    the budget limits merges, and time does only if a deadline is set.
    """
    if policy.merge_deadline_ms is None:
        return None
    return policy.merge_deadline_for(int(write_seconds * 1000)) / 1000


def _no_merges(layout: Layout) -> Plan:
    return plan_merges(Layout(layout.head, layout.spec_id, layout.small_file_limit_bytes), SizePolicy())


def _plan(job: UpsertJob, current: Current, layout: Layout, changes: RowChanges, files: UpsertFiles) -> Plan:
    """Plan the merges of a batch: of small files, and of files with many deleted rows, those of the batch included."""
    policy = current.policy
    incoming = Counter({file.partition: 0 for file in changes.files})
    incoming.update(f.partition for f in changes.files if is_small_file(f.size_bytes, layout.small_file_limit_bytes))
    deleted = with_changes(layout, changes, files)
    # by `setdefault`, because `|=` of a Counter drops what is 0
    for key in {each.file.partition for each in files.dying}:
        if key in layout.partitions:
            incoming.setdefault(key, 0)
    budget_bytes = policy.budget_for(sum(file.size_bytes for file in changes.files))
    contested = job.pausing | job.handle.contested(current, job.environment)
    plan = plan_merges(
        deleted, policy, incoming=incoming, budget_bytes=budget_bytes, most_bytes=policy.merge_budget_bytes,
        contested=contested,
    )  # fmt: skip
    inputs = [file.path for group in plan.groups for file in group.inputs]
    if inputs:
        check_listed_once(job.handle.store, current.table, inputs)
    return plan


def with_changes(layout: Layout, changes: RowChanges, files: UpsertFiles) -> Layout:
    """Return the layout with the batch's own deletes, as merges read them before the commit."""
    own, replaced = pending(changes), {delete.id for delete in changes.replaced}
    by_partition = defaultdict[PartitionKey, dict[str, Dying]](dict)
    for each in files.dying:
        if each.file.partition.spec_id == layout.spec_id:
            by_partition[each.file.partition][each.file.path] = each
    partitions = dict[PartitionKey, PartitionFacts | None]()
    for key, facts in layout.partitions.some(by_partition).items():
        found = by_partition[key]
        known = {file.path: file for file in (*facts.small, *facts.large)}
        others = [each.file for path, each in found.items() if path not in known]
        large = (*facts.large, *(_numbered(file, files.files.settings) for file in others))
        # the batch may put older deletes of other data files of the partition into its own delete file
        new = {d.id: d for file in (*facts.small, *large) for d in own.get(plain_path(file.path), ())}
        older = next((file.deletes for file in known.values() if file.deletes), ())
        deletes = PartitionDeletes([*(delete for delete in older if delete.id not in replaced), *new.values()])
        small, large = (
            tuple(_with_deletes(file, deletes, found.get(file.path)) for file in some) for some in (facts.small, large)
        )
        partitions[key] = replace(facts, small=small, large=large)
    return layout.with_partitions(partitions)


def _with_deletes(file: FileFact, deletes: PartitionDeletes, dying: Dying | None) -> FileFact:
    """Return a file with the deletes of its partition after the batch, which all of its files share."""
    hits = deletes.hitting(file)
    if dying is not None:
        hits = hits._replace(deleted_rows=len(dying.all))
    return replace(file, deletes=deletes.files if hits.delete_files else (), **hits._asdict())


def _numbered(file: FileFact, settings: WriteSettings) -> FileFact:
    """Return a file that the layout does not name, because it is large and had no deletes, with its obstacle."""
    return without_row_ids(file) if file.first_row_id is None and settings.has_lineage else file


def _doubled(counts: ChangeCounts) -> Iterator[str]:
    if counts.doubled:
        yield (
            f"{counts.doubled:,} keys of the batch had more than one row, added by other writers, and have one now: "
            f"{counts.examples}"
        )
