"""How many files queries open, from bounds: exact, against the definition taken literally."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.clustering.depth import by_column, files_scanned
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import Clustering, FilesScanned
from tests.support.examples import examples

VALUES: list[st.SearchStrategy[Any]] = [
    st.integers(-20, 20),
    st.sampled_from([-1.5, -0.0, 0.0, 2.25]),
    st.text("abé\U0001f600", max_size=3),
    st.binary(max_size=2),
    st.booleans(),
    st.decimals(-3, 3, places=1),
]


def pairs(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[Bounds, int]]]:
    known = st.tuples(values, values).map(lambda pair: (min(pair), max(pair)))
    return st.lists(st.tuples(st.one_of(known, known, known, st.just(()), st.none()), st.integers(0, 99)), max_size=25)


def naive(files: Sequence[tuple[Bounds, int]]) -> FilesScanned:
    """The definition of `files_scanned`, file by file and value by value."""

    def asked(first: Any, last: Any) -> list[int]:
        return [size for b, size in files if b is None or (b and b[0] <= first and b[1] >= last)]

    ends = sorted({value for bounds, _ in files if bounds for value in bounds})
    places = set()
    for low, high in (bounds for bounds, _ in files if bounds):
        inside = [value for value in ends if low <= value <= high]
        half = (len(inside) - 1) // 2
        places.add((inside[half], inside[min(half + 1, len(inside) - 1)]))
    window = max(1, len(places) // 10)
    at_ends = [asked(value, value) for value in ends] or [asked(None, None)]
    at_points = [asked(first, last) for first, last in sorted(places)] or at_ends
    ranges = zip(sorted(places), sorted(places)[window - 1 :], strict=False)
    in_ranges = [asked(end[0], start[1]) for start, end in ranges] or at_points

    def mean(numbers: list[int]) -> float:
        return sum(numbers) / len(numbers)

    return FilesScanned(
        mean([len(sizes) for sizes in at_points]),
        mean([sum(sizes) for sizes in at_points]),
        max(len(sizes) for sizes in at_ends),
        mean([len(sizes) for sizes in in_ranges]),
        mean([sum(sizes) for sizes in in_ranges]),
    )


@examples(150)
@given(st.sampled_from(VALUES).flatmap(pairs))
def test_opened_is_what_its_definition_says(files: list[tuple[Bounds, int]]) -> None:
    """For values of every type, unknown bounds and files of nulls, in any order, the sweep counts what a loop does."""
    expected = naive(files)
    for some in (files, files[::-1]):
        found = files_scanned(some)
        assert found.most_files == expected.most_files
        for name, value in expected.to_dict().items():
            assert found.to_dict()[name] == pytest.approx(value)


def test_files_that_touch_share_one_value() -> None:
    """Three sorted files: a value inside is in one of them, the worst in two."""
    found = files_scanned([((0, 10), 100), ((10, 20), 100), ((20, 30), 100)])
    assert (found.point_files, found.point_bytes, found.most_files) == (1.0, 100.0, 2)


def test_a_value_of_files_in_no_order_is_in_all_of_them() -> None:
    """Eight files over nearly the same values; a ninth of one value, which half of them have as an end, is a place."""
    spread: list[tuple[Bounds, int]] = [((n, 1000 - n), 10) for n in range(8)]
    assert files_scanned(spread) == FilesScanned(8.0, 80.0, 8, 8.0, 80.0)
    assert files_scanned([*spread, ((3, 3), 1)]).point_files == (8 + 5) / 2


def test_a_range_asks_for_a_tenth_of_the_places() -> None:
    """Of 100 files side by side, windows of ten middles open ten files."""
    side_by_side: list[tuple[Bounds, int]] = [((10 * n, 10 * n + 9), 7) for n in range(100)]
    found = files_scanned(side_by_side)
    assert (found.point_files, found.most_files) == (1.0, 1)
    assert found.range_files == 10.0
    assert found.range_bytes == 70.0


def test_files_without_known_bounds_are_always_opened() -> None:
    """Unknown bounds alone, files of nulls alone, and no files at all."""
    assert files_scanned([(None, 5), (None, 6), ((), 7)]) == FilesScanned(2.0, 11.0, 2, 2.0, 11.0)
    assert files_scanned([((), 7)]) == files_scanned([]) == FilesScanned(0.0, 0.0, 0, 0.0, 0.0)


def test_by_column_sums_over_partitions() -> None:
    """A query that names no partition opens what it opens in each; every column has its own bounds."""
    files = {}
    for day in (1, 2):
        owner = PartitionKey(0, (day,))
        files[owner] = [
            ClusterFile(FileFact(f"{day}/a", 10, 1, owner), ((0, 5), (0, 9))),
            ClusterFile(FileFact(f"{day}/b", 30, 1, owner), ((6, 9), (0, 9))),
        ]
    found = by_column(files, ("user_id", "event_time"))
    assert found["user_id"].to_dict() == {
        "point_files": 2.0,
        "point_bytes": 40.0,
        "most_files": 2,
        "range_files": 2.0,
        "range_bytes": 40.0,
    }
    assert found["event_time"] == FilesScanned(4.0, 80.0, 4, 4.0, 80.0)
    assert by_column({}, ("user_id",)) == {"user_id": FilesScanned(0.0, 0.0, 0, 0.0, 0.0)}


def test_amplification_is_what_is_written_per_new_byte() -> None:
    """Writing 60 bytes for 10 new ones is 6; where sets alone are joined there is no such number."""
    by = ClusterBy(("a",), (1,), "sort", 100)
    assert Clustering(by, (), {}, {}, new_bytes=10, bytes_to_write=60).amplification == 6.0
    joined = Clustering(by, (False,), {"a": files_scanned([])}, {"a": 1.0}, new_bytes=0, bytes_to_write=60)
    assert joined.to_dict() == {
        "strategy": "sort",
        "columns": ["a"],
        "full": [False],
        "before": {"a": files_scanned([]).to_dict()},
        "expected_point_files": {"a": 1.0},
        "new_bytes": 0,
        "amplification": None,
    }
