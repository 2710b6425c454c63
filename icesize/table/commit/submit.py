"""Commits to the table of a handle: the steps of a request, one step, or a change of metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from icesize.environment import Environment
from icesize.table.commit.attempted_steps import CommitOutcome, commit_steps, validated
from icesize.table.commit.attempts import Attempts, Change
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.protocol import Base, CommitRequest, Step
from icesize.table.commit.pyiceberg_committer import committer_of
from icesize.table.state.handle import Current, TableHandle

T = TypeVar("T")


def commit_request(
    handle: TableHandle, current: Current, request: CommitRequest, environment: Environment
) -> CommitOutcome:
    """Make the steps of a request visible that was planned on `current`. Raises like `commit_steps`."""
    committer = committer_of(handle, current.table, environment, request.base.head.ref)
    return commit_steps(request, committer, environment, current.deadline_seconds)


def commit_step(
    handle: TableHandle, current: Current, step: Step, environment: Environment, *, again: str, dry_run: bool = False
) -> CommitOutcome:
    """Commit one step that adds no files and depends only on the state that it is tried on.

    `again` is the advice of the request. A dry run returns the outcome without a write, and raises the same refusals.
    """
    request = CommitRequest(current.uuid, environment.new_id(), Base(current.head), (step,), again=again)
    if not dry_run:
        return commit_request(handle, current, request, environment)
    committer = committer_of(handle, current.table, environment)
    loaded = committer.state_of(current.table)
    kept, outcome = validated(request, loaded, CommitOutcome())
    return replace(outcome, done=committer.stage(loaded, kept, dry_run=True)[1])


def change(handle: TableHandle, current: Current, wanted: Change[T], environment: Environment) -> T:
    """Commit a change to the table that `current` is a state of. Raises like `Attempts.run`."""
    committer = committer_of(handle, current.table, environment)
    return Attempts(wanted, committer, environment, current.uuid, current.deadline_seconds).run()


def dry_run_of_change(handle: TableHandle, current: Current, wanted: MetadataChange[T], environment: Environment) -> T:
    """Return the result of a metadata change without a commit. Raises its refusals."""
    return wanted.build(state_of(handle, current, environment))[1]


def state_of(handle: TableHandle, current: Current, environment: Environment) -> Loaded:
    """Return the table's state in `current` as a state to commit on."""
    return committer_of(handle, current.table, environment).state_of(current.table)
