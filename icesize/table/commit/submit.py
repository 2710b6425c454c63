"""Commits to the table of a handle: the steps of a request, one step, or a change of metadata."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from icesize.environment import Environment
from icesize.planning.files import MAIN
from icesize.table.commit.commit_steps import commit_steps, validated
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.protocol import Base, CommitRequest, Committer, Loaded, Step
from icesize.table.commit.pyiceberg_committer import committer_of
from icesize.table.commit.request import CommitOutcome
from icesize.table.commit.retry import Change, commit_change
from icesize.table.state.handle import Current, TableHandle

T = TypeVar("T")


def commit(handle: TableHandle, current: Current, request: CommitRequest, environment: Environment) -> CommitOutcome:
    """Make the steps of a request visible that was planned on `current`; raises as `commit_steps`."""
    committer = _committer(handle, current, environment, request.base.head.ref)
    return commit_steps(request, committer, environment, current.deadline_seconds)


def dry_run_of(
    handle: TableHandle, current: Current, request: CommitRequest, environment: Environment
) -> CommitOutcome:
    """Return the outcome of a request that adds no data files, without a write; raises its refusals."""
    committer = _committer(handle, current, environment, request.base.head.ref)
    loaded = committer.state_of(current.table)
    kept, outcome = validated(request, loaded)
    return replace(outcome, done=committer.stage(loaded, kept, dry_run=True).done)


def commit_step(
    handle: TableHandle, current: Current, step: Step, environment: Environment, *, again: str, dry_run: bool = False
) -> CommitOutcome:
    """Commit one step that adds no files and depends only on the state it is tried on; `again` is the request's."""
    request = CommitRequest(current.uuid, environment.new_id(), Base(current.head), (step,), again=again)
    return (dry_run_of if dry_run else commit)(handle, current, request, environment)


def change(handle: TableHandle, current: Current, wanted: Change[T], environment: Environment) -> T:
    """Commit a change to the table that `current` is a state of; raises as `commit_change`."""
    committer = _committer(handle, current, environment)
    return commit_change(wanted, committer, environment, current.uuid, current.deadline_seconds)


def dry_run_of_change(handle: TableHandle, current: Current, wanted: MetadataChange[T], environment: Environment) -> T:
    """Return the result of a change of metadata without a commit; raises its refusals."""
    return wanted.build(state_of(handle, current, environment))[1]


def state_of(handle: TableHandle, current: Current, environment: Environment) -> Loaded:
    """Return the table as `current` has it, as a state to commit on."""
    return _committer(handle, current, environment).state_of(current.table)


def _committer(handle: TableHandle, current: Current, environment: Environment, ref: str = MAIN) -> Committer:
    return committer_of(handle.catalog, current.table, environment.now_ms, ref, handle.store)
