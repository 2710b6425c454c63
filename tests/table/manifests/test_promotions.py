"""Partition columns whose type was promoted: entries of older manifests and new files keep their values together."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    construct_partition_summaries,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform, Transform, TruncateTransform, VoidTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
)
from pyiceberg.utils.decimal import unscaled_to_decimal

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import PartitionKey
from icesize.table.manifests.entries import Entry, read_entries
from icesize.table.manifests.file_columns import EntryColumns
from icesize.table.manifests.writer import ManifestWriter
from tests.support.examples import examples
from tests.support.manifest_values import check_written_facts, plain, without_zero_sign
from tests.support.parquet_files import data_file

HISTORIES: list[list[PrimitiveType]] = [
    [IntegerType(), LongType()],
    [FloatType(), DoubleType()],
    [DecimalType(2, 1), DecimalType(3, 1), DecimalType(9, 1), DecimalType(18, 1), DecimalType(38, 1)],
    [StringType()],
]
_IDS = itertools.count()
relaxed = examples(60)


def _values(kind: PrimitiveType) -> st.SearchStrategy[Any]:
    if isinstance(kind, IntegerType):
        return st.integers(-(2**31), 2**31 - 1)
    if isinstance(kind, LongType):
        return st.integers(-(2**63), 2**63 - 1)
    if isinstance(kind, DecimalType):
        most = 10**kind.precision - 1
        return st.integers(-most, most).map(lambda unscaled: unscaled_to_decimal(unscaled, 1))
    if isinstance(kind, StringType):
        return st.text(max_size=5)
    return st.floats(width=32 if isinstance(kind, FloatType) else 64, allow_nan=False)


@dataclass(frozen=True)
class Stage:
    """The table for a while: its types, whether columns are required, and the partition values of files written then,
    by icesize or by PyIceberg.
    """

    types: tuple[PrimitiveType, ...]
    required: bool
    files: tuple[tuple[Any, ...], ...]
    by_icesize: bool


@st.composite
def stages(draw: st.DrawFn) -> list[Stage]:
    """Tables whose columns are promoted again and again; none is ever required again."""
    columns = draw(st.lists(st.sampled_from(HISTORIES), min_size=1, max_size=3))
    at, required, made = [0] * len(columns), True, []
    for _ in range(draw(st.integers(1, 4))):
        at = [draw(st.integers(i, len(c) - 1)) for i, c in zip(at, columns, strict=True)]
        required = required and draw(st.booleans())
        types = tuple(c[i] for i, c in zip(at, columns, strict=True))
        value = st.tuples(*(_values(kind) if required else st.none() | _values(kind) for kind in types))
        files = tuple(draw(st.lists(value, min_size=1, max_size=3)))
        made.append(Stage(types, required, files, draw(st.booleans())))
    return made


def _metadata(stage: Stage, version: int, transforms: Sequence[Transform[Any, Any]]) -> TableMetadata:
    fields = [NestedField(i, f"c{i}", kind, stage.required) for i, kind in enumerate(stage.types, 1)]
    spec = [PartitionField(i, 999 + i, transform, f"p{i}") for i, transform in enumerate(transforms, 1)]
    properties = {"format-version": str(version)}
    return new_table_metadata(Schema(*fields), PartitionSpec(*spec), UNSORTED_SORT_ORDER, "file:///w", properties)


def _identities(stage: Stage) -> list[Transform[Any, Any]]:
    return [IdentityTransform() for _ in stage.types]


def _file(values: tuple[Any, ...]) -> NewDataFile:
    number = next(_IDS)
    counts = {1: number, 200: 2**40}
    return NewDataFile(
        f"file:///w/{number}.parquet", 1000 + number, 10, PartitionKey(0, values),
        column_sizes=counts, value_counts=counts, lower_bounds={1: b"low"}, upper_bounds={1: b"\xff" * 16},
    )  # fmt: skip


class ManifestFolder:
    """Manifests in a folder."""

    def __init__(self, folder: Path) -> None:
        self.io, self._folder = PyArrowFileIO(), folder

    def path(self) -> str:
        return f"file://{self._folder}/{next(_IDS)}.avro"

    def put(self, data: bytes) -> str:
        path = self.path()
        with self.io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
        return path

    def write(self, metadata: TableMetadata, files: Sequence[NewDataFile], **others: Any) -> list[ManifestFile]:
        known = dict[str, EntryColumns]()
        made = ManifestWriter(self.put, metadata, 77, facts=known).write(added=files, **others)
        check_written_facts(self.io, made, known)
        return self.numbered(made)

    def write_by_pyiceberg(self, metadata: TableMetadata, files: Sequence[NewDataFile]) -> list[ManifestFile]:
        output = self.io.new_output(self.path())
        version: Any = metadata.format_version
        with write_manifest(version, metadata.spec(), metadata.schema(), output, 77, "deflate") as out:
            for file in files:
                status = ManifestEntryStatus.ADDED
                out.add_entry(ManifestEntry.from_args(status=status, snapshot_id=77, data_file=data_file(file)))
        return self.numbered([out.to_manifest_file()])

    def of(self, stage: Stage, version: int) -> list[Entry]:
        """Entries of the stage's files, in one manifest of its time."""
        metadata = _metadata(stage, version, _identities(stage))
        write = self.write if stage.by_icesize else self.write_by_pyiceberg
        return [e for m in write(metadata, [_file(v) for v in stage.files]) for e in read_entries(self.io, m)]

    def numbered(self, manifests: list[ManifestFile]) -> list[ManifestFile]:
        for manifest in manifests:
            manifest.sequence_number = 5
        return manifests

    def read_by_icesize(self, manifests: Sequence[ManifestFile]) -> dict[str, tuple[Any, ...]]:
        return {e.path: e.values for m in manifests for e in read_entries(self.io, m, live_only=False)}

    def read_by_pyiceberg(self, manifests: Sequence[ManifestFile]) -> dict[str, tuple[Any, ...]]:
        """As PyIceberg 0.12.0 reads them: its compiled decoder rounds doubles."""
        entries = [e for m in manifests for e in m.fetch_manifest_entry(self.io, discard_deleted=False)]
        return {e.data_file.file_path: tuple(e.data_file.partition._data) for e in entries}

    def statistics(self, manifests: Sequence[ManifestFile]) -> dict[str, object]:
        files = [e.data_file for m in manifests for e in m.fetch_manifest_entry(self.io, discard_deleted=False)]
        return {
            f.file_path: (f.record_count, f.file_size_in_bytes, dict(f.column_sizes), dict(f.upper_bounds))
            for f in files
        }


@pytest.fixture
def folder(tmp_path: Path) -> ManifestFolder:
    return ManifestFolder(tmp_path)


@np.errstate(over="ignore")
def _rounded(found: dict[str, tuple[Any, ...]]) -> dict[str, list[Any]]:
    return {p: [float(np.float32(v)) if isinstance(v, float) else v for v in values] for p, values in found.items()}


@pytest.mark.parametrize("version", [1, 2])
@relaxed
@given(history=stages(), gone=st.integers(0, 3))
def test_values_outlive_any_promotions(folder: ManifestFolder, version: int, history: list[Stage], gone: int) -> None:
    """Rewritten with files of today, entries of any age have their values, and one manifest for each writer's form."""
    now = history[-1]
    metadata = _metadata(now, version, _identities(now))
    old = [entry for stage in history for entry in folder.of(stage, version)]
    new = [_file(values) for values in now.files]
    expected = {e.path: e.values for e in old} | {f.path: f.partition.values for f in new}
    written = folder.write(metadata, new, existing=old[gone:], deleted=old[:gone])
    assert len(written) <= len({stage.by_icesize for stage in history})
    assert folder.read_by_icesize(written) == expected
    assert _rounded(folder.read_by_pyiceberg(written)) == _rounded(expected)
    statistics = {e.path: (e.rows, e.size_bytes) for e in old} | {f.path: (f.rows, f.size_bytes) for f in new}
    assert {path: found[:2] for path, found in folder.statistics(written).items()} == statistics  # type: ignore[index]
    for manifest in written:
        values = [Record(*v) for v in folder.read_by_icesize([manifest]).values()]
        expected_ones = construct_partition_summaries(metadata.spec(), metadata.schema(), values)
        summaries = [without_zero_sign(each, manifest, i) for i, each in enumerate(expected_ones)]
        assert [plain(each) for each in manifest.partitions or []] == summaries


@relaxed
@given(history=stages())
def test_entries_of_any_age_are_packed_together(folder: ManifestFolder, history: list[Stage]) -> None:
    """Manifests that are put together need one file for each writer's form, and all that is known of files stays."""
    now = history[-1]
    origins = [_metadata(stage, 2, _identities(stage)) for stage in history]
    manifests: list[ManifestFile] = []
    for stage, metadata in zip(history, origins, strict=True):
        write = folder.write if stage.by_icesize else folder.write_by_pyiceberg
        manifests += write(metadata, [_file(values) for values in stage.files])
    entries = (e for m in manifests for e in read_entries(folder.io, m))
    packed = folder.numbered(
        ManifestWriter(folder.put, _metadata(now, 2, _identities(now)), 99).write(existing=entries)
    )
    assert len(packed) == len({stage.by_icesize for stage in history})
    assert folder.read_by_icesize(packed) == folder.read_by_icesize(manifests)
    assert folder.statistics(packed) == folder.statistics(manifests)


@pytest.mark.parametrize("by_icesize", [True, False])
def test_truncated_values_are_promoted(folder: ManifestFolder, by_icesize: bool) -> None:
    """A truncated int keeps its value beside a truncated long that no int can hold, in the same manifest."""
    before = _metadata(Stage((IntegerType(),), False, (), by_icesize), 2, [TruncateTransform(10)])
    after = _metadata(Stage((LongType(),), False, (), by_icesize), 2, [TruncateTransform(10)])
    first = (folder.write if by_icesize else folder.write_by_pyiceberg)(before, [_file((-20,))])
    written = folder.write(after, [_file((3_000_000_000,))], existing=list(read_entries(folder.io, first[0])))
    assert list(folder.read_by_icesize(written).values()) == [(3_000_000_000,), (-20,)]
    assert folder.read_by_pyiceberg(written) == folder.read_by_icesize(written)
    assert len(written) == 1


def test_values_of_a_dropped_column_stay(folder: ManifestFolder) -> None:
    """Where a partition field has no type any more its entries keep theirs: nothing of what they say is lost."""
    before = _metadata(Stage((IntegerType(), StringType()), False, (), True), 1, [IdentityTransform()])
    (first,) = folder.write(before, [_file((7,))])
    schema = Schema(NestedField(2, "c2", StringType()), schema_id=1)
    after = before.model_copy(update={"schemas": [before.schema(), schema], "current_schema_id": 1})
    written = folder.write(after, [], existing=list(read_entries(folder.io, first)))
    assert list(folder.read_by_icesize(written).values()) == [(7,)]
    assert folder.read_by_pyiceberg(written) == folder.read_by_icesize(written)


def test_void_values_go_anywhere(folder: ManifestFolder) -> None:
    """A void field has no values, so entries and new files share a manifest however its column was promoted."""
    before = _metadata(Stage((IntegerType(),), False, (), True), 1, [VoidTransform()])
    after = _metadata(Stage((LongType(),), False, (), True), 1, [VoidTransform()])
    (first,) = folder.write(before, [_file((None,))])
    written = folder.write(after, [_file((None,))], existing=list(read_entries(folder.io, first)))
    assert list(folder.read_by_icesize(written).values()) == [(None,), (None,)]
    assert len(written) == 1
