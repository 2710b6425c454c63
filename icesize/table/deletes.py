"""Which data files have deletes pending: position deletes, equality deletes and deletion vectors of a snapshot."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.manifest import DataFileContent, ManifestFile

from icesize.planning.layout import FileFact, PartitionKey
from icesize.table.manifests import Entry, read_entries


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
            for entry in read_entries(io, manifest, with_data=False):
                if (entry.sequence_number or 0) <= above:
                    continue
                by_partition[PartitionKey(manifest.partition_spec_id, entry.values)].append(entry)
                if entry.content == DataFileContent.EQUALITY_DELETES and not entry.values:
                    everywhere.append(entry)
        return cls(dict(by_partition), everywhere)

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
    if delete.referenced_path is not None:
        return delete.referenced_path == file.path
    lowest, highest, path = delete.lowest_path, delete.highest_path, file.path
    # bounds may be truncated: compare only as many characters as they have
    return (lowest is None or path[: len(lowest)] >= lowest) and (highest is None or path[: len(highest)] <= highest)
