"""Manifests whose entries, or whose facts in the manifest list, are wrong: written again."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, TypeAlias

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import FileMetrics
from icesize.planning.files import PartitionKey
from icesize.table.catalog.locations import normalised
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder, Split
from icesize.table.manifests.entries import Entry, with_other_value
from icesize.table.manifests.listing import path_numbers, repeated_numbers
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
        gone: Normalised paths of data files that are not in storage. Their entries go, and delete files that apply to
            nothing after that.
        corrections: The true facts of files, by normalised path.
        once: List each file, and each manifest, once. Of several entries of a file, the oldest one stays: deletes that
            were to apply to its rows still do.
    """

    kind = CommitKind.REPAIR
    manifests: Collection[str] = frozenset()
    gone: Collection[str] = frozenset()
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    once: bool = False

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        """Write the manifests that are concerned in this state; None if there are none, and the totals are right."""
        split, kept = Split(), _oldest(builder) if self.once else {}
        lost, dropped_rows = set[PartitionKey](), False
        for manifest in self._touched(builder, kept):
            split.touched.add(manifest.manifest_path)
            part = split.parts[manifest.partition_spec_id, manifest.content]
            for number, entry in enumerate(builder.entries(manifest)):
                path, is_data = normalised(entry.path), manifest.content == ManifestContent.DATA
                if is_data and path in self.gone:
                    part.deleted.append(entry)
                    lost.add(PartitionKey.of(manifest.partition_spec_id, entry.values))
                elif kept.get(_id(entry), here := (manifest.manifest_path, number)) == here:
                    correction = self.corrections.get(path)
                    part.existing.append(corrected(entry, correction) if correction else entry)
                else:
                    dropped_rows = dropped_rows or is_data
        dropped_rows = dropped_rows or any(times > 1 for times in self._times(builder).values())
        if not split.touched and not builder.has_wrong_totals():
            return None
        if lost:
            builder.remove_dangling_deletes(split, lost, (), {})
        operation = Operation.DELETE if lost or dropped_rows else Operation.REPLACE
        return builder.exchange(operation, split, (), summary, recount=True)

    def _times(self, builder: SnapshotBuilder) -> Counter[str]:
        """Return how often the snapshot names each manifest, if that is to be repaired."""
        return Counter(each.manifest_path for each in builder.manifests) if self.once else Counter()

    def _touched(self, builder: SnapshotBuilder, kept: Mapping[_Id, _Place]) -> Iterator[ManifestFile]:
        """Yield each manifest that is to be written again, once."""
        paths = [*self.gone, *self.corrections, *(path for path, _ in kept)]
        numbers, times = path_numbers(paths), self._times(builder)
        for path, manifest in {each.manifest_path: each for each in builder.manifests}.items():
            is_named = path in self.manifests or times[path] > 1
            if is_named or (paths and builder.listing(manifest).lists(numbers)):
                yield manifest


_Id: TypeAlias = "tuple[str, int | None]"
"""Normalised path of a file, and the place of a deletion vector in it."""
_Place: TypeAlias = "tuple[str, int]"
"""Path of a manifest, and the number of one of its live entries."""


def _id(entry: Entry) -> _Id:
    return normalised(entry.path), entry.content_offset


def _oldest(builder: SnapshotBuilder) -> dict[_Id, _Place]:
    """Return the place of the oldest entry of each file that is listed more than once.

    Files whose entries have different values of one partition spec are left out: one of them is wrong.
    """
    places = defaultdict[_Id, list[tuple[tuple[int, int], _Place, _Partition]]](list)
    manifests = {each.manifest_path: each for each in builder.manifests}
    again = repeated_numbers(builder.listing(each) for each in manifests.values())
    for path, manifest in manifests.items() if again.size else ():
        if builder.listing(manifest).lists(again):
            for number, entry in enumerate(builder.entries(manifest)):
                age = (entry.sequence_number or 0, entry.file_sequence_number or 0)
                places[_id(entry)].append((age, (path, number), (manifest.partition_spec_id, entry.values)))
    several = {file: found for file, found in places.items() if len(found) > 1}
    partitions = {file: {partition for _, _, partition in found} for file, found in several.items()}
    return {
        file: min(found, key=itemgetter(0, 1))[1]
        for file, found in several.items()
        if len(partitions[file]) == len({spec_id for spec_id, _ in partitions[file]})
    }


_Partition: TypeAlias = "tuple[int, tuple[Any, ...]]"


def corrected(entry: Entry, correction: Correction) -> Entry:
    """Return an entry with the true facts of its file; all of its other bytes are copied."""
    values: dict[int, Any] = {_ROWS: correction.metrics.rows, _SIZE: correction.size_bytes}
    values |= {field_id: getattr(correction.metrics, name) or None for field_id, name in _MAPS.items()}
    data, known = entry.data, {each["field-id"]: each["type"] for each in entry.schema.avro["fields"]}
    for field_id, value in values.items():
        if field_id in known:
            data = with_other_value(entry.schema, field_id, known[field_id])(data, value)
    return replace(entry, rows=correction.metrics.rows, size_bytes=correction.size_bytes, data=data)
