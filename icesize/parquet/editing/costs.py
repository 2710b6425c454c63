"""What merging row groups costs, by how each column moves: nanoseconds of one core.

Measured on TPC-H lineitem in files of Spark and of pyarrow, 4,000-200,000 rows each, to within a factor of 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from pyroaring import BitMap

from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, data_encodings, data_pages
from icesize.parquet.format.schema import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT64

CHUNK_NS = 100_000
"""A column chunk whose pages are moved, or that is decoded alone."""
_INDEX_NS = 12
"""A value whose index into a dictionary changes: 6, twice, since Python's lock is held for most of it (13 of 15 ns a
value, with pages of 20,000), while another thread merges beside it. pyarrow encodes a column again without the lock."""
_REPEATED_NS = {BYTE_ARRAY: 20, INT64: 16, FIXED_LEN_BYTE_ARRAY: 42}
_OTHER_REPEATED_NS = 12
"""A value that is decoded out of a dictionary and encoded again."""
_VALUE_NS, _RAW_BYTE_NS = 12, 8
"""Another value, and each byte it has without compression."""


def renumbering_ns(chunks: Sequence[Chunk], page_ns: int) -> int:
    """Return the cost of changing the indices of a column, besides moving its chunks: `page_ns` for each page, and its
    values."""
    return sum(page_ns * data_pages(chunk) + _INDEX_NS * chunk.values for chunk in chunks)


def cutting_ns(chunks: Sequence[Chunk], deleted: Sequence[BitMap | None], cost: float) -> int:
    """Of chunks of one column of which some rows go: the pages that have such rows, if all have equally many, where
    that takes `cost` times what decoding takes."""
    pairs = zip(chunks, deleted, strict=True)
    return round(cost * sum(_decoding_chunk_ns(chunk) * _share_cut(chunk, places) for chunk, places in pairs))


def _share_cut(chunk: Chunk, places: BitMap | None) -> float:
    if not places:
        return 0.0
    pages = min(data_pages(chunk), chunk.values)
    ends = [chunk.values * (page + 1) // pages for page in range(pages)]
    ranks = [places.rank(end - 1) for end in ends]
    return sum(after > before for before, after in pairwise([0, *ranks])) / pages


def decoding_ns(chunks: Sequence[Chunk]) -> int:
    """With encoding the values again, but for what each chunk or file takes."""
    return sum(map(_decoding_chunk_ns, chunks))


def _decoding_chunk_ns(chunk: Chunk) -> int:
    if data_encodings(chunk) <= DICTIONARY_ENCODINGS:
        return _REPEATED_NS.get(chunk.type, _OTHER_REPEATED_NS) * chunk.values
    raw_bytes = chunk.raw_size_bytes
    return _VALUE_NS * chunk.values + _RAW_BYTE_NS * raw_bytes
