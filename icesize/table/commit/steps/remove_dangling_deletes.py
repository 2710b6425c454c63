"""Removal of delete files that apply to no data file: in a step of its own, and beside data files that go."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.deletes.dangling_rule import DanglingCandidates
from icesize.planning.deletes.delete_reach import only_path
from icesize.planning.files import DeleteFile, PartitionKey
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.packing import Split
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
        split, index = Split(), _deletes_of(builder)
        files = (delete for deletes in index.by_partition.values() for delete in deletes)
        several = [delete for delete in files if not delete.equality_ids and only_path(delete) is None]
        split_dangling(builder, split, index.by_partition, (), self.named(several))
        return builder.exchange(Operation.REPLACE, split, (), summary) if split.touched else None


def split_dangling(
    builder: SnapshotBuilder,
    split: Split,
    partitions: Collection[PartitionKey],
    added: Sequence[NewDataFile],
    named: Mapping[str, frozenset[str]],
) -> None:
    """Let delete files go that apply to nothing after the split of data manifests, beside the added files.

    It considers delete files that may apply to files of the partitions. `named` is as in `DanglingCandidates.of`.
    """
    index, least = _deletes_of(builder), defaultdict[PartitionKey, int](lambda: sys.maxsize)
    for file in added:
        number = builder.next_number if file.sequence_number is None else file.sequence_number
        least[file.partition] = min(number, least[file.partition])
    if doubtful := DanglingCandidates.of(index.by_partition, index.everywhere, partitions, named, least):
        live = _left(builder, split, doubtful, least)
        if gone := doubtful.dangling(least, {*live, *(file.path for file in added)}):
            builder.split(sorted(gone, key=str), ManifestContent.DELETES, split)


def _deletes_of(builder: SnapshotBuilder) -> DeleteIndex:
    manifests = [m for m in builder.manifests if m.content == ManifestContent.DELETES]
    return delete_index(builder.store, builder.io, manifests, builder.metadata.specs())


def _left(
    builder: SnapshotBuilder, split: Split, doubtful: DanglingCandidates, least: defaultdict[PartitionKey, int]
) -> list[str]:
    """Return the paths of the remaining data files that candidates may name.

    Lower the `least` data sequence number of each partition to that of the remaining files that may need a candidate.
    """
    live = list[str]()
    for (spec_id, _), part in split.parts.items():
        for entry in part.existing:
            key = PartitionKey.of(spec_id, entry.values)
            least[key] = min(entry.sequence_number or 0, least[key])
            live.append(entry.path)
    others = [
        manifest
        for manifest in builder.manifests
        if manifest.content == ManifestContent.DATA
        and manifest.manifest_path not in split.touched
        and doubtful.may_depend_on(manifest.partition_spec_id, manifest.min_sequence_number or 0)
    ]
    for manifest in others:
        for key, number in builder.store.listing(builder.io, manifest).least_numbers():
            least[key] = min(number, least[key])
    return [*live, *builder.store.listed(builder.io, others, doubtful.asked)]
