"""The delete files of a snapshot, by the partitions whose data files they may hit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.transforms import VoidTransform

from icesize.planning.deletes import PartitionDeletes
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.table.manifests.entries import Entry, read_entries

Read = Callable[[FileIO, ManifestFile], Iterable[DeleteFile]]
"""Gives the live delete files of a delete manifest."""


def read_deletes(io: FileIO, manifest: ManifestFile) -> Iterator[DeleteFile]:
    """They as planning sees them."""
    return (delete_of(entry, manifest.partition_spec_id) for entry in read_entries(io, manifest))


class KnownDeletes:
    """Reads delete manifests again and again, each from storage once. Losing it costs time, never correctness. One
    thread at a time may use it.
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[DeleteFile, ...]] = {}
        self._index: tuple[frozenset[str], DeleteIndex] = frozenset(), DeleteIndex()

    def __call__(self, io: FileIO, manifest: ManifestFile) -> tuple[DeleteFile, ...]:
        path = manifest.manifest_path
        if path not in self._known:
            self._known[path] = tuple(read_deletes(io, manifest))
        return self._known[path]

    def index(self, io: FileIO, manifests: Sequence[ManifestFile], specs: Mapping[int, PartitionSpec]) -> DeleteIndex:
        """That of all delete manifests of a snapshot, made once as long as they are the same; others are forgotten."""
        paths = frozenset(manifest.manifest_path for manifest in manifests)
        if paths != self._index[0]:
            self._known = {path: known for path, known in self._known.items() if path in paths}
            self._index = paths, DeleteIndex.of(io, manifests, specs, read=self)
        return self._index[1]


@dataclass(frozen=True)
class DeleteIndex:
    """Delete files by partition, and the equality deletes of unpartitioned specs, which apply `everywhere`."""

    by_partition: Mapping[PartitionKey, list[DeleteFile]] = field(default_factory=dict)
    everywhere: list[DeleteFile] = field(default_factory=list)
    _ready: dict[PartitionKey, PartitionDeletes] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        io: FileIO,
        manifests: Iterable[ManifestFile],
        specs: Mapping[int, PartitionSpec],
        above: int = -1,
        read: Read = read_deletes,
    ) -> DeleteIndex:
        """The live delete files whose sequence number is greater than `above`; `specs` are those of the table."""
        by_partition: defaultdict[PartitionKey, list[DeleteFile]] = defaultdict(list)
        everywhere: list[DeleteFile] = []
        for manifest in manifests:
            if manifest.sequence_number <= above:
                continue
            is_global = is_unpartitioned(specs[manifest.partition_spec_id])
            for delete in read(io, manifest):
                if delete.sequence_number > above:
                    of_all = is_global and delete.equality_ids
                    (everywhere if of_all else by_partition[delete.partition]).append(delete)
        return cls(dict(by_partition), everywhere)

    def __bool__(self) -> bool:
        """Whether there is any delete file."""
        return bool(self.by_partition or self.everywhere)

    def concerns(self, partition: PartitionKey) -> bool:
        """Whether any delete of this index could apply to files of the partition."""
        return bool(self.everywhere) or partition in self.by_partition

    def of_partition(self, partition: PartitionKey) -> PartitionDeletes:
        """The delete files that could apply to files of the partition."""
        if partition not in self._ready:
            self._ready[partition] = PartitionDeletes([*self.by_partition.get(partition, ()), *self.everywhere])
        return self._ready[partition]

    def noted(self, file: FileFact) -> FileFact:
        """The file with what this index has of it; the given object where that is nothing."""
        if not self.concerns(file.partition):
            return file
        deletes = self.of_partition(file.partition)
        hits = deletes.hitting(file)
        return replace(file, deletes=deletes.files, **hits._asdict()) if hits.delete_files else file


def delete_of(entry: Entry, spec_id: int) -> DeleteFile:
    """An entry of a delete manifest as planning sees it."""
    return DeleteFile(
        entry.path, entry.size_bytes, entry.rows, PartitionKey.of(spec_id, entry.values), entry.sequence_number or 0,
        entry.file_format, entry.equality_ids, entry.referenced_path, entry.lowest_path, entry.highest_path,
    )  # fmt: skip


def is_unpartitioned(spec: PartitionSpec) -> bool:
    """Whether all its files are in one partition: format v1 keeps dropped fields, as void ones."""
    return all(isinstance(each.transform, VoidTransform) for each in spec.fields)
