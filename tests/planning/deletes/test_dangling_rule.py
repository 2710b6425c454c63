"""Delete files that apply to no data file after a commit, as far as their names and numbers prove it."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.dangling_rule import DanglingCandidates
from tests.support.examples import examples
from tests.support.layouts import SPEC, equality_delete, key, position_delete

A, B = key("a"), key("b")


@examples(100)
@given(st.integers(1, 9), st.dictionaries(st.sampled_from([A, B]), st.integers(1, 9)))
def test_position_deletes_that_nobody_has_read_go_by_number(number: int, least: dict[object, int]) -> None:
    """They apply to no data file with a greater number, whatever they name; another partition does not matter."""
    delete = position_delete(A, number)
    candidates = DanglingCandidates.of({A: [delete]}, (), [A], {}, {})
    gone = number < least.get(A, math.inf)
    assert candidates.dangling(least, []) == ({delete.id} if gone else set())  # type: ignore[arg-type]


def test_files_that_position_deletes_may_name_decide() -> None:
    """Manifests are looked at only if they may have files of the same spec that are as old as the delete."""
    candidates = DanglingCandidates.of({A: [position_delete(A, 5)]}, (), [A], {}, {})
    assert [candidates.may_depend_on(SPEC, least) for least in (4, 5, 6)] == [True, True, False]
    assert not candidates.may_depend_on(SPEC + 1, 4)


@examples(100)
@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_deletes_that_new_files_need_are_no_candidates(number: int, new: int, by_equality: bool) -> None:
    """A delete that applies to a new file is left out, any other is kept: equality deletes need a greater number."""
    delete = equality_delete(A, number) if by_equality else position_delete(A, number)
    candidates = DanglingCandidates.of({A: [delete]}, (), [A], {}, {A: new})
    is_needed = number > new if by_equality else number >= new
    assert candidates.numbered == (() if is_needed else (delete,))
    assert candidates.dangling({A: new}, []) == (set() if is_needed else {delete.id})


def test_names_come_before_numbers() -> None:
    """What was read and names a live file stays, and goes without one, whatever the numbers are."""
    delete = position_delete(A, 5)
    candidates = DanglingCandidates.of({A: [delete]}, (), [A], {delete.path: frozenset({"x"})}, {})
    assert (candidates.dangling({A: 6}, ["x"]), candidates.dangling({A: 1}, [])) == (set(), {delete.id})


def test_partition_values_that_are_nan_prove_nothing() -> None:
    """NaN equals no other value, so that nobody knows the files of such a partition."""
    nan = key(math.nan)
    assert not DanglingCandidates.of({nan: [position_delete(nan, 1)]}, (), [nan], {}, {})
