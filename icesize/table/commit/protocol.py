"""How a commit talks to a catalog: a loaded state of the table, what is staged on it, and the catalog's answers.

A format version or a library that is added later implements these three protocols; jobs and steps know only them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import TableRequirement, TableUpdate

from icesize.planning.files import FileFact, Head
from icesize.table.manifests.lists import Manifests
from icesize.table.manifests.store import ManifestStore

if TYPE_CHECKING:
    from icesize.table.commit.request import CommitRequest
    from icesize.table.commit.steps.step import StepDone


class CommitLost(Exception):
    """The catalog says that another commit came first. It is looked up before it is believed: 409 may come late."""


class CatalogBusy(CommitLost):
    """The catalog asks to come again later: a definite no that nobody else's commit explains."""


class CommitRefused(Exception):
    """The catalog will never accept this commit, and nothing of it is visible. The text is a sentence for the user."""


@dataclass(frozen=True)
class Staged:
    """One attempt, of which nothing is visible yet: what the catalog is asked for in the terms of its REST protocol.

    `written` are the metadata files that were written for it, `done` its steps.
    """

    requirements: tuple[TableRequirement, ...]
    updates: tuple[TableUpdate, ...]
    written: tuple[str, ...] = ()
    done: tuple[StepDone, ...] = ()

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        """Return the ids of the snapshots that it adds, oldest first."""
        return snapshot_ids(self.done)


class Loaded(Protocol):
    """One state of a table that a commit is tried on, with one branch of it."""

    @property
    def table(self) -> Table: ...
    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def head(self) -> Head: ...
    @property
    def schema_id(self) -> int: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def store(self) -> ManifestStore: ...
    @property
    def properties(self) -> Mapping[str, str]: ...

    def snapshots_of(self, run_id: str) -> list[int]:
        """Return the ids of snapshots that carry this run id, oldest first."""

    def follows(self, base: Head) -> bool:
        """Return True if the head of the branch is `base`, or came from it as far as the history is known."""

    def manifests(self) -> Manifests:
        """Return the manifests at the head of the branch."""

    def live(self, paths: Collection[str]) -> set[str]:
        """Return those of the data files that the head of the branch lists."""

    def misfit(self, schema: Schema, spec: PartitionSpec) -> str | None:
        """Return why files of this schema and spec could not be read in this state, None if they can."""

    def lost_inputs(self, base: Head, inputs: Collection[FileFact], beside_new: Collection[str]) -> dict[str, str]:
        """Return the input files, by path, that must not be replaced any more, with the reason.

        Args:
            base: The head that they were planned on.
            inputs: Files that the planning base listed.
            beside_new: Paths of those whose rows go into files that deletes by equality of before do not reach.
        """

    def later_than(self, before: Loaded) -> bool:
        """Return True if something that a commit on `before` asserts has certainly changed since."""

    def staged(self, updates: Iterable[TableUpdate], *requirements: TableRequirement) -> Staged:
        """Return updates of metadata that add no snapshot; the catalog refuses them for another table."""


class Committer(Protocol):
    """A table of a catalog, to be committed to."""

    def load(self) -> Loaded:
        """Return the table as it is now; raises TableNotFound if it is gone."""

    def state_of(self, table: Table) -> Loaded:
        """Return a table that was loaded before as a state to commit on."""

    def stage(self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False) -> Staged:
        """Write the metadata files of a request, none in a dry run; on failure they are removed again."""

    def commit(self, loaded: Loaded, staged: Staged) -> None:
        """Ask the catalog once. Raises CommitLost or CommitRefused; every other error means: nobody knows."""

    def discard(self, staged: Staged) -> None:
        """Remove the metadata files of an attempt that certainly did not become visible."""


def snapshot_ids(done: Sequence[StepDone]) -> tuple[int, ...]:
    """Return the ids of the snapshots that steps have added."""
    return tuple(each.snapshot_id for each in done if each.snapshot_id is not None)
