"""The health of a table, and what its maintenance costs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.delete_plan import plan_delete_rewrites
from icesize.planning.files import Layout
from icesize.planning.insight.health import FORMULA, HealthPart, TableSurvey, parts_of
from icesize.planning.insight.scan_cost import (
    A_COMMIT,
    COPIED_BYTES_PER_SECOND,
    DECODED_BYTES_PER_SECOND,
    PART_BYTES,
    PRICE_PER_1000_PUTS,
    PRICE_PER_1000_REQUESTS,
    PRICE_PER_CORE_HOUR,
    LayoutCost,
    WorkCost,
)
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import Forecast
from icesize.policy import SizePolicy
from tests.support.layouts import LIMIT, SMALL_TARGET, layout_of, layouts, partition, policies, thorough

MIB = 1 << 20


def survey_of(*parts: HealthPart, work: WorkCost | None = None) -> TableSurvey:
    """Return the survey of a table with these causes of cost."""
    return TableSurvey("lake.db.t", 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, parts, work or WorkCost())


def test_the_score_is_the_printed_formula() -> None:
    """The seconds of the parts, now and after maintenance, make the score, each with a second of any query."""
    table = survey_of(
        HealthPart("data files", 300, 10),
        HealthPart("delete files", 50, 0),
        HealthPart("manifests", 20, 1),
        HealthPart("snapshots", 200, 40),
    )
    now = (300 + 50) * 20.06 + 20 * 10.9 + 200 * 0.035
    then = 10 * 20.06 + 1 * 10.9 + 40 * 0.035
    assert table.health == round(100 * (1000 + then) / (1000 + now)) == 15
    assert table.seconds_saved == pytest.approx((now - then) / 1000)
    assert table.files_saved == 340
    assert all(text in FORMULA for text in ("20.06 ms x data files", "10.9 ms x manifests", "0.035 ms x snapshots"))


def test_only_a_table_with_nothing_to_save_has_the_best_score() -> None:
    """One snapshot of many makes less than one percent, and still no 100."""
    assert survey_of(HealthPart("snapshots", 10, 9)).health == 99
    assert survey_of(HealthPart("snapshots", 10, 10)).health == 100
    assert survey_of().health == 100


def test_benefit_per_byte_prefers_cheap_work() -> None:
    """Of two tables that save the same, the one with fewer bytes to rewrite ranks higher, and one without highest."""
    part = HealthPart("data files", 100, 1)
    gains = [survey_of(part, work=WorkCost(size, size)).seconds_saved_per_gib for size in (0, 64 * MIB, 1024 * MIB)]
    assert gains == sorted(gains, reverse=True)
    assert gains[2] == pytest.approx(99 * 0.02006 * 1024 / 1028, abs=1e-4)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, SizePolicy, int, int]:
    """A table with manifests and snapshots, and a policy."""
    policy = draw(policies())
    layout = replace(draw(layouts(policy)), manifests=draw(st.integers(1, 9)))
    snapshots = draw(st.integers(0, 50))
    return layout, policy, snapshots, draw(st.integers(0, snapshots))


@thorough
@given(tables())
def test_scores_lie_between_0_and_100(case: tuple[Layout, SizePolicy, int, int]) -> None:
    """Any table has a score, no part is negative, and maintenance never leaves more data files."""
    layout, policy, snapshots, due = case
    cost = LayoutCost.of(layout, plan_merges(layout, policy), None)
    parts = parts_of(
        cost, plan_delete_rewrites(layout, policy), manifests_then=1, snapshots=snapshots, snapshots_due=due
    )
    table = survey_of(*parts)
    assert 0 <= table.health <= 100
    assert all(part.now >= 0 and part.then >= 0 for part in parts)
    assert parts[0].then <= parts[0].now
    assert (parts[3].now, parts[3].then) == (snapshots, snapshots - due)


def test_the_cost_of_a_plan() -> None:
    """All bytes count as decoded without a forecast, and as it says with one; a commit is added."""
    layout = layout_of(partition("a", [LIMIT // 4] * 4))
    plan = plan_merges(layout, SMALL_TARGET)
    size = plan.bytes_to_write
    cost = WorkCost.of(plan)
    assert (cost.bytes_read, cost.bytes_written) == (size, size)
    assert cost.seconds == pytest.approx(size / DECODED_BYTES_PER_SECOND)
    assert (cost.gets, cost.puts) == (1 + 4 * 2 + A_COMMIT.gets, plan.files_added + A_COMMIT.puts)
    copied = WorkCost.of(replace(plan, forecast=Forecast(bytes_copied=size, bytes_decoded=0)))
    assert copied.seconds == pytest.approx(size / COPIED_BYTES_PER_SECOND)
    assert WorkCost.of(replace(plan, groups=())) == WorkCost()


def test_large_files_are_written_in_parts() -> None:
    """A file of more than one part takes a request for each, one before them and one after them."""
    plan = plan_merges(layout_of(partition("a", [LIMIT // 4] * 4)), SMALL_TARGET)
    (group,) = plan.groups
    large = replace(group.inputs[0], size_bytes=3 * PART_BYTES)
    cost = WorkCost.of(replace(plan, groups=(replace(group, inputs=(large, large), outputs=1),)))
    assert cost.puts == 6 + 2 + A_COMMIT.puts


def test_work_has_a_price() -> None:
    """Requests that read, requests that write, and hours of a core have a price each."""
    work = WorkCost(gets=2_000, puts=1_000, seconds=1800) + WorkCost(gets=1_000)
    expected = 3 * PRICE_PER_1000_REQUESTS + PRICE_PER_1000_PUTS + PRICE_PER_CORE_HOUR / 2
    assert work.usd == pytest.approx(expected)
