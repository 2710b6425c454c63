"""Commits a change with one compare-and-swap: it succeeds, conflicts, or ends in an unknown state.

Each attempt loads the table and checks whether an earlier attempt is committed. It then stages metadata that is not
visible, and the catalog commits it. After a *conflict* or a *refusal* nothing is visible, so the metadata of that
attempt is removed. After any other response the attempt may be visible or may still become so. Nothing of that attempt
is ever deleted, neither here nor by the owner of the data files (`icesize.parquet.files.uncommitted`). That owner
queries this module for the files that may be visible.

An unknown response alone never ends the retries. The catalog compares the head that an attempt was staged on. A later
attempt on the same head and the unknown one therefore exclude each other. The run id shows which one was committed.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Collection
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, TableError, is_from_outside
from icesize.events import CommitEnded, CommitStarted, CommitStatus, Outcome
from icesize.table.catalog.access_errors import brief, may_pass, requested_seconds
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.protocol import CatalogBusy, CommitLost, CommitRefused, Committer

LOG = logging.getLogger("icesize")

UNKNOWN_ATTEMPTS = 10
"""Most responses without a known outcome; then the user gets advice. All waits together take about a minute at most."""

T = TypeVar("T")


class Change(Protocol[T]):
    """A change that becomes visible in one step. `run_id` identifies it through all its attempts.

    `advice` explains to the user how to check the outcome, if the catalog returned none.
    """

    run_id: str
    advice: str

    @property
    def shows_in_snapshots_only(self) -> bool:
        """True if nothing but snapshots, which expire, shows that the change is committed, and it must not be twice."""
        return False

    def found(self, loaded: Loaded, attempts: Attempts[T]) -> T | None:
        """Return the result if an earlier attempt has already committed the change."""

    def found_of_others(self, loaded: Loaded) -> T | None:
        """Return the result if another run has already committed the change; `found` is asked first."""
        return None

    def stage(self, loaded: Loaded, attempts: Attempts[T]) -> tuple[Staged | None, T]:
        """Return the attempt to commit on this state and its result once visible; raise to refuse.

        The attempt is None if there is nothing to do.
        """

    def data_files(self, result: T) -> Collection[str]:
        """Return the data files of this change that are visible with that result."""
        return ()


@dataclass(frozen=True)
class Attempt(Generic[T]):
    """A staged attempt, the state that it was staged on, and its result once it is visible."""

    loaded: Loaded
    staged: Staged
    result: T


@dataclass(eq=False)
class Attempts(Generic[T]):
    """A change that is being committed: `made` are its attempts so far, `losses` counts its conflicts.

    An attempt is unsettled from the call of the catalog until its failure is certain. `lock` is held during each
    attempt, and free in the pauses between them.
    """

    change: Change[T]
    committer: Committer
    environment: Environment
    table_uuid: str
    deadline_seconds: float
    lock: threading.Lock | None = None
    made: list[Attempt[T]] = field(default_factory=list)
    losses: int = 0
    unknown: int = 0
    _unanswered: int = 0
    _unsettled: list[Attempt[T]] = field(default_factory=list)
    # the attempt that the catalog rejected last, with its response: the cause of a final CommitConflict
    _lost: tuple[Attempt[T], CommitLost] | None = None
    _committed: Attempt[T] | None = None
    _found: tuple[T, ...] = ()
    _pause_seconds: float = 0.0

    def __post_init__(self) -> None:
        self._started = self.environment.monotonic()

    @property
    def may_be_committed(self) -> bool:
        """True if the failure of at least one attempt is uncertain."""
        return bool(self._unsettled)

    def may_be_visible(self) -> set[str]:
        """Return the data files of this change that are visible, may be visible, or may still become so."""
        results = (*(attempt.result for attempt in self._unsettled), *self._found)
        return {path for result in results for path in self.change.data_files(result)}

    def status(self) -> CommitStatus:
        """Return whether this change is in the table."""
        if self._committed is not None:
            return CommitStatus(True, self._committed.staged.snapshot_ids)
        if not self._unsettled:
            return CommitStatus(False)
        try:
            loaded = self.committer.load()
            found = self.change.found(loaded, self), self.change.found_of_others(loaded)
            if any(each is not None for each in found):
                return CommitStatus(True, tuple(loaded.snapshots_of(self.change.run_id)))
        except Exception as error:
            LOG.debug("an interrupted commit could not be looked up: %s", brief(error))
        return CommitStatus(None, advice=self.change.advice)

    def run(self) -> T:
        """Make the change visible in one atomic step, or raise with nothing of it visible. Deletes no data file.

        `environment.observe` receives `CommitStarted` before the first attempt, and `CommitEnded` after the last one.

        Raises CommitConflict (nothing is visible), CommitStateUnknown (the change may be visible), TableError, and the
        change's own refusals (nothing is visible).
        """
        self.environment.observe(CommitStarted(self, self.committer.name))
        outcome: Outcome = "failed"
        try:
            result = self._until_decided()
            outcome = "nothing to do" if self._committed is None and not self._found else "committed"
            return result
        except CommitConflict:
            outcome = "conflict"
            raise
        except CommitStateUnknown:
            outcome = "unknown"
            raise
        finally:
            self.environment.notify(self._ended(outcome))

    def _until_decided(self) -> T:
        try:
            while True:
                with self.lock or nullcontext():
                    result = self._attempt()
                if result is not None:
                    return result
                self.environment.sleep(self._pause_seconds)
        except CommitStateUnknown:
            raise
        except Exception as error:
            # an attempt without a response may still become visible, even if a later attempt failed for another reason
            if self.unknown or (self._lost is not None and not isinstance(error, IcesizeError)):
                raise self._undecided(brief(error)) from error
            raise

    def _ended(self, outcome: Outcome) -> CommitEnded:
        seconds = self.environment.monotonic() - self._started
        summaries = self._committed.staged.summaries if self._committed else ()
        return CommitEnded(self.committer.name, outcome, seconds, len(self.made), self.losses, summaries, self)

    def _attempt(self) -> T | None:
        """Run one attempt. Return None if another one is due, after a pause."""
        loaded = self._load()
        if loaded is None:
            return None
        if loaded.uuid != self.table_uuid:
            # a rejected attempt stays unsettled: if the request was sent twice, the rejection may concern only the
            # second copy; the table that the first copy committed to may still exist under another name
            raise TableError(
                f"Cannot commit to '{loaded.name}': the table was dropped and recreated after the change was "
                "planned; nothing was written to the new table",
                table=loaded.name,
            )
        try:
            result = self.change.found(loaded, self)
            if result is None and (result := self.change.found_of_others(loaded)) is not None:
                # the metadata of a rejected attempt is not needed
                self._settle_loss(loaded)
            if result is not None:
                self._found = (result,)
                return result
            if self.change.shows_in_snapshots_only:
                self._check_shown(loaded)
            if not self._look_after_loss(loaded):
                return None
            staged, result = self.change.stage(loaded, self)
        except Exception as error:
            # an expiry that committed after `loaded` may have deleted its manifests
            if isinstance(error, FileNotFoundError) and self.is_outdated(loaded):
                self.losses += 1
                self._pause(self.losses)
                return None
            # an unsettled attempt may be visible, so the TableError below ("nothing is visible") would be wrong
            if self._unsettled or not is_from_outside(error):
                raise
            raise TableError(
                f"Cannot commit to '{loaded.name}': manifests could not be read or written ({brief(error)}). Nothing "
                "is visible. Run it again when storage answers and has room.",
                table=loaded.name,
            ) from error
        return result if staged is None else self._commit(Attempt(loaded, staged, result))

    def is_outdated(self, loaded: Loaded) -> bool:
        """Return True if the table has changed since it was loaded: an expiry may have deleted its manifests."""
        now = self._load()
        same_or_late = now is None or self._late() or now.table.metadata_location == loaded.table.metadata_location
        return not same_or_late

    def _load(self) -> Loaded | None:
        try:
            return self.committer.load()
        except IcesizeError:
            raise
        except Exception as error:
            if self._unsettled:
                self._note_unknown(error)
                return None
            if not may_pass(error) or self._late():
                raise TableError(f"Cannot commit: the catalog does not answer ({brief(error)})") from error
            self._unanswered += 1
            LOG.warning("commit: the catalog does not answer (%s); asking it again", brief(error))
            self._pause(self._unanswered + 3, error)
            return None

    def _look_after_loss(self, loaded: Loaded) -> bool:
        """Settle the previous attempt, which the catalog rejected and `found` did not find in the table.

        Return False if it cannot be settled on this state.
        """
        if self._lost is None:
            return True
        settled, answer = self._settle_loss(loaded), self._lost[1]
        self._lost = None
        if not settled:
            # the response was "conflict", but the table did not change: one of the two responses is stale, so nothing
            # may be deleted
            self._note_unknown(answer)
            return False
        if self._late():
            raise CommitConflict(
                f"Cannot commit to '{loaded.name}': other writers committed first {self.losses} times in "
                f"{self.deadline_seconds:.0f} s ('commit-deadline-ms'); nothing was committed",
                table=loaded.name,
                attempts=self.losses,
            ) from answer
        return True

    def _settle_loss(self, loaded: Loaded) -> bool:
        """Remove the metadata of a rejected attempt if its failure is certain. Return False if it is uncertain."""
        if self._lost is not None:
            attempt, answer = self._lost
            if not isinstance(answer, CatalogBusy) and not loaded.later_than(attempt.loaded):
                return False
            self._give_up(attempt)
        return True

    def _check_shown(self, loaded: Loaded) -> None:
        """Raise CommitStateUnknown if an attempt without a response may have been committed before all that is shown.

        `found` has not found the attempt. Without this check, a change that adds rows could be committed twice.
        """
        rejected = self._lost[0] if self._lost else None
        if any(each is not rejected and loaded.hides_commits_on(each.loaded) for each in self._unsettled):
            raise self._undecided("other commits came since, and the table does not show the first of them any more")

    def _give_up(self, attempt: Attempt[T]) -> None:
        self._unsettled = [other for other in self._unsettled if other is not attempt]
        self.committer.discard(attempt.staged)

    def _commit(self, attempt: Attempt[T]) -> T | None:
        self.made.append(attempt)
        name = attempt.loaded.name
        try:
            failpoints.reach("before-swap")
        except BaseException:
            self.committer.discard(attempt.staged)
            raise
        self._unsettled.append(attempt)
        try:
            self.committer.commit(attempt.loaded, attempt.staged)
        except CommitLost as error:
            self._lost = attempt, error
            self.losses += 1
            LOG.info("commit to %s: another writer came first, attempt %d", name, self.losses)
            self._pause(self.losses, error)
            return None
        except CommitRefused as error:
            self._give_up(attempt)
            raise TableError(str(error), table=name) from error
        except Exception as error:
            self._note_unknown(error)
            return None
        self._committed = attempt
        failpoints.reach("after-swap")
        return attempt.result

    def _note_unknown(self, error: Exception) -> None:
        self.unknown += 1
        LOG.warning("commit: the catalog's response was lost (%s); checking the outcome", brief(error))
        if self._late() or self.unknown >= UNKNOWN_ATTEMPTS:
            raise self._undecided(brief(error)) from error
        self._pause(self.unknown + 3, error)

    def _late(self) -> bool:
        return self.environment.monotonic() - self._started > self.deadline_seconds

    def _undecided(self, why: str) -> CommitStateUnknown:
        return CommitStateUnknown(
            f"Commit state unknown: {why}. Nothing was deleted. {self.change.advice}",
            run_id=self.change.run_id,
        )

    def _pause(self, attempt: int, error: Exception | None = None) -> None:
        longest = min(10.0, 0.1 * 2 ** min(attempt - 1, 10))
        spread = random.uniform(0, longest)  # noqa: S311 - spreads the retries of competing writers
        self._pause_seconds = requested_seconds(error) + spread
