"""The steps of a batch, and what became of a commit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from icesize.parquet.files.data_file import Merged, NewDataFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.protocol import Step, StepDone, snapshot_ids
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.overwrite import Overwrite
from icesize.table.commit.steps.replace import Replace

S = TypeVar("S")


def steps_of(
    new: Iterable[NewDataFile], merged: Iterable[Merged] = (), absorbed: Iterable[FileFact] = ()
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
    def merged(self) -> tuple[Merged, ...]:
        """Groups of files that others have taken the place of."""
        return tuple(group for step in self.done_by(Replace) for group in step.groups)
