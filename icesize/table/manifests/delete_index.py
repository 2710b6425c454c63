"""The delete files of a snapshot, by the partitions whose data files they may apply to."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform

from icesize.planning.deletes.delete_reach import PartitionDeletes
from icesize.planning.files import DeleteFile, FileFact, PartitionKey, SkipReason
from icesize.table.manifests.store import ManifestStore

_DELETE_BYTES = 500
"""Memory of a delete file as a value, about."""


def read_deletes(store: ManifestStore, io: FileIO, manifest: ManifestFile) -> tuple[DeleteFile, ...]:
    """Return the live delete files of a delete manifest."""

    def make() -> tuple[tuple[DeleteFile, ...], int]:
        deletes = tuple(store.facts(io, manifest).deletes())
        return deletes, len(deletes) * _DELETE_BYTES

    return store.get(manifest.manifest_path, "deletes", make, manifest.sequence_number)


def delete_index(
    store: ManifestStore, io: FileIO, manifests: Sequence[ManifestFile], specs: Mapping[int, PartitionSpec]
) -> DeleteIndex:
    """Return the index of all delete manifests of a snapshot; the store keeps it until the manifests change."""
    paths = (manifest.manifest_path for manifest in manifests)
    return store.together(paths, "delete index", lambda: (DeleteIndex.of(store, io, manifests, specs), 0))


@dataclass(frozen=True)
class DeleteIndex:
    """Delete files by partition, and the equality deletes of unpartitioned specs, which apply `everywhere`."""

    by_partition: Mapping[PartitionKey, list[DeleteFile]] = field(default_factory=dict)
    everywhere: list[DeleteFile] = field(default_factory=list)
    _ready: dict[PartitionKey, PartitionDeletes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        store: ManifestStore,
        io: FileIO,
        manifests: Iterable[ManifestFile],
        specs: Mapping[int, PartitionSpec],
        above: int = -1,
    ) -> DeleteIndex:
        """Return the index of live delete files whose sequence number is greater than `above`.

        `specs` are the partition specs of the table by id.
        """
        by_partition: defaultdict[PartitionKey, list[DeleteFile]] = defaultdict(list)
        everywhere: list[DeleteFile] = []
        for manifest in manifests:
            if manifest.sequence_number <= above:
                continue
            is_global = is_unpartitioned(specs[manifest.partition_spec_id])
            for delete in read_deletes(store, io, manifest):
                if delete.sequence_number > above:
                    of_all = is_global and delete.equality_ids
                    (everywhere if of_all else by_partition[delete.partition]).append(delete)
        return cls(dict(by_partition), everywhere)

    def __bool__(self) -> bool:
        """Return True if there is a delete file."""
        return bool(self.by_partition or self.everywhere)

    def concerns(self, partition: PartitionKey) -> bool:
        """Return True if a delete of this index could apply to files of the partition."""
        return bool(self.everywhere) or partition in self.by_partition

    def of_partition(self, partition: PartitionKey) -> PartitionDeletes:
        """Return the delete files that could apply to files of the partition."""
        if partition not in self._ready:
            self._ready[partition] = PartitionDeletes([*self.by_partition.get(partition, ()), *self.everywhere])
        return self._ready[partition]

    def noted(self, file: FileFact) -> FileFact:
        """Return the file with its deletes, or the given object if no delete file applies to it.

        Deletes that icesize cannot read are an obstacle.
        """
        if not self.concerns(file.partition):
            return file
        deletes = self.of_partition(file.partition)
        hits = deletes.hitting(file)
        if not hits.delete_files:
            return file
        obstacle = file.obstacle if deletes.are_readable(file) else SkipReason.HAS_DELETES
        return replace(file, deletes=deletes.files, obstacle=obstacle, **hits._asdict())


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Return True if all files of the spec are in one partition; format v1 keeps dropped fields as void ones."""
    return all(isinstance(each.transform, VoidTransform) for each in spec.fields)
