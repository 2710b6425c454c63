"""Advice on the interval of batches and the number of small files, from recent arrivals: sentences and numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from icesize.planning.merging.chosen_files import choose_prefix
from icesize.policy import SizePolicy
from icesize.results import Advice
from icesize.units import format_bytes, format_seconds

FEWEST_BATCHES = 20
"""Batches that say how rows come; of fewer nothing is concluded."""
MANY_PER_FILE = 128
"""Batches to fill a file from which on fewer and larger ones are advised: W is above 4 then at 6 small files."""
BUSY_SHARE = 0.8
"""Share of the time between batches that one takes from which on a stream is busy all the time."""
LESS_REWRITING = 2.0
"""Bytes per byte by which write amplification must be lower for more small files to be advised."""
LITTLE_REWRITING = 0.5
"""Bytes per byte by which write amplification may be higher for half as many small files to be advised."""
TRIGGERS_S = (15, 30, 60, 120, 300, 600)
"""Trigger intervals that are advised, in seconds; who may wait longer needs no stream."""
_MOST_SIMULATED = 512
"""Batches per file that are simulated, in 50 ms; more are reported as at least as bad."""


@dataclass(frozen=True)
class Arrivals:
    """The recent arrivals of rows in a table.

    `partition_bytes` is the mean of bytes that a batch adds to a partition to which it writes. `seconds_between` is the
    median time between two batches. `seconds_per_batch` is the median time that a batch took before its commit; None if
    it is unknown. `is_ours` is True if icesize wrote the batches and merged.
    """

    batches: int
    partition_bytes: float
    seconds_between: float
    seconds_per_batch: float | None = None
    is_ours: bool = False


def advise_merging(arrivals: Arrivals | None, policy: SizePolicy) -> tuple[Advice, ...]:
    """Return advice that makes a stream cheaper or its partitions tidier; none if the numbers do not support it."""
    if arrivals is None or arrivals.batches < FEWEST_BATCHES or not policy.merging or arrivals.partition_bytes <= 0:
        return ()
    return tuple(map(Advice, (*_trigger(arrivals, policy), *_slots(arrivals, policy))))


def amplification(batches_per_file: float, slots: int) -> float:
    """Return the write amplification of equal batches: `batches_per_file` fill a file, and `slots` small files stay.

    For very many batches it is that of 512, which is lower.
    """
    return _simulated(max(1, round(min(_MOST_SIMULATED, batches_per_file))), slots)


@lru_cache(maxsize=256)
def _simulated(batches: int, slots: int) -> float:
    arrivals = batches * max(1, 64 // batches)
    small, rewritten = list[float](), 0.0
    for _ in range(arrivals):
        small = sorted([*small, 1.0])
        count = choose_prefix(small, batches, slots)
        merged = sum(small[:count])
        rewritten += merged
        small = [size for size in (*small[count:], merged) if 0 < size < batches]
    return 1 + rewritten / arrivals


def _trigger(arrivals: Arrivals, policy: SizePolicy) -> Iterator[str]:
    between = arrivals.seconds_between
    if between <= 0:
        return
    per_file = policy.small_file_limit_bytes / arrivals.partition_bytes
    is_busy = (arrivals.seconds_per_batch or 0) >= BUSY_SHARE * between
    if not is_busy and per_file <= MANY_PER_FILE:
        return
    longer = [seconds for seconds in TRIGGERS_S if seconds >= 2 * between]
    if not longer:
        return
    # the shortest that helps enough, else the longest
    chosen = next((s for s in longer if per_file * between / s <= MANY_PER_FILE / 2), longer[-1])
    if is_busy and per_file <= MANY_PER_FILE:
        chosen = longer[0]
    fewer, slots = per_file * between / chosen, policy.max_small_files
    takes = f" takes {format_seconds(arrivals.seconds_per_batch or 0)}" if is_busy else ""
    arrives = f"a batch every {format_seconds(between)}{takes}"
    if amplification(fewer, slots) < amplification(per_file, slots):
        adds = f"{format_bytes(arrivals.partition_bytes)} per partition: {per_file:,.0f} batches fill a file"
        costs = f"write amplification is {_amplified(per_file, slots)}. Use trigger(processingTime='{chosen} seconds')"
        cheaper = f"write amplification {_amplified(fewer, slots)}"
        yield f"{arrives}{' and' if is_busy else ''} adds {adds}, and {costs}: {cheaper}"
    elif is_busy:
        yield f"{arrives}: use trigger(processingTime='{longer[0]} seconds')"


def _amplified(per_file: float, slots: int) -> str:
    least = "above " if per_file > _MOST_SIMULATED else ""
    return f"{least}{amplification(per_file, slots):.1f}"


def _slots(arrivals: Arrivals, policy: SizePolicy) -> Iterator[str]:
    """Return advice about `max-small-files` for a table that icesize merges."""
    if not arrivals.is_ours:
        return
    per_file, slots = policy.small_file_limit_bytes / arrivals.partition_bytes, policy.max_small_files
    default = int(SizePolicy().max_small_files)
    now, half = amplification(per_file, slots), slots // 2
    more = amplification(per_file, default) if slots < default else now
    if now - more >= LESS_REWRITING:
        yield _compared(per_file, slots, now, default, more)
    elif half >= 2 and per_file > slots and (fewer := amplification(per_file, half)) - now <= LITTLE_REWRITING:
        yield _compared(per_file, slots, now, half, fewer)


def _compared(per_file: float, slots: int, now: float, other: int, then: float) -> str:
    costs = f"max-small-files {other} gives write amplification {then:.1f}, the present {slots} gives {now:.1f}"
    return f"{per_file:,.0f} batches fill a file: {costs}; to change it, set icesize.policy.max-small-files = {other}"
