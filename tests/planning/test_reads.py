"""Reads seen in a log, put together by kind, and as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.reads import MOST_KINDS, Reads, together

READS = st.builds(
    Reads,
    st.floats(1e-6, 1e6).map(lambda number: float(f"{number:.4g}")),
    st.none() | st.integers(1, 10_000),
    st.integers(0, 10_000),
    st.lists(st.text(min_size=1, max_size=5), max_size=3).map(tuple),
    st.floats(0.0001, 1).map(lambda number: float(f"{number:.3g}")),
)


@given(READS)
def test_json_and_back(reads: Reads) -> None:
    """What is written can be read."""
    assert Reads.of(json.loads(json.dumps(reads.to_dict()))) == reads


@pytest.mark.parametrize(
    "document", [{}, {"per_day": 0}, {"per_day": 1, "skipped": -1}, {"per_day": 1, "share": 2}, {"x": 1}]
)
def test_what_are_no_reads(document: dict[str, object]) -> None:
    """Documents with other keys, or with values that no read has, are refused."""
    with pytest.raises((TypeError, ValueError)):
        Reads.of(document)


@given(st.lists(READS, min_size=1, max_size=60), st.floats(0.5, 10))
def test_no_read_is_lost(reads: list[Reads], days: float) -> None:
    """Reads of one kind are one value with their number per day; rare kinds count as the most frequent one."""
    kinds = together(reads, days)
    assert len(kinds) <= MOST_KINDS
    assert sum(kind.per_day for kind in kinds) * days == pytest.approx(len(reads))
    assert [kind.per_day for kind in kinds[1:]] == sorted((kind.per_day for kind in kinds[1:]), reverse=True)


def test_numbers_of_partitions_are_rounded() -> None:
    """7 of 31 days and 31 of 31 days differ, 29 and 31 do not; a small share of the files stays one."""
    kinds = together([Reads(1.0, 29), Reads(1.0, 31), Reads(1.0, 7)], 2.0)
    assert [(kind.partitions, kind.per_day) for kind in kinds] == [(30, 1.0), (7, 0.5)]
    assert [kind.share for kind in together([Reads(1.0, share=0.042), Reads(1.0, share=0.038)], 1.0)] == [0.04]
