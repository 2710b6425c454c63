"""The one door for rows: a CommitRequest goes in, what became visible comes out.

Each attempt looks whether this batch is there already and whether its files fit the table, drops merges whose input
files others touched, and stages snapshots. Only this module and `attempts.py` decide which files may be deleted: after
a *conflict* or a *refusal* nothing landed, so what was written goes; after any other answer no data file is deleted
here, whatever follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Generic

from icesize.errors import IcesizeError, TableError
from icesize.planning.files import PartitionKey
from icesize.table.catalog.access_errors import brief
from icesize.table.commit.ledger import is_done
from icesize.table.commit.request import (
    BASE_EXPIRED,
    CommitOutcome,
    CommitRequest,
    Committer,
    LoadedT,
    MergedGroup,
    Overtaken,
    StagedT,
)
from icesize.table.commit.retry import Attempts, Timing

SLOW_STAGE_SECONDS = 1.0
"""A merge that took longer to stage than this and lost the race is dropped at once: each retry would pay it again."""


_OUTDATED = "schema or partition spec changed while the merge ran"


def commit(request: CommitRequest, committer: Committer[LoadedT, StagedT], timing: Timing) -> CommitOutcome:
    """Make the request visible in one atomic step, or raise with nothing of it visible.

    Raises CommitConflict (nothing landed, our files removed), CommitStateUnknown (it may have landed, nothing
    deleted), TableError, StreamMismatch or BatchOutOfOrder (refused; our files are removed, unless a lost attempt could
    not be looked up: then they are orphans), Overtaken (what is `appended` or `absorbed` fits the table no more:
    nothing landed, our files removed; plan anew).
    """
    return _Commit(request, committer, timing).run()


class _Commit(Attempts[LoadedT, StagedT, CommitOutcome], Generic[LoadedT, StagedT]):
    """One request on its way; `attempted` is what each staged snapshot holds: merges are dropped between attempts."""

    def __init__(self, request: CommitRequest, committer: Committer[LoadedT, StagedT], timing: Timing) -> None:
        super().__init__(committer, timing, request.table_uuid, request.run_id)
        self.wanted = request
        self.request = request
        self.committer = committer
        self.attempted: dict[int, CommitRequest] = {}
        self.stage_seconds = 0.0
        self.conflicts: list[str] = []
        self.contested: list[PartitionKey] = []

    def run(self) -> CommitOutcome:
        outcome = super().run()
        visible = {f.path for g in outcome.merged for f in g.outputs}
        if not outcome.already_committed:
            visible |= {f.path for f in self.wanted.appended}
        self._clean(self.wanted.paths() - visible)
        return outcome

    def clean(self) -> None:
        self._clean(self.wanted.paths())

    def may_be_visible(self) -> set[str]:
        # a lost or unknown attempt may have had more merges than the one in flight
        if self.lost or self.unknown:
            return self.wanted.paths()
        return self.request.paths() if self.in_flight else set()

    def found(self, loaded: LoadedT) -> CommitOutcome | None:
        found = self._found(loaded)
        if found is not None and not found.snapshot_ids and self.lost is not None:
            before, staged, error = self.lost
            if not loaded.later_than(before):
                # it may have landed and expired: another snapshot, kept by a tag, may still need its files
                self.unknown.append(error)
            elif found.already_committed:
                self.committer.discard(staged)
        return found

    def prepare(self, loaded: LoadedT) -> CommitOutcome | None:
        self._drop_slow()
        if (why := loaded.misfit(self.request)) is not None:
            raise Overtaken(why)
        lost = loaded.lost_inputs(self.request) if self.request.merged or self.request.absorbed else {}
        self._check_absorbed(loaded, lost)
        self._drop_lost(loaded, lost)
        if not self.request.appended and not self.request.merged:
            return CommitOutcome(conflicts=tuple(self.conflicts), contested=tuple(self.contested))
        return None

    def _found(self, loaded: LoadedT) -> CommitOutcome | None:
        """Our own earlier attempt, or a twin that committed the same batch."""
        snapshots = loaded.snapshots_of(self.request.run_id)
        if snapshots:
            return self._landed(snapshots)
        # a snapshot of ours may have expired since: then the ledger or the files themselves tell
        entry = self.request.ledger
        done = entry is not None and is_done(loaded.properties, entry, self.request.accept_new_checkpoint)
        if (done or self.unknown or self.lost) and loaded.any_live(self.wanted.paths()):
            live = (g for g in self.wanted.merged if loaded.any_live({f.path for f in g.outputs}))
            return self._landed([], tuple(live))
        return CommitOutcome(conflicts=tuple(self.conflicts), already_committed=True) if done else None

    def _landed(self, snapshots: list[tuple[int, str]], merged: tuple[MergedGroup, ...] = ()) -> CommitOutcome:
        for snapshot_id, operation in snapshots:
            if operation == "replace":
                merged = self.attempted.get(snapshot_id, self.request).merged
        return CommitOutcome(
            snapshot_ids=tuple(i for i, _ in snapshots),
            operations=tuple(o for _, o in snapshots),
            merged=merged,
            conflicts=tuple(self.conflicts),
            contested=tuple(self.contested),
        )

    def _drop_slow(self) -> None:
        """Merges that keep losing, or that take long to stage, are not worth another try."""
        slow = self.losses > 0 and self.stage_seconds > SLOW_STAGE_SECONDS
        if self.request.merged and self.request.appended and (slow or self.losses >= 2):
            self._drop(self.request.merged, "other commits kept coming first")

    def _check_absorbed(self, loaded: LoadedT, lost: Mapping[str, str]) -> None:
        """Files whose rows are in the new ones must be as they were: unlike merges they cannot be left out."""
        absorbed = self.request.absorbed
        if absorbed and self._is_outdated(loaded):
            raise Overtaken(_OUTDATED, tuple(dict.fromkeys(f.partition for f in absorbed)))
        gone = [f for f in absorbed if f.path in lost]
        if gone:
            why = lost[gone[0].path]
            raise Overtaken(why, () if why == BASE_EXPIRED else tuple(dict.fromkeys(f.partition for f in gone)))

    def _is_outdated(self, loaded: LoadedT) -> bool:
        return (loaded.schema_id, loaded.spec_id) != (self.request.schema_id, self.request.spec_id)

    def _drop_lost(self, loaded: LoadedT, lost: Mapping[str, str]) -> None:
        """Leave out merges that others made wrong; the append stays whatever happens."""
        if self.request.merged and self._is_outdated(loaded):
            self._drop(self.request.merged, _OUTDATED)
        for group in self.request.merged:
            why = next((lost[v.path] for v in group.inputs if v.path in lost), None)
            if why is not None:
                self._drop((group,), why)
                if why != BASE_EXPIRED:
                    self.contested.append(group.inputs[0].partition)

    def _drop(self, groups: tuple[MergedGroup, ...], why: str) -> None:
        dropped = {id(g) for g in groups}
        self.request = replace(self.request, merged=tuple(g for g in self.request.merged if id(g) not in dropped))
        files = sum(len(g.inputs) for g in groups)
        self.conflicts.append(f"merge of {files} files dropped: {why}")

    def stage(self, loaded: LoadedT) -> StagedT | None:
        began = self.timing.clock()
        try:
            staged = self.committer.stage(loaded, self.request)
        except Exception as error:
            if not self.request.appended or not self.request.merged:
                if self.unknown or isinstance(error, IcesizeError):
                    raise
                why = f"Cannot commit to '{loaded.name}': manifests could not be written ({brief(error)})"
                raise TableError(f"{why}; nothing is visible", table=loaded.name) from error
            self._drop(self.request.merged, f"its manifests could not be written ({brief(error)})")
            return None
        self.stage_seconds = self.timing.clock() - began
        self.attempted |= dict.fromkeys((i for i, _ in staged.snapshots), self.request)
        return staged

    def landed(self, staged: StagedT) -> CommitOutcome:
        return self._landed(staged.snapshots)

    def _clean(self, paths: set[str]) -> None:
        if paths and not self.unknown:
            self.committer.delete_data_files(sorted(paths))
