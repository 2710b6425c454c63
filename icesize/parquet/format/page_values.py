"""The values of one page after some are removed: the bytes of the values that stay, and the bounds of any of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from icesize.parquet.format.fields import LogicalType
from icesize.parquet.format.hybrid import decode, encode
from icesize.parquet.format.pages import DictionaryPage
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.schema import BOOLEAN, BYTE_ARRAY, DOUBLE, FLOAT, INT32, INT64, Element
from icesize.parquet.format.statistics import Order, order_of
from icesize.parquet.format.thrift import Bytes

Indices: TypeAlias = NDArray[np.int64]
"""The rows or values that are meant, ascending."""

_NUMBERS = {INT32: "<i4", INT64: "<i8", FLOAT: "<f4", DOUBLE: "<f8"}
_LENGTH_BYTES = 4
_PART_BYTES = 2**17
"""Bytes of a page that are looked at together: touching fresh memory costs more than comparing."""


def runs_between(gone: Indices, count: int) -> tuple[Indices, Indices]:
    """Return the starts and the ends of the runs of `count` positions that remain without those in `gone`."""
    edges = np.concatenate(([-1], gone, [count]))
    gaps = np.flatnonzero(np.diff(edges) > 1)
    return edges[gaps] + 1, edges[gaps + 1]


class Values(Protocol):
    """All values of one page that are not null."""

    def without(self, gone: Indices) -> Sequence[Bytes]:
        """Return the values without those at `gone`, encoded as in this page, in pieces."""

    def ends(self, some: Indices) -> list[bytes]:
        """Return the least and the greatest of the values at `some`, as bounds have them.

        The list is empty if there are no values except NaN.
        """


def plain_values(raw: Bytes, count: int, element: Element) -> Values:
    """Return values that are stored one after the other (PLAIN). Raises `DamagedFile` for another number of values."""
    if element.type == BOOLEAN:
        if len(raw) != -(-count // 8):
            raise DamagedFile(f"{count} booleans have {len(raw)} bytes")
        return _Fixed(np.unpackbits(np.frombuffer(raw, np.uint8), count=count, bitorder="little").astype(bool), None)
    if element.type == BYTE_ARRAY:
        return _ByteArrays(raw, _starts(raw, count), _key_of(element))
    order = order_of(element)
    kind = np.dtype(_NUMBERS.get(element.type or 0) or f"V{element.length}")
    if len(raw) != count * kind.itemsize:
        raise DamagedFile(f"{count} values have {len(raw)} bytes")
    if kind.kind == "i" and order is not None and order(b"\xff" * kind.itemsize) > 0:
        kind = np.dtype(f"<u{kind.itemsize}")
    return _Fixed(np.frombuffer(raw, kind), _key_of(element))


def longest_entry(page: DictionaryPage, codec: int) -> int:
    """Return the bytes of the longest byte array of a dictionary; raises `CopyRefused`.

    For a dictionary that may not be opened, return its uncompressed size as an upper limit.
    """
    if not page.may_be_opened(codec):
        return page.raw_size_bytes
    starts = _starts(page.entries(codec), page.values)
    return max(0, int(np.diff(starts).max(initial=0)) - _LENGTH_BYTES)


def _key_of(element: Element) -> Order | None:
    """Return the sort key of stored bytes, or None if the bytes sort as the values do."""
    is_decimal = element.logical is not None and element.logical[0] == LogicalType.DECIMAL
    return order_of(element) if is_decimal else None


@dataclass(frozen=True, slots=True)
class _Fixed:
    """Numbers, booleans, and byte strings of one length."""

    values: NDArray[Any]
    key: Order | None

    def without(self, gone: Indices) -> Sequence[Bytes]:
        kept = np.delete(self.values, gone)
        return [(np.packbits(kept, bitorder="little") if kept.dtype.kind == "b" else kept.view(np.uint8)).data]

    def ends(self, some: Indices) -> list[bytes]:
        values = self.values[some]
        if values.dtype.kind == "V":
            return _ends(values.tolist(), self.key)
        values = values[values == values] if values.dtype.kind == "f" else values
        return [values.min().tobytes(), values.max().tobytes()] if len(values) else []


@dataclass(frozen=True, slots=True)
class _ByteArrays:
    """Byte arrays, each after its length; `starts` are the positions of these lengths, and the end."""

    raw: Bytes
    starts: NDArray[np.int64]
    key: Order | None

    def without(self, gone: Indices) -> Sequence[Bytes]:
        starts, ends = (self.starts[edges].tolist() for edges in runs_between(gone, len(self.starts) - 1))
        data = memoryview(self.raw)
        return [data[start:end] for start, end in zip(starts, ends, strict=True)]

    def ends(self, some: Indices) -> list[bytes]:
        if self.key is None and len(some):
            first = self._first_bytes(some)
            some = some[(first == first.min()) | (first == first.max())]
        places = zip(self.starts[some].tolist(), self.starts[some + 1].tolist(), strict=True)
        return _ends([bytes(self.raw[start + _LENGTH_BYTES : end]) for start, end in places], self.key)

    def _first_bytes(self, some: Indices) -> NDArray[np.uint64]:
        """Return the first eight bytes of some values as numbers: a lesser value never has a greater number."""
        starts, ends = self.starts[some] + _LENGTH_BYTES, self.starts[some + 1]
        data = b"".join((self.raw[starts[0] : ends[-1]], bytes(8)))
        unused = 8 * (8 - np.minimum(ends - starts, 8)).astype(np.uint64)
        windows = np.ndarray((len(data) - 7,), ">u8", data, 0, (1,))
        first: NDArray[np.uint64] = windows[starts - starts[0]] >> unused << unused
        return first


def _ends(values: list[bytes], key: Order | None) -> list[bytes]:
    return [min(values, key=key), max(values, key=key)] if values else []


def _starts(raw: Bytes, count: int) -> NDArray[np.int64]:
    """Return the starts of byte arrays, and the end.

    The length of a string below 256 bytes ends with three zeros, which are rare anywhere else. A fast search finds
    these zeros, and its result is right if each length leads to the next one. All other pages are read one length after
    the other, in five times the time.
    """
    data = np.frombuffer(raw, np.uint8)
    starts = np.concatenate([*_lengths(data), [len(raw)]])
    found = starts[:-1]
    if len(found) != count or starts[0] or np.any(np.diff(starts) != data[found] + np.int64(_LENGTH_BYTES)):
        return _starts_in_turn(raw, count)
    return starts


def _lengths(data: NDArray[np.uint8]) -> Iterator[NDArray[np.int64]]:
    """Yield the positions of bytes that three zeros follow."""
    for at in range(0, len(data), _PART_BYTES):
        zero = data[at : at + _PART_BYTES + _LENGTH_BYTES - 1] == 0
        yield np.flatnonzero(zero[1:-2] & zero[2:-1] & zero[3:]) + at


def _starts_in_turn(raw: Bytes, count: int) -> NDArray[np.int64]:
    starts, at, length_at = [0], 0, struct.Struct("<I").unpack_from
    with suppress(struct.error):  # a length beyond the end; the check below raises
        for _ in range(count):
            at += _LENGTH_BYTES + length_at(raw, at)[0]
            starts.append(at)
    if at != len(raw) or len(starts) != count + 1:
        raise DamagedFile(f"{count} byte arrays are not in {len(raw)} bytes")
    return np.array(starts, np.int64)


@dataclass(frozen=True, slots=True)
class _Indices:
    """Indices into a dictionary."""

    indices: NDArray[np.uint32]
    bits: int
    entries: Values

    def without(self, gone: Indices) -> Sequence[Bytes]:
        some = np.delete(self.indices, gone)
        return [bytes([self.bits]), encode(some, self.bits)]

    def ends(self, some: Indices) -> list[bytes]:
        return self.entries.ends(np.flatnonzero(np.bincount(self.indices[some])))


def coded_values(raw: Bytes, count: int, entries: Values, entry_count: int) -> Values:
    """Return values that are indices into a dictionary. Raises `DamagedFile`."""
    bits = raw[0] if raw else 0
    indices = decode(raw[1:], bits, count)
    if count and int(indices.max()) >= entry_count:
        raise DamagedFile("an index is larger than its dictionary")
    return _Indices(indices, bits, entries)
