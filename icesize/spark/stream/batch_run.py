"""Writes the files of one batch: its rows, and the merges that were decided on, beside each other."""

from __future__ import annotations

from collections.abc import Mapping

from icesize.maintenance.reporting import MergeResults, WrittenBatch
from icesize.planning.plan import MergeGroup
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.merge_job import MergeRun, finish_all, stopping
from icesize.spark.stream.batch_plan import BatchPlan


def run(planned: BatchPlan) -> WrittenBatch | None:
    """Write the rows and merge; None when there turn out to be no rows. Nothing runs any more when it is over.

    Merging is optional: what fails or is late is left out. Raises SchemaMismatch or RewriteFailed for the rows.
    """
    watch, writer = planned.fitted.batch.watch, planned.write_plan.writer
    runs: list[MergeRun] = []
    with stopping(runs):
        begun = dict(enumerate(planned.merges))
        _start(runs, planned, begun, writer.starts_a_job, planned.write_plan.merge_tasks)
        rows = writer.write(planned.rows, planned.settings, planned.fitted.batch.prefix, planned.absorption)
        deadline_seconds = planned.merge_deadline_seconds(watch.lap("write"))
        if rows.new_rows == 0:
            return None
        decision = planned.decide(rows.files)
        numbers = {group: number for number, group in begun.items()}
        groups = {numbers.setdefault(group, len(numbers)): group for group in decision.merges}
        _start(runs, planned, {number: group for number, group in groups.items() if number not in begun})
        results = finish_all(runs, deadline_seconds, planned.fitted.batch.options.environment)
        merges = MergeResults.of(groups, results, rows.files)
        watch.lap("merge_wait")
    return WrittenBatch(planned.fitted.current, planned.fitted.layout, decision.plan, merges, rows)


def _start(
    runs: list[MergeRun],
    planned: BatchPlan,
    groups: Mapping[int, MergeGroup],
    beside_write_job: bool = False,
    most_tasks: int | None = None,
) -> None:
    """Merge in the background, in a run that is among `runs` before it starts."""
    batch = planned.fitted.batch
    run = MergeRun(
        batch.spark, groups, planned.settings, batch.prefix, limits=batch.options.environment.limits,
        beside_write_job=beside_write_job, cores=Cores(tasks=most_tasks),
    )  # fmt: skip
    runs.append(run)
    run.start()
