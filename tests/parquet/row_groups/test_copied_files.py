"""Several files become one file of row groups that are copied whole: every reader and the oracle find all rows."""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icesize
from icesize.parquet.format.footer import Chunk, Footer
from icesize.parquet.format.page_index import offset_index, read_offset_index
from icesize.parquet.format.pages import read_page
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import (
    I64,
    Bytes,
    bytes_field,
    i32,
    i64,
    integer,
    integers_field,
    read_struct,
    struct_field,
    structs_field,
    write_struct,
)
from icesize.parquet.row_groups.assembly import OWN_NAME, Assembled, Assembly, ColumnPart, GroupPart
from icesize.parquet.row_groups.compatibility import MOST_ROW_GROUPS
from icesize.parquet.row_groups.row_groups import copy_row_group
from tests.support.copying import copy_row_groups
from tests.support.examples import examples
from tests.support.footers import Tree, edited, footer_of, make_file, raw_footer

Maker = Callable[[random.Random], object]


COLUMNS: dict[str, tuple[pa.DataType, Maker]] = {
    "id": (pa.int64(), lambda rng: rng.getrandbits(40)),
    "small": (pa.int32(), lambda rng: rng.randrange(-9, 9)),
    "kind": (pa.string(), lambda rng: rng.choice(("a", "b", "cc"))),
    "text": (pa.string(), lambda rng: f"text {rng.getrandbits(40)}"),
    "number": (pa.float64(), lambda rng: rng.choice((math.nan, -0.0, rng.random(), rng.random() * 1e9))),
    "money": (pa.decimal128(9, 2), lambda rng: Decimal(rng.randrange(-(10**8), 10**8)).scaleb(-2)),
    "large": (pa.decimal128(20, 4), lambda rng: Decimal(rng.randrange(-(10**18), 10**18)).scaleb(-4)),
    "at": (pa.timestamp("us", "UTC"), lambda rng: datetime.fromtimestamp(rng.getrandbits(30))),
    "local": (pa.timestamp("us"), lambda rng: datetime.fromtimestamp(rng.getrandbits(30))),
    "day": (pa.date32(), lambda rng: date.fromordinal(rng.randrange(700_000, 740_000))),
    "flag": (pa.bool_(), lambda rng: rng.random() < 0.5),
    "raw": (pa.binary(), lambda rng: rng.randbytes(rng.randrange(6))),
    "nothing": (pa.string(), lambda rng: None),
    "record": (
        pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.string()})}),
        lambda rng: {"a": rng.randrange(9), "b": rng.choice((None, {"c": "x"}))},
    ),
    "items": (pa.list_(pa.int32()), lambda rng: [rng.choice((None, 1, 2**30)) for _ in range(rng.randrange(4))]),
    "pairs": (
        pa.map_(pa.string(), pa.float64()),
        lambda rng: [(str(i), rng.random()) for i in range(rng.randrange(3))],
    ),
}


def rows_of(columns: Sequence[str], rows: int, seed: int) -> pa.Table:
    """Random rows, a tenth of the values null."""
    rng = random.Random(seed)
    arrays = {}
    for name in columns:
        kind, make = COLUMNS[name]
        arrays[name] = pa.array([None if rng.random() < 0.1 else make(rng) for _ in range(rows)], kind)
    return pa.table(arrays)


def writer_options(draw: Callable[[st.SearchStrategy[Any]], Any], columns: Sequence[str]) -> dict[str, object]:
    """How a writer may write."""
    flat = [name for name in columns if not pa.types.is_nested(COLUMNS[name][0]) and name not in ("flag", "nothing")]
    blooms = draw(st.lists(st.sampled_from(flat), unique=True)) if flat else []
    return {
        "compression": draw(st.sampled_from(("none", "snappy", "gzip", "zstd", "lz4", "brotli"))),
        "data_page_version": draw(st.sampled_from(("1.0", "2.0"))),
        "version": draw(st.sampled_from(("1.0", "2.6"))),
        "write_page_index": draw(st.booleans()),
        "write_page_checksum": draw(st.booleans()),
        "store_schema": draw(st.booleans()),
        "use_dictionary": draw(st.booleans() | st.just(["kind"])),
        "bloom_filter_options": {name: {"ndv": 50} for name in blooms} or None,
        "row_group_size": draw(st.sampled_from((7, 60, 1000))),
        "max_rows_per_page": draw(st.sampled_from((5, 20_000))),
    }


@dataclass
class MadeFile:
    """A file and what is in it."""

    data: bytes
    rows: pa.Table

    @property
    def footer(self) -> Footer:
        return footer_of(self.data)


@st.composite
def parts(draw: st.DrawFn) -> list[MadeFile]:
    """One to four files of one schema; some without rows."""
    columns = draw(st.lists(st.sampled_from(sorted(COLUMNS)), unique=True, min_size=1, max_size=6))
    compact = draw(st.booleans())
    made = []
    for _ in range(draw(st.integers(1, 4))):
        rows = rows_of(columns, draw(st.sampled_from((0, 1, 8, 90))), draw(st.integers(0, 2**16)))
        made.append(MadeFile(make_file(rows, store_decimal_as_integer=compact, **writer_options(draw, columns)), rows))
    return made


def copied_whole(files: Sequence[bytes], footers: Sequence[Footer] | None = None) -> tuple[bytes, Assembled]:
    """The file and what is known of it."""
    out = io.BytesIO()
    assembled = copy_row_groups([BytesSource(file) for file in files], footers or list(map(footer_of, files)), out)
    return out.getvalue(), assembled


def values(table: pa.Table) -> list[str]:
    """All rows such that NaN is equal to NaN, and 0.0 not to -0.0."""
    return [repr(row) for row in table.to_pylist()]


def read(data: bytes) -> pa.Table:
    """All rows as pyarrow reads them; it verifies checksums, and uses no page index."""
    return pq.read_table(io.BytesIO(data), page_checksum_verification=True)


def chunks_of(footers: Sequence[Footer]) -> list[Chunk]:
    """All chunks of all row groups."""
    return [chunk for footer in footers for group in footer.row_groups for chunk in group.chunks]


def at(data: bytes, place: tuple[int, int] | None) -> bytes | None:
    """The bytes of an (offset, length)."""
    return None if place is None else data[place[0] : sum(place)]


def check_copied(data: bytes, chunk: Chunk, source: bytes, old: Chunk) -> None:
    """A chunk is that of the source, and everything that belongs to it is found at its new place."""
    assert data[chunk.start : chunk.end] == source[old.start : old.end]
    delta = chunk.start - old.start
    assert integer(chunk.metadata, 9) == (integer(old.metadata, 9) or 0) + delta
    assert integer(chunk.metadata, 11) == (integer(old.metadata, 11) + delta if 11 in old.metadata else None)  # type: ignore[operator]
    same = chunk.metadata.keys() - {9, 11, 14}
    assert {k: chunk.metadata[k] for k in same} == {k: old.metadata[k] for k in old.metadata.keys() - {9, 11, 14}}
    assert at(data, chunk.bloom_filter) == at(source, old.bloom_filter)
    assert at(data, chunk.column_index) == at(source, old.column_index)
    assert (chunk.offset_index is None) == (old.offset_index is None)
    if chunk.offset_index is None or old.offset_index is None:
        return
    pages, variable = read_offset_index(at(data, chunk.offset_index) or b"")
    before, variable_before = read_offset_index(at(source, old.offset_index) or b"")
    assert (variable, len(pages)) == (variable_before, len(before))
    for page in pages:
        assert read_page(data, page.at, len(data), flat=False).size_bytes == page.size_bytes


@examples(60)
@given(parts())
def test_a_copy_has_all_rows_of_its_parts_in_order(made: list[MadeFile]) -> None:
    """For any schema and any options of writers; indexes and bloom filters go along, page by page."""
    data, assembled = copied_whole([part.data for part in made])
    rows = pa.concat_tables([part.rows for part in made])
    assert values(read(data)) == values(rows)

    footer = footer_of(data)
    old = [part.footer for part in made]
    assert (assembled.size_bytes, assembled.parsed.rows) == (len(data), rows.num_rows)
    assert assembled.footer == raw_footer(data)
    assert list(assembled.split_offsets) == [min(c.start for c in group.chunks) for group in footer.row_groups]
    assert [group.rows for group in footer.row_groups] == [group.rows for f in old for group in f.row_groups]
    for number, group in enumerate(footer.row_groups):
        assert [integer(group.fields, k) for k in (5, 6, 7)] == [
            assembled.split_offsets[number],
            group.size_bytes,
            number,
        ]
    sources = [part.data for part, f in zip(made, old, strict=True) for _ in chunks_of([f])]
    for chunk, source, before in zip(chunks_of([footer]), sources, chunks_of(old), strict=True):
        check_copied(data, chunk, source, before)


@examples(25)
@given(parts())
def test_a_copy_of_a_copy_has_all_rows(made: list[MadeFile]) -> None:
    """What was copied once can be copied again."""
    files = [part.data for part in made]
    data, _ = copied_whole(files)
    twice, _ = copied_whole([data, files[0]])
    assert values(read(twice)) == values(read(data)) + values(made[0].rows)


class Spy(BytesSource):
    """Notes how much is read at once."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[int] = []

    def read_into(self, at: int, target: memoryview) -> None:
        self.reads.append(len(target))
        super().read_into(at, target)


def test_a_column_chunk_is_one_read() -> None:
    """Each is read once, and no more than one is in memory."""
    data = make_file(row_group_size=20)
    (group, *_), source = footer_of(data).row_groups, Spy(data)
    copy_row_groups([source], [footer_of(data)], io.BytesIO())
    assert source.reads[: len(group.chunks)] == [chunk.size_bytes for chunk in group.chunks]
    assert sum(source.reads) == sum(one.size_bytes for one in footer_of(data).row_groups)


def test_offsets_that_mean_nothing_are_not_moved() -> None:
    """No dictionary may be said by 0, a chunk's own offset is 0 or where it begins, an empty path is left out."""

    def change(tree: Tree) -> None:
        for chunk, metadata in zip(tree.chunks[0], tree.metadata[0], strict=True):
            assert 11 not in metadata
            metadata[11] = i64(0)
            chunk[1] = bytes_field(b"")
        tree.chunks[0][1][2] = i64(4)

    plain = make_file(use_dictionary=False, row_group_size=20)
    data, _ = copied_whole([plain, edited(plain, change)])
    assert values(read(data)) == 2 * values(read(plain))
    first, second = footer_of(data).row_groups
    assert {11 in c.metadata or 1 in c.fields for c in (*first.chunks, *second.chunks)} == {False}
    assert [integer(c.fields, 2) for c in first.chunks] == [0] * len(first.chunks)
    assert [integer(c.fields, 2) for c in second.chunks][:3] == [0, second.chunks[1].start, 0]


def test_bloom_filter_of_unknown_length_and_lone_column_index_stay_behind() -> None:
    """A bloom filter without a length cannot be copied; a ColumnIndex without its OffsetIndex is of no use."""
    data = make_file(
        bloom_filter_options={"id": {"ndv": 9}, "text": {"ndv": 9}}, write_page_index=True, row_group_size=20
    )

    def change(tree: Tree) -> None:
        del tree.metadata[0][0][15], tree.chunks[0][1][4], tree.chunks[0][1][5]

    copy, _ = copied_whole([edited(data, change)])
    chunks = chunks_of([footer_of(copy)])
    assert {14, 15}.isdisjoint(chunks[0].metadata)
    assert chunks[0].column_index is not None
    assert {4, 5, 6, 7}.isdisjoint(chunks[1].fields)
    assert {14, 15} <= chunks[2].metadata.keys()
    assert values(read(copy)) == values(read(data))


def test_gaps_between_chunks_are_left_out() -> None:
    """What lies between chunks is not theirs."""
    data = make_file(row_group_size=20, write_page_index=False)
    footer = footer_of(data)
    cut = footer.row_groups[0].chunks[2].start

    def change(tree: Tree) -> None:
        for metadata in tree.metadata[0][2:]:
            for field in (9, 11):
                if field in metadata:
                    metadata[field] = i64((integer(metadata, field) or 0) + 100)

    wide = edited(data[:cut] + b"x" * 100 + data[cut:], change)
    assert values(read(wide)) == values(read(data))
    assert copied_whole([wide])[0] == copied_whole([data])[0]


def with_keys(data: bytes, **keys: str) -> bytes:
    """The same file with these key-value metadata."""
    pairs = [{1: bytes_field(key.encode()), 2: bytes_field(value.encode())} for key, value in keys.items()]
    return edited(data, lambda tree: tree.file.update({5: structs_field(pairs)}))


def test_metadata_that_are_true_of_all_parts_are_kept() -> None:
    """Keys with one value, the writer and the version if all have the same."""
    data = make_file(pa.table({"id": [1]}))
    one, other = with_keys(data, a="1", b="1", c="1"), with_keys(data, a="1", b="2")
    footer = footer_of(copied_whole([one, one])[0])
    assert footer.keys == {b"a": b"1", b"b": b"1", b"c": b"1"}
    assert (footer.created_by, footer.fields[1]) == (footer_of(one).created_by, footer_of(one).fields[1])

    by_another = edited(other, lambda tree: tree.file.update({1: i32(1), 6: bytes_field(b"parquet-mr version 1.17.1")}))
    footer = footer_of(copied_whole([one, by_another])[0])
    assert footer.keys == {b"a": b"1"}
    assert (footer.created_by, integer(footer.fields, 1)) == (OWN_NAME, 1)
    assert footer.created_by == f"icesize version {icesize.__version__} (build copy)"
    assert footer_of(copied_whole([one, data])[0]).keys == {}


def with_index(data: bytes, index: bytes, *, of_columns: bool = False) -> bytes:
    """The same file, its first chunk with another OffsetIndex, or ColumnIndex."""
    end = len(data) - 8 - len(raw_footer(data))
    moved = data[:end] + index + data[end:]

    def change(tree: Tree) -> None:
        place, length = (6, 7) if of_columns else (4, 5)
        tree.chunks[0][0] |= {place: i64(end), length: i32(len(index))}

    return edited(moved, change)


def overwritten(data: bytes, place: int, new: bytes) -> bytes:
    return data[:place] + new + data[place + len(new) :]


def refusal(file: bytes, **how: Any) -> Refusal:
    """Why a file is not copied; what was written until then is no Parquet file."""
    out = io.BytesIO()
    with pytest.raises(CopyRefused) as refused:
        copy_row_groups([BytesSource(file)], [footer_of(file)], out, **how)
    with pytest.raises(pa.ArrowInvalid):
        read(out.getvalue())
    return refused.value.code


def test_wrong_page_indexes_are_refused() -> None:
    """Pages outside of their chunk, fields that may be offsets, and pages that are not there."""
    data = make_file(pa.table({"id": range(100)}), row_group_size=100, max_rows_per_page=50, write_page_index=True)
    chunk = footer_of(data).row_groups[0].chunks[0]
    pages, _ = read_offset_index(at(data, chunk.offset_index) or b"")
    first, second = pages
    far = offset_index([first, second._replace(size_bytes=second.size_bytes + 1)], None)
    assert refusal(with_index(data, far)) == Refusal.PAGES
    assert refusal(with_index(data, b"\x19\x0c\x26\x02\0")) == Refusal.UNKNOWN_FIELD
    for wrong in ([first], [first, second._replace(first_row=49)], [first, second._replace(at=second.at - 1)]):
        forged = with_index(data, offset_index(wrong, None))
        assert refusal(forged) == Refusal.PAGES


def with_first(field_id: int, **changes: tuple[int, bytes]) -> Callable[[Tree], None]:
    """Change a struct of the first column's ColumnMetaData: `f5` is its field 5."""

    def change(tree: Tree) -> None:
        for metadata in tree.metadata:
            fields, _ = read_struct(metadata[0][field_id][1])
            metadata[0][field_id] = struct_field({**fields, **{int(k[1:]): v for k, v in changes.items()}})

    return change


NO_VALUES: dict[str, tuple[pa.DataType, list[Any], bytes]] = {
    "int64": (pa.int64(), [1], b"abc"),
    "int32": (pa.int32(), [1], b"12345678"),
    "double": (pa.float64(), [1.0], b"1234"),
    "bool": (pa.bool_(), [True], b"\x02"),
    "decimal": (pa.decimal128(20, 2), [Decimal(1)], b"1"),
    "fixed": (pa.binary(4), [b"1234"], b"12345"),
    "half": (pa.float16(), [1.0], b"1"),
}


@pytest.mark.parametrize("field_id", [1, 2, 5, 6])
@pytest.mark.parametrize("name", NO_VALUES)
def test_bounds_that_are_no_values_are_refused(name: str, field_id: int) -> None:
    """pyarrow could not read any row group of the new file, or would end the process."""
    kind, some, bound = NO_VALUES[name]
    data = make_file(pa.table({"x": pa.array(some, kind)}))
    assert refusal(edited(data, with_first(12, **{f"f{field_id}": bytes_field(bound)}))) == Refusal.CORRUPT_FOOTER


@pytest.mark.parametrize(("field_id", "field"), [(3, i64(-1)), (3, i64(2)), (3, bytes_field(b"1")), (5, i64(1))])
def test_statistics_that_cannot_be_true_are_refused(field_id: int, field: tuple[int, bytes]) -> None:
    """More nulls than values or fewer than none, and fields of other types."""
    data = make_file(pa.table({"x": [1]}))
    assert refusal(edited(data, with_first(12, **{f"f{field_id}": field}))) == Refusal.CORRUPT_FOOTER


def test_text_bounds_may_be_cut_within_a_character() -> None:
    """Writers truncate bytes; such a file is read, filtered or not."""
    rows = pa.table({"x": ["\u00e9a", "\u00e9b"]})
    change = with_first(12, f6=bytes_field(b"\xc3"), f5=bytes_field(b"\xff"))
    data, _ = copied_whole([edited(make_file(rows), change)])
    assert read(data) == rows
    assert pq.read_table(io.BytesIO(data), filters=[("x", "=", "\u00e9b")]).num_rows == 1


LEVELS: dict[str, tuple[pa.DataType, list[Any], int, int]] = {
    "flat": (pa.int64(), [1, None], 1, 2),
    "items": (pa.list_(pa.int32()), [[1], None], 2, 4),
    "record": (pa.struct({"a": pa.struct({"b": pa.int64()}), "c": pa.int64()}), [{"a": {"b": 1}, "c": 2}], 1, 4),
    "deep": (pa.list_(pa.struct({"a": pa.list_(pa.int64())})), [[{"a": [1]}]], 3, 7),
}


@pytest.mark.parametrize("name", LEVELS)
def test_histograms_have_an_entry_for_each_level(name: str) -> None:
    """Or none at all; for others pyarrow ends the process."""
    kind, some, repetitions, definitions = LEVELS[name]
    rows = pa.table({"x": pa.array(some, kind), "y": [0] * len(some)})
    data = make_file(rows, write_page_checksum=True)  # its levels are not counted
    for field_id, right in ((2, repetitions), (3, definitions)):
        for levels in (0, right - 1, right, right + 1):
            changed = edited(data, with_first(16, **{f"f{field_id}": integers_field([1] * levels, I64)}))
            if levels in (0, right):
                assert values(read(copied_whole([changed])[0])) == values(rows)
            else:
                assert refusal(changed) == Refusal.CORRUPT_FOOTER


@pytest.mark.parametrize(
    ("field_id", "field"),
    [
        (16, struct_field({1: i64(10)})),
        (13, structs_field([{1: i32(0)}])),
        (13, structs_field([{1: i32(0), 2: i64(0), 3: i32(1)}])),
        (8, structs_field([{2: bytes_field(b"no key")}])),
        (8, integers_field([1], I64)),
    ],
)
def test_other_metadata_that_no_reader_takes_are_refused(field_id: int, field: tuple[int, bytes]) -> None:
    """Bytes of byte arrays where there are none, and structs without a field that they must have."""
    data = make_file(pa.table({"x": [1]}))
    assert refusal(edited(data, lambda tree: tree.metadata[0][0].update({field_id: field}))) == Refusal.CORRUPT_FOOTER


def test_column_indexes_that_do_not_fit_stay_behind() -> None:
    """Of other numbers of pages or levels, with bounds of another type; damaged ones are refused."""
    options: dict[str, object] = {"row_group_size": 100, "max_rows_per_page": 50, "write_page_index": True}
    data = make_file(pa.table({"x": range(100)}), **options)
    one_page = make_file(pa.table({"x": range(50)}), **options)
    texts = make_file(pa.table({"x": [str(i) for i in range(100)]}), **options)
    (chunk,) = chunks_of([footer_of(data)])
    own = at(data, chunk.column_index) or b""
    foreign = [at(file, chunks_of([footer_of(file)])[0].column_index) or b"" for file in (one_page, texts)]
    histogram = write_struct({**read_struct(own)[0], 7: integers_field([1] * 6, I64)})
    for index, stays in ((own, True), (foreign[0], False), (foreign[1], False), (histogram, False)):
        copy, _ = copied_whole([with_index(data, index, of_columns=True)])
        (copied,) = chunks_of([footer_of(copy)])
        assert at(copy, copied.column_index) == (index if stays else None)
        assert copied.offset_index is not None
        assert read(copy) == read(data)
    assert refusal(with_index(data, b"\xff" * len(own), of_columns=True)) == Refusal.CORRUPT_FOOTER


def test_damaged_pages_are_refused() -> None:
    """Headers that do not tile the chunk, and bodies that are not what their checksums say."""
    data = make_file(pa.table({"id": range(100)}), use_dictionary=False, write_page_checksum=True, row_group_size=100)
    chunk = footer_of(data).row_groups[0].chunks[0]
    for place, code in ((chunk.start, Refusal.PAGES), (chunk.end - 1, Refusal.CHECKSUM)):
        damaged = overwritten(data, place, bytes([data[place] ^ 0x7F]))
        assert refusal(damaged) == code


def test_rows_that_pages_do_not_have_are_refused() -> None:
    """Nested pages of format 2 say how many rows they have, which the footer must agree with."""
    data = make_file(pa.table({"items": [[1, 2], [3]]}), data_page_version="2.0")

    def change(tree: Tree) -> None:
        tree.groups[0][3] = tree.file[3] = i64(3)

    assert refusal(edited(data, change)) == Refusal.PAGES


def test_files_that_do_not_belong_together_are_refused_before_anything_is_written() -> None:
    """Another type, another name, a type that is never copied; `out` stays empty."""
    first = make_file(pa.table({"id": [1]}))
    int96 = make_file(pa.table({"at": [datetime(2024, 1, 1)]}), use_deprecated_int96_timestamps=True)
    for files, code in (
        ([first, make_file(pa.table({"id": pa.array([1], pa.int32())}))], Refusal.SCHEMA_DIFFERS),
        ([first, make_file(pa.table({"other": [1]}))], Refusal.SCHEMA_DIFFERS),
        ([int96], Refusal.INT96),
    ):
        out = io.BytesIO()
        with pytest.raises(CopyRefused) as refused:
            copy_row_groups(list(map(BytesSource, files)), list(map(footer_of, files)), out)
        assert (refused.value.code, out.getvalue()) == (code, b"")


def test_a_footer_that_contradicts_itself_is_not_written() -> None:
    """A row group whose pages are said to lie behind the end of the file."""
    data = make_file(pa.table({"id": [1]}))
    out, footer = io.BytesIO(), footer_of(data)
    assembly = Assembly(out, [footer])
    (group,) = footer.row_groups
    columns = [ColumnPart(chunk.fields, {**chunk.metadata, 9: i64(10**9)}) for chunk in group.chunks]
    assembly.add(GroupPart(group.fields, columns, group.rows, 4, group.size_bytes))
    with pytest.raises(CopyRefused) as refused:
        assembly.finish()
    assert (refused.value.code, out.getvalue()) == (Refusal.CORRUPT_FOOTER, b"PAR1")


def test_copying_loads_neither_arrow_nor_iceberg() -> None:
    """They take a hundred MB and a third of a second, and bytes can be moved without them."""
    code = (
        "from icesize.parquet.row_groups import row_groups, compatibility; "
        "from icesize.parquet.pages import page_copy, column_plan; import sys; "
        "print(sorted({'pyspark', 'pyarrow', 'pyiceberg', 'icesize.parquet.files.settings'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_memory_is_used_again() -> None:
    """Only for more bytes than ever before there is new memory."""
    assembly = Assembly(io.BytesIO(), [footer_of(make_file())])
    first = assembly.room(1000)
    assert len(first) == 1000
    assert assembly.room(10).obj is assembly.room(1000).obj is first.obj
    assert len(assembly.room(2000)) == 2000


def test_too_many_row_groups_are_refused() -> None:
    """Ordinals of row groups are 16 bits wide."""
    data = make_file(pa.table({"id": [1]}))
    source, footer = BytesSource(data), footer_of(data)
    assembly = Assembly(io.BytesIO(), [footer])
    for _ in range(MOST_ROW_GROUPS):
        copy_row_group(source, footer.row_groups[0], assembly)
    with pytest.raises(CopyRefused, match=str(MOST_ROW_GROUPS)) as refused:
        copy_row_group(source, footer.row_groups[0], assembly)
    assert refused.value.code == Refusal.ROW_GROUPS
    assert assembly.finish().parsed.rows == MOST_ROW_GROUPS


def test_a_source_that_ends_early_is_refused() -> None:
    """A file that was cut since its footer was read."""
    data = make_file()
    with pytest.raises(CopyRefused) as refused:
        copy_row_groups([BytesSource(data[: footer_of(data).start // 2])], [footer_of(data)], io.BytesIO())
    assert refused.value.code == Refusal.SHORT_READ


class Failing(io.BytesIO):
    """Storage that fails at one write, by raising or by taking less than it was given."""

    def __init__(self, fail_at: int, error: Exception | None) -> None:
        super().__init__()
        self.writes = 0
        self._fail_at, self._error = fail_at, error

    def write(self, data: Bytes, /) -> int:  # type: ignore[override]
        self.writes += 1
        if self.writes == self._fail_at:
            if self._error is not None:
                raise self._error
            return super().write(data[:-1])
        return super().write(data)


def test_an_error_at_any_write_leaves_no_file() -> None:
    """It is raised as it is, and what was written is no Parquet file; a write that is cut short is an error, too."""
    data = make_file(
        pa.table({"id": range(20), "k": ["a"] * 20}), write_page_index=True, bloom_filter_options={"id": True}
    )
    out = Failing(0, None)
    copy_row_groups([BytesSource(data)], [footer_of(data)], out)
    assert (
        out.writes == 1 + 2 * (2 + 1) + 2 * 2 * 2 + 1
    )  # magic; two row groups of two chunks and a bloom filter; indexes; footer
    for number in range(1, out.writes + 1):
        for error in (OSError("disk full"), None):
            failing = Failing(number, error)
            with pytest.raises(OSError, match="disk full" if error else "bytes were written"):
                copy_row_groups([BytesSource(data)], [footer_of(data)], failing)
            with pytest.raises(pa.ArrowInvalid):
                read(failing.getvalue())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of all columns by different writers' options, and `all.parquet`, their copy."""
    folder = tmp_path_factory.mktemp("copied")
    how: list[Mapping[str, object]] = [
        {
            "compression": "zstd",
            "write_page_index": True,
            "max_rows_per_page": 50,
            "bloom_filter_options": {"text": {}},
        },
        {"compression": "snappy", "data_page_version": "2.0", "use_dictionary": False},
        {"compression": "gzip", "write_page_index": True, "data_page_version": "2.0"},
        {"compression": "none", "bloom_filter_options": {"text": {"ndv": 100}}, "row_group_size": 1000},
    ]
    files = [
        make_file(rows_of(sorted(COLUMNS), 300, seed), **{"row_group_size": 150, **h}) for seed, h in enumerate(how)
    ]
    for number, file in enumerate(files):
        (folder / f"part-{number}.parquet").write_bytes(file)
    (folder / "all.parquet").write_bytes(copied_whole(files)[0])
    return folder


FILTERS = [
    "id between 100000000000 and 300000000000",
    "small = 3",
    "small is null",
    "kind = 'cc' and flag",
    "text >= 'text 5' and text < 'text 6'",
    "number > 0.5",
    "money < -100",
    "large > 1000000",
    "\"at\" >= timestamptz '1990-01-01 00:00:00+00'",
    "local < timestamp '1980-01-01 00:00:00'",
    "day > date '1950-01-01'",
    "raw = ''::blob",
    "nothing is not null",
    "record.a = 4",
    "len(items) > 2",
]


def test_duckdb_reads_the_same_from_the_copy_as_from_its_parts(folder: Path) -> None:
    """All rows, and the rows of filters that prune row groups by statistics and bloom filters."""
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as db:
        for condition in ["true", *FILTERS]:
            query = "select * from read_parquet('{}') where " + condition
            old = values(db.sql(query.format(f"{folder}/part-*.parquet")).to_arrow_table())
            new = values(db.sql(query.format(f"{folder}/all.parquet")).to_arrow_table())
            assert new == old, condition
            assert (condition == "nothing is not null") == (not new), condition


def test_duckdb_finds_bloom_filters_at_their_new_place(tmp_path: Path) -> None:
    """What a bloom filter excludes in a part it excludes in the copy; a part without one excludes nothing."""
    duckdb = pytest.importorskip("duckdb")
    blooms = {"text": {"ndv": 1000}}
    tables = [rows_of(("kind", "text", "id"), 20, seed) for seed in range(3)]
    files = [make_file(rows, bloom_filter_options=blooms if i != 1 else None) for i, rows in enumerate(tables)]
    for name, data in (*((f"part-{i}", file) for i, file in enumerate(files)), ("all", copied_whole(files)[0])):
        (tmp_path / f"{name}.parquet").write_bytes(data)
    texts = [next(filter(None, rows["text"].to_pylist())) for rows in tables]
    with duckdb.connect() as db:

        def excluded(name: str, value: str) -> list[bool]:
            probe = f"from parquet_bloom_probe('{tmp_path}/{name}.parquet', 'text', '{value}')"
            return [row[0] for row in db.sql(f"select bloom_filter_excludes {probe} order by row_group_id").fetchall()]

        for value, expected in (
            (texts[0], [False, True, False, False, True, True]),
            (texts[2], [True, True, False, False, False, True]),
            ("absent", [True, True, False, False, True, True]),
        ):
            assert [flag for i in range(3) for flag in excluded(f"part-{i}", value)] == expected
            assert excluded("all", value) == expected


def test_polars_reads_the_same_from_the_copy_as_from_its_parts(folder: Path) -> None:
    """All rows, and the rows of filters."""
    polars = pytest.importorskip("polars")
    old = polars.concat([polars.read_parquet(folder / f"part-{number}.parquet") for number in range(4)])
    new = polars.read_parquet(folder / "all.parquet")
    assert [str(row) for row in new.rows()] == [str(row) for row in old.rows()]
    column = polars.col
    for condition in (
        column("id").is_between(10**11, 3 * 10**11),
        column("kind") == "cc",
        column("number") > 0.5,
        column("day") > date(1950, 1, 1),
        column("text").is_null(),
    ):
        found = polars.scan_parquet(folder / "all.parquet").filter(condition).collect()
        assert found.height > 0
        assert [str(row) for row in found.rows()] == [str(row) for row in old.filter(condition).rows()]
