"""Another rule of upserts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate, SetPropertiesUpdate

from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.planning.upsert_rule import PROPERTY, UpsertRule
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class ChangeRule(Step):
    """Store another rule, without the branch of deletes that it cannot compare. Files stay.

    Its snapshot lists them again: the commit of a batch that was compared by the earlier rule finds another head.

    Attributes:
        wanted: Returns the rule for a state of the table.
        check: Receives each state with another key, and raises to refuse it.
        earlier: The rule of the state that the step was validated on; None if it has none.
        rule: The new rule, of that state.
        forgets_deletes: Whether that state remembers deletes that do not compare by the new rule.
    """

    kind = CommitKind.RULE
    wanted: Callable[[Loaded], UpsertRule]
    check: Callable[[Loaded, UpsertRule], object]
    earlier: UpsertRule | None = None
    rule: UpsertRule = field(default_factory=partial(UpsertRule, ()))
    forgets_deletes: bool = False

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        """Return the step with the rules of the state; none if they are equal. Raises what `check` raises."""
        stored, rule = UpsertRule.of(state.properties), self.wanted(state)
        if stored is None or set(stored.key) != set(rule.key):
            self.check(state, rule)
        keeps_deletes = stored is not None and rule.carries_deletes_of(stored)
        forgets = TOMBSTONE_BRANCH in state.table.metadata.refs and not keeps_deletes
        changed = replace(self, earlier=stored, rule=rule, forgets_deletes=forgets)
        return Kept(None if stored == rule else changed)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        builder.same_schema_and_spec()
        builder.updates.append(SetPropertiesUpdate(updates={PROPERTY: self.rule.to_json()}))
        if self.forgets_deletes:
            held = builder.metadata.refs[TOMBSTONE_BRANCH].snapshot_id
            builder.updates.append(RemoveSnapshotRefUpdate(ref_name=TOMBSTONE_BRANCH))
            builder.requirements.append(AssertRefSnapshotId(ref=TOMBSTONE_BRANCH, snapshot_id=held))
        return builder.finish(Operation.REPLACE, builder.manifests, dict(summary))
