"""Files that arrive in one partition, merged by any schedule: the write amplification and the most small files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

Choose = Callable[[Sequence[float]], int]
"""Small sizes in ascending order, the new one included -> how many of the smallest to merge."""
PutOff = Callable[[float, float], bool]
"""(newest size, bytes of a merge) -> whether the merge waits for a later arrival."""


class Outcome(NamedTuple):
    """What became of sizes that arrived: W, the most small files after any arrival, the sizes of finished files."""

    write_amplification: float
    most_small_files: int
    finished: list[float]


def simulate(choose: Choose, sizes: Iterable[float], limit: float, put_off: PutOff | None = None) -> Outcome:
    """One partition: files of these sizes arrive one after the other, those below `limit` are small.

    Arrivals after which a merge is put off do not count for `most_small_files`.
    """
    small: list[float] = []
    finished: list[float] = []
    arrived, written, most = 0.0, 0.0, 0
    for size in sizes:
        small = sorted([*small, size])
        arrived += size
        written += size
        count = choose(small)
        merged = sum(small[:count])
        waits = put_off is not None and put_off(size, merged)
        if count >= 2 and not waits:
            written += merged
            small = sorted([*small[count:], merged])
        finished += [size for size in small if size >= limit]
        small = [size for size in small if size < limit]
        if not waits:
            most = max(most, len(small))
    return Outcome(written / arrived, most, finished)
