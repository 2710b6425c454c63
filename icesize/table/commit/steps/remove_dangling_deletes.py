"""Removal of delete files that apply to no data file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.planning.deletes.delete_reach import only_path
from icesize.planning.files import DeleteFile
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder, Split
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class RemoveDanglingDeletes(Step):
    """Remove delete files that apply to nothing in the state that the step is tried on. Data files stay unchanged.

    `named` returns the data files of position delete files that may name several. A delete file missing from its result
    stays.
    """

    kind = CommitKind.DELETES
    named: Callable[[Sequence[DeleteFile]], Mapping[str, frozenset[str]]]

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        split, index = Split(), builder.delete_index()
        files = (delete for deletes in index.by_partition.values() for delete in deletes)
        several = [delete for delete in files if not delete.equality_ids and only_path(delete) is None]
        builder.remove_dangling_deletes(split, index.by_partition, (), self.named(several))
        return builder.exchange(Operation.REPLACE, split, (), summary) if split.touched else None
