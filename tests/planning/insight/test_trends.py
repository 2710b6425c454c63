"""States of a table side by side, and the sizes of its files before and after a plan."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.insight.inspection import inspect
from icesize.planning.insight.trends import FileCounts, PastState, Trends, evenly, file_sizes
from icesize.planning.merging.planner import plan_merges
from icesize.policy import SizePolicy
from icesize.results import document
from tests.support.layouts import LIMIT, SMALL_TARGET, layout_of, layouts, partition, policies

COUNTS = st.builds(FileCounts, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))
STATES = st.lists(st.dictionaries(st.text(max_size=3), COUNTS, max_size=8), max_size=6)


def states(partitions: list[dict[str, FileCounts]]) -> list[PastState]:
    """States of these partitions, a second apart."""
    return [PastState(n, 1000 * n, inside, (0,)) for n, inside in enumerate(partitions)]


@given(length=st.integers(0, 200), most=st.integers(2, 60))
def test_items_are_chosen_evenly_with_both_ends(length: int, most: int) -> None:
    """No more than asked for, none twice, in their order, the first and the last among them, steps nearly alike."""
    chosen = evenly(range(length), most)
    assert chosen == sorted(set(chosen))
    assert len(chosen) == min(length, most)
    if length:
        assert (chosen[0], chosen[-1]) == (0, length - 1)
    steps = {later - earlier for earlier, later in pairwise(chosen)}
    assert not steps or max(steps) - min(steps) <= 1


@given(partitions=STATES, most=st.integers(1, 10))
def test_the_worst_partitions_come_first(partitions: list[dict[str, FileCounts]], most: int) -> None:
    """Each partition that ever was is named or counted, with all its numbers; none that is left out was worse."""
    trends = Trends.of(states(partitions), most, unreadable=2)
    labels = {label for inside in partitions for label in inside}
    assert len(trends.partitions) == min(most, len(labels))
    assert len(trends.partitions) + trends.left_out == len(labels)
    assert (trends.snapshot_ids, trends.unreadable) == (tuple(range(len(partitions))), 2)
    for trend in trends.partitions:
        then = [inside.get(trend.label, FileCounts()) for inside in partitions]
        assert (trend.small_files, trend.delete_files) == (
            tuple(c.small_files for c in then), tuple(c.delete_files for c in then),
        )  # fmt: skip
        assert (trend.files, trend.now) == (then[-1].files, then[-1].small_files + then[-1].delete_files)
    worst = [trend.worst for trend in trends.partitions]
    assert worst == sorted(worst, reverse=True)
    left = labels - {trend.label for trend in trends.partitions}
    most_of_left = max(
        (c.small_files + c.delete_files for i in partitions for n, c in i.items() if n in left), default=0
    )
    assert not left or most_of_left <= worst[-1]


@given(data=st.data(), policy=policies())
def test_sizes_count_every_file(data: st.DataObject, policy: SizePolicy) -> None:
    """Now as `inspect` counts them; after a plan as many as are left when it is carried out, of sizes alike."""
    layout = data.draw(layouts(policy))
    plan = plan_merges(layout, policy)
    now, after = file_sizes(layout), file_sizes(layout, plan)
    inspection = inspect(layout, policy, {key: {} for key in layout.partitions}, plan, table="t")
    assert (sum(now.files), now.small) == (inspection.files, inspection.small_files)
    shown = {c.below_bytes: c.files for c in inspection.histogram}
    assert [shown.get(bound, 0) for bound in now.bounds] == list(now.files[:-1])
    assert sum(after.files) == layout.files - plan.files_removed + plan.files_added
    assert min(after.files) >= 0
    assert file_sizes(layout, plan) == (now if not plan.groups else after)


def test_small_files_become_well_sized_ones() -> None:
    """Ten files of a tenth of the target become one that is well sized; the classes say so."""
    layout = layout_of(partition("a", [10_000] * 10), partition("b", [LIMIT, LIMIT - 1]))
    plan = plan_merges(layout, SMALL_TARGET)
    assert document(file_sizes(layout)) == {"bounds": [18_750, 75_000], "files": [10, 1, 1]}
    assert file_sizes(layout, plan).files == (0, 1, 2)
