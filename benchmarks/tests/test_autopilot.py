"""The benchmark of the autopilot: what it counts, and how seconds are predicted."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.autopilot import Run, compared
from benchmarks.autopilot_cases import DAYS, KNOWN, Case, always, key
from benchmarks.autopilot_others import OTHERS
from benchmarks.autopilot_real import Seen, _fitted, simulated
from benchmarks.autopilot_unknown import UNKNOWN
from icesize.planning.advice.autopilot import Settings
from icesize.planning.reads import Reads
from icesize.policy import MIB, SizePolicy


def small(reads_per_day: float, is_logged: bool = True) -> Case:
    """A table with two batches a day."""
    reads = always(Reads(reads_per_day))
    return Case("small", 2, lambda number, random: {key(): 3 * MIB}, reads, is_logged, prices=None)


def test_the_autopilot_is_compared_with_every_setting() -> None:
    """It begins with the defaults, so that it costs as much as they do as long as it changes nothing."""
    often = compared(small(50_000.0))
    assert often["changes"] >= 1
    assert often["auto_by_defaults"] < 1
    assert often["best"].startswith("k 2, ")


def test_a_run_counts_reads_of_each_day() -> None:
    """Twice the reads cost twice as much to read and as much to write."""
    batches, defaults = small(1.0).batches(), Settings.of(SizePolicy())
    assert len(batches) == DAYS * 2
    one, two = (Run(small(reads), batches, defaults) for reads in (100.0, 200.0))
    one.carried_out()
    two.carried_out()
    assert two.trial.reads.seconds == pytest.approx(2 * one.trial.reads.seconds)
    assert two.trial.writes == one.trial.writes
    assert one.trial.scans == pytest.approx(100.0 * DAYS)


def test_cases_have_different_names() -> None:
    """Results are kept by name, and batches of a case depend on it."""
    assert len({case.name for case in (*KNOWN, *OTHERS, *UNKNOWN)}) == 15


def test_seconds_are_predicted_by_costs_that_are_not_negative() -> None:
    """Costs that fit known counts give the seconds of others; one that would be below zero is left out."""
    counts = np.array([[0.0, 0.0], [2.0, 10.0], [4.0, 10.0], [6.0, 40.0], [0.0, 0.0]])
    seconds = 0.5 + 0.1 * counts[:, 0] + 0.01 * counts[:, 1]
    assert _fitted(counts, seconds, np.array([[1.0, 100.0]])) == pytest.approx([1.6])
    falling = 1.0 - 0.1 * counts[:, 0]
    assert (_fitted(counts, falling, counts) > 0).all()


def test_a_simulated_run_has_the_bytes_of_its_batches() -> None:
    """Without merges these are the bytes written; the number of scans is that of the real run."""
    batches = [{key(spec_id): MIB} for spec_id in ("a",) * 20]
    nothing = np.zeros((20, 2))
    base = Seen(0, 0, nothing, np.zeros((10, 2)), np.ones(20), np.ones(10))
    run = simulated(batches, SizePolicy(small_file_limit_bytes=0), base)
    assert (run.written_bytes, run.files, len(run.scans)) == (20 * MIB, 20, 10)
    assert run.seconds == pytest.approx(30.0)
