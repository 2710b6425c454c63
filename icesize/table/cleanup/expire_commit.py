"""The commit of an expiry: snapshots that no rule keeps leave the table, in one compare-and-swap.

What stays is decided by `planning/retention/planner.py` on the state that the commit asserts, every ref of it. No data
file is touched here: nothing is deleted before the commit has certainly landed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
    RemoveSnapshotsUpdate,
    RemoveStatisticsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    ValidatableTableRequirement,
)

from icesize.planning.retention.planner import Retention
from icesize.table.catalog.access_errors import readable
from icesize.table.cleanup.checkpoints import Reader, positions_in, stranded
from icesize.table.cleanup.journal import JOURNAL, LOST_REFS, Journal, rivals_of
from icesize.table.cleanup.retention_inputs import ExpireOptions, retention_of
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.retry import Attempts, Change
from icesize.table.state.handle import Current

FOR_EVER_MS = 2**63 - 1
"""Age of version tags: left out, `history.expire.max-ref-age-ms` would let other engines' expiry remove them. Our next
expiry does, when they are not needed any more."""


NOTHING_LEFT = "another expiry came first: nothing was left to do"


class AssertNoOtherRefs(ValidatableTableRequirement):
    """No branch or tag but these exists: one that was made meanwhile would be removed with the snapshot it stands on.

    For catalogs that check requirements in this process; the REST protocol can only assert refs by name.
    """

    type: Literal["icesize-assert-no-other-refs"] = "icesize-assert-no-other-refs"
    refs: frozenset[str]

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        new = sorted((base_metadata.refs if base_metadata else {}).keys() - self.refs)
        if new:
            raise CommitFailedException(f"Requirement failed: ref {new[0]} was created concurrently")


@dataclass(frozen=True)
class Decision:
    """What an expiry does: the retention, what it leaves to be deleted, and where that is written down.

    `superseded` are journals of attempts that another expiry made pointless.
    """

    retention: Retention
    journal: Journal
    journal_location: str | None = None
    notes: tuple[str, ...] = ()
    superseded: tuple[str, ...] = ()


@dataclass(frozen=True)
class Expiry(Change[Decision]):
    """One expiry on its way through its attempts: each state that it is tried on is decided on again.

    `current` is the table as the expiry found it. `readers` are kept what they have not read. `now_ms` is the moment
    that ages are counted from. `tried` has what its attempts decided by where they wrote their journals.
    """

    current: Current
    options: ExpireOptions
    readers: Sequence[Reader]
    now_ms: int
    run_id: str
    advice = "No file was deleted. Run the expiry again: it checks whether the snapshots are gone, and continues"
    tried: dict[str, Decision] = field(default_factory=dict)

    def found(self, loaded: Loaded, attempts: Attempts[Decision]) -> Decision | None:
        """The decision that landed: its journal is the table's. That its snapshots are gone proves nothing: another
        expiry may have come first."""
        return self.tried.get(loaded.properties.get(JOURNAL, ""))

    def decide(self, loaded: Loaded) -> Decision:
        """What would be done to this state; reads metadata only.

        Raises TableError when it cannot be read, or when a reader's position cannot be kept (unless `force`),
        PolicyError for senseless rules.
        """
        metadata, io = loaded.table.metadata, loaded.table.io
        rules = self.options.rules(metadata.properties, self.current.policy, self.now_ms)
        positions, notes = positions_in(metadata, self.readers, self.options.force)
        with readable(self.current.name):
            retention = retention_of(metadata, io, rules, self.now_ms, positions=positions, store=loaded.store)
        notes += stranded(self.readers, retention.expired)
        location = metadata.properties.get(JOURNAL)
        # one that came while this expiry ran has somebody at work on it; a new journal has to take it over all the same
        is_left = bool(retention.expired) or location == self.current.table.metadata.properties.get(JOURNAL)
        unfinished = Journal.read(io, location) if is_left else None
        if unfinished and location and (lost := rivals_of(loaded.table, unfinished, location).lost_refs):
            notes.append(LOST_REFS.format(", ".join(lost)))
            unfinished = None
        journal = Journal.of(loaded.table, retention.expired).together_with(unfinished)
        if unfinished and location and retention.expired:
            # a new journal takes its place, and nobody will look for it again
            journal = replace(journal, files=(*journal.files, location))
        return Decision(retention, journal, location if unfinished else None, tuple(notes))

    def stage(self, loaded: Loaded, attempts: Attempts[Decision]) -> tuple[Staged | None, Decision]:
        """Write the journal; the commit asserts the table's refs one by one."""
        decision = self.decide(loaded)
        metadata, io, retention = loaded.table.metadata, loaded.table.io, decision.retention
        if not (retention.expired or retention.expired_refs or _tags_to_set(metadata, retention)):
            # should an attempt whose answer was lost land after all, a journal that is gone means that nothing is left
            # to delete; a state from before the attempts, which a catalog that lags shows, tells nothing
            if attempts.made and loaded.later_than(attempts.made[-1].loaded):
                decision = replace(decision, notes=(*decision.notes, NOTHING_LEFT), superseded=tuple(self.tried))
            return None, decision
        location = None
        if retention.expired:
            # named by the attempt: one whose answer was lost may still land, with its own journal
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
    """Version tags that are missing, or that somebody has moved."""
    now = {name: ref.snapshot_id for name, ref in metadata.refs.items()}
    return {name: snapshot_id for name, snapshot_id in retention.version_tags.items() if now.get(name) != snapshot_id}


def _updates(metadata: TableMetadata, decision: Decision) -> Iterator[TableUpdate]:
    retention = decision.retention
    gone = set(retention.expired)
    for name, snapshot_id in _tags_to_set(metadata, retention).items():
        yield SetSnapshotRefUpdate(
            ref_name=name, type=SnapshotRefType.TAG, snapshot_id=snapshot_id,
            max_ref_age_ms=FOR_EVER_MS, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
        )  # fmt: skip
    for name in retention.expired_refs:
        yield RemoveSnapshotRefUpdate(ref_name=name)
    for snapshot_id in {s.snapshot_id for s in metadata.statistics} & gone:
        yield RemoveStatisticsUpdate(snapshot_id=snapshot_id)
    for snapshot_id in {s.snapshot_id for s in metadata.partition_statistics} & gone:
        yield RemovePartitionStatisticsUpdate(snapshot_id=snapshot_id)
    if decision.retention.expired and decision.journal_location is not None:
        yield RemoveSnapshotsUpdate(snapshot_ids=list(retention.expired))
        yield SetPropertiesUpdate(updates={JOURNAL: decision.journal_location})
