"""A batch of upserts: fetch the events, resolve them, write, merge.

The commit resolves the batch again if another writer came first. Files that still fit are used again. A batch that this
process cannot hold has several slices, each with the events of some keys. They are resolved one after the other.
"""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from secrets import token_bytes
from typing import Any, ClassVar

import pyarrow as pa

from icesize import failpoints
from icesize.errors import TableError, UnsupportedTable
from icesize.parquet.files.data_file import Results, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.threads import merge_in_threads
from icesize.planning.deletes.delete_reach import PartitionDeletes, plain_path
from icesize.planning.files import MAIN, FileFact, Layout, PartitionFacts, PartitionKey
from icesize.planning.merging.groups import MergeBudget
from icesize.planning.merging.planner import Occasion, plan_merges
from icesize.planning.plan import MergeTask, Plan
from icesize.planning.upsert_rule import UpsertRule
from icesize.policy import SizePolicy
from icesize.table.commit import batch_commit
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_report import MergeResults, WrittenBatch, incoming_files
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.commit.steps.move_tombstones import MoveTombstones
from icesize.table.commit.steps.row_delta import RowDelta, pending
from icesize.table.manifests.repeated_files import check_listed_once
from icesize.table.records.ledger import LedgerEntry, entries
from icesize.table.state.handle import Current
from icesize.table.state.live_files import without_row_ids
from icesize.table.upserts.changes import ChangeCounts, Slice, StateChanges, UpsertFiles
from icesize.table.upserts.deletes import DeleteFiles, Dying
from icesize.table.upserts.index_files import IndexFolder, MapSettings, index_folder
from icesize.table.upserts.lookup import KeyedFiles, Scan, TableFiles
from icesize.table.upserts.maps import KeyMaps
from icesize.table.upserts.newest_events import Events, Mask, newest_events
from icesize.table.upserts.settings import WantedRule, keep_rule
from icesize.table.upserts.state_files import bounds_reader
from icesize.table.upserts.tombstones import Tombstones, tombstone_settings

RunMerges = Callable[[Mapping[int, MergeTask], WriteSettings, Uncommitted, float | None], Results]
"""Merges groups, and returns results by number. A merge that had not begun at the end of the seconds has none."""


def merge_here(
    groups: Mapping[int, MergeTask], settings: WriteSettings, owner: Uncommitted, timeout_seconds: float | None
) -> Results:
    """Merge all groups in threads of this process."""
    return merge_in_threads(groups, settings, owner) if groups else {}


@dataclass(frozen=True)
class BatchKeys:
    """The means by which one batch finds keys: the secret of their codes, and maps if there is a folder of them."""

    secret: bytes
    folder: IndexFolder | None = None

    def files(self, settings: WriteSettings, rule: UpsertRule) -> KeyedFiles:
        """Return the means by which the batch reads files with these settings."""
        files = TableFiles(settings)
        if self.folder is None:
            return KeyedFiles(rule, files, Scan(files, tuple(files.names(rule.key)), self.secret))
        return KeyedFiles(rule, files, KeyMaps.of(files, rule.key, self.secret, self.folder))


FetchSlice = Callable[[], tuple[pa.Table, Mask]]
"""Returns the events of some keys, with the table's column names, and which of them are deletes."""
FetchEvents = Callable[[Current, UpsertRule], Sequence[FetchSlice]]
"""Returns the slices of a batch, one or more. All events of a key are in one slice."""


@dataclass(frozen=True)
class Upserts:
    """The events of one batch, and the means by which it finds their rows.

    Attributes:
        wanted: The rule as the caller passed it.
        fetch: Returns the events.
        prepare: Adds the columns to the table that the batch has and the table lacks, and returns the newest state.
        skip_null_keys: Leave out events whose key has a NULL.
        merges: Merges the groups of the batch, after its rows are written; None: no merges.
        maps: The directory of the maps of keys: below the `spill_directory` of the environment, if none is given. None
            to read the key columns in each batch.
    """

    verb: ClassVar[str] = "upsert into"
    wanted: WantedRule
    fetch: FetchEvents
    prepare: Callable[[Batch, Current], Current] = lambda batch, current: current
    skip_null_keys: bool = False
    merges: RunMerges | None = merge_here
    maps: MapSettings | None = None

    def plan(self, batch: Batch, current: Current) -> PlannedUpserts | None:
        """Fetch the events, and store the rule in a table that has none; return None if there are no events.

        Raises BatchError for events that must not be committed.
        """
        rule = self.wanted.in_table(current.table.metadata, current.name)
        _check_streams(rule, current, batch.ledger)
        _check_branch(rule, current)
        batch.watch.lap("load")
        current = self.prepare(batch, current)
        keys = self._keys(current.uuid, batch.environment.spill_directory)
        fetches, settings = self.fetch(current, rule), current.settings()

        def events(fetch: FetchSlice) -> Events:
            rows, is_delete = fetch()
            if len(fetches) == 1:
                batch.watch.lap("fetch")
            return newest_events(rows, is_delete, rule, settings, keys.secret, skip_null_keys=self.skip_null_keys)

        slices = [Slice(partial(events, each)) for each in fetches]
        if len(fetches) == 1:
            # the rows as they were fetched are not needed after this
            only = slices[0].load()
            batch.watch.lap("events")
            if not len(only):
                return None
            slices = [Slice(lambda: only)]
        if UpsertRule.of(current.table.metadata.properties) is None:
            current = _with_rule(batch, current, rule)
        return PlannedUpserts(self, batch, current, rule, keys, slices)

    def _keys(self, table_uuid: str, spill_directory: str | None) -> BatchKeys:
        if self.maps is None:
            return BatchKeys(token_bytes(32))
        folder = index_folder(replace(self.maps, directory=self.maps.directory or spill_directory), table_uuid)
        return BatchKeys(folder.begin_batch(), folder)


def _with_rule(batch: Batch, current: Current, rule: UpsertRule) -> Current:
    """Store the rule in a table that has none, and return the newest state. Raises ConcurrentChange."""
    keep = keep_rule(rule, current.name, batch.environment.new_id())
    batch_commit.change(batch.handle, current, keep, batch.environment)
    schema_id, current = current.table.metadata.current_schema_id, batch.handle.load(batch.environment)
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
            f"Cannot upsert into '{current.name}' by stream '{entry.stream_id}': stream '{others[0]}' also writes "
            "to it, and without 'order_by' the newer row of a key would depend on which batch is committed first. Name "
            "the columns of the order, or remove the other stream with `icesize streams TABLE --forget "
            f"{shlex.quote(others[0])}`",
            table=current.name,
        )


def _check_branch(rule: UpsertRule, current: Current) -> None:
    """Refuse remembered deletes on a branch: those of a branch that is thrown away would hide rows of `main`."""
    if rule.tombstones_ms is not None and current.branch != MAIN:
        raise UnsupportedTable(
            f"Cannot upsert into branch '{current.branch}' of '{current.name}': the table remembers deletes, and they "
            "would count on all branches. Upsert into 'main'",
            table=current.name,
        )


@dataclass(eq=False)
class PlannedUpserts:
    """A batch of upserts, planned on the state `current` of the table."""

    rows: Upserts
    batch: Batch
    current: Current
    rule: UpsertRule
    keys: BatchKeys
    slices: Sequence[Slice]
    files: UpsertFiles = field(init=False)

    def write(self, owner: Uncommitted) -> WrittenBatch:
        """Write the files for the current state, and merge what is due with the batch's own deletes."""
        batch, current, self.files = self.batch, self.current, self._files(owner)
        changes = self.files.at(batch_commit.state_of(batch.handle, current))
        write_seconds = batch.watch.lap("write")
        layout = batch.handle.reader(current.policy).read(current.table.metadata, current.table.io)
        rows, delta, tombstones = Written(changes.files), RowDelta(self.files, changes), self.files.tombstones
        beside = () if tombstones is None else (MoveTombstones(tombstones, tombstones.changes),)
        if (merges := self.rows.merges) is None:
            return WrittenBatch(
                current, layout, Plan.empty(layout, current.policy), MergeResults(), rows, delta, beside
            )
        plan = self._merge_plan(layout)
        groups = dict(enumerate(plan.groups))
        batch.watch.lap("plan")
        failpoints.reach("planned")
        results = merges(groups, current.settings(), owner, _merge_deadline_seconds(current.policy, write_seconds))
        batch.watch.lap("merge_wait")
        return WrittenBatch(current, layout, plan, MergeResults.of(groups, results), rows, delta, beside)

    def for_report(self, written: WrittenBatch) -> tuple[Sequence[str], dict[str, Any]]:
        """Return the notes and the fields of the report of the committed batch."""
        counts = self.files.newest.counts
        return tuple(_doubled(counts)), {"upsert": counts.numbers}

    def _files(self, owner: Uncommitted) -> UpsertFiles:
        current, rule, names = self.current, self.rule, FileNames(owner.prefix, 0, 0, owner)
        settings, tombstones = current.settings(), None
        keyed = self.keys.files(settings, rule)
        if rule.tombstones_ms is not None:
            others = self.keys.files(tombstone_settings(settings, rule), rule)
            tombstones = Tombstones(others, names, self.batch.environment.now_ms())
        reader = bounds_reader(rule, current.table.metadata.schema(), self.batch.handle.store)
        deletes = DeleteFiles(keyed.files, current.policy, names)
        return UpsertFiles(keyed, reader, self.slices, names, deletes, tombstones)

    def _merge_plan(self, layout: Layout) -> Plan:
        """Plan merges: of small files, and of files with many deleted rows, those of the batch included."""
        current, policy, found = self.current, self.current.policy, self.files.newest
        incoming = incoming_files(found.changes.files, layout.small_file_limit_bytes)
        # by `setdefault`, because `|=` of a Counter drops what is 0
        for key in {each.file.partition for each in found.dying}:
            if key in layout.partitions:
                incoming.setdefault(key, 0)
        plan = plan_merges(
            with_changes(layout, found, self.files.keyed.files.settings), policy, Occasion.BATCH, incoming,
            budget=MergeBudget.of_batch(policy, sum(file.size_bytes for file in found.changes.files)),
            contested=self.batch.contested(current),
        )  # fmt: skip
        inputs = [file.path for group in plan.groups for file in group.inputs]
        if inputs:
            check_listed_once(self.batch.handle.store, current.table, inputs)
        return plan


def _merge_deadline_seconds(policy: SizePolicy, write_seconds: float) -> float | None:
    """Return the seconds for which merges may delay a batch; None for no limit.

    A file whose merge outlasts a deadline would be due in each batch again, and its share of dead rows would grow. So
    the budget limits merges, and time does only if a deadline is set.
    """
    if policy.merge_deadline_ms is None:
        return None
    return policy.merge_deadline_for(int(write_seconds * 1000)) / 1000


def with_changes(layout: Layout, upserted: StateChanges, settings: WriteSettings) -> Layout:
    """Return the layout with the batch's own deletes, as merges read them before the commit."""
    changes = upserted.changes
    own, replaced = pending(changes), {delete.id for delete in changes.replaced}
    by_partition = defaultdict[PartitionKey, dict[str, Dying]](dict)
    for each in upserted.dying:
        by_partition[each.file.partition][each.file.path] = each
    partitions = dict[PartitionKey, PartitionFacts | None]()
    for key, facts in layout.partitions.some(by_partition).items():
        found = by_partition[key]
        known = {file.path: file for file in (*facts.small, *facts.large)}
        others = [each.file for path, each in found.items() if path not in known]
        large = (*facts.large, *(_numbered(file, settings) for file in others))
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
