"""The protocol of a step, and values that all of them share.

A request is an ordered tuple of steps, one snapshot each, which become visible together. Each attempt to commit
*validates* every step on the state that it is tried on, *stages* what is kept of it, and takes what the step has to say
of itself into the snapshot's summary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Protocol

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import IcesizeError
from icesize.planning.files import Head, PartitionKey
from icesize.table.commit.protocol import Loaded

if TYPE_CHECKING:
    from icesize.table.commit.snapshot_builder import SnapshotBuilder

BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Reason to drop a step if nobody can tell any more what happened to its input files: sequence numbers order what came
after a snapshot only among its descendants."""

OUTDATED = "schema or partition spec changed while the merge ran"


class Overtaken(IcesizeError):
    """New files do not fit the table as it is now, or files that an overwrite was to remove are not what they were.

    Nothing of the request is visible and everything that was written is removed: plan on the new state and write again.
    `partitions` are those in which other writers came first, none where only nobody can tell any more. Only commits of
    ours see it.
    """

    def __init__(self, reason: str, partitions: tuple[PartitionKey, ...] = ()) -> None:
        super().__init__(reason, partitions=partitions)
        self.partitions = partitions


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
        """Raise `Overtaken` unless new files can be read in this state."""
        if (why := state.misfit(self.schema, self.spec)) is not None:
            raise Overtaken(why)


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
        return ()

    def validate(self, state: Loaded, base: Base, earlier: Collection[str]) -> Kept:
        """Compare the step with a state that it is tried on, and write nothing.

        Args:
            state: The table now.
            base: What the step was planned on.
            earlier: Paths of files that steps before it in the same request add.

        Raises:
            Overtaken: An essential step does not fit the state.
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
