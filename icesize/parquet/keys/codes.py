"""Codes of keys: numbers of 64 or 128 bits. Equal keys have equal codes, and different keys practically never do.

| key | code |
|---|---|
| one column of whole numbers, dates, times or booleans | its value, 64 bits: codes are ordered as keys are |
| columns that together have at most 16 bytes | their bytes, mixed so that the upper half is spread evenly |
| any other | the first 128 bits of BLAKE2b, under a secret |

Codes of the first two kinds are exact, because the mix can be undone. Different keys of the third kind could have the
same code: among 100 million of them, the probability that any two do is 1.5e-23 (n^2 / 2^129). Because of the secret, a
writer cannot construct such keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

from icesize.errors import UnsupportedTable
from icesize.parquet.deletes.equal_keys import comparable

Words = NDArray[np.uint64]
Places = NDArray[np.intp]

_SIGN = np.uint64(1 << 63)
_WORD_BYTES = 8
_EXACT_WORDS = 2
_FILTER_BITS = 20
"""Bits of the filter before a search: 1 MiB, so that it stays in the processor's cache."""
_FILTER_SHIFT = np.uint64(64 - _FILTER_BITS)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio, for multiplicative hashing (Knuth, The Art of Computer Programming 3, 6.4)."""


def without_null(columns: Iterable[pa.ChunkedArray]) -> NDArray[np.bool_]:
    """Return a mask of the rows that have a value in each of these columns."""
    mask: NDArray[np.bool_] = np.logical_and.reduce([np.asarray(column.is_valid()) for column in columns])
    return mask


@dataclass(frozen=True, eq=False)
class Codes:
    """The codes of rows: `high` 64 bits, and `low` 64 bits of codes of 128 bits (None for codes of 64 bits)."""

    high: Words
    low: Words | None = None

    def __len__(self) -> int:
        return len(self.high)

    def take(self, places: NDArray[np.generic] | slice) -> Codes:
        """Return the codes at these places, or of a mask or slice."""
        return Codes(self.high[places], None if self.low is None else self.low[places])

    def order(self) -> Places:
        """Return the places of the codes in ascending order; equal codes stay in their order."""
        if self.low is None:
            return np.argsort(self.high, kind="stable")
        return np.lexsort((self.low, self.high))

    def repeats(self) -> NDArray[np.bool_]:
        """Return which codes equal the one before; of ascending codes."""
        same: NDArray[np.bool_] = np.zeros(len(self), np.bool_)
        same[1:] = self.high[1:] == self.high[:-1]
        if self.low is not None:
            same[1:] &= self.low[1:] == self.low[:-1]
        return same

    def lasts(self) -> NDArray[np.bool_]:
        """Return which codes differ from the next one; of ascending codes."""
        return np.append(~self.repeats()[1:], True)[: len(self)]

    def matches(self, rows: Codes) -> tuple[Places, Places]:
        """Return the places in `rows` whose code is one of these, and the place of that code here.

        These codes are ascending and different from each other; `rows` may be in any order.
        """
        if not len(self) or not len(rows):
            return np.empty(0, np.intp), np.empty(0, np.intp)
        # most rows are ruled out by 4 ns each, where a search takes 100 ns
        likely = np.flatnonzero(self._filter[(rows.high * _GOLDEN) >> _FILTER_SHIFT])
        found = self.places_of(rows.take(likely))
        hit = found >= 0
        return likely[hit], found[hit]

    @cached_property
    def _filter(self) -> NDArray[np.bool_]:
        known = np.zeros(1 << _FILTER_BITS, np.bool_)
        known[(self.high * _GOLDEN) >> _FILTER_SHIFT] = True
        return known

    def places_of(self, rows: Codes) -> Places:
        """Return the place here of each code of `rows`, -1 for a code that is not here. These codes are ascending."""
        at = np.searchsorted(self.high, rows.high)
        found = np.full(len(rows), -1, np.intp)
        open_rows = np.arange(len(rows))
        while open_rows.size:
            open_rows = open_rows[at[open_rows] < len(self)]
            here = at[open_rows]
            same_high = self.high[here] == rows.high[open_rows]
            open_rows, here = open_rows[same_high], here[same_high]
            if self.low is None or rows.low is None:
                found[open_rows] = here
                break
            equal = self.low[here] == rows.low[open_rows]
            found[open_rows[equal]] = here[equal]
            # two codes with one upper half lie one behind the other
            open_rows = open_rows[~equal]
            at[open_rows] += 1
        return found


def codes_of(columns: Sequence[pa.ChunkedArray], secret: bytes) -> Codes:
    """Return the codes of rows with these key columns, which have no NULL and the types of the table.

    Raises UnsupportedTable for a column whose values have no code.
    """
    plain = [comparable(column) for column in columns]
    words = [_words(column) for column in plain]
    if all(each is not None for each in words):
        flat = [word for each in words if each is not None for word in each]
        if len(flat) == 1:
            return Codes(flat[0] ^ _SIGN)
        if len(flat) <= _EXACT_WORDS:
            return _mixed(*flat)
    return _hashed(plain, secret)


def _words(column: pa.ChunkedArray) -> list[Words] | None:
    """Return the values as words of 64 bits; None if they are longer than two, or of different lengths."""
    kind = column.type
    if types.is_int64(kind):
        return [column.to_numpy().view(np.uint64)]
    wide = types.is_decimal128(kind) or (types.is_fixed_size_binary(kind) and kind.byte_width == 2 * _WORD_BYTES)
    if not wide:
        return None
    parts = [
        np.frombuffer(chunk.buffers()[1], np.uint64)[2 * chunk.offset : 2 * (chunk.offset + len(chunk))]
        for chunk in column.chunks
        if len(chunk)
    ]
    both = np.concatenate([np.empty(0, np.uint64), *parts])
    return [both[0::2], both[1::2]]


def _mixed(first: Words, second: Words) -> Codes:
    """Return codes from which both words can be computed (a Feistel network)."""
    high, low = first.copy(), second.copy()
    high ^= _scrambled(low)
    low ^= _scrambled(high)
    high ^= _scrambled(low)
    return Codes(high, low)


def _scrambled(words: Words) -> Words:
    """Return words whose bits all depend on all bits of the given ones (the finalizer of MurmurHash3)."""
    words = words ^ (words >> np.uint64(33))
    words = words * np.uint64(0xFF51AFD7ED558CCD)
    words = words ^ (words >> np.uint64(33))
    words = words * np.uint64(0xC4CEB9FE1A85EC53)
    scrambled: Words = words ^ (words >> np.uint64(33))
    return scrambled


def _hashed(columns: Sequence[pa.ChunkedArray], secret: bytes) -> Codes:
    values = [_texts(column) for column in columns]
    if len(values) == 1:
        keys = iter(values[0])
    else:
        keys = (
            b"".join([len(part).to_bytes(4, "little") + part for part in parts]) for parts in zip(*values, strict=True)
        )
    digests = b"".join([blake2b(key, digest_size=16, key=secret).digest() for key in keys])
    both = np.frombuffer(digests, np.uint64)
    return Codes(both[0::2].copy(), both[1::2].copy())


def _texts(column: pa.ChunkedArray) -> list[bytes]:
    kind = column.type
    if types.is_dictionary(kind):
        return _texts(column.cast(kind.value_type))
    if types.is_int64(kind) or types.is_decimal128(kind):
        words = _words(column) or []
        whole = np.stack(words, axis=1)
        width = whole.shape[1] * _WORD_BYTES
        data = whole.tobytes()
        return [data[start : start + width] for start in range(0, len(data), width)]
    texts_or_bytes = (types.is_string, types.is_large_string, types.is_binary, types.is_fixed_size_binary)
    if any(is_one(kind) for is_one in texts_or_bytes):
        column = column.cast(pa.large_binary())
    if not types.is_large_binary(column.type):
        raise UnsupportedTable(f"Cannot use a column of type '{kind}' as a key: its values cannot be compared as bytes")
    texts: list[bytes] = column.to_pylist()
    return texts
