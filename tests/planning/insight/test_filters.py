"""By which columns to cluster, from filters: the most asked ones, and only where it spares files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.cluster_by import MOST_CURVE_COLUMNS, ClusterBy
from icesize.planning.insight.filters import FilterUse, columns_to_cluster, recommend
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import Clustering, FilesScanned, Plan
from icesize.results import Advice
from tests.support.layouts import SMALL_TARGET, layout_of, thorough

USES = st.lists(
    st.builds(
        FilterUse,
        st.just("x = 1"),
        st.lists(st.sampled_from("abcdef"), unique=True, max_size=3).map(tuple),
        st.just(()),
        st.integers(0, 100),
        st.integers(1, 9),
    ),
    max_size=8,
)


def use(*points: str, files: int = 100, times: int = 1) -> FilterUse:
    return FilterUse(" and ".join(f"{name} = 1" for name in points), points, (), files, times)


def clustered(before: float, then: float, column: str = "a") -> Plan:
    """A plan after which a value of a column is in `then` files, not in `before`."""
    empty = layout_of()
    plan = plan_merges(empty, SMALL_TARGET)
    by = ClusterBy((column,), (1,), "sort", 1)
    scanned = FilesScanned(before, 0.0, 0, 0.0, 0.0)
    return Plan(
        plan.head, 0, (), (), (), 6, 100,
        clustering=Clustering(by, (), {column: scanned}, {column: then}, 0, 0),
    )  # fmt: skip


def test_the_most_asked_column_comes_first() -> None:
    """Filters count as often as they are asked; a column asked less than half as often is left out."""
    assert columns_to_cluster([use("a"), use("b", times=5), use("c", times=2)]) == ("b",)
    assert columns_to_cluster([use("a", times=3), use("b", times=5)]) == ("b", "a")


def test_columns_asked_together_need_one() -> None:
    """Where every filter with b asks for a as well, a alone finds the rows."""
    assert columns_to_cluster([use("a", "b"), use("a")]) == ("a",)


def test_partition_columns_and_ranges_say_nothing() -> None:
    """Partitions rule files out already, ranges are no single values, and one file cannot be fewer."""
    in_a_range = FilterUse("d > 1", (), ("d",), 100)
    assert columns_to_cluster([use("hour"), in_a_range, use("a", files=1)], {"hour"}) == ()


def test_what_is_worth_it_comes_with_the_command() -> None:
    """Files now, files then, and what to type; two columns by a curve."""
    uses = [use("a", files=90), use("a", files=70, times=2), FilterUse("d > 1", (), ("d",), 100)]
    [advice] = recommend("lake.db.t", 100, uses, ["a"], clustered(50, 5))
    assert advice == Advice(
        "3 of 4 filters select single values of a, in 76.7 of 100 files on average, about 7.7 after "
        "clustering: `icesize cluster lake.db.t --by a`",
        "icesize cluster lake.db.t --by a",
    )
    [advice] = recommend("lake.db.t", 100, uses, ["a", "b"], clustered(50, 5))
    assert advice.sentence.endswith(f"`{advice.command}`")
    assert advice.command == "icesize cluster lake.db.t --by a,b --strategy hilbert"
    [advice] = recommend("lake.db.t; rm x", 100, uses, ["a", "$b"], clustered(50, 5))
    assert advice.command == "icesize cluster 'lake.db.t; rm x' --by 'a,$b' --strategy hilbert"


def test_what_is_not_worth_it_is_said_without_a_command() -> None:
    """A table in order by that column already has nothing to gain."""
    [advice] = recommend("lake.db.t", 100, [use("a", files=2)], ["a"], clustered(2, 2))
    assert advice == Advice(
        "1 of 1 filter selects single values of a, in 2.0 of 100 files on average; clustering would leave 2.0: "
        "not worth it"
    )


def test_nothing_is_said_of_columns_that_nobody_asks_for() -> None:
    """No filter, no sentence."""
    assert recommend("t", 100, [], ["a"], clustered(50, 5)) == ()
    assert recommend("t", 100, [use("b")], ["a"], clustered(50, 5)) == ()


@thorough
@given(USES, st.sets(st.sampled_from("abcdef")))
def test_chosen_columns_are_asked_for(uses: list[FilterUse], partitioned: set[str]) -> None:
    """A few, each once, asked for by filters that open several files, none of them told apart by partitions; the order
    of the filters changes nothing."""
    chosen = columns_to_cluster(uses, partitioned)
    assert len(set(chosen)) == len(chosen) <= MOST_CURVE_COLUMNS
    asked = {column for one in uses if one.files > 1 for column in one.points}
    assert set(chosen) <= asked - partitioned
    assert bool(chosen) == bool(asked - partitioned)
    assert columns_to_cluster(uses[::-1], partitioned) == chosen
    for advice in recommend("t", 100, uses, chosen, clustered(50, 5)):
        assert bool(advice.command) != advice.sentence.endswith("not worth it")
