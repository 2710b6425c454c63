"""Space-filling curves: ranks in several columns -> one number whose order keeps neighbors together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
CurveRanks = npt.NDArray[np.unsignedinteger]


def zorder(ranks: Sequence[CurveRanks], bits: int) -> Words:
    """Interleave the bits of the ranks, most significant bits first, and the first column before the others.

    `ranks` are one array for each of 1-4 columns, all of one unsigned type and below 2 ** `bits`. `bits` times columns
    must be at most 64.
    """
    found = np.zeros(len(ranks[0]), np.uint64)
    for number, rank in enumerate(ranks):
        found |= _spread(rank, bits, len(ranks)) << np.uint64(len(ranks) - 1 - number)
    return found


def hilbert(ranks: Sequence[CurveRanks], bits: int) -> Words:
    """Return the position on Hilbert's curve through the grid; neighbors on it differ by one in one column.

    `ranks` and `bits` are those of `zorder`. Algorithm: John Skilling, "Programming the Hilbert curve" (2004). The bits
    of the position, transposed to one number per column, follow from the ranks by exchanges and inversions.
    """
    axes = [rank.copy() for rank in ranks]
    number = axes[0].dtype.type
    one = number(1)
    for bit in range(bits - 1, 0, -1):
        below = number((1 << bit) - 1)
        for axis in axes:
            inverted = below * ((axis >> number(bit)) & one)
            exchanged = (axes[0] ^ axis) & (below ^ inverted)
            axes[0] ^= inverted | exchanged
            if axis is not axes[0]:
                axis ^= exchanged
    for before, axis in pairwise(axes):
        axis ^= before
    odd = np.zeros_like(axes[0])
    for bit in range(bits - 1, 0, -1):
        odd ^= number((1 << bit) - 1) * ((axes[-1] >> number(bit)) & one)
    return zorder([axis ^ odd for axis in axes], bits)


def _spread(rank: CurveRanks, bits: int, distance: int) -> Words:
    """Return the bits of a rank, `distance` positions apart, looked up eight at a time."""
    table = np.array([_apart(value, distance) for value in range(256)], np.uint64)
    found = np.zeros(len(rank), np.uint64)
    for low in range(0, bits, 8):
        part = (rank >> rank.dtype.type(low)) & rank.dtype.type(255)
        found |= table[part] << np.uint64(low * distance)
    return found


def _apart(value: int, distance: int) -> int:
    return sum(((value >> bit) & 1) << (bit * distance) for bit in range(8))
