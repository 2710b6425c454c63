"""Builds the snapshots of one commit attempt: manifests, manifest lists and summaries, written but not visible.

An APPEND adds one manifest of new files. A REPLACE on top of it, or an OVERWRITE, writes the survivors of *all*
manifests that it touches together with the files it adds, so that their number stays small whatever the number of
commits; PyIceberg's producer keeps one manifest per touched manifest, and each commit then touches more of them.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from types import MappingProxyType

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.table.update import SetSnapshotRefUpdate

from icesize import failpoints
from icesize.parquet.files.data_file import RewrittenDeletes, WrittenFile
from icesize.planning.deletes import only_path
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.table.catalog.history import operation_of
from icesize.table.commit.no_output import NoOutput
from icesize.table.commit.obsolete_deletes import Doubtful
from icesize.table.commit.rewritten_deletes import Replacement, replacement
from icesize.table.commit.summary import counts, with_totals
from icesize.table.manifests.delete_index import DeleteIndex, delete_index, delete_of, is_unpartitioned, read_deletes
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.lists import manifests_in
from icesize.table.manifests.packing import entries_by_partition, worth_packing
from icesize.table.manifests.store import ManifestStore
from icesize.table.manifests.writer import write_list, write_manifests

LOG = logging.getLogger("icesize")

_MERGE_ENABLED = ("commit.manifest-merge.enabled", "true")
_MIN_TO_MERGE = ("commit.manifest.min-count-to-merge", "100")
_TARGET_BYTES = ("commit.manifest.target-size-bytes", str(8 * 2**20))


_Kind = tuple[int, ManifestContent]
"""A manifest's partition spec and what it lists; entries of one kind can lie in one manifest."""


@dataclass(frozen=True)
class _Split:
    """Paths of manifests to write anew, and by their kind the entries: those that stay and those that go."""

    touched: set[str] = field(default_factory=set)
    survivors: dict[_Kind, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    deleted: dict[_Kind, list[Entry]] = field(default_factory=lambda: defaultdict(list))

    def add(self, other: _Split) -> None:
        """Take in other manifests and their entries, which may be of the same kinds."""
        self.touched.update(other.touched)
        for own, more in ((self.survivors, other.survivors), (self.deleted, other.deleted)):
            for kind, entries in more.items():
                own[kind] += entries


class SnapshotBuilder:
    """Snapshots staged one on top of another, from the loaded table on.

    `manifests` are those of the newest one, `written` every file that was made; an error inside `with` removes them.
    `store` has what was read before of manifests. A dry run writes no file.
    """

    def __init__(self, table: Table, now_ms: int, store: ManifestStore | None = None, *, dry_run: bool = False) -> None:
        self._metadata = table.metadata
        self._store = store or ManifestStore()
        self._io = table.io
        self._outputs: FileIO = NoOutput() if dry_run else table.io
        self._locations = load_location_provider(table.metadata.location, table.metadata.properties)
        self._commit = uuid.uuid4()
        self._snapshot_id = table.metadata.new_snapshot_id()
        self._parent = table.metadata.current_snapshot()
        self.manifests = manifests_in(self._parent, table.io)
        self._numbered = table.metadata.format_version > 1
        self._sequence_number = getattr(table.metadata, "last_sequence_number", 0) if self._numbered else 0
        # readers refuse metadata whose last update lies before its own history, so a clock that went back must not show
        self._now_ms = max(now_ms, table.metadata.last_updated_ms)
        self._new: frozenset[str] = frozenset()
        self._new_number: int | None = None
        self.written: list[str] = []

    def __enter__(self) -> SnapshotBuilder:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            self.discard()

    def discard(self, start: int = 0) -> None:
        """Remove what was written, from the given file on: it will not become visible."""
        remove(self._outputs, self.written[start:])
        del self.written[start:]

    def append(self, files: Sequence[WrittenFile], summary: Mapping[str, str]) -> Snapshot:
        """New rows: one manifest per partition spec, the others stay (or are folded when there are too many)."""
        self.manifests = self._folded()
        return self._with_new(files, self._exchange(Operation.APPEND, _Split(), files, summary))

    def replace(
        self,
        inputs: Sequence[FileFact],
        outputs: Sequence[WrittenFile],
        summary: Mapping[str, str],
        named: Mapping[str, frozenset[str]] = MappingProxyType({}),
    ) -> Snapshot:
        """The same rows in other files, but for deleted ones; input files may be files that this builder has added just
        before. Delete files that hit nothing any more go with the inputs.

        `named` are the data files that position delete files name, as far as that is known. Every input file must be
        live; raises LookupError naming one that is not.
        """
        split, added = self._split([v.path for v in inputs]), self._renumbered(inputs, outputs)
        self._split_deletes(split, {v.partition for v in inputs}, added, named)
        return self._exchange(Operation.REPLACE, split, added, summary)

    def overwrite(
        self,
        inputs: Sequence[str],
        added: Sequence[WrittenFile],
        copied: Sequence[Entry],
        summary: Mapping[str, str],
    ) -> Snapshot:
        """Other rows: `inputs` (paths) go, `added` are new, `copied` are copies of files of an older snapshot.

        `added` may hold the rows of input files besides new ones. All new files get the data sequence number of this
        snapshot: no delete must be pending on a file whose rows they hold. `copied` are described as the files that
        they are copies of, and are of the table's current partition spec. Every input file must be live; raises
        LookupError naming one that is not.
        """
        fresh, split = [replace(f, sequence_number=None) for f in added], self._split(inputs)
        self._split_deletes(split, {f.partition for f in added}, fresh, {})
        return self._with_new(added, self._exchange(Operation.OVERWRITE, split, fresh, summary, copied))

    def rewrite(self, summary: Mapping[str, str]) -> Snapshot | None:
        """The same files in fewer data manifests, sorted by partition; None when their number would stay the same.

        Delete manifests stay, and so do data manifests that are filled to half of `commit.manifest.target-size-bytes`.
        Entries are copied as bytes; their numbers, their snapshots and the table's totals stay what they are.
        """
        created: list[ManifestFile] = []
        replaced: set[str] = set()
        for spec_id, small in worth_packing(self.manifests, int(self._property(_TARGET_BYTES))).items():
            if packed := self._packed(spec_id, small):
                created += packed
                replaced |= {m.manifest_path for m in small}
        if not replaced:
            return None
        kept = [m for m in self.manifests if m.manifest_path not in replaced]
        facts = {
            "manifests-created": len(created),
            "manifests-kept": len(kept),
            "manifests-replaced": len(replaced),
            "entries-processed": sum(m.existing_files_count or 0 for m in created),
        }
        named = {key: str(value) for key, value in facts.items()}
        return self._finish(Operation.REPLACE, [*created, *kept], {**named, **summary})

    def without_dangling_deletes(
        self,
        named: Callable[[Sequence[DeleteFile]], Mapping[str, frozenset[str]]],
        summary: Mapping[str, str],
    ) -> Snapshot | None:
        """The same data files without the delete files that hit none of them; None when there are none such.

        `named` is asked for the data files that position delete files name, of those that may name several; one that it
        does not tell of stays.
        """
        split, index = _Split(), self._delete_index()
        files = (d for deletes in index.by_partition.values() for d in deletes)
        several = [d for d in files if not d.equality_ids and only_path(d) is None]
        self._split_obsolete(split, Doubtful.of(index, index.by_partition, named(several)), ())
        return self._exchange(Operation.REPLACE, split, (), summary) if split.touched else None

    def with_rewritten_deletes(
        self, rewritten: Sequence[RewrittenDeletes], summary: Mapping[str, str]
    ) -> tuple[Snapshot | None, Replacement]:
        """The same data files, their deleted rows named by other delete files; None when none can take the place of
        others (`icesize.table.commit.rewritten_deletes`)."""
        specs = self._metadata.specs()
        everywhere = {spec_id for spec_id, spec in specs.items() if is_unpartitioned(spec)}
        manifests = (m for m in self.manifests if m.content == ManifestContent.DELETES)
        listed = {delete.path for m in manifests for delete in read_deletes(self._store, self._io, m)}
        done = replacement(rewritten, everywhere, listed, self._hit_by(rewritten, everywhere))
        if not done.gone:
            return None, done
        split = self._split(sorted(delete.path for delete in done.gone), ManifestContent.DELETES)
        operation = self._operation_of(done) if done.files else Operation.REPLACE
        return self._exchange(operation, split, done.files, summary), done

    def _hit_by(self, rewritten: Sequence[RewrittenDeletes], everywhere: Collection[int]) -> Iterator[FileFact]:
        """All live data files that may be hit by delete files that were read."""
        newest = max((d.sequence_number for each in rewritten for d in each.replaced), default=-1)
        specs = {each.partition.spec_id for each in rewritten}
        for manifest in self.manifests:
            spec_id = manifest.partition_spec_id
            concerned = spec_id in specs or specs & set(everywhere)
            if manifest.content == ManifestContent.DATA and concerned and (manifest.min_sequence_number or 0) <= newest:
                facts = self._store.facts(self._io, manifest)
                yield from facts.files(facts.live)

    def _operation_of(self, done: Replacement) -> Operation:
        """That of the commit which brought the newest equality delete that goes, REPLACE where there is none."""
        newest = max((delete.sequence_number for delete in done.gone if delete.equality_ids), default=None)
        if newest is None:
            return Operation.REPLACE
        brought = {
            operation_of(snapshot) for snapshot in self._metadata.snapshots if snapshot.sequence_number == newest
        }
        return Operation.DELETE if Operation.DELETE in brought else Operation.OVERWRITE

    def _packed(self, spec_id: int, small: list[ManifestFile]) -> list[ManifestFile] | None:
        """Fewer manifests with the same entries; None, and nothing left on storage, when they are as many again."""
        before = len(self.written)
        packed = write_manifests(
            self._outputs, self._metadata, spec_id, self._snapshot_id, self._new_path,
            existing=entries_by_partition(self._io, small),
        )  # fmt: skip
        if len(packed) < len(small):
            return packed
        self.discard(before)
        return None

    def _with_new(self, files: Sequence[WrittenFile], snapshot: Snapshot) -> Snapshot:
        self._new, self._new_number = frozenset(f.path for f in files), snapshot.sequence_number
        return snapshot

    def _renumbered(self, inputs: Sequence[FileFact], outputs: Sequence[WrittenFile]) -> list[WrittenFile]:
        """Outputs where rows went that this builder has added: they get the data sequence number of these.

        An equality delete hits files with smaller numbers. All that there are now are older than the new rows and must
        not reach them: with the older input files' number (none at all where every input file is new) a delete that
        is pending in the partition would take them. Those that hit older input files were applied to them, up to the
        planning base, and the commit has looked that there are no newer ones, so nothing comes back either. Deletes
        that land later have greater numbers and hit all of it. And the partition looks as young as its newest rows.
        """
        absorbing = {v.partition for v in inputs if v.path in self._new}
        return [replace(f, sequence_number=self._new_number) if f.partition in absorbing else f for f in outputs]

    def _exchange(
        self,
        operation: Operation,
        split: _Split,
        added: Sequence[WrittenFile],
        summary: Mapping[str, str],
        copied: Sequence[Entry] = (),
    ) -> Snapshot:
        """The next snapshot: entries that go are replaced by these files."""
        own_spec = self._metadata.default_spec_id
        gone = [(spec_id, content, e) for (spec_id, content), entries in split.deleted.items() for e in entries]
        facts = counts(
            added=[*(f for f in added if f.deletes_of is None), *(_fact(e, own_spec) for e in copied)],
            new_deletes=[f for f in added if f.deletes_of is not None],
            removed=[_fact(e, spec_id) for spec_id, content, e in gone if content == ManifestContent.DATA],
            deletes=[delete_of(e, spec_id) for spec_id, content, e in gone if content == ManifestContent.DELETES],
        )
        return self._finish(operation, self._rewritten(split, added, copied), {**facts, **summary})

    def _rewritten(
        self, split: _Split, added: Sequence[WrittenFile] = (), copied: Sequence[Entry] = ()
    ) -> list[ManifestFile]:
        """All manifests of the next snapshot: new ones, those that were split written anew, the others as they are."""
        by_kind: dict[_Kind, list[WrittenFile]] = defaultdict(list)
        for file in added:
            content = ManifestContent.DATA if file.deletes_of is None else ManifestContent.DELETES
            by_kind[file.partition.spec_id, content].append(file)
        back = {(self._metadata.default_spec_id, ManifestContent.DATA): copied} if copied else {}
        new: list[ManifestFile] = []
        for kind in sorted({*by_kind, *back, *split.survivors, *split.deleted}, key=lambda kind: (kind[1].value, kind)):
            new += write_manifests(
                self._outputs, self._metadata, snapshot_id=self._snapshot_id, spec_id=kind[0], new_path=self._new_path,
                added=by_kind.get(kind, ()), copied=back.get(kind, ()),
                existing=split.survivors.get(kind, ()), deleted=split.deleted.get(kind, ()), content=kind[1],
            )  # fmt: skip
        return [*new, *(m for m in self.manifests if m.manifest_path not in split.touched)]

    def _split(self, wanted: Sequence[str], content: ManifestContent = ManifestContent.DATA) -> _Split:
        """Manifests that hold a wanted path, and by kind their entries: those that survive and those that go.

        A table may list one file twice, and its rows then count twice: as many entries go as are wanted.
        """
        split, missing = _Split(), Counter(wanted)
        for manifest in self.manifests:
            if not missing or manifest.content != content:
                continue
            entries = list(read_entries(self._io, manifest))
            if not any(e.path in missing for e in entries):
                continue
            split.touched.add(manifest.manifest_path)
            for entry in entries:
                goes = missing[entry.path] > 0
                (split.deleted if goes else split.survivors)[manifest.partition_spec_id, content].append(entry)
                if goes:
                    missing[entry.path] -= 1
            missing = +missing
        if missing:
            raise LookupError(f"Cannot replace {min(missing)}: no manifest of the current snapshot lists it")
        return split

    def _split_deletes(
        self,
        split: _Split,
        partitions: Collection[PartitionKey],
        added: Sequence[WrittenFile],
        named: Mapping[str, frozenset[str]],
    ) -> None:
        """Let delete files go that hit nothing once data manifests are split so, and these files are there."""
        self._split_obsolete(split, Doubtful.of(self._delete_index(), partitions, named), added)

    def _delete_index(self) -> DeleteIndex:
        manifests = [m for m in self.manifests if m.content == ManifestContent.DELETES]
        return delete_index(self._store, self._io, manifests, self._metadata.specs())

    def _split_obsolete(self, split: _Split, doubtful: Doubtful, added: Sequence[WrittenFile]) -> None:
        if doubtful:
            new = ((f.partition, self._number(f), f.path) for f in added)
            if gone := doubtful.obsolete(chain(self._left(split, doubtful), new)):
                split.add(self._split(sorted(gone), ManifestContent.DELETES))

    def _left(self, split: _Split, doubtful: Doubtful) -> Iterator[tuple[PartitionKey, int, str]]:
        """Partition, data sequence number and path of the data files that stay and that delete files may be about."""
        for (spec_id, _), entries in split.survivors.items():
            for entry in entries:
                yield PartitionKey.of(spec_id, entry.values), entry.sequence_number or 0, entry.path
        for manifest in self.manifests:
            if manifest.content != ManifestContent.DATA or manifest.manifest_path in split.touched:
                continue
            if doubtful.may_depend_on(manifest.partition_spec_id, manifest.min_sequence_number or 0):
                facts = self._store.facts(self._io, manifest)
                places, numbers = (
                    each[facts.live].tolist() for each in (facts.columns.partition, facts.sequence_numbers)
                )
                yield from zip((facts.keys[place] for place in places), numbers, facts.paths(), strict=True)

    def _number(self, file: WrittenFile) -> int:
        return self._sequence_number + 1 if file.sequence_number is None else file.sequence_number

    def _folded(self) -> list[ManifestFile]:
        """Small data manifests written together when there are too many; Iceberg's merge-append does the same."""
        target = int(self._property(_TARGET_BYTES))
        small = [m for m in self.manifests if m.content == ManifestContent.DATA and m.manifest_length < target // 2]
        enabled = self._property(_MERGE_ENABLED).lower() == "true"
        if not enabled or len(small) < max(2, int(self._property(_MIN_TO_MERGE))):
            return self.manifests
        split = _Split({m.manifest_path for m in small})
        for manifest in small:
            split.survivors[manifest.partition_spec_id, ManifestContent.DATA] += read_entries(self._io, manifest)
        return self._rewritten(split)

    def _new_path(self) -> str:
        path = self._locations.new_metadata_location(f"{self._commit}-m{len(self.written)}.avro")
        self.written.append(path)
        return path

    def _finish(self, operation: Operation, manifests: list[ManifestFile], summary: dict[str, str]) -> Snapshot:
        """Write the manifest list and make the snapshot the parent of the next one."""
        parent, snapshot_id = self._parent, self._snapshot_id
        self._sequence_number += 1 if self._numbered else 0
        location = self._locations.new_metadata_location(f"snap-{snapshot_id}-0-{self._commit}.avro")
        self.written.append(location)
        parent_id = parent.snapshot_id if parent else None
        self.manifests = write_list(
            self._metadata, self._outputs, location, manifests,
            snapshot_id=snapshot_id, parent_id=parent_id, sequence_number=self._sequence_number,
        )  # fmt: skip
        self._now_ms = max(self._now_ms, parent.timestamp_ms + 1 if parent else 0)
        self._parent = Snapshot(
            snapshot_id=snapshot_id,
            parent_snapshot_id=parent_id,
            # 0 in format v1, not nothing: in a table that is upgraded meanwhile catalogs refuse 0 and believe nothing
            sequence_number=self._sequence_number,
            timestamp_ms=self._now_ms,
            manifest_list=location,
            summary=with_totals(operation, summary, parent),
            schema_id=self._metadata.current_schema_id,
        )
        self._snapshot_id = self._metadata.new_snapshot_id()
        return self._parent

    def _property(self, key_and_default: tuple[str, str]) -> str:
        key, default = key_and_default
        return self._metadata.properties.get(key, default)


def _fact(entry: Entry, spec_id: int) -> FileFact:
    return FileFact(
        entry.path, entry.size_bytes, entry.rows, PartitionKey.of(spec_id, entry.values), entry.sequence_number or 0,
        file_sequence_number=entry.file_sequence_number or 0,
    )  # fmt: skip


def remove(io: FileIO, paths: Iterable[str]) -> None:
    """Delete metadata files that no snapshot will need, best effort: what stays is left to orphan cleanup."""
    for path in paths:
        try:
            failpoints.reach("cleanup")
            io.delete(path)
        except Exception:  # it must not hide the error that led here
            LOG.info("could not remove %s; orphan cleanup will", path)


def move_main(metadata: TableMetadata, snapshot_id: int) -> SetSnapshotRefUpdate:
    """Make a snapshot the head of main, whose retention settings stay: an update without them would drop them."""
    main = metadata.refs.get(MAIN_BRANCH)
    return SetSnapshotRefUpdate(
        ref_name=MAIN_BRANCH, type=SnapshotRefType.BRANCH, snapshot_id=snapshot_id,
        max_ref_age_ms=main.max_ref_age_ms if main else None,
        max_snapshot_age_ms=main.max_snapshot_age_ms if main else None,
        min_snapshots_to_keep=main.min_snapshots_to_keep if main else None,
    )  # fmt: skip
