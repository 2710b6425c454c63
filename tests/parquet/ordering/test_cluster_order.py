"""The order that clustering gives rows, for every type; cuts agree with it and fall between values."""

from __future__ import annotations

import math
import pickle
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import DecimalType, DoubleType, FixedType, IcebergType, LongType, StringType, StructType

from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.ordering.cluster_order import CUT_SLACK, RANK_BITS, CurveRanking, RowOrder
from icesize.planning.cluster_by import HILBERT, SORT, STRATEGIES, ZORDER, ClusterBy
from tests.support.examples import examples
from tests.support.parquet_files import schema_of, settings_of
from tests.support.partition_values import CASES, array_of
from tests.support.sort_values import ASC, BY_PAIR, DESC, FIRST, LAST, PAIR, WITH_NAN, python_key, sorted_by

quick = examples(12)
KINDS = [(kind, values) for kind, values, _ in [*CASES, *WITH_NAN]]
PLAIN = python_key(ASC, FIRST)


def by(*field_ids: int, strategy: str = SORT) -> ClusterBy:
    """A layout by columns whose names do not matter."""
    return ClusterBy(tuple(f"c{i}" for i in field_ids), field_ids, strategy, 2**40)


def two(**columns: Any) -> tuple[RowOrder, pa.Table]:
    """A sort by all columns of a table, and it."""
    return RowOrder(SORT, tuple((name, ()) for name in columns)), pa.table(columns)


def comparable(value: Any) -> Any:
    """A drawn value as plain Python compares it in Iceberg's order."""
    return value.bytes if hasattr(value, "bytes") else value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize(("kind", "values"), KINDS, ids=lambda x: str(x) if isinstance(x, IcebergType) else "")
@quick
@given(data=st.data())
def test_a_sort_is_iceberg_s_order_for_every_type(
    tmp_path: Path, kind: IcebergType, values: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    """Any column before or after a number: nulls first, NaN last, equal rows as they were; cuts agree."""
    schema = schema_of(("v", kind), ("n", LongType()))
    options = settings_of(tmp_path, schema)
    few = st.none() | st.sampled_from(data.draw(st.lists(values, min_size=1, max_size=6)))
    drawn = data.draw(st.lists(st.tuples(few, st.none() | st.integers(0, 2)), min_size=1, max_size=20))
    array = array_of(kind, [v for v, _ in drawn], options.arrow_schema.field("v").type)
    rows = pa.table([array, pa.array([n for _, n in drawn], pa.int64())], schema=options.arrow_schema)
    for ids in ((1, 2), (2, 1), (1,)):
        order = RowOrder.of(by(*ids), options)
        keys = order.keys(rows)
        ranking = order.fit(keys)
        found = ranking.arrange(keys).order
        expected = sorted(
            range(len(drawn)), key=lambda row, ids=ids: [PLAIN(comparable(drawn[row][i - 1])) for i in ids]
        )
        assert found.tolist() == expected
        parts = ranking.cuts(keys, [1.0] * 3).part_of(keys)[found]
        assert (np.diff(parts) >= 0).all()


_COLUMN = st.none() | st.sampled_from([-5, 0, 1, 2**40, -(2**63), 2**63 - 1])
_TEXT = st.none() | st.sampled_from(["", "a", "ab", "ab\0", "the same sixteen and more", "the same sixteen ", "é"])


@quick
@given(
    rows=st.lists(st.tuples(_COLUMN, _TEXT, st.none() | st.floats()), min_size=1, max_size=60),
    strategy=st.sampled_from(STRATEGIES),
    shares=st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=1, max_size=6),
    step=st.integers(1, 5),
)
def test_parts_follow_each_other(rows: list[Any], strategy: str, shares: list[float], step: int) -> None:
    """Cut by a sample, rows of a part come before those of the next one, and equal keys are in one part."""
    names = ("a", "b", "c")
    types = (pa.int64(), pa.large_string(), pa.float64())
    table = pa.table([pa.array(c, t) for c, t in zip(zip(*rows, strict=True), types, strict=True)], names=names)
    order = RowOrder(strategy, tuple((name, ()) for name in names))
    keys = order.keys(table)
    some = keys.take(list(range(0, len(rows), step)))
    ranking = pickle.loads(pickle.dumps(order.fit(some)))
    cuts = pickle.loads(pickle.dumps(ranking.cuts(some, shares)))
    found = ranking.arrange(keys).order
    assert sorted(found.tolist()) == list(range(len(rows)))
    pieces = [cuts.part_of(keys.slice(start, 7)) for start in range(0, len(rows), 7)]
    parts = np.concatenate(pieces)
    assert (np.diff(parts[found]) >= 0).all()
    assert 0 <= parts.min() <= parts.max() < len(shares)
    homes: dict[str, set[int]] = {}
    for row, part in zip(keys.to_pylist(), parts.tolist(), strict=True):
        homes.setdefault(repr(row), set()).add(part)
    assert all(len(found) == 1 for found in homes.values())


def test_parts_have_their_shares() -> None:
    """Of distinct keys each part gets its share up to the slack of a cut."""
    chance = np.random.default_rng(1)
    order, rows = two(a=chance.integers(0, 10**9, 20_000), b=chance.random(20_000))
    for strategy in STRATEGIES:
        ranking = RowOrder(strategy, order.sources).fit(order.keys(rows))
        counts = np.bincount(ranking.cuts(order.keys(rows), [1, 2, 1]).part_of(order.keys(rows)))
        assert counts.tolist() == pytest.approx([5_000, 10_000, 5_000], rel=2 * CUT_SLACK + 0.01)


def test_a_cut_falls_where_the_first_column_changes() -> None:
    """A value of the first column is in one part unless it is a heavy one, which the second column divides."""
    users = np.sort(np.random.default_rng(1).integers(0, 1_000, 40_000))
    order, rows = two(u=users, t=np.arange(40_000) * 7_919 % 40_000)
    keys = order.keys(rows)
    cuts = order.fit(keys).cuts(keys.take(np.arange(0, 40_000, 3)), [1.0] * 5)
    assert cuts.bounds.column(1).null_count == 4
    parts = cuts.part_of(keys)
    assert sum(len(np.unique(parts[users == user])) for user in range(1_000)) == 1_000
    heavy = np.where(np.arange(40_000) % 2 == 0, 7, users)
    rows = rows.set_column(0, "u", pa.array(heavy))
    keys = order.keys(rows)
    parts = order.fit(keys).cuts(keys, [1.0] * 5).part_of(keys)
    times = np.asarray(rows.column("t"))
    inside = [times[(heavy == 7) & (parts == part)] for part in np.unique(parts[heavy == 7])]
    assert len(inside) >= 3
    assert all(a.max() < b.min() for a, b in pairwise(inside))


def test_ranks_are_equal_deep() -> None:
    """Each rank has about as many rows, a heavy value one rank in the middle of its own, nulls 0, NaN the last."""
    values = [None] * 100 + [float(i) for i in range(30_000)] + [-1.0] * 30_000 + [math.nan]
    order, rows = two(a=pa.array(values, pa.float64()), b=list(range(len(values))))
    ranking = RowOrder(ZORDER, order.sources).fit(order.keys(rows))
    assert isinstance(ranking, CurveRanking)
    ranks = ranking.scales[0](order.keys(rows).column(0).combine_chunks()).tolist()
    assert set(ranks[:100]) == {0}
    heavy = set(ranks[30_100:60_100])
    assert len(heavy) == 1
    assert heavy.pop() / 2**RANK_BITS == pytest.approx(0.25, abs=0.01)
    others = ranks[100:30_100]
    assert others == sorted(others)
    assert max(Counter(others).values()) < 3 * 60_000 / 2**RANK_BITS
    assert ranks[-1] == max(ranks)


def test_few_values_have_ranks_far_apart() -> None:
    """Three values are divided by the first bits of their ranks, so that a curve sees them."""
    order, rows = two(a=[i % 3 for i in range(300)], b=list(range(300)))
    ranking = RowOrder(HILBERT, order.sources).fit(order.keys(rows))
    assert isinstance(ranking, CurveRanking)
    ranks = ranking.scales[0](order.keys(rows).column(0).combine_chunks())
    assert (ranks[:3] / 2**RANK_BITS).tolist() == pytest.approx([1 / 6, 1 / 2, 5 / 6], abs=0.01)


def test_a_curve_bounds_both_columns() -> None:
    """Sixteen parts of a square are about a quarter as wide in each column; a sort's only in the first one."""
    chance = np.random.default_rng(1)
    order, rows = two(a=chance.random(40_000), b=chance.random(40_000))

    def widths(strategy: str) -> list[float]:
        keys = order.keys(rows)
        parts = RowOrder(strategy, order.sources).fit(keys).cuts(keys, [1.0] * 16).part_of(keys)
        columns = [np.asarray(rows.column(name)) for name in ("a", "b")]
        return [float(np.mean([np.ptp(c[parts == part]) for part in range(16)])) for c in columns]

    assert widths(SORT) == pytest.approx([1 / 16, 1.0], abs=0.02)
    assert widths(ZORDER) == pytest.approx([1 / 4, 1 / 4], abs=0.05)
    assert widths(HILBERT) == pytest.approx([1 / 4, 1 / 4], abs=0.05)


def test_no_rows_are_ordered_and_cut() -> None:
    """An empty sample says nothing: all rows are in the first part."""
    order, rows = two(a=pa.array([], pa.int64()), b=pa.array([], pa.large_string()))
    _, more = two(a=pa.array([2, 1], pa.int64()), b=pa.array(["x", None], pa.large_string()))
    for strategy in STRATEGIES:
        ranking = RowOrder(strategy, order.sources).fit(order.keys(rows))
        assert ranking.arrange(order.keys(rows)).order.tolist() == []
        assert ranking.cuts(order.keys(rows), [1.0] * 3).part_of(order.keys(more)).tolist() == [0, 0]
        assert len(ranking.arrange(order.keys(more)).order) == 2


def nested(folder: Path) -> WriteSettings:
    """Settings of a table with columns in a struct."""
    inner = schema_of(("x", LongType())).fields[0]
    return settings_of(folder, schema_of(("s", StructType(inner)), ("d", DecimalType(30, 2)), ("f", FixedType(20))))


def test_columns_to_read(tmp_path: Path) -> None:
    """A key in a struct is found in rows of its top-level column alone; each column is named once."""
    schema = schema_of(("id", LongType()), ("text", StringType()), ("d", DoubleType()))
    options = settings_of(tmp_path, schema)
    order = RowOrder.of(by(3, 1), options)
    assert order.columns == ("d", "id")
    few = pruned(options, order.columns)
    assert few.arrow_schema.names == ["id", "d"]
    assert [f.metadata for f in few.arrow_schema] == [options.arrow_schema.field(i).metadata for i in (0, 2)]
    rows = pa.table({"id": [1], "text": ["x"], "d": [0.5]})
    assert order.keys(rows).equals(order.keys(rows.select(["d", "id"])))


@pytest.mark.parametrize(
    ("fields", "ids", "strategy", "expected"),
    [
        (((1, "identity", ASC, FIRST), (2, "identity", ASC, FIRST)), (1, 2), SORT, 7),
        (((1, "identity", ASC, FIRST), (2, "identity", ASC, FIRST)), (1,), SORT, None),
        (((1, "identity", ASC, FIRST),), (1, 2), SORT, None),
        (((2, "identity", ASC, FIRST), (1, "identity", ASC, FIRST)), (1, 2), SORT, None),
        (((1, "identity", ASC, LAST),), (1,), SORT, None),
        (((1, "identity", DESC, FIRST),), (1,), SORT, None),
        (((1, "bucket[4]", ASC, FIRST),), (1,), SORT, None),
        (((1, "identity", ASC, FIRST),), (1,), ZORDER, None),
        (BY_PAIR, (1, 2), SORT, None),
    ],
)
def test_the_table_s_sort_order_is_claimed_only_when_it_is_this_one(
    tmp_path: Path, fields: tuple[Any, ...], ids: tuple[int, ...], strategy: str, expected: int | None
) -> None:
    """Exactly these columns, untransformed, ascending, nulls first, and a sort that was asked for."""
    options = sorted_by(settings_of(tmp_path, PAIR), *fields)
    assert RowOrder.of(by(*ids, strategy=strategy), options).sort_order_id == expected
    assert RowOrder.of(by(*ids), settings_of(tmp_path, PAIR)).sort_order_id is None


def test_a_struct_s_field_orders_rows(tmp_path: Path) -> None:
    """A null struct is a null key."""
    options = nested(tmp_path)
    order = RowOrder.of(by(4), options)
    assert order.columns == ("s",)
    rows = pa.Table.from_pylist(
        [{"s": {"x": 2}}, {"s": None}, {"s": {"x": 1}}, {"s": {"x": None}}], schema=pruned(options, ["s"]).arrow_schema
    )
    assert order.fit(order.keys(rows)).arrange(order.keys(rows)).order.tolist() == [1, 3, 2, 0]
