"""Bytes of files from their rows: size = files x overhead + rows x bytes per row, learned from what batches wrote.

A file of ten rows is mostly footer, so one number of bytes per row describes it badly: rows of a late hour weighed
seven times as much as those of the newest one (measured, 7 columns). Both numbers come from least squares over the
files of all partitions; each partition then has a factor of its own for rows that are longer or compress better.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple

from icesize.planning.routing.traffic import MOST_KEYS, Key, PartitionWrites, heaviest

HALF_LIFE_BATCHES = 2.0
"""After two batches an observation counts half: how rows look changes more slowly than how many there are."""
LEAST_OVERHEAD_BYTES = 100.0
"""A Parquet file of one column without rows has 120."""
MOST_OVERHEAD_BYTES = 2.0 * 2**20
"""More are not footers, even of thousands of columns."""
DEFAULT_OVERHEAD_BYTES = 4_096.0
"""Overhead while nothing is known: about a dozen columns (2-4 KiB measured for 7)."""
CLAMP_RATIO = 32.0
"""Learned bytes per row stay within this factor of the first ones: beyond it, a manifest is wrong."""
PRIOR_ROW_BYTES = 1024.0
"""The prior bytes per row count like this many bytes of rows; the prior overhead like one empty file."""
SHRINK_BYTES = 8 * 1024.0
"""The bytes of a partition at which its own factor counts half."""

_DECAY: float = 0.5 ** (1 / HALF_LIFE_BATCHES)
_FORGET_BYTES = SHRINK_BYTES / 256


@dataclass(frozen=True, slots=True)
class RowSize:
    """The bytes of a file without rows, and bytes per row (> 0)."""

    overhead_bytes: float
    bytes_per_row: float

    def bytes_of(self, rows: float, files: int = 1) -> float:
        """Size of `files` files that have `rows` rows together."""
        return files * self.overhead_bytes + rows * self.bytes_per_row


def fitted(partitions: Iterable[PartitionWrites]) -> RowSize | None:
    """Return the size that fits files best if nothing else is known; None if no file has rows."""
    written = [seen for seen in partitions if seen.is_informative]
    return _Sums().after(written).fit(_guess(written)) if written else None


DEFAULT_ROW_SIZE = RowSize(0.0, 100.0)
"""The size of rows while nothing is known; only ratios between partitions mean something then."""


class RowSizes(Generic[Key]):
    """Observes batch after batch; pure state, mappings in any order.

    `prior` is believed until files say otherwise, bounds their bytes per row (a factor of `CLAMP_RATIO`
    either way), and decides what they cannot: files of one size do not separate overhead from rows. The `MOST_KEYS`
    heaviest partitions have a factor of their own, the others are like the table.
    """

    def __init__(self, prior: RowSize | None = None) -> None:
        self._prior = prior
        self._sums = _Sums()
        self._partitions: dict[Key, tuple[float, float]] = {}  # decayed sums: bytes written, and expected of the rows
        self.table: RowSize = prior or DEFAULT_ROW_SIZE
        """The size of rows in all partitions."""

    @property
    def is_known(self) -> bool:
        """True if there was a prior or a file."""
        return self._prior is not None

    def observe(self, batch: Mapping[Key, PartitionWrites]) -> None:
        """Learn from the files of a batch; partitions without rows, bytes or files teach nothing."""
        written = {key: seen for key, seen in batch.items() if seen.is_informative}
        if not written:
            return
        if self._prior is None:
            self._prior = _guess(written.values())
        self._sums = self._sums.after(written.values())
        self.table = self._sums.fit(self._prior)
        sums = {key: (actual * _DECAY, expected * _DECAY) for key, (actual, expected) in self._partitions.items()}
        for key, seen in written.items():
            actual, expected = sums.get(key, (0.0, 0.0))
            sums[key] = actual + seen.size_bytes, expected + self.table.bytes_of(seen.rows, seen.files)
        alive = {key: expected for key, (_, expected) in sums.items() if expected >= _FORGET_BYTES}
        self._partitions = {key: sums[key] for key in heaviest(alive, MOST_KEYS)}

    def size_of(self, key: Key, rows: float, files: int = 1) -> float:
        """Bytes of `rows` rows of a partition in `files` files."""
        actual, expected = self._partitions.get(key, (0.0, 0.0))
        ratio = (actual + SHRINK_BYTES) / (expected + SHRINK_BYTES)
        return self.table.bytes_of(rows, files) * min(max(ratio, 1 / CLAMP_RATIO), CLAMP_RATIO)


def _guess(written: Collection[PartitionWrites]) -> RowSize:
    """A prior from the first files: the default overhead, at most half of the smallest file, and the rest by row."""
    overhead = min(DEFAULT_OVERHEAD_BYTES, *(seen.size_bytes / seen.files / 2 for seen in written))
    size_sum = sum(seen.size_bytes for seen in written)
    file_sum = sum(seen.files for seen in written)
    return RowSize(overhead, (size_sum - overhead * file_sum) / sum(seen.rows for seen in written))


class _Sums(NamedTuple):
    """Decayed sums of weighted least squares.

    The weight of a partition is 1 / its bytes, so that its say is (relative error)^2 x bytes: with equal weights the
    largest file alone decides, with relative errors alone hundreds of tiny ones do, which puts the large one 20 % off
    where size is not quite linear (measured; 3 % so), and it is the one that makes writers wait.
    """

    files2: float = 0.0
    files_rows: float = 0.0
    rows2: float = 0.0
    files: float = 0.0
    rows: float = 0.0

    def after(self, written: Collection[PartitionWrites]) -> _Sums:
        """With the partitions of one batch more."""
        batch = (
            math.fsum(s.files * s.files / s.size_bytes for s in written),
            math.fsum(s.files * s.rows / s.size_bytes for s in written),
            math.fsum(s.rows * s.rows / s.size_bytes for s in written),
            sum(s.files for s in written),
            sum(s.rows for s in written),
        )
        return _Sums(*(before * _DECAY + now for before, now in zip(self, batch, strict=True)))

    def fit(self, prior: RowSize) -> RowSize:
        """The least weighted error, where the prior counts like one empty file and `PRIOR_ROW_BYTES` of rows."""
        empty = 1 / max(prior.overhead_bytes, LEAST_OVERHEAD_BYTES)
        files2, files = self.files2 + empty, self.files + 1
        prior_rows = PRIOR_ROW_BYTES / prior.bytes_per_row
        rows2, rows = self.rows2 + prior_rows / prior.bytes_per_row, self.rows + prior_rows
        # never less than `empty`, except for rounding
        apart = max(files2 - self.files_rows * self.files_rows / rows2, empty)
        overhead = (files - rows * self.files_rows / rows2) / apart
        overhead = min(max(overhead, LEAST_OVERHEAD_BYTES), MOST_OVERHEAD_BYTES)
        # the best for this overhead, also where that was clamped
        per_row = (rows - self.files_rows * overhead) / rows2
        least, most = prior.bytes_per_row / CLAMP_RATIO, prior.bytes_per_row * CLAMP_RATIO
        return RowSize(overhead, min(max(per_row, least), most))
