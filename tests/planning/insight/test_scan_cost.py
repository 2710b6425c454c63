"""What scans cost: requests and seconds by files, now and after a plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.files import Layout
from icesize.planning.insight.scan_cost import (
    MS_PER_ENTRY,
    MS_PER_MANIFEST,
    ROW_GROUP_BYTES,
    LayoutCost,
    ScanCost,
)
from icesize.planning.merging.planner import plan_merges
from icesize.policy import SizePolicy
from icesize.presentation.views import format_price
from icesize.presentation.views.tables import costs
from icesize.results import document
from tests.support.layouts import (
    LIMIT,
    SMALL_TARGET,
    key,
    layout_of,
    layouts,
    partition,
    policies,
    position_delete,
    simulate,
    thorough,
)


@st.composite
def tables(draw: st.DrawFn) -> tuple[Layout, SizePolicy]:
    """A table and a policy, with some number of manifests."""
    policy = draw(policies())
    return replace(draw(layouts(policy)), manifests=draw(st.integers(1, 9))), policy


def test_a_small_file_takes_two_requests_and_a_large_one_five() -> None:
    """One for the footer and one for each row group, besides the manifests and their list."""
    small = ScanCost.of(100, 100 * 2**20, 0, 3)
    assert (small.opened, small.requests) == (100, 1 + 3 + 200)
    assert small.planning_seconds == pytest.approx((100 * MS_PER_ENTRY + 3 * MS_PER_MANIFEST) / 1000)
    assert ScanCost.of(1, 4 * ROW_GROUP_BYTES, 0, 1).requests == 1 + 1 + 5


def test_delete_files_are_opened_with_each_data_file() -> None:
    """Of two files that are hit by the same two delete files a scan opens six."""
    owner = key("a")
    deletes = [position_delete(owner, 9), position_delete(owner, 10)]
    table = layout_of(partition("a", [LIMIT, LIMIT], deletes=deletes))
    cost = LayoutCost.of(table, plan_merges(table, SMALL_TARGET)).now
    assert (cost.data_files, cost.delete_files, cost.opened) == (2, 4, 6)


def test_a_merge_that_applies_deletes_opens_none_of_them() -> None:
    """What takes the place of merged files is read without their delete files."""
    table = layout_of(partition("a", [10, 10, 10], deletes=[position_delete(key("a"), 9)]))
    cost = LayoutCost.of(table, plan_merges(table, SMALL_TARGET))
    assert (cost.now.delete_files, cost.then.delete_files, cost.then.data_files) == (3, 0, 1)


@pytest.mark.parametrize(
    ("price", "told"), [(0, "0.00"), (80.4, "80.40"), (1234.5, "1,234.50"), (0.01, "0.01"), (0.00042, "0.00042")]
)
def test_prices_are_cents_until_there_are_none(price: float, told: str) -> None:
    """Below a cent two digits are told."""
    assert format_price(price) == told


def test_lines_say_files_seconds_requests_and_money() -> None:
    """Two lines where a compaction changes something, one where it does not, none without files."""
    table = replace(layout_of(partition("a", [10] * 1000)), manifests=1)
    cost = LayoutCost.of(table, plan_merges(table, SMALL_TARGET), 0.005)
    assert costs(cost) == (
        "a full scan opens 1,000 files, takes 61 ms to plan, sends 2,002 requests, 10.01 USD per 1,000 scans",
        "  after a compaction 1 file, takes 1 ms to plan, sends 4 requests, 0.02 USD per 1,000 scans",
    )
    assert document(cost)["then"]["usd"] == pytest.approx(4 * 0.005 / 1000)
    tidy = layout_of(partition("a", [LIMIT]))
    assert len(costs(LayoutCost.of(tidy, plan_merges(tidy, SMALL_TARGET)))) == 1
    empty = layout_of()
    assert costs(LayoutCost.of(empty, plan_merges(empty, SMALL_TARGET))) == ()


@thorough
@given(tables())
def test_what_is_expected_after_a_plan_is_what_there_is_then(case: tuple[Layout, SizePolicy]) -> None:
    """Data files as the carried out plan leaves them, and never more to open or to pay than before."""
    table, policy = case
    plan = plan_merges(table, policy)
    cost, after = LayoutCost.of(table, plan), simulate(table, plan)
    assert cost.now.data_files == table.files
    assert cost.then.data_files == after.files
    assert cost.then.data_files <= cost.now.data_files
    assert cost.then.delete_files <= cost.now.delete_files
    assert cost.then.manifests <= cost.now.manifests
    assert cost.then.requests <= cost.now.requests
    assert cost.then.planning_seconds <= cost.now.planning_seconds
