"""The commit of an expiry: removes snapshots that no rule keeps from the table, in one compare-and-swap.

`planning/retention/planner.py` decides what stays, on the state that the commit asserts, including every ref. This
module touches no data file: nothing is deleted before the commit has certainly succeeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import (
    AssertRefSnapshotId,
    RemovePartitionStatisticsUpdate,
    RemoveSnapshotRefUpdate,
    RemoveStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from icesize.planning.retention.ancestry import FOR_EVER_MS
from icesize.planning.retention.planner import Retention
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.pyiceberg_internals import removal_of
from icesize.table.cleanup.checkpoints import Reader, positions_in, stranded
from icesize.table.cleanup.journal import JOURNAL, LOST_REFS, Journal, rivals_of
from icesize.table.cleanup.retention_inputs import ExpireOptions, retention_of
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.state.handle import Current
from icesize.table.storage.shared_location import check_may_delete

_REMOVED_TOGETHER = 1_000
"""Snapshots that one update removes, the oldest first.

PyIceberg looks for each of them from the table's first snapshot on, so that one update for 70,000 takes minutes.
"""
NOTHING_LEFT = "another expiry came first: nothing was left to do"


class AssertNoOtherRefs(ValidatableTableRequirement):
    """No other branch or tag exists: a concurrent one would be removed with the snapshot that it points to.

    For catalogs that check requirements in this process; the REST protocol can only assert refs by name.
    """

    type: Literal["icesize-assert-no-other-refs"] = "icesize-assert-no-other-refs"
    refs: frozenset[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        new = sorted((base_metadata.refs if base_metadata else {}).keys() - self.refs)
        if new:
            raise CommitFailedException(f"Requirement failed: ref {new[0]} was created concurrently")


@dataclass(frozen=True)
class ExpiryDecision:
    """Decision of an expiry: the retention, the journal of files to delete, and the journal's location.

    `superseded` are journals of attempts that another expiry made unnecessary.
    """

    retention: Retention
    journal: Journal
    journal_location: str | None = None
    notes: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expiry(Change[ExpiryDecision]):
    """One expiry with its commit attempts. Each attempt decides again, on the state that it commits to.

    `current` is the table as the expiry found it, and `state_of` returns the policy of a later state. Snapshots that
    `readers` have not read stay. Ages are counted from `now_ms`. `check_owners` raises if the table's files may not be
    deleted; it is called only if some would be. `tried` maps the journal location of each attempt to its decision.
    """

    current: Current
    options: ExpireOptions
    readers: Sequence[Reader]
    now_ms: int
    run_id: str
    state_of: Callable[[Table], Current]
    check_owners: Callable[[Table], object] = lambda table: None
    advice = "No file was deleted. Run the expiry again: it checks whether the snapshots are gone, and continues"
    tried: dict[str, ExpiryDecision] = field(default_factory=dict)

    def found(self, loaded: Loaded, attempts: Attempts[ExpiryDecision]) -> ExpiryDecision | None:
        """Return the decision that was committed: the table names its journal.

        Missing snapshots prove nothing, because another expiry may have removed them first.
        """
        return self.tried.get(loaded.properties.get(JOURNAL, ""))

    def decide(self, loaded: Loaded) -> ExpiryDecision:
        """Return the decision for this state. Reads metadata only.

        Raises UnsupportedTable if `gc.enabled` is false, TableError if metadata cannot be read, or if a reader's
        position cannot be kept (unless `force`), and PolicyError for invalid rules.
        """
        metadata, io = loaded.table.metadata, loaded.table.io
        # another program may have forbidden it, or changed a rule, since the expiry began
        check_may_delete(loaded.table, self.current.name)
        rules = self.options.rules(metadata.properties, self.state_of(loaded.table).policy, self.now_ms)
        positions, notes = positions_in(metadata, self.readers, self.options.force)
        with readable(self.current.name):
            retention = retention_of(metadata, io, rules, self.now_ms, positions=positions, store=loaded.store)
        notes += stranded(self.readers, retention.expired)
        location = metadata.properties.get(JOURNAL)
        # an unfinished journal that another expiry wrote during this run is still in use there; if this expiry writes a
        # new journal, that one must include it anyway
        is_left = bool(retention.expired) or location == self.current.table.metadata.properties.get(JOURNAL)
        unfinished = Journal.read(io, location) if is_left else None
        if unfinished and location and (lost := rivals_of(loaded.table, unfinished, location).lost_refs):
            notes.append(LOST_REFS.format(", ".join(lost)))
            unfinished = None
        if retention.expired or unfinished:
            self.check_owners(loaded.table)
        journal = Journal.of(loaded.table, retention.expired).together_with(unfinished)
        if unfinished and location and retention.expired:
            # the new journal replaces the old one, which no later expiry will find, so the old one is deleted as well
            journal = replace(journal, files=(*journal.files, location))
        return ExpiryDecision(retention, journal, location if unfinished else None, tuple(notes))

    def stage(self, loaded: Loaded, attempts: Attempts[ExpiryDecision]) -> tuple[Staged | None, ExpiryDecision]:
        """Write the journal. The commit asserts the table's refs one by one."""
        decision = self.decide(loaded)
        metadata, io, retention = loaded.table.metadata, loaded.table.io, decision.retention
        if not (retention.expired or retention.expired_refs or _tags_to_set(metadata, retention)):
            # if an attempt with a lost response is committed after all, a missing journal means that no file is left to
            # delete; a lagging catalog may show a state from before the attempts, which proves nothing
            if attempts.made and loaded.later_than(attempts.made[-1].loaded):
                decision = replace(decision, notes=(*decision.notes, NOTHING_LEFT), superseded=tuple(self.tried))
            return None, decision
        location = None
        if retention.expired:
            # one name per attempt: an attempt with a lost response may still be committed, with its own journal
            name = f"icesize-expiry-{self.run_id}-{len(self.tried)}.json"
            location = loaded.table.location_provider().new_metadata_location(name)
            decision.journal.write(io, location)
            decision = self.tried[location] = replace(decision, journal_location=location)
        updates, requirements = _updates(metadata, decision), _requirements(loaded.table, retention)
        return loaded.staged(updates, *requirements, written=[location] if location else ()), decision


def _requirements(table: Table, retention: Retention) -> Iterator[TableRequirement]:
    refs = table.metadata.refs
    for name, ref in refs.items():
        yield AssertRefSnapshotId(ref=name, snapshot_id=ref.snapshot_id)
    for name in retention.version_tags.keys() - refs.keys():
        yield AssertRefSnapshotId(ref=name, snapshot_id=None)
    if not isinstance(table.catalog, RestCatalog):
        yield cast(TableRequirement, AssertNoOtherRefs(refs=frozenset(refs)))


def _tags_to_set(metadata: TableMetadata, retention: Retention) -> dict[str, int]:
    """Return version tags that are missing, or that another writer has moved."""
    now = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    return {name: snapshot_id for name, snapshot_id in retention.version_tags.items() if now.get(name) != snapshot_id}


def _updates(metadata: TableMetadata, decision: ExpiryDecision) -> Iterator[TableUpdate]:
    retention = decision.retention
    gone = set(retention.expired)
    for name, snapshot_id in _tags_to_set(metadata, retention).items():
        yield SetSnapshotRefUpdate(
            ref_name=name, type=SnapshotRefType.TAG, snapshot_id=snapshot_id,
            max_ref_age_ms=FOR_EVER_MS, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
        )  # fmt: skip
    known = {snapshot.snapshot_id for snapshot in metadata.snapshots}
    for name in retention.expired_refs:
        ref = metadata.refs[name]
        if ref.snapshot_id not in known and (somewhere := next(iter(set(retention.kept) & known), None)) is not None:
            # PyIceberg removes no ref whose snapshot is missing, so it gets another one first
            yield SetSnapshotRefUpdate(
                ref_name=name, type=ref.snapshot_ref_type, snapshot_id=somewhere,
                max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
            )  # fmt: skip
        yield RemoveSnapshotRefUpdate(ref_name=name)
    for snapshot_id in {s.snapshot_id for s in metadata.statistics} & gone:
        yield RemoveStatisticsUpdate(snapshot_id=snapshot_id)
    for snapshot_id in {s.snapshot_id for s in metadata.partition_statistics} & gone:
        yield RemovePartitionStatisticsUpdate(snapshot_id=snapshot_id)
    if decision.retention.expired and decision.journal_location is not None:
        in_order = [snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.snapshot_id in gone]
        for start in range(0, len(in_order), _REMOVED_TOGETHER):
            yield removal_of(in_order[start : start + _REMOVED_TOGETHER])
        yield SetPropertiesUpdate(updates={JOURNAL: decision.journal_location})
