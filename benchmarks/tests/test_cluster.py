"""Tests of the counts of the clustering benchmark: files that queries open, and the fewest possible."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster_opened import Files, optimum
from benchmarks.cluster_rows import Integers, distinct_users, drawn_points, drawn_ranges, write_batches
from tests.support.late_events import HOURS

VALUES = st.lists(st.integers(-50, 50), min_size=4, max_size=40)
RANGES = st.lists(st.tuples(st.integers(-60, 60), st.integers(0, 40)), min_size=1, max_size=10)


def _files(parts: dict[str, list[list[int]]]) -> Files:
    """Return files of these values in a column `v`, each with as many bytes as rows."""
    flat = [(name, values) for name, files in parts.items() for values in files]
    bounds = np.array([(min(values), max(values)) for _, values in flat])
    sizes = np.array([len(values) for _, values in flat])
    return Files([name for name, _ in flat], [""] * len(flat), sizes, {"v": bounds})


def _windows(drawn: list[tuple[int, int]]) -> Integers:
    return np.array([(first, first + width) for first, width in drawn])


def test_a_query_opens_files_whose_bounds_it_meets() -> None:
    """Both ends of a range count; the means of files and of their bytes are over queries."""
    files = _files({"a": [[0, 10], [10, 20, 20]], "b": [[30, 40, 40, 40]]})
    assert files.opened("v", np.array([[10, 10]])) == (2.0, 5.0)
    assert files.opened("v", np.array([[10, 10], [41, 50]])) == (1.0, 2.5)
    assert files.opened("v", np.array([[20, 30], [21, 29], [0, 99]])) == (5 / 3, 16 / 3)


@given(st.lists(VALUES, min_size=1, max_size=3), RANGES, st.integers(1, 4))
def test_a_sorted_table_is_the_optimum(parts: list[list[int]], drawn: list[tuple[int, int]], n: int) -> None:
    """The optimum is the number of files opened if each partition is sorted and cut into files of equal rows."""
    ordered = {str(i): sorted(values) for i, values in enumerate(parts)}
    cut = {k: [v[i * len(v) // n : (i + 1) * len(v) // n] for i in range(n)] for k, v in ordered.items()}
    files, windows = _files(cut), _windows(drawn)
    found = optimum(files, {k: np.array(v) for k, v in ordered.items()}, windows)
    assert found == pytest.approx(files.opened("v", windows)[0])


def test_batches_are_other_rows_when_time_begins_anew(tmp_path: Path) -> None:
    """Ids continue after the last hour, and rows differ from those of the first round."""
    paths = write_batches(tmp_path, HOURS + 1, 5)
    first, last = (pq.read_table(path) for path in (paths[0], paths[-1]))
    ids = [i for path in paths for i in pq.read_table(path)["id"].to_pylist()]
    assert ids == list(range(5 * (HOURS + 1)))
    assert first["hour"].unique().to_pylist() == last["hour"].unique().to_pylist() == ["h000"]
    assert first["payload"].to_pylist() != last["payload"].to_pylist()
    users = {user for path in paths for user in pq.read_table(path)["user_id"].to_pylist()}
    assert distinct_users(paths).tolist() == sorted(users)


def test_queries_are_drawn_from_what_there_is() -> None:
    """Points are distinct values; ranges have the requested width and stay inside the span."""
    points = drawn_points(np.array([3, 5, 8]), 2)
    assert len(points) == 2
    assert {int(first) for first, last in points if first == last} < {3, 5, 8}
    ranges = drawn_ranges(1_000, 2_000, 25, 300)
    assert {int(last - first) for first, last in ranges} == {250}
    assert ranges.min() >= 1_000
    assert ranges.max() <= 2_000
    assert drawn_ranges(1_000, 2_000, 25, 300).tolist() == ranges.tolist()
