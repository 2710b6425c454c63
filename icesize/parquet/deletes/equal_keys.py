"""Rows -> the keys that they equal, with Iceberg's rules of equality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

Numbers: TypeAlias = NDArray[np.int64]


def comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values that are equal as 64 bits, or otherwise as bytes, if Iceberg considers them equal.

    NaN equals NaN, and 0.0 differs from -0.0, as in Java's comparators.
    """
    kind = values.type
    if isinstance(kind, pa.BaseExtensionType):
        return pa.chunked_array([chunk.storage for chunk in values.chunks], kind.storage_type)
    if types.is_floating(kind):
        values = pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), kind), values)
    if types.is_floating(kind) or types.is_temporal(kind):
        bits = pa.int64() if kind.bit_width == 64 else pa.int32()
        values = pa.chunked_array([chunk.view(bits) for chunk in values.chunks], bits)
    return values.cast(pa.int64()) if types.is_integer(values.type) or types.is_boolean(kind) else values


class KeyLookup:
    """Finds the first key that a row equals; keys and rows have `comparable` columns.

    NULL equals NULL. Columns are looked up one by one. A row enters the next column's lookup with the number of the
    first key that equals it so far.
    """

    def __init__(self, keys: Sequence[pa.ChunkedArray]) -> None:
        self._size = len(keys[0])
        self._columns = [_places(column.combine_chunks()) for column in keys]
        self._pairs: list[_Sorted] = []
        self._last, found_in = self._columns[0], keys[0]
        for column, places in zip(keys[1:], self._columns[1:], strict=True):
            found_in = pa.array(self._last.find(found_in) * self._size + places.find(column))
            self._last = _Sorted.of(found_in)
            self._pairs.append(self._last)

    def firsts(self) -> Numbers:
        """Return the keys that equal no earlier key, in order."""
        return self._last.firsts()

    @property
    def rows_at_once(self) -> int:
        """The least number of rows to look up together; 0 without hashed columns.

        pyarrow builds the hash table of a column again for each lookup.
        """
        return 0 if all(isinstance(places, _Sorted) for places in self._columns) else self._size

    def find(self, rows: Sequence[pa.ChunkedArray]) -> tuple[Numbers, Numbers]:
        """Return the rows that equal a key, in order, and the first such key of each row."""
        found = self._columns[0].find(rows[0])
        hits = np.flatnonzero(found >= 0)
        found = found[hits]
        for column, places, pairs in zip(rows[1:], self._columns[1:], self._pairs, strict=True):
            step = places.find(column.take(pa.array(hits)))
            equal = np.flatnonzero(step >= 0)  # -1 would be read as the last pair of the previous key
            hits = hits[equal]
            found = pairs.find(pa.array(found[equal] * self._size + step[equal]))
            equal = np.flatnonzero(found >= 0)
            hits, found = hits[equal], found[equal]
        return hits, found


@dataclass(frozen=True, eq=False)
class _Sorted:
    """Distinct values of 64 bits in order, and the first position of each.

    `null_place` is the first position of NULL, -1 without NULLs. A lookup of sorted rows takes 30-65 ns per row, for
    any number of values. A lookup in pyarrow's hash table takes 10 ns if the table fits the processor's cache and 450
    ns otherwise. It also needs 60 bytes per value.
    """

    values: Numbers
    places: Numbers
    null_place: int

    @classmethod
    def of(cls, among: pa.Array) -> _Sorted:
        """Return a lookup of these values."""
        numbers, nulls = _unpacked(among)
        order = np.argsort(numbers)
        null_place = -1
        if nulls is not None:
            null_place = int(np.argmax(nulls))
            order = order[~nulls[order]]
        ordered = numbers[order]
        starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1]))[: len(ordered)])
        places = np.minimum.reduceat(order, starts) if len(starts) else order
        return cls(ordered[starts], places, null_place)

    def firsts(self) -> Numbers:
        """Return all positions, in order."""
        return np.sort(self.places if self.null_place < 0 else np.append(self.places, self.null_place))

    def find(self, values: pa.Array | pa.ChunkedArray) -> Numbers:
        """Return the first position of each value, -1 for a value that is not there."""
        numbers, nulls = _unpacked(values)
        found = np.full(len(numbers), -1, np.int64)
        if len(self.values):
            order = np.argsort(numbers)
            ordered = numbers[order]
            at = np.minimum(np.searchsorted(self.values, ordered), len(self.values) - 1)
            equal = self.values[at] == ordered
            found[order[equal]] = self.places[at[equal]]
        if nulls is not None:
            found[nulls] = self.null_place
        return found


def _unpacked(values: pa.Array | pa.ChunkedArray) -> tuple[Numbers, NDArray[np.bool_] | None]:
    """Return values, with any number in place of each NULL, and a mask of the NULLs if there are any."""
    if not values.null_count:
        return values.to_numpy(), None
    nulls = values.is_null()
    return pc.fill_null(values, 0).to_numpy(), np.asarray(nulls)


@dataclass(frozen=True, eq=False)
class _Hashed:
    """Values of any type; pyarrow hashes them."""

    among: pa.Array

    def firsts(self) -> Numbers:
        """Return the positions whose value differs from all values before them, in order."""
        return np.flatnonzero(self.find(self.among) == np.arange(len(self.among)))

    def find(self, values: pa.Array | pa.ChunkedArray) -> Numbers:
        """Return the first position of each value, -1 for a value that is not there."""
        places: Numbers = pc.fill_null(pc.index_in(values, value_set=self.among), -1).to_numpy().astype(np.int64)
        return places


_Places = _Sorted | _Hashed


def _places(among: pa.Array) -> _Places:
    return _Sorted.of(among) if types.is_int64(among.type) else _Hashed(among)
