"""Manifests -> Layout, incrementally: manifests never change, so each is read once and kept by its path.

Only files below the small file limit become values; the rest is counted per partition. Entries are streamed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.typedef import Record

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey, SkipReason, distinct_zeros
from icesize.table.catalog.access_errors import readable
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.repeated_files import Listings

OLDEST = 1 << 60
"""Age, in commits, of a file whose snapshot the table no longer keeps and whose sequence number says nothing (v1)."""


@dataclass(slots=True)
class _Counts:
    files: int = 0
    size_bytes: int = 0
    rows: int = 0
    newest: int = 0
    small: list[FileFact] = field(default_factory=list)


@dataclass(slots=True)
class _ManifestFacts:
    partitions: dict[tuple[object, ...], _Counts]

    def small_paths(self) -> Iterator[str]:
        return (file.path for counts in self.partitions.values() for file in counts.small)


class LayoutReader:
    """Reads layouts of one table again and again; each manifest is read once while the small file limit stays.

    Losing it costs time, never correctness. Not shared between threads.
    """

    def __init__(self, small_file_limit_bytes: int) -> None:
        self.small_file_limit_bytes = small_file_limit_bytes
        self._known: dict[str, _ManifestFacts] = {}
        self._listings = Listings()
        self._format_version: int | None = None

    def read(
        self,
        metadata: TableMetadata,
        io: FileIO,
        keep: Callable[[ManifestFile], bool] = lambda manifest: True,
    ) -> Layout:
        """The layout of the current snapshot; manifests that `keep` refuses (pruning by bounds) are not read.

        Raises TableError when storage does not give them.
        """
        with readable(metadata.location):
            return self._layout(metadata, io, keep)

    def _layout(self, metadata: TableMetadata, io: FileIO, keep: Callable[[ManifestFile], bool]) -> Layout:
        snapshot = metadata.current_snapshot()
        if snapshot is None:
            return Layout(None, 0, metadata.default_spec_id, self.small_file_limit_bytes)
        manifests = snapshot.manifests(io)
        data = [m for m in manifests if m.content == ManifestContent.DATA and keep(m)]
        ages = CommitAges(metadata)
        if metadata.format_version != self._format_version:
            # what was read before the table was upgraded is stamped with times, not with sequence numbers
            self._forget(set())
            self._format_version = metadata.format_version
        facts = {m.manifest_path: self._facts(io, m, ages) for m in data}
        self._forget({m.manifest_path for m in manifests})
        deletes = DeleteIndex.of(io, [m for m in manifests if m.content == ManifestContent.DELETES])
        return Layout(
            snapshot_id=snapshot.snapshot_id,
            sequence_number=snapshot.sequence_number or 0,
            spec_id=metadata.default_spec_id,
            small_file_limit_bytes=self.small_file_limit_bytes,
            partitions=_assemble(
                metadata, data, facts, Obstacles(metadata.default_spec_id, deletes, self._listings), ages
            ),
            complete=len(data) == sum(m.content == ManifestContent.DATA for m in manifests),
        )

    def _facts(self, io: FileIO, manifest: ManifestFile, ages: CommitAges) -> _ManifestFacts:
        known = self._known.get(manifest.manifest_path)
        if known is None:
            known = self._known[manifest.manifest_path] = self._read(io, manifest, ages)
            self._listings.add(known.small_paths())
        return known

    def _read(self, io: FileIO, manifest: ManifestFile, ages: CommitAges) -> _ManifestFacts:
        partitions: dict[tuple[object, ...], _Counts] = {}
        limit, spec_id, path = self.small_file_limit_bytes, manifest.partition_spec_id, manifest.manifest_path
        keys: dict[tuple[object, ...], PartitionKey] = {}
        for entry in read_entries(io, manifest, with_data=False):
            values = distinct_zeros(entry.values)
            counts = partitions.get(values)
            if counts is None:
                counts = partitions[values] = _Counts()
                keys[values] = PartitionKey(spec_id, values)
            counts.files += 1
            counts.size_bytes += entry.size_bytes
            counts.rows += entry.rows
            counts.newest = max(counts.newest, ages.stamp(entry.sequence_number, entry.snapshot_id))
            if entry.size_bytes < limit:
                obstacle = obstacle_of(entry.file_format, entry.encrypted)
                counts.small.append(
                    FileFact(
                        entry.path, entry.size_bytes, entry.rows, keys[values],
                        entry.sequence_number or 0, obstacle, path,
                    )
                )  # fmt: skip
        return _ManifestFacts(partitions)

    def _forget(self, current: set[str]) -> None:
        for path in self._known.keys() - current:
            self._listings.remove(self._known.pop(path).small_paths())


def obstacle_of(file_format: str, encrypted: bool) -> SkipReason | None:
    """Why a file can never be rewritten, whatever happens to the table, None when it can."""
    if encrypted:
        return SkipReason.ENCRYPTED
    return None if file_format.upper() == "PARQUET" else SkipReason.NOT_PARQUET


def _assemble(
    metadata: TableMetadata,
    manifests: Iterable[ManifestFile],
    facts: dict[str, _ManifestFacts],
    obstacles: Obstacles,
    ages: CommitAges,
) -> dict[PartitionKey, PartitionFacts]:
    totals: dict[PartitionKey, _Counts] = {}
    for manifest in manifests:
        for values, counts in facts[manifest.manifest_path].partitions.items():
            total = totals.setdefault(PartitionKey(manifest.partition_spec_id, values), _Counts())
            total.files += counts.files
            total.size_bytes += counts.size_bytes
            total.rows += counts.rows
            total.newest = max(total.newest, counts.newest)
            total.small += counts.small
    labels = Labels(metadata)
    return {
        key: PartitionFacts(
            key, labels.of(key), c.files, c.size_bytes, c.rows,
            obstacles.noted(c.small, key),
            ages.since(c.newest),
        )
        for key, c in totals.items()
    }  # fmt: skip


@dataclass(frozen=True)
class Obstacles:
    """Why files must not be rewritten now. That depends on the snapshot, so it is not kept per manifest."""

    spec_id: int
    deletes: DeleteIndex
    listings: Listings

    def noted(self, files: Sequence[FileFact], key: PartitionKey) -> tuple[FileFact, ...]:
        """The files of one partition, in their order, with what hinders them; the given objects where nothing does."""
        if key.spec_id != self.spec_id:
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.OLD_SPEC) for f in files)
        if any(value != value for value in key.values):
            # its deletes are not found by its partition either, which is one more reason to leave it alone
            return tuple(replace(f, obstacle=f.obstacle or SkipReason.NAN_PARTITION) for f in files)
        if not self.deletes.concerns(key) and not self.listings:
            return tuple(files)
        return tuple(f if (why := self._of(f)) is None else replace(f, obstacle=why) for f in files)

    def _of(self, file: FileFact) -> SkipReason | None:
        if self.deletes.applies(file):
            return SkipReason.HAS_DELETES
        return SkipReason.LISTED_TWICE if file.path in self.listings else None


class CommitAges:
    """How many commits that added rows came after a file: `since(stamp(sequence number, snapshot id))`.

    Merged files keep the newest sequence number of their inputs, so merging does not make a partition young again.
    Format v1 has no sequence numbers: there the timestamp of the file's snapshot stands for it. Expired snapshots
    cannot be counted; every commit of ours takes at most two sequence numbers, which gives a lower bound.
    """

    def __init__(self, metadata: TableMetadata) -> None:
        head = metadata.current_snapshot()
        history: list[Snapshot] = list(reversed(list(ancestors_of(head, metadata))))
        self._numbered = metadata.format_version > 1
        self._time = {s.snapshot_id: s.timestamp_ms for s in history}
        self._head = (head.sequence_number or 0) if head else 0
        self._commits = sorted(
            (s.sequence_number or 0) if self._numbered else s.timestamp_ms
            for s in history
            if s.summary is None or s.summary.operation != Operation.REPLACE
        )

    def stamp(self, sequence_number: int | None, snapshot_id: int | None) -> int:
        """A number that orders files by the commit that brought their newest rows."""
        if self._numbered:
            return sequence_number or 0
        return self._time.get(snapshot_id or 0, 0)

    def since(self, stamp: int) -> int:
        """Commits that added rows after the one with this stamp."""
        counted = len(self._commits) - bisect_right(self._commits, stamp)
        if self._numbered:
            return max(counted, (self._head - stamp) // 2)
        return counted if stamp else OLDEST


class Labels:
    """Partitions as people write them: `hour=h191/kind=3`, values as Iceberg prints them."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schema: Schema = metadata.schema()
        self._schemas = [metadata.schema(), *reversed(metadata.schemas)]
        self._specs: dict[int, PartitionSpec] = metadata.specs()

    def of(self, key: PartitionKey) -> str:
        """The label of a partition, `` for an unpartitioned one."""
        return "/".join(f"{name}={value}" for name, value in self.values(key).items())

    def values(self, key: PartitionKey) -> dict[str, str]:
        """Partition field name -> printed value."""
        spec = self._specs[key.spec_id]
        named = {}
        for field_, value in zip(spec.fields, Record(*key.values)._data, strict=True):
            source = next((t for s in self._schemas if (t := _type_of(s, field_.source_id)) is not None), None)
            named[field_.name] = (
                str(value) if source is None else field_.transform.to_human_string(source, value)  # type: ignore[arg-type]
            )
        return named


def _type_of(schema: Schema, field_id: int) -> object | None:
    try:
        return schema.find_type(field_id)
    except ValueError:
        return None  # the source column was dropped from this schema
