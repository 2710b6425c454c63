"""What merging row groups costs, by how each column moves: nanoseconds of one core.

Measured on TPC-H lineitem in files of Spark and of pyarrow, 4,000-200,000 rows each, to within a factor of 1.5.
"""

from __future__ import annotations

from collections.abc import Sequence

from icesize.parquet.copying.column_plan import ColumnPlan, Part
from icesize.parquet.format.fields import ColumnMetaData
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, data_encodings, data_pages
from icesize.parquet.format.thrift import required_integer

_CHUNK_NS = 100_000
"""A column chunk whose pages are moved, or that is decoded alone."""
_PAGE_NS, _INDEX_NS = 70_000, 6
"""A page, and each of its values, whose indices into a dictionary change."""
_REPEATED_NS = 14
"""A value that is decoded out of a dictionary and encoded again."""
_VALUE_NS, _RAW_BYTE_NS = 12, 8
"""Another value, and each byte it has without compression."""


def costs_less_than_decoding(plan: ColumnPlan, parts: Sequence[Part], open_ns: int) -> bool:
    """Whether a row group is better made by its plan than out of rows, opening a file for those taking `open_ns`."""
    moved = again = 0
    for index, column in enumerate(parts[0].footer.columns):
        chunks = [part.group.chunks[index] for part in parts]
        again += sum(map(_decoding_ns, chunks))
        if column.top in plan.reencode:
            moved += sum(_CHUNK_NS + _decoding_ns(chunk) for chunk in chunks)
        else:
            moved += sum(_CHUNK_NS + (_renumbering_ns(chunk) if plan.numbers[index] else 0) for chunk in chunks)
    return moved <= again + open_ns * len(parts)


def _renumbering_ns(chunk: Chunk) -> int:
    return _PAGE_NS * data_pages(chunk) + _INDEX_NS * chunk.values


def _decoding_ns(chunk: Chunk) -> int:
    """With encoding it again."""
    if data_encodings(chunk) <= DICTIONARY_ENCODINGS:
        return _REPEATED_NS * chunk.values
    raw_bytes = required_integer(chunk.metadata, ColumnMetaData.TOTAL_UNCOMPRESSED_SIZE)
    return _VALUE_NS * chunk.values + _RAW_BYTE_NS * raw_bytes
