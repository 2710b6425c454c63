"""What a commit is asked for, what it says afterwards, and how a catalog is talked to: the vocabulary of commit.py."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact, PartitionKey
from icesize.table.ledger import LedgerEntry

RUN_ID = "icesize.run-id"
"""Snapshot summary key that identifies one commit request through all its attempts."""


class SwapLost(Exception):
    """Another commit came first, or the catalog asks to come again later; nothing of ours landed."""


class SwapRefused(Exception):
    """The catalog will never accept this commit; nothing of ours landed. The text is a sentence for the user."""


@dataclass(frozen=True)
class MergedGroup:
    """Files that take the place of others: `outputs` hold exactly the live rows of `victims`."""

    victims: tuple[FileFact, ...]
    outputs: tuple[WrittenFile, ...]


@dataclass(frozen=True)
class CommitRequest:
    """Everything one commit wants to change.

    `base_snapshot_id` and `base_sequence_number` are those of the snapshot that was planned on (None and 0 for an
    empty table). `schema_id` and `spec_id` are the ones files were written under. `summary` goes into the snapshots.
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
    def lost_victims(self, request: CommitRequest) -> dict[str, str]: ...


class Staged(Protocol):
    """Snapshots that are written but not visible."""

    @property
    def snapshots(self) -> list[tuple[int, str]]: ...


class Committer(Protocol):
    """How one kind of catalog is talked to. `swap` raises SwapLost, SwapRefused, or anything else when it is unknown."""

    def load(self) -> Loaded: ...
    def stage(self, loaded: Loaded, request: CommitRequest) -> Staged: ...
    def swap(self, loaded: Loaded, staged: Staged) -> None: ...
    def discard(self, staged: Staged) -> None: ...
    def delete_data_files(self, paths: Iterable[str]) -> None: ...
