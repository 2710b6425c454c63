"""Levels and indices into a dictionary as pages hold them: runs of one value, and bit-packed values in groups of eight.

Specification: parquet-format, Encodings.md, "Run Length Encoding / Bit-Packing Hybrid". This module is written by
hand because no library exposes the levels and indices of a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.thrift import Bytes, read_varint

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_BITS_READ = 25
"""An index and the bits before it in its first byte are read as an integer of 32 bits."""


class _Run(NamedTuple):
    """One run.

    `start` and `end` are the run's offsets, and `body` is the offset of its values. `groups` is the number of groups of
    eight values, 0 for a run of one value. `values` is the number of values.
    """

    start: int
    body: int
    end: int
    groups: int
    values: int


def decode(data: Bytes, bits: int, count: int) -> NDArray[np.uint32]:
    """Return the first `count` values. Raises `DamagedFile` for fewer values, and for runs that are cut off."""
    runs, left = list[_Run](), count
    for run in _runs(data, bits):
        if left:
            groups, some = min(run.groups, -(-left // 8)), min(run.values, left)
            runs.append(run._replace(end=run.body + groups * bits if groups else run.end, groups=groups, values=some))
            left -= some
    if left:
        raise DamagedFile(f"{left} values are missing")
    if all(run.groups for run in runs):
        return _unpacked(data, runs, bits)[:count]
    counts = np.array([run.values for run in runs], np.int64)
    single = [0 if run.groups else int.from_bytes(data[run.body : run.end], "little") for run in runs]
    found: NDArray[np.uint32] = np.repeat(np.array(single, np.uint32), counts)
    packed = np.repeat(np.array([run.groups > 0 for run in runs], bool), counts)
    found[packed] = _unpacked(data, runs, bits)[: np.count_nonzero(packed)]
    return found


def histogram(data: bytes, highest: int, values: int) -> NDArray[np.int64]:
    """Count each level from 0 to `highest` among the first `values` levels.

    Raises `DamagedFile` for fewer levels, for higher levels, and for runs that are cut off.
    """
    bits, packed = highest.bit_length(), list[bytes]()
    single = [0] * (1 << bits)
    seen = at = padding = 0
    size = len(data)
    while seen < values:
        if at < size and data[at] < 128:  # nearly all; there may be a run for every ten levels
            header, body = data[at], at + 1
        else:
            header, body = read_varint(data, at)
        count = header >> 1
        if header & 1:
            at, count = body + count * bits, count * 8
            packed.append(data[body:at])
            padding = max(0, seen + count - values)  # only the last run can have padding
        else:
            at = body + 1
            if at <= size and data[body] <= highest:
                single[data[body]] += min(count, values - seen)
            else:
                raise DamagedFile(f"a run is cut off, or has a level above {highest}")
        if at > size or not count:
            raise DamagedFile("a run is cut off or empty")
        seen += count
    joined = np.frombuffer(b"".join(packed), np.uint8)
    unpacked = unpack(joined, bits, len(joined) // bits)
    found: NDArray[np.int64] = np.array(single, np.int64)
    found += np.bincount(unpacked[: len(unpacked) - padding], minlength=len(single))
    if found[highest + 1 :].any():
        raise DamagedFile(f"a level is higher than {highest}")
    return found[: highest + 1]


def _unpacked(data: Bytes, runs: Sequence[_Run], bits: int) -> NDArray[np.uint32]:
    """Return the values of all bit-packed runs."""
    packed = np.frombuffer(b"".join(data[run.body : run.end] for run in runs if run.groups), np.uint8)
    return unpack(packed, bits, sum(run.groups for run in runs))


def _runs(data: Bytes, bits: int) -> list[_Run]:
    if bits > MOST_BITS_READ:
        raise DamagedFile(f"indices of {bits} bits")
    runs, at, size = [], 0, (bits + 7) // 8
    while at < len(data):
        header, body = read_varint(data, at)
        groups = header >> 1 if header & 1 else 0
        end = body + (groups * bits if header & 1 else size)
        if end > len(data) or header == 1:
            raise DamagedFile("a run is cut off or empty")
        runs.append(_Run(at, body, end, groups, groups * 8 or header >> 1))
        at = end
    return runs


def unpack(packed: NDArray[np.uint8], bits: int, groups: int) -> NDArray[np.uint32]:
    """Return the values of groups of eight, each value of at most `MOST_BITS_READ` bits."""
    values = np.zeros((groups, 8), np.uint32)
    if not bits or not groups:
        return values.reshape(-1)
    padded = np.zeros(len(packed) + 4, np.uint8)
    padded[: len(packed)] = packed
    for nth in range(8):
        byte, shift = divmod(nth * bits, 8)
        window = np.ndarray((groups,), "<u4", padded.data, byte, (bits,))
        np.bitwise_and(window >> np.uint32(shift), np.uint32((1 << bits) - 1), out=values[:, nth])
    return values.reshape(-1)
