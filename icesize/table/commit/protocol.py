"""How steps, a commit and a catalog talk to each other: a step is validated on a loaded state of the table and staged
on it, and the catalog is asked for all that was staged.

A request is an ordered tuple of steps, one snapshot each, which become visible together. A format version or a library
that is added later implements `Committer`; jobs and steps know only this and `Loaded`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import IcesizeError
from icesize.planning.files import Head, PartitionKey
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.records.ledger import LedgerEntry

OUTDATED = "schema or partition spec changed while the merge ran"


class ConcurrentChange(IcesizeError):
    """New files do not fit the table as it is now, or files that an overwrite was to remove are not what they were.

    Nothing of the request is visible and everything that was written is removed: plan on the new state and write again.
    `partitions` are those in which other writers came first, none where only nobody can tell any more. Only commits of
    ours see it.
    """

    def __init__(self, reason: str, partitions: tuple[PartitionKey, ...] = ()) -> None:
        super().__init__(reason, partitions=partitions)
        self.partitions = partitions


class CommitLost(Exception):
    """The catalog says that another commit came first. It is looked up before it is believed: 409 may come late."""


class CatalogBusy(CommitLost):
    """The catalog asks to come again later: a definite no that nobody else's commit explains."""


class CommitRefused(Exception):
    """The catalog will never accept this commit, and nothing of it is visible. The text is a sentence for the user."""


@dataclass(frozen=True)
class Base:
    """The state that a request was planned on: a head, and the schema and spec that its files were written under."""

    head: Head = field(default_factory=Head)
    schema: Schema = field(default_factory=Schema)
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC

    def is_outdated(self, state: Loaded) -> bool:
        """Return True if files of today are written under another schema or spec."""
        return (state.schema_id, state.spec_id) != (self.schema.schema_id, self.spec.spec_id)

    def check_fit(self, state: Loaded) -> None:
        """Raise `ConcurrentChange` unless new files can be read in this state."""
        if (why := state.misfit(self.schema, self.spec)) is not None:
            raise ConcurrentChange(why)


@dataclass(frozen=True)
class Kept:
    """The part of a step that can be committed on a state, None for nothing.

    `conflicts` are sentences about what is left out, `contested` the partitions in which other writers caused that.
    """

    step: Step | None
    conflicts: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()


class Step(Protocol):
    """One kind of change, a frozen value. The data and delete files at `paths` become visible with it.

    A request is not committed without its `essential` steps; others are dropped if they cost it the race.
    """

    essential: ClassVar[bool] = True

    @property
    def paths(self) -> Collection[str]:
        """Paths of its `files`, if it has any."""
        return {file.path for file in getattr(self, "files", ())}

    def validate(self, state: Loaded, base: Base, earlier: Collection[str]) -> Kept:
        """Compare the step with a state that it is tried on, and write nothing.

        Args:
            state: The table now.
            base: What the step was planned on.
            earlier: Paths of files that steps before it in the same request add.

        Raises:
            ConcurrentChange: An essential step does not fit the state.
        """
        return Kept(self)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """Write manifests of the next snapshot; None if there is nothing to do in this state."""

    def summarize(self, base: Base) -> Mapping[str, str]:
        """Return what the snapshot's summary has of this step beside counts of files and rows."""
        return {}

    def dropped(self, why: str) -> str:
        """Return a sentence for a step that is left out."""
        return f"{type(self).__name__} dropped: {why}"

    def visible(self, live: Collection[str]) -> Step | None:
        """Return the part of which files are live; asked where no snapshot is left that says it."""
        return self


@dataclass(frozen=True)
class StepDone:
    """A step with the snapshot that it made, None if that is not known any more.

    `facts` are the snapshot's summary.
    """

    step: Step
    snapshot_id: int | None = None
    operation: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


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


class Committer(Protocol):
    """A table of a catalog, to be committed to."""

    def load(self) -> Loaded:
        """Return the table as it is now; raises TableNotFound if it is gone."""

    def state_of(self, table: Table) -> Loaded:
        """Return a table that was loaded before as a state to commit on."""

    def stage(
        self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False
    ) -> tuple[Staged, tuple[StepDone, ...]]:
        """Write the metadata files of a request, none in a dry run; on failure they are removed again.

        Returns the steps that are done once the attempt is visible, too.
        """

    def commit(self, loaded: Loaded, staged: Staged) -> None:
        """Ask the catalog once. Raises CommitLost or CommitRefused; every other error means: nobody knows."""

    def discard(self, staged: Staged) -> None:
        """Remove the metadata files of an attempt that certainly did not become visible."""
