"""Manifests whose entries, or whose facts in the manifest list, are wrong: written again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import FileMetrics
from icesize.planning.files import PartitionKey
from icesize.storage.locations import normalised
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.remove_dangling_deletes import split_dangling
from icesize.table.manifests.entries import Entry, read_entries, with_other_value
from icesize.table.manifests.live_arrays import path_numbers
from icesize.table.manifests.packing import Split
from icesize.table.manifests.repeated_files import FileKey, Place, entry_kept, repeated_entries
from icesize.table.records.summary import CommitKind

_ROWS, _SIZE = 103, 104
_MAPS = {
    109: "value_counts", 110: "null_value_counts", 137: "nan_value_counts", 125: "lower_bounds", 128: "upper_bounds",
}  # fmt: skip
"""Field ids of the column metrics in an entry, and their names in `FileMetrics`."""


@dataclass(frozen=True)
class Correction:
    """The true size, number of rows and column metrics of a file, and the number of rows in its entry."""

    size_bytes: int
    metrics: FileMetrics
    listed_rows: int


@dataclass(frozen=True)
class Repair(Step):
    """Write manifests again, and the totals of the snapshot as its manifests have them.

    An entry that stays is written as EXISTING, with its numbers, its snapshot and its row ids. One that goes is DELETED
    only if nothing else lists its file: Iceberg's Java library deletes the path of a DELETED entry when the snapshot
    expires, without a look at other entries.

    Attributes:
        manifests: Paths of manifests whose facts in the manifest list are wrong.
        gone: Paths of data files that are not in storage, as the manifests have them. Their entries go, and delete
            files that apply to nothing after that.
        corrections: The true facts of files, by their paths.
        once: List each file, and each manifest, once, if it is certain which entry stays.
    """

    kind = CommitKind.REPAIR
    manifests: Collection[str] = frozenset()
    gone: Collection[str] = frozenset()
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    once: bool = False

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """Write the manifests that are concerned in this state; None if there are none, and the totals are right."""
        split, kept = Split(), self._kept(builder)
        lost, dropped_rows = set[PartitionKey](), False
        for manifest in self._touched(builder, kept):
            split.touched.add(manifest.manifest_path)
            part = split.parts[manifest.partition_spec_id, manifest.content]
            for number, entry in enumerate(read_entries(builder.io, manifest)):
                is_data = manifest.content == ManifestContent.DATA
                key, here = (normalised(entry.path), entry.content_offset), (manifest.manifest_path, number)
                if is_data and entry.path in self.gone:
                    part.deleted.append(entry)
                    lost.add(PartitionKey.of(manifest.partition_spec_id, entry.values))
                elif kept.get(key, here) == here:
                    correction = self.corrections.get(entry.path)
                    part.existing.append(corrected_entry(entry, correction) if correction else entry)
                else:
                    dropped_rows = dropped_rows or is_data
        dropped_rows = dropped_rows or any(times > 1 for times in self._times(builder).values())
        if not split.touched and not builder.has_wrong_totals():
            return None
        if lost:
            split_dangling(builder, split, lost, (), {})
        operation = Operation.DELETE if lost or dropped_rows else Operation.REPLACE
        return builder.exchange(operation, split, (), summary, recount=True)

    def _kept(self, builder: SnapshotBuilder) -> dict[FileKey, Place]:
        """Return the entry that stays of each file that is listed more than once, if that is certain."""
        listings = [builder.store.listing(builder.io, each) for each in builder.manifests] if self.once else ()
        kept = {key: entry_kept(entries) for key, entries in repeated_entries(listings).items()}
        return {key: place for key, place in kept.items() if not isinstance(place, str)}

    def _times(self, builder: SnapshotBuilder) -> Counter[str]:
        """Return how often the snapshot names each manifest, if that is to be repaired."""
        return Counter(each.manifest_path for each in builder.manifests) if self.once else Counter()

    def _touched(self, builder: SnapshotBuilder, kept: Mapping[FileKey, Place]) -> Iterator[ManifestFile]:
        """Yield each manifest that is to be written again, once."""
        paths = [*self.gone, *self.corrections, *(path for path, _ in kept)]
        numbers, times = path_numbers(paths), self._times(builder)
        for path, manifest in {each.manifest_path: each for each in builder.manifests}.items():
            is_named = path in self.manifests or times[path] > 1
            if is_named or (paths and builder.store.listing(builder.io, manifest).lists(numbers)):
                yield manifest


def corrected_entry(entry: Entry, correction: Correction) -> Entry:
    """Return an entry with the true facts of its file; all of its other bytes are copied."""
    values: dict[int, Any] = {_ROWS: correction.metrics.rows, _SIZE: correction.size_bytes}
    values |= {field_id: getattr(correction.metrics, name) or None for field_id, name in _MAPS.items()}
    data, known = entry.data, {each["field-id"]: each["type"] for each in entry.schema.avro["fields"]}
    for field_id, value in values.items():
        if field_id in known:
            data = with_other_value(entry.schema, field_id, known[field_id])(data, value)
    return replace(entry, rows=correction.metrics.rows, size_bytes=correction.size_bytes, data=data)
