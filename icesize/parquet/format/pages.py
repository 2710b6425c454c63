"""The pages of a column chunk, found by their headers and checked without being decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from icesize.parquet.format.fields import (
    ColumnMetaData,
    DataPageHeader,
    DataPageHeaderV2,
    PageEncodingStats,
    PageHeader,
)
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import (
    LIST,
    STRUCT,
    Bytes,
    integer,
    raw_of,
    read_struct,
    read_structs,
    required_integer,
)

if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from zlib_ng.zlib_ng import crc32  # 4-10 times as fast as most builds of zlib
    except ImportError:  # workers that receive icesize as an archive have only the packages installed there
        from zlib import crc32

DATA_PAGE, DICTIONARY_PAGE, DATA_PAGE_V2 = 0, 2, 3
"""Types of pages (parquet.thrift, PageType)."""
DATA_PAGES = frozenset({DATA_PAGE, DATA_PAGE_V2})
INNER_HEADERS = {
    DATA_PAGE: PageHeader.DATA_PAGE_HEADER,
    DICTIONARY_PAGE: PageHeader.DICTIONARY_PAGE_HEADER,
    DATA_PAGE_V2: PageHeader.DATA_PAGE_HEADER_V2,
}
PLAIN, PLAIN_DICTIONARY, RLE, BIT_PACKED, RLE_DICTIONARY = 0, 2, 3, 4, 8
"""Encodings (parquet.thrift, Encoding)."""
DICTIONARY_ENCODINGS = frozenset({PLAIN_DICTIONARY, RLE_DICTIONARY})
LEVEL_ENCODINGS = frozenset({RLE, BIT_PACKED})
UNCOMPRESSED = 0
CODEC_NAMES = {UNCOMPRESSED: "none", 1: "snappy", 2: "gzip", 4: "brotli", 6: "zstd", 7: "lz4"}
"""Compression (parquet.thrift, CompressionCodec) -> pyarrow's name of it; the old LZ4 and LZO are not written."""

LEVELLED_CODECS = ("zstd", "gzip", "brotli")

MOST_OPENED_BYTES = 64 * 2**20
"""Most bytes of dictionaries whose entries are looked at, uncompressed; no known writer makes a longer one."""
_HEADER_BYTES = 256
"""Read for a dictionary of unknown length; its header has about 20 bytes."""


@dataclass(slots=True)
class Page:
    """One page, which begins `at` an offset of its chunk.

    `size_bytes` includes the header; `raw_size_bytes` is the header and the uncompressed body. `rows` is None if only
    the repetition levels show the number of rows. `checksum` is that of the stored body, None without one.
    """

    at: int
    size_bytes: int
    header_bytes: int
    raw_size_bytes: int
    type: int
    encoding: int
    values: int
    rows: int | None
    checksum: int | None


@dataclass(slots=True)
class Pages:
    """All pages of one chunk in file order."""

    dictionary: Page | None
    data: list[Page]

    def first_rows(self, rows: int) -> list[int] | None:
        """Return the first row of each data page in its row group; None if only the levels of the pages show it.

        Raises `CopyRefused` if the pages do not have `rows` rows.
        """
        counts = [page.rows for page in self.data if page.rows is not None]
        if len(counts) < len(self.data):
            return None
        if sum(counts) != rows:
            raise CopyRefused(Refusal.PAGES, f"pages have {sum(counts)} rows of {rows}")
        return [*accumulate(counts[:-1], initial=0)]


@dataclass(frozen=True, slots=True)
class DictionaryPage:
    """The dictionary page of one chunk: `page` is header and body as stored."""

    values: int
    raw_size_bytes: int
    encoding: int
    header_bytes: int
    page: bytes

    @staticmethod
    def of(page: Page, chunk: Bytes) -> DictionaryPage:
        """Return the dictionary page that `page` describes, with its bytes from the chunk."""
        stored = bytes(chunk[page.at : page.at + page.size_bytes])
        return DictionaryPage(page.values, page.raw_size_bytes, page.encoding, page.header_bytes, stored)

    @property
    def body(self) -> bytes:
        """The entries as stored, usually compressed."""
        return self.page[self.header_bytes :]

    def may_be_opened(self, codec: int) -> bool:
        """Return whether the codec is known and the entries have at most `MOST_OPENED_BYTES` uncompressed."""
        return codec in CODEC_NAMES and 0 <= self.raw_size_bytes - self.header_bytes <= MOST_OPENED_BYTES

    def entries(self, codec: int) -> bytes:
        """Return the entries without compression; raises `CopyRefused`."""
        return decompressed(self.body, self.raw_size_bytes - self.header_bytes, codec)


@damaged_as(Refusal.PAGES)
def walk(data: Bytes, flat: bool, values: int) -> Pages:
    """Find the pages of a chunk of `values` values, nulls included; `flat` columns have one value for each row.

    Raises `CopyRefused`: PAGES if headers do not tile the chunk or do not add up, CHECKSUM if the stored body of a page
    does not match its checksum.
    """
    pages = Pages(None, [])
    at = found = 0
    end = len(data)
    while at < end:
        page = read_page(data, at, end, flat=flat)
        _verify(page, data)
        if page.type == DICTIONARY_PAGE:
            if at:
                raise CopyRefused(Refusal.PAGES, "a dictionary follows other pages")
            pages.dictionary = page
        else:
            # pyarrow writes single pages without values; a damaged chunk with a page for every few bytes would take
            # too much memory
            if not page.values and pages.data and not pages.data[-1].values:
                raise CopyRefused(Refusal.PAGES, "two pages without values")
            pages.data.append(page)
            found += page.values
        at += page.size_bytes
    if found != values:
        raise CopyRefused(Refusal.PAGES, f"pages have {found} values of {values}")
    return pages


@damaged_as(Refusal.PAGES)
def dictionary_page(source: Readable, chunk: Chunk) -> DictionaryPage | None:
    """Read the dictionary page of a chunk; return None if the chunk begins with another page.

    Some writers leave the dictionary's offset out of the footer, so one small read of the chunk finds it. Raises
    `CopyRefused`.
    """
    if chunk.dictionary_offset <= 0 and not DICTIONARY_ENCODINGS & chunk.encodings:
        return None
    until_data = chunk.data_offset - chunk.start
    data = source.read(chunk.start, min(chunk.size_bytes, max(_HEADER_BYTES, until_data)))
    # checked before the header is parsed: the header of a data page may be longer than the bytes read
    if data[:1] == b"\x15" and data[1:2] != b"\x04":
        return None
    page = read_page(data, 0, chunk.size_bytes, flat=False)
    if page.type != DICTIONARY_PAGE:
        return None
    if page.size_bytes > len(data):
        data = source.read(chunk.start, page.size_bytes)
    _verify(page, data)
    return DictionaryPage.of(page, data)


@damaged_as(Refusal.CORRUPT_FOOTER)
def data_encodings(chunk: Chunk) -> set[int]:
    """Return the encodings of the data pages, from the footer's encoding statistics.

    If the footer has no such statistics, return a superset of the encodings of values. That footer lists RLE for levels
    and for values alike, so RLE is left out of the superset.
    """
    counts = _counts_of(chunk)
    return chunk.encodings - LEVEL_ENCODINGS if counts is None else {encoding for encoding, _ in counts}


def data_pages(chunk: Chunk) -> int:
    """Return the number of data pages of a column from the footer's encoding statistics, or 1 without them."""
    return sum(count for _, count in _counts_of(chunk) or ()) or 1


def _counts_of(chunk: Chunk) -> tuple[tuple[int, int], ...] | None:
    if ColumnMetaData.ENCODING_STATS not in chunk.metadata:
        return None
    return _counts(raw_of(chunk.metadata, ColumnMetaData.ENCODING_STATS, LIST))


@lru_cache(1_024)
def _counts(raw: bytes) -> tuple[tuple[int, int], ...]:
    """Return each encoding of data pages and its number of pages; cached because most chunks have the same."""
    counts, _ = read_structs(raw, 0, read_struct)
    of_data = [c for c in counts if required_integer(c, PageEncodingStats.PAGE_TYPE) in DATA_PAGES]
    return tuple(
        (required_integer(c, PageEncodingStats.ENCODING), required_integer(c, PageEncodingStats.COUNT)) for c in of_data
    )


def read_page(data: Bytes, at: int, end: int, *, flat: bool) -> Page:
    """Read the header of the page at a position; the page must end by `end`.

    Raises `DamagedFile`, or `CopyRefused` for a page that cannot be copied.
    """
    fields, body = read_struct(data, at)
    if max(fields, default=0) > PageHeader.DATA_PAGE_HEADER_V2:  # the last known field
        raise CopyRefused(Refusal.PAGES, f"a page header has fields {sorted(fields)}")
    kind = required_integer(fields, PageHeader.TYPE)
    checksum = integer(fields, PageHeader.CRC)
    if kind not in INNER_HEADERS:
        raise CopyRefused(Refusal.PAGES, f"a page of type {kind}")
    inner, _ = read_struct(raw_of(fields, INNER_HEADERS[kind], STRUCT))
    is_v2 = kind == DATA_PAGE_V2
    raw_size = required_integer(fields, PageHeader.UNCOMPRESSED_PAGE_SIZE)
    size = required_integer(fields, PageHeader.COMPRESSED_PAGE_SIZE)
    values = required_integer(inner, DataPageHeader.NUM_VALUES)
    encoding = required_integer(inner, DataPageHeaderV2.ENCODING if is_v2 else DataPageHeader.ENCODING)
    rows = required_integer(inner, DataPageHeaderV2.NUM_ROWS) if is_v2 else None
    if kind == DATA_PAGE and flat:
        rows = values
    if size < 0 or raw_size < 0 or body + size > end:
        raise CopyRefused(
            Refusal.PAGES, f"a page of {size} bytes, uncompressed {raw_size}, where {end - body} are left"
        )
    if values < 0 or (rows is not None and (rows < 0 or rows > values or (flat and rows != values))):
        raise CopyRefused(Refusal.PAGES, f"a page of {values} values, {rows} rows")
    return Page(
        at=at,
        size_bytes=body + size - at,
        header_bytes=body - at,
        raw_size_bytes=body - at + raw_size,
        type=kind,
        encoding=encoding,
        values=values,
        rows=rows,
        checksum=None if checksum is None else checksum & 0xFFFFFFFF,
    )


def _verify(page: Page, data: Bytes) -> None:
    if page.checksum is None:
        return
    if crc32(data[page.at + page.header_bytes : page.at + page.size_bytes]) != page.checksum:
        raise CopyRefused(Refusal.CHECKSUM)


def decompressed(body: Bytes, size_bytes: int, codec: int) -> bytes:
    """Decompress a body to the size that its header gives.

    Raises `CopyRefused` if the body has another size, and for an unknown codec.
    """
    if codec == UNCOMPRESSED:
        raw, is_short = bytes(body), len(body) != size_bytes
    else:
        raw = _decompressed(body, size_bytes, codec)
        is_short = _is_short(body, size_bytes, codec)
    if is_short:
        raise CopyRefused(Refusal.PAGES, f"a body of other than {size_bytes} bytes")
    return raw


def _decompressed(body: Bytes, size_bytes: int, codec: int) -> bytes:
    import pyarrow as pa  # costs a third of a second, and most pages are copied as stored

    try:
        return bytes(_codec(codec).decompress(body, size_bytes, asbytes=True))
    except (pa.ArrowException, OSError) as error:
        raise CopyRefused(Refusal.PAGES, str(error)) from error


def _is_short(body: Bytes, size_bytes: int, codec: int) -> bool:
    """Return whether a body that fits into `size_bytes` fills fewer of them.

    pyarrow checks it for zstd only. Otherwise it returns whatever the rest of its memory holds.
    """
    name = CODEC_NAMES[codec]
    if name == "gzip":
        return int.from_bytes(body[-4:], "little") != size_bytes
    if name == "zstd" or not size_bytes:
        return False
    try:
        _decompressed(body, size_bytes - 1, codec)
    except CopyRefused:
        return False
    return True


def _codec(codec: int) -> Any:
    """Return a new codec; codecs are not cached because some have a state, which threads would share."""
    import pyarrow as pa

    name = CODEC_NAMES.get(codec)
    if name is None:
        raise CopyRefused(Refusal.CODEC, f"codec {codec}")
    return pa.Codec("lz4_raw" if name == "lz4" else name)
