"""The steps of a request, their way through a commit, and its outcome.

Each attempt checks whether the request is visible already, validates every step on the current state and adapts it, and
stages the remaining ones. Steps that are not essential are dropped if they delay the commit of the others.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TypeVar

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.failpoints import FailpointReached
from icesize.parquet.files.data_file import Merged, NewDataFile
from icesize.parquet.format.refusals import log_if_internal
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.catalog.access_errors import brief
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.carried_deletes import CarriedDeletes
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.protocol import CommitRequest, Committer, ConcurrentChange, Step, StepDone
from icesize.table.commit.steps.absorb import Absorb
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.commit.steps.row_delta import RowDelta
from icesize.table.records.summary import RUN_ID, SMALL_FILES_MAX

S = TypeVar("S")

SLOW_STAGE_SECONDS = 1.0
"""Longest time to stage a merge that is retried after a conflict.

A slower merge is dropped, because each retry would repeat that work.
"""


def steps_of(
    new: Iterable[NewDataFile] | RowDelta,
    merged: Iterable[Merged] = (),
    absorbed: Iterable[FileFact] = (),
    carrier: CarriedDeletes | None = None,
) -> tuple[Step, ...]:
    """Return the steps for new rows and for merges. New files also hold the rows of `absorbed` files.

    `carrier` is that of `Merge`.
    """
    groups, older = tuple(merged), tuple(absorbed)
    rows = [new] if isinstance(new, RowDelta) else _steps_of_files(tuple(new), older)
    return (*rows, *([Merge(groups, carrier)] if groups else ()))


def _steps_of_files(files: tuple[NewDataFile, ...], older: tuple[FileFact, ...]) -> list[Step]:
    if older:
        return [Absorb(older, files)]
    return [Append(files)] if files else []


@dataclass(frozen=True)
class CommitOutcome:
    """The visible steps. `already_committed`: an earlier run had committed the batch.

    `conflicts` are sentences about omitted parts. `contested` are the partitions in which other writers caused them.
    `internal_errors` are sentences about parts that were omitted because of mistakes in icesize.
    """

    done: tuple[StepDone, ...] = ()
    conflicts: tuple[str, ...] = ()
    internal_errors: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()
    already_committed: bool = False

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Ids of the added snapshots, oldest first."""
        return tuple(each.snapshot_id for each in self.done if each.snapshot_id is not None)

    @property
    def operations(self) -> tuple[str, ...]:
        """The operation of each snapshot."""
        return tuple(each.operation for each in self.done if each.snapshot_id is not None)

    @property
    def metadata_bytes_written(self) -> int:
        """Bytes of the manifests and manifest lists that the commit added; 0 if an earlier run had committed it."""
        return sum(each.metadata_bytes for each in self.done)

    @property
    def paths(self) -> set[str]:
        """Paths of files that are now visible."""
        return {path for each in self.done for path in each.step.paths}

    def done_by(self, kind: type[S]) -> list[S]:
        """Return the visible steps of one kind."""
        return [each.step for each in self.done if isinstance(each.step, kind)]

    @property
    def merged(self) -> tuple[Merged, ...]:
        """Groups of files that merges have replaced, without input files that others had removed."""
        return tuple(group for step in self.done_by(Merge) for group in step.done)


def commit_steps(
    request: CommitRequest,
    committer: Committer,
    environment: Environment,
    deadline_seconds: float,
    lock: threading.Lock | None = None,
) -> CommitOutcome:
    """Make the request visible in one atomic step, or raise with nothing of it visible.

    Raises the errors of `Attempts.run`, StreamMismatch or BatchOutOfOrder (refused), and ConcurrentChange (an essential
    step no longer fits the table). After ConcurrentChange nothing is visible: plan on the new state.
    """
    change = _Steps(request, committer)
    return Attempts(change, committer, environment, request.table_uuid, deadline_seconds, lock).run()


def validated(request: CommitRequest, loaded: Loaded, left_out: CommitOutcome) -> tuple[CommitRequest, CommitOutcome]:
    """Return the part of a request that can be committed on a state, and `left_out` with the conflicts of the rest.

    Raises ConcurrentChange.
    """
    kept = list[Step]()
    for step in request.steps:
        result = step.validate(loaded, request.base, kept)
        conflicts, contested = left_out.conflicts + result.conflicts, left_out.contested + result.contested
        left_out = replace(left_out, conflicts=conflicts, contested=contested)
        if result.step is not None:
            kept.append(result.step.adapt(loaded))
    return _with(request, tuple(kept)), left_out


def _with(request: CommitRequest, steps: tuple[Step, ...]) -> CommitRequest:
    """Return the request with these steps, without counts that were made for other steps."""
    left_out = () if steps == request.steps else (SMALL_FILES_MAX,)  # equal ones may have other files for a state
    summary = {key: value for key, value in request.summary.items() if key not in left_out}
    return replace(request, steps=steps, summary=summary)


class _Steps(Change[CommitOutcome]):
    """A request on its way through its attempts: `_request` has the remaining steps."""

    def __init__(self, request: CommitRequest, committer: Committer) -> None:
        self.run_id = request.run_id
        self.advice = f"Look for a snapshot whose summary has {RUN_ID}={self.run_id}; {request.again}"
        self._wanted = self._request = request
        self._committer = committer
        self._stage_seconds = 0.0
        self._left_out = CommitOutcome()

    def data_files(self, result: CommitOutcome) -> Collection[str]:
        return result.paths

    @property
    def shows_in_snapshots_only(self) -> bool:
        return self._request.ledger is None and any(step.essential for step in self._request.steps)

    def found(self, loaded: Loaded, attempts: Attempts[CommitOutcome]) -> CommitOutcome | None:
        if snapshot_ids := set(loaded.snapshots_of(self.run_id)):
            # the attempt made at least the snapshots that remain; others of it may have expired
            results = [attempt.result for attempt in attempts.made if snapshot_ids <= set(attempt.result.snapshot_ids)]
            whole = CommitOutcome(tuple(map(StepDone, self._wanted.steps)))
            return min(results, key=lambda result: len(result.snapshot_ids), default=whole)
        # all snapshots of this run may have expired; the ledger or the files themselves then show the outcome
        if (self._is_noted(loaded) or attempts.may_be_committed) and (live := self._live(loaded)):
            visible = (step.visible(live) for step in self._wanted.steps)
            return replace(self._left_out, done=tuple(StepDone(step) for step in visible if step is not None))
        return None

    def found_of_others(self, loaded: Loaded) -> CommitOutcome | None:
        """Return the outcome of a duplicate run that committed the same batch."""
        return replace(self._left_out, already_committed=True) if self._is_noted(loaded) else None

    def _is_noted(self, loaded: Loaded) -> bool:
        entry = self._request.ledger
        return entry is not None and loaded.has_batch(entry, self._request.accept_new_checkpoint)

    def _live(self, loaded: Loaded) -> set[str]:
        paths, refs = self._wanted.paths(), {step.ref for step in self._wanted.steps if step.ref is not None}
        return loaded.live(paths, refs) if paths else set()

    def stage(self, loaded: Loaded, attempts: Attempts[CommitOutcome]) -> tuple[Staged | None, CommitOutcome]:
        slow = attempts.losses > 0 and self._stage_seconds > SLOW_STAGE_SECONDS
        if slow or attempts.losses >= 2:
            self._drop_others("other commits kept coming first")
        try:
            self._request, self._left_out = validated(self._request, loaded, self._left_out)
            if not self._request.steps:
                return None, self._left_out
            began = attempts.environment.monotonic()
            staged, done = self._committer.stage(loaded, self._request)
        except Exception as error:
            if not self._goes_on_without_others(error, loaded, attempts):
                raise
            return self.stage(loaded, attempts)
        self._stage_seconds = attempts.environment.monotonic() - began
        return (staged if done else None), replace(self._left_out, done=done)

    def _goes_on_without_others(self, error: Exception, loaded: Loaded, attempts: Attempts[CommitOutcome]) -> bool:
        """Drop all but the essential steps after an error; return False if the request must not go on.

        The error of a step that is not essential does not cost the others. A mistake in icesize is logged.
        """
        # only an essential step writes rows and deletes of rows here
        if isinstance(error, (ConcurrentChange, RewriteFailed, FailpointReached)) or not self._others:
            return False
        if isinstance(error, FileNotFoundError) and attempts.is_outdated(loaded):
            return False  # `Attempts` tries all steps on the newest state
        if log_if_internal("the commit of a merge", error):
            self._drop_others(f"internal error {brief(error)}, report this with the log", is_internal=True)
        else:
            self._drop_others(f"its manifests could not be read or written ({brief(error)})")
        return True

    @property
    def _others(self) -> tuple[Step, ...]:
        """The steps that are not essential, beside essential ones."""
        others = tuple(step for step in self._request.steps if not step.essential)
        return others if len(others) < len(self._request.steps) else ()

    def _drop_others(self, why: str, *, is_internal: bool = False) -> None:
        """Keep only the essential steps, if there are any."""
        left, sentences = self._left_out, tuple(step.dropped(why) for step in self._others)
        if is_internal:
            self._left_out = replace(left, internal_errors=left.internal_errors + sentences)
        else:
            self._left_out = replace(left, conflicts=left.conflicts + sentences)
        if sentences:
            self._request = _with(self._request, tuple(step for step in self._request.steps if step.essential))
