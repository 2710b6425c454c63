"""Which data files have deletes pending: position deletes, equality deletes and deletion vectors of a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile

from icesize.planning.files import FileFact, PartitionKey
from icesize.table.manifests.entries import Entry, read_entries


@dataclass(frozen=True)
class DeleteIndex:
    """Delete files by partition, with those of an unpartitioned spec, whose equality deletes apply everywhere.

    A position delete applies to files of its partition whose data sequence number is not above its own, an equality
    delete to those strictly below (Iceberg spec, "Scan planning"). Path bounds of a position delete narrow it.
    """

    by_partition: dict[PartitionKey, list[Entry]] = field(default_factory=dict)
    everywhere: list[Entry] = field(default_factory=list)

    @classmethod
    def of(cls, io: FileIO, manifests: Iterable[ManifestFile], above: int = -1) -> DeleteIndex:
        """The live delete entries whose sequence number is greater than `above`."""
        by_partition: dict[PartitionKey, list[Entry]] = defaultdict(list)
        everywhere: list[Entry] = []
        for manifest in manifests:
            if manifest.sequence_number <= above:
                continue
            for entry in read_entries(io, manifest):
                if (entry.sequence_number or 0) <= above:
                    continue
                entry.data = b""  # nobody copies these, and they are kept
                by_partition[PartitionKey.of(manifest.partition_spec_id, entry.values)].append(entry)
                # also a partition without values: a spec whose fields were all dropped (void, format v1) is one
                if entry.content == DataFileContent.EQUALITY_DELETES and all(v is None for v in entry.values):
                    everywhere.append(entry)
        return cls(dict(by_partition), everywhere)

    def concerns(self, partition: PartitionKey) -> bool:
        """Whether any delete of this index could apply to files of the partition."""
        return bool(self.everywhere) or partition in self.by_partition

    def applies(self, file: FileFact) -> bool:
        """Whether some delete of this index hits rows of `file` (or may: bounds can only rule it out)."""
        candidates = [*self.by_partition.get(file.partition, ()), *self.everywhere]
        return any(_hits(delete, file) for delete in candidates)


def _hits(delete: Entry, file: FileFact) -> bool:
    number = delete.sequence_number or 0
    if delete.content == DataFileContent.EQUALITY_DELETES:
        return number > file.sequence_number
    if number < file.sequence_number:
        return False
    path = _plain(file.path)
    if delete.referenced_path is not None:
        return _plain(delete.referenced_path) == path
    if delete.lowest_path is None or delete.highest_path is None:
        return True
    lowest, highest = _plain(delete.lowest_path), _plain(delete.highest_path)
    if len(delete.lowest_path) - len(lowest) != len(delete.highest_path) - len(highest):
        return True  # paths of two spellings do not lie between these two
    # bounds may be truncated: compare only as many characters as they have
    return path[: len(lowest)] >= lowest and path[: len(highest)] <= highest


def _plain(path: str) -> str:
    """Local paths without their scheme: Java writes `file:/x` where Python writes `file:///x`."""
    return "/" + path.removeprefix("file:").lstrip("/") if path.startswith(("file:", "/")) else path
