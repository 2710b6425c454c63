"""What is known of a batch before it is written, and what that may cost."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.environment import WorkLimits
from icesize.planning.files import PartitionKey
from icesize.spark.engine import session
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.statistics import is_small, plan_rows_in_hand, plan_write
from icesize.spark.routing.write_plan import WritePlan
from tests.support.spark_lake import Lake, counted, events, rows_of, uncounted


def planned(df: DataFrame, lake: Lake, spark: SparkSession, **policy: object) -> WritePlan:
    """How a batch would be written into the table as it is."""
    handle = lake.open(spark, **policy)._handle
    current = handle.load()
    layout = handle.reader(current.policy).read(current.table.metadata, current.table.io)
    return plan_write(df, current.settings(), layout, current.policy, Learned(), limits=WorkLimits())


def test_batches_that_are_cheap_to_count(spark: SparkSession, tmp_path: Path) -> None:
    """Local, cached and columnar batches are cheap to read again, through projections and filters."""
    local = counted(spark, events(range(10)))
    local.write.parquet(f"{tmp_path}/parquet")
    local.write.orc(f"{tmp_path}/orc")
    local.write.json(f"{tmp_path}/json")
    parquet = spark.read.parquet(f"{tmp_path}/parquet")
    slow = spark.read.json(f"{tmp_path}/json")
    cached = slow.groupBy("hour").count().cache()
    union = parquet.where("id > 3").select("id").union(local.select("id"))
    cheap = [local, parquet, spark.read.orc(f"{tmp_path}/orc"), cached, union]
    assert [session.is_cheap_to_read_again(df) for df in cheap] == [True] * len(cheap)
    assert [is_small(df, WorkLimits(), lambda: None) for df in cheap] == [True] * len(cheap)
    assert not is_small(spark.range(10**7), WorkLimits(), lambda: 1)
    costly = {
        "text": slow,
        "rdd": spark.createDataFrame(local.rdd, local.schema),
        "python": parquet.withColumn("text", F.udf(lambda text: text, "string")("text")),
        "arrow": uncounted(spark, events([1])),
        "join": parquet.join(local, "id"),
        "aggregate": parquet.groupBy("hour").count(),
        "random": parquet.withColumn("text", F.rand()),
        "subquery": parquet.where("id IN (SELECT max(id) FROM range(3))"),
    }
    assert {name: session.is_cheap_to_read_again(df) for name, df in costly.items()} == dict.fromkeys(costly, False)
    assert not any(is_small(df, WorkLimits(), lambda: None) for df in costly.values())
    limits = WorkLimits(driver_rows=100)
    assert [is_small(costly["join"], limits, lambda rows=rows: rows) for rows in (50, 51)] == [True, False]
    assert not is_small(costly["rdd"], limits, lambda: 1)
    cached.unpersist()


@pytest.mark.smoke
def test_counted_batch(spark: SparkSession, lake: Lake) -> None:
    """A cheap batch is counted by partition; its size is rows times bytes per row."""
    spec = lake.create().spec().spec_id
    plan = planned(counted(spark, events(range(30), hours=3)), lake, spark, bytes_per_row=10)
    keys = {PartitionKey(spec, (f"h{i}",)) for i in range(3)}
    assert plan.known is not None
    assert plan.known.incoming == dict.fromkeys(keys, 1)
    assert (plan.known.rows, plan.known.size_bytes, plan.tasks) == (30, 300.0, 1)


def test_counted_batch_of_an_unpartitioned_table(spark: SparkSession, lake: Lake) -> None:
    """Without partitions the whole batch is one, and it may be split like any other."""
    lake.create(by={})
    plan = planned(counted(spark, events(range(50))), lake, spark, bytes_per_row=100_000, max_small_files=4)
    assert plan.known is not None
    assert (plan.known.rows, plan.known.size_bytes, plan.tasks) == (50, 5e6, 2)
    assert set(plan.known.incoming) == {PartitionKey(0, ())}


def test_empty_batches(spark: SparkSession, lake: Lake) -> None:
    """An empty batch that is counted has no rows; one that is not counted is unknown."""
    lake.create()
    known = planned(counted(spark, events([])), lake, spark).known
    assert known is not None
    assert known.rows == 0
    assert planned(uncounted(spark, events([])), lake, spark).known is None


def test_row_size_is_measured_then_learned(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """Bytes per row come from the policy, else from the table's files, else from an encoded sample of the batch."""
    lake.create()
    batch = counted(spark, events(range(2000)))
    assert planned(batch, lake, spark, bytes_per_row=7).bytes_per_row == 7
    measured = planned(batch, lake, spark).bytes_per_row
    assert measured is not None
    lake.open(spark).append(batch)
    file = lake.files()[0]
    true = file.file_size_in_bytes / file.record_count
    learned = planned(batch, lake, spark).bytes_per_row
    assert learned is not None
    assert 0.5 * true < measured < 2 * true
    assert 0.5 * true < learned < 2 * true
    assert learned != measured


@pytest.mark.parametrize("hours", [0, 4])
def test_uncounted_batch_is_computed_once(spark: SparkSession, lake: Lake, hours: int) -> None:
    """A source that is not cheap is run exactly once, with and without partitions; its rows land all the same."""
    lake.create(by=None if hours else {})
    seen = spark.sparkContext.accumulator(0)

    def count(row: object) -> object:
        seen.add(1)
        return row

    rows = events(range(200), hours=hours or 1)
    df = spark.createDataFrame(spark.createDataFrame(rows).rdd.map(count), spark.createDataFrame(rows).schema)
    before = seen.value
    report = lake.open(spark).append(df)
    assert seen.value - before == report.rows == 200
    assert lake.rows() == rows_of(rows)
    assert max(lake.files_per_partition().values()) == 1


def test_cached_batch_is_computed_once(spark: SparkSession, lake: Lake) -> None:
    """A costly batch that the caller has cached is counted and written from the cache."""
    lake.create()
    seen = spark.sparkContext.accumulator(0)

    def count(row: object) -> object:
        seen.add(1)
        return row

    local = spark.createDataFrame(events(range(100), hours=2))
    df = spark.createDataFrame(local.rdd.map(count), local.schema).cache()
    report = lake.open(spark).append(df)
    df.unpersist()
    assert seen.value == report.rows == 100


def test_one_task_per_partition(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """Partitions of equal weight are written by one task each: as many files as partitions, counted or not."""
    for i, make in enumerate((counted, uncounted)):
        lake.create(f"t{i}")
        report = lake.open(spark, f"t{i}", bytes_per_row=1500).append(make(spark, events(range(4000), hours=12)))
        assert report.files_added == 12
        assert lake.files_per_partition(f"t{i}") == Counter({(f"h{h}",): 1 for h in range(12)})


def test_hot_partition_is_split_within_its_slots(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """One heavy partition is written by several tasks, by at most k // 2 of them while one file would hold its rows."""
    ids = [*range(0, 4000, 2), 1, 3, 5]
    rows = events(ids, hours=2)
    for k, files in ((6, 2), (3, 1)):
        lake.create(f"k{k}")
        table = lake.open(spark, f"k{k}", bytes_per_row=2000, max_small_files=k, target_file_size_bytes=8_000_000)
        table.append(counted(spark, rows))
        assert lake.files_per_partition(f"k{k}") == Counter({("h0",): files, ("h1",): 1})
        assert lake.rows(f"k{k}") == rows_of(rows)


def test_large_partition_gets_a_task_per_file(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """A partition of two files' worth becomes two files although k // 2 is one; none of them counts as small."""
    spec = lake.create().spec().spec_id
    rows = events(range(1000))
    known = planned(counted(spark, rows), lake, spark, bytes_per_row=2000, max_small_files=2).known
    assert known is not None
    assert known.incoming == {PartitionKey(spec, ("h0",)): 0}
    lake.open(spark, bytes_per_row=2000, max_small_files=2).append(counted(spark, rows))
    assert lake.files_per_partition() == Counter({("h0",): 2})


def test_small_file_of_many_rows_is_not_fetched(spark: SparkSession, lake: Lake, tmp_path: Path) -> None:
    """A file of a few kB may hold more rows than the driver takes: then Spark writes them, and they are all there."""
    lake.limits = WorkLimits(driver_rows=99)
    lake.create()
    handle = lake.open(spark)._handle
    current = handle.load()
    layout = handle.reader(current.policy).read(current.table.metadata, current.table.io)
    for rows, in_hand in ((99, True), (100, False)):
        counted(spark, events(range(rows))).write.parquet(f"{tmp_path}/{rows}")
        batch = spark.read.parquet(f"{tmp_path}/{rows}")
        planned = plan_rows_in_hand(batch, current.settings(), layout, current.policy, Learned(), limits=lake.limits)
        assert (planned is not None) is in_hand
    lake.open(spark).append(batch)
    assert lake.rows() == rows_of(events(range(100)))
