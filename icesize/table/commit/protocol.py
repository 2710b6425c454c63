"""Interfaces between steps, a commit and a catalog.

A step is validated on a loaded state of the table and staged on it. The catalog then receives everything staged.

A request is an ordered tuple of steps, one snapshot each, which become visible together. PyIceberg's values (metadata,
snapshots, updates) are the language of this package: `Loaded` and `Staged` hold them, and steps write with
`SnapshotBuilder`. Only a `Committer` talks to the catalog. Jobs name no implementation of it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import IcesizeError
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.files import Head, PartitionKey
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.summary import CommitKind

OUTDATED = "schema or partition spec changed while the merge ran"
UPGRADED = "the table was upgraded to format v3 while the merge ran"
"""The rows of the input files have ids now, which the merged files lack."""


class ConcurrentChange(IcesizeError):
    """New files do not fit the table's current state, or files that an overwrite was to remove have changed.

    Nothing of the request is visible, and all files written for it are removed. Plan on the new state and write again.
    `partitions` are those in which other writers committed first. It is empty if the history is no longer known. Only
    icesize's commits handle this error.
    """

    def __init__(self, reason: str, partitions: tuple[PartitionKey, ...] = ()) -> None:
        super().__init__(reason, partitions=partitions)
        self.partitions = partitions


class CommitLost(Exception):
    """The catalog reported a conflict with another commit. The retry checks it first, because a 409 may come late."""


class CatalogBusy(CommitLost):
    """The catalog requests a later retry: a definite rejection that no other commit explains."""


class CommitRefused(Exception):
    """The catalog rejects this commit permanently, and nothing of it is visible. The text is a sentence for users."""


@dataclass(frozen=True)
class Base:
    """The state that a request was planned on: a head, and the schema, spec and format of the files written for it."""

    head: Head = field(default_factory=Head)
    schema: Schema = field(default_factory=Schema)
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC
    format_version: int = 2

    def outdated(self, state: Loaded) -> str | None:
        """Return the reason that files with rows of older ones cannot be committed on this state; None if they can."""
        if self.format_version < FIRST_WITH_LINEAGE <= state.format_version:
            return UPGRADED
        return OUTDATED if (state.schema_id, state.spec_id) != (self.schema.schema_id, self.spec.spec_id) else None

    def check_fit(self, state: Loaded) -> None:
        """Raise `ConcurrentChange` unless new files can be read in this state."""
        if (why := state.misfit(self.schema, self.spec)) is not None:
            raise ConcurrentChange(why)


@dataclass(frozen=True)
class Kept:
    """The part of a step that can be committed on a state; None if nothing can.

    `conflicts` are sentences about omitted parts. `contested` are the partitions in which other writers caused them.
    """

    step: Step | None
    conflicts: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()


class Step(Protocol):
    """One kind of change, a frozen value. The data and delete files at `paths` become visible with it.

    The summary of its snapshot records its `kind`; a batch is an `APPEND` of a stream, a clustering a `MERGE`.
    A request is never committed without its `essential` steps. Other steps are dropped if they delay the commit. `ref`
    is the branch that the step changes, None for the branch that the commit goes to.
    """

    kind: ClassVar[CommitKind]
    essential: ClassVar[bool] = True
    ref: ClassVar[str | None] = None

    @property
    def paths(self) -> Collection[str]:
        """Paths of its `files`, if it has any."""
        return {file.path for file in getattr(self, "files", ())}

    @property
    def possible(self) -> Collection[str]:
        """Paths of all files that may become visible with it, on any state."""
        return self.paths

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        """Compare the step with a state that it is tried on.

        Args:
            state: The table's current state.
            base: The state that the step was planned on.
            earlier: The earlier steps of the same request, as they can be committed on the state.

        Raises:
            ConcurrentChange: An essential step does not fit the state.
        """
        return Kept(self)

    def adapt(self, state: Loaded) -> Step:
        """Return the valid step with its files for a state; write those that are missing, which are not visible.

        The lock of the commit is held during that. Files that fit are used again, so that an attempt after a conflict
        writes only what the other commit makes necessary.
        """
        return self

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """Write manifests of the next snapshot; None if there is nothing to do in this state."""

    def summarize(self, base: Base) -> Mapping[str, str]:
        """Return the step's own entries of the snapshot summary, without counts of files and rows."""
        return {}

    def dropped(self, why: str) -> str:
        """Return a sentence for an omitted step."""
        return f"{type(self).__name__} dropped: {why}"

    def visible(self, live: Collection[str]) -> Step | None:
        """Return the part of the step whose files are live. The retry uses it if no snapshot of the request remains."""
        return self


@dataclass(frozen=True)
class StepDone:
    """A step with the snapshot that it made, None if the snapshot is no longer known.

    `facts` are the snapshot's summary. `metadata_bytes` are the bytes of its manifest list and its new manifests, 0 if
    they are not known.
    """

    step: Step
    snapshot_id: int | None = None
    operation: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    metadata_bytes: int = 0
    sequence_number: int = 0


@dataclass(frozen=True)
class CommitRequest:
    """All changes of one commit to a branch, in the order of its steps.

    `run_id` identifies the request through all its attempts. `ledger` is the entry of a stream's batch. `summary` goes
    into every snapshot. `again` is advice for the user if the outcome stays unknown.
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
        return {path for step in self.steps for path in step.possible}


class Committer(Protocol):
    """A table of a catalog that accepts commits."""

    @property
    def name(self) -> str:
        """`catalog.namespace.table`."""

    def load(self) -> Loaded:
        """Return the table's current state. Raises TableNotFound if the table is gone."""

    def stage(
        self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False
    ) -> tuple[Staged, tuple[StepDone, ...]]:
        """Write the metadata files of a request; none in a dry run. A failure removes them again.

        Returns the staged attempt, and the steps that are done once it is visible.
        """

    def commit(self, loaded: Loaded, staged: Staged) -> None:
        """Send one commit request to the catalog.

        Raises CommitLost or CommitRefused. After any other error the outcome is unknown.
        """

    def discard(self, staged: Staged) -> None:
        """Remove the metadata files of an attempt that certainly failed."""
