"""Page indexes read, moved and joined: nothing is lost, and what cannot be understood is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.page_index import (
    PageLocation,
    concatenate,
    offset_index,
    read_offset_index,
    rebase,
)
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.thrift import (
    BINARY,
    BOOLEAN_TRUE,
    I64,
    LIST,
    STRUCT,
    Fields,
    i32,
    i64,
    integers_field,
    list_header,
    read_struct,
    structs_field,
    varint,
    write_struct,
    zigzag,
)
from tests.support.examples import examples

NUMBERS = st.integers(0, 2**40)
LOCATIONS = st.lists(st.builds(PageLocation, NUMBERS, st.integers(0, 2**31 - 1), NUMBERS), max_size=20)


def code_of(refused: pytest.ExceptionInfo[CopyRefused]) -> Refusal:
    """Why."""
    return refused.value.code


@given(LOCATIONS, st.none() | st.lists(NUMBERS, max_size=20))
def test_offset_index_is_read_as_it_was_made(locations: list[PageLocation], variable: list[int] | None) -> None:
    """Reading is the inverse of making, with and without sizes of byte arrays."""
    assert read_offset_index(offset_index(locations, variable)) == (locations, variable)


@given(LOCATIONS)
def test_other_layouts_are_read_too(locations: list[PageLocation]) -> None:
    """Field ids may be written in full instead of as steps."""
    pages = b"".join(
        b"".join((b"\x06\x02", zigzag(at), b"\x05\x04", zigzag(size), b"\x06\x06", zigzag(row), b"\0"))
        for at, size, row in locations
    )
    raw = b"\x09\x02" + list_header(len(locations)) + pages + b"\0"
    assert read_offset_index(raw) == (locations, None)


@given(LOCATIONS, st.integers(0, 2**40))
def test_rebase_moves_every_page(locations: list[PageLocation], delta: int) -> None:
    """Offsets grow by the distance, sizes and rows stay."""
    moved = rebase(offset_index(locations, [7, 8]), delta, range(2**42))
    assert read_offset_index(moved) == ([(at + delta, size, row) for at, size, row in locations], [7, 8])


@pytest.mark.parametrize("page", [PageLocation(99, 10, 0), PageLocation(191, 10, 0), PageLocation(150, -1, 0)])
def test_pages_outside_of_their_chunk_are_refused(page: PageLocation) -> None:
    """A page before, behind, or of negative size would be looked for in another chunk."""
    assert read_offset_index(rebase(offset_index([page._replace(at=100, size_bytes=100)], None), 5, range(100, 200)))
    with pytest.raises(CopyRefused, match="outside of its chunk") as refused:
        rebase(offset_index([page], None), 5, range(100, 200))
    assert code_of(refused) == Refusal.CORRUPT_FOOTER


def test_unknown_fields_are_refused() -> None:
    """A new field of OffsetIndex or PageLocation may be an offset."""
    page: Fields = {1: i64(4), 2: i32(5), 3: i64(0)}
    for raw, unknown in (
        (write_struct({1: structs_field([page]), 3: i64(1)}), "field 3 of OffsetIndex"),
        (write_struct({1: structs_field([{**page, 4: i64(1)}])}), "field 4 of PageLocation"),
    ):
        with pytest.raises(CopyRefused, match=unknown) as refused:
            read_offset_index(raw)
        assert code_of(refused) == Refusal.UNKNOWN_FIELD


@pytest.mark.parametrize(
    "raw",
    [
        write_struct({}),
        write_struct({1: i64(1)}),
        write_struct({1: integers_field([1], I64)}),
        offset_index([PageLocation(4, 5, 0)], None).replace(b"\x19\x1c", b"\x19\x16"),
        write_struct({1: structs_field([{1: i64(4), 2: i32(5)}])}),
        write_struct({1: structs_field([])}) + b"\0",
        write_struct({1: (LIST, list_header(2**20))}),
    ],
)
def test_damaged_offset_indexes_are_refused(raw: bytes) -> None:
    """Missing fields, wrong types, bytes that follow and lists beyond the end."""
    with pytest.raises(CopyRefused, match="page index") as refused:
        read_offset_index(raw)
    assert code_of(refused) == Refusal.CORRUPT_FOOTER


@given(LOCATIONS.filter(bool), st.data())
def test_cut_off_indexes_are_refused(locations: list[PageLocation], data: st.DataObject) -> None:
    """Every beginning of an index is no index."""
    for raw, read in (
        (offset_index(locations, [1]), read_offset_index),
        (column_index([(False, b"a", b"b", 1, (1, 2))]), lambda raw: concatenate([raw], [1])),
    ):
        with pytest.raises(CopyRefused):
            read(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """No other error leaves."""
    for read in (read_offset_index, lambda raw: concatenate([raw], [1])):
        try:
            found = read(raw)
        except CopyRefused:
            continue
        assert found is None or len(found) > 0


Bounds = tuple[bool, bytes, bytes, int, tuple[int, ...]]
"""null page, min, max, nulls, histogram of definition levels."""
BOUNDS = st.tuples(st.booleans(), st.binary(max_size=3), st.binary(max_size=3), NUMBERS, st.tuples(NUMBERS, NUMBERS))


def column_index(pages: Sequence[Bounds], *, order: int = 1, without: Sequence[int] = ()) -> bytes:
    """A ColumnIndex of these pages."""
    flags, lows, highs, nulls, levels = zip(*pages, strict=True) if pages else ((), (), (), (), ())
    fields: Fields = {
        1: (LIST, list_header(len(pages), BOOLEAN_TRUE) + bytes(1 if flag else 2 for flag in flags)),
        2: (LIST, list_header(len(pages), BINARY) + b"".join(varint(len(low)) + low for low in lows)),
        3: (LIST, list_header(len(pages), BINARY) + b"".join(varint(len(high)) + high for high in highs)),
        4: i32(order),
        5: integers_field(nulls, I64),
        7: integers_field([count for page in levels for count in page], I64),
    }
    return write_struct({k: v for k, v in fields.items() if k not in without})


@examples(40)
@given(st.lists(st.lists(BOUNDS, max_size=9), min_size=1, max_size=4))
def test_column_indexes_are_joined_page_by_page(parts: list[list[Bounds]]) -> None:
    """The index of all pages in order; nothing is said any more of the order of their bounds."""
    joined = concatenate([column_index(part) for part in parts], [len(part) for part in parts])
    assert joined == column_index([page for part in parts for page in part], order=0)


PAGE: Bounds = (False, b"a", b"b", 0, (1, 2))


def test_what_only_some_have_is_left_out() -> None:
    """Null counts and histograms that one part lacks are nobody's."""
    joined = concatenate([column_index([PAGE]), column_index([PAGE], without=(5,))], [1, 1])
    assert joined == column_index([PAGE, PAGE], order=0, without=(5,))
    joined = concatenate([column_index([PAGE], without=(7,)), column_index([PAGE])], [1, 1])
    assert joined == column_index([PAGE, PAGE], order=0, without=(7,))


def test_there_may_be_no_common_index() -> None:
    """Another number of pages, levels that differ, a missing list or a field that is not known: no index."""
    more_levels = read_struct(column_index([PAGE]))[0] | {7: integers_field([1, 2, 3], I64)}
    unknown = read_struct(column_index([PAGE]))[0] | {8: i64(1)}
    for other, pages in (
        (column_index([PAGE]), 2),
        (column_index([PAGE], without=(2,)), 1),
        (write_struct(more_levels), 1),
        (write_struct(unknown), 1),
    ):
        assert concatenate([column_index([PAGE]), other], [1, pages]) is None
        assert concatenate([other, column_index([PAGE])], [pages, 1]) is None


def test_lists_of_another_type_are_refused() -> None:
    """Bounds that are no bytes belong to something else."""
    fields = read_struct(column_index([PAGE]))[0]
    with pytest.raises(CopyRefused, match="list of type") as refused:
        concatenate([write_struct({**fields, 2: integers_field([1], I64)})], [1])
    assert code_of(refused) == Refusal.CORRUPT_FOOTER
    with pytest.raises(CopyRefused, match="of type"):
        concatenate([write_struct({**fields, 2: (STRUCT, b"\0")})], [1])
