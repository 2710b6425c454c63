"""Manifests read and written by icesize are those that PyIceberg reads and writes, statistics included."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    read_manifest_list,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from icesize.errors import TableError, UnsupportedTable
from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import FileFact, PartitionKey, SkipReason
from icesize.table.manifests.avro_container import ContainerReader, ContainerWriter
from icesize.table.manifests.avro_values import structure
from icesize.table.manifests.entries import (
    ADDED,
    DELETED,
    EXISTING,
    DataFileSchema,
    Entry,
    read_entries,
    under_new_path,
    with_other_value,
)
from icesize.table.manifests.file_columns import EntryColumns, ManifestFacts, read_facts, read_metrics
from icesize.table.manifests.manifest_lists import encoded_list
from icesize.table.manifests.store import ManifestStore
from icesize.table.manifests.writer import ManifestStream, ManifestWriter
from tests.support.examples import examples
from tests.support.manifest_values import check_written_facts, plain, without_zero_sign
from tests.support.parquet_files import data_file

SCHEMA = Schema(
    NestedField(1, "flag", BooleanType()),
    NestedField(2, "int", IntegerType(), required=True),
    NestedField(3, "long", LongType()),
    NestedField(4, "float", FloatType()),
    NestedField(5, "double", DoubleType()),
    NestedField(6, "date", DateType()),
    NestedField(7, "at", TimestampType()),
    NestedField(8, "attz", TimestamptzType()),
    NestedField(9, "text", StringType()),
    NestedField(10, "uuid", UUIDType()),
    NestedField(11, "bytes", BinaryType()),
    NestedField(12, "money", DecimalType(9, 2)),
    NestedField(13, "big", DecimalType(38, 5)),
    NestedField(14, "other", DecimalType(9, 3)),
)
_TRANSFORMS: dict[int, Transform[Any, Any]] = {
    1: VoidTransform(),
    3: BucketTransform(16),
    7: DayTransform(),
    11: TruncateTransform(2),
}
SPEC = PartitionSpec(
    *[
        PartitionField(f.field_id, 1000 + f.field_id, _TRANSFORMS.get(f.field_id, IdentityTransform()), f"p_{f.name}")
        for f in SCHEMA.fields
    ],
    spec_id=0,
)
_INTS = st.integers(-(2**31), 2**31 - 1)
_LONGS = st.integers(-(2**63), 2**63 - 1)
_DOUBLES = st.floats(width=32)  # PyIceberg 0.12.0 reads a double with the precision of a float
VALUES = st.tuples(
    st.none(),
    _INTS,
    st.none() | st.integers(0, 15),
    st.none() | st.floats(width=32),
    st.none() | _DOUBLES,
    st.none() | _INTS,
    st.none() | _INTS,
    st.none() | _LONGS,
    st.none() | st.text(max_size=9),
    st.none() | st.uuids(),
    st.none() | st.binary(max_size=2),
    st.none() | st.decimals(-9999999, 9999999, places=2),
    st.none() | st.decimals(-(10**30), 10**30, places=5),
    st.none() | st.decimals(-999999, 999999, places=3),
)
_COUNTS = st.dictionaries(st.integers(1, 200), st.integers(0, 2**40), max_size=5)
_BOUNDS = st.dictionaries(
    st.integers(1, 200), st.binary(max_size=16) | st.just(to_bytes(DoubleType(), math.nan)), max_size=5
)
SEQUENCE, SNAPSHOT = 5, 77


@st.composite
def _written(draw: st.DrawFn) -> NewDataFile:
    return NewDataFile(
        path=f"file:///w/{draw(st.text('abcä', max_size=9))}-{draw(st.uuids())}.parquet",
        size_bytes=draw(st.integers(0, 2**40)),
        rows=draw(st.integers(0, 2**40)),
        partition=PartitionKey(0, draw(VALUES)),
        column_sizes=draw(_COUNTS),
        value_counts=draw(_COUNTS),
        null_value_counts=draw(_COUNTS),
        nan_value_counts=draw(_COUNTS),
        lower_bounds=draw(_BOUNDS),
        upper_bounds=draw(_BOUNDS),
        split_offsets=tuple(sorted(draw(st.sets(st.integers(4, 2**40), max_size=3)))),
        sort_order_id=draw(st.none() | st.integers(0, 9)),
        sequence_number=draw(st.none() | st.integers(0, SEQUENCE)),
    )


FILES = st.lists(_written(), min_size=1, max_size=6)
relaxed = examples(30)


class ManifestFolder:
    """Tables of both format versions, and paths for manifests of them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.io, self._n = folder, PyArrowFileIO(), itertools.count()
        self._catalog = InMemoryCatalog("m", warehouse=f"file://{folder}")
        self._catalog.create_namespace("db")
        self._tables: dict[tuple[int, PartitionSpec], Table] = {}

    def new_path(self) -> str:
        return f"file://{self.folder}/m{next(self._n)}.avro"

    def put(self, data: bytes) -> str:
        path = self.new_path()
        with self.io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
        return path

    def table(self, version: int, spec: PartitionSpec = SPEC, properties: dict[str, str] | None = None) -> Table:
        name = f"db.t{next(self._n)}"
        if properties:
            return self._catalog.create_table(name, SCHEMA, partition_spec=spec, properties=properties)
        if (version, spec) not in self._tables:
            made = self._catalog.create_table(
                name, SCHEMA, partition_spec=spec, properties={"format-version": str(version)}
            )
            self._tables[version, spec] = made
        return self._tables[version, spec]

    def write(
        self, version: int, *, spec: PartitionSpec = SPEC, snapshot_id: int = SNAPSHOT,
        content: ManifestContent = ManifestContent.DATA, **what: Any,
    ) -> list[ManifestFile]:  # fmt: skip
        """Manifests by icesize, listed and read back from their list. The facts that the writer has are right."""
        metadata, known = self.table(version, spec).metadata, dict[str, EntryColumns]()
        made = ManifestWriter(self.put, metadata, snapshot_id, spec.spec_id, content, facts=known).write(**what)
        check_written_facts(self.io, made, known)
        written = encoded_list(
            metadata.format_version, made, snapshot_id=snapshot_id, parent_id=None, sequence_number=SEQUENCE + 1
        )
        return list(read_manifest_list(self.io.new_input(self.put(written.data))))

    def write_by_pyiceberg(
        self, version: int, files: Sequence[NewDataFile], status: int = ADDED, sequence: int = SEQUENCE
    ) -> ManifestFile:
        table = self.table(version)
        path = self.new_path()
        out = write_manifest(version, table.spec(), table.schema(), self.io.new_output(path), SNAPSHOT, "deflate")  # type: ignore[arg-type]
        with out:
            for file in files:
                number = file.sequence_number if status == ADDED else file.sequence_number or 0
                out.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus(status),
                        snapshot_id=SNAPSHOT,
                        sequence_number=number,
                        file_sequence_number=None if status == ADDED else 3,
                        data_file=data_file(file),
                    )
                )
        manifest = out.to_manifest_file()
        manifest.sequence_number = sequence if version > 1 else 0
        return manifest


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    return ManifestFolder(tmp_path)


def facts(entry: ManifestEntry) -> tuple[Any, ...]:
    """Everything that PyIceberg knows of an entry but its status and where it came from."""
    return plain(entry.data_file)  # type: ignore[no-any-return]


def _but_path(known: tuple[Any, ...]) -> list[Any]:
    """Facts of a file without its path, which stands behind its content."""
    return [*known[:1], *known[2:]]


def of_pyiceberg(entry: ManifestEntry) -> tuple[Any, ...]:
    file = entry.data_file
    return (
        *(int(entry.status), entry.snapshot_id, entry.sequence_number, entry.file_sequence_number),
        *(file.file_path, file.file_format.value, plain(file.partition), file.record_count, file.file_size_in_bytes),
        file.key_metadata is not None,
    )


def of_ours(entry: Entry) -> tuple[Any, ...]:
    return (
        *(entry.status, entry.snapshot_id, entry.sequence_number, entry.file_sequence_number),
        *(entry.path, entry.file_format, plain(entry.values), entry.rows, entry.size_bytes, entry.encrypted),
    )


def fetched(folder: ManifestFolder, manifests: Iterable[ManifestFile]) -> list[ManifestEntry]:
    return [e for m in manifests for e in m.fetch_manifest_entry(folder.io, discard_deleted=False)]


def read(folder: ManifestFolder, manifests: Iterable[ManifestFile], **how: bool) -> list[Entry]:
    return [e for m in manifests for e in read_entries(folder.io, m, **how)]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("status", [ADDED, EXISTING, DELETED])
@relaxed
@given(files=FILES)
def test_reads_what_pyiceberg_reads(
    folder: ManifestFolder, version: int, status: int, files: list[NewDataFile]
) -> None:
    """Entries written by PyIceberg, of all partition types, read as its own reader reads them, inheritance included."""
    manifest = folder.write_by_pyiceberg(version, files, status)
    expected = fetched(folder, [manifest])
    assert [of_ours(e) for e in read(folder, [manifest], live_only=False)] == [of_pyiceberg(e) for e in expected]
    assert len(read(folder, [manifest])) == (0 if status == DELETED else len(files))


@pytest.mark.parametrize("version", [1, 2])
@relaxed
@given(files=FILES)
def test_new_files_read_back_by_pyiceberg(folder: ManifestFolder, version: int, files: list[NewDataFile]) -> None:
    """PyIceberg reads back every statistic and partition value of new files, and we read what it reads."""
    listed = folder.write(version, added=files)
    entries = fetched(folder, listed)
    assert [facts(e) for e in entries] == [plain(data_file(f)) for f in files]
    assert {int(e.status) for e in entries} == {ADDED}
    assert {e.snapshot_id for e in entries} == {SNAPSHOT}
    given_or_inherited = [SEQUENCE + 1 if f.sequence_number is None else f.sequence_number for f in files]
    assert [e.sequence_number for e in entries] == (given_or_inherited if version > 1 else [0] * len(files))
    assert [of_ours(e) for e in read(folder, listed)] == [of_pyiceberg(e) for e in entries]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("source", ["icesize", "pyiceberg"])
@relaxed
@given(files=FILES, new=st.lists(_written(), max_size=3), cut=st.integers(0, 6))
def test_copies_are_identical(
    folder: ManifestFolder, version: int, source: str, files: list[NewDataFile], new: list[NewDataFile], cut: int
) -> None:
    """Kept and deleted entries keep every field, their status is right, and one manifest takes them all."""
    origin = (
        [folder.write_by_pyiceberg(version, files)] if source == "pyiceberg" else folder.write(version, added=files)
    )
    before = {e.data_file.file_path: e for e in fetched(folder, origin)}
    entries = read(folder, origin)
    listed = folder.write(version, snapshot_id=99, added=new, existing=entries[cut:], deleted=entries[:cut])
    after = fetched(folder, listed)
    assert len(listed) == 1
    assert [int(e.status) for e in after] == (
        [ADDED] * len(new) + [DELETED] * len(entries[:cut]) + [EXISTING] * len(entries[cut:])
    )
    kept = [e for e in after if int(e.status) != ADDED]
    assert [facts(e) for e in kept] == [facts(before[e.data_file.file_path]) for e in kept]
    for entry in kept:
        old = before[entry.data_file.file_path]
        assert (entry.sequence_number, entry.file_sequence_number) == (old.sequence_number, old.file_sequence_number)
        assert entry.snapshot_id == (SNAPSHOT if int(entry.status) == EXISTING else 99)
    assert [facts(e) for e in after if int(e.status) == ADDED] == [plain(data_file(f)) for f in new]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("source", ["icesize", "pyiceberg"])
@relaxed
@given(files=FILES, prefix=st.text(max_size=200))
def test_copies_are_described_as_what_they_are_copies_of(
    folder: ManifestFolder, version: int, source: str, files: list[NewDataFile], prefix: str
) -> None:
    """PyIceberg reads them as files of the new snapshot, with all that the old ones had but path and numbers."""
    origin = (
        [folder.write_by_pyiceberg(version, files)] if source == "pyiceberg" else folder.write(version, added=files)
    )
    before = fetched(folder, origin)
    copies = [under_new_path(e, f"{prefix}/{i}.parquet") for i, e in enumerate(read(folder, origin))]
    listed = folder.write(version, snapshot_id=99, copied=copies)
    after = fetched(folder, listed)
    assert [e.data_file.file_path for e in after] == [f"{prefix}/{i}.parquet" for i in range(len(files))]
    assert [_but_path(facts(e)) for e in after] == [_but_path(facts(e)) for e in before]
    assert [(int(e.status), e.snapshot_id) for e in after] == [(ADDED, 99)] * len(files)
    number = SEQUENCE + 1 if version > 1 else 0
    assert [(e.sequence_number, e.file_sequence_number) for e in after] == [(number, number)] * len(files)
    assert [of_ours(e) for e in read(folder, listed)] == [of_pyiceberg(e) for e in after]
    (manifest,) = listed
    counts = manifest.added_files_count, manifest.existing_files_count, manifest.deleted_files_count
    assert counts == (len(files), 0, 0)
    assert manifest.added_rows_count == sum(f.rows for f in files)
    assert manifest.min_sequence_number == number


def _many(files: Sequence[NewDataFile]) -> list[NewDataFile]:
    """Many files: these again and again, under other paths."""
    return [replace(file, path=f"{file.path}.{n}") for n, file in zip(range(60), itertools.cycle(files))]


def _entries_of(found: ManifestFacts) -> list[tuple[Any, ...]]:
    """Facts of all entries, in the order of the arguments of `Entry`, obstacles instead of formats and keys."""
    columns, rows = found.columns, np.arange(len(found.columns.status))
    ids = [None if each == -1 else each for each in found.snapshot_ids.tolist()]
    numbers = (found.sequence_numbers.tolist(), found.file_sequence_numbers.tolist())
    keys = [plain(found.keys[place].values) for place in columns.partition.tolist()]
    last = columns.rows.tolist(), columns.size_bytes.tolist(), columns.obstacles.tolist()
    return list(zip(columns.status.tolist(), ids, *numbers, found.paths(rows), keys, *last, strict=True))


def _expected(entry: Entry) -> tuple[Any, ...]:
    place = (entry.status, entry.snapshot_id, entry.sequence_number or 0, entry.file_sequence_number or 0, entry.path)
    obstacle = 2 if entry.encrypted else int(entry.file_format != "PARQUET")
    return (*place, plain(entry.values), entry.rows, entry.size_bytes, obstacle)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("source", ["icesize", "pyiceberg"])
@examples(10)
@given(files=FILES, cut=st.integers(0, 6))
def test_facts_of_many_entries_are_those_of_each(
    folder: ManifestFolder, version: int, source: str, files: list[NewDataFile], cut: int
) -> None:
    """Facts have the values, numbers and order of the entries that are copied."""
    many = _many(files)
    if source == "pyiceberg":
        listed = [folder.write_by_pyiceberg(version, many)]
    else:
        old = read(folder, folder.write(version, added=many))
        listed = folder.write(version, snapshot_id=99, added=files, existing=old[cut:], deleted=old[:cut])
    for manifest in listed:
        entries = list(read_entries(folder.io, manifest, live_only=False))
        assert len(entries) >= 60
        assert _entries_of(read_facts(folder.io, manifest)) == [_expected(entry) for entry in entries]


@pytest.mark.parametrize("change", ["format", "encrypted", "nan"])
def test_obstacles_of_one_of_many_entries(folder: ManifestFolder, change: str) -> None:
    """A file of another format or with key metadata is one, and NaN is a partition of its own for each file."""
    nan = PartitionKey(0, (None, 1, None, math.nan, *[None] * 10))
    many = _many([_file(1, partition=nan) if change == "nan" else _file(1)])
    manifest = folder.write_by_pyiceberg(2, many)
    if change != "nan":
        (manifest,) = folder.write(2, snapshot_id=99, existing=[_foreign(e, change) for e in read(folder, [manifest])])
    found = read_facts(folder.io, manifest)
    assert [e[-1] for e in _entries_of(found)] == [{"format": 1, "encrypted": 2, "nan": 0}[change]] * 60
    assert len(found.keys) == (60 if change == "nan" else 1)


def _foreign(entry: Entry, change: str) -> Entry:
    field_id, kind, value = (101, "string", "orc") if change == "format" else (131, ["null", "bytes"], b"key")
    return replace(entry, data=with_other_value(entry.schema, field_id, kind)(entry.data, value))


@pytest.mark.parametrize("version", [1, 2])
@relaxed
@given(files=FILES, new=st.lists(_written(), max_size=3), cut=st.integers(0, 6))
def test_manifest_files_describe_their_entries(
    folder: ManifestFolder, version: int, files: list[NewDataFile], new: list[NewDataFile], cut: int
) -> None:
    """Counts, rows, the lowest sequence number, length and partition summaries are those that PyIceberg would write."""
    entries = read(folder, folder.write(version, added=files))
    (manifest,) = folder.write(version, snapshot_id=99, added=new, existing=entries[cut:], deleted=entries[:cut])
    old, gone = entries[cut:], entries[:cut]
    assert (manifest.added_files_count, manifest.added_rows_count) == (len(new), sum(f.rows for f in new))
    assert (manifest.existing_files_count, manifest.existing_rows_count) == (len(old), sum(e.rows for e in old))
    assert (manifest.deleted_files_count, manifest.deleted_rows_count) == (len(gone), sum(e.rows for e in gone))
    assert manifest.added_snapshot_id == 99
    assert manifest.partition_spec_id == 0
    assert manifest.manifest_length == len(folder.io.new_input(manifest.manifest_path))
    live = [e.sequence_number or 0 for e in old] + [f.sequence_number for f in new if f.sequence_number is not None]
    if version > 1:
        assert manifest.sequence_number == SEQUENCE + 1
        assert manifest.min_sequence_number == min(live, default=SEQUENCE + 1)
    records = [Record(*values) for values in [e.values for e in entries] + [f.partition.values for f in new]]
    expected = construct_partition_summaries(SPEC, folder.table(version).schema(), records)
    assert [plain(s) for s in manifest.partitions or []] == [
        without_zero_sign(s, manifest, i) for i, s in enumerate(expected)
    ]


def _file(i: int, **more: Any) -> NewDataFile:
    made = NewDataFile(f"file:///w/{i}.parquet", 1000 + i, 10 + i, PartitionKey(0, (None, i, *[None] * 12)))
    return replace(made, **more)


def test_doubles_keep_their_precision(folder: ManifestFolder) -> None:
    """A double partition value is read and copied exactly, which PyIceberg 0.12.0's compiled decoder does not do."""
    values = (None, 1, None, None, 0.1, *[None] * 9)
    listed = folder.write(2, added=[_file(1, partition=PartitionKey(0, values))])
    assert [e.values for e in read(folder, listed)] == [values]
    assert listed[0].partitions is not None
    assert listed[0].partitions[4].lower_bound == to_bytes(DoubleType(), 0.1)


@pytest.mark.parametrize(("first", "second"), [(1, 2), (2, 2)])
def test_other_encodings_keep_a_manifest_of_their_own(folder: ManifestFolder, first: int, second: int) -> None:
    """Entries of v1 or PyIceberg's manifests are copied under their own schema, new files go where most entries are."""
    foreign = read(folder, [folder.write_by_pyiceberg(first, [_file(i) for i in range(3)])])
    ours = read(folder, folder.write(second, added=[_file(i) for i in range(10, 15)]))
    listed = folder.write(2, snapshot_id=99, added=[_file(20)], existing=[*foreign, *ours])
    assert [len(fetched(folder, [m])) for m in listed] == [3, 6]
    after = {e.data_file.file_path: e for e in fetched(folder, listed)}
    assert set(after) == {f"file:///w/{i}.parquet" for i in [*range(3), *range(10, 15), 20]}
    numbers = {e.sequence_number for path, e in after.items() if path in {f.path for f in foreign}}
    assert numbers == {0 if first == 1 else SEQUENCE}
    again = folder.write(2, snapshot_id=100, added=[_file(30)], existing=read(folder, listed[:1]))
    # entries of v1 lack fields that a new file has
    assert len(again) == (2 if first == 1 else 1)
    assert "file:///w/30.parquet" in {e.data_file.file_path for e in fetched(folder, again)}
    assert [of_ours(e) for e in read(folder, again)] == [of_pyiceberg(e) for e in fetched(folder, again)]


def test_manifests_are_cut_at_the_target_size(folder: ManifestFolder) -> None:
    """No manifest exceeds `commit.manifest.target-size-bytes`, and together they hold everything in order."""
    table = folder.table(2, properties={"commit.manifest.target-size-bytes": "150000"})
    bounds = {k: bytes([k]) * 16 for k in range(1, 15)}
    files = [_file(i, path=f"file:///w/{uuid5(NAMESPACE_URL, str(i))}", lower_bounds=bounds) for i in range(4000)]
    made = ManifestWriter(folder.put, table.metadata, SNAPSHOT).write(added=files)
    assert len(made) > 1
    assert all(m.manifest_length <= 150_000 for m in made)
    assert sum(m.added_files_count or 0 for m in made) == 4000
    assert len({m.manifest_path for m in made}) == len(made)
    assert [e.path for e in read(folder, made)] == [f.path for f in files]
    later = made[1].partitions
    assert later is not None
    assert later[1].lower_bound == to_bytes(IntegerType(), made[0].added_files_count)


def test_a_list_assigns_sequence_numbers_to_its_own_manifests(folder: ManifestFolder) -> None:
    """Manifests of the listed snapshot get its sequence number in the result, those of older snapshots keep theirs."""
    table = folder.table(2)
    made = ManifestWriter(folder.put, table.metadata, SNAPSHOT).write(added=[_file(1), _file(2, sequence_number=2)])
    first, *_ = encoded_list(2, made, snapshot_id=SNAPSHOT, parent_id=None, sequence_number=6)
    assert [(m.sequence_number, m.min_sequence_number) for m in made] == [(UNASSIGNED_SEQ, 2)]
    assert [(m.sequence_number, m.min_sequence_number) for m in first] == [(6, 2)]
    more = ManifestWriter(folder.put, table.metadata, 78).write(added=[_file(3)])
    second, data, _ = encoded_list(2, [*more, *first], snapshot_id=78, parent_id=SNAPSHOT, sequence_number=7)
    listed = list(read_manifest_list(folder.io.new_input(folder.put(data))))
    for manifests in (second, listed):
        assert [(m.sequence_number, m.min_sequence_number) for m in manifests] == [(7, 7), (6, 2)]
    assert [e.sequence_number for e in read(folder, listed)] == [7, 6, 2]


def test_old_specs_keep_their_own_manifests(folder: ManifestFolder) -> None:
    """Entries of a spec that is no longer the default are written with that spec and its partition values."""
    table = folder._catalog.create_table("db.evolved", SCHEMA, partition_spec=SPEC)
    with table.update_spec() as update:
        update.remove_field("p_text")
    old = read(folder, folder.write(2, added=[_file(1)]))
    made = ManifestWriter(folder.put, table.metadata, SNAPSHOT).write(existing=old)
    assert [(m.partition_spec_id, len(m.partitions or [])) for m in made] == [(0, 14)]
    assert [e.values for e in read(folder, made)] == [e.values for e in old]
    with pytest.raises(ValueError, match="is of partition spec 0, the manifest of spec 1"):
        ManifestWriter(folder.put, table.metadata, SNAPSHOT, 1).write(added=[_file(1)])


def test_unpartitioned_tables(folder: ManifestFolder) -> None:
    """Without partition fields values are empty and there are no summaries."""
    spec = PartitionSpec(spec_id=0)
    listed = folder.write(2, spec=spec, added=[_file(1, partition=PartitionKey(0))])
    assert [e.values for e in read(folder, listed)] == [()]
    assert not listed[0].partitions


def test_values_that_do_not_fit_are_refused(folder: ManifestFolder) -> None:
    """Too few partition values raise instead of writing a manifest that nobody can read."""
    with pytest.raises(ValueError, match="argument 2 is shorter"):
        folder.write(2, added=[_file(1, partition=PartitionKey(0, (1, 2)))])


def test_later_format_versions_are_refused(folder: ManifestFolder) -> None:
    """A version that does not exist yet is refused before anything is written."""
    metadata = new_table_metadata(SCHEMA, SPEC, UNSORTED_SORT_ORDER, "file:///w", {"format-version": "3"})
    later = metadata.model_copy(update={"format_version": 4})
    with pytest.raises(UnsupportedTable, match="format v4: only v1 to v3 are supported"):
        ManifestWriter(folder.put, later, SNAPSHOT)


def test_an_entry_without_sequence_number_is_refused(folder: ManifestFolder) -> None:
    """An EXISTING entry of v2 that lacks its sequence number is not made worse by copying it."""
    (entry,) = read(folder, folder.write(2, added=[_file(1)]))
    entry.sequence_number = None
    with pytest.raises(UnsupportedTable, match=r"1\.parquet': its manifest entry has no sequence number"):
        folder.write(2, existing=[entry])


def test_nothing_to_write_writes_nothing(folder: ManifestFolder) -> None:
    """No files, no manifest."""
    metadata = folder.table(2).metadata
    assert ManifestWriter(folder.put, metadata, SNAPSHOT).write() == []


def test_delete_manifests_tell_what_they_delete(folder: ManifestFolder) -> None:
    """Of delete files the bounds of the deleted paths and the columns of equality deletes are read."""
    table = folder.table(2)
    path = folder.new_path()
    low, high = b"file:///w/1.parquet", b"file:///w/9.parquet"
    positions = data_file(_file(1, lower_bounds={2147483546: low}, upper_bounds={2147483546: high, 2147483545: b"x"}))
    equality = data_file(_file(2))
    positions[0], equality[0], equality[14] = DataFileContent.POSITION_DELETES, DataFileContent.EQUALITY_DELETES, [2, 3]
    out = write_manifest(2, table.spec(), table.schema(), folder.io.new_output(path), SNAPSHOT, "deflate")
    with out:
        for file in (positions, equality):
            out.add(ManifestEntry.from_args(sequence_number=4, data_file=file))
    written = out.to_manifest_file()
    manifest = ManifestFile(*[ManifestContent.DELETES if i == 3 else written[i] for i in range(len(written))])
    first, second = ManifestStore().facts(folder.io, manifest).deletes()
    assert (first.path, first.rows, first.file_format) == (_file(1).path, _file(1).rows, "PARQUET")
    assert (first.equality_ids, first.lowest_path, first.highest_path) == ((), low.decode(), high.decode())
    assert (second.equality_ids, second.lowest_path, second.highest_path) == ((2, 3), None, None)
    assert (first.referenced_path, first.sequence_number, first.partition) == (
        None,
        4,
        PartitionKey(0, _file(1).partition.values),
    )


def shown(fact: FileFact) -> list[str]:
    """All fields of a fact, partitions of NaN among them."""
    return [repr(getattr(fact, each.name)) for each in dataclasses.fields(fact)]


def file_of(entry: Entry, manifest: ManifestFile) -> FileFact:
    """A data file as planning sees it."""
    key = PartitionKey.of(manifest.partition_spec_id, entry.values)
    reason = None if entry.file_format == "PARQUET" else SkipReason.NOT_PARQUET
    return FileFact(
        entry.path, entry.size_bytes, entry.rows, key, entry.sequence_number or 0,
        SkipReason.ENCRYPTED if entry.encrypted else reason, manifest.manifest_path,
        file_sequence_number=entry.file_sequence_number or 0,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
@relaxed
@given(files=FILES, new=st.lists(_written(), max_size=3), cut=st.integers(0, 6))
def test_facts_are_those_of_the_entries(
    folder: ManifestFolder, version: int, files: list[NewDataFile], new: list[NewDataFile], cut: int
) -> None:
    """Row by row, with what they inherit from the list that names the manifest, whoever wrote it."""
    entries, store = read(folder, [folder.write_by_pyiceberg(version, files)]), ManifestStore()
    for manifest in (
        *folder.write(version, snapshot_id=99, added=new, existing=entries[cut:], deleted=entries[:cut]),
        *(folder.write_by_pyiceberg(version, files, status) for status in (ADDED, EXISTING, DELETED)),
    ):
        number = manifest.sequence_number + version - 1
        later = ManifestFile(*[number if i == 4 else manifest[i] for i in range(len(manifest))])
        for listed in (manifest, later):
            found, whole = store.facts(folder.io, listed), read(folder, [listed], live_only=False)
            live = [e.status != DELETED for e in whole]
            assert found.columns.status.tolist() == [e.status for e in whole]
            assert found.snapshot_ids.tolist() == [e.snapshot_id for e in whole]
            assert [shown(f) for f in found.files(np.arange(len(whole)))] == [shown(file_of(e, listed)) for e in whole]
            assert found.live.tolist() == np.flatnonzero(live).tolist()
            assert found.paths() == [e.path for e in whole if e.status != DELETED]
            metrics = [metrics for _, metrics in read_metrics(folder.io, listed.manifest_path)]
            assert [m.rows for m in metrics] == [e.rows for e in whole if e.status != DELETED]
            assert len(set(map(repr, found.keys))) == len({repr(file_of(e, listed).partition) for e in whole})


def changes(folder: ManifestFolder, manifest: ManifestFile) -> list[tuple[int, str]]:
    """Status and path of the entries that were added or deleted."""
    found = read_facts(folder.io, manifest, changes_only=True).columns
    return list(zip(found.status.tolist(), found.paths.at(np.arange(len(found.status))), strict=True))


def _deletes(i: int, **what: Any) -> NewDeleteFile:
    return NewDeleteFile(f"file:///w/{i}.parquet", 100 + i, 10 + i, _file(i).partition, **what)


BY_POSITION = _deletes(1, deletes_of="file:///w/9.parquet", sequence_number=4)
BY_EQUALITY = _deletes(2, equality_ids=(2, 3))


def test_new_delete_files_read_back(folder: ManifestFolder) -> None:
    """PyIceberg reads the content and the columns of equality deletes; a file without a number inherits it."""
    (listed,) = folder.write(2, added=[BY_POSITION, BY_EQUALITY], content=ManifestContent.DELETES)
    assert (listed.content, listed.added_files_count, listed.added_rows_count) == (ManifestContent.DELETES, 2, 23)
    found = fetched(folder, [listed])
    content = [(entry.data_file.content, entry.data_file.equality_ids) for entry in found]
    assert content == [(DataFileContent.POSITION_DELETES, None), (DataFileContent.EQUALITY_DELETES, [2, 3])]
    deletes = ManifestStore().facts(folder.io, listed).deletes()
    known = [(each.sequence_number, each.equality_ids, each.referenced_path) for each in deletes]
    assert known == [(4, (), "file:///w/9.parquet"), (SEQUENCE + 1, (2, 3), None)]


def test_equality_deletes_keep_their_columns_beside_entries_that_have_none(folder: ManifestFolder) -> None:
    """They are not encoded as in a manifest whose entries have no place for the columns."""
    target = ManifestWriter(folder.put, folder.table(2).metadata, SNAPSHOT, 0, ManifestContent.DELETES)
    own = target.own_schema.avro
    record = {**own, "fields": [field for field in own["fields"] if field["field-id"] != 135]}
    stream = ManifestStream(target, DataFileSchema(structure(record), record))
    stream.add([BY_POSITION])
    old = read(folder, stream.finish())
    listed = folder.write(2, added=[BY_EQUALITY], existing=old, content=ManifestContent.DELETES)
    deletes = [each for manifest in listed for each in ManifestStore().facts(folder.io, manifest).deletes()]
    assert {each.path: each.equality_ids for each in deletes} == {BY_POSITION.path: (), BY_EQUALITY.path: (2, 3)}


def test_delete_files_are_refused_in_format_v1(folder: ManifestFolder) -> None:
    """Its manifests cannot say that a file is one of deletes."""
    with pytest.raises(
        UnsupportedTable, match="Cannot write delete manifests of Iceberg format v1: only v2 and v3 are"
    ):
        folder.write(1, added=[BY_EQUALITY], content=ManifestContent.DELETES)


@pytest.mark.parametrize("version", [1, 2])
@relaxed
@given(files=FILES, new=st.lists(_written(), max_size=3), cut=st.integers(0, 6))
def test_changes_are_what_was_added_and_deleted(
    folder: ManifestFolder, version: int, files: list[NewDataFile], new: list[NewDataFile], cut: int
) -> None:
    """Whatever the order of the entries; those that stay are left out."""
    entries = read(folder, [folder.write_by_pyiceberg(version, files)])
    for manifest in (
        *folder.write(version, snapshot_id=99, added=new, existing=entries[cut:], deleted=entries[:cut]),
        *(folder.write_by_pyiceberg(version, files, status) for status in (ADDED, EXISTING, DELETED)),
    ):
        whole = [e for e in read(folder, [manifest], live_only=False) if e.status != EXISTING]
        assert changes(folder, manifest) == [(e.status, e.path) for e in whole]


def test_reading_changes_ends_with_the_last_of_them(folder: ManifestFolder) -> None:
    """What a manifest keeps is not even decompressed, unless the manifest does not say how many changes it has."""
    kept = [_file(i, path=f"file:///w/{uuid5(NAMESPACE_URL, str(i))}") for i in range(3000)]
    old = read(folder, folder.write(2, added=kept))
    (manifest,) = folder.write(2, snapshot_id=99, added=[_file(5000)], existing=old[1:], deleted=old[:1])
    place = Path(manifest.manifest_path.removeprefix("file://"))
    whole = place.read_bytes()
    place.write_bytes(whole[:-1000] + bytes(1000))
    assert changes(folder, manifest) == [(ADDED, "file:///w/5000.parquet"), (DELETED, kept[0].path)]
    with pytest.raises(TableError, match=r"cut off or damaged|does not decompress"):
        read(folder, [manifest])
    uncounted = ManifestFile(*[None if i == 7 else manifest[i] for i in range(len(manifest))])
    assert uncounted.added_files_count is None
    with pytest.raises(TableError, match=r"cut off or damaged|does not decompress"):
        changes(folder, uncounted)
    place.write_bytes(whole)
    assert len(changes(folder, uncounted)) == 2
    (untouched,) = folder.write(2, snapshot_id=99, existing=old)
    Path(untouched.manifest_path.removeprefix("file://")).unlink()
    assert changes(folder, untouched) == [], "a manifest without changes is not opened"


def test_a_damaged_manifest_is_named(folder: ManifestFolder) -> None:
    """A manifest that is cut off, has no schema or has entries that do not decode raises a TableError with its path."""
    (manifest,) = folder.write(2, added=[_file(1)])
    place = Path(manifest.manifest_path.removeprefix("file://"))
    whole = place.read_bytes()
    schema = ContainerReader(whole, "m").metadata["avro.schema"]
    nameless = ContainerWriter(json.loads(schema), {})
    nameless.add(b"\x02\x00\x00\x00\x00\x02\xff")
    overlong = ContainerWriter(json.loads(schema), {})
    overlong.add(b"\x02\x00\x00\x00\x00\x01")
    for damaged in (whole[:-3], nameless.finish(), overlong.finish()):
        place.write_bytes(damaged)
        with pytest.raises(TableError, match="Cannot read file:///") as raised:
            read(folder, [manifest])
        assert raised.value.facts == {"path": manifest.manifest_path}


@pytest.mark.parametrize("collects", [True, False])
def test_the_garbage_collector_is_the_callers(folder: ManifestFolder, collects: bool) -> None:
    """Reading and writing manifests turn it neither off nor on, not even while an iteration is suspended."""
    (gc.enable if collects else gc.disable)()
    try:
        manifest = folder.write(2, added=[_file(1), _file(2)])[0]
        entries: Iterator[Entry] = read_entries(folder.io, manifest)
        next(entries)
        assert gc.isenabled() is collects
        rest = [(entry.path, gc.isenabled()) for entry in entries]
        assert [state for _, state in rest] == [collects]
        assert gc.isenabled() is collects
    finally:
        gc.enable()


def test_decimals_and_uuids_are_values(folder: ManifestFolder) -> None:
    """Partition values keep the types of PyIceberg's partition records."""
    values = (
        None,
        1,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        UUID(int=5),
        None,
        Decimal("1.25"),
        None,
        Decimal("0.001"),
    )
    listed = folder.write(2, added=[_file(1, partition=PartitionKey(0, values))])
    assert [e.values for e in read(folder, listed)] == [values]
    assert plain(fetched(folder, listed)[0].data_file.partition) == values
