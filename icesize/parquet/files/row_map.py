"""The places of a merge's rows, by which rows that others delete in the input files are deleted in the new ones."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pyroaring import BitMap

from icesize.planning.files import FileFact
from icesize.storage.table_storage import local_folder

Span = tuple[str, int, int]
"""Consecutive rows of an input file: its path, the position of the first row, and that after the last one."""
RowPlaces = NDArray[np.uint32]
IN_MEMORY_BYTES = 16 * 2**20
"""Larger orders of rows lie on the disk."""


@dataclass(frozen=True, eq=False, slots=True)
class RowMap:
    """The way from the rows of input files to those of the outputs, while the commit of a merge is open.

    Attributes:
        spans: The rows that were read, in the order of reading, with those that were left out.
        left_out: Positions of the rows that are in no output, by the path of the input file.
        by_equality: The part of them that no position delete or vector names, only equality deletes.
        order: For each row that was read and not left out, its place among the rows of all outputs. None if the outputs
            have them in the order of reading.
    """

    spans: Sequence[Span]
    left_out: Mapping[str, BitMap] = field(default_factory=dict)
    by_equality: Mapping[str, BitMap] = field(default_factory=dict)
    order: RowPlaces | None = None

    def follow(self, deleted: Mapping[str, BitMap], output_rows: Sequence[int]) -> list[BitMap]:
        """Return the rows of each output that come from deleted rows of the inputs.

        Args:
            deleted: Positions in input files, by path; rows that were left out are ignored.
            output_rows: The number of rows of each output.
        """
        found, read = [np.empty(0, np.int64)], 0
        for path, first, end in self.spans:
            left_out = self.left_out.get(path) or BitMap()
            if positions := deleted.get(path):
                here = _array((positions & BitMap(range(first, end))) - left_out)
                before = np.searchsorted(_array(left_out & BitMap(range(first, end))), here)
                found.append(read + (here - first) - before)
            read += end - first - left_out.range_cardinality(first, end)
        places = np.concatenate(found)
        if self.order is not None:
            places = self.order[places].astype(np.int64)
        places.sort()
        ends = np.cumsum(output_rows, dtype=np.int64)
        cuts = np.searchsorted(places, ends)
        starts = zip(ends - output_rows, [0, *cuts][:-1], cuts, strict=True)
        return [BitMap((places[low:high] - start).astype(np.uint32)) for start, low, high in starts]


def _array(positions: BitMap) -> NDArray[np.int64]:
    return np.frombuffer(positions.to_array(), np.uint32).astype(np.int64)


class Ordered:
    """The `RowMap.order` of rows that are written in another order than they were read, run by run.

    A large one lies in a file on the local disk that has no name. Without room there, or with too many rows for 32
    bits, the merge has no map.
    """

    def __init__(self, rows: int) -> None:
        self._written = 0
        self._places: RowPlaces | None = None
        if rows < 2**32:
            with contextlib.suppress(OSError):
                self._places = on_disk(rows) if 4 * rows > IN_MEMORY_BYTES else np.empty(rows, np.uint32)

    def write(self, numbers: NDArray[np.integer[Any]]) -> None:
        """Note the next rows that are written, by their numbers in the order of reading."""
        if self._places is not None:
            self._places[numbers] = np.arange(self._written, self._written + len(numbers), dtype=np.uint32)
        self._written += len(numbers)

    def write_next(self, order: NDArray[np.integer[Any]]) -> None:
        """Note that the next rows in the order of reading are the next ones that are written, in this order."""
        self.write(order + self._written)

    def row_map(self, inputs: Sequence[FileFact]) -> RowMap | None:
        """Return the map of rows that were read in the order of these files."""
        return None if self._places is None else replace(map_in_order(inputs), order=self._places)


def map_in_order(inputs: Sequence[FileFact]) -> RowMap:
    """Return the map of rows that were written in the order of these files."""
    return RowMap([(file.path, 0, file.rows) for file in inputs])


def on_disk(rows: int) -> RowPlaces:
    with tempfile.TemporaryFile(prefix="icesize-", dir=local_folder()) as file:
        np.zeros(rows, np.uint32).tofile(file)  # takes the room now: later, a full disk would end the process
        file.flush()
        return np.memmap(file, np.uint32, "r+")
