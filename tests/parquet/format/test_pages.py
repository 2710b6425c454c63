"""Page headers: found by two parsers that agree, checked against what pyarrow says, refused where they are hostile."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.page_index import read_offset_index
from icesize.parquet.format.pages import (
    CODEC_NAMES,
    DATA_PAGE,
    DATA_PAGE_V2,
    DICTIONARY_PAGE,
    Page,
    data_encodings,
    decompressed,
    dictionary_page,
    read_page,
    walk,
)
from icesize.parquet.format.refusals import CopyRefused, DamagedFile, Refusal
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import (
    Fields,
    boolean_field,
    i32,
    i64,
    integers_field,
    struct_field,
    structs_field,
    write_struct,
)
from tests.support.footers import Tree, edited, footer_of, make_file, sample

LAYOUTS = [
    {
        "data_page_version": version,
        "write_page_index": index,
        "write_page_checksum": checksum,
        "use_dictionary": dictionary,
    }
    for version in ("1.0", "2.0")
    for index in (False, True)
    for checksum in (False, True)
    for dictionary in (False, True)
]
"""Headers with and without statistics, which are left out where there is an index, and with and without checksums."""
SMALL_PAGES = {"data_page_size": 20, "write_batch_size": 3, "row_group_size": 200}


def chunks(data: bytes) -> Iterator[tuple[Chunk, bool, bytes]]:
    """Each chunk of a file, whether it is flat, and its bytes."""
    footer = footer_of(data)
    for group in footer.row_groups:
        for chunk, column in zip(group.chunks, footer.columns, strict=True):
            yield chunk, column.flat, data[chunk.start : chunk.end]


def inner(kind: int, values: int, rows: int) -> tuple[int, Fields]:
    """The part of a header that is of its kind."""
    if kind == DATA_PAGE:
        return 5, {1: i32(values), 2: i32(0), 3: i32(3), 4: i32(3)}
    if kind == DICTIONARY_PAGE:
        return 7, {1: i32(values), 2: i32(0)}
    levels: Fields = {5: i32(0), 6: i32(0), 7: boolean_field(False)}
    return 8, {1: i32(values), 2: i32(0), 3: i32(rows), 4: i32(0), **levels}


def page(kind: int = DATA_PAGE, body: bytes = b"body", values: int = 4, rows: int = 4, **changes: int | None) -> bytes:
    """A page; `changes` are of the fields `raw`, `size` and `checksum`."""
    size = changes.get("size", len(body))
    fields: Fields = {1: i32(kind), 2: i32(changes.get("raw", len(body)) or 0), 3: i32(size or 0)}
    if changes.get("checksum") is not None:
        fields[4] = i32(changes["checksum"] or 0)
    if kind in (DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2):
        field, of_kind = inner(kind, values, rows)
        fields[field] = struct_field(of_kind)
    return write_struct(fields) + body


def refused(act: Callable[[], object]) -> Refusal:
    """The code of what is raised."""
    with pytest.raises(CopyRefused) as caught:
        act()
    return caught.value.code


@pytest.mark.parametrize("layout", [layout for layout in LAYOUTS if layout["write_page_index"]])
def test_pages_are_where_the_offset_index_says(layout: dict[str, object]) -> None:
    """Places, sizes and first rows of pages are those that pyarrow wrote into the offset index."""
    data = make_file(sample(100), **SMALL_PAGES, **layout)
    for chunk, flat, raw in chunks(data):
        pages = walk(memoryview(raw), flat, chunk.values)
        at, length = chunk.offset_index or (0, 0)
        places, _ = read_offset_index(data[at : at + length])
        assert [(p.at + chunk.start, p.size_bytes) for p in pages.data] == [place[:2] for place in places]
        first = 0
        for one, place in zip(pages.data, places, strict=True):
            assert place.first_row == first or one.rows is None
            first += one.rows or 0
        assert (pages.dictionary is not None) == (dictionary_page(BytesSource(data), chunk) is not None)


def test_sizes_of_a_page_are_told_with_its_header() -> None:
    """A page that was compressed counts its header in both sizes."""
    stored = page(raw=100)
    header = len(stored) - 4
    found = Page(0, header + 4, header, header + 100, DATA_PAGE, 0, 4, 4, None)
    assert walk(stored * 2, True, 8).data == [found, Page(header + 4, *(getattr(found, n) for n in Page.__slots__[1:]))]
    assert walk(stored, False, 4).data[0].rows is None
    assert walk(page(DATA_PAGE_V2, rows=2), False, 4).data[0].rows == 2


HOSTILE = {
    "a size beyond the chunk": page(size=5),
    "a negative size": page(size=-4),
    "a size of 2 GiB": page(size=2**31 - 1),
    "a negative uncompressed size": page(raw=-1),
    "an index page": page(1),
    "an unknown page": page(9),
    "two pages without values": page() + page(values=0) * 2,
    "negative values": page(values=-1) + page(values=5),
    "more rows than values": page(DATA_PAGE_V2, rows=5),
    "negative rows": page(DATA_PAGE_V2, rows=-1),
    "a dictionary after data": page() + page(DICTIONARY_PAGE),
    "two dictionaries": page(DICTIONARY_PAGE) * 2 + page(),
    "bytes behind the last page": page() + b"\0",
    "bytes that are no struct": page() + b"\xff" * 9,
    "too few values": page(values=3),
    "too many values": page() * 2,
    "an unknown field": write_struct({1: i32(0), 2: i32(0), 3: i32(0), 5: struct_field(inner(0, 4, 4)[1]), 9: i32(1)}),
    "a header without its data page header": write_struct({1: i32(0), 2: i32(0), 3: i32(0)}),
    "a header without sizes": write_struct({1: i32(0), 5: struct_field(inner(0, 4, 4)[1])}),
    "a data page header that is a number": write_struct({1: i32(0), 2: i32(0), 3: i32(0), 5: i32(4)}),
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_pages_that_do_not_tile_their_chunk_are_refused(name: str) -> None:
    """Headers that lie about sizes, kinds or counts are refused before their bytes are used."""
    assert refused(lambda: walk(HOSTILE[name], False, 4)) is Refusal.PAGES


def test_flat_columns_have_a_row_for_each_value() -> None:
    """A page of a flat column whose rows are not its values is refused, the same page of a list is not."""
    assert walk(page(DATA_PAGE_V2, rows=3), False, 4).data[0].rows == 3
    assert refused(lambda: walk(page(DATA_PAGE_V2, rows=3), True, 4)) is Refusal.PAGES


@given(
    at=st.integers(0, 10**6), bit=st.integers(0, 7), kind=st.sampled_from([DATA_PAGE, DATA_PAGE_V2, DICTIONARY_PAGE])
)
def test_a_flipped_bit_of_a_page_is_found_by_its_checksum(at: int, bit: int, kind: int) -> None:
    """Each bit of a page's body is under its checksum."""
    body = bytes(range(50))
    signed = zlib.crc32(body) - (2**32 if zlib.crc32(body) >= 2**31 else 0)
    stored = bytearray(page(kind, body, checksum=signed) + (page() if kind == DICTIONARY_PAGE else b""))
    start = stored.index(body)
    walk(stored, True, 4)
    stored[start + at % 50] ^= 1 << bit
    assert refused(lambda: walk(stored, True, 4)) is Refusal.CHECKSUM


def test_a_dictionary_is_found_whatever_the_footer_says_of_it() -> None:
    """Without an offset, or with one of 0, the dictionary is the chunk's first page; one too long to guess is read."""
    values = pa.table({"a": [f"value {i}" * 10 for i in range(100)]})
    data = make_file(values, row_group_size=100)

    def forget(tree: Tree) -> None:
        for fields in tree.metadata[0]:
            fields[9] = fields.pop(11)

    for changed in (
        data,
        edited(data, forget),
        edited(data, lambda tree: (forget(tree), tree.metadata[0][0].update({11: i64(0)}))),
    ):
        chunk, flat, raw = next(chunks(changed))
        head = dictionary_page(BytesSource(changed), chunk)
        known = walk(raw, flat, chunk.values).dictionary
        assert head is not None
        assert known is not None
        assert (head.values, head.page, head.header_bytes) == (100, raw[: known.size_bytes], known.header_bytes)
        assert head.raw_size_bytes == known.raw_size_bytes
        assert raw.startswith(head.page[: -len(head.body)] + head.body)


def test_a_first_page_with_long_statistics_is_no_dictionary() -> None:
    """A chunk that may have a dictionary and begins with a data page is asked once; its header may be cut off."""
    values = pa.table({"a": ["x" * 400, "y" * 400]})
    data = make_file(values, use_dictionary=False)
    lying = edited(data, lambda tree: tree.metadata[0][0].update({2: integers_field([0, 3, 8], 5)}))
    chunk, flat, raw = next(chunks(lying))
    with pytest.raises(DamagedFile, match="cut off"):
        read_page(raw[:256], 0, len(raw), flat=True)
    assert dictionary_page(BytesSource(lying), chunk) is None
    assert len(walk(raw, flat, 2).data) == 1


def test_a_damaged_dictionary_is_refused() -> None:
    """A checksum that is not the page's, and a header that is none."""
    data = bytearray(make_file(pa.table({"a": ["same"] * 9}), write_page_checksum=True))
    chunk, _, _ = next(chunks(bytes(data)))
    head = dictionary_page(BytesSource(data), chunk)
    assert head is not None
    data[chunk.start + head.header_bytes] ^= 1
    assert refused(lambda: dictionary_page(BytesSource(data), chunk)) is Refusal.CHECKSUM
    data[chunk.start + 2] = 0xFF
    assert refused(lambda: dictionary_page(BytesSource(data), chunk)) is Refusal.PAGES


def test_encodings_of_data_pages_are_those_of_the_statistics() -> None:
    """Encoding statistics tell data pages from dictionaries; without them all encodings of values are named."""
    data = make_file(pa.table({"a": ["same"] * 9}))
    chunk, _, _ = next(chunks(data))
    assert data_encodings(chunk) == {8}
    without, _, _ = next(chunks(edited(data, lambda tree: tree.metadata[0][0].pop(13))))
    assert data_encodings(without) == {0, 8}
    broken, _, _ = next(
        chunks(edited(data, lambda tree: tree.metadata[0][0].update({13: structs_field([{1: i32(0)}])})))
    )
    assert refused(lambda: data_encodings(broken)) is Refusal.CORRUPT_FOOTER


def walk_damaged(count: int, seed: int) -> int:
    """Walk chunks of which some bytes of headers were changed; how many of them were refused."""
    chance, codes = random.Random(seed), []
    originals = [
        (chunk, flat, data, [p.at for p in walk(data, flat, chunk.values).data])
        for layout in LAYOUTS
        for chunk, flat, data in chunks(make_file(sample(30), **SMALL_PAGES, **layout))
    ]
    for _ in range(count):
        chunk, flat, data, places = chance.choice(originals)
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            at = min(chance.choice([0, *places]) + chance.randrange(30), len(damaged) - 1)
            damaged[at] = chance.choice([damaged[at] ^ 1 << chance.randrange(8), chance.randrange(256), 0xFF, 0])
        damaged = damaged[: chance.choice([len(damaged)] * 5 + [chance.randrange(len(damaged))])]
        try:
            pages = walk(memoryview(damaged), flat, chunk.values)
        except CopyRefused as error:
            codes.append(error.code)
        else:
            assert sum(p.values for p in pages.data) == chunk.values
            assert sum(p.size_bytes for p in (*pages.data, *filter(None, [pages.dictionary]))) == len(damaged)
    assert set(codes) <= {Refusal.PAGES, Refusal.CHECKSUM}
    return len(codes)


def test_damaged_headers_are_refused_or_still_tile() -> None:
    """Bytes of headers are changed: nothing but a refusal is raised, and what passes adds up."""
    assert walk_damaged(300, 7) > 100


@pytest.mark.slow
def test_many_damaged_headers_are_refused_or_still_tile() -> None:
    """The same, 20,000 times."""
    assert walk_damaged(20_000, 11) > 5_000


@pytest.mark.parametrize("raw", [b"", b"x", b"hello world" * 10, bytes(range(256)) * 8, b"a" * 100_000])
@pytest.mark.parametrize("codec", CODEC_NAMES)
def test_a_body_has_the_size_that_its_header_gives(codec: int, raw: bytes) -> None:
    """A body of another size is refused by every codec: no byte of other memory gets into a page."""
    name = CODEC_NAMES[codec].replace("lz4", "lz4_raw")
    body = raw if name == "none" else pa.compress(raw, name, asbytes=True)
    assert decompressed(body, len(raw), codec) == raw
    for size_bytes in (len(raw) - 1, len(raw) + 1, len(raw) + 8, 2 * len(raw) + 1):
        if 0 <= size_bytes != len(raw):
            with pytest.raises(CopyRefused):
                decompressed(body, size_bytes, codec)
