"""An upper limit of the Arrow memory of stored values."""

from __future__ import annotations

from icesize.parquet.format.fields import SizeStatistics
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, PLAIN, DictionaryPage, data_encodings, dictionary_page
from icesize.parquet.format.refusals import CopyRefused, DamagedFile
from icesize.parquet.format.schema import BYTE_ARRAY, Column
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import integer

_UNKNOWN_BYTES = 2**12
"""Assumed length of a value where the footer does not show it: values that repeat the one before are stored short."""
_NO_ENCODING = -1
_LENGTH_BYTES = 4


def most_value_bytes(source: Readable, chunk: Chunk, column: Column) -> int:
    """Return an upper limit of the bytes of a chunk's values as plain Arrow values, without their offsets.

    Pages of few or similar values hold far fewer bytes than these values. The footer states the size; otherwise, every
    value counts as the longest of the dictionary.
    """
    if column.element.type != BYTE_ARRAY:
        return max(chunk.raw_size_bytes, (column.element.length or 0) * chunk.values)
    stated = integer(chunk.size_statistics, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES)
    if stated is not None and stated >= 0:
        return stated
    encodings, longest = _encodings(chunk), 0
    if not encodings <= DICTIONARY_ENCODINGS | {PLAIN}:
        longest = _UNKNOWN_BYTES
    if DICTIONARY_ENCODINGS & encodings:
        longest = max(longest, _longest_entry(source, chunk))
    return max(chunk.raw_size_bytes, longest * chunk.values)


def _encodings(chunk: Chunk) -> set[int]:
    try:
        return data_encodings(chunk)
    except CopyRefused:
        return {_NO_ENCODING}


def _longest_entry(source: Readable, chunk: Chunk) -> int:
    try:
        page = dictionary_page(source, chunk)
        return 0 if page is None else _longest(page, chunk.codec)
    except CopyRefused:  # reading the values finds the damage again
        return _UNKNOWN_BYTES


def _longest(page: DictionaryPage, codec: int) -> int:
    """Return the bytes of the longest entry, or an upper limit for a dictionary that may not be opened."""
    if not page.may_be_opened(codec):
        return page.raw_size_bytes
    raw, at, longest = page.entries(codec), 0, 0
    for _ in range(page.values):
        length = int.from_bytes(raw[at : at + _LENGTH_BYTES], "little")
        at, longest = at + _LENGTH_BYTES + length, max(longest, length)
        if at > len(raw):
            raise DamagedFile(f"{page.values} byte arrays are not in {len(raw)} bytes")
    return longest
