"""The bytes of several files become one file: which may lie together, row groups copied whole, pages merged, and what
is then known of it. Every file that comes out is read by others, and by the oracle."""

from __future__ import annotations

import io
import math
import random
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import icesize
from icesize.parquet.copying.assembly import OWN_NAME, Assembled, Assembly, ColumnPart, GroupPart
from icesize.parquet.copying.compatibility import MOST_ROW_GROUPS, check_file, check_together
from icesize.parquet.copying.row_groups import copy_row_group
from icesize.parquet.editing.column_plan import ColumnPlan, Part, plan_columns
from icesize.parquet.editing.page_copy import runs_of
from icesize.parquet.files.data_file import CopiedFile, NewDataFile
from icesize.parquet.files.metrics import describe
from icesize.parquet.files.settings import Limits
from icesize.parquet.format.footer import Chunk, Footer, parse_footer
from icesize.parquet.format.page_index import offset_index, read_offset_index
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, read_header, walk
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import is_trusted
from icesize.parquet.format.thrift import (
    BOOLEAN_TRUE,
    BYTE,
    I64,
    STRUCT,
    Bytes,
    Fields,
    bytes_field,
    i32,
    i64,
    integer,
    integers_field,
    read_struct,
    struct_field,
    structs_field,
    structs_of,
    write_struct,
)
from icesize.parquet.rewriting.output_file import describe_copied
from icesize.parquet.verify.file import verify
from tests.support.copying import KEY, SCHEMA, copy_row_groups, foreign_bytes, merge_files, merge_pages, rows, with_ids
from tests.support.examples import examples
from tests.support.footers import Tree, edited, footer_of, inject, make_file, raw_footer, sample
from tests.support.parquet_files import settings_of

_FILE = make_file()
_SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), pa.field("c", pa.decimal128(9, 2))])


def _file(schema: pa.Schema = _SCHEMA, rows: int = 1, **options: object) -> Footer:
    return footer_of(make_file(pa.table([pa.array([None] * rows, f.type) for f in schema], schema=schema), **options))


def _keys(**pairs: bytes | None) -> Callable[[Tree], None]:
    """Metadata with dots written as underscores."""
    structs: list[Fields] = []
    for key, value in pairs.items():
        structs.append({1: bytes_field(key.replace("_", ".").encode())})
        if value is not None:
            structs[-1][2] = bytes_field(value)
    return lambda tree: tree.file.update({5: structs_field(structs)})


def _by(name: str) -> Callable[[Tree], None]:
    return lambda tree: tree.file.update({6: bytes_field(name.encode())})


def _orders(tree: Tree) -> None:
    inject(tree.file, below=7)


def _refusal(function: Callable[[], None]) -> Refusal | None:
    try:
        function()
    except CopyRefused as refused:
        return refused.code
    return None


def test_files_of_pyarrow_are_copied() -> None:
    """Nothing is wrong with a file of any column type that Iceberg has."""
    assert _refusal(lambda: check_file(footer_of(_FILE))) is None


def test_int96_is_refused() -> None:
    """Timestamps of 96 bits have no order and no meaning in Iceberg."""
    footer = footer_of(make_file(sample().select(["at"]), use_deprecated_int96_timestamps=True))
    assert _refusal(lambda: check_file(footer)) == Refusal.INT96


@pytest.mark.parametrize("field_id", [2147483540, 2147483539])
def test_row_lineage_is_refused(field_id: int) -> None:
    """Ids of rows that stand in columns are those of the file that they are in."""
    footer = footer_of(edited(_FILE, lambda tree: tree.schema[1].update({9: i32(field_id)})))
    assert _refusal(lambda: check_file(footer)) == Refusal.ROW_LINEAGE


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (_keys(org_apache_spark_legacyDateTime=b""), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_legacyINT96=None), Refusal.LEGACY_VALUES),
        (_keys(**{"delete-type": b"position"}), Refusal.LEGACY_VALUES),
        (_keys(**{"delete-field-ids": b"1"}), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"2.4.8"), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"other"), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"9" * 5_000), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=None), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"3.0.0"), None),
        (_keys(org_apache_spark_version=b"4.1.1"), None),
        (_keys(org_apache_spark_version=b"10.0"), None),
        (_keys(org_apache_spark_sql_parquet_row_metadata=b"{}", iceberg_schema=b"{}"), None),
    ],
)
def test_keys_that_change_what_values_mean_are_refused(edit: Callable[[Tree], None], code: Refusal | None) -> None:
    """Old calendars and files of deletes; other metadata are no obstacle."""
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, edit)))) == code


@pytest.mark.parametrize(
    "created_by",
    [
        "parquet-mr version 1.10.0 (build 031a6654009e3b82020012a18434c582bd74c73a)",
        "parquet-mr version 1.17.1 (build 0)",
        "parquet-cpp-arrow version 4.0.0",
        "parquet-cpp-arrow version 26.0.1-SNAPSHOT",
        "parquet-rs version 4.0.0",
        "DuckDB version v1.0.0 (build 1f98600c2c)",
        "DuckDB version 2.0",
        "icesize version 0.1.0 (build copy)",
    ],
)
def test_known_writers_are_trusted(created_by: str) -> None:
    """The writers of Spark, Iceberg, pyarrow and DuckDB, from the first version with right statistics on."""
    assert is_trusted(created_by)


@pytest.mark.parametrize(
    "created_by",
    [
        "",
        "parquet-mr",
        "parquet-mr version 1.9.9",
        "parquet-mr version 1",
        "parquet-cpp-arrow version 3.9.9",
        "parquet-cpp version 26.0.0",
        "parquet-rs version 3.0.0",
        "DuckDB version v0.10.3",
        "Polars (python) version 2.1.0",
        "impala version 4.0.0",
        "not parquet-mr version 1.17.1",
        " parquet-mr version 1.17.1",
        "parquet-mr version 1.17".replace("1", "\N{ARABIC-INDIC DIGIT ONE}"),
        "parquet-mr version " + "9" * 5_000 + ".0.0",
        "parquet-mr " + " " * 10**6,
        "x" * 10**6,
    ],
    ids=lambda name: name[:30],
)
def test_unknown_and_old_writers_are_not_trusted(created_by: str) -> None:
    """A file that gets another name would have its statistics believed; names of any length are looked at at once."""
    assert not is_trusted(created_by)
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, _by(created_by))))) == Refusal.CREATED_BY


def test_a_file_without_writer_is_not_trusted() -> None:
    """`created_by` is optional in the format, not here."""
    footer = footer_of(edited(_FILE, lambda tree: tree.file.pop(6)))
    assert _refusal(lambda: check_file(footer)) == Refusal.CREATED_BY


def test_orders_of_columns_are_those_of_their_types_or_unsaid() -> None:
    """An order that this version does not know is refused; so are files that say it and files that do not together."""
    known, without = footer_of(_FILE), footer_of(edited(_FILE, lambda tree: tree.file.pop(7)))
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, _orders)))) == Refusal.COLUMN_ORDERS
    assert [_refusal(partial(check_file, f)) for f in (known, without)] == [None, None]
    assert _refusal(lambda: check_together([without, without])) is None
    assert _refusal(lambda: check_together([known, without])) == Refusal.COLUMN_ORDERS


def _changed(number: int, field: pa.Field) -> pa.Schema:
    return _SCHEMA.set(number, field)


_ID = {"PARQUET:field_id": "7"}


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([_SCHEMA.field(1), _SCHEMA.field(0), _SCHEMA.field(2)]),
        _SCHEMA.remove(2),
        _SCHEMA.append(pa.field("d", pa.int32())),
        _changed(0, pa.field("a", pa.int64())),
        _changed(0, pa.field("a", pa.uint32())),
        _changed(0, pa.field("a", pa.date32())),
        _changed(0, pa.field("A", pa.int32())),
        _changed(0, pa.field("a", pa.int32(), metadata=_ID)),
        _changed(0, pa.field("a", pa.list_(pa.int32()))),
        _changed(1, pa.field("b", pa.binary())),
        _changed(2, pa.field("c", pa.decimal128(9, 3))),
        _changed(2, pa.field("c", pa.decimal128(8, 2))),
        _changed(2, pa.field("c", pa.binary(4))),
    ],
    ids=[
        "order", "missing", "more", "long", "unsigned", "date", "renamed", "field id", "list", "binary", "scale",
        "precision", "fixed",
    ],
)  # fmt: skip
def test_files_of_other_schemas_are_not_put_together(other: pa.Schema) -> None:
    """Whatever pages of one file would mean otherwise in another one, or not at all."""
    footers = [_file(), _file(other)]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS
    assert _refusal(lambda: check_together(footers[::-1])) == Refusal.SCHEMA_DIFFERS


def test_required_and_optional_columns_are_not_put_together() -> None:
    """Pages of an optional column have levels that those of a required one lack."""
    types = [pa.schema([pa.field("a", pa.int32(), nullable=nullable)]) for nullable in (True, False)]
    optional, required = (footer_of(make_file(pa.table([pa.array([1], pa.int32())], schema=each))) for each in types)
    with pytest.raises(CopyRefused, match=r"schema-differs: .*repetition=0.* is not .*repetition=1") as refused:
        check_together([optional, required])
    assert refused.value.code == Refusal.SCHEMA_DIFFERS


def test_decimals_as_bytes_and_as_integers_are_not_put_together() -> None:
    """pyarrow's decimals are bytes, Iceberg's are integers."""
    footers = [_file(), _file(store_decimal_as_integer=True)]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS


def test_a_field_of_an_element_that_nobody_knows_makes_a_difference() -> None:
    """Who knows what it means: files that have it equally may be together."""
    changed = footer_of(edited(_FILE, lambda tree: inject(tree.schema[1])))
    assert _refusal(lambda: check_together([changed, footer_of(_FILE)])) == Refusal.SCHEMA_DIFFERS
    assert _refusal(lambda: check_together([changed, changed])) is None


@pytest.mark.parametrize(
    "options",
    [
        {"version": "1.0"},
        {"version": "2.4"},
        {"compression": "zstd"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False},
        {"write_statistics": False},
        {"write_page_index": True},
        {"store_schema": False},
    ],
    ids=str,
)
def test_how_a_file_was_written_makes_no_difference(options: dict[str, object]) -> None:
    """Versions, codecs, pages and indexes may differ from file to file."""
    assert _refusal(lambda: check_together([footer_of(_FILE), footer_of(make_file(**options))])) is None


def test_empty_files_and_other_roots_make_no_difference() -> None:
    """A file without rows is like others, and the name of the schema is of no meaning."""
    renamed = footer_of(edited(_FILE, lambda tree: tree.schema[0].update({4: bytes_field(b"spark_schema")})))
    empty = footer_of(make_file(sample().slice(0, 0)))
    assert _refusal(lambda: check_together([footer_of(_FILE), renamed, empty])) is None


def test_files_of_duckdb_and_pyarrow_are_put_together(tmp_path: Path) -> None:
    """Two writers spell the same types in different ways."""
    duckdb = pytest.importorskip("duckdb")
    rows = sample().drop(["money"])  # decimals of DuckDB are integers
    duckdb.connect().from_arrow(rows).write_parquet(str(tmp_path / "duckdb"))
    theirs, ours = footer_of((tmp_path / "duckdb").read_bytes()), footer_of(make_file(rows))
    assert [element.converted for element in theirs.schema[1:]] != [element.converted for element in ours.schema[1:]]
    assert [_refusal(partial(check_file, f)) for f in (theirs, ours)] == [None, None]
    assert _refusal(lambda: check_together([theirs, ours])) is None


def _only_converted(tree: Tree) -> None:
    """As writers before logical types did it."""
    for element in tree.schema:
        element.pop(10, None)


def _only_logical(tree: Tree) -> None:
    """As writers that have forgotten converted types do it; INT_32 and INT_64 are the default."""
    for element in tree.schema:
        for field_id in (6, 7, 8):
            element.pop(field_id, None)


def test_logical_and_converted_types_are_the_same() -> None:
    """Files that say it in the old way, the new way and both ways may be together."""
    rows = sample()
    for kind in (pa.timestamp("ms", "UTC"), pa.time32("ms"), pa.time64("us")):
        rows = rows.append_column(str(kind), pa.array([1] * len(rows), kind))
    both = make_file(rows, write_time_adjusted_to_utc=True)
    old, new = (footer_of(edited(both, edit)) for edit in (_only_converted, _only_logical))
    assert old.schema != new.schema
    assert _refusal(lambda: check_together([footer_of(both), old, new])) is None


def test_local_times_are_not_those_of_utc() -> None:
    """Converted types say that times are in UTC; logical types can say otherwise."""
    utc, local = (
        footer_of(make_file(pa.table({"t": pa.array([1], pa.timestamp("us", zone))}))) for zone in ("UTC", None)
    )
    assert _refusal(lambda: check_together([utc, local])) == Refusal.SCHEMA_DIFFERS


def _annotated(number: int, logical: Fields) -> Callable[[Tree], None]:
    return lambda tree: tree.schema[number].update({10: struct_field(logical)})


def test_a_signed_integer_of_its_width_is_no_annotation() -> None:
    """DuckDB and others annotate plain integers; parameters nobody knows, other widths and signs are no plain ones."""
    signed = {1: (BYTE, b"\x40"), 2: (BOOLEAN_TRUE, b"")}
    plain, others = footer_of(_FILE), [{**signed, 2: (2, b"")}, {**signed, 1: (BYTE, b"\x10")}, {**signed, 3: i32(1)}]
    annotated = footer_of(edited(_FILE, _annotated(1, {10: struct_field(signed)})))
    assert _refusal(lambda: check_together([plain, annotated])) is None
    for other in others:
        footer = footer_of(edited(_FILE, _annotated(1, {10: struct_field(other)})))
        assert _refusal(partial(check_together, [plain, footer])) == Refusal.SCHEMA_DIFFERS


def test_parameters_that_nobody_knows_make_a_difference() -> None:
    """A decimal with more than scale and precision may be another one."""

    def edit(tree: Tree) -> None:
        (decimal,) = (element for element in tree.schema if read_struct(element.get(10, (0, b"\0"))[1])[0].get(5))
        union, _ = read_struct(decimal[10][1])
        parameters, _ = read_struct(union[5][1])
        decimal[10] = (STRUCT, write_struct({5: struct_field({**parameters, 3: i32(1)})}))

    footers = [footer_of(_FILE), footer_of(edited(_FILE, edit))]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS


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


def copied_whole(
    files: Sequence[bytes], footers: Sequence[Footer] | None = None, **how: Any
) -> tuple[bytes, Assembled]:
    """The file and what is known of it."""
    out = io.BytesIO()
    assembled = copy_row_groups(
        [BytesSource(file) for file in files], footers or list(map(footer_of, files)), out, **how
    )
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
        header = read_header(data, page.at)
        assert header.end + header.size_bytes - page.at == page.size_bytes


@examples(60)
@given(parts())
def test_a_copy_has_all_rows_of_its_parts_in_order(made: list[MadeFile]) -> None:
    """For any schema and any options of writers; indexes and bloom filters go along, page by page."""
    data, assembled = copied_whole([part.data for part in made])
    rows = pa.concat_tables([part.rows for part in made])
    assert values(read(data)) == values(rows)

    footer = footer_of(data)
    old = [part.footer for part in made]
    assert (assembled.size_bytes, assembled.rows) == (len(data), rows.num_rows)
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
@given(parts(), st.integers(60, 5000))
def test_reading_in_pieces_and_verifying_change_nothing(made: list[MadeFile], piece_bytes: int) -> None:
    """Small pieces, verified or not, give the same file; a copy of a copy has all rows, too."""
    files = [part.data for part in made]
    data, _ = copied_whole(files)
    assert copied_whole(files, verify_pages=True)[0] == data
    assert copied_whole(files, piece_bytes=piece_bytes)[0] == data
    assert copied_whole(files, verify_pages=True, piece_bytes=piece_bytes)[0] == data
    twice, _ = copied_whole([data, files[0]], verify_pages=True)
    assert values(read(twice)) == values(read(data)) + values(made[0].rows)


class Spy(BytesSource):
    """Notes how much is read at once."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.reads: list[int] = []

    def read_into(self, at: int, target: memoryview) -> None:
        self.reads.append(len(target))
        super().read_into(at, target)


def test_a_row_group_is_one_read_or_as_many_as_it_has_pieces() -> None:
    """Chunks that lie together are read together, and no more than a piece of them."""
    data = make_file(row_group_size=20)
    size = footer_of(data).row_groups[0].size_bytes
    for piece, expected in ((2**20, [size]), (size - 1, [size - 1, 1])):
        source = Spy(data)
        copy_row_groups([source], [footer_of(data)], io.BytesIO(), piece_bytes=piece)
        assert source.reads == expected
    source = Spy(data)
    copy_row_groups([source], [footer_of(data)], io.BytesIO(), verify_pages=True, piece_bytes=size - 1)
    assert sum(source.reads) == size
    assert len(source.reads) == 2  # whole chunks


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
    """Pages outside of their chunk and fields that may be offsets always; pages that are not there when verified."""
    data = make_file(pa.table({"id": range(100)}), row_group_size=100, max_rows_per_page=50, write_page_index=True)
    chunk = footer_of(data).row_groups[0].chunks[0]
    pages, _ = read_offset_index(at(data, chunk.offset_index) or b"")
    first, second = pages
    far = offset_index([first, second._replace(size_bytes=second.size_bytes + 1)], None)
    assert refusal(with_index(data, far)) == Refusal.CORRUPT_FOOTER
    assert refusal(with_index(data, b"\x19\x0c\x26\x02\0")) == Refusal.UNKNOWN_FIELD
    for wrong in ([first], [first, second._replace(first_row=49)], [first, second._replace(at=second.at - 1)]):
        forged = with_index(data, offset_index(wrong, None))
        assert values(read(copied_whole([forged])[0])) == values(read(data))
        assert refusal(forged, verify_pages=True) == Refusal.PAGES


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
    data = make_file(rows)
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


def test_damaged_pages_are_refused_when_verified() -> None:
    """Headers that do not tile the chunk, and bodies that are not what their checksums say."""
    data = make_file(pa.table({"id": range(100)}), use_dictionary=False, write_page_checksum=True, row_group_size=100)
    chunk = footer_of(data).row_groups[0].chunks[0]
    for place, code in ((chunk.start, Refusal.PAGES), (chunk.end - 1, Refusal.CHECKSUM)):
        damaged = overwritten(data, place, bytes([data[place] ^ 0x7F]))
        assert copied_whole([damaged])[1].rows == 100
        assert refusal(damaged, verify_pages=True) == code


def test_rows_that_pages_do_not_have_are_refused_when_verified() -> None:
    """Nested pages of format 2 say how many rows they have, which the footer must agree with."""
    data = make_file(pa.table({"items": [[1, 2], [3]]}), data_page_version="2.0")

    def change(tree: Tree) -> None:
        tree.groups[0][3] = tree.file[3] = i64(3)

    assert refusal(edited(data, change), verify_pages=True) == Refusal.PAGES


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
        "from icesize.parquet.copying import row_groups, compatibility; "
        "from icesize.parquet.editing import page_copy, column_plan; import sys; "
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
    assert assembly.finish().rows == MOST_ROW_GROUPS


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


@pytest.mark.parametrize("verify_pages", [False, True])
def test_an_error_at_any_write_leaves_no_file(verify_pages: bool) -> None:
    """It is raised as it is, and what was written is no Parquet file; a write that is cut short is an error, too."""
    data = make_file(
        pa.table({"id": range(20), "k": ["a"] * 20}), write_page_index=True, bloom_filter_options={"id": True}
    )
    out = Failing(0, None)
    copy_row_groups([BytesSource(data)], [footer_of(data)], out, verify_pages=verify_pages)
    assert out.writes == 1 + 2 * (1 + 1) + 2 * 2 * 2 + 1  # magic; two row groups, a bloom filter each; indexes; footer
    for number in range(1, out.writes + 1):
        for error in (OSError("disk full"), None):
            failing = Failing(number, error)
            with pytest.raises(OSError, match="disk full" if error else "bytes were written"):
                copy_row_groups([BytesSource(data)], [footer_of(data)], failing, verify_pages=verify_pages)
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
    (folder / "all.parquet").write_bytes(copied_whole(files, verify_pages=True)[0])
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


SAMPLE_SCHEMA = sample(100).schema.set(4, pa.field("money", pa.decimal128(9, 2)))
COPYABLE = {"use_dictionary": False, "write_page_index": True}


def table(rows: int, start: int = 0) -> pa.Table:
    """Rows of `sample`, always of the same types."""
    return sample(rows, start).cast(SAMPLE_SCHEMA)


def merged(*files: bytes, **limits: int) -> bytes:
    """All rows of these files in one, which says nothing wrong about itself."""
    out = io.BytesIO()
    made = merge_files([BytesSource(file) for file in files], [footer_of(file) for file in files], out, **limits)
    data = out.getvalue()
    assert made.size_bytes == len(data)
    assert verify(BytesSource(data), "merged").problems == ()
    return data


def all_row_groups(*files: bytes) -> bytes:
    """All row groups of these files in one."""
    out = io.BytesIO()
    copy_row_groups([BytesSource(file) for file in files], [footer_of(file) for file in files], out)
    return out.getvalue()


def spelt_rows_of(*files: bytes) -> list[str]:
    """All rows, spelt, so that NaN equals itself and -0.0 is not 0.0."""
    return [repr(row) for file in files for row in pq.read_table(io.BytesIO(file)).to_pylist()]


def parts_of(*files: bytes) -> list[Part]:
    """Their row groups in order."""
    return [
        Part(BytesSource(file), footer, group)
        for file in files
        for footer in [footer_of(file)]
        for group in footer.row_groups
    ]


def plan_of(*files: bytes, renumber_page_ns: int = Limits().renumber_page_ns) -> ColumnPlan:
    """The plan for one row group of all of them."""
    return plan_columns(parts_of(*files), renumber_page_ns)


def refused(act: Callable[[], object]) -> Refusal:
    """The code of what is raised."""
    with pytest.raises(CopyRefused) as caught:
        act()
    return caught.value.code


def column(values: Sequence[object], **options: object) -> bytes:
    """A file of the column `a`, in one row group."""
    return make_file(pa.table({"a": list(values)}), row_group_size=10**6, write_page_index=True, **options)


def page_encodings(data: bytes) -> list[list[tuple[int, int]]]:
    """(type, encoding) of the pages of each chunk, found by their headers."""
    footer, found = footer_of(data), []
    for group in footer.row_groups:
        for chunk, leaf in zip(group.chunks, footer.columns, strict=True):
            pages = walk(data[chunk.start : chunk.end], leaf.flat, chunk.values)
            every = [*([pages.dictionary] if pages.dictionary else []), *pages.data]
            found.append([(page.type, page.encoding) for page in every])
    return found


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionary", [True, False, ["text"]])
@pytest.mark.parametrize("index", [True, False])
def test_rows_are_those_of_all_parts_in_their_order(version: str, dictionary: bool | list[str], index: bool) -> None:
    """Three files of several row groups become one row group with the same rows, nested and flat."""
    options = {"data_page_version": version, "use_dictionary": dictionary, "write_page_index": index}
    files = [make_file(table(25, start), write_page_checksum=True, **options) for start in (0, 25, 900)]
    data = merged(*files)
    assert spelt_rows_of(data) == spelt_rows_of(*files)
    assert [group.rows for group in footer_of(data).row_groups] == [75]
    assert spelt_rows_of(merged(data, *files)) == spelt_rows_of(*files, *files)


def test_columns_without_dictionaries_are_copied_and_keep_the_writers_name() -> None:
    """Nothing is encoded again, pages are byte for byte those of the parts, and so is who wrote them."""
    files = [make_file(table(10, start), **COPYABLE) for start in (0, 10)]
    plan = plan_of(*files)
    assert (plan.reencode, plan.reencoded_bytes, plan.dictionaries) == ({}, 0, [None] * 13)
    assert plan.copied_bytes == sum(part.group.size_bytes for part in parts_of(*files))
    data = merged(*files)
    assert footer_of(data).created_by == footer_of(files[0]).created_by
    first, *_ = footer_of(data).row_groups[0].chunks
    bodies = [file[c.start : c.end] for file in files for c in [footer_of(file).row_groups[0].chunks[0]]]
    assert data[first.start : first.end] == b"".join(bodies)


def test_a_column_that_is_encoded_again_changes_the_writers_name() -> None:
    """Readers choose by a writer's name what they believe; the file is by icesize then."""
    assert footer_of(merged(column("ab" * 9), column("ba" * 9))).created_by == OWN_NAME


STRATEGIES: dict[str, tuple[list[bytes], str | None]] = {
    "equal dictionaries": ([column(["x", "y"] * 9), column(["x", "y", "y"])], None),
    "a dictionary that grows": ([column(["x", "y"] * 9), column(["x", "y", "z"]), column(["x"])], None),
    "a dictionary that begins long": (
        [column(["x", "y", "z"]), column(["x", "y"]), column(["x", "y", "z", "x"])],
        None,
    ),
    "a dictionary of numbers that grows": ([column([5, 6] * 9), column([5, 6, 7])], None),
    "an empty dictionary": ([column(["x"]), column(["x"])], None),
    "other dictionaries": ([column(["x", "y"]), column(["y", "x"])], "dictionaries"),
    "a longer one that begins otherwise": ([column(["x", "y"]), column(["y", "x", "z"])], "dictionaries"),
    "two that grow apart": ([column(["x"]), column(["x", "y"]), column(["x", "z"])], "dictionaries"),
    "a dictionary after plain pages": ([column(["x"], use_dictionary=False), column(["x"])], "dictionary-order"),
    "plain pages after a dictionary": ([column(["x"]), column(["x"], use_dictionary=False)], None),
    "other codecs": ([column(["x"], compression="zstd"), column(["x"], compression="gzip")], "codec"),
    "split bytes": ([column([0.5], use_dictionary=False, column_encoding={"a": "BYTE_STREAM_SPLIT"})] * 2, "encoding"),
    "booleans in runs": ([column([True, False], data_page_version="2.0")] * 2, "encoding"),
    "booleans": ([column([True, False])] * 2, None),
    "deltas": ([column([1, 2], use_dictionary=False, column_encoding={"a": "DELTA_BINARY_PACKED"})] * 2, None),
    "deltas and plain": (
        [
            column(["x"], use_dictionary=False, column_encoding={"a": "DELTA_BYTE_ARRAY"}),
            column(["x"], use_dictionary=False),
        ],
        None,
    ),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_lanes(name: str) -> None:
    """Pages are copied where one dictionary serves all parts and none follows plain pages; else the column is encoded
    again, for the reason that is told."""
    files, reason = STRATEGIES[name]
    assert plan_of(*files).reencode == ({} if reason is None else {"a": reason})
    data = merged(*files)
    assert spelt_rows_of(data) == spelt_rows_of(*files)
    kinds = [encoding in DICTIONARY_ENCODINGS for kind, encoding in page_encodings(data)[0] if kind != 2]
    assert kinds == sorted(kinds, reverse=True)


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_dictionaries_are_compared_in_every_codec(codec: str) -> None:
    """A dictionary that grows is seen behind its compression, and one that differs is encoded in the same codec."""
    grow = [column([f"value {i}" for i in range(n)], compression=codec) for n in (40, 60, 50)]
    assert plan_of(*grow).reencode == {}
    assert spelt_rows_of(merged(*grow)) == spelt_rows_of(*grow)
    differ = [column(list("ab") * 40, compression=codec), column(list("ba") * 40, compression=codec)]
    data = merged(*differ)
    assert spelt_rows_of(data) == spelt_rows_of(*differ)
    assert footer_of(data).row_groups[0].chunks[0].codec == footer_of(differ[0]).row_groups[0].chunks[0].codec


def test_chunks_of_nulls_agree_with_any_dictionary() -> None:
    """pyarrow gives a chunk of nulls an empty dictionary, wherever it stands."""
    nulls = make_file(pa.table({"a": pa.array([None] * 5, pa.string())}))
    some = column(["x", "y"] * 5)
    for files in ([nulls, some], [some, nulls, some], [nulls, nulls]):
        assert plan_of(*files).reencode == {}
        assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)


def test_a_nested_column_is_encoded_again_as_a_whole() -> None:
    """One leaf with dictionaries that differ takes its sibling along, but not another column."""
    files = [
        make_file(pa.table({"s": [{"a": i, "b": b} for i in range(9)], "n": list(range(9))}), use_dictionary=["s.b"])
        for b in "xy"
    ]
    plan = plan_of(*files)
    sizes = [chunk.size_bytes for part in parts_of(*files) for chunk in part.group.chunks]
    assert plan.reencode == {"s": "dictionaries"}
    assert (plan.reencoded_bytes, plan.copied_bytes) == (sum(sizes) - sizes[2] - sizes[5], sizes[2] + sizes[5])
    assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)


def falls_back() -> bytes:
    """A chunk whose pages have a dictionary at first and then none."""
    values = [f"{i:05}" for i in range(400)]
    return column(
        values, dictionary_pagesize_limit=900, data_page_size=500, write_batch_size=50, write_page_checksum=True
    )


def all_by_dictionary(tree: Tree) -> None:
    """A footer that claims that all data pages need the dictionary."""
    for fields in tree.metadata[0]:
        stats = [
            one for one in structs_of(fields, 13) if integer(one, 2) in DICTIONARY_ENCODINGS or integer(one, 1) == 2
        ]
        fields[13] = structs_field(stats)


def test_no_page_with_a_dictionary_follows_one_without() -> None:
    """Spark's vectorised reader gives wrong values for such: the plan sees it, the copy where it is hidden."""
    data = falls_back()
    kinds = [encoding for kind, encoding in page_encodings(data)[0] if kind != 2]
    assert kinds[0] == 8
    assert kinds[-1] == 0
    assert plan_of(data, data).reencode == {"a": "dictionary-order"}
    assert spelt_rows_of(merged(data, data)) == spelt_rows_of(data, data)
    forged = edited(data, all_by_dictionary)
    assert plan_of(forged, forged).reencode == {}
    assert refused(lambda: merged(forged, forged)) is Refusal.DICTIONARY_ORDER


@pytest.mark.parametrize("nested", [False, True])
def test_no_bad_order_comes_of_whole_files_either(nested: bool) -> None:
    """Plain chunks before those with a dictionary, of lists and others, in one row group or several: the plan has them
    encoded again, and where the footer hides the dictionary nothing is written."""
    values = [[f"w{i % 5}", None][: 1 + i % 2] if nested else f"w{i % 5}" for i in range(60)]
    plain, coded = column(values, use_dictionary=False), column(values)
    halves = make_file(pa.table({"a": values}), row_group_size=30)
    for files in ((plain, coded), (plain, halves), (coded, plain, coded), (halves, plain, halves)):
        assert plan_of(*files).reencode == {"a": "dictionary-order"}
        assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)
        for pages in page_encodings(merged(*files)):
            by_dictionary = [encoding in DICTIONARY_ENCODINGS for kind, encoding in pages if kind != 2]
            assert by_dictionary == sorted(by_dictionary, reverse=True)
    good = [coded, halves, plain, plain]
    assert plan_of(*good).reencode == {}
    assert spelt_rows_of(merged(*good)) == spelt_rows_of(*good)
    # a plan that was made for a file that is not this one
    parts = parts_of(plain, coded)
    plan = plan_of(coded, coded)
    assembly = Assembly(io.BytesIO(), [part.footer for part in parts])
    assert refused(lambda: merge_pages(parts, plan, assembly)) is Refusal.DICTIONARY_ORDER


def test_a_hidden_encoding_is_refused_when_it_is_met() -> None:
    """Pages that not all readers know are seen in their headers when the footer does not name them."""

    def hide(tree: Tree) -> None:
        tree.metadata[0][0].pop(13)
        tree.metadata[0][0][2] = tree.metadata[0][1][2]

    values = pa.table({"a": [0.5, 1.5], "b": [0.5, 1.5]})
    data = edited(
        make_file(values, use_dictionary=False, column_encoding={"a": "BYTE_STREAM_SPLIT", "b": "PLAIN"}), hide
    )
    assert plan_of(data, data).reencode == {}
    assert refused(lambda: merged(data, data)) is Refusal.ENCODING


def test_a_hidden_dictionary_is_refused_when_it_is_met() -> None:
    """A footer that names no dictionary and no such encoding; the copy meets both."""

    def hide(tree: Tree) -> None:
        first, second = tree.metadata[0]
        first.pop(13)
        first |= {9: first.pop(11), 2: second[2]}

    data = edited(make_file(pa.table({"a": [1, 1], "b": [True, True]})), hide)
    assert refused(lambda: merged(data)) is Refusal.PAGES


def test_metadata_are_what_the_pages_are() -> None:
    """Encoding statistics of a merged file are what a walk over its pages counts, and so are its encodings."""
    files = [
        make_file(
            table(30, n),
            data_page_version=v,
            data_page_size=40,
            write_batch_size=5,
            row_group_size=30,
            use_dictionary=n == 0,
        )
        for n, v in ((0, "1.0"), (30, "2.0"), (60, "1.0"))
    ]
    data = merged(*files)
    for chunk, pages in zip(footer_of(data).row_groups[0].chunks, page_encodings(data), strict=True):
        counts = {(integer(s, 1), integer(s, 2)): integer(s, 3) for s in structs_of(chunk.metadata, 13)}
        assert counts == {page: pages.count(page) for page in pages}


def test_nan_has_no_bounds_in_a_column_that_is_encoded_again() -> None:
    """Readers take bounds for a promise that nothing is NaN; the number of nulls is kept."""
    files = [column([1.5, math.nan, None], use_dictionary=False), column([2.5, None, None])]
    data = merged(*files)
    assert plan_of(*files).reencode == {"a": "dictionary-order"}
    found = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0).statistics
    assert (found.has_min_max, found.null_count) == (False, 3)
    whole = [column([1.5, 2.5, None], use_dictionary=False), column([3.5, None, None])]
    found = pq.read_metadata(io.BytesIO(merged(*whole))).row_group(0).column(0).statistics
    assert (found.min, found.max, found.null_count) == (1.5, 3.5, 3)


def test_a_newly_encoded_column_has_a_dictionary_only_where_it_pays() -> None:
    """Few values get one, many do not, whatever the parts had; pages are small enough to be skipped."""
    few = [column([f"{(i * k) % 7}" for i in range(15_000)]) for k in (3, 5)]
    never = {"renumber_page_ns": 10**9}
    data = merged(*few, **never)
    pages = page_encodings(data)[0]
    assert plan_of(*few, **never).reencode == {"a": "dictionaries"}
    assert {encoding for kind, encoding in pages if kind != 2} == {8}
    many = [column([f"{i}" for i in range(start, start + 300)]) for start in (0, 300)]
    assert {encoding for _, encoding in page_encodings(merged(*many))[0]} == {0}
    if "max_rows_per_page" in pq.ParquetWriter.__init__.__code__.co_varnames:
        assert len(pages) == 3
    wide = [column([(i * k) % 400 for i in range(1_000)]) for k in (3, 7)]
    assert {encoding for kind, encoding in page_encodings(merged(*wide))[0] if kind != 2} == {8}


def test_what_pyarrow_would_write_in_another_form_is_refused() -> None:
    """A list of the old form has another name for its elements; pages would fit, the schema would not."""
    files = [make_file(pa.table({"a": [[x]]}), use_compliant_nested_type=False) for x in "xy"]
    assert refused(lambda: merged(*files)) is Refusal.SCHEMA_DIFFERS


def test_damage_in_a_column_that_is_encoded_again_is_refused() -> None:
    """pyarrow finds it while it decodes, by the checksum of the page."""
    files = [bytearray(column([x] * 9, write_page_checksum=True)) for x in "xy"]
    chunk = footer_of(bytes(files[1])).row_groups[0].chunks[0]
    files[1][chunk.end - 1] ^= 1
    assert plan_of(*map(bytes, files)).reencode == {"a": "dictionaries"}
    assert refused(lambda: merged(*map(bytes, files))) is Refusal.PAGES


def test_damage_in_a_copied_column_is_refused() -> None:
    """The checksum of each page is compared while it is copied."""
    data = bytearray(make_file(table(10), write_page_checksum=True, **COPYABLE))
    data[footer_of(bytes(data)).row_groups[0].chunks[2].end - 1] ^= 1
    assert refused(lambda: merged(bytes(data))) is Refusal.CHECKSUM


def test_decimals_stay_what_they_are() -> None:
    """Decimals in integers and in fixed bytes are encoded again as such."""
    values = [pa.table({"a": pa.array([Decimal(n) / 100, None], pa.decimal128(9, 2))}) for n in (1, 2)]
    for as_integer in (True, False):
        files = [make_file(rows, store_decimal_as_integer=as_integer) for rows in values]
        assert plan_of(*files).reencode == {"a": "dictionaries"}
        assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)


ARROW_TYPES: dict[str, tuple[pa.DataType, list[object], list[object]]] = {
    "long strings": (pa.large_string(), ["x", "y"], ["y", "x"]),
    "views": (pa.string_view(), ["x", "y"], ["y", "x"]),
    "categories": (pa.dictionary(pa.int32(), pa.string()), ["x", "y"], ["y", "x"]),
    "categories of numbers": (pa.dictionary(pa.int8(), pa.float64()), [1.5, math.nan], [2.5, None]),
    "categories in lists": (pa.list_(pa.dictionary(pa.int32(), pa.string())), [["x"], []], [["y"], None]),
    "half floats": (pa.float16(), [1.5, math.nan], [2.5, None]),
    "durations": (pa.duration("us"), [1, 2], [2, 1]),
    "extensions": (pa.uuid(), [b"x" * 16], [b"y" * 16]),
    "lists of one length": (pa.list_(pa.int32(), 2), [[1, 2]], [[3, 4]]),
    "unsigned": (pa.uint32(), [2**32 - 1], [0]),
    "long decimals": (pa.decimal256(50, 2), [Decimal("1.5")], [Decimal("-2.5")]),
}


@pytest.mark.parametrize("name", ARROW_TYPES)
def test_types_of_arrow_are_encoded_again_as_what_they_are_in_parquet(name: str) -> None:
    """Writers leave an Arrow schema in files, by which pyarrow reads other types than those of Parquet."""
    kind, *columns = ARROW_TYPES[name]
    files = [make_file(pa.table({"a": pa.array(values, kind)})) for values in columns]
    assert plan_of(*files).reencode == {"a": "dictionaries"}
    assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)


def lists(count: int, start: int) -> pa.Table:
    """Rows with lists of very different lengths, some longer than a page."""
    return pa.table({"a": [None if i % 11 == 0 else list(range(i % 7 * 9)) for i in range(start, start + count)]})


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("index", [True, False])
def test_lists_over_several_pages(version: str, index: bool) -> None:
    """Rows that are longer than a page are copied, and page indexes come along only where rows are known: in v2 pages,
    or by the offset index of the part."""
    options = {"data_page_size": 60, "write_batch_size": 7, "use_dictionary": False, "row_group_size": 100}
    files = [make_file(lists(50, s), data_page_version=version, write_page_index=index, **options) for s in (0, 50)]
    data = merged(*files)
    assert spelt_rows_of(data) == spelt_rows_of(*files)
    chunk = footer_of(data).row_groups[0].chunks[0]
    assert (chunk.offset_index is not None) == (index or version == "2.0")
    assert (chunk.column_index is not None) == index
    if chunk.offset_index is not None:
        at, length = chunk.offset_index
        places, _ = read_offset_index(data[at : at + length])
        assert len(places) > 40
        second = next(place for place in places if place.first_row >= 50)
        assert second.first_row == 50


def test_one_part_without_an_index_leaves_the_output_without() -> None:
    """Flat columns get an offset index from page headers, bounds of pages only where all parts have them."""
    files = [column(range(9), use_dictionary=False), make_file(pa.table({"a": [1]}), use_dictionary=False)]
    chunk = footer_of(merged(*files)).row_groups[0].chunks[0]
    assert chunk.offset_index is not None
    assert chunk.column_index is None


def test_pages_without_values_are_left_out() -> None:
    """pyarrow writes one now and then, where lists end with a page; not all readers have met them."""
    options = {"data_page_size": 20, "write_batch_size": 3, "row_group_size": 100, "write_page_index": True}
    data = make_file(table(100).select(["items"]), **options)
    chunk = footer_of(data).row_groups[0].chunks[0]
    assert walk(data[chunk.start : chunk.end], False, chunk.values).data[-2].values == 0
    twice = merged(data, data)
    assert spelt_rows_of(twice) == spelt_rows_of(data, data)
    assert len(page_encodings(twice)[0]) == 2 * len(page_encodings(data)[0]) - 3


def test_row_groups_without_rows_and_empty_files_add_nothing() -> None:
    """A file of no rows between others, and only such files."""
    empty, some = make_file(table(0)), make_file(table(9))
    assert spelt_rows_of(merged(empty, some, empty)) == spelt_rows_of(some)
    assert footer_of(merged(empty, empty)).row_groups == []


def test_two_hundred_columns() -> None:
    """A wide file is one row group with all of its columns in their order."""
    files = [
        make_file(pa.table({f"c{i}": [i + start, None] for i in range(200)}), use_dictionary=start == 0)
        for start in (0, 1)
    ]
    assert spelt_rows_of(merged(*files)) == spelt_rows_of(*files)


def test_row_groups_have_about_equal_sizes() -> None:
    """Parts are shared out so that all row groups come near the limit, by rows or by bytes, in the order of parts."""
    files = [make_file(table(10, start), **COPYABLE) for start in range(0, 90, 10)]
    assert [group.rows for group in footer_of(merged(*files, rows_per_group=30)).row_groups] == [30, 30, 30]
    assert [group.rows for group in footer_of(merged(*files, rows_per_group=25)).row_groups] == [20, 20, 20, 20, 10]
    size = sum(part.group.size_bytes for part in parts_of(*files))
    groups = footer_of(merged(*files, bytes_per_group=size // 2)).row_groups
    assert [group.rows for group in groups] in ([40, 50], [50, 40])
    assert [len(run) for run in runs_of(parts_of(*files), 1, 10**9)] == [1] * 9
    assert list(runs_of([], 1, 1)) == []


def test_pages_that_were_copied_are_counted() -> None:
    """Data pages of copied columns, not of those that were encoded again."""
    files = [make_file(pa.table({"a": [1, 2], "b": [b, b]}), use_dictionary=["b"]) for b in "xy"]
    parts = parts_of(*files)
    out = io.BytesIO()
    assembly = Assembly(out, [part.footer for part in parts])
    assert merge_pages(parts, plan_columns(parts, 10**9), assembly, level=7) == 2
    assert assembly.finish().rows == 4


def test_merging_and_copying_of_what_was_merged_and_copied() -> None:
    """Outputs are inputs again, in any combination."""
    files = [make_file(table(12, start)) for start in (0, 12, 24)]
    all_rows = spelt_rows_of(*files)
    once = merged(*files)
    assert spelt_rows_of(merged(once)) == all_rows
    assert spelt_rows_of(all_row_groups(once, *files)) == all_rows * 2
    assert spelt_rows_of(merged(all_row_groups(*files), once)) == all_rows * 2


def test_other_readers_read_the_same(tmp_path: Path) -> None:
    """DuckDB and polars see the rows that pyarrow sees, and find by filters what is there."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    names = [name for name in SAMPLE_SCHEMA.names if name != "at"]  # DuckDB needs a library for time zones
    files = [
        make_file(table(500, start).select(names), row_group_size=100, use_dictionary=start == 0) for start in (0, 500)
    ]
    path = tmp_path / "merged.parquet"
    path.write_bytes(merged(*files))
    expected = pq.read_table(path)
    assert polars.read_parquet(path).rows() == polars.from_arrow(expected).rows()
    assert duckdb.sql(f"select * from '{path}'").fetchall() == duckdb.sql("select * from expected").fetchall()
    for where in ("id between 437 and 733", "small = 3", "text = 'text 501'", "text is null", "money > 9.5"):
        found = duckdb.sql(f"select count(*) from '{path}' where {where}").fetchall()
        assert found == duckdb.sql(f"select count(*) from expected where {where}").fetchall()
        assert found[0][0] > 0


@dataclass(frozen=True)
class Shape:
    """How one file of the property test is made: its values are `first + i * step % pool`, each `nulls`th is null."""

    rows: int
    first: int
    step: int
    pool: int
    nulls: int
    options: dict[str, object]

    def file(self, kinds: Sequence[str]) -> bytes:
        """The file, with a column of each kind."""
        numbers = [None if i % self.nulls == 0 else self.first + i * self.step % self.pool for i in range(self.rows)]
        columns = {
            kind: pa.array([None if n is None else KINDS[kind][1](n) for n in numbers], KINDS[kind][0])
            for kind in kinds
        }
        return make_file(pa.table(columns), **self.options)


KINDS: dict[str, tuple[pa.DataType, Callable[[int], object]]] = {
    "int": (pa.int32(), int),
    "unsigned": (pa.uint64(), lambda n: n + 2**63),
    "text": (pa.string(), lambda n: "t" * (n % 9) + str(n)),
    "double": (pa.float64(), lambda n: (math.nan, -0.0, 0.0)[n] if n < 3 else n / 8),
    "flag": (pa.bool_(), lambda n: n % 2 == 0),
    "money": (pa.decimal128(20, 2), lambda n: Decimal(n) / 100),
    "bytes": (pa.binary(3), lambda n: n.to_bytes(3, "big")),
    "list": (pa.list_(pa.string()), lambda n: [str(i) for i in range(n % 5)]),
    "struct": (
        pa.struct({"a": pa.int64(), "b": pa.struct({"c": pa.string()})}),
        lambda n: {"a": n, "b": {"c": str(n % 3)}},
    ),
    "map": (pa.map_(pa.int32(), pa.float32()), lambda n: [(i, math.nan if i == 2 else i) for i in range(n % 4)]),
}
SHAPES = st.builds(
    Shape,
    rows=st.integers(0, 60),
    first=st.sampled_from([0, 0, 0, 5]),
    step=st.sampled_from([1, 1, 1, 7]),
    pool=st.sampled_from([2, 10, 10, 100]),
    nulls=st.sampled_from([1, 2, 5, 100]),
    options=st.fixed_dictionaries(
        {
            "data_page_version": st.sampled_from(["1.0", "2.0"]),
            "use_dictionary": st.sampled_from([True, True, False]),
            "dictionary_pagesize_limit": st.sampled_from([30, 2**20]),
            "write_page_index": st.booleans(),
            "write_page_checksum": st.booleans(),
            "data_page_size": st.sampled_from([50, 2**20]),
            "write_batch_size": st.just(8),
            "row_group_size": st.sampled_from([20, 100]),
            "compression": st.sampled_from(["zstd", "zstd", "zstd", "none"]),
        }
    ),
)


def check_merge(shapes: Sequence[Shape], kinds: Sequence[str], rows_per_group: int) -> list[list[bool]]:
    """Merge, and merge what was merged, with the same rows; the columns whose pages are in a bad order."""
    files = [shape.file(kinds) for shape in shapes]
    data = merged(*files, rows_per_group=rows_per_group)
    assert spelt_rows_of(data) == spelt_rows_of(*files)
    assert spelt_rows_of(merged(data, *files)) == spelt_rows_of(*files, *files)
    orders = [
        [encoding in DICTIONARY_ENCODINGS for kind, encoding in pages if kind != 2] for pages in page_encodings(data)
    ]
    return [order for order in orders if order != sorted(order, reverse=True)]


MERGES = {
    "shapes": st.lists(SHAPES, min_size=1, max_size=4),
    "kinds": st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3, unique=True),
    "rows_per_group": st.sampled_from([25, 10**6]),
}


@examples(40)
@given(**MERGES)
def test_any_files_keep_their_rows(shapes: list[Shape], kinds: list[str], rows_per_group: int) -> None:
    """Types, nulls, NaN, page versions, dictionaries, page indexes, codecs and limits in any combination."""
    assert check_merge(shapes, kinds, rows_per_group) == []


@pytest.mark.slow
@examples(1_500)
@given(**MERGES)
def test_any_files_keep_their_rows_often(shapes: list[Shape], kinds: list[str], rows_per_group: int) -> None:
    """The same with more examples."""
    assert check_merge(shapes, kinds, rows_per_group) == []


def flip_headers(count: int, seed: int) -> dict[str, int]:
    """Flip bits in headers of pages of one of two files and merge both; how often each outcome was seen."""
    chance, outcomes = random.Random(seed), Counter[str]()
    names = ["id", "text", "flag", "items"]
    options = {"row_group_size": 40, "use_dictionary": ["text"], "data_page_size": 60, "write_batch_size": 10}
    files = [make_file(table(40, start).select(names), **options) for start in (0, 40)]
    footer = footer_of(files[0])
    headers = [
        chunk.start + page.at + at
        for chunk, leaf in zip(footer.row_groups[0].chunks, footer.columns, strict=True)
        for pages in [walk(files[0][chunk.start : chunk.end], leaf.flat, chunk.values)]
        for page in [*filter(None, [pages.dictionary]), *pages.data]
        for at in range(page.header_bytes)
    ]
    for _ in range(count):
        damaged = bytearray(files[0])
        damaged[chance.choice(headers)] ^= 1 << chance.randrange(8)
        sources = [BytesSource(damaged), BytesSource(files[1])]
        try:
            merge_files(sources, [footer, footer_of(files[1])], io.BytesIO())
        except CopyRefused as error:
            outcomes[error.code.value] += 1
        else:
            outcomes["merged"] += 1
    return outcomes


def test_flipped_bits_in_page_headers_are_refused_or_harmless() -> None:
    """Nothing but a refusal is raised, also by pyarrow for a column that is encoded again."""
    outcomes = flip_headers(200, 3)
    assert outcomes["pages"] > 50
    assert set(outcomes) <= {"pages", "merged", "encoding", "dictionary-order", "dictionaries", "checksum"}


@pytest.mark.slow
def test_many_flipped_bits_in_page_headers_are_refused_or_harmless() -> None:
    """The same, 20,000 times."""
    assert flip_headers(20_000, 5)["pages"] > 5_000


def test_memory_does_not_grow_with_the_number_of_parts(tmp_path: Path) -> None:
    """Copying four times as many files holds no more than one chunk and their metadata."""
    file = make_file(
        pa.table({"a": [f"{i:020}" for i in range(20_000)]}), row_group_size=20_000, compression="none", **COPYABLE
    )

    def peak(count: int) -> int:
        sources, footers = [BytesSource(file)] * count, [footer_of(file)] * count
        with (tmp_path / "out").open("wb", buffering=0) as out:
            tracemalloc.start()
            merge_files(sources, footers, out)
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return found

    assert peak(40) < peak(10) + len(file) // 2 < 2 * len(file)


DATA = foreign_bytes(with_ids(rows(50)), row_group_size=20)


def described(folder: Path, data: bytes, **properties: str) -> CopiedFile:
    """What is known of a file of SCHEMA."""
    options = settings_of(folder, SCHEMA, properties=properties)
    assembled = Assembled(len(data), 50, (4, 99), raw_footer(data))
    return describe_copied(options, "a.parquet", KEY, assembled, parse_footer(assembled.footer, len(data)))


def statistics(**changes: tuple[int, bytes]) -> Callable[[Tree], None]:
    """Change those of the first column of the last row group."""

    def change(tree: Tree) -> None:
        metadata = tree.metadata[-1][0]
        fields, _ = read_struct(metadata[12][1])
        metadata[12] = struct_field({**fields, **{int(k[1:]): v for k, v in changes.items()}})

    return change


@pytest.mark.parametrize("mode", ["none", "counts", "full"])
def test_counts_are_those_of_files_that_are_written(tmp_path: Path, mode: str) -> None:
    """By any metrics mode; bounds and NaN counts are left to what manifests say."""
    properties = {"write.metadata.metrics.default": mode, "write.metadata.metrics.column.word": "counts"}
    options = settings_of(tmp_path, SCHEMA, properties=properties)
    file = described(tmp_path, DATA, **properties)
    own = describe(NewDataFile("a.parquet", len(DATA), 0, KEY), options, pq.read_metadata(io.BytesIO(DATA)), {}, {})
    assert (file.rows, file.size_bytes, file.split_offsets) == (50, len(DATA), (4, 99))
    assert file.column_sizes == own.column_sizes
    assert file.value_counts == own.value_counts
    assert file.null_value_counts == own.null_value_counts
    assert set(file.value_counts) == ({4} if mode == "none" else {1, 2, 3, 4})
    assert (file.nan_value_counts, file.lower_bounds, file.upper_bounds) == ({}, {}, {})


@pytest.mark.parametrize(
    "edit",
    [
        statistics(f6=bytes_field(b"abc")),
        statistics(f5=bytes_field(b"\xff\xfe")),
        lambda tree: tree.metadata[0][0].update({16: struct_field({3: integers_field([1, 2, 3], I64)})}),
    ],
)
def test_what_pyarrow_stumbles_over_is_not_looked_at(tmp_path: Path, edit: Callable[[Tree], object]) -> None:
    """Bounds that are no values, histograms of too many levels."""
    file, good = described(tmp_path, edited(DATA, edit)), described(tmp_path, DATA)
    assert (file.value_counts, file.null_value_counts) == (good.value_counts, good.null_value_counts)


@pytest.mark.parametrize("nulls", [-1, 10, 51])
def test_null_counts_that_cannot_be_true_are_unknown(tmp_path: Path, nulls: int) -> None:
    """Those of all entries beside bounds, too; so is that of a column of which one chunk has none."""
    assert set(described(tmp_path, edited(DATA, statistics(f3=i64(nulls)))).null_value_counts) == {2, 3, 4}
    without = edited(DATA, lambda tree: tree.metadata[0][1].pop(12))
    assert 12 not in footer_of(without).row_groups[0].chunks[1].metadata
    assert set(described(tmp_path, without).null_value_counts) == {1, 3, 4}


def test_unreadable_statistics_are_refused(tmp_path: Path) -> None:
    """By our own error."""
    with pytest.raises(CopyRefused, match="statistics"):
        described(tmp_path, edited(DATA, statistics(f3=bytes_field(b"1"))))
