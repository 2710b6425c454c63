"""What a batch holds, before it is written: rows per partition, counted or expected from the batches before.

Counting reads the batch once more, only the columns that partition values come from. Unasked it is done only where the
batch is cached or made of columnar files, and no longer once predictions are as good; never for a source that would
have to be run again in full.
"""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame

from icesize.clock import WorkLimits
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.routing.expected_rows import Prediction
from icesize.planning.routing.parallelism import tasks_for
from icesize.policy import SizePolicy
from icesize.spark.engine import session
from icesize.spark.engine.jobs import measure_rows
from icesize.spark.routing import partition_keys
from icesize.spark.routing.counting import count_rows
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.write_plan import PartitionRows, RoutedBatch, WritePlan, nothing_to_write, unseen

COUNT_AGAIN_RATIO = 4.0
"""Size of a source over what was expected from which on a batch is counted again. Files of rows that were projected or
filtered away, or that compress less well, are larger than what is written of them."""

LIKELY_ROWS = 0.5
"""Expected rows from which on a partition will rather get a file than not."""


def plan_write(
    df: DataFrame,
    settings: WriteSettings,
    layout: Layout,
    policy: SizePolicy,
    learned: Learned,
    *,
    limits: WorkLimits,
    statistics: str = "auto",
    write_tasks: int | None = None,
    cheap: bool | None = None,
    whole: bool = False,
) -> WritePlan:
    """Count the batch, or expect what earlier ones had, and divide it by weight; else divide it by hash.

    `statistics` is the sink's option. `cheap` is known to callers that have kept the batch; None looks at what it is
    made of. `write_tasks` None: by bytes and cores. With `whole` the writers of new rows may take older small files
    along: then the batch is counted, a task's load has those files too, and a partition is not split over tasks where
    the parts would be small files.
    """
    expected = _expected(learned, settings, layout, policy)
    cores = session.parallelism(df.sparkSession)
    cheap = session.is_cheap_to_read_again(df) if cheap is None else cheap
    # the size of the source is asked for last: Spark has to optimize the plan for it
    unsure = statistics == "auto" and cheap and (not learned.is_reliable or _is_larger(df, expected))
    if whole or statistics == "exact" or unsure:
        counted = count_rows(df, settings)
        if not counted.rows:
            return nothing_to_write()
        sizes = learned.sizes(policy, layout)
        if not sizes.is_known and cheap and (measured := measure_rows(df, settings)) is not None:
            sizes = learned.expect(measured)
        along = _small_bytes(layout, counted) if whole else None
        routed = RoutedBatch(counted, sizes, settings, policy, taken_along=along, is_cheap=cheap)
        tasks = tasks_for(routed.work_bytes, cores, limits.task_bytes)
    elif expected is not None:
        # it may be a thousand times as large as the last ones: then no core may have been left out
        routed, tasks = expected, max(cores, tasks_for(expected.work_bytes, cores, limits.task_bytes))
    else:
        known = learned.sizes(policy, layout)
        bytes_per_row = known.table.bytes_per_row if known.is_known else None
        return unseen(settings, policy, cores, write_tasks, bytes_per_row)
    return replace(routed.over(write_tasks or tasks), expected=expected)


def _is_larger(df: DataFrame, expected: RoutedBatch | None) -> bool:
    """Whether the source is far larger than what was expected, as far as Spark's optimizer knows."""
    return expected is not None and session.source_bytes(df) > COUNT_AGAIN_RATIO * expected.work_bytes


def _expected(learned: Learned, settings: WriteSettings, layout: Layout, policy: SizePolicy) -> RoutedBatch | None:
    """What earlier batches say; None when there are none."""
    prediction, sizes = learned.predict(), learned.sizes(policy, layout)
    if prediction is None or not sizes.is_known:
        return None
    partition_rows = _partition_rows(prediction, settings)
    return RoutedBatch(partition_rows, sizes, settings, policy) if partition_rows.keys else None


def _partition_rows(prediction: Prediction[PartitionKey], settings: WriteSettings) -> PartitionRows:
    keys_of = partition_keys.keys_of(settings.spec, settings.schema)
    known = [p for p in prediction.rows if p.spec_id == settings.spec_id]
    return PartitionRows(
        # hundreds of partitions that rather get nothing would weigh as much as a hot one, were each to cost a file
        rows={p: prediction.rows[p] for p in known if prediction.rows[p] >= LIKELY_ROWS},
        keys={key: partition for partition in known for key in keys_of(partition)},
        in_all=prediction.total_rows,
        unknown_rows=prediction.unknown_rows,
        is_counted=False,
    )


def _small_bytes(layout: Layout, partition_rows: PartitionRows) -> dict[PartitionKey, int]:
    return {
        partition: sum(file.size_bytes for file in facts.small)
        for partition in partition_rows.rows
        if (facts := layout.partitions.get(partition))
    }
