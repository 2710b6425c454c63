"""What a batch merges, and when that is decided: before its rows are written, or once its files are known.

append           the number of new files is enough: before the batch is written, where it is known or expected; what
                 was not expected is merged when it is written
absorb           new files are merged themselves, so they have to be there first
absorb, written  the writers of new rows take older small files along: before, always
once
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.after_write import complete_plan, divided, plan_absorbing
from icesize.planning.merging.planner import plan_merges
from icesize.planning.plan import MergeGroup, Plan
from icesize.policy import SizePolicy
from icesize.spark.routing.write_plan import WritePlan


@dataclass(frozen=True)
class Decision:
    """What is merged with a batch: `merges` by themselves, files of `absorption` by the writers of the new rows."""

    plan: Plan
    merges: Sequence[MergeGroup]
    absorption: Absorption = NOTHING


class Placement(Protocol):
    """Decides for one batch on one state of the table."""

    def before(self, write_plan: WritePlan) -> Decision | None:
        """What can be said before the rows are written; None: `after` is asked."""

    def after(self, written: Sequence[WrittenFile], begun: Decision | None) -> Decision:
        """What is due now that these files are about to be added; merges of `begun`, which was decided on a prediction,
        are among its merges as they were, or given up."""


@dataclass(frozen=True)
class Appending:
    """New files stay as they are, older small ones make place for them; none with `merging` False."""

    layout: Layout
    policy: SizePolicy
    contested: frozenset[PartitionKey] = frozenset()
    merging: bool = True

    def before(self, write_plan: WritePlan) -> Decision | None:
        return (
            None
            if write_plan.incoming is None
            else self._decide(write_plan.incoming, write_plan.size_bytes or 0.0, None)
        )

    def after(self, written: Sequence[WrittenFile], begun: Decision | None) -> Decision:
        incoming: dict[PartitionKey, int] = {}
        for file in written:
            is_small = file.size_bytes < self.layout.small_file_limit_bytes
            incoming[file.partition] = incoming.get(file.partition, 0) + is_small
        return self._decide(incoming, sum(file.size_bytes for file in written), begun)

    def _decide(self, incoming: Mapping[PartitionKey, int], batch_bytes: float, begun: Decision | None) -> Decision:
        layout, policy, budget_bytes = self.layout, self.policy, self.policy.budget_for(int(batch_bytes))
        if not self.merging:
            layout = Layout(layout.snapshot_id, layout.sequence_number, layout.spec_id, layout.small_file_limit_bytes)
        contested = self.contested
        if begun is None:
            plan = plan_merges(layout, policy, incoming=incoming, budget_bytes=budget_bytes, contested=contested)
        else:
            plan = complete_plan(begun.plan, layout, policy, incoming, budget_bytes=budget_bytes, contested=contested)
        return Decision(plan, plan.groups)


@dataclass(frozen=True)
class Absorbing:
    """New files are merged with the older small ones of their partition, in the commit that adds them."""

    layout: Layout
    policy: SizePolicy
    contested: frozenset[PartitionKey] = frozenset()

    def before(self, write_plan: WritePlan) -> Decision | None:
        return None

    def after(self, written: Sequence[WrittenFile], begun: Decision | None) -> Decision:
        number = self.layout.sequence_number + 1
        new = [FileFact(file.path, file.size_bytes, file.rows, file.partition, number) for file in written]
        plan = self._plan(new)
        return Decision(plan, plan.groups)

    def _plan(self, new: Sequence[FileFact]) -> Plan:
        budget_bytes = self.policy.budget_for(sum(file.size_bytes for file in new))
        return plan_absorbing(self.layout, self.policy, new, budget_bytes=budget_bytes, contested=self.contested)


@dataclass(frozen=True)
class WritingOnce(Absorbing):
    """New rows and the rows of the small files that they are to be merged with are written into the same files."""

    def after(self, written: Sequence[WrittenFile], begun: Decision | None) -> Decision:
        # the files have been taken along by now
        return begun or super().after(written, begun)

    def before(self, write_plan: WritePlan) -> Decision | None:
        number = self.layout.sequence_number + 1
        new = [FileFact("", math.ceil(weight), 0, key, number) for key, weight in write_plan.weights.items()]
        plan = self._plan(new)
        apart, along = divided(plan.groups, new)
        by_writer: dict[int, tuple[MergeGroup, ...]] = {}
        for key, inputs in along.items():
            owner = write_plan.owners[key]
            by_writer[owner] = (*by_writer.get(owner, ()), MergeGroup(inputs, key))
        return Decision(plan, apart, Absorption(by_writer))
