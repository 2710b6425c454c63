"""Each column has as many values and NULLs after a rewrite as before; what a count cannot show, the entries show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import DoubleType, ListType, LongType, MapType, NestedField, StringType, StructType
from pyroaring import BitMap

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import CopiedFile, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.properties import ParquetOptions
from icesize.parquet.files.settings import NAME_MAPPING, WriteSettings
from icesize.parquet.format.fields import ColumnMetaData, Statistics
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.thrift import Fields, i64, integer, struct_field, struct_of
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.pages import reencode
from icesize.parquet.pages.column_plan import Piece
from icesize.parquet.pages.page_copy import CopiedColumn
from icesize.parquet.reading import projection
from icesize.parquet.reading.casting import nulls
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.rewriting import output_file
from icesize.parquet.rewriting.absorb import Absorption, write_with
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.copy_merge import copy_merge
from icesize.parquet.rewriting.merge import merge
from icesize.planning.cluster_by import SORT
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.footers import edited, with_other_bounds
from tests.support.leaf_entries import entries_of
from tests.support.parquet_files import (
    REMOTE,
    fact,
    files_below,
    foreign_file,
    local,
    settings_of,
    with_limits,
    write_one,
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), False),
    NestedField(2, "other", LongType(), False),
    NestedField(3, "sparse", LongType(), False),
    NestedField(
        4, "s", StructType(NestedField(8, "x", DoubleType(), False), NestedField(9, "y", StringType(), False)), False
    ),
    NestedField(5, "l", ListType(10, StructType(NestedField(11, "p", LongType(), False)), False), False),
    NestedField(6, "m", MapType(12, StringType(), 13, LongType(), False), False),
)
NEW = FileNames("s1-8", 0, 0)


def rows_from(first: int, count: int = 6) -> pa.Table:
    """Rows with each kind of NULL, NaN, and lists of several lengths."""

    def row(i: int) -> dict[str, Any]:
        return {
            "id": i,
            "other": -i,
            "sparse": i if i % 3 else None,
            "s": None if i % 5 == 1 else {"x": float("nan") if i % 4 == 2 else float(i), "y": None if i % 2 else "y"},
            "l": None if i % 6 == 3 else [{"p": n} if n % 3 else None for n in range(i % 4)],
            "m": None if i % 6 == 4 else [(str(n), n if n else None) for n in range(i % 3)],
        }

    kinds = {"id": pa.int64(), "other": pa.int64(), "sparse": pa.int64()}
    kinds |= {
        "s": pa.struct([("x", pa.float64()), ("y", pa.string())]),
        "l": pa.list_(pa.struct([("p", pa.int64())])),
        "m": pa.map_(pa.string(), pa.int64()),
    }
    return pa.Table.from_pylist([row(i) for i in range(first, first + count)], schema=pa.schema(list(kinds.items())))


def by_merge(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """All files become one."""
    return list(merge(MergeTask(inputs, PartitionKey(0), 1), options, NEW).files)


def by_absorbing(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """All files are written again with the next batch, which has no rows."""
    absorption = Absorption({0: (MergeTask(inputs, PartitionKey(0), 1),)})
    return list(write_with(absorption, 0, [], options, NEW).files)


def by_clustering(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """All rows in memory are put in another order."""
    order = RowOrder(SORT, (("other", ()),))
    return list(write_clustered(MergeTask(inputs, PartitionKey(0), 1), order, options, NEW).files)


def by_spilling(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """They are put in another order on the local disk."""
    return by_clustering(with_limits(options, sorted_rows=5), inputs)


COPIED = {"least_chunk_bytes": 0, "least_page_rows": 0, "least_page_bytes": 0, "least_copied_bytes": 0}
"""Limits by which the smallest files are copied: whole row groups, and with more of them pages."""
PAGES = {**COPIED, "good_group_bytes": 2**40, "good_group_rows": 2**40}


def by_splicing(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """Row groups are copied whole."""
    return by_merge(with_limits(options, **COPIED, good_group_bytes=0), inputs)


def by_pages(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """Pages are copied."""
    return by_merge(with_limits(options, **PAGES), inputs)


def by_pages_and_rows(options: WriteSettings, inputs: tuple[FileFact, ...]) -> list[NewDataFile]:
    """Pages are copied, and beside them rows of a file of another codec are decoded."""
    last = Path(local(inputs[-1].path))
    pq.write_table(pq.read_table(last, partitioning=None), last, compression="gzip", store_schema=False)
    return by_pages(options, (*inputs[:-1], replace(inputs[-1], size_bytes=last.stat().st_size)))


PATHS: dict[str, Callable[[WriteSettings, tuple[FileFact, ...]], list[NewDataFile]]] = {
    "merge": by_merge,
    "absorb": by_absorbing,
    "cluster": by_clustering,
    "spill": by_spilling,
    "decoded beside pages": by_pages_and_rows,
}
COPIES = {"row groups": by_splicing, "pages": by_pages, "decoded beside pages": by_pages_and_rows}


def drop_a_child(rows: pa.Table) -> pa.Table:
    """A field of a struct is NULL everywhere."""
    structs = rows.column("s").combine_chunks()
    children = [nulls(len(structs), pa.float64()), structs.field("y")]
    kind = rows.schema.field("s").type
    return _with(rows, "s", pa.StructArray.from_arrays(children, fields=list(kind), mask=structs.is_null()))


def swap_unlike_columns(rows: pa.Table) -> pa.Table:
    """Two columns with different numbers of NULLs change places."""
    return _with(_with(rows, "id", rows.column("sparse")), "sparse", rows.column("id"))


def swap_like_columns(rows: pa.Table) -> pa.Table:
    """Two columns without NULLs change places."""
    return _with(_with(rows, "id", rows.column("other")), "other", rows.column("id"))


def shift_levels(rows: pa.Table) -> pa.Table:
    """NULL lists become empty ones."""
    lists = rows.column("l").combine_chunks()
    return _with(rows, "l", type(lists).from_arrays(lists.offsets, lists.values, type=lists.type))


def shift_offsets(rows: pa.Table) -> pa.Table:
    """The first value of each list belongs to the one before; each row has its number of values, none is lost."""
    lists = rows.column("l").combine_chunks()
    values = pa.concat_arrays([lists.values.slice(1), lists.values.slice(0, 1)]) if len(lists.values) else lists.values
    mask = lists.is_null()
    return _with(rows, "l", type(lists).from_arrays(lists.offsets, values, type=lists.type, mask=mask))


def end_lists_early(rows: pa.Table) -> pa.Table:
    """The last list, which has values, becomes an empty one."""
    lists = rows.column("l").combine_chunks()
    offsets = [*lists.offsets.to_pylist()[:-1], lists.offsets[-2].as_py()]
    return _with(rows, "l", type(lists).from_arrays(pa.array(offsets, pa.int32()), lists.values, type=lists.type))


def _with(rows: pa.Table, name: str, column: Any) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(at), column)


def raise_the_greatest(rows: pa.Table) -> pa.Table:
    """The last value of a column is one that no row has."""
    column = rows.column("id")
    return _with(rows, "id", pa.chunked_array([*column[:-1].chunks, pa.array([99], pa.int64())]))


COUNTED = {drop_a_child: "s.x", swap_unlike_columns: "id", end_lists_early: "l.element.p"}
BOUNDED = {swap_like_columns: "id", raise_the_greatest: "id"}
"""The column that the count names, or its least and greatest value; what the others do shows in the entries alone."""


@pytest.fixture
def bounded(tmp_path: Path) -> WriteSettings:
    """Footers are read of the smallest files, too."""
    return with_limits(settings_of(tmp_path, SCHEMA), whole_file_bytes=500, compared_chunk_bytes=0)


def inputs_of(options: WriteSettings) -> tuple[FileFact, ...]:
    """Three small files."""
    return tuple(fact(write_one(options, rows_from(first, 8))) for first in (0, 6, 12))


@pytest.mark.parametrize("path", PATHS)
def test_all_entries_stay(tmp_path: Path, path: str) -> None:
    """Whatever way rows go, each column has the entries that pyarrow reads of the input files."""
    options = settings_of(tmp_path, SCHEMA)
    small = inputs_of(options)
    before = entries_of(local(file.path) for file in small)
    assert entries_of(local(file.path) for file in PATHS[path](options, small)) == before


@pytest.mark.parametrize("path", COPIES)
def test_all_entries_are_copied(tmp_path: Path, path: str) -> None:
    """What is copied, and what joins it, has the entries of the input files."""
    options = settings_of(tmp_path, SCHEMA)
    small = inputs_of(options)
    before = entries_of(local(file.path) for file in small)
    (file,) = COPIES[path](options, small)
    assert (type(file), entries_of([local(file.path)])) == (CopiedFile, before)


def _without_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a list column the pages of one file are not written."""
    right = CopiedColumn.add

    def add(self: CopiedColumn, piece: Piece) -> None:
        if self._column.flat or not self._chunks:
            right(self, piece)

    monkeypatch.setattr(CopiedColumn, "add", add)


@dataclass(frozen=True)
class _Changed:
    """An opened file whose rows are not those that it stores."""

    file: pq.ParquetFile
    change: Callable[[pa.Table], pa.Table]

    @property
    def metadata(self) -> pq.FileMetaData:
        return self.file.metadata

    def read_row_groups(self, *arguments: Any, **others: Any) -> pa.Table:
        return self.change(self.file.read_row_groups(*arguments, **others))


def _read_as(change: Callable[[pa.Table], pa.Table], monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that are encoded again have other values."""
    right = reencode.open_parquet
    monkeypatch.setattr(reencode, "open_parquet", lambda *arguments: _Changed(right(*arguments), change))


def _with_a_lost_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is encoded again has a NULL where its first row had a value."""

    def lossy(rows: pa.Table) -> pa.Table:
        return pa.concat_tables(
            [pa.Table.from_arrays([pa.nulls(1, rows.schema.types[0])], schema=rows.schema), rows[1:]]
        )

    _read_as(lossy, monkeypatch)


def _with_another_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that is encoded again has another greatest value."""

    def wrong(rows: pa.Table) -> pa.Table:
        return pa.concat_tables([rows[:-1], rows[:1]]) if rows.column_names == ["id"] else rows

    _read_as(wrong, monkeypatch)


@pytest.mark.parametrize("mutate", [_without_a_part, _with_a_lost_value, _with_another_value])
def test_a_copy_that_lacks_something_is_given_up_for_decoding(
    tmp_path: Path, mutate: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The footers of what is copied and of the copy differ, so all rows are decoded, and all entries stay."""
    options = settings_of(tmp_path, SCHEMA)
    small = inputs_of(options)
    if mutate is not _without_a_part:  # numbers of few values, with a dictionary in each file that differs too much
        small = tuple(_encoded_otherwise(file, number) for number, file in enumerate(small))
    before = entries_of(local(file.path) for file in small)
    mutate(monkeypatch)
    done = merge(MergeTask(small, PartitionKey(0), 1), with_limits(options, **PAGES), NEW)
    assert done.decode_reasons == {"counts": 3}
    assert entries_of(local(file.path) for file in done.files) == before
    assert len(files_below(tmp_path)) == 4


def test_a_column_that_is_encoded_again_is_counted_where_footers_do_not_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between reading and writing, as its files may have no null counts."""
    options = settings_of(tmp_path, SCHEMA)
    small = tuple(_encoded_otherwise(file, number) for number, file in enumerate(inputs_of(options)))
    before, right = entries_of(local(file.path) for file in small), ParquetOptions.in_memory

    def write(options: ParquetOptions, rows: pa.Table, *others: Any, **more: Any) -> Any:
        if rows.column_names == ["id"]:
            lost = pa.Table.from_arrays([pa.nulls(1, rows.schema.types[0])], schema=rows.schema)
            rows = pa.concat_tables([rows[:9], lost, rows[10:]])  # its bounds stay
        return right(options, rows, *others, **more)

    monkeypatch.setattr(ParquetOptions, "in_memory", write)
    monkeypatch.setattr(output_file, "count_of", lambda chunk, column: (chunk.values, None))
    monkeypatch.setattr(output_file, "count_levels", lambda *_: (0, 0))  # as if those were not counted, either
    done = merge(MergeTask(small, PartitionKey(0), 1), with_limits(options, **PAGES), NEW)
    assert done.decode_reasons == {"counts": 3}
    assert entries_of(local(file.path) for file in done.files) == before


def _edited(file: FileFact, edit: Callable[[Fields], object]) -> FileFact:
    """The same pages under a footer of which the metadata of each column are changed."""
    path = Path(local(file.path))
    path.write_bytes(
        edited(path.read_bytes(), lambda tree: [edit(fields) for each in tree.metadata for fields in each])
    )
    return replace(file, size_bytes=path.stat().st_size)


def _say_nothing(metadata: Fields) -> None:
    """No null count, and no levels."""
    for field_id in (ColumnMetaData.STATISTICS, ColumnMetaData.SIZE_STATISTICS):
        metadata.pop(field_id, None)


def _say_one_null_more(metadata: Fields) -> None:
    """A writer counts wrongly."""
    statistics = struct_of(metadata, ColumnMetaData.STATISTICS) or {}
    if (nulls := integer(statistics, Statistics.NULL_COUNT)) is not None:
        statistics[Statistics.NULL_COUNT] = i64(nulls + 1)
        metadata[ColumnMetaData.STATISTICS] = struct_field(statistics)


@pytest.mark.parametrize("path", ["row groups", "pages"])
@pytest.mark.parametrize("storage", [{}, REMOTE])
def test_levels_are_counted_where_footers_do_not_say(
    tmp_path: Path, path: str, storage: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy of files without null counts has their entries; one with the pages of another file is given up."""
    options = settings_of(tmp_path, SCHEMA, properties=storage)
    small = tuple(_edited(fact(write_one(options, rows_from(first, 8))), _say_nothing) for first in (0, 1, 12))
    before = entries_of(local(file.path) for file in small)
    (file,) = COPIES[path](options, small)
    assert (type(file), entries_of([local(file.path)])) == (CopiedFile, before)
    _with_the_same_pages_again(monkeypatch)
    (file,) = by_pages(options, small)
    assert (type(file), entries_of([local(file.path)])) == (NewDataFile, before)


def _with_the_same_pages_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one column the pages of the first file stand for those of the others, which have as many rows."""
    right, firsts = CopiedColumn.add, dict[int, Piece]()

    def add(self: CopiedColumn, piece: Piece) -> None:
        if self._column.path == ("sparse",):
            piece = firsts.setdefault(id(self), replace(piece, data=memoryview(bytes(piece.data))))
        right(self, piece)

    monkeypatch.setattr(CopiedColumn, "add", add)


def test_levels_are_counted_where_footers_differ(tmp_path: Path) -> None:
    """A footer that counts NULLs wrongly is no reason to decode all columns together: pages decide."""
    options = settings_of(tmp_path, SCHEMA)
    small = inputs_of(options)
    small = tuple(_edited(_encoded_otherwise(file, n), _say_one_null_more) for n, file in enumerate(small))
    before = entries_of(local(file.path) for file in small)
    done = merge(MergeTask(small, PartitionKey(0), 1), with_limits(options, **PAGES), NEW)
    assert (done.decode_reasons, entries_of(local(file.path) for file in done.files)) == ({}, before)


@pytest.mark.parametrize("edit", [_say_nothing, lambda _: None])
def test_levels_of_rows_that_stay_are_counted(
    tmp_path: Path, edit: Callable[[Fields], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows are deleted the copy has the NULLs of the others, or it is not made."""
    options = with_limits(settings_of(tmp_path, SCHEMA), **PAGES)
    small = tuple(_edited(file, edit) for file in inputs_of(options))
    deleted = {file.path: BitMap([1, 4]) for file in small}

    def copied() -> NewDataFile:
        new_files, group = NewFiles(options, NEW), MergeTask(small, PartitionKey(0), 1)
        with Fetched(options) as fetched:
            return copy_merge(group, new_files, fetched, deleted).files[0]

    rows = [pq.read_table(local(file.path), partitioning=None) for file in small]
    whole, file = pa.concat_tables(some.take([0, 2, 3, 5, 6, 7]) for some in rows), copied()
    assert Counter(map(repr, pq.read_table(local(file.path)).to_pylist())) == Counter(map(repr, whole.to_pylist()))
    if edit is not _say_nothing:
        return

    _read_as(lambda rows: pa.concat_tables([rows[1:], rows[:1]]), monkeypatch)
    with pytest.raises(CopyRefused, match="counts: s"):
        copied()


def _encoded_otherwise(file: FileFact, number: int) -> FileFact:
    """The same rows, in the first file plain and in the others with dictionaries, which cannot follow in one chunk."""
    path = Path(local(file.path))
    rows = pq.read_table(path, partitioning=None)
    pq.write_table(rows, path, compression="zstd", store_schema=False, use_dictionary=number > 0)
    return replace(file, size_bytes=path.stat().st_size)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "mutation",
    [*COUNTED, *BOUNDED, shift_levels, shift_offsets],
)
def test_rows_that_change_on_their_way_are_noticed(
    tmp_path: Path,
    bounded: WriteSettings,
    path: str,
    mutation: Callable[[pa.Table], pa.Table],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By counts, or by least and greatest values, before anything can be committed, nothing being left; else by the
    entries."""
    options, small = bounded, inputs_of(bounded)
    before = entries_of(local(file.path) for file in small)
    _mutate_all_columns(mutation, monkeypatch)
    if (column := (COUNTED | BOUNDED).get(mutation)) is None:
        assert entries_of(local(file.path) for file in PATHS[path](options, small)) != before
        return
    with pytest.raises(RewriteFailed, match="eport this bug") as caught:
        PATHS[path](options, small)
    assert (caught.value.column, len(files_below(tmp_path))) == (column, 3)


def _mutate_all_columns(mutation: Callable[[pa.Table], pa.Table], monkeypatch: pytest.MonkeyPatch) -> None:
    right = projection.BoundProjection.__call__

    def wrong(self: projection.BoundProjection, rows: pa.Table) -> pa.Table:
        done = right(self, rows)
        return mutation(done) if len(done.schema) == len(SCHEMA.fields) else done  # keys are read alone before

    monkeypatch.setattr(projection.BoundProjection, "__call__", wrong)


def test_least_and_greatest_values_of_older_rows_stay_beside_new_ones(
    tmp_path: Path, bounded: WriteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New rows may have values beyond them; a file that lacks those of older rows is not written."""
    absorption = Absorption({0: (MergeTask(inputs_of(bounded), PartitionKey(0), 1),)})
    done = write_with(absorption, 0, [rows_from(50)], bounded, NEW)
    assert sum(file.rows for file in done.files) == 30
    _mutate_all_columns(lambda rows: _with(rows, "id", pa.chunked_array([[13] * len(rows)])), monkeypatch)
    with pytest.raises(RewriteFailed, match="column 'id' has another minimum or maximum") as caught:
        write_with(absorption, 0, [rows_from(50)], bounded, NEW)
    assert (caught.value.path, len(files_below(tmp_path))) == (None, 4)


def test_files_of_which_rows_are_deleted_are_not_compared(bounded: WriteSettings) -> None:
    """The row with the least value may be one of them; least and greatest values of the other files stay."""
    small, counted = inputs_of(bounded), Conservation(bounded)
    deleted = {small[0].path: BitMap([0]), small[1].path: BitMap()}
    for _ in read_inputs(MergeTask(small, PartitionKey(0)), bounded, deleted=deleted, counted=counted):
        continue
    lower, upper, is_open = counted.sums[1].ends
    assert (lower, upper, is_open) == (6, 19, True)


@pytest.mark.parametrize("path", ["merge", "absorb", "cluster", "spill"])
def test_a_footer_that_contradicts_its_pages_fails_its_group(tmp_path: Path, bounded: WriteSettings, path: str) -> None:
    """The error names the group and the column, on each path that decodes rows."""
    small = inputs_of(bounded)
    small = (replace(small[0], size_bytes=with_other_bounds(Path(local(small[0].path)), 0)), *small[1:])
    with pytest.raises(RewriteFailed, match="more: column 'id' has another minimum or maximum") as caught:
        PATHS[path](bounded, small[::-1])
    assert caught.value.column == "id"
    assert len(files_below(tmp_path)) == 3


def test_a_decoded_file_beside_copied_pages_has_its_own_bounds(
    bounded: WriteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its rows are compared by themselves: those of the copied files hide nothing."""
    small = inputs_of(bounded)
    before = entries_of(local(file.path) for file in small)
    right, calls = projection.BoundProjection.__call__, list[int]()

    def wrong_once(self: projection.BoundProjection, rows: pa.Table) -> pa.Table:
        calls.append(rows.num_rows)
        done = right(self, rows)
        return _with(done, "id", pa.chunked_array([[13] * len(done)])) if len(calls) == 1 else done

    monkeypatch.setattr(projection.BoundProjection, "__call__", wrong_once)
    (file,) = by_pages_and_rows(bounded, small)
    assert (type(file), entries_of([local(file.path)])) == (NewDataFile, before)


@pytest.mark.parametrize("rows", [0, 1])
def test_new_rows_are_counted_as_they_came(tmp_path: Path, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of which a column becomes NULL fails, and leaves no file."""
    options = settings_of(tmp_path, SCHEMA)
    batch = rows_from(0, rows).select(["id", "s"])
    done = write_with(Absorption(), 0, [batch, rows_from(1, 3)], options, NEW)
    assert sum(file.rows for file in done.files) == rows + 3
    monkeypatch.setattr(projection, "constant", lambda count, kind, value: pa.array([1] * count, kind))
    if rows:
        with pytest.raises(
            RewriteFailed, match="column 'other' has 1 entries, 1 of them NULL, in the input files, and 1 entries, 0 of"
        ):
            write_with(Absorption(), 0, [rows_from(0, 1).drop_columns(["other"])], options, NEW)
    assert len(files_below(tmp_path)) == 1


def test_a_field_that_the_projection_overlooks_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count finds fields by itself, also those of files without field ids."""
    point = StructType(NestedField(3, "x", DoubleType(), False), NestedField(4, "y", DoubleType(), False))
    schema = assign_fresh_schema_ids(Schema(NestedField(1, "line", ListType(2, point, False), False)))
    options = settings_of(tmp_path, schema, properties={NAME_MAPPING: schema.name_mapping.model_dump_json()})
    kind = pa.list_(pa.struct([("x", pa.float64()), ("y", pa.float64())]), 1)
    rows = pa.table({"line": pa.array([[{"x": 1.0, "y": 2.0}], None], kind)})
    path = foreign_file(tmp_path, rows)
    group = MergeTask((FileFact(str(path), path.stat().st_size, 2, PartitionKey(0)),), PartitionKey(0), 1)
    monkeypatch.setattr(projection, "is_list", pa.types.is_list)
    with pytest.raises(RewriteFailed, match="column 'line' field 'element': field 'x' may be 'x' of the file"):
        merge(group, options, NEW)
    monkeypatch.setattr(projection, "may_become", lambda *_: False)  # so that nothing is in doubt
    wanted = (
        r"column 'line\.element\.x' has 2 entries, 1 of them NULL, in the input files, "
        "and 2 entries, 2 of them NULL, in the new files"
    )
    with pytest.raises(RewriteFailed, match=wanted):
        merge(group, options, NEW)
    assert files_below(tmp_path) == [path]
