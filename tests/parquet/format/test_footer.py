"""Footers of real files are written again as they were read; damaged and hostile ones are refused, and nothing else."""

from __future__ import annotations

import struct
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from icesize.parquet.format.footer import MAGIC, MOST_FOOTER_BYTES, Footer, parse_footer, read_footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import top_level_trees
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.format.thrift import (
    I32,
    LIST,
    STRUCT,
    bytes_field,
    i32,
    i64,
    list_header,
    structs_field,
    varint,
    write_struct,
)
from icesize.parquet.row_groups.compatibility import check_file, check_together
from tests.support.footers import (
    PER_GROUP,
    Tree,
    edited,
    footer_of,
    inject,
    make_file,
    mutants,
    raw_footer,
    rebuilt,
    sample,
    with_footer,
)

_OPTIONS: dict[str, dict[str, object]] = {
    "default": {},
    "format 1.0": {"version": "1.0"},
    "page index": {"write_page_index": True},
    "bloom filters": {"bloom_filter_options": {"id": True, "text": {"ndv": 100}}},
    "pages v2, checksums": {"data_page_version": "2.0", "write_page_checksum": True, "compression": "zstd"},
    "no dictionary, no statistics": {"use_dictionary": False, "write_statistics": False},
    "decimals as integers": {"store_decimal_as_integer": True, "store_schema": False},
    "sorting columns": {"sorting_columns": [pa.parquet.SortingColumn(0)]},
}
_FILE = make_file(write_page_index=True)
_RAW = raw_footer(_FILE)


def _refusal(data: bytes) -> tuple[Refusal, str]:
    with pytest.raises(CopyRefused) as refused:
        footer_of(data)
    return refused.value.code, str(refused.value)


@pytest.mark.parametrize("options", _OPTIONS.values(), ids=_OPTIONS)
def test_footers_of_pyarrow_are_written_as_they_were(options: dict[str, object]) -> None:
    """Whatever pyarrow is asked to write, parsed and written again it is the same bytes."""
    data = make_file(**options)
    footer = footer_of(data)
    assert rebuilt(footer) == raw_footer(data)
    assert (footer.rows, [group.rows for group in footer.row_groups]) == (20, [PER_GROUP, PER_GROUP])


def test_footers_of_other_writers_are_written_as_they_were(tmp_path: Path) -> None:
    """The same holds for DuckDB and polars."""
    duckdb, polars = pytest.importorskip("duckdb"), pytest.importorskip("polars")
    rows = sample()
    duckdb.connect().from_arrow(rows).write_parquet(str(tmp_path / "duckdb"))
    polars.from_arrow(rows.drop(["pairs"])).write_parquet(tmp_path / "polars")
    for writer in ("duckdb", "polars"):
        data = (tmp_path / writer).read_bytes()
        footer = read_footer(LocalSource(str(tmp_path / writer)))
        assert rebuilt(footer) == raw_footer(data)
        assert (footer.rows, footer.created_by.lower().split()[0]) == (20, writer)


def test_a_footer_is_what_pyarrow_says_it_is() -> None:
    """Sizes, places and names are those that pyarrow reads from the same file."""
    data = make_file(write_page_index=True, bloom_filter_options={"id": True})
    footer, theirs = footer_of(data), pa.parquet.read_metadata(pa.BufferReader(data))
    assert (footer.created_by, footer.rows) == (theirs.created_by, theirs.num_rows)
    assert footer.start == len(data) - 8 - theirs.serialized_size
    paths = [theirs.schema.column(number).path for number in range(theirs.num_columns)]
    assert [".".join(column.path) for column in footer.columns] == paths
    assert [column.path[0] for column in footer.columns if not column.flat] == ["items", "pairs", "pairs"]
    assert footer.keys[b"ARROW:schema"] == theirs.metadata[b"ARROW:schema"]
    for number, group in enumerate(footer.row_groups):
        for index, chunk in enumerate(group.chunks):
            column = theirs.row_group(number).column(index)
            start = column.dictionary_page_offset or column.data_page_offset
            assert (chunk.start, chunk.size_bytes) == (start, column.total_compressed_size)
            assert (chunk.values, chunk.codec) == (column.num_values, 1)
            assert chunk.offset_index is not None
            assert chunk.column_index is not None
            assert (chunk.bloom_filter is None) == (index != 0)
        assert group.size_bytes == sum(chunk.size_bytes for chunk in group.chunks)


def test_an_empty_file_has_no_row_groups() -> None:
    """pyarrow writes a row group without rows whose offsets mean nothing; it is left out."""
    footer = footer_of(make_file(sample().slice(0, 0)))
    assert (footer.rows, footer.row_groups, len(footer.columns)) == (0, [], 13)


def test_a_large_footer_takes_a_second_read() -> None:
    """More than 64 KiB of footer are read whole."""
    data = edited(_FILE, lambda tree: tree.file.update({5: structs_field([{1: bytes_field(b"k" * 100_000)}])}))
    assert list(footer_of(data).keys) == [b"k" * 100_000]
    assert rebuilt(footer_of(data)) == raw_footer(data)


def test_no_part_of_a_footer_is_a_footer() -> None:
    """Wherever a footer is cut, it is refused as corrupt."""
    raw = raw_footer(make_file(sample().select(["id", "items"])))
    for end in range(len(raw)):
        with pytest.raises(CopyRefused) as refused:
            parse_footer(raw[:end], 10**6)
        assert refused.value.code == Refusal.CORRUPT_FOOTER


def test_no_part_of_a_file_is_a_file() -> None:
    """Wherever a file is cut, it is not taken for a whole one."""
    for end in range(0, len(_FILE) - 1, 97):
        assert _refusal(_FILE[:end])[0] == Refusal.NOT_PARQUET


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", Refusal.NOT_PARQUET),
        (b"PAR1PAR1", Refusal.NOT_PARQUET),
        (MAGIC + bytes(20), Refusal.NOT_PARQUET),
        (_FILE[:-4] + b"PARE", Refusal.ENCRYPTED),
        (MAGIC + struct.pack("<I", 1) + MAGIC, Refusal.CORRUPT_FOOTER),
        (MAGIC + struct.pack("<I", 0) + MAGIC, Refusal.CORRUPT_FOOTER),
        (_FILE[:-8] + struct.pack("<I", len(_FILE)) + MAGIC, Refusal.CORRUPT_FOOTER),
        (with_footer(_FILE, _RAW + b"\0"), Refusal.CORRUPT_FOOTER),
    ],
    ids=["empty", "short", "no magic", "encrypted", "length 1", "length 0", "too long", "bytes behind"],
)
def test_what_is_no_file_is_refused(data: bytes, code: Refusal) -> None:
    """The end of the file decides, before anything is parsed."""
    assert _refusal(data)[0] == code


def test_a_footer_of_many_megabytes_is_refused(tmp_path: Path) -> None:
    """Parsed it would take more memory than a worker that copies has; a file of holes that claims one is not read."""
    path = tmp_path / "holes"
    with path.open("wb") as file:
        file.truncate(MOST_FOOTER_BYTES + 5)
        file.seek(0, 2)
        file.write(struct.pack("<I", MOST_FOOTER_BYTES + 1) + MAGIC)
    with pytest.raises(CopyRefused, match=f"large-footer: {MOST_FOOTER_BYTES + 1} bytes"):
        read_footer(LocalSource(str(path)))


@pytest.mark.parametrize("encrypted_columns", [True, False])
@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_files_are_refused(tmp_path: Path, plaintext_footer: bool, encrypted_columns: bool) -> None:
    """Also those whose footer can be read: it is signed, so it cannot be written again."""
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class OwnKeys(encryption.KmsClient):  # type: ignore[misc, name-defined]
        def __init__(self, _config: object) -> None:
            super().__init__()

        def wrap_key(self, key: bytes, _name: str) -> bytes:
            return key.hex().encode()

    settings = encryption.EncryptionConfiguration(
        footer_key="footer",
        plaintext_footer=plaintext_footer,
        **({"column_keys": {"column": ["id"]}} if encrypted_columns else {"uniform_encryption": True}),
    )
    properties = encryption.CryptoFactory(OwnKeys).file_encryption_properties(
        encryption.KmsConnectionConfig(), settings
    )
    data = make_file(sample().select(["id", "text"]), encryption_properties=properties)
    assert _refusal(data)[0] == Refusal.ENCRYPTED


def _set(struct_name: str, field_id: int, value: tuple[int, bytes]) -> Callable[[Tree], None]:
    return lambda tree: tree.first[struct_name].update({field_id: value})


@pytest.mark.parametrize(
    ("struct_name", "field_id", "value", "code"),
    [
        ("FileMetaData", 8, (STRUCT, b"\0"), Refusal.ENCRYPTED),
        ("FileMetaData", 9, bytes_field(b"key"), Refusal.ENCRYPTED),
        ("ColumnChunk", 8, (STRUCT, b"\0"), Refusal.ENCRYPTED),
        ("ColumnChunk", 9, bytes_field(b"metadata"), Refusal.ENCRYPTED),
        ("ColumnChunk", 1, bytes_field(b"other.parquet"), Refusal.EXTERNAL_FILE),
        ("ColumnMetaData", 10, i64(4), Refusal.INDEX_PAGE),
        ("FileMetaData", 10, i64(4), Refusal.UNKNOWN_FIELD),
        ("RowGroup", 8, i64(4), Refusal.UNKNOWN_FIELD),
        ("ColumnChunk", 10, i64(4), Refusal.UNKNOWN_FIELD),
        ("ColumnMetaData", 18, i64(4), Refusal.UNKNOWN_FIELD),
    ],
)
def test_what_cannot_be_moved_is_refused(
    struct_name: str, field_id: int, value: tuple[int, bytes], code: Refusal
) -> None:
    """Encrypted parts, other files, index pages, and fields nobody knows in the structs that hold offsets."""
    assert _refusal(edited(_FILE, _set(struct_name, field_id, value)))[0] == code


def test_an_empty_name_of_another_file_is_this_one() -> None:
    """Some writers set `file_path` and leave it empty."""
    data = edited(_FILE, _set("ColumnChunk", 1, bytes_field(b"")))
    assert rebuilt(footer_of(data)) == raw_footer(data)


@pytest.mark.parametrize("struct_name", ["FileMetaData", "RowGroup", "ColumnChunk", "ColumnMetaData"])
def test_fields_of_a_wrong_type_are_corrupt(struct_name: str) -> None:
    """Readers skip a known field of another type; nothing is made of it."""
    for field_id in Tree.of(_FILE).first[struct_name]:
        _, why = _refusal(edited(_FILE, _set(struct_name, field_id, (13, bytes(16)))))
        assert why == f"corrupt-footer: field {field_id} of {struct_name} is of type 13"


def _lose(struct_name: str, field_id: int, tree: Tree) -> None:
    del tree.first[struct_name][field_id]


@pytest.mark.parametrize(
    ("struct_name", "required"),
    [
        ("FileMetaData", (1, 2, 3, 4)),
        ("RowGroup", (1, 2, 3)),
        ("ColumnChunk", (3,)),
        ("ColumnMetaData", (1, 3, 4, 5, 6, 7, 9)),
    ],
)
def test_required_fields_must_be_there(struct_name: str, required: tuple[int, ...]) -> None:
    """A footer that lacks what the format requires and icesize needs is corrupt."""
    for field_id in required:
        data = edited(_FILE, partial(_lose, struct_name, field_id))
        assert _refusal(data)[0] == Refusal.CORRUPT_FOOTER


def _inject(name: str, below: int | None) -> Callable[[Tree], None]:
    def edit(tree: Tree) -> None:
        inject(tree.schema[1] if name == "SchemaElement" else tree.first[name], below=below)

    return edit


@pytest.mark.parametrize(
    ("name", "below"),
    [
        ("FileMetaData", 5),
        ("FileMetaData", 7),
        ("RowGroup", 4),
        ("ColumnMetaData", 12),
        ("ColumnMetaData", 13),
        ("ColumnMetaData", 16),
        ("SchemaElement", None),
    ],
    ids=[
        "KeyValue",
        "ColumnOrder",
        "SortingColumn",
        "Statistics",
        "PageEncodingStats",
        "SizeStatistics",
        "SchemaElement",
    ],
)
def test_unknown_fields_that_hold_no_offset_are_kept(name: str, below: int | None) -> None:
    """What newer versions of the format add to other structs is in the footer that is written."""
    data = edited(make_file(sorting_columns=[pa.parquet.SortingColumn(0)]), _inject(name, below))
    assert b"not known" in raw_footer(data)
    assert rebuilt(footer_of(data)) == raw_footer(data)


def _to(field_id: int, value: tuple[int, bytes]) -> Callable[[Tree], None]:
    return _set("ColumnMetaData", field_id, value)


def _index(offset: int, length: int) -> Callable[[Tree], None]:
    return lambda tree: tree.first["ColumnChunk"].update({4: i64(offset), 5: i32(length)})


def _twice(tree: Tree) -> None:
    tree.metadata[1] = tree.metadata[0]


def _swap_chunks(tree: Tree) -> None:
    for each in (tree.chunks[0], tree.metadata[0]):
        each[0], each[1] = each[1], each[0]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (_to(11, i64(3)), "after 4"),
        (_to(9, i64(0)), "a dictionary lies behind its data"),
        (_to(9, i64(2**62)), "data behind their chunk"),
        (_to(7, i64(2**62)), "before"),
        (_to(7, i64(500)), "after"),
        (_to(7, i64(-1)), "negative size"),
        (_to(6, i64(-1)), "negative size"),
        (_to(11, i64(10**6)), "a dictionary lies behind its data"),
        (_to(5, i64(11)), "not of its column in the schema"),
        (_to(1, i32(6)), "not of its column in the schema"),
        (_to(3, (LIST, list_header(1, 8) + b"\x02di")), "not of its column in the schema"),
        (_swap_chunks, "not of its column in the schema"),
        (_index(4, 10), "after"),
        (_index(len(_FILE) - 9, 10), "before"),
        (_index(-4, 10), "negative offset or length"),
        (_index(4, -10), "negative offset or length"),
        (lambda tree: tree.metadata[0][0].update({14: i64(4), 15: i32(9)}), "after"),
        (lambda tree: (tree.chunks[0].pop(), tree.metadata[0].pop()), "a row group has 12 columns of 13"),
        (_set("RowGroup", 3, i64(-1)), "negative number of rows"),
        (_set("RowGroup", 3, i64(9)), "row groups do not have the rows of the file"),
        (_set("FileMetaData", 3, i64(21)), "row groups do not have the rows of the file"),
        (_set("FileMetaData", 1, (I32, varint(2**33))), "too large for its type"),
        (_twice, "after"),
    ],
)
def test_a_footer_that_contradicts_itself_is_corrupt(edit: Callable[[Tree], None], why: str) -> None:
    """Chunks, indexes and bloom filters lie in the file, none over another, and are those of the schema and rows."""
    code, text = _refusal(edited(_FILE, edit))
    assert code == Refusal.CORRUPT_FOOTER
    assert why in text


def test_an_index_of_unknown_length_is_none() -> None:
    """Format 2.9 had no length of bloom filters: such a one is left behind, as is what begins at 0."""

    def edit(tree: Tree) -> None:
        tree.first["ColumnMetaData"][14] = i64(4)
        tree.first["ColumnChunk"].update({4: i64(0), 6: i64(0)})

    chunk = footer_of(edited(_FILE, edit)).row_groups[0].chunks[0]
    assert (chunk.bloom_filter, chunk.offset_index, chunk.column_index) == (None, None, None)


def _element(number: int, **changes: tuple[int, bytes] | None) -> Callable[[Tree], None]:
    def edit(tree: Tree) -> None:
        for name, value in changes.items():
            tree.schema[number].pop(int(name[1:]), None)
            if value is not None:
                tree.schema[number][int(name[1:])] = value

    return edit


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda tree: tree.schema.clear(), "the schema is no tree"),
        (lambda tree: tree.schema.pop(), "the schema is no tree"),
        (_element(0, f5=i32(3)), "the schema is no tree"),
        (_element(0, f5=i32(2**31 - 1)), "the schema is no tree"),
        (_element(0, f5=i32(-1)), "a negative number of children"),
        (_element(1, f9=(I32, varint(2**33))), "too large for its type"),
        (_element(1, f3=None), "without repetition"),
        (_element(1, f3=i32(3)), "without repetition"),
        (_element(1, f1=None), "neither a value nor a group"),
        (_element(1, f5=i32(1)), "neither a value nor a group"),
        (_element(1, f4=bytes_field(b"\xff")), "a name is no UTF-8"),
        (_element(1, f4=bytes_field(b"small")), "two columns of one name"),
        (_element(1, f10=i32(1)), "field 10 is missing or of type 5"),
        (_element(1, f10=(STRUCT, b"\0")), "the logical type is not one"),
        (_element(1, f10=(STRUCT, write_struct({1: i32(1)}))), "field 1 is missing or of type 5"),
    ],
)
def test_a_schema_that_is_no_tree_is_corrupt(edit: Callable[[Tree], None], why: str) -> None:
    """Elements make exactly one tree of groups and values with different names."""
    code, text = _refusal(edited(_FILE, edit))
    assert code == Refusal.CORRUPT_FOOTER
    assert why in text


def test_top_level_columns_are_trees_without_field_ids() -> None:
    """Elements below each top-level column, by its name; ids do not matter to levels, all else does."""
    trees = top_level_trees(footer_of(_FILE).schema)
    assert [(name, len(tree)) for name, tree in trees.items()][-3:] == [("items", 3), ("record", 4), ("pairs", 4)]
    assert [column.top for column in footer_of(_FILE).columns][-5:] == ["items", "record", "record", "pairs", "pairs"]
    numbered, required = (
        top_level_trees(footer_of(edited(_FILE, edit)).schema)
        for edit in (_element(1, f9=i32(7)), _element(-2, f3=i32(1)))
    )
    assert numbered == trees
    assert [name for name in trees if trees[name] != required[name]] == ["pairs"]


def test_a_schema_of_endless_groups_is_corrupt() -> None:
    """A group in a group, ten thousand times, is refused and does not end the interpreter's stack."""
    groups = [{3: i32(1), 4: bytes_field(b"g"), 5: i32(1)}] * 10_000

    def edit(tree: Tree) -> None:
        tree.schema[1:] = [*groups, tree.schema[1]]
        tree.schema[0][5] = i32(1)

    assert "nested too deeply" in _refusal(edited(_FILE, edit))[1]


@pytest.mark.parametrize(
    "raw",
    [
        write_struct({1: i32(1), 2: structs_field([]), 3: i64(0), 4: (LIST, list_header(10**4) + bytes(10**4))}),
        write_struct({1: i32(1), 2: (LIST, list_header(10**4) + bytes(10**4)), 3: i64(0), 4: structs_field([])}),
        write_struct({4: structs_field([{1: (LIST, list_header(10**4) + bytes(10**4))}])}),
    ],
    ids=["row groups", "schema", "columns"],
)
def test_empty_structs_take_no_memory(raw: bytes) -> None:
    """A footer of nothing but empty structs, 70 times as large in memory, is refused at the first one."""
    tracemalloc.start()
    with pytest.raises(CopyRefused):
        parse_footer(raw, 2**31)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * len(raw) + 100_000


def test_texts_out_of_files_are_cut() -> None:
    """A refusal has its code, and at most 500 characters of a file."""
    assert str(CopyRefused(Refusal.CREATED_BY, "x" * 1_000)) == "created-by: " + "x" * 500
    assert str(CopyRefused(Refusal.INT96)) == "int96"


def test_a_missing_file_is_an_error_of_the_system(tmp_path: Path) -> None:
    """Only what is in a file is a reason not to copy it."""
    with pytest.raises(FileNotFoundError):
        LocalSource(str(tmp_path / "none"))


def _use(footer: Footer) -> int:
    """Look at all that copying looks at; the number of bytes of chunks."""
    top_level_trees(footer.schema)
    for group in footer.row_groups:
        for chunk in group.chunks:
            assert 0 <= chunk.codec <= 2**31
            for part in (chunk.offset_index, chunk.column_index, chunk.bloom_filter):
                assert part is None or 4 <= part[0] <= sum(part) <= footer.start
    check_file(footer)
    check_together([footer, _UNHARMED])
    return sum(group.size_bytes for group in footer.row_groups)


_FUZZED = (
    make_file(sample().select(["id", "items", "money"]), write_page_index=True),
    make_file(sample(9).select(["text", "record"]), bloom_filter_options={"text": True}, version="1.0"),
)
_UNHARMED = footer_of(_FUZZED[0])


def _fuzz(count: int, seed: int) -> tuple[int, int]:
    """(accepted, refused) footers."""
    accepted = refused = 0
    for data in _FUZZED:
        for raw in mutants(data, count // 2, seed):
            try:
                footer = parse_footer(raw, len(data) - len(raw_footer(data)) + len(raw))
                accepted += 1
                assert _use(footer) <= len(data)
            except CopyRefused:
                refused += 1
    return accepted, refused


def test_damaged_footers_are_read_or_refused() -> None:
    """300 damaged footers end in a footer that holds together, or in a refusal."""
    accepted, refused = _fuzz(300, 1)
    assert accepted > 10
    assert refused > 100


@pytest.mark.slow
def test_many_damaged_footers_are_read_or_refused() -> None:
    """20,000 damaged footers do, too."""
    accepted, refused = _fuzz(20_000, 2)
    assert accepted > 1_000
    assert refused > 10_000
