"""Data files that are to be committed, and what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema

from icesize.errors import IcesizeError
from icesize.parquet.files.data_file import Merged, NewDataFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.commit.ledger import LedgerEntry

BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Why merges are dropped when nobody can tell any more what happened to their input files: sequence numbers order what
came after a snapshot only among its descendants."""


class Overtaken(IcesizeError):
    """New files do not fit the table as it is now, or files that an overwrite was to remove are not what they were.

    Nothing landed and everything that was written is removed: plan on the new state and write again. `partitions` are
    those in which other writers came first, none where only nobody can tell any more. Only commits of ours see it.
    """

    def __init__(self, reason: str, partitions: tuple[PartitionKey, ...] = ()) -> None:
        super().__init__(reason, partitions=partitions)
        self.partitions = partitions


@dataclass(frozen=True)
class CommitRequest:
    """Everything one commit wants to change.

    `base_snapshot_id` and `base_sequence_number` are those of the snapshot that was planned on (None and 0 for an
    empty table). `schema` and `spec` are those that files were written under.
    `summary` goes into the snapshots.

    Input files of `merged` may be among `appended`. `absorbed` are live files whose rows the `appended` ones hold as
    well: both are one OVERWRITE then, and a lost one of them fails the request (Overtaken), as no other rows replace
    them.
    """

    table_uuid: str
    base_snapshot_id: int | None
    base_sequence_number: int
    run_id: str
    appended: tuple[NewDataFile, ...] = ()
    merged: tuple[Merged, ...] = ()
    ledger: LedgerEntry | None = None
    accept_new_checkpoint: bool = False
    summary: Mapping[str, str] = field(default_factory=dict)
    absorbed: tuple[FileFact, ...] = ()
    schema: Schema = field(default_factory=Schema)
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC

    def paths(self) -> set[str]:
        """Every data file this request would make visible."""
        return {f.path for f in self.appended} | {f.path for g in self.merged for f in g.files}


@dataclass(frozen=True)
class CommitOutcome:
    """What became visible. `merged` are the groups that landed; `already_committed`: the batch was there before.

    `contested` are partitions in which other writers took or deleted what we wanted to merge.
    """

    snapshot_ids: tuple[int, ...] = ()
    operations: tuple[str, ...] = ()
    merged: tuple[Merged, ...] = ()
    conflicts: tuple[str, ...] = ()
    contested: tuple[PartitionKey, ...] = ()
    already_committed: bool = False
