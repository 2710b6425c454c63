"""How a change gets through the catalog: attempts on ever newer states until it lands, loses for good, or is unknown.

Each attempt loads the table, looks whether an earlier one landed, stages metadata that nobody sees and swaps it in by
one compare-and-swap. A *conflict* or a *refusal* means that nothing landed, so what the attempt wrote goes. After any
other answer the swap may have landed or may still land, so nothing of that attempt is ever deleted here.

An unknown answer never ends the work by itself: the swap asserts the head it was staged on, so a later attempt on the
same head and the unknown one exclude each other, and whichever lands is found by its run id.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tenacity import RetryCallState, wait_random_exponential

from icesize import failpoints
from icesize.clock import Commitment, Fate
from icesize.errors import CommitConflict, CommitStateUnknown, IcesizeError, TableError
from icesize.table.catalog.access_errors import brief, may_pass
from icesize.table.commit.request import RUN_ID, LoadedT, StagedT, SwapBusy, SwapLost, SwapRefused

LOG = logging.getLogger("icesize")

UNKNOWN_ATTEMPTS = 10
"""Answers that tell nothing, after which the caller is asked to look; the waits between them are a minute at most."""

ResultT = TypeVar("ResultT")
SwappedT = TypeVar("SwappedT", contravariant=True)


@dataclass(frozen=True)
class Timing:
    """The clock and the waits of a commit, passed in so that tests need neither. Seconds; `clock` is monotonic.

    `on_commitment` hears of the commit before anything is done.
    """

    clock: Callable[[], float]
    sleep: Callable[[float], None]
    deadline_seconds: float = 600.0
    on_commitment: Callable[[Commitment], object] = lambda commitment: None


class Swapper(Protocol[LoadedT, SwappedT]):
    """The part of a catalog that every change needs."""

    def load(self) -> LoadedT: ...
    def swap(self, loaded: LoadedT, staged: SwappedT) -> None: ...
    def discard(self, staged: SwappedT) -> None: ...


class Attempts(Generic[LoadedT, StagedT, ResultT]):
    """One change on its way through its attempts; a subclass says what is staged and how it is found again.

    `in_flight` is true from the moment the catalog is asked until it says no: whatever interrupts then, nothing may be
    deleted. `lost` is the attempt that the catalog said no to; until it is looked up whether that was true, nothing is
    deleted either.
    """

    def __init__(self, swapper: Swapper[LoadedT, StagedT], timing: Timing, table_uuid: str, run_id: str) -> None:
        self.swapper = swapper
        self.timing = timing
        self.table_uuid = table_uuid
        self.run_id = run_id
        self.started = timing.clock()
        self.losses = self.unanswered = 0
        self.lost: tuple[LoadedT, StagedT, SwapLost] | None = None
        self.unknown: list[BaseException] = []
        self.in_flight = False
        self.swapped: StagedT | None = None
        self._wait = wait_random_exponential(multiplier=0.1, max=10)

    def found(self, loaded: LoadedT) -> ResultT | None:
        """The result, when an earlier attempt (or somebody else) has done it already."""
        raise NotImplementedError

    def prepare(self, loaded: LoadedT) -> ResultT | None:
        """Look at the state that will be built on; a result ends the work: there is nothing (more) to do."""

    def stage(self, loaded: LoadedT) -> StagedT | None:
        """Write what is to be swapped in; None for another round."""
        raise NotImplementedError

    def landed(self, staged: StagedT) -> ResultT:
        """The result, once this is visible."""
        raise NotImplementedError

    @property
    def advice(self) -> str:
        """How a person finds out whether it landed, after no answer could be got."""
        return f"Look for a snapshot whose summary has {RUN_ID}={self.run_id}; running the same batch again is safe"

    def clean(self) -> None:
        """Nothing landed and nothing will: remove what was written for this change besides metadata."""

    @property
    def may_have_landed(self) -> bool:
        """Whether an attempt was begun that nobody has said of that it did not land."""
        return self.in_flight or self.lost is not None or bool(self.unknown)

    def may_be_visible(self) -> set[str]:
        """Data files of this change that are visible, or may be."""
        return set()

    def fate(self) -> Fate:
        """Whether this change is in the table."""
        if self.swapped is not None:
            return Fate(True, tuple(snapshot_id for snapshot_id, _ in self.swapped.snapshots))
        if not self.may_have_landed:
            return Fate(False)
        try:
            loaded = self.swapper.load()
            if self.found(loaded) is not None:
                return Fate(True, tuple(snapshot_id for snapshot_id, _ in loaded.snapshots_of(self.run_id)))
        except Exception as error:
            LOG.debug("an interrupted commit could not be looked up: %s", brief(error))
        return Fate(None, advice=self.advice)

    def run(self) -> ResultT:
        """Until it landed; raises CommitConflict, CommitStateUnknown, TableError or what the subclass refuses with."""
        try:
            self.timing.on_commitment(self)
            result = self._attempt()
            while result is None:
                result = self._attempt()
        except CommitStateUnknown:
            raise
        except BaseException as error:
            if not self.may_have_landed:
                self.clean()
            # an attempt whose answer was lost may still land, whatever has stopped the one after it
            if isinstance(error, IcesizeError) and self.unknown:
                raise self._undecided(error) from error
            if not isinstance(error, IcesizeError) and isinstance(error, Exception) and (self.unknown or self.lost):
                raise self._undecided(error) from error
            raise
        return result

    def _attempt(self) -> ResultT | None:
        """One round; None when another is due."""
        loaded = self._load()
        if loaded is None:
            return None
        if loaded.uuid != self.table_uuid:
            # what an attempt wrote stays although the catalog said no: a request that was sent twice is told that of
            # its second half, and the table in which the first one landed may live on under another name
            raise TableError(
                f"Cannot commit to '{loaded.name}': the table was dropped and created again since the change was "
                "planned; nothing was written to the new table",
                table=loaded.name,
            )
        if (result := self.found(loaded)) is not None:
            return result
        self._settle_loss(loaded)
        if (result := self.prepare(loaded)) is not None:
            return result
        staged = self.stage(loaded)
        return None if staged is None else self._swap(loaded, staged)

    def _load(self) -> LoadedT | None:
        try:
            return self.swapper.load()
        except IcesizeError:
            raise
        except Exception as error:
            if self.lost is None and not self.unknown:
                if may_pass(error) and not self._late():
                    self.unanswered += 1
                    LOG.warning("commit: the catalog does not answer (%s); asking it again", brief(error))
                    self._pause(self.unanswered + 3)
                    return None
                raise TableError(f"Cannot commit: the catalog does not answer ({brief(error)})") from error
            self._note_unknown(error)
            return None

    def _settle_loss(self, loaded: LoadedT) -> None:
        """The attempt before this one did not land: remove its metadata files."""
        if self.lost is None:
            return
        before, staged, error = self.lost
        self.lost = None
        if isinstance(error, SwapBusy) or loaded.later_than(before):
            self.swapper.discard(staged)
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

    def _swap(self, loaded: LoadedT, staged: StagedT) -> ResultT | None:
        try:
            failpoints.reach("before-swap")
        except BaseException:
            self.swapper.discard(staged)
            raise
        self.in_flight = True
        try:
            self.swapper.swap(loaded, staged)
        except SwapLost as error:
            self.lost = (loaded, staged, error)
            self.in_flight = False
            self.losses += 1
            LOG.info("commit to %s: another writer came first, attempt %d", loaded.name, self.losses)
            self._pause(self.losses)
            return None
        except SwapRefused as error:
            self.in_flight = False
            self.swapper.discard(staged)
            raise TableError(str(error), table=loaded.name) from error
        except Exception as error:
            self._note_unknown(error)
            return None
        self.swapped = staged
        failpoints.reach("after-swap")
        return self.landed(staged)

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
            f"Cannot tell whether the commit landed: {brief(error)}. Nothing was deleted. {self.advice}",
            run_id=self.run_id,
        )

    def _pause(self, attempt: int) -> None:
        state = RetryCallState(retry_object=None, fn=None, args=(), kwargs={})  # type: ignore[arg-type]
        state.attempt_number = attempt
        self.timing.sleep(self._wait(state))
