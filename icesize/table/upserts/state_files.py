"""The live data files of a state: their bounds of key and order, the deletes that apply, and their deleted rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pyiceberg.schema import Schema
from pyroaring import BitMap

from icesize.errors import UnsupportedTable
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.deletes.delete_reach import only_path
from icesize.planning.files import FileFact, FileId, PartitionKey, SkipReason
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.catalog.access_errors import readable
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import ConcurrentChange
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.live_files import is_nan
from icesize.table.upserts.lookup import TableFiles

_NO_ROWS, _DELETED_ROWS = BitMap(), "deleted rows"


class Use(NamedTuple):
    """The job that files are read for, and what a file may have that the job needs, in words for messages."""

    verb: str
    wanted: str

    def refused(self, file: FileFact, why: str, way_on: str = "Rewrite it with another engine") -> UnsupportedTable:
        """Return the error for a file that the job needs."""
        return UnsupportedTable(
            f"Cannot {self.verb}: {file.path} may have {self.wanted}, and {why}. {way_on}", path=file.path
        )

    def readable(self, file: FileFact) -> FileFact:
        """Return a file that the job needs. Raises UnsupportedTable if icesize cannot read its rows."""
        if file.obstacle in _UNREADABLE:
            raise self.refused(file, f"it {_UNREADABLE[file.obstacle]}")
        return file


UPSERT = Use("upsert", "keys of the batch")
COMPARE_KEYS = Use("compare keys", "keys of other rows")
_UNREADABLE = {SkipReason.NOT_PARQUET: "is not a Parquet file", SkipReason.ENCRYPTED: "is encrypted"}
_HAS_UNREADABLE = "icesize cannot read all of its delete files"


def bounds_reader(rule: UpsertRule, schema: Schema, store: ManifestStore) -> ClusterReader:
    """Return the reader of live files with the bounds that `bounds_of` names."""
    ids, names = rule.bounded, {field.field_id: field.name for field in schema.fields}
    return ClusterReader(ClusterBy(tuple(names[each] for each in ids), ids, "keys", 0), store=store)


def bounds_of(file: ClusterFile, rule: UpsertRule) -> dict[int, Bounds]:
    """Return the bounds of key and order in a file by field id."""
    return dict(zip(rule.bounded, file.bounds, strict=True))


def check_format(state: Loaded, settings: WriteSettings) -> None:
    """Raise ConcurrentChange if the table has another format version than files were planned for."""
    if state.format_version != settings.format_version:
        raise ConcurrentChange("the table was upgraded after the plan")


@dataclass(frozen=True, eq=False)
class FilesWithBounds:
    """The live files of a state of the table.

    Attributes:
        files: All live data files, with the bounds of the reader's columns.
        by_partition: The same files by partition, without bounds.
        deletes: The delete files.
        store: Keeps the deleted rows that are known. States and batches share it.
    """

    files: Sequence[ClusterFile]
    by_partition: Mapping[PartitionKey, Sequence[FileFact]]
    deletes: DeleteIndex
    store: ManifestStore

    @classmethod
    def of(cls, state: Loaded, reader: ClusterReader) -> FilesWithBounds:
        """Return the files of a state. Raises TableError for a damaged manifest."""
        io, metadata = state.table.io, state.table.metadata
        with readable(metadata.location):
            files = reader.files(metadata, io, state.manifests.data)
            index = delete_index(state.store, io, state.manifests.deletes, metadata.specs())
        live = defaultdict[PartitionKey, list[FileFact]](list)
        for each in files:
            live[each.fact.partition].append(each.fact)
        return cls(files, live, index, state.store)

    def check_specs(self, settings: WriteSettings) -> None:
        """Raise ConcurrentChange for a file of a partition spec that the table did not have when it was planned."""
        if not {key.spec_id for key in self.by_partition} <= settings.specs_json.keys():
            raise ConcurrentChange("another writer added files of a new partition spec after the plan")

    def noted(self, file: ClusterFile, use: Use = UPSERT) -> FileFact:
        """Return a file with the delete files that apply to it. Raises UnsupportedTable for one that is unreadable."""
        return _noted(use.readable(file.fact), self.deletes, use)

    def with_deleted(self, files: Sequence[FileFact], reads: TableFiles) -> list[tuple[FileFact, BitMap]]:
        """Return noted files with their deleted rows, which are read unless they are known; then they are known."""
        known = {
            f.path: rows
            for f in files
            if (rows := self.store.known(f.path, _DELETED_ROWS, f.delete_ids) if f.deletes else _NO_ROWS) is not None
        }
        unknown = defaultdict[PartitionKey, list[FileFact]](list)
        for file in files:
            if file.path not in known:
                unknown[file.partition].append(file)
        for partition, some in unknown.items():
            marked = deleted_rows(some, reads.settings.of_spec(partition.spec_id), partition).positions
            for file in some:
                known[file.path] = marked.get(file.path, BitMap())
                self.remember_deleted(file.path, file.delete_ids, known[file.path])
        return [(file, known[file.path]) for file in files]

    def remember_deleted(self, path: str, deletes: frozenset[FileId], rows: BitMap) -> None:
        """Keep the rows of a data file that these delete files delete, so that these need not be read again."""
        self.store.get(path, _DELETED_ROWS, lambda: (rows, _bitmap_bytes(rows)), deletes)


def _noted(file: FileFact, index: DeleteIndex, use: Use) -> FileFact:
    """Return a file with the delete files that apply to it, and no others. Raises UnsupportedTable."""
    if is_nan(file.partition):
        raise use.refused(
            file, "a partition value of it is NaN, so that its deletes cannot be found",
            "Remove the NaN from the partition column",
        )  # fmt: skip
    if file.obstacle is SkipReason.HAS_DELETES:
        raise use.refused(file, _HAS_UNREADABLE)
    if not index.concerns(file.partition):
        return file
    deletes = index.of_partition(file.partition)
    applying = tuple(deletes.applying(file))
    if applying and not deletes.are_readable(file):
        raise use.refused(file, _HAS_UNREADABLE)
    known = sum(delete.rows for delete in applying if only_path(delete) is not None)
    return replace(file, deletes=applying, delete_files=len(applying), deleted_rows=min(file.rows, known))


def _bitmap_bytes(rows: BitMap) -> int:
    """Return about the memory of a bitmap: two bytes a row, or one bit of each position (roaring bitmaps)."""
    return 500 + min(2 * len(rows), (rows.max() + 1) // 8 if rows else 0)
