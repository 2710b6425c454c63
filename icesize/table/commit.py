"""The one door that changes a table: a CommitRequest goes in, what became visible comes out.

Each attempt loads the table, looks whether this batch is there already, drops merges whose victims others touched,
stages snapshots and swaps the metadata by one compare-and-swap. Only this module decides which files may be deleted:
after a *conflict* or a *refusal* nothing landed, so what the attempt wrote goes; after any other answer the swap may
have landed or may still land, so from then on no data file is deleted here, whatever follows.

An unknown answer never ends the work by itself: the swap asserts the head it was staged on, so a later attempt on the
same head and the unknown one exclude each other, and whichever lands is found by its run id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Generic

from tenacity import RetryCallState, wait_random_exponential

from icesize import failpoints
from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, TableError
from icesize.planning.layout import PartitionKey
from icesize.table.ledger import is_done
from icesize.table.request import (
    BASE_EXPIRED,
    RUN_ID,
    CommitOutcome,
    CommitRequest,
    Committer,
    LoadedT,
    MergedGroup,
    StagedT,
    SwapBusy,
    SwapLost,
    SwapRefused,
    brief,
)

LOG = logging.getLogger("icesize")

SLOW_STAGE_SECONDS = 1.0
"""A merge that took longer to stage than this and lost the race is dropped at once: each retry would pay it again."""

UNKNOWN_ATTEMPTS = 10
"""Answers that tell nothing, after which the caller is asked to look; the waits between them are a minute at most."""


@dataclass(frozen=True)
class Timing:
    """The clock and the waits of a commit, passed in so that tests need neither. Seconds; `clock` is monotonic."""

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    deadline_seconds: float = 600.0


def commit(request: CommitRequest, committer: Committer[LoadedT, StagedT], timing: Timing) -> CommitOutcome:
    """Make the request visible in one atomic step, or raise with nothing of it visible.

    Raises CommitConflict (nothing landed, our files removed), CommitStateUnknown (it may have landed, nothing
    deleted), TableError, StreamMismatch or BatchOutOfOrder (refused, our files removed).
    """
    return _Commit(request, committer, timing).run()


class _Commit(Generic[LoadedT, StagedT]):
    """One request on its way through its attempts.

    `in_flight` is true from the moment the catalog is asked until it says no: whatever interrupts then, nothing may be
    deleted. `lost` is the attempt that the catalog said no to; until it is looked up whether that was true, nothing is
    deleted either. `attempted` tells what each staged snapshot holds: merges are dropped between attempts.
    """

    def __init__(self, request: CommitRequest, committer: Committer[LoadedT, StagedT], timing: Timing) -> None:
        self.wanted = request
        self.request = request
        self.committer = committer
        self.timing = timing
        self.started = timing.clock()
        self.losses = 0
        self.lost: tuple[LoadedT, StagedT, SwapLost] | None = None
        self.attempted: dict[int, CommitRequest] = {}
        self.unknown: list[BaseException] = []
        self.in_flight = False
        self.stage_seconds = 0.0
        self.conflicts: list[str] = []
        self.contested: list[PartitionKey] = []
        self._wait = wait_random_exponential(multiplier=0.1, max=10)

    def run(self) -> CommitOutcome:
        try:
            outcome = self._attempt()
            while outcome is None:
                outcome = self._attempt()
        except CommitStateUnknown:
            raise
        except BaseException as error:
            if not self.in_flight and self.lost is None:
                self._clean(self.wanted.paths())
            if self.unknown and isinstance(error, IcesizeError):
                raise self._undecided(error) from error
            raise
        visible = {f.path for g in outcome.merged for f in g.outputs}
        if not outcome.already_committed:
            visible |= {f.path for f in self.wanted.appended}
        self._clean(self.wanted.paths() - visible)
        return outcome

    def _attempt(self) -> CommitOutcome | None:
        """One round; None when another is due."""
        loaded = self._load()
        if loaded is None:
            return None
        if loaded.uuid != self.request.table_uuid:
            raise TableError(
                f"Cannot commit to '{loaded.name}': the table was dropped and created again since the batch was "
                "planned; nothing was written to the new table",
                table=loaded.name,
            )
        if found := self._found(loaded):
            if found.already_committed and self.lost is not None:
                self.committer.discard(self.lost[1])
            return found
        self._settle_loss(loaded)
        self._drop_lost(loaded)
        if not self.request.appended and not self.request.merged:
            return CommitOutcome(conflicts=tuple(self.conflicts), contested=tuple(self.contested))
        return self._swap(loaded)

    def _load(self) -> LoadedT | None:
        try:
            return self.committer.load()
        except IcesizeError:
            raise
        except Exception as error:
            if self.lost is None and not self.unknown:
                raise TableError(f"Cannot commit: the catalog does not answer ({brief(error)})") from error
            self._note_unknown(error)
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

    def _settle_loss(self, loaded: LoadedT) -> None:
        """The attempt before this one did not land: remove its manifests, and decide what is worth another try."""
        if self.lost is None:
            return
        before, staged, error = self.lost
        self.lost = None
        if isinstance(error, SwapBusy) or loaded.later_than(before):
            self.committer.discard(staged)
        else:
            # told "conflict", but nothing moved: a stale answer on one side, so nothing may be deleted
            self._note_unknown(error)
        if self._late():
            raise CommitConflict(
                f"Cannot commit to '{loaded.name}': other writers came first {self.losses} times in "
                f"{self.timing.deadline_seconds:.0f} s ('commit-deadline-ms'); nothing landed",
                table=loaded.name,
                attempts=self.losses,
            ) from error
        slow = self.stage_seconds > SLOW_STAGE_SECONDS
        if self.request.merged and self.request.appended and (slow or self.losses >= 2):
            self._drop(self.request.merged, "other commits kept coming first")

    def _drop_lost(self, loaded: LoadedT) -> None:
        """Leave out merges that others made wrong; the append stays whatever happens."""
        if not self.request.merged:
            return
        if (loaded.schema_id, loaded.spec_id) != (self.request.schema_id, self.request.spec_id):
            self._drop(self.request.merged, "schema or partition spec changed while the merge ran")
            return
        lost = loaded.lost_victims(self.request)
        for group in self.request.merged:
            why = next((lost[v.path] for v in group.victims if v.path in lost), None)
            if why is not None:
                self._drop((group,), why)
                if why != BASE_EXPIRED:
                    self.contested.append(group.victims[0].partition)

    def _drop(self, groups: tuple[MergedGroup, ...], why: str) -> None:
        dropped = {id(g) for g in groups}
        self.request = replace(self.request, merged=tuple(g for g in self.request.merged if id(g) not in dropped))
        files = sum(len(g.victims) for g in groups)
        self.conflicts.append(f"merge of {files} files dropped: {why}")

    def _swap(self, loaded: LoadedT) -> CommitOutcome | None:
        began = self.timing.clock()
        try:
            staged = self.committer.stage(loaded, self.request)
        except Exception as error:
            if not self.request.appended or not self.request.merged:
                raise
            self._drop(self.request.merged, f"its manifests could not be written ({brief(error)})")
            return None
        self.stage_seconds = self.timing.clock() - began
        self.attempted |= dict.fromkeys((i for i, _ in staged.snapshots), self.request)
        try:
            failpoints.reach("before-swap")
        except BaseException:
            self.committer.discard(staged)
            raise
        self.in_flight = True
        try:
            self.committer.swap(loaded, staged)
        except SwapLost as error:
            self.lost = (loaded, staged, error)
            self.in_flight = False
            self.losses += 1
            LOG.info("commit to %s: another writer came first, attempt %d", loaded.name, self.losses)
            self._pause(self.losses)
            return None
        except SwapRefused as error:
            self.in_flight = False
            self.committer.discard(staged)
            raise TableError(str(error), table=loaded.name) from error
        except Exception as error:
            self._note_unknown(error)
            return None
        failpoints.reach("after-swap")
        return self._landed(staged.snapshots)

    def _note_unknown(self, error: BaseException) -> None:
        self.unknown.append(error)
        LOG.warning("commit: the catalog's answer was lost (%s); looking whether it landed", brief(error))
        if self._late() or len(self.unknown) >= UNKNOWN_ATTEMPTS:
            raise self._undecided(error) from error
        self._pause(len(self.unknown) + 3)

    def _late(self) -> bool:
        return self.timing.clock() - self.started > self.timing.deadline_seconds

    def _undecided(self, error: BaseException) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"Cannot tell whether the commit landed: {brief(error)}. Nothing was deleted. Look for a snapshot whose "
            f"summary has {RUN_ID}={self.request.run_id}; running the same batch again is safe",
            run_id=self.request.run_id,
        )

    def _pause(self, attempt: int) -> None:
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = attempt
        self.timing.sleep(self._wait(state))

    def _clean(self, paths: set[str]) -> None:
        if paths and not self.unknown:
            self.committer.delete_data_files(sorted(paths))
