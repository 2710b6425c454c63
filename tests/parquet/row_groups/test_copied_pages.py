"""Row groups that are merged by copying pages have the rows of their parts, in order, for every reader."""

from __future__ import annotations

import io
import math
import random
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.page_index import read_offset_index
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, walk
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import integer, structs_field, structs_of
from icesize.parquet.pages.column_plan import ColumnPlan, Part, plan_columns
from icesize.parquet.pages.page_copy import runs_of
from icesize.parquet.row_groups.assembly import OWN_NAME, Assembly
from icesize.parquet.verify.file import verify_file
from tests.support.copying import copy_row_groups, merge_files, merge_pages
from tests.support.examples import examples
from tests.support.footers import Tree, edited, footer_of, make_file, sample

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
    assert verify_file(BytesSource(data), "merged").problems == ()
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


def plan_of(*files: bytes) -> ColumnPlan:
    """The plan for one row group of all of them."""
    return plan_columns(parts_of(*files))


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
    assert (plan.reencode, plan.reencoded_bytes, [leaf.dictionary for leaf in plan.leaves]) == ({}, 0, [None] * 13)
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
    "a dictionary that grows": (
        [column(["x", "y"] * 9), column(["x", "y", "z"]), column(["x"])],
        "dictionaries",
    ),
    "a dictionary that begins long": (
        [column(["x", "y", "z"]), column(["x", "y"]), column(["x", "y", "z", "x"])],
        "dictionaries",
    ),
    "a dictionary of numbers that grows": ([column([5, 6] * 9), column([5, 6, 7])], "dictionaries"),
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
    """Equal dictionaries are copied, and those that differ are encoded in the same codec."""
    equal = [column([f"value {i}" for i in range(40)] * n, compression=codec) for n in (1, 3, 2)]
    assert plan_of(*equal).reencode == {}
    assert spelt_rows_of(merged(*equal)) == spelt_rows_of(*equal)
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
    data = merged(*few)
    pages = page_encodings(data)[0]
    assert plan_of(*few).reencode == {"a": "dictionaries"}
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
    assert merge_pages(parts, plan_columns(parts), assembly, level=7) == 2
    assert assembly.finish().parsed.rows == 4


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
