"""Builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but not visible.

An APPEND adds one manifest of new files. A REPLACE on top of it writes the survivors of *all* manifests that it touches
together with the merged files, so that their number stays small whatever the number of commits; PyIceberg's producer
keeps one manifest per touched manifest, and each commit then touches more of them.
"""

from __future__ import annotations

import uuid
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact
from icesize.table.manifests import Entry, read_entries, write_list, write_manifests

_MERGE_ENABLED = ("commit.manifest-merge.enabled", "true")
_MIN_TO_MERGE = ("commit.manifest.min-count-to-merge", "100")
_TARGET_BYTES = ("commit.manifest.target-size-bytes", str(8 * 2**20))


class SnapshotBuilder:
    """Snapshots staged one on top of another, from the loaded table on. `written` lists every file it made."""

    def __init__(self, table: Table, now_ms: int) -> None:
        self._metadata = table.metadata
        self._io = table.io
        self._locations = load_location_provider(table.metadata.location, table.metadata.properties)
        self._commit = uuid.uuid4()
        self._parent = table.metadata.current_snapshot()
        self._manifests = self._parent.manifests(table.io) if self._parent else []
        self._numbered = table.metadata.format_version > 1
        self._sequence_number = getattr(table.metadata, "last_sequence_number", 0) if self._numbered else 0
        # readers refuse metadata whose last update lies before its own history, so a clock that went back must not show
        self._now_ms = max(now_ms, table.metadata.last_updated_ms)
        self.written: list[str] = []

    def append(self, files: Sequence[WrittenFile], summary: Mapping[str, str]) -> Snapshot:
        """New rows: one manifest per partition spec, the others stay (or are folded when there are too many)."""
        snapshot_id = self._metadata.new_snapshot_id()
        new = self._write_added(snapshot_id, files)
        manifests = [*new, *self._folded(snapshot_id, self._manifests)]
        facts = _Totals(added=files).facts()
        return self._finish(snapshot_id, Operation.APPEND, manifests, {**facts, **summary})

    def replace(
        self, victims: Sequence[FileFact], outputs: Sequence[WrittenFile], summary: Mapping[str, str]
    ) -> Snapshot:
        """The same rows in other files. Every victim must be live; raises LookupError naming one that is not."""
        snapshot_id = self._metadata.new_snapshot_id()
        touched, survivors, deleted = self._split([v.path for v in victims])
        by_spec: dict[int, list[WrittenFile]] = defaultdict(list)
        for file in outputs:
            by_spec[file.partition.spec_id].append(file)
        new: list[ManifestFile] = []
        for spec_id in sorted({*by_spec, *survivors, *deleted}):
            new += self._write(
                snapshot_id, spec_id, by_spec.get(spec_id, []), survivors.get(spec_id, []), deleted.get(spec_id, [])
            )
        manifests = [*new, *(m for m in self._manifests if m.manifest_path not in touched)]
        facts = _Totals(added=outputs, removed=victims).facts()
        return self._finish(snapshot_id, Operation.REPLACE, manifests, {**facts, **summary})

    def _split(self, wanted: Sequence[str]) -> tuple[set[str], dict[int, list[Entry]], dict[int, list[Entry]]]:
        """Manifests that hold a wanted path, and by spec their entries: those that survive and those that go.

        A table may list one file twice, and its rows then count twice: as many entries go as are wanted.
        """
        touched: set[str] = set()
        survivors: dict[int, list[Entry]] = defaultdict(list)
        deleted: dict[int, list[Entry]] = defaultdict(list)
        missing = Counter(wanted)
        for manifest in self._manifests:
            if not missing or manifest.content != ManifestContent.DATA:
                continue
            entries = list(read_entries(self._io, manifest))
            if not any(e.path in missing for e in entries):
                continue
            touched.add(manifest.manifest_path)
            for entry in entries:
                goes = missing[entry.path] > 0
                (deleted if goes else survivors)[manifest.partition_spec_id].append(entry)
                if goes:
                    missing[entry.path] -= 1
            missing = +missing
        if missing:
            raise LookupError(f"Cannot replace {min(missing)}: no manifest of the current snapshot lists it")
        return touched, survivors, deleted

    def _folded(self, snapshot_id: int, manifests: list[ManifestFile]) -> list[ManifestFile]:
        """Small data manifests written together when there are too many; Iceberg's merge-append does the same."""
        target = int(self._property(_TARGET_BYTES))
        small = [m for m in manifests if m.content == ManifestContent.DATA and m.manifest_length < target // 2]
        enabled = self._property(_MERGE_ENABLED).lower() == "true"
        if not enabled or len(small) < max(2, int(self._property(_MIN_TO_MERGE))):
            return manifests
        by_spec: dict[int, list[Entry]] = defaultdict(list)
        for manifest in small:
            by_spec[manifest.partition_spec_id] += read_entries(self._io, manifest)
        folded = [m for spec, entries in by_spec.items() for m in self._write(snapshot_id, spec, [], entries, [])]
        paths = {m.manifest_path for m in small}
        return [*folded, *(m for m in manifests if m.manifest_path not in paths)]

    def _write_added(self, snapshot_id: int, files: Iterable[WrittenFile]) -> list[ManifestFile]:
        by_spec: dict[int, list[WrittenFile]] = defaultdict(list)
        for file in files:
            by_spec[file.partition.spec_id].append(file)
        return [m for spec, added in by_spec.items() for m in self._write(snapshot_id, spec, added, [], [])]

    def _write(
        self, snapshot_id: int, spec_id: int, added: list[WrittenFile], existing: list[Entry], deleted: list[Entry]
    ) -> list[ManifestFile]:
        return write_manifests(
            self._io, self._metadata, snapshot_id=snapshot_id, spec_id=spec_id, new_path=self._new_path,
            added=added, existing=existing, deleted=deleted,
        )  # fmt: skip

    def _new_path(self) -> str:
        path = self._locations.new_metadata_location(f"{self._commit}-m{len(self.written)}.avro")
        self.written.append(path)
        return path

    def _finish(
        self, snapshot_id: int, operation: Operation, manifests: list[ManifestFile], summary: dict[str, str]
    ) -> Snapshot:
        """Write the manifest list and make the snapshot the parent of the next one."""
        parent = self._parent
        self._sequence_number += 1 if self._numbered else 0
        location = self._locations.new_metadata_location(f"snap-{snapshot_id}-0-{self._commit}.avro")
        self.written.append(location)
        parent_id = parent.snapshot_id if parent else None
        listed = write_list(
            self._metadata, self._io, location, snapshot_id, parent_id, self._sequence_number, manifests
        )
        self._now_ms = max(self._now_ms, parent.timestamp_ms + 1 if parent else 0)
        self._parent = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            sequence_number=self._sequence_number if self._numbered else None,
            timestamp_ms=self._now_ms,
            manifest_list=location,
            summary=_summary(operation, summary, parent),
            schema_id=self._metadata.current_schema_id,
        )
        self._manifests = listed
        return self._parent

    def _property(self, key_and_default: tuple[str, str]) -> str:
        key, default = key_and_default
        return self._metadata.properties.get(key, default)


class _Totals:
    """Counts of a snapshot summary, under Iceberg's names."""

    def __init__(self, added: Sequence[WrittenFile], removed: Sequence[FileFact] = ()) -> None:
        self._added = added
        self._removed = removed

    def facts(self) -> dict[str, str]:
        added, removed = self._added, self._removed
        counts = {
            "added-data-files": len(added),
            "added-records": sum(f.rows for f in added),
            "added-files-size": sum(f.size_bytes for f in added),
            "deleted-data-files": len(removed),
            "deleted-records": sum(f.rows for f in removed),
            "removed-files-size": sum(f.size_bytes for f in removed),
            "changed-partition-count": len({f.partition for f in added} | {f.partition for f in removed}),
        }
        return {k: str(v) for k, v in counts.items() if v}


def _summary(operation: Operation, facts: Mapping[str, str], parent: Snapshot | None) -> Summary:
    """With running totals; PyIceberg's helper knows no REPLACE, whose totals are those of an overwrite."""
    helper = Operation.APPEND if operation == Operation.APPEND else Operation.OVERWRITE
    totals = update_snapshot_summaries(
        Summary(helper, **dict(facts)), parent.summary.additional_properties if parent and parent.summary else None
    )
    return Summary(operation, **totals.additional_properties)
