"""Plans that move rows of old partition specs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.files import SkipReason
from icesize.planning.merging.groups import OUTPUTS_PER_GROUP
from icesize.planning.merging.moves import plan_moves
from tests.support.layouts import SMALL_TARGET, key, layout_of, partition, policies, thorough

EVERY_SIZE = 1 << 62
REASONS = st.sampled_from([None, None, SkipReason.OLD_SPEC, SkipReason.NOT_PARQUET, SkipReason.HAS_DELETES])


@thorough
@given(st.data())
def test_each_old_file_is_in_one_group_or_has_a_reason(data: st.DataObject) -> None:
    """Groups have files of one old partition and of bounded size, and no budget is exceeded."""
    policy, found = data.draw(policies()), []
    for value in range(data.draw(st.integers(0, 4))):
        sizes = data.draw(st.lists(st.integers(1, 2 * policy.target_file_size_bytes), max_size=20))
        obstacles = data.draw(st.lists(REASONS, min_size=len(sizes), max_size=len(sizes)))
        spec_id = data.draw(st.sampled_from([0, 0, 1]))
        found.append(partition(str(value), sizes, limit=EVERY_SIZE, obstacles=obstacles, spec_id=spec_id))
    layout = layout_of(*found, limit=EVERY_SIZE)
    budget = data.draw(st.none() | st.integers(0, 20 * policy.target_file_size_bytes))
    plan = plan_moves(layout, policy, budget)
    old = [file for facts in found if facts.key.spec_id != layout.spec_id for file in facts.small]
    skipped = [skip.file.path for skip in plan.skipped if skip.file]
    assert Counter(file.path for file in old) == Counter([*(f.path for g in plan.groups for f in g.inputs), *skipped])
    assert budget is None or plan.bytes_to_write <= budget
    for group in plan.groups:
        assert group.moves
        assert {file.partition for file in group.inputs} == {group.partition}
        assert all(file.obstacle in (None, SkipReason.OLD_SPEC) for file in group.inputs)
        most = OUTPUTS_PER_GROUP * policy.target_file_size_bytes
        assert len(group.inputs) == 1 or group.size_bytes <= most
    if budget is None:
        assert not any(skip.reason is SkipReason.OVER_BUDGET for skip in plan.skipped)


def test_reasons_of_files_that_are_not_moved() -> None:
    """Those that cannot be read are ineligible for good; contested and unpaid ones wait."""
    a = partition("a", [10, 10], limit=EVERY_SIZE, spec_id=0, obstacles=[SkipReason.NOT_PARQUET, None])
    b, c = (partition(name, [10], limit=EVERY_SIZE, spec_id=0) for name in "bc")
    plan = plan_moves(layout_of(a, b, c), SMALL_TARGET, 10, contested=[key("b", 0)])
    assert [(group.label, len(group.inputs)) for group in plan.groups] == [("hour=a", 1)]
    assert [skip.reason.value for skip in plan.skipped] == ["NOT_PARQUET", "CONTESTED", "OVER_BUDGET"]
    assert [outcome.label for outcome in plan.ineligible] == ["hour=a", "hour=b"]


@pytest.mark.parametrize("files", [1, 9])
def test_a_single_file_moves_as_several_do(files: int) -> None:
    """Its size does not matter, and deletes need not be due."""
    facts = partition("a", [SMALL_TARGET.target_file_size_bytes] * files, limit=EVERY_SIZE, spec_id=0)
    plan = plan_moves(layout_of(facts), SMALL_TARGET)
    assert sum(len(group.inputs) for group in plan.groups) == files
    assert plan_moves(layout_of(replace(facts, key=key("a"))), SMALL_TARGET).groups == ()
