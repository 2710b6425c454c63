"""What the model-based test knows of a table: a reader of its own and a model of its rows."""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, DataFileContent, ManifestEntryStatus, ManifestFile
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.snapshots import Operation, Snapshot
from pyroaring import BitMap64

from icesize import failpoints
from icesize.environment import Environment
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.protocol import CommitRequest
from icesize.table.records.summary import RESTORED_ID
from tests.support.rest_server import MiniRest
from tests.support.row_lineage import Lineage, first_row_ids, records
from tests.support.tables import LIMIT, FakeTime, arrow, check, local, make_table, referenced_metadata, run, small_files
from tests.support.v3_tables import as_v3

Row = tuple[int, str, int, int | None]
"""Columns 1 to 4 by their field ids, whatever they are called: id, kind, hours, and a number that came later."""
Rows = Counter[tuple[PartitionKey, Row]]
"""Rows and the partitions that their files are in."""


class Killed(BaseException):
    """The process ends here: nothing after it runs, no cleanup either."""


@contextmanager
def killed_at(point: str | None) -> Iterator[None]:
    """Die at a failpoint, when the block gets there (other writers, in other threads, pass it); nothing is removed."""
    mortal, dead = threading.get_ident(), list[bool]()

    def die() -> None:
        if threading.get_ident() == mortal:
            dead.append(True)
            raise Killed(point)

    def stay_dead() -> None:
        if dead and threading.get_ident() == mortal:
            raise Killed(point)

    if point is None:
        yield
        return
    with failpoints.armed(point, die), failpoints.armed("cleanup", stay_dead):
        yield


_EPOCH = datetime(1970, 1, 1)
_LINEAGE_IDS = 2147483540, 2147483539
"""Iceberg's field ids of `_row_id` and `_last_updated_sequence_number`."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True)
class Listed:
    """One live entry of a manifest; `referenced`, `offset` and `size_bytes` say where a deletion vector is."""

    path: str
    content: DataFileContent
    partition: PartitionKey
    sequence_number: int
    referenced: str | None = None
    offset: int | None = None
    size_bytes: int | None = None


@dataclass
class Reader:
    """Rows of a snapshot as Iceberg's specification says, deletes of all kinds applied; PyIceberg reads not all.

    What was read is kept: files never change.
    """

    _manifests: dict[str, list[Listed]] = field(default_factory=dict)
    _files: dict[Hashable, Any] = field(default_factory=dict)

    def entries(self, snapshot: Snapshot, io: FileIO) -> list[Listed]:
        """Live data and delete files."""
        return [entry for manifest in snapshot.manifests(io) for entry in self._listed(manifest, io)]

    def rows(self, snapshot: Snapshot, io: FileIO) -> Rows:
        """What a reader of the snapshot sees."""
        return Counter((data.partition, row) for data, _, row in self.live(snapshot, io))

    def lineage(self, snapshot: Snapshot, table: Table) -> Lineage:
        """Row id and last change of each row that a reader of the snapshot sees, by the column `id`."""
        firsts, found = first_row_ids(table, snapshot), Lineage()
        for data, position, row in self.live(snapshot, table.io):
            row_id, last = self._columns(data.path, _LINEAGE_IDS)[position]
            first, _ = firsts[data.path]
            inherited = None if first is None else first + position
            found[row[0]] = (inherited if row_id is None else row_id, data.sequence_number if last is None else last)
        return found

    def live(self, snapshot: Snapshot, io: FileIO) -> Iterator[tuple[Listed, int, Row]]:
        """Each row that a reader of the snapshot sees, with its file and its position there."""
        entries = self.entries(snapshot, io)
        deletes = [e for e in entries if e.content != DataFileContent.DATA]
        for data in entries:
            if data.content == DataFileContent.DATA:
                near = [d for d in deletes if d.partition == data.partition]
                vectors = [d for d in near if d.referenced == data.path and d.offset is not None]
                assert len(vectors) <= 1, f"two vectors for {data.path}"
                # readers ignore position deletes beside a vector
                gone = [d for d in near if not vectors or d.content == DataFileContent.EQUALITY_DELETES] + vectors
                for position, row in enumerate(self.rows_in(data.path)):
                    if not any(self._hits(delete, data, position, row) for delete in gone):
                        yield data, position, row

    def _hits(self, delete: Listed, data: Listed, position: int, row: Row) -> bool:
        if delete.content == DataFileContent.POSITION_DELETES:
            of_file = delete.sequence_number >= data.sequence_number
            if delete.offset is not None:
                return of_file and delete.referenced == data.path and position in self._vector(delete)
            return of_file and (data.path, position) in self._pairs(delete.path)
        return delete.sequence_number > data.sequence_number and any(
            row[0] == each[0] for each in self.rows_in(delete.path)
        )

    def _listed(self, manifest: ManifestFile, io: FileIO) -> list[Listed]:
        if manifest.manifest_path not in self._manifests:
            entries = manifest.fetch_manifest_entry(io, discard_deleted=False)
            # PyIceberg reads manifests by the schema of v2, which lacks the fields of vectors
            files = [each[4] for each in records(io, manifest.manifest_path, MANIFEST_ENTRY_SCHEMAS[3])]
            self._manifests[manifest.manifest_path] = [
                Listed(
                    entry.data_file.file_path,
                    entry.data_file.content,
                    PartitionKey(manifest.partition_spec_id, tuple(entry.data_file.partition._data)),
                    entry.sequence_number or 0,
                    *file[17:20],
                )
                for entry, file in zip(entries, files, strict=True)
                if entry.status != ManifestEntryStatus.DELETED
            ]
        return self._manifests[manifest.manifest_path]

    def deleted_by(self, delete: Listed) -> dict[str, set[int]]:
        """The positions that a position delete file or a vector has, by the path of the data file."""
        if delete.offset is not None:
            return {delete.referenced or "": set(self._vector(delete))}
        named = defaultdict[str, set[int]](set)
        for path, position in self._pairs(delete.path):
            named[path].add(position)
        return named

    def stored_rows(self, path: str) -> int:
        """The number of rows of a data file, dead ones included."""
        if (path, ()) not in self._files:
            self._files[path, ()] = pq.read_metadata(local(path)).num_rows
        return self._files[path, ()]  # type: ignore[no-any-return]

    def rows_in(self, path: str) -> list[Row]:
        """What a data file holds (of an equality delete: the ids)."""
        rows: list[Row] = self._columns(path, (1, 2, 3, 4))
        return rows

    def _columns(self, path: str, ids: tuple[int, ...]) -> list[Any]:
        """Columns of a file by their ids, row by row; what it lacks is None."""
        if (path, ids) not in self._files:
            table = pq.read_table(local(path), partitioning=None)
            by_id = {int(f.metadata[b"PARQUET:field_id"]): table[f.name].to_pylist() for f in table.schema}
            columns = [by_id.get(i, [None] * table.num_rows) for i in ids]
            self._files[path, ids] = [tuple(map(_hours, row)) for row in zip(*columns, strict=True)]
        return self._files[path, ids]  # type: ignore[no-any-return]

    def _pairs(self, path: str) -> set[tuple[str, int]]:
        if path not in self._files:
            table = pq.read_table(local(path), partitioning=None)
            self._files[path] = set(zip(table["file_path"].to_pylist(), table["pos"].to_pylist(), strict=True))
        return self._files[path]  # type: ignore[no-any-return]

    def _vector(self, delete: Listed) -> BitMap64:
        if delete not in self._files:
            start, length = delete.offset or 0, delete.size_bytes or 0
            blob = local(delete.path).read_bytes()[start : start + length]
            self._files[delete] = BitMap64.deserialize(blob[8:-4])
        return self._files[delete]  # type: ignore[no-any-return]


def _hours(value: Any) -> Any:
    return int((value - _EPOCH).total_seconds()) // 3600 if isinstance(value, datetime) else value


class HookedCatalog(SqlCatalog):
    """A catalog in a SQLite file that calls what is in `before_swap` just before the next commit, in another thread."""

    def __init__(self, name: str, **properties: str) -> None:
        self.before_swap: list[Callable[[], None]] = []
        super().__init__(name, **properties)

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        if self.before_swap:
            with ThreadPoolExecutor(1) as others:
                others.submit(self.before_swap.pop()).result()
        return super().commit_table(*arguments)


@dataclass
class ModelledTable:
    """One table `db.t`, who works on it, and the model: the rows that it must have now, and had at every snapshot."""

    folder: Path
    version: str = ""
    rows: Rows = field(default_factory=Counter)
    history: dict[int, Rows] = field(default_factory=dict)
    refs: dict[str, int] = field(default_factory=dict)
    deletes: bool = False
    equality_deletes: bool = False
    specs_changed: bool = False
    next_id: int = 0
    updated: set[int] = field(default_factory=set)
    reader: Reader = field(default_factory=Reader)
    _files: dict[int, frozenset[str]] = field(default_factory=dict)
    _lineages: dict[int, Lineage] = field(default_factory=dict)
    _born: dict[int, tuple[int | None, int | None] | None] = field(default_factory=dict)

    @cached_property
    def mini(self) -> MiniRest:
        return MiniRest(self.folder)

    @cached_property
    def own_catalog(self) -> Catalog:
        return self.mini.catalog("lake")

    @cached_property
    def other_catalog(self) -> Catalog:
        return self.mini.catalog("rival")

    def begin(self, version: str) -> None:
        """Make the table, and one beside it that nobody must touch."""
        self.version = version
        properties = {"format-version": min(version, "2"), "commit.manifest.min-count-to-merge": "3"}
        self.own_catalog.create_namespace_if_not_exists("db")
        neighbour = make_table(self.own_catalog, name="db.neighbour")
        neighbour.append(arrow([1]))
        make_table(self.own_catalog, properties=properties)
        if version == "3":
            as_v3(self.own_catalog)
        self._beside = self._digest_beside()

    def table(self) -> Table:
        table: Table = self.own_catalog.load_table("db.t")
        return table

    def new_ids(self, count: int) -> list[int]:
        """In no order, so that what files hold overlaps."""
        self.next_id += count
        return [number * 618_034 % 1_000_003 for number in range(self.next_id - count, self.next_id)]

    def arrow(self, table: Table, ids: Sequence[int], kind: str) -> pa.Table:
        """New rows under the names that the table's columns have now."""
        schema = table.schema()
        rows = arrow(ids, kind).rename_columns([schema.find_field(i).name for i in (1, 2, 3)])
        if (late := schema.find_column_name(4)) is not None:
            rows = rows.append_column(late, pa.array(ids, pa.int32()))
        return rows

    def write(
        self, table: Table, ids: Sequence[int], kind: str, absorbed: Iterable[Sequence[FileFact]] = ()
    ) -> list[NewDataFile]:
        """New rows as files of the table, not visible yet, and the rows of older files of some partitions in them."""
        settings = WriteSettings.of(table.metadata, table.io.properties, 512 * LIMIT)
        taken = Absorption({0: tuple(MergeTask(tuple(files), files[0].partition) for files in absorbed)})
        names = FileNames("test", self.next_id, 0)
        written = write_with(taken, 0, [self.arrow(table, ids, kind)], settings, names)
        assert not written.failed
        return list(written.files)

    def rows_of(self, files: Iterable[NewDataFile]) -> Rows:
        """What the model has when these files become visible."""
        return Counter((f.partition, row) for f in files for row in self.reader.rows_in(f.path))

    def mergeable(self, table: Table) -> dict[PartitionKey, list[FileFact]]:
        """By partition of the current spec the files that may be merged, where there are two or more."""
        found: dict[PartitionKey, list[FileFact]] = {}
        for file in small_files(table):
            if file.obstacle is None and file.partition.spec_id == table.metadata.default_spec_id:
                found.setdefault(file.partition, []).append(file)
        return {key: files for key, files in found.items() if len(files) > 1}

    def look(self) -> None:
        """Every invariant of a table at rest; snapshots that are new are read, those that went are forgotten."""
        table = self.table()
        metadata, io = table.metadata, table.io
        for snapshot in metadata.snapshots:
            if snapshot.snapshot_id not in self.history:
                self.history[snapshot.snapshot_id] = self.reader.rows(snapshot, io)
                entries = self.reader.entries(snapshot, io)
                self._files[snapshot.snapshot_id] = frozenset(e.path for e in entries)
                self._check_replace(snapshot)
                self._check_lineage(snapshot, table)
        there = {s.snapshot_id for s in metadata.snapshots}
        self.history = {i: rows for i, rows in self.history.items() if i in there}
        self._files = {i: files for i, files in self._files.items() if i in there}
        self._lineages = {i: lineage for i, lineage in self._lineages.items() if i in there}
        head = metadata.current_snapshot()
        assert (self.history[head.snapshot_id] if head else Counter()) == self.rows
        for path in frozenset().union(*self._files.values()):
            assert local(path).is_file(), f"a snapshot needs {path}"
        check(table)
        now = {name: ref.snapshot_id for name, ref in metadata.refs.items() if name in self.refs}
        assert now == self.refs, "a branch or tag of somebody else was moved or removed"
        assert self._digest_beside() == self._beside, "something outside of the table was touched"

    def _check_replace(self, snapshot: Snapshot) -> None:
        parent = self.history.get(snapshot.parent_snapshot_id or 0)
        if parent is not None and snapshot.summary and snapshot.summary.operation == Operation.REPLACE:
            assert plain(parent) == plain(self.history[snapshot.snapshot_id]), "a replace changed rows"

    def _check_lineage(self, snapshot: Snapshot, table: Table) -> None:
        """A row keeps its row id and its last change for good. Rows older than format v3 get them in each history.

        Rows that were `updated` may have others.
        """
        if snapshot.first_row_id is None:
            for _, row in self.history[snapshot.snapshot_id]:
                self._born.setdefault(row[0], None)
            return
        now = self._lineages[snapshot.snapshot_id] = self.reader.lineage(snapshot, table)
        row_ids = {row_id for row_id, _ in now.values()}
        assert None not in row_ids
        assert len(row_ids) == len(now), "two rows have one row id"
        facts = snapshot.summary.additional_properties if snapshot.summary else {}
        restored = int(facts.get(RESTORED_ID, 0))
        befores = [self._lineages.get(i, {}) for i in (snapshot.parent_snapshot_id or 0, restored)]
        new = {row[0] for _, row in self.history.get(restored, ())} if restored not in self._lineages else set()
        for number, lineage in now.items():
            known = self._born.setdefault(number, lineage)
            before = [each[number] for each in befores if number in each] if known is None else [known]
            is_same = not before or number in new or number in self.updated or lineage in before
            assert is_same, f"row {number} had {before}, has {lineage}"

    def _digest_beside(self) -> list[tuple[str, int, int]]:
        """Names, sizes and times of the files below the warehouse that are not the table's."""
        stats = [(str(p), p.stat()) for p in sorted(self.folder.rglob("*")) if p.is_file() and "/db/t/" not in str(p)]
        return [(path, stat.st_size, stat.st_mtime_ns) for path, stat in stats]

    def needed(self) -> set[Path]:
        """Files (metadata JSON aside) that some snapshot needs."""
        return {local(path) for path in referenced_metadata(self.table()).union(*self._files.values())}

    def on_storage(self) -> set[Path]:
        """Files below the table's location besides metadata JSON and the clock of the storage."""
        found = (p for p in local(self.table().location()).rglob("*") if p.is_file())
        return {p for p in found if not p.name.endswith(".metadata.json")}

    def age(self, days: int = 4) -> None:
        """Every file of the table looks some days older."""
        for path in local(self.table().location()).rglob("*"):
            if path.is_file():
                then = path.stat().st_mtime - days * 86_400
                os.utime(path, (then, then))

    def environment(self, later_ms: int = 0) -> Environment:
        """No waiting; `later_ms` after the time that the clock shows."""
        clock = FakeTime()
        return replace(clock.environment, now_ms=lambda: now_ms() + later_ms)

    def commit(self, request: CommitRequest, table: Table) -> CommitOutcome:
        return run(self.own_catalog, request, table, now_ms=now_ms())


def plain(rows: Rows) -> Counter[Row]:
    """Rows wherever they are."""
    found: Counter[Row] = Counter()
    for (_, row), count in rows.items():
        found[row] += count
    return found
