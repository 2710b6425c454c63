"""A commit's steps, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from icesize.parquet.files.data_file import MergeResult, WrittenFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.ledger import LedgerEntry
from icesize.table.commit.protocol import snapshot_ids
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.overwrite import Overwrite
from icesize.table.commit.steps.replace import Replace
from icesize.table.commit.steps.step import Base, Step, StepDone

S = TypeVar("S")


@dataclass(frozen=True)
class CommitRequest:
    """Everything that one commit wants to change on the branch of its base, in the order of its steps.

    `run_id` identifies it through all its attempts. `ledger` is the entry of a stream's batch, and `summary` goes into
    every snapshot. `again` says what a person may do if nobody knows whether it is visible.
    """

    table_uuid: str
    run_id: str
    base: Base
    steps: tuple[Step, ...]
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False
    summary: Mapping[str, str] = field(default_factory=dict)
    again: str = "running the same batch again is safe"

    def paths(self) -> set[str]:
        """Return every file that this request would make visible."""
        return {path for step in self.steps for path in step.paths}


def steps_of(
    new: Iterable[WrittenFile], merged: Iterable[MergeResult] = (), absorbed: Iterable[FileFact] = ()
) -> tuple[Step, ...]:
    """Return the steps for files with new rows, which hold the rows of `absorbed` files, too, and for merges."""
    files, groups, older = tuple(new), tuple(merged), tuple(absorbed)
    steps: list[Step] = []
    if files or older:
        steps.append(Overwrite(older, files) if older else Append(files))
    if groups:
        steps.append(Replace(groups))
    return tuple(steps)


@dataclass(frozen=True)
class CommitOutcome:
    """The steps that are visible now. `already_committed`: the batch was there before.

    `conflicts` are sentences about what was left out, `contested` the partitions in which other writers caused that.
    """

    done: tuple[StepDone, ...] = ()
    conflicts: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()
    already_committed: bool = False

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Snapshots that were added, oldest first."""
        return snapshot_ids(self.done)

    @property
    def operations(self) -> tuple[str, ...]:
        """The operation of each snapshot."""
        return tuple(each.operation for each in self.done if each.snapshot_id is not None)

    @property
    def paths(self) -> set[str]:
        """Files that are visible now."""
        return {path for each in self.done for path in each.step.paths}

    def done_by(self, kind: type[S]) -> list[S]:
        """Steps of one kind, as far as they are visible."""
        return [each.step for each in self.done if isinstance(each.step, kind)]

    @property
    def merged(self) -> tuple[MergeResult, ...]:
        """Groups of files that others have taken the place of."""
        return tuple(group for step in self.done_by(Replace) for group in step.groups)
