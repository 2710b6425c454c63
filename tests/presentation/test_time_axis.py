"""Time in pictures: gaps are gaps, labels are dates, and nothing short is lost."""

from __future__ import annotations

import io
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from icesize.planning.insight.trends import PartitionTrend, Trends
from icesize.presentation.charts import PRINTED, Picture, amplification, files, heat_map, seconds
from icesize.table.past.commits import PastCommit
from tests.support.examples import examples

START = datetime(2026, 11, 23, 20, 0, tzinfo=timezone.utc)


def at(*hours: float) -> list[int]:
    """Milliseconds of so many hours after the start."""
    return [int((START + timedelta(hours=each)).timestamp() * 1000) for each in hours]


def commits(times_ms: Sequence[int]) -> list[PastCommit]:
    return [
        PastCommit(
            (n,), ms, "batch", "append", "s", n, bytes_ingested=10, bytes_written=20, amplification_so_far=2.0,
            total_files=n, seconds=1.0 + n,
        )
        for n, ms in enumerate(times_ms)
    ]  # fmt: skip


def drawn(picture: Picture | None) -> Axes:
    assert picture is not None
    figure = Figure()
    axes = figure.add_subplot()
    picture.draw(axes, PRINTED)
    figure.savefig(io.BytesIO(), format="svg")
    return axes


def labels(axes: Axes) -> list[str]:
    return [label.get_text() for label in axes.get_xticklabels()]


def shares(axes: Axes) -> list[float]:
    """Where the points of the first line are, between its first (0) and its last (1)."""
    places = np.asarray(axes.lines[0].get_xdata(), dtype=float)
    return [float(share) for share in (places - places[0]) / (places[-1] - places[0])]


@pytest.mark.parametrize("draw", [seconds, amplification, files])
def test_a_night_without_commits_is_a_gap(draw: Any) -> None:
    """Commits are as far apart as the time between them, however many they are."""
    axes = drawn(draw(commits(at(0, 1, 2, 14, 15, 16))))
    assert shares(axes) == pytest.approx([0, 1 / 16, 2 / 16, 14 / 16, 15 / 16, 1], abs=1e-6)
    assert labels(axes) == ["20:00", "24 Nov", "04:00", "08:00", "12:00"]
    assert axes.get_xlabel() == "2026, UTC"


@pytest.mark.parametrize(
    ("hours", "first", "below"),
    [
        ([0], "20:00:00", "23 Nov 2026, UTC"),
        ([0, 0.0005], "20:00:00", "23 Nov 2026, UTC"),
        ([0, 0.01], "20:00:00", "23 Nov 2026, UTC"),
        ([0, 1], "20:00", "23 Nov 2026, UTC"),
        ([0, 24 * 10], "25 Nov", "2026, UTC"),
        ([0, 24 * 60], "01 Dec", "2026 - 2027, UTC"),
        ([0, 24 * 1000], "2027", "2026 - 2029, UTC"),
    ],
)
def test_labels_say_as_much_as_is_needed(hours: list[float], first: str, below: str) -> None:
    """Seconds, minutes, days, months or years, and below the axis the day or the years."""
    axes = drawn(seconds(commits(at(*hours))))
    assert (labels(axes)[0], axes.get_xlabel()) == (first, below)


def test_what_is_short_is_seen_in_a_heat_map() -> None:
    """A partition that was bad for a minute of a day was bad; each state lasts until the next."""
    times = at(0, 6, 12, 12 + 1 / 60, 24)
    trends = Trends((1, 2, 3, 4, 5), tuple(times), (PartitionTrend("kind=a", 4, (0, 1, 4, 0, 1), (0,) * 5),))
    [image] = drawn(heat_map("Small files", trends, lambda partition: partition.small_files)).images
    strengths = np.asarray(image.get_array())[0, :, 3]
    found = [float(strengths[0])]
    for strength in strengths:
        if strength != found[-1]:
            found.append(float(strength))
    assert found == [0.0, 0.5, 1.0, 0.0, 0.5]
    # the last state lasts as long as the others on average: 6 of 30 hours
    assert np.count_nonzero(strengths[-len(strengths) // 5 :] == 0.5) == pytest.approx(len(strengths) / 5, abs=1)


@examples(60)
@given(
    st.integers(0, 2 * 10**12),
    st.lists(st.one_of(st.integers(-5_000, 5_000), st.integers(0, 10**11)), min_size=2, max_size=12),
)
def test_any_times_can_be_drawn(begin_ms: int, steps_ms: list[int]) -> None:
    """Also of clocks that go back, years apart, all at once: each label says something, and few enough fit."""
    times, now = list[int](), begin_ms + 10**9
    for step in steps_ms:
        now += step
        times.append(now)
    axes = drawn(seconds(commits(times)))
    assert 1 <= len(labels(axes)) <= 7
    assert all(labels(axes))
    trends = Trends(
        tuple(range(len(times))), tuple(times), (PartitionTrend("a", 1, (1,) * len(times), (0,) * len(times)),)
    )
    assert drawn(heat_map("Small files", trends, lambda one: one.small_files)).images


def test_a_thousand_commits_are_drawn() -> None:
    """One every minute, with few labels."""
    axes = drawn(seconds(commits(at(*(n / 60 for n in range(1_000))))))
    assert len(shares(axes)) == 1_000
    assert labels(axes) == ["20:00", "24 Nov", "04:00", "08:00", "12:00"]
