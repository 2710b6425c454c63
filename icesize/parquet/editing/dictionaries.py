"""One dictionary with the entries of several, for chunks that each have one of their own."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from icesize.parquet.format.fields import DataPageHeader, PageHeader
from icesize.parquet.format.hybrid import MOST_BITS
from icesize.parquet.format.page_values import byte_arrays
from icesize.parquet.format.pages import DICTIONARY_PAGE, MOST_OPENED_BYTES, DictionaryPage, compressed
from icesize.parquet.format.refusals import CopyRefused, Refusal, damaged_as
from icesize.parquet.format.schema import BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64, Column, Element
from icesize.parquet.format.thrift import i32, struct_field, write_struct

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.uint16] | None"
"""For each entry of a chunk's dictionary its number in the new one; None where no number changes."""

MOST_DICTIONARY_BYTES = 2**20
"""Most bytes of a new dictionary, uncompressed: the default of parquet-mr (`parquet.dictionary.page.size`)."""


@damaged_as(Refusal.PAGES)
def unite(
    pages: Sequence[DictionaryPage | None], column: Column, codec: int
) -> tuple[DictionaryPage, list[Numbers]] | None:
    """Return one dictionary for chunks with these dictionaries, and the new index of each old one, by chunk.

    A page is None for a chunk without a dictionary. Returns None if the dictionary would be too large, or if entries
    are not stored one after the other (PLAIN).

    Entries keep the order of their first occurrence, so the indices of the first chunk stay. They are compared by their
    bytes, so every zero and every NaN is kept. Raises `CopyRefused` for a dictionary that does not match its header.
    """
    import numpy as np
    import pyarrow as pa

    found = [page for page in pages if page is not None]
    if not all(page.is_plain for page in found) or sum(page.raw_size_bytes for page in found) > MOST_OPENED_BYTES:
        return None
    arrays = [_entries(page, column.element, codec) for page in found]
    encoded = pa.concat_arrays(arrays).dictionary_encode()
    entries = len(encoded.dictionary)
    raw = _plain(encoded.dictionary, column.element)
    if len(raw) > MOST_DICTIONARY_BYTES or entries > 1 << MOST_BITS:
        return None
    every = np.asarray(encoded.indices).astype(np.uint16)
    numbers: list[Numbers] = []
    at = 0
    for page in pages:
        some = every[at : at + (0 if page is None else page.values)]
        at += len(some)
        numbers.append(None if np.array_equal(some, np.arange(len(some))) else some)
    return _page(raw, entries, found[0].encoding, codec), numbers


def _entries(page: DictionaryPage, element: Element, codec: int) -> Any:
    """Return the entries as an Arrow array that compares them by their bytes."""
    import pyarrow as pa

    raw = page.entries(codec)
    if element.type == BYTE_ARRAY:
        return pa.array(byte_arrays(raw, page.values), pa.large_binary())
    kind = _fixed_type(element)
    if len(raw) != page.values * kind.bit_width // 8:
        raise CopyRefused(Refusal.PAGES, f"a dictionary of {page.values} entries has {len(raw)} bytes")
    return pa.Array.from_buffers(kind, page.values, [None, pa.py_buffer(raw)])


def _fixed_type(element: Element) -> Any:
    import pyarrow as pa

    by_width = {INT32: pa.int32(), FLOAT: pa.int32(), INT64: pa.int64(), DOUBLE: pa.int64()}
    return by_width.get(element.type or 0) or pa.binary(element.length or 0)


def _plain(entries: Any, element: Element) -> bytes:
    """Return the inverse of `_entries`, uncompressed."""
    if element.type == BYTE_ARRAY:
        return b"".join(struct.pack("<I", len(entry)) + entry for entry in entries.to_pylist())
    size_bytes = entries.type.bit_width // 8
    return bytes(entries.buffers()[1])[: len(entries) * size_bytes]


def _page(raw: bytes, entries: int, encoding: int, codec: int) -> DictionaryPage:
    body = compressed(raw, codec)
    header = write_struct(
        {
            PageHeader.TYPE: i32(DICTIONARY_PAGE),
            PageHeader.UNCOMPRESSED_PAGE_SIZE: i32(len(raw)),
            PageHeader.COMPRESSED_PAGE_SIZE: i32(len(body)),
            PageHeader.DICTIONARY_PAGE_HEADER: struct_field(
                {DataPageHeader.NUM_VALUES: i32(entries), DataPageHeader.ENCODING: i32(encoding)}
            ),
        }
    )
    return DictionaryPage(entries, len(header) + len(raw), encoding, len(header), header + body)
