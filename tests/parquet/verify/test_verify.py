"""Parquet files that tell the truth about themselves, and every kind of lie."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from icesize.parquet.format.page_index import PageLocation, offset_index, read_offset_index
from icesize.parquet.format.pages import walk
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import (
    BINARY,
    BOOLEAN_TRUE,
    I64,
    LIST,
    Fields,
    binaries_of,
    bytes_field,
    i32,
    i64,
    integer,
    integers_field,
    list_header,
    read_struct,
    struct_field,
    struct_of,
    structs_field,
    structs_of,
    write_struct,
)
from icesize.parquet.verify.__main__ import main
from icesize.parquet.verify.file import MOST_PROBLEMS, FileVerification, verify_file
from tests.support.footers import Tree, edited, footer_of, make_file, mutants, raw_footer, with_footer

COLUMNS = ["id", "number", "text", "items", "count"]
ROWS = pa.table(
    {
        "id": pa.array(range(10), pa.int64()),
        "number": [None, -1.5, -0.0, 0.0, -2.5, None, None, None, None, -7.0],
        "text": ["b", "a", "c", "b", "a", "c", "b", "a", "c", "d"],
        "items": [[1], [], None, [2, None], [3], [4], [5, 6], [7], [8], [9]],
        "count": pa.array([2**32 - 1, *range(1, 10)], pa.uint32()),
    }
)
PAGED = {"max_rows_per_page": 4, "write_batch_size": 4, "write_page_index": True, "use_dictionary": ["text"]}
PLAIN = {"compression": "none", "store_schema": False}
FILE = make_file(ROWS, **PAGED, **PLAIN)
"""One row group, pages of four, four and two rows."""


def check(data: bytes) -> FileVerification:
    """Verify a file in memory."""
    return verify_file(BytesSource(data), "file")


def problems(data: bytes) -> list[str]:
    """The problems, without the file's name."""
    found = check(data)
    every = [*found.problems, *found.nan_bounds]
    assert all(problem.startswith("file: ") for problem in every)
    return [problem.removeprefix("file: ") for problem in every]


def with_field(column: str, field: int, value: Any) -> bytes:
    """A file whose ColumnMetaData of a column has another field."""
    return edited(FILE, lambda tree: tree.metadata[0][COLUMNS.index(column)].update({field: value}))


def with_statistics(column: str, changes: Fields, field: int = 12) -> bytes:
    """A file whose Statistics of a column, or another struct of ColumnMetaData, have other fields."""
    metadata = Tree.of(FILE).metadata[0][COLUMNS.index(column)]
    return with_field(column, field, struct_field({**(struct_of(metadata, field) or {}), **changes}))


def with_index(column: str, change: Callable[[Fields], None], *, offsets: bool = False, data: bytes = FILE) -> bytes:
    """A file with another ColumnIndex or OffsetIndex of a column."""
    at = COLUMNS.index(column)
    chunk = footer_of(data).row_groups[0].chunks[at]
    found = chunk.offset_index if offsets else chunk.column_index
    fields, _ = read_struct(part(data, found))
    change(fields)
    footer, raw = raw_footer(data), write_struct(fields)
    pages = data[: len(data) - 8 - len(footer)]
    tree = Tree.of(data)
    tree.chunks[0][at] |= dict(zip((4, 5) if offsets else (6, 7), (i64(len(pages)), i32(len(raw))), strict=True))
    return with_footer(pages + raw + data[len(pages) :], tree.raw)


def with_location(page: int, field: int, step: int) -> bytes:
    """A file whose OffsetIndex of `id` is wrong by `step` in one number."""

    def change(fields: Fields) -> None:
        pages = structs_of(fields, 1)
        number = read_offset_index(write_struct(fields))[0][page][field - 1]
        pages[page][field] = (i32 if field == 2 else i64)(number + step)
        fields[1] = structs_field(pages)

    return with_index("id", change, offsets=True)


def with_entry(column: str, field: int, page: int, value: bytes) -> bytes:
    """A file whose ColumnIndex of a column has another bound of one page."""

    def change(fields: Fields) -> None:
        values = binaries_of(fields, field)
        values[page] = value
        raws = [bytes_field(each)[1] for each in values]
        fields[field] = (LIST, list_header(len(raws), BINARY) + b"".join(raws))

    return with_index(column, change)


def flags(*values: bool) -> tuple[int, bytes]:
    """A list of booleans."""
    return LIST, list_header(len(values), BOOLEAN_TRUE) + bytes(1 if value else 2 for value in values)


def q(number: int) -> bytes:
    """A stored integer of 64 bits."""
    return struct.pack("<q", number)


def d(number: float) -> bytes:
    """A stored double."""
    return struct.pack("<d", number)


def part(data: bytes, where: tuple[int, int] | None) -> bytes:
    """The bytes at (offset, length)."""
    assert where is not None
    return data[where[0] : sum(where)]


def flipped(data: bytes, at: int) -> bytes:
    """The file with one bit changed."""
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def many_types(rows: int = 400) -> pa.Table:
    """Every type that Spark or pyarrow writes, nulls in most columns, NaN, lists in structs in lists."""
    numbers = range(rows)

    def sparse(value: Callable[[int], object], kind: pa.DataType | None = None) -> pa.Array:
        return pa.array([None if i % 7 == 0 else value(i) for i in numbers], kind)

    cents = [Decimal(i - rows // 2).scaleb(-2) for i in numbers]
    nested = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])
    return pa.table(
        {
            "int8": sparse(lambda i: i % 256 - 128, pa.int8()),
            "uint8": sparse(lambda i: i % 256, pa.uint8()),
            "int32": sparse(lambda i: -i, pa.int32()),
            "uint32": sparse(lambda i: 2**32 - 1 - i, pa.uint32()),
            "uint64": sparse(lambda i: 2**64 - 1 - i, pa.uint64()),
            "double": sparse(lambda i: math.nan if i % 5 == 0 else i * -0.5),
            "only nan": pa.array([math.nan] * rows, pa.float32()),
            "zeros": [-0.0 if i % 2 else 0.0 for i in numbers],
            "float16": pa.array([1.0] * rows, pa.float16()),
            "text": sparse(lambda i: f"x{i % 50}"),
            "bytes": sparse(lambda i: b"\xff%d" % i),
            "fixed": sparse(lambda i: b"%04d" % i, pa.binary(4)),
            "money": sparse(lambda i: cents[i], pa.decimal128(9, 2)),
            "much money": sparse(lambda i: cents[i], pa.decimal128(38, 2)),
            "flag": sparse(lambda i: i % 2 == 0),
            "day": sparse(lambda i: date(2020, 1, 1 + i % 28)),
            "at": sparse(lambda i: datetime(2020, 1, 1, 0, i % 60)),
            "time": sparse(lambda i: time(1, 2, i % 60)),
            "null": pa.nulls(rows),
            "only null": pa.nulls(rows, pa.int64()),
            "list": sparse(lambda i: list(range(i % 4))),
            "fixed list": pa.array([None if i % 5 == 0 else [i, None] for i in numbers], pa.list_(pa.int32(), 2)),
            "records": pa.array([[{"a": None if i % 3 else i, "b": ["q"] * (i % 2)}] * (i % 3) for i in numbers],
                                pa.list_(nested)),
            "tree": [None if i % 9 == 0 else {"x": i, "y": {"z": str(i)}} for i in numbers],
            "map": pa.array([[("k", i)] * (i % 2) for i in numbers], pa.map_(pa.string(), pa.int64())),
            "coded": pa.array(["a", "b", None, "a"] * (rows // 4)).dictionary_encode(),
            "a.b": pa.array(numbers),
            "day.x": pa.array(numbers),
        }
    )  # fmt: skip


TYPES = many_types()
SMALL_PAGES = {"data_page_size": 200, "write_batch_size": 20}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"write_page_index": True, "row_group_size": 150},
        {"write_page_index": True, **SMALL_PAGES},
        {"data_page_version": "2.0", "write_page_index": True, "write_page_checksum": True, **SMALL_PAGES},
        {"data_page_version": "2.0", "use_dictionary": False, "compression": "zstd", **SMALL_PAGES},
        {"dictionary_pagesize_limit": 100, "write_page_index": True, **SMALL_PAGES},
        {"version": "1.0", "compression": "none", "use_deprecated_int96_timestamps": True},
        {"store_decimal_as_integer": True, "write_statistics": False},
        {"use_dictionary": False, "use_byte_stream_split": ["double"], "store_decimal_as_integer": True},
    ],
    ids=lambda options: ", ".join(options) or "defaults",
)
def test_true_files_have_no_problems(options: dict[str, object]) -> None:
    """Files of pyarrow, in many layouts, have no problems, and all rows are read."""
    found = check(make_file(TYPES, **{"row_group_size": 1000, **options}))
    assert (found.problems, found.rows) == ((), 400)
    assert found.row_groups == (3 if "row_group_size" in options else 1)
    assert found.pages >= len(TYPES.columns) * found.row_groups


def test_what_is_not_checked_is_told() -> None:
    """Columns without a known order of values are named."""
    assert check(make_file(TYPES)).unchecked == ("float16", "null")


def test_a_file_without_rows_is_fine() -> None:
    """An empty file has no problem and nothing else."""
    assert check(make_file(TYPES.slice(0, 0))) == FileVerification((), ("float16", "null"), 0, 0, 0)


def test_the_file_of_the_lies_is_true() -> None:
    """What the next tests forge has no problem before."""
    assert check(FILE) == FileVerification((), (), 1, 10, 15)


ID, _, TEXT, *_ = footer_of(FILE).row_groups[0].chunks
PAGES_OF_ID = read_offset_index(part(FILE, ID.offset_index))[0]
PAGES_OF_TEXT = read_offset_index(part(FILE, TEXT.offset_index))[0]
LIES: dict[str, tuple[bytes, str, list[str]]] = {
    "null count": (
        with_statistics("number", {3: i64(4)}), "number", ["statistics have null_count 4, there are 5"],
    ),
    "nested null count": (
        with_statistics("items", {3: i64(2)}), "items", ["statistics have null_count 2, there are 3"],
    ),
    "min": (with_statistics("id", {6: bytes_field(q(1))}), "id", ["min_value is 1, the least value 0"]),
    "max": (with_statistics("id", {5: bytes_field(q(8))}), "id", ["max_value is 8, the greatest value 9"]),
    "nested min": (with_statistics("items", {6: bytes_field(q(2))}), "items", ["min_value is 2, the least value 1"]),
    "min of text": (
        with_statistics("text", {6: bytes_field(b"aa")}), "text", ["min_value is b'aa', the least value b'a'"],
    ),
    "signed bounds of unsigned": (
        with_statistics("count", {5: bytes_field(struct.pack("<I", 9)), 6: bytes_field(b"\xff" * 4)}),
        "count",
        ["min_value is 4294967295, the least value 1", "max_value is 9, the greatest value 4294967295"],
    ),
    "old min": (with_statistics("id", {2: bytes_field(q(1))}), "id", ["min is 1, the least value 0"]),
    "exact max": (
        with_statistics("id", {5: bytes_field(q(12))}), "id", ["max_value 12 is called exact, the greatest value is 9"],
    ),
    "NaN": (with_statistics("number", {6: bytes_field(d(math.nan))}), "number", ["min_value is NaN"]),
    "sign of zero": (
        with_statistics("number", {5: bytes_field(d(-0.0))}), "number", ["max_value is -0.0, the greatest value 0.0"],
    ),
    "length of a bound": (
        with_statistics("id", {6: bytes_field(b"\0")}), "id", ["min_value b'\\x00' is no value of the type"],
    ),
    "damaged statistics": (
        with_field("id", 12, struct_field({3: bytes_field(b"")})), "id", ["cannot be read: field 3 is not an integer"],
    ),
    "num_values": (with_field("items", 5, i64(13)), "items", ["cannot be read: pages: pages have 12 values of 13"]),
    "encodings": (with_field("id", 2, integers_field([3], 5)), "id", ["encodings lack [0]"]),
    "encoding_stats": (
        with_field("text", 13, structs_field([{1: i32(0), 2: i32(8), 3: i32(2)}, {1: i32(0), 2: i32(0), 3: i32(1)}])),
        "text",
        ["encoding_stats are 1 data in encoding 0, 2 data in encoding 8; pages are 3 data in encoding 8"],
    ),
    "data_page_offset": (
        with_field("text", 9, i64(TEXT.start + 1)),
        "text",
        [f"data_page_offset is {TEXT.start + 1}, the first page is at {PAGES_OF_TEXT[0].at}"],
    ),
    "dictionary without one": (
        with_field("id", 11, i64(ID.start)), "id", [f"dictionary_page_offset is {ID.start}, there is no dictionary"],
    ),
    "page offset": (
        with_location(1, 1, 1), "id",
        [f"the offset index has offset {PAGES_OF_ID[1].at + 1} of page 1, it is {PAGES_OF_ID[1].at}"],
    ),
    "page size": (with_location(0, 2, -1), "id", [
            f"the offset index has compressed_page_size {PAGES_OF_ID[0].size_bytes - 1} of page 0, "
            f"it is {PAGES_OF_ID[0].size_bytes}"
        ]),
    "first row": (with_location(2, 3, 1), "id", ["the offset index has first_row_index 9 of page 2, it is 8"]),
    "missing page": (
        with_index("id", lambda f: f.update({1: structs_field(structs_of(f, 1)[:2])}), offsets=True),
        "id",
        ["the offset index has 2 pages of 3"],
    ),
    "null page": (
        with_index("id", lambda f: f.update({1: flags(False, True, False)})),
        "id",
        ["the column index has page 1 as null, it has 4 values"],
    ),
    "null page that is none": (
        with_index("number", lambda f: f.update({1: flags(False, False, True)})),
        "number",
        ["the column index has page 2 as null, it has 1 values"],
    ),
    "null counts": (
        with_index("number", lambda f: f.update({5: integers_field([1, 2, 1], I64)})),
        "number",
        ["the column index has null_count 2 of page 1, there are 3"],
    ),
    "nested null counts": (
        with_index("items", lambda f: f.update({5: integers_field([2, 0, 0], I64)})),
        "items",
        ["the column index has null_count 2 of page 0, there are 3"],
    ),
    "number of pages": (
        with_index("id", lambda f: f.update({5: integers_field([0], I64)})),
        "id",
        ["the column index has 1 null_counts of 3"],
    ),
    "min of a page": (
        with_entry("id", 2, 1, q(5)), "id", ["the column index's min of page 1 is 5, the least value 4"],
    ),
    "max of a page": (
        with_entry("items", 3, 2, q(8)), "items", ["the column index's max of page 2 is 8, the greatest value 9"],
    ),
    "NaN of a page": (
        with_entry("number", 3, 0, d(math.nan)), "number", ["the column index's max of page 0 is NaN"],
    ),
    "boundary order": (
        with_index("id", lambda f: f.update({4: i32(2)})),
        "id",
        [
            "the column index's min values are not descending, as its boundary order requires",
            "the column index's max values are not descending, as its boundary order requires",
        ],
    ),
    "damaged column index": (
        with_index("id", lambda f: f.update({1: i64(1)})), "id", ["cannot be read: field 1 is missing or of type 6"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("lie", LIES)
def test_each_lie_about_a_column_is_found(lie: str) -> None:
    """A single wrong number is told once, with its place, and nothing else is."""
    data, column, expected = LIES[lie]
    path = "items.list.element" if column == "items" else column
    assert problems(data) == [f"row group 0, column '{path}': {problem}" for problem in expected]


def grouped(field: int, value: int) -> bytes:
    """A file whose RowGroup has another number."""
    return edited(FILE, lambda tree: tree.groups[0].update({field: i64(value)}))


@pytest.mark.parametrize(
    ("field", "name", "real"),
    [
        (2, "total_byte_size", sum(integer(c.metadata, 6) or 0 for c in footer_of(FILE).row_groups[0].chunks)),
        (5, "file_offset", 4),
        (6, "total_compressed_size", footer_of(FILE).row_groups[0].size_bytes),
    ],
)
def test_wrong_numbers_of_a_row_group_are_found(field: int, name: str, real: int) -> None:
    """Sums over the columns and the split point are compared."""
    assert problems(grouped(field, 77)) == [f"row group 0: {name} is 77, it should be {real}"]


def test_a_wrong_uncompressed_size_is_found() -> None:
    """The chunk's size is that of its pages; the row group's sum is then wrong as well."""
    real = integer(ID.metadata, 6) or 0
    total = sum(integer(c.metadata, 6) or 0 for c in footer_of(FILE).row_groups[0].chunks)
    assert problems(with_field("id", 6, i64(real + 1))) == [
        f"row group 0: total_byte_size is {total}, it should be {total + 1}",
        f"row group 0, column 'id': total_uncompressed_size is {real + 1}, pages have {real}",
    ]


def test_orders_of_too_few_columns_are_found() -> None:
    """There is an order for each column or none at all."""
    data = edited(FILE, lambda tree: tree.file.update({7: structs_field(structs_of(tree.file, 7)[1:])}))
    assert problems(data) == [
        "footer: column_orders has 4 entries for 5 columns",
        "footer: cannot be read: Malformed schema: not enough ColumnOrder values",
    ]


def test_orders_that_cannot_be_read_are_told() -> None:
    """Bounds are not compared then; everything else is."""
    order, negative = b"\x1c\0\0", b"\x06\x71\0\0"  # a field of number -57 in place of the first order
    data = edited(FILE, lambda tree: tree.file.update({7: (LIST, tree.file[7][1].replace(order, negative, 1))}))
    found = verify_file(BytesSource(data), "x")
    assert found.problems == ("x: footer: cannot be read: field -57 of type 6",)
    assert (len(found.unchecked), found.rows) == (5, verify_file(BytesSource(FILE), "x").rows)


def test_bounds_of_another_order_are_not_checked() -> None:
    """A column whose bounds have an order that is not its type's is told of, its bounds may be anything."""

    def change(tree: Tree) -> None:
        orders = structs_of(tree.file, 7)
        tree.file[7] = structs_field([{2: struct_field({})}, *orders[1:]])
        tree.metadata[0][0][12] = struct_field({3: i64(0), 6: bytes_field(q(5))})

    assert check(edited(FILE, change)) == FileVerification((), ("id",), 1, 10, 15)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"no Parquet at all", "file: footer: not-parquet"),
        (FILE[:-8], "file: footer: not-parquet"),
        (grouped(3, 11), "file: footer: corrupt-footer: row groups do not have the rows of the file"),
    ],
    ids=["other bytes", "cut off", "rows"],
)
def test_damaged_footers_are_told(data: bytes, expected: str) -> None:
    """A file whose footer cannot be read has that one problem."""
    found = check(data)
    assert (found.problems, found.rows) == ((expected,), 0)


def test_a_schema_that_only_icesize_reads_is_told() -> None:
    """What pyarrow refuses is a problem, also where icesize does not look."""

    def change(tree: Tree) -> None:
        tree.schema[1][6] = i32(0)  # integers that are said to be text

    (problem,) = problems(edited(FILE, change))[:1]
    assert problem.startswith("footer: cannot be read: ")


def test_a_wrong_page_is_found_by_its_checksum() -> None:
    """A changed bit in any page body is found where pages have checksums."""
    data = make_file(ROWS, **PAGED, **PLAIN, write_page_checksum=True)
    chunk = footer_of(data).row_groups[0].chunks[0]
    assert problems(flipped(data, chunk.end - 1)) == ["row group 0, column 'id': cannot be read: checksum"]


def test_a_wrong_value_is_found_by_what_is_said_of_it() -> None:
    """Without checksums a value that changed contradicts statistics or bounds of its page."""
    assert problems(flipped(FILE, ID.end - 8)) == [
        "row group 0, column 'id': max_value 9 is called exact, the greatest value is 8"
    ]
    assert problems(flipped(FILE, ID.end - 1)) == [
        f"row group 0, column 'id': {problem}"
        for problem in (
            f"max_value is 9, the greatest value {2**56 + 9}",
            f"max is 9, the greatest value {2**56 + 9}",
            f"the column index's max of page 2 is 9, the greatest value {2**56 + 9}",
        )
    ]


def test_a_page_that_cannot_be_decoded_is_found() -> None:
    """Bytes that are no compressed page are told as pyarrow tells them."""
    data = make_file(ROWS, compression="zstd", use_dictionary=False)
    chunk = footer_of(data).row_groups[0].chunks[0]
    (problem,) = problems(data[: chunk.end - 20] + bytes(20) + data[chunk.end :])
    assert problem.startswith("row group 0, column 'id': cannot be read: ")


def test_a_column_index_without_an_offset_index_is_found() -> None:
    """Bounds of pages are of no use when pages cannot be found."""
    data = edited(FILE, lambda tree: [tree.chunks[0][0].pop(field) for field in (4, 5)])
    assert problems(data) == ["row group 0, column 'id': it has a column index without an offset index"]


def chunk_of(data: bytes) -> bytes:
    """The only column chunk of a file."""
    (chunk,) = footer_of(data).row_groups[0].chunks
    return data[chunk.start : chunk.end]


def test_a_dictionary_page_after_another_is_found() -> None:
    """Pages coded by a dictionary after plain ones, which Spark reads wrongly, are told; pyarrow reads them."""
    rows = pa.table({"id": pa.array(range(10), pa.int64())})
    coded = make_file(rows, compression="none", store_schema=False, write_statistics=False)
    plain = chunk_of(make_file(rows, compression="none", write_statistics=False, use_dictionary=False))
    pages, dictionary = chunk_of(coded), Tree.of(coded).metadata[0][0]
    first = (integer(dictionary, 9) or 0) - 4

    def change(tree: Tree) -> None:
        (metadata,), (group,) = tree.metadata[0], tree.groups
        tree.file[3] = group[3] = metadata[5] = i64(20)
        group[2] = group[6] = metadata[6] = metadata[7] = i64(len(pages) + len(plain))
        metadata.pop(13)
        metadata.pop(16, None)

    data = edited(b"PAR1" + pages[:first] + plain + pages[first:] + coded[4 + len(pages) :], change)
    assert problems(data) == [
        "row group 0, column 'id': page 1 is coded by a dictionary and follows one of another encoding"
    ]


def test_a_wrong_number_of_rows_in_a_page_header_is_found() -> None:
    """Pages of the second version tell their rows, which for lists only the values show to be wrong."""
    rows = pa.table({"items": [[1, 2], [3], [4, 5]]})
    data = make_file(rows, data_page_version="2.0", use_dictionary=False, compression="none")
    (chunk,) = footer_of(data).row_groups[0].chunks
    header, end = read_struct(data, chunk.start)
    inner, _ = read_struct(header[8][1])
    forged = write_struct({**header, 8: struct_field({**inner, 3: i32(2)})})
    assert len(forged) == end - chunk.start
    assert problems(data[: chunk.start] + forged + data[end:]) == [
        "row group 0, column 'items.list.element': page 0 has num_rows 2, there are 3"
    ]


def test_a_page_that_begins_within_a_row_is_found() -> None:
    """Lists may span pages, but not where an index says in which row a page begins."""
    one = make_file(pa.table({"items": [[1, 2]]}), use_dictionary=False, compression="none", write_statistics=False)
    body = bytes([2, 0, 0, 0, 2, 1, 2, 0, 0, 0, 2, 3]) + q(5)  # the third entry of a row, not null
    levels = {1: i32(1), 2: i32(0), 3: i32(3), 4: i32(3)}
    second = write_struct({1: i32(0), 2: i32(len(body)), 3: i32(len(body)), 5: struct_field(levels)}) + body
    first = chunk_of(one)
    index = offset_index([PageLocation(4, len(first), 0), PageLocation(4 + len(first), len(second), 1)], None)
    size = i64(len(first + second))

    def longer(tree: Tree) -> None:
        ((metadata,),), (group,) = tree.metadata, tree.groups
        metadata |= {5: i64(3), 6: size, 7: size}
        group |= {2: size, 6: size}
        metadata.pop(13)
        metadata.pop(16, None)

    def indexed(tree: Tree) -> None:
        longer(tree)
        tree.chunks[0][0] |= {4: i64(4 + len(first + second)), 5: i32(len(index))}

    data = b"PAR1" + first + second + index + one[4 + len(first) :]
    assert problems(edited(data, longer)) == []
    assert problems(edited(data, indexed)) == ["row group 0, column 'items.list.element': page 1 begins within a row"]


def test_of_many_problems_the_first_are_told() -> None:
    """A chunk with a problem in each of its pages does not fill the screen."""
    rows = pa.table({"id": pa.array(range(50), pa.int64())})
    data = make_file(rows, max_rows_per_page=1, write_batch_size=1, write_page_index=True, row_group_size=50)
    zeros = integers_field([1] * 50, I64)
    found = problems(with_index("id", lambda fields: fields.update({5: zeros}), data=data))
    assert len(found) == MOST_PROBLEMS + 1
    assert found[0] == "row group 0, column 'id': the column index has null_count 1 of page 0, there are 0"
    assert found[-1] == "row group 0, column 'id': further problems are left out"


def test_damage_of_pages_is_always_found() -> None:
    """Bits flipped in a page's body are found by its checksum; elsewhere they never end in an exception."""
    data = make_file(ROWS, **PAGED, write_page_checksum=True)
    chunks = footer_of(data).row_groups[0].chunks
    bodies: set[int] = set()
    for chunk, flat in zip(chunks, [True, True, True, False, True], strict=True):
        pages = walk(data[chunk.start : chunk.end], flat, chunk.values).data
        for page in pages:
            at = chunk.start + page.at
            bodies.update(range(at + page.header_bytes, at + page.size_bytes))
    end = max(chunk.end for chunk in chunks)
    silent = {at for at in range(4, len(data), 17) if not check(flipped(data, at)).problems}
    assert not silent & bodies
    assert len([at for at in silent if at < end]) < 8  # statistics of pages, which are not compared


def test_damaged_footers_never_end_in_an_exception() -> None:
    """Footers damaged byte by byte or field by field are told of, or are still true."""
    found = [check(with_footer(FILE, raw)).problems for raw in mutants(FILE, 150, seed=3)]
    assert sum(map(bool, found)) > 100


def test_the_command_prints_problems_and_ends_with_their_code(tmp_path: Path) -> None:
    """Exit code 0 for true files, 1 with a line for each problem, 2 for wrong usage."""
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    good.write_bytes(FILE)
    bad.write_bytes(with_statistics("number", {3: i64(4)}))
    run = CliRunner().invoke(main, [str(good)])
    assert (run.exit_code, run.stdout) == (0, f"{good}: fine, 10 rows in 1 row groups, 15 pages\n")
    run = CliRunner().invoke(main, [str(good), str(bad)])
    problem = f"{bad}: row group 0, column 'number': statistics have null_count 4, there are 5"
    assert (run.exit_code, run.stdout.splitlines()[1:]) == (1, [problem])
    assert CliRunner().invoke(main, []).exit_code == 2
    assert CliRunner().invoke(main, [str(tmp_path / "none.parquet")]).exit_code == 2


def test_the_command_names_what_it_did_not_check(tmp_path: Path) -> None:
    """Columns without a known order are told on standard error and are no problem."""
    path = tmp_path / "file.parquet"
    path.write_bytes(make_file(pa.table({"half": pa.array([1.0], pa.float16())})))
    run = CliRunner().invoke(main, [str(path)])
    assert run.exit_code == 0
    assert run.stderr == f"{path}: column 'half': not checked: its bounds, they have no known order\n"
