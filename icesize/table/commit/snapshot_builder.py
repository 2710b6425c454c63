"""Builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but not visible.

An APPEND adds one manifest of new files. A REPLACE on top of it, or an OVERWRITE, merges the survivors of *all*
manifests that it touches with the files that it adds. The number of manifests therefore stays small after any number of
commits. PyIceberg's producer keeps one manifest per touched manifest, so each commit touches more of them.

`icesize.table.manifests.packing` divides the entries. The bytes of metadata of a commit therefore depend little on the
size of the table:

- It divides a manifest of 25,000 entries, as other writers make them, when it first removes a file from it.
- Its manifest lists have about 65 bytes for each manifest of the table.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertCurrentSchemaId,
    AssertDefaultSpecId,
    AssertRefSnapshotId,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
)

from icesize.concurrency import concurrently
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.files import MAIN, FileFact, FileId, PartitionKey
from icesize.planning.retention.ancestry import FOR_EVER_MS
from icesize.policy import DEFAULT_TARGET_BYTES, ICEBERG_TARGET, SMALL_FILE_RATIO, property_number
from icesize.storage.table_storage import Storage
from icesize.table.catalog.history import head_snapshot, summary_of
from icesize.table.manifests.delete_index import read_deletes
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.file_columns import COUNTS, EntryColumns, ManifestFacts, totals_of, with_file_counts
from icesize.table.manifests.manifest_lists import encoded_list, manifests_in
from icesize.table.manifests.packing import ManifestKind, Split, entries_by_partition, worth_folding
from icesize.table.manifests.store import ManifestStore
from icesize.table.manifests.writer import ManifestWriter, target_manifest_bytes
from icesize.table.records.summary import TOTALS, counts, with_totals

_MERGE_ENABLED = "commit.manifest-merge.enabled"
_MIN_TO_MERGE = ("commit.manifest.min-count-to-merge", 100)


class _SameHead(AssertRefSnapshotId):
    """The requirement of Iceberg. PyIceberg's own one refuses each branch but main of a table without snapshots."""

    def validate(self, base_metadata: TableMetadata | None) -> None:  # type: ignore[override]
        if self.snapshot_id is not None or base_metadata is None or base_metadata.snapshots:
            super().validate(base_metadata)


def same_head(metadata: TableMetadata, ref: str) -> TableRequirement:
    """Return the requirement that a branch has not moved, or still does not exist."""
    head = head_snapshot(metadata, ref) if ref == MAIN or ref in metadata.refs else None
    return _SameHead(ref=ref, snapshot_id=head.snapshot_id if head else None)


class SnapshotBuilder:
    """Snapshots staged one on top of another, on the head of a branch of the loaded table.

    `manifests` are those of the newest snapshot. `written` are all files written so far; an error inside `with` removes
    them. `written_bytes` are the bytes of the manifests and lists of the staged snapshots. `new` maps files with new
    rows from earlier steps to their sequence number. `requirements` and `updates` go to the catalog with the snapshots.
    `io` reads the table's files, and `store` caches manifests. A dry run writes no file.
    """

    def __init__(
        self,
        table: Table,
        now_ms: int,
        store: ManifestStore | None = None,
        *,
        ref: str = MAIN,
        dry_run: bool = False,
    ) -> None:
        self._ref = ref
        self._newest_only = False
        self.metadata: TableMetadata = table.metadata
        self.store: ManifestStore = store or ManifestStore()
        self.io: FileIO = table.io
        self._dry_run = dry_run
        self._locations = load_location_provider(table.metadata.location, table.metadata.properties)
        self._commit = uuid.uuid4()
        self._snapshot_id = table.metadata.new_snapshot_id()
        self._parent = head_snapshot(table.metadata, ref)
        self.manifests: list[ManifestFile] = manifests_in(self._parent, table.io, table.metadata.specs())
        self._numbered = table.metadata.format_version > 1
        self._next_row_id: int | None = None
        if table.metadata.format_version >= FIRST_WITH_LINEAGE:
            self._next_row_id = getattr(table.metadata, "next_row_id", None) or 0
        self._sequence_number = getattr(table.metadata, "last_sequence_number", 0) if self._numbered else 0
        # readers reject metadata whose last update is older than its own history, so a clock that went back must not
        # show
        self._now_ms = max(now_ms, table.metadata.last_updated_ms)
        self.new: dict[str, int] = {}
        self.written: list[str] = []
        self._unwritten: dict[str, bytes] = {}
        self.written_bytes: int = 0
        self._facts: dict[str, EntryColumns] = {}
        self.requirements: list[TableRequirement] = [same_head(table.metadata, ref)]
        self.updates: list[TableUpdate] = []
        self._snapshots: list[Snapshot] = []

    def __enter__(self) -> SnapshotBuilder:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.discard()

    @property
    def facts(self) -> dict[str, EntryColumns]:
        """Facts of the written manifests of the newest snapshot, by path."""
        listed = (manifest.manifest_path for manifest in self.manifests)
        return {path: self._facts[path] for path in listed if path in self._facts}

    def discard(self, start: int = 0) -> None:
        """Remove the written files from index `start` on, because they will not become visible."""
        doomed, self.written[start:] = self.written[start:], []
        written = [path for path in doomed if self._unwritten.pop(path, None) is None]
        remove(self.io, () if self._dry_run else written)

    @property
    def next_number(self) -> int:
        """The sequence number of the next snapshot."""
        return self._sequence_number + (1 if self._numbered else 0)

    def follow(self, other: SnapshotBuilder) -> None:
        """Continue the sequence numbers and row ids of a builder of another branch, in the same commit."""
        self._sequence_number, self._next_row_id = other._sequence_number, other._next_row_id

    def keep_newest_only(self) -> None:
        """Let expiry, by any engine, keep only the newest snapshot of the branch, at any age."""
        self._newest_only = True

    def same_schema_and_spec(self) -> None:
        """Require that the table's current schema and spec are unchanged at the commit."""
        metadata = self.metadata
        schema = AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)
        spec = AssertDefaultSpecId(default_spec_id=metadata.default_spec_id)
        self.requirements += [same for same in (schema, spec) if same not in self.requirements]

    def made_visible(self) -> Iterator[TableUpdate]:
        """Yield the updates that add the snapshots and make the last of them the head of the branch."""
        for snapshot in self._snapshots:
            yield AddSnapshotUpdate(snapshot=snapshot)
        if self._snapshots:
            moved = move_ref(self.metadata, self._ref, self._snapshots[-1].snapshot_id)
            newest = {"max_ref_age_ms": FOR_EVER_MS, "max_snapshot_age_ms": 1, "min_snapshots_to_keep": 1}
            yield moved.model_copy(update=newest) if self._newest_only else moved
        yield from self.updates

    def packed(self, spec_id: int, small: list[ManifestFile]) -> list[ManifestFile] | None:
        """Return fewer manifests with the same entries; None, and no new file in storage, if there would be as many."""
        before = len(self.written)
        packed = self._writer((spec_id, ManifestContent.DATA)).write(existing=entries_by_partition(self.io, small))
        if len(packed) < len(small):
            return packed
        self.discard(before)
        return None

    def exchange(
        self,
        operation: Operation,
        split: Split,
        added: Sequence[NewDataFile | NewDeleteFile],
        summary: Mapping[str, str],
        copied: Sequence[Entry] = (),
        *,
        recount: bool = False,
    ) -> Snapshot:
        """Stage a snapshot that adds files and drops the `deleted` entries of `split`, and return it.

        With `recount`, its totals are those of its manifests, whatever totals the snapshot before has.
        """
        own_spec, parts = self.metadata.default_spec_id, split.parts
        gone = [(*kind, entry) for kind, part in parts.items() for entry in part.deleted]
        touched = (m for m in self.manifests if m.manifest_path in split.touched)
        listed = (m for m in touched if m.content == ManifestContent.DELETES)
        deletes = {delete.id: delete for m in listed for delete in read_deletes(self.store, self.io, m)}
        data = [file for file in added if isinstance(file, NewDataFile)]
        new_deletes = [file for file in added if isinstance(file, NewDeleteFile)]
        facts = counts(
            added=[*data, *(data_file_of(entry, own_spec) for entry in copied)],
            new_deletes=new_deletes,
            removed=[data_file_of(e, spec_id) for spec_id, content, e in gone if content == ManifestContent.DATA],
            deletes=[deletes[e.id] for _, content, e in gone if content == ManifestContent.DELETES],
        )
        self._leave_out_shared(split)
        for file in added:
            content = ManifestContent.DATA if isinstance(file, NewDataFile) else ManifestContent.DELETES
            parts[file.partition.spec_id, content].added.append(file)
        if copied:
            parts[own_spec, ManifestContent.DATA].copied.extend(copied)
        snapshot = self.finish(operation, self._rewritten(split), {**facts, **summary}, recount=recount)
        self.new |= {file.path: self._sequence_number for file in data if file.sequence_number is None}
        return snapshot

    def _rewritten(self, split: Split) -> list[ManifestFile]:
        """Return all manifests of the next snapshot: new ones, split ones rewritten, the others unchanged."""
        new: list[ManifestFile] = []
        for kind in sorted(split.parts, key=lambda kind: (kind[1].value, kind)):
            for part in split.parts[kind].by_temperature(self._small_bytes):
                new += self._writer(kind).write(**vars(part))
        return [*new, *(m for m in self.manifests if m.manifest_path not in split.touched)]

    def _writer(self, kind: ManifestKind) -> ManifestWriter:
        return ManifestWriter(self._put_manifest, self.metadata, self._snapshot_id, *kind, facts=self._facts)

    def _leave_out_shared(self, split: Split) -> None:
        """Leave replaced vectors out of the next snapshot, rather than to list them as deleted, if their file is live.

        Several vectors share a Puffin file. Iceberg's Java library deletes the path of each deleted entry when its
        snapshot expires, without a look at other entries of the path. The last live vector takes the path along.
        """
        kinds = [kind for kind in split.parts if kind[1] == ManifestContent.DELETES]
        gone = {e.path for kind in kinds for e in split.parts[kind].deleted if e.content_offset is not None}
        if not gone:
            return
        others = [
            manifest for manifest in self.manifests
            if manifest.content == ManifestContent.DELETES and manifest.manifest_path not in split.touched
        ]  # fmt: skip
        shared = set(self.store.listed(self.io, others, gone))
        shared |= gone.intersection(entry.path for kind in kinds for entry in split.parts[kind].existing)
        for kind in kinds:
            part = split.parts[kind]
            split.parts[kind] = replace(part, deleted=[entry for entry in part.deleted if entry.path not in shared])

    def split(
        self,
        wanted: Sequence[FileId],
        content: ManifestContent = ManifestContent.DATA,
        into: Split | None = None,
        *,
        first: Collection[str] = (),
    ) -> Split:
        """Split manifests that list a wanted file into entries that stay and entries that go; extend `into` with them.

        A table may list a file twice, and its rows then count twice. As many of its entries go as `wanted` repeats it.
        Manifests with the paths in `first` are read first; when all wanted paths are found, no more are read.
        """
        split, missing = into or Split(), Counter(wanted)
        for manifest in sorted(self.manifests, key=lambda manifest: manifest.manifest_path not in first):
            if not missing or manifest.content != content:
                continue
            entries = list(read_entries(self.io, manifest))
            if not any(e.id in missing for e in entries):
                continue
            split.touched.add(manifest.manifest_path)
            part = split.parts[manifest.partition_spec_id, content]
            for entry in entries:
                if entry.id in missing:
                    part.deleted.append(entry)
                    missing[entry.id] -= 1
                    if not missing[entry.id]:
                        del missing[entry.id]
                else:
                    part.existing.append(entry)
        if missing:
            raise LookupError(f"Cannot replace {min(missing, key=str)}: no manifest of the current snapshot lists it")
        return split

    def fold(self) -> None:
        """Merge small data manifests if there are too many, as Iceberg's merge-append does.

        Manifests of cold entries stay, so that an append does not write all entries of a table again.
        """
        properties, target_bytes = self.metadata.properties, target_manifest_bytes(self.metadata)
        if properties.get(_MERGE_ENABLED, "true").lower() == "true":
            folded = worth_folding(self.manifests, target_bytes, property_number(properties, *_MIN_TO_MERGE))
            split = Split({m.manifest_path for m in folded})
            for manifest in folded:
                part = split.parts[manifest.partition_spec_id, ManifestContent.DATA]
                part.existing.extend(read_entries(self.io, manifest))
            self.manifests = self._rewritten(split)

    def _put_manifest(self, data: bytes) -> str:
        return self._put(f"{self._commit}-m{len(self.written)}.avro", data)

    def _put(self, name: str, data: bytes) -> str:
        """Write a metadata file, in remote storage by `finish`, unless this is a dry run. Return its path."""
        path = self._locations.new_metadata_location(name)
        self.written.append(path)
        if self._dry_run:
            return path
        if Storage.of(self.io).local_path(path) is None:
            self._unwritten[path] = data
        else:
            self._write(path, data)
        return path

    def _write(self, path: str, data: bytes) -> None:
        with self.io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)

    def finish(
        self, operation: Operation, manifests: list[ManifestFile], summary: dict[str, str], *, recount: bool = False
    ) -> Snapshot:
        """Write the manifest list and make the snapshot the parent of the next one."""
        parent, snapshot_id = self._parent, self._snapshot_id
        self._sequence_number = self.next_number
        parent_id = parent.snapshot_id if parent else None
        first_row_id = self._next_row_id
        manifests = [each if self._has_counts(each) else with_file_counts(self._facts_of(each)) for each in manifests]
        written = encoded_list(
            self.metadata.format_version, manifests, snapshot_id=snapshot_id, parent_id=parent_id,
            sequence_number=self._sequence_number, first_row_id=first_row_id or 0,
        )  # fmt: skip
        location = self._put(f"snap-{snapshot_id}-0-{self._commit}.avro", written.data)
        self.manifests = written.manifests
        if first_row_id is not None:
            self._next_row_id = first_row_id + written.row_ids
        new = (manifest for manifest in manifests if manifest.added_snapshot_id == snapshot_id)
        self.written_bytes += len(written.data) + sum(manifest.manifest_length for manifest in new)
        self._now_ms = max(self._now_ms, parent.timestamp_ms + 1 if parent else 0)
        self._parent = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            # 0 in format v1, not None: if the table is upgraded before the commit, catalogs reject 0 but accept None
            sequence_number=self._sequence_number,
            timestamp_ms=self._now_ms,
            manifest_list=location,
            summary=with_totals(operation, summary, parent, self._counted() if recount else None),
            schema_id=self.metadata.current_schema_id,
            first_row_id=first_row_id,
            added_rows=None if first_row_id is None else written.row_ids,
        )
        self._snapshots.append(self._parent)
        self._snapshot_id = self.metadata.new_snapshot_id()
        unwritten, self._unwritten = self._unwritten, {}
        for _ in concurrently(lambda each: self._write(*each), unwritten.items()):
            pass
        return self._parent

    def _counted(self) -> dict[str, int]:
        """Return the totals of the newest manifests."""
        return totals_of(map(self._facts_of, self.manifests))

    def _facts_of(self, manifest: ManifestFile) -> ManifestFacts:
        new = self._facts.get(manifest.manifest_path)
        return ManifestFacts(manifest, new) if new else self.store.facts(self.io, manifest)

    def _has_counts(self, manifest: ManifestFile) -> bool:
        """Return whether a list of this format version can have the manifest: only format v1 needs no counts."""
        return not self._numbered or None not in [manifest[place] for place in COUNTS]

    def has_wrong_totals(self) -> bool:
        """Return whether the summary of the newest snapshot has a total that its manifests contradict."""
        parent = self._parent
        listed = {name: summary_of(parent, name) if parent else None for name in TOTALS}
        return any(listed[name] not in (None, str(total)) for name, total in self._counted().items())

    @property
    def _small_bytes(self) -> int:
        """Bytes below which a file of the table is small, by its own target; a policy may differ."""
        target = property_number(self.metadata.properties, ICEBERG_TARGET, DEFAULT_TARGET_BYTES)
        return int(SMALL_FILE_RATIO * target)


def data_file_of(entry: Entry, spec_id: int) -> FileFact:
    """Return an entry of a data manifest as a planning fact."""
    return FileFact(
        entry.path, entry.size_bytes, entry.rows, PartitionKey.of(spec_id, entry.values), entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number or 0,
    )  # fmt: skip


def remove(io: FileIO, paths: Iterable[str]) -> None:
    """Delete metadata files that no snapshot needs. Best effort: the rest is left to orphan cleanup."""
    Storage.of(io).discard(paths)


def move_ref(metadata: TableMetadata, ref: str, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Return the update that makes a snapshot the head of a branch.

    It repeats the branch's retention settings, because an update without them removes them.
    """
    now = metadata.refs.get(ref)
    return SetSnapshotRefUpdate(
        ref_name=ref, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id,
        max_ref_age_ms=now.max_ref_age_ms if now else None,
        max_snapshot_age_ms=now.max_snapshot_age_ms if now else None,
        min_snapshots_to_keep=now.min_snapshots_to_keep if now else None,
    )  # fmt: skip
