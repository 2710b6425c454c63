"""Small tables in real catalogs, other writers that change them, and what must hold of every table at any time."""

from __future__ import annotations

import dataclasses
import itertools
import re
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    MANIFEST_ENTRY_SCHEMAS,
    ManifestContent,
    ManifestEntryStatus,
    ManifestFile,
    read_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot, ancestors_of
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    AssertRefSnapshotId,
    AssertTableUUID,
    TableUpdate,
)
from pyiceberg.transforms import parse_transform
from pyiceberg.types import LongType, NestedField, StringType, TimestampType

from icesize.environment import Environment
from icesize.maintenance.verify.verification import verify
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import uncommitted
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.policy import SizePolicy
from icesize.storage.table_storage import Storage
from icesize.table.catalog.history import head_of
from icesize.table.commit.attempted_steps import CommitOutcome, commit_steps, steps_of
from icesize.table.commit.documents import lossless
from icesize.table.commit.protocol import Base, CommitRequest
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_ref
from icesize.table.commit.steps.absorb import Absorb
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.commit.steps.rewrite_manifests import RewriteManifests
from icesize.table.manifests.entries import Entry
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.summary import KIND, LEDGER, RUN_ID
from icesize.table.state.layouts import LayoutReader
from tests.support.row_lineage import records
from tests.support.v3_tables import as_v3

SCHEMA = Schema(
    NestedField(1, "id", LongType()), NestedField(2, "kind", StringType()), NestedField(3, "ts", TimestampType())
)
LIMIT = 2**20
NEW_TABLES = "tests.new-tables"
"""A property of a catalog with the value `v3`, if tests want their tables in format v3 there."""
NOW_MS = 1_700_000_000_000
_numbers = itertools.count()


def sqlite_catalog(folder: Path, name: str = "lake") -> SqlCatalog:
    """A catalog in one file of `folder`, tables below it, with namespace `db`."""
    catalog = SqlCatalog(name, uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/warehouse")
    catalog.create_namespace_if_not_exists("db")
    return catalog


def spec_of(transforms: Mapping[str, str]) -> PartitionSpec:
    """A spec with one field for each column: `{"kind": "identity", "id": "bucket[4]"}`."""
    if not transforms:
        return UNPARTITIONED_PARTITION_SPEC
    fields = []
    for i, (column, transform) in enumerate(transforms.items()):
        name = column if transform == "identity" else f"{column}_{transform.split('[')[0]}"
        fields.append(PartitionField(SCHEMA.find_field(column).field_id, 1000 + i, parse_transform(transform), name))
    return PartitionSpec(*fields, spec_id=0)


def make_table(
    catalog: Catalog,
    transforms: Mapping[str, str] | None = None,
    properties: Mapping[str, str] | None = None,
    name: str = "db.t",
) -> Table:
    """An empty table of SCHEMA, partitioned by `kind` unless told otherwise."""
    spec = spec_of({"kind": "identity"} if transforms is None else transforms)
    table: Table = catalog.create_table(name, SCHEMA, partition_spec=spec, properties=dict(properties or {}))
    return as_v3(catalog, name) if catalog.properties.get(NEW_TABLES) == "v3" else table


def arrow(ids: Iterable[int], kind: str | None = "a") -> pa.Table:
    """Rows of SCHEMA with these ids, an hour apart."""
    ids = list(ids)
    hours = pa.array([i * 3_600_000_000 for i in ids], pa.timestamp("us"))
    return pa.table({"id": pa.array(ids, pa.int64()), "kind": pa.array([kind] * len(ids), pa.string()), "ts": hours})


def write(table: Table, ids: Iterable[int], kind: str | None = "a") -> NewDataFile:
    """Rows as one file of the table, not visible yet."""
    settings = WriteSettings.of(table.metadata, table.io.properties, 512 * LIMIT)
    (file,) = write_rows([arrow(ids, kind)], settings, FileNames("test", next(_numbers), 0))
    return file


def layout_of(table: Table) -> Layout:
    """What is in the loaded table, every file being small."""
    return LayoutReader(LIMIT).read(table.metadata, table.io)


def age_of(layout: Layout, key: PartitionKey) -> int:
    """Return the number of commits that added rows after the newest rows of a partition."""
    return layout.commits_since(layout.partitions[key].newest)


def small_files(table: Table, kind: str | None = None) -> list[FileFact]:
    """Live files, oldest first; of one partition when `kind` is given."""
    facts = [f for p in layout_of(table).partitions.values() for f in p.small]
    chosen = [f for f in facts if kind is None or f.partition.values == (kind,)]
    return sorted(chosen, key=lambda f: (f.sequence_number, f.path))


def merged(table: Table, inputs: Sequence[FileFact], *, keeps_map: bool = False) -> MergeResult:
    """Input files merged into one file, not visible yet; without a map of the rows, unless it is kept."""
    settings = WriteSettings.of(table.metadata, table.io.properties, 512 * LIMIT)
    task = MergeTask(tuple(inputs), inputs[0].partition)
    done = merge(task, settings, FileNames("merge", next(_numbers), 0))
    return MergeResult(task.inputs, done.files, row_map=done.row_map if keeps_map else None)


def request_on(
    table: Table,
    appended: Iterable[NewDataFile] = (),
    groups: Iterable[MergeResult] = (),
    batch: LedgerEntry | int | None = None,
    absorbed: Iterable[FileFact] = (),
    **others: Any,
) -> CommitRequest:
    """A commit planned on the loaded state of a table; a batch number is one of stream `s`, query `q`."""
    metadata = table.metadata
    return CommitRequest(
        table_uuid=str(metadata.table_uuid),
        base=Base(head_of(metadata), metadata.schema(), metadata.spec(), metadata.format_version),
        run_id=f"run-{next(_numbers)}",
        steps=steps_of(appended, groups, absorbed),
        ledger=LedgerEntry("s", "q", batch) if isinstance(batch, int) else batch,
        **others,
    )


class FakeTime:
    """A clock that only goes on when somebody sleeps; `on_sleep` hooks in what others do meanwhile."""

    def __init__(self, on_sleep: Callable[[], object] = lambda: None) -> None:
        self.seconds = 0.0
        self.sleeps: list[float] = []
        self.on_sleep = on_sleep

    def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.seconds += seconds + 0.001
        self.on_sleep()

    @property
    def environment(self) -> Environment:
        return Environment(lambda: self.seconds, sleep=self.sleep)


def run(
    catalog: Catalog,
    request: CommitRequest,
    table: Table,
    time: FakeTime | None = None,
    now_ms: int = NOW_MS,
    store: ManifestStore | None = None,
) -> CommitOutcome:
    """Commit a request by the real committer, without waiting. `store` caches manifests."""
    committer = PyIcebergCommitter(catalog, table, lambda: now_ms, store=store or ManifestStore())
    return commit_by(committer, request, table, time)


def commit_by(
    committer: PyIcebergCommitter,
    request: CommitRequest,
    table: Table,
    time: FakeTime | None = None,
    deadline_seconds: float = SizePolicy().commit_deadline_ms / 1000,
) -> CommitOutcome:
    """Commit a request whose files a run has written, which removes those that do not land."""
    with uncommitted(Storage(table.io), "run", (time or FakeTime()).environment) as (owner, environment):
        owner.note(request.paths())
        return commit_steps(request, committer, environment, deadline_seconds)


def append(catalog: Catalog, ids: Iterable[int], kind: str | None = "a", batch: int | None = None) -> Table:
    """Rows committed through icesize; returns the table with them."""
    table = catalog.load_table("db.t")
    run(catalog, request_on(table, [write(table, ids, kind)], batch=batch), table)
    return catalog.load_table("db.t")


def compact(catalog: Catalog, kind: str = "a") -> Table:
    """All files of a partition merged into one, as the compaction of another writer does."""
    table = catalog.load_table("db.t")
    run(catalog, request_on(table, groups=[merged(table, small_files(table, kind))]), table)
    return catalog.load_table("db.t")


def ids_of(catalog: Catalog, name: str = "db.t") -> list[int]:
    """All rows that a reader sees, by id."""
    return sorted(catalog.load_table(name).scan(selected_fields=("id",)).to_arrow()["id"].to_pylist())


class CountingIO(PyArrowFileIO):
    """Storage that notes what is opened."""

    def __init__(self) -> None:
        super().__init__({})
        self.opened: list[str] = []

    def new_input(self, location: str) -> InputFile:  # type: ignore[override]
        self.opened.append(location)
        return super().new_input(location)

    @property
    def manifests(self) -> list[str]:
        """Manifests among that, lists of them left out."""
        return [each for each in self.opened if re.search(r"-m\d+\.avro$", each)]


def live_paths(table: Table) -> list[str]:
    """Data files of the current snapshot, as PyIceberg itself reads its manifests; one twice if listed twice."""
    head = table.metadata.current_snapshot()
    manifests = [m for m in head.manifests(table.io) if m.content == ManifestContent.DATA] if head else []
    return [e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io)]


def local(path: str) -> Path:
    """A location in the local file system: Java writes one slash where Python writes three."""
    return Path("/" + path.removeprefix("file:").lstrip("/"))


def data_files_on_disk(table: Table) -> set[str]:
    """Every data file below the table's folder, referenced or not."""
    return {f"file://{p}" for p in local(table.location()).rglob("*.parquet")}


def metadata_files_on_disk(table: Table) -> set[str]:
    """Every manifest and manifest list below the table's folder."""
    return {f"file://{p}" for p in local(table.location()).rglob("*.avro")}


def referenced_metadata(table: Table) -> set[str]:
    """Manifests and manifest lists that some snapshot of the table needs."""
    lists = {s.manifest_list for s in table.metadata.snapshots}
    return lists | {m.manifest_path for s in table.metadata.snapshots for m in s.manifests(table.io)}


def operations(table: Table) -> list[str]:
    """What the snapshots of the table did, oldest first."""
    return [s.summary.operation.value for s in table.metadata.snapshots if s.summary]


def manifests_of(snapshot: Snapshot) -> tuple[ManifestFile, ...]:
    """The manifests of a local table's snapshot, as PyIceberg reads its list. What was read is kept."""
    return _listed(snapshot.manifest_list, *_version(snapshot.manifest_list))


def entries_of(manifest: ManifestFile) -> tuple[Any, ...]:
    """The records of a local manifest, as PyIceberg reads them with the schema of format v3. What was read is kept."""
    return _records(manifest.manifest_path, *_version(manifest.manifest_path))


def _version(path: str) -> tuple[int, int]:
    """What another content of the same file has otherwise: some tests damage files."""
    found = local(path).stat()
    return found.st_mtime_ns, found.st_size


@lru_cache(maxsize=1024)
def _listed(path: str, changed_ns: int, size_bytes: int) -> tuple[ManifestFile, ...]:
    return tuple(read_manifest_list(PyArrowFileIO().new_input(path)))


@lru_cache(maxsize=1024)
def _records(path: str, changed_ns: int, size_bytes: int) -> tuple[Any, ...]:
    return tuple(records(PyArrowFileIO(), path, MANIFEST_ENTRY_SCHEMAS[3]))


def check(table: Table) -> None:
    """What holds of every table at any time, whatever happened to it."""
    head = table.metadata.current_snapshot()
    rows, size, paths = 0, 0, list[str]()
    for manifest in manifests_of(head) if head else ():
        for status, *_, file in entries_of(manifest):
            if status == ManifestEntryStatus.DELETED:
                continue
            path, count, size_bytes, vector_bytes = (file[at] for at in (1, 4, 5, 19))
            paths += [path] if manifest.content == ManifestContent.DATA else []
            assert local(path).stat().st_size == size_bytes
            assert vector_bytes is not None or pq.read_metadata(local(path)).num_rows == count
            size += size_bytes if vector_bytes is None else vector_bytes
            rows += count if manifest.content == ManifestContent.DATA else 0
    assert len(paths) == len(set(paths)), "a file is listed twice"
    if head and head.summary:
        summary = head.summary.additional_properties
        assert int(summary["total-data-files"]) == len(paths)
        assert int(summary["total-records"]) == rows
        assert int(summary["total-files-size"]) == size
    for snapshot in table.metadata.snapshots:
        for manifest in manifests_of(snapshot):
            assert local(manifest.manifest_path).is_file()
    assert not removed_and_live(table), "a file that a snapshot has removed is live, expiry by Java would delete it"
    times = [entry.timestamp_ms for entry in table.metadata.snapshot_log]
    assert times == sorted(times)
    assert table.metadata.last_updated_ms >= (times[-1] if times else 0)
    check_batches(table.metadata)
    assert [finding for finding in verify("t", table.metadata, table.io).findings if finding.is_error] == []


def removed_and_live(table: Table) -> set[str]:
    """Live files that the head or a snapshot before it in its history lists as removed.

    Iceberg's Java library deletes what an expired snapshot has removed, without looking whether it is live.
    """
    line = list(ancestors_of(table.metadata.current_snapshot(), table.metadata))
    manifests = {m.manifest_path: m for s in line for m in manifests_of(s)}.values()
    entries = (entry for manifest in manifests for entry in entries_of(manifest))
    removed = {file[1] for status, *_, file in entries if status == ManifestEntryStatus.DELETED}
    of_head = (entry for snapshot in line[:1] for manifest in manifests_of(snapshot) for entry in entries_of(manifest))
    return removed & {file[1] for status, *_, file in of_head if status != ManifestEntryStatus.DELETED}


def check_batches(metadata: TableMetadata) -> None:
    """Each batch has at most one snapshot that brings its rows, and one that merges."""
    batches = [
        (s.summary.additional_properties[LEDGER], s.summary.operation == Operation.REPLACE)
        for s in metadata.snapshots
        if s.summary and LEDGER in s.summary.additional_properties
    ]
    assert len(batches) == len(set(batches)), "a batch was committed twice"


def writing(catalog: Catalog, table: Table) -> Catalog:
    """The catalog for one commit: PyIceberg's own ones write no metadata of format v3."""
    return lossless(catalog) if table.metadata.format_version > 2 else catalog


def theirs(table: Table) -> Table:
    """The table for commits of PyIceberg's own, in each format version."""
    table.catalog = writing(table.catalog, table)
    return table


def expire(table: Table, *, keep: int = 1) -> None:
    """Expire all but the newest snapshots of main."""
    ids = [entry.snapshot_id for entry in table.metadata.snapshot_log][:-keep]
    theirs(table).maintenance.expire_snapshots().by_ids(ids).commit()


def with_run_id(request: CommitRequest) -> CommitRequest:
    """The same work asked for by another process."""
    return replace(request, run_id=f"run-{next(_numbers)}")


def two_files(catalog: Catalog, **options: Any) -> Table:
    """A table with rows 1 and 2 in two small files of partition `a`."""
    make_table(catalog, **options)
    append(catalog, [1])
    return append(catalog, [2])


def batch(catalog: Catalog, number: int = 1) -> CommitRequest:
    """Row 3 and a merge of all files of partition `a`, written and ready to be committed."""
    table = catalog.load_table("db.t")
    return request_on(table, [write(table, [3])], [merged(table, small_files(table, "a"))], batch=number)


def landed(catalog: Catalog, rows: list[int]) -> Table:
    """The table, in good order, with exactly these rows."""
    table = catalog.load_table("db.t")
    check(table)
    assert ids_of(catalog) == rows
    return table


def head_id(table: Table) -> int:
    head = table.metadata.current_snapshot()
    assert head is not None
    return head.snapshot_id


def commit_built(catalog: Catalog, build: Callable[[SnapshotBuilder], Snapshot | None]) -> Table:
    """One snapshot made by the builder of commits."""
    table = catalog.load_table("db.t")
    snapshot = build(SnapshotBuilder(table, NOW_MS))
    if snapshot is not None:
        unmoved = AssertRefSnapshotId(**{"ref": "main", "snapshot-id": head_id(table)})
        updates = AddSnapshotUpdate(snapshot=snapshot), move_ref(table.metadata, "main", snapshot.snapshot_id)
        writing(catalog, table).commit_table(table, (unmoved,), updates)
    return catalog.load_table("db.t")


def overwritten(
    builder: SnapshotBuilder,
    gone: Iterable[str],
    added: Iterable[NewDataFile] = (),
    copied: Iterable[Entry] = (),
    summary: Mapping[str, str] | None = None,
) -> Snapshot:
    """An OVERWRITE by the builder: files at the paths `gone` for others."""
    removed = tuple(FileFact(path, 0, 0, PartitionKey(0, ())) for path in gone)
    return Absorb(removed, tuple(added), tuple(copied)).stage(builder, summary or {})


def replaced(
    builder: SnapshotBuilder,
    inputs: Iterable[FileFact],
    outputs: Iterable[NewDataFile],
    summary: Mapping[str, str] | None = None,
) -> Snapshot:
    """A REPLACE by the builder."""
    return Merge((MergeResult(tuple(inputs), tuple(outputs)),)).stage(builder, summary or {})


def new_files(request: CommitRequest) -> tuple[NewDataFile, ...]:
    """Files of a request that hold new rows."""
    return next((step.files for step in request.steps if isinstance(step, (Append, Absorb))), ())


def merges(request: CommitRequest) -> tuple[MergeResult, ...]:
    """Groups of files that a request replaces."""
    return next((step.groups for step in request.steps if isinstance(step, Merge)), ())


def with_merges(request: CommitRequest, *groups: MergeResult) -> CommitRequest:
    """The request with these merges."""
    others = tuple(step for step in request.steps if not isinstance(step, Merge))
    return dataclasses.replace(request, steps=(*others, Merge(groups)) if groups else others)


def rewrite_manifests(catalog: Catalog) -> Table:
    """All manifests as one, where there are several, every file left as it is."""
    return commit_built(
        catalog,
        lambda builder: RewriteManifests().stage(builder, {RUN_ID: "rewrite", KIND: RewriteManifests.kind.value}),
    )


def make_visible(catalog: Catalog, table: Table, snapshots: Sequence[Snapshot]) -> None:
    """Make snapshots visible in one metadata file; the last one becomes the head of main."""
    head = move_ref(table.metadata, "main", snapshots[-1].snapshot_id)
    updates: tuple[TableUpdate, ...] = (*(AddSnapshotUpdate(snapshot=s) for s in snapshots), head)
    same_table = AssertTableUUID(uuid=uuid.UUID(str(table.metadata.table_uuid)))
    writing(catalog, table).commit_table(table, (same_table,), updates)
