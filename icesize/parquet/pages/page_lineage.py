"""The columns of the row lineage of a new row group: stored pages are copied, missing values are made."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from icesize.parquet.files.lineage_fields import ARROW_SCHEMA, inherited_values
from icesize.parquet.files.properties import ParquetOptions
from icesize.parquet.format.footer import Chunk, RowGroup, StoredColumn, read_footer
from icesize.parquet.format.levels import count_levels
from icesize.parquet.format.pages import CODEC_NAMES, DICTIONARY_ENCODINGS, LEVELLED_CODECS, data_encodings
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.sources import BytesSource, Source
from icesize.parquet.pages.column_plan import Part, Piece
from icesize.parquet.pages.page_copy import read_indexes, read_piece
from icesize.parquet.pages.reencode import read_column
from icesize.parquet.row_groups.compatibility import check_row_group, common_encodings
from icesize.parquet.row_groups.footer_lineage import LINEAGE_COLUMNS

_MADE_ROWS = 2**20
"""Rows whose values are encoded at once."""


def lineage_works(parts: Sequence[Part]) -> Iterator[partial[list[Piece]]]:
    """Yield the work to do for each of both columns of a row group; none if the new file does not store them."""
    if parts[0].inherited is not None:
        yield from (partial(lineage_pieces, parts, nth) for nth in range(len(LINEAGE_COLUMNS)))


def lineage_pieces(parts: Sequence[Part], nth: int, level: int | None) -> list[Piece]:
    """Return the chunks of one of both columns of a row group that consists of these parts.

    A stored chunk is copied if it has a value for each row. Otherwise, rows without a value get the one that they
    inherit. New pages have the codec of the first part, at `level` if it has levels. Raises `CopyRefused` for stored
    values that cannot be read.
    """
    codec = parts[0].group.chunks[0].codec
    if codec not in CODEC_NAMES:
        raise CopyRefused(Refusal.CODEC, f"codec {codec}")
    level = level if CODEC_NAMES[codec] in LEVELLED_CODECS else None
    pieces = list[Piece]()
    for is_copied, group in groupby(parts, key=lambda part: _is_copied(part, nth, codec, alone=len(parts) == 1)):
        some = list(group)
        if is_copied:
            stored = ((part, part.group.lineage[nth]) for part in some)
            pieces += (_piece(part.source, one.chunk, part.group.rows, nth) for part, one in stored if one is not None)
        else:
            values = np.concatenate([*_values(some, nth)])
            starts = range(0, len(values), _MADE_ROWS)
            pieces += (_encoded(values[start : start + _MADE_ROWS], nth, codec, level) for start in starts)
    return pieces


def stored_piece(source: Source, group: RowGroup, nth: int) -> Piece:
    """Return the stored chunk of one of both columns; raises `CopyRefused` unless it has a value for each row."""
    stored = group.lineage[nth]
    if stored is None or not _is_full(source, stored):
        raise CopyRefused(Refusal.COUNTS, f"{LINEAGE_COLUMNS[nth].path[0]} lacks values")
    return _piece(source, stored.chunk, group.rows, nth)


def _piece(source: Source, chunk: Chunk, rows: int, nth: int) -> Piece:
    room, indexes = memoryview(bytearray(chunk.size_bytes)), read_indexes(source, [chunk])
    return read_piece(source, chunk, rows, LINEAGE_COLUMNS[nth], indexes, room)


def _is_copied(part: Part, nth: int, codec: int, *, alone: bool) -> bool:
    stored = part.group.lineage[nth]
    if stored is None or part.deleted or stored.column != LINEAGE_COLUMNS[nth] or stored.chunk.codec != codec:
        return False
    encodings = data_encodings(stored.chunk)
    # chunks with dictionaries of their own do not fit into one
    fits = encodings <= common_encodings(stored.column) and (alone or not encodings & DICTIONARY_ENCODINGS)
    return fits and _is_full(part.source, stored)


def _is_full(source: Source, stored: StoredColumn) -> bool:
    """Return whether each row has a value, by the levels: the statistics of other writers may lack NULLs."""
    check_row_group(RowGroup({}, [stored.chunk], stored.chunk.values), [stored.column])
    return count_levels(source, stored.chunk, stored.column)[1] == 0


def _values(parts: Sequence[Part], nth: int) -> Iterator[NDArray[np.int64]]:
    """Yield the values of the live rows of each part."""
    for _, same in groupby(parts, key=lambda part: (part.footer, part.group.lineage[nth] is None)):
        several = list(same)
        stored = several[0].group.lineage[nth]
        column = None if stored is None else read_column(several, stored.column.top)
        first = 0
        for part in several:
            rows = None if column is None else column.slice(first, part.group.rows)
            yield _of_part(part, nth, rows)
            first += part.group.rows


def _of_part(part: Part, nth: int, stored: pa.ChunkedArray | None) -> NDArray[np.int64]:
    values = inherited_values(nth, part.group.rows, *(part.inherited or (0, 0)))
    if stored is not None:
        values = pc.coalesce(stored.cast(pa.int64()), pa.array(values)).to_numpy()
    return np.delete(values, part.deleted_rows) if part.deleted else values


def _encoded(values: NDArray[np.int64], nth: int, codec: int, level: int | None) -> Piece:
    options = ParquetOptions(CODEC_NAMES[codec], level)
    source = BytesSource(options.in_memory(pa.table([values], schema=pa.schema([ARROW_SCHEMA.field(nth)]))))
    (group,) = read_footer(source).row_groups
    (chunk,) = group.chunks
    return _piece(source, chunk, len(values), nth)
