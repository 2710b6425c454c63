"""Columns of any type as unsigned integers in the same order, and the order of rows by them.

Everything is vectorized: columns become 64-bit words, and rows are sorted by the bits of all words together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icesize.parquet.files.partitioning import plain, ranked_floats
from icesize.parquet.ordering.curves import Words

Rows = npt.NDArray[np.int64]

_WHOLE_DIGITS = 18
"""Decimals of up to this number of digits are 64 bit integers."""


def as_key(values: pa.Array) -> pa.Array:
    """Return values of any ordered Iceberg type as smaller values whose natural order is Iceberg's."""
    values = plain(values)
    kind = values.type
    if types.is_floating(kind):
        return ranked_floats(values)
    if types.is_boolean(kind):
        return values.cast(pa.uint8())
    if types.is_decimal128(kind) and kind.precision <= _WHOLE_DIGITS:
        return values.view(pa.decimal128(kind.precision, 0)).cast(pa.int64())
    return values


def words_of(values: pa.Array, *, descending: bool = False, nulls_last: bool = False) -> list[Words]:
    """Return numbers, most significant first, that compare like the values of a key, with nulls below or above all."""
    words: list[Words] = []
    if values.null_count:
        is_above = values.is_null() if nulls_last else values.is_valid()
        words.append(is_above.to_numpy(zero_copy_only=False).astype(np.uint64))
    if values.null_count == len(values):
        return words or [np.zeros(0, np.uint64)]
    found = _words(values)
    return words + ([word.max() - word for word in found] if descending else found)


def _words(values: pa.Array) -> list[Words]:
    if types.is_integer(values.type):
        return [_above_least(_filled(values).to_numpy())]
    if types.is_decimal128(values.type):
        return _of_decimals(_filled(values))
    return [_places(values)]


def _filled(values: pa.Array) -> pa.Array:
    return values.fill_null(pc.min(values)) if values.null_count else values


def _above_least(numbers: npt.NDArray[np.integer]) -> Words:
    signed = numbers.astype(np.int64)
    above: Words = (signed - signed.min()).view(np.uint64)  # wraps if the range has more than 63 bits
    return above


def _of_decimals(values: pa.Array) -> list[Words]:
    data = np.frombuffer(values.buffers()[1], np.uint64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    return [_above_least(data[:, 1].view(np.int64)), data[:, 0]]


def _places(values: pa.Array) -> Words:
    """Return the position of each value among the distinct values in order."""
    encoded = values.dictionary_encode()
    places = np.empty(len(encoded.dictionary), np.uint64)
    places[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(places), dtype=np.uint64)
    found: Words = places[encoded.indices.fill_null(0).to_numpy()]
    return found


def sorted_positions(words: Sequence[Words]) -> Rows:
    """Return the positions of rows in ascending order of their words, most significant word first.

    Equal rows keep their order. This is a radix sort. A digit has as many bits as fit into 64 bits beside the position
    of a row, so numpy's sort of plain integers is enough. 2.5 million rows by a long and a timestamp take 0.4 s, and
    0.6-0.9 s with `numpy.lexsort`.
    """
    rows = len(words[0])
    place_bits = max(1, (rows - 1).bit_length())
    order: Rows | None = None
    places = np.arange(rows, dtype=np.uint64)
    for digit in _digits(words, 64 - place_bits):
        packed = digit if order is None else digit[order]
        packed <<= np.uint64(place_bits)
        packed |= places
        packed.sort()
        packed &= np.uint64((1 << place_bits) - 1)
        order = packed.view(np.int64) if order is None else order[packed.view(np.int64)]
    return places.view(np.int64) if order is None else order


def _digits(words: Sequence[Words], width: int) -> Iterator[Words]:
    """Yield the bits of all words, concatenated and cut into numbers of `width` bits, least significant first."""
    digit, filled = None, 0
    for word in reversed(words):
        left = int(word.max()).bit_length() if len(word) else 0
        shift = 0
        while left:
            taken = min(left, width - filled)
            part = word >> np.uint64(shift)
            if taken < left:
                part &= np.uint64((1 << taken) - 1)
            if digit is not None:
                part <<= np.uint64(filled)
                part |= digit
            digit, filled, left, shift = part, filled + taken, left - taken, shift + taken
            if filled == width:
                yield digit
                digit, filled = None, 0
    if digit is not None:
        yield digit


def differ(words: Sequence[Words], before: Rows, after: Rows) -> npt.NDArray[np.bool_]:
    """Return for each pair of rows whether they differ."""
    found = np.zeros(len(after), np.bool_)
    for word in words:
        found |= word[before] != word[after]
    return found


def slots(bounds: pa.Table, keys: pa.Table) -> Rows:
    """Return for each row the number of ascending `bounds` that are not above it; both are tables of keys."""
    if keys.num_columns == 1 and types.is_integer(keys.schema.types[0]) and not keys.column(0).null_count:
        one, others = (np.asarray(table.column(0)) for table in (bounds, keys))
        if not bounds.column(0).null_count:
            return np.searchsorted(one, others, side="right").astype(np.int64)
    both = pa.concat_tables([bounds, keys])
    # bounds come first, so they precede equal keys in the stable order
    order = sorted_positions([word for column in both.columns for word in words_of(whole(column))])
    is_bound = order < bounds.num_rows
    found = np.empty(both.num_rows, np.int64)
    found[order] = np.cumsum(is_bound)
    return found[bounds.num_rows :]


def whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array."""
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.array([], column.type)])
