"""What a commit is asked for, what it says afterwards, and how a catalog is talked to: the vocabulary of commit.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from icesize.errors import IcesizeError
from icesize.parquet.files.data_file import WrittenFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.ledger import LedgerEntry

RUN_ID = "icesize.run-id"
"""Snapshot summary key that identifies one commit request through all its attempts."""
LEDGER = "icesize.ledger"
"""Snapshot summary key: the ledger entry of the batch that was committed, for people and for `versions`."""
BASE_ID = "icesize.base-snapshot-id"
"""Snapshot summary key of a merge: the snapshot that was planned on; what came after it was not considered."""
BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Why merges are dropped when nobody can tell any more what happened to their input files: sequence numbers order what
came after a snapshot only among its descendants."""


class SwapLost(Exception):
    """The catalog says that another commit came first. It is looked up before it is believed: 409 may come late."""


class SwapBusy(SwapLost):
    """The catalog asks to come again later: a definite no that no rival's commit explains."""


class SwapRefused(Exception):
    """The catalog will never accept this commit; nothing of ours landed. The text is a sentence for the user."""


class Overtaken(IcesizeError):
    """New files do not fit the table as it is now, or files that an overwrite was to remove are not what they were.

    Nothing landed and everything that was written is removed: plan on the new state and write again. `partitions` are
    those in which other writers came first, none where only nobody can tell any more. Only commits of ours see it.
    """

    def __init__(self, reason: str, partitions: tuple[PartitionKey, ...] = ()) -> None:
        super().__init__(reason, partitions=partitions)
        self.partitions = partitions


@dataclass(frozen=True)
class MergedGroup:
    """Files that take the place of others: `outputs` hold exactly the live rows of `inputs`."""

    inputs: tuple[FileFact, ...]
    outputs: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class CommitRequest:
    """Everything one commit wants to change.

    `base_snapshot_id` and `base_sequence_number` are those of the snapshot that was planned on (None and 0 for an
    empty table). `schema` and `spec` are those that files were written under, `schema_id` and `spec_id` their ids.
    `summary` goes into the snapshots.

    Input files of `merged` may be among `appended`. `absorbed` are live files whose rows the `appended` ones hold as
    well: both are one OVERWRITE then, and a lost one of them fails the request (Overtaken), as no other rows replace
    them.
    """

    table_uuid: str
    base_snapshot_id: int | None
    base_sequence_number: int
    schema_id: int
    spec_id: int
    run_id: str
    appended: tuple[WrittenFile, ...] = ()
    merged: tuple[MergedGroup, ...] = ()
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False
    summary: Mapping[str, str] = field(default_factory=dict)
    absorbed: tuple[FileFact, ...] = ()
    schema: Schema = field(default_factory=Schema)
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC

    def paths(self) -> set[str]:
        """Every data file this request would make visible."""
        return {f.path for f in self.appended} | {f.path for g in self.merged for f in g.outputs}


@dataclass(frozen=True)
class CommitOutcome:
    """What became visible. `merged` are the groups that landed; `already_committed`: the batch was there before.

    `contested` are partitions in which other writers took or deleted what we wanted to merge.
    """

    snapshot_ids: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    merged: tuple[MergedGroup, ...] = ()
    conflicts: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()
    already_committed: bool = False


L = TypeVar("L", bound="Loaded")


class Loaded(Protocol):
    """A table as the catalog had it at one moment."""

    @property
    def uuid(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def schema_id(self) -> int: ...
    @property
    def spec_id(self) -> int: ...
    @property
    def head_id(self) -> int | None: ...
    @property
    def properties(self) -> Mapping[str, str]: ...
    def snapshots_of(self, run_id: str) -> list[tuple[int, str]]: ...
    def any_live(self, paths: Collection[str]) -> bool: ...
    def misfit(self, request: CommitRequest) -> str | None:
        """Why the appended files could not be read in this state of the table, None when they can."""

    def lost_inputs(self, request: CommitRequest) -> dict[str, str]: ...
    def later_than(self: L, before: L) -> bool:
        """Whether something that a swap on `before` asserts has certainly changed since; a stale answer is no proof."""


class Staged(Protocol):
    """Snapshots that are written but not visible."""

    @property
    def snapshots(self) -> list[tuple[int, str]]: ...


LoadedT = TypeVar("LoadedT", bound=Loaded)
StagedT = TypeVar("StagedT", bound=Staged)


class Committer(Protocol[LoadedT, StagedT]):
    """How one kind of catalog is talked to. `swap` raises SwapLost, SwapRefused, or anything else for unknown."""

    def load(self) -> LoadedT: ...
    def stage(self, loaded: LoadedT, request: CommitRequest) -> StagedT: ...
    def swap(self, loaded: LoadedT, staged: StagedT) -> None: ...
    def discard(self, staged: StagedT) -> None: ...
    def delete_data_files(self, paths: Iterable[str]) -> None: ...
