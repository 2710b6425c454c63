"""The newest event of each key, and the rows that are not older than their event."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from icesize.errors import BatchError, SchemaMismatch
from icesize.parquet.keys.ranks import by_order
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.upserts.late_events import not_older
from icesize.table.upserts.newest_events import newest_events
from tests.support.examples import examples
from tests.support.parquet_files import settings_of

SCHEMA = Schema(
    NestedField(1, "k", LongType()), NestedField(2, "s", StringType()), NestedField(3, "t", IntegerType()),
    NestedField(4, "u", LongType()), NestedField(5, "v", IntegerType()), NestedField(6, "d", DoubleType()),
)  # fmt: skip
SETTINGS = settings_of(Path("/nowhere"), SCHEMA)


class Event(NamedTuple):
    k: int
    s: str
    t: int
    u: int
    v: int
    is_delete: bool


events = st.builds(
    Event, st.integers(0, 3), st.sampled_from("ab"), st.integers(0, 3), st.integers(0, 3), st.integers(0, 5),
    st.booleans(),
)  # fmt: skip
Found = dict[tuple[int, str], Event]


def rows_of(some: Sequence[Event]) -> tuple[pa.Table, np.ndarray[Any, np.dtype[np.bool_]]]:
    names = Event._fields[:-1]
    columns = {name: [getattr(event, name) for event in some] for name in names}
    types = {"k": pa.int64(), "s": pa.string(), "t": pa.int32(), "u": pa.int64(), "v": pa.int32()}
    table = pa.table({name: pa.array(values, types[name]) for name, values in columns.items()})
    return table, np.array([event.is_delete for event in some], np.bool_)


def newest(some: Sequence[Event], rule: UpsertRule) -> Found:
    """What `newest_events` finds, by key."""
    rows, is_delete = rows_of(some)
    found = newest_events(rows, is_delete, rule, SETTINGS, b"secret", skip_null_keys=False)
    assert found.received == len(some)
    kept = [
        Event._make([*row.values(), flag])
        for row, flag in zip(found.rows.to_pylist(), found.is_delete.tolist(), strict=True)
    ]
    assert found.keys.to_pylist() == [{"k": each.k, "s": each.s} for each in kept]
    return {(each.k, each.s): each for each in kept}


def order_of(event: Event) -> tuple[int, int]:
    return event.t, event.u


def distinct(some: Sequence[Event]) -> list[Event]:
    """One event of each key and order."""
    return list({(event.k, event.s, *order_of(event)): event for event in some}.values())


@given(st.lists(events, min_size=1, max_size=25), st.randoms(use_true_random=False), st.integers(0, 25))
@examples(200)
def test_the_newest_events_are_those_of_a_fold(some: list[Event], chance: Any, cut: int) -> None:
    """With distinct orders, neither the order of rows, nor repeats, nor a split into batches matters."""
    rule = UpsertRule((1, 2), (3, 4))
    some = distinct(some)
    expected = Found()
    for event in some:
        now = expected.get((event.k, event.s))
        if now is None or order_of(event) > order_of(now):
            expected[event.k, event.s] = event
    shuffled = [*some, *some[:cut]]
    chance.shuffle(shuffled)
    assert newest(shuffled, rule) == expected
    parts = [part for part in (shuffled[:cut], shuffled[cut:]) if part]
    assert newest([event for part in parts for event in newest(part, rule).values()], rule) == expected


@pytest.mark.parametrize("ties", ["error", "last_delete", "max_row"])
@given(some=st.lists(events, min_size=1, max_size=12), chance=st.randoms(use_true_random=False))
@examples(150)
def test_ties_are_decided_alike_in_any_order(ties: str, some: list[Event], chance: Any) -> None:
    """Which of the events of one order wins, or that the batch is refused, does not hang on the order of rows."""
    rule = UpsertRule((1, 2), (3,), ties=ties)
    expected, is_refused = Found(), False
    for key in {(event.k, event.s) for event in some}:
        mine = [event for event in some if (event.k, event.s) == key]
        last = max(event.t for event in mine)
        tied = [event for event in mine if event.t == last]
        deletes, rows = [e for e in tied if e.is_delete], {e for e in tied if not e.is_delete}
        if deletes and not rows:
            continue  # which of the deletes is left does not matter
        if len(rows) > 1 and not deletes:
            is_refused |= ties != "max_row"
        is_refused |= bool(deletes) and ties == "error"
        expected[key] = deletes[0] if deletes else max(rows)
    chance.shuffle(some)
    if is_refused:
        with pytest.raises(BatchError, match="different events of the same order"):
            newest(some, rule)
        return
    found = newest(some, rule)
    for key, event in expected.items():
        assert (found[key] if not event.is_delete else found[key].is_delete) == (event if not event.is_delete else True)


@given(st.lists(events, min_size=1, max_size=12))
@examples(100)
def test_without_an_order_a_key_has_one_event(some: list[Event]) -> None:
    """Without an order, repeats of an event are one, and two different events of a key are refused."""
    rule = UpsertRule((1, 2))
    by_key: dict[tuple[int, str], set[Event]] = {}
    for event in some:
        by_key.setdefault((event.k, event.s), set()).add(event._replace(v=0, t=0, u=0) if event.is_delete else event)
    if max(map(len, by_key.values())) > 1:
        with pytest.raises(BatchError, match="more than one event in the batch"):
            newest(some, rule)
        return
    assert {key: (e.is_delete or e) for key, e in newest(some, rule).items()} == {
        key: (e.is_delete or e) for key, [e] in by_key.items()
    }


@pytest.mark.parametrize(("value", "what"), [(None, "NULL"), (math.nan, "NaN")])
def test_an_order_that_orders_nothing_is_refused(value: float | None, what: str) -> None:
    """NULL and NaN are neither before nor after another event."""
    rows = pa.table({"k": [1, 1], "d": pa.array([value, 1.0])})
    with pytest.raises(SchemaMismatch, match=f"column 'd' of the order is {what} in 1 of 2 rows"):
        newest_events(rows, np.zeros(2, np.bool_), UpsertRule((1,), (6,)), SETTINGS, b"", skip_null_keys=False)


values = st.one_of(st.none(), st.integers(0, 2))
pairs = st.tuples(values, values)


@given(st.lists(st.tuples(pairs, st.tuples(st.integers(0, 2), st.integers(0, 2))), min_size=1, max_size=20))
@examples(200)
def test_rows_are_not_older_by_column(some: list[tuple[tuple[int | None, int | None], tuple[int, int]]]) -> None:
    """A row is compared with its event column by column, and NULL is older than any value."""
    rows, theirs = (
        pa.table({str(at): pa.array([each[at] for each in side], pa.int64()) for at in (0, 1)})
        for side in zip(*some, strict=True)
    )
    expected = [[(v is not None, v or 0) for v in row] >= [(True, v) for v in event] for row, event in some]
    assert not_older(rows, theirs).tolist() == expected


def test_nan_in_a_row_is_older_than_any_value() -> None:
    """No event has NaN; a row that another writer gave one is replaced by any event."""
    rows, theirs = pa.table({"d": [math.nan, 2.0, -0.0]}), pa.table({"d": [-math.inf, 2.0, 0.0]})
    assert not_older(rows, theirs).tolist() == [False, True, True]


def test_nan_has_the_same_age_among_rows() -> None:
    """Of two rows with one key, a number is newer than NaN, and NaN is newer than NULL."""
    column = pa.chunked_array([[5.0, math.nan, None, -math.inf]])
    assert by_order({}, [column]).tolist() == [2, 1, 3, 0]


def test_the_greatest_row_does_not_depend_on_the_order_of_columns() -> None:
    """Columns are compared in the order of the table, and not of the batch."""
    rows = pa.table({"k": [1, 1], "t": pa.array([1, 1], pa.int32()), "v": pa.array([1, 2], pa.int32()), "u": [2, 1]})
    for names in (["k", "t", "v", "u"], ["v", "u", "t", "k"]):
        rule = UpsertRule((1,), (3,), ties="max_row")
        found = newest_events(
            rows.select(names), np.zeros(2, np.bool_), rule, SETTINGS, b"secret", skip_null_keys=False
        )
        assert found.rows.select(["u", "v"]).to_pylist() == [{"u": 2, "v": 1}]
