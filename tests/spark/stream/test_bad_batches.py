"""Batches that fit no expectation: null and unknown keys, one key, far too many, none, and a spec that changed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, IdentityTransform, Transform, TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    ListType,
    LongType,
    NestedField,
    StringType,
)
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.environment import WorkLimits
from icesize.errors import SchemaMismatch
from icesize.planning.files import PartitionKey
from icesize.planning.routing.traffic import MOST_KEYS, PartitionWrites
from icesize.spark.routing import partition_keys as keys
from icesize.spark.routing.learning import Learned
from icesize.spark.routing.statistics import count_rows, plan_write
from icesize.spark.routing.write_plan import WritePlan
from icesize.spark.stream import process_state
from icesize.spark.stream.sink import Sink
from tests.support.spark_lake import Lake, Make, counted, events, rows_of, uncounted


def of_hour(ids: range, hour: str | None) -> pa.Table:
    """Rows of one partition."""
    return events(ids).set_column(1, "hour", pa.array([hour] * len(ids), pa.string()))


def learned_by(sink: Sink) -> Learned:
    """What the batches of a sink have taught so far."""
    return process_state.stream_state(sink.source, sink.stream_id).learned


def planned(spark: SparkSession, lake: Lake, df: DataFrame, learned: Learned, cheap: bool = False) -> WritePlan:
    """How four tasks would write a batch now."""
    handle = lake.open(spark)._handle
    current = handle.load()
    layout = handle.reader(current.policy).read(current.table.metadata, current.table.io)
    return plan_write(
        df, current.settings(), layout, current.policy, learned, limits=WorkLimits(), write_tasks=4, cheap=cheap
    )


@pytest.mark.smoke
def test_null_partition_values(spark: SparkSession, lake: Lake, make: Make) -> None:
    """Rows without a partition value are a partition like any other: one file a batch, merged, expected."""
    lake.create()
    sink = lake.open(spark).sink("s")
    rows = []
    for number in range(4):
        ids = range(number * 40, number * 40 + 40)
        hours = pa.array([None if i % 4 == 0 else f"h{i % 2}" for i in ids], pa.string())
        rows.append(events(ids).set_column(1, "hour", hours))
        report = sink.run(make(spark, rows[-1]), number)
        assert (report.partitions_touched, report.small_files_max <= 3) == (3, True)
    assert lake.rows() == rows_of(pa.concat_tables(rows))
    assert set(lake.files_per_partition()) == {(None,), ("h0",), ("h1",)}
    expected = learned_by(sink).predict()
    assert expected is not None
    assert expected.rows[PartitionKey(0, (None,))] == pytest.approx(10)


@pytest.mark.parametrize("mode", ["auto", "recent", "exact"])
def test_one_single_key(spark: SparkSession, lake: Lake, mode: str) -> None:
    """Rows of one partition go to as many writers as it may have files, once it is known to be alone."""
    lake.create()
    table = lake.open(spark, max_small_files=6)
    sink = table.sink("s", statistics=mode, write_tasks=4, merge="off")
    files = [sink.run(uncounted(spark, events(range(n * 900, n * 900 + 900))), n).files_added for n in range(3)]
    assert files == ([3, 3, 3] if mode == "exact" else [1, 2, 3])
    assert lake.rows() == rows_of(events(range(2_700)))


def test_unknown_key_where_they_were_heavy(spark: SparkSession, lake: Lake) -> None:
    """Where each batch was of a new partition, the next new one is divided between writers by its rows."""
    lake.create()
    sink = lake.open(spark, max_small_files=6).sink("s", write_tasks=4)
    rows = [of_hour(range(n * 9_000, n * 9_000 + 9_000), f"new {n}") for n in range(5)]
    reports = [sink.run(uncounted(spark, each), n) for n, each in enumerate(rows)]
    assert [r.files_added for r in reports[3:]] == [3, 3]
    assert max(r.writer_skew or 0 for r in reports[3:]) == pytest.approx(4 / 3, rel=0.1)
    assert lake.rows() == rows_of(pa.concat_tables(rows))


def test_unknown_key_where_they_were_light(spark: SparkSession, lake: Lake) -> None:
    """All rows of a batch are of a partition that nobody expected: one file, with all of them, and the next is divided
    again."""
    lake.create()
    sink = lake.open(spark, max_small_files=6).sink("s", write_tasks=4)
    rows = [events(range(n * 400, n * 400 + 400), hours=8) for n in range(3)]
    rows += [of_hour(range(n * 400, n * 400 + 400), "elsewhere") for n in range(3, 6)]
    reports = [sink.run(uncounted(spark, each), n) for n, each in enumerate(rows)]
    assert [r.files_added for r in reports[2:4]] == [8, 1]
    assert reports[5].files_added > 1
    assert lake.rows() == rows_of(pa.concat_tables(rows))


@pytest.mark.parametrize("mode", ["auto", "recent", "exact"])
@pytest.mark.parametrize("source", [counted, uncounted])
def test_empty_batches(by_spark: None, spark: SparkSession, lake: Lake, source: Make, mode: str) -> None:
    """A batch without rows commits nothing, first or later, and changes nothing of what is expected."""
    lake.create()
    sink = lake.open(spark).sink("s", statistics=mode)
    learned = learned_by(sink)
    for number, ids in enumerate([range(0), range(30), range(0)]):
        before = learned.predict()
        report = sink.run(source(spark, events(ids, hours=3)), number)
        assert (report.rows, bool(report.snapshot_ids)) == (len(ids), bool(ids))
        assert (learned.predict() == before) is not bool(ids)
    assert lake.operations() == ["append"]
    assert lake.rows() == rows_of(events(range(30), hours=3))
    assert lake.orphans() == set()


def test_far_more_keys_than_are_remembered(spark: SparkSession, lake: Lake) -> None:
    """Of 100,000 partitions no more than can be remembered are named, the heavy one too; all rows are counted."""
    lake.create()
    settings = lake.open(spark)._handle.load().settings()
    hour = F.when(F.col("id") < 100_000, F.concat(F.lit("h"), F.col("id"))).otherwise("heavy").alias("hour")
    df = spark.range(105_000).select("id", hour, F.lit("text").alias("text"))
    partition_rows = count_rows(df, settings)
    heavy = PartitionKey(settings.spec_id, ("heavy",))
    assert partition_rows.in_all == 105_000
    assert len(partition_rows.rows) <= MOST_KEYS
    assert len(partition_rows.keys) <= MOST_KEYS
    assert partition_rows.rows[heavy] == pytest.approx(5_000, abs=105_000 / 9_000)
    plan = planned(spark, lake, df, Learned(), cheap=True)
    assert plan.known is not None
    assert (plan.known.rows, plan.tasks) == (105_000, 4)
    assert len(plan.known.incoming) <= MOST_KEYS
    placed = plan.to_tasks(df).groupBy(F.spark_partition_id()).count().collect()
    sizes = [row["count"] for row in placed]
    assert sum(sizes) == 105_000
    assert max(sizes) <= 1.25 * 105_000 / 4


def test_partitions_that_died_weigh_nothing(spark: SparkSession, lake: Lake) -> None:
    """Where each batch has new partitions that never come back, bytes are foretold by what batches hold, not by all
    the partitions that are remembered."""
    spec = lake.create().spec().spec_id
    learned = Learned()
    for number in range(12):
        keys = [PartitionKey(spec, (f"{number}-{i}",)) for i in range(200)]
        learned.observe({key: PartitionWrites(10, 2_500) for key in keys})
    known = planned(spark, lake, uncounted(spark, events([1])), learned).known
    assert known is not None
    assert known.size_bytes == pytest.approx(200 * 2_500, rel=0.5)


def test_spec_that_changed_between_batches(spark: SparkSession, lake: Lake) -> None:
    """What was learned of partitions of the old spec is not expected of the new one, which is learned in one batch."""
    lake.create()
    sink = lake.open(spark).sink("s", statistics="recent", write_tasks=4)
    rows = [events(range(n * 120, n * 120 + 120), hours=6) for n in range(4)]
    for number in range(2):
        sink(uncounted(spark, rows[number]), number)
    known = planned(spark, lake, uncounted(spark, rows[2]), learned_by(sink)).known
    assert known is not None
    assert {key.spec_id for key in known.incoming} == {0}
    with lake.table().update_spec() as update:
        update.remove_field("p0_hour")
        update.add_field("id", BucketTransform(4), "id_bucket")
    assert planned(spark, lake, uncounted(spark, rows[2]), learned_by(sink)).known is None
    report = sink.run(uncounted(spark, rows[2]), 2)
    assert (report.rows, report.files_added) == (120, 4)
    after = planned(spark, lake, uncounted(spark, rows[3]), learned_by(sink)).known
    assert after is not None
    assert {key.spec_id for key in after.incoming} == {1}
    assert len(after.incoming) == 4
    report = sink.run(uncounted(spark, rows[3]), 3)
    assert (report.rows, report.files_added) == (120, 4)
    assert Counter(file.spec_id for file in lake.files()) == {0: 12, 1: 8}
    assert lake.rows() == rows_of(pa.concat_tables(rows))


TAGS = Schema(
    NestedField(1, "flag", BooleanType()),
    NestedField(2, "tags", ListType(3, StringType(), element_required=False)),
)


@pytest.mark.parametrize("partitioned", [True, False])
def test_nothing_to_spread_rows_by(
    by_spark: None, spark: SparkSession, lake: Lake, make: Make, partitioned: bool
) -> None:
    """Without a column that can be hashed a partition is one writer's, in each mode, whatever it weighs."""
    lake.create(schema=TAGS, by={"flag": IdentityTransform()} if partitioned else {})
    sink = lake.open(spark, max_small_files=6, bytes_per_row=1_000).sink("s", write_tasks=4)
    rows = [
        pa.table({"flag": [i % 5 == 0 for i in range(500)], "tags": [[f"{n}", f"{i}"] for i in range(500)]})
        for n in range(2)
    ]
    for number, each in enumerate(rows):
        report = sink.run(make(spark, each), number)
        assert report.files_added == (2 if partitioned else 1)
    assert lake.rows() == rows_of(pa.concat_tables(rows))


def test_table_that_was_made_anew(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """What was learned of a table is forgotten with it, whatever the partitions of the one that has its name now."""
    lake.create()
    lake.open(spark).append(counted(spark, events(range(40), hours=4)))
    lake.catalog.drop_table("db.events")
    lake.create(by={"id": IdentityTransform(), "hour": IdentityTransform()})
    report = lake.open(spark).append(counted(spark, events(range(12), hours=4)))
    assert (report.rows, report.files_added) == (12, 12)
    assert lake.rows() == rows_of(events(range(12), hours=4))


@pytest.mark.parametrize("values", [(), ("h1", "h2"), (1,), (None, None)])
def test_partitions_of_another_spec_have_no_keys(values: tuple[object, ...]) -> None:
    """Values that do not fit the spec have no routing key, and raise nothing."""
    schema = Schema(NestedField(1, "d", DecimalType(9, 2)), NestedField(2, "x", DoubleType()))
    fields = PartitionField(1, 1000, IdentityTransform(), "d"), PartitionField(2, 1001, IdentityTransform(), "x")
    of = keys.keys_of(PartitionSpec(*fields), schema)
    assert len(of(PartitionKey(0, values))) == (1 if values == (None, None) else 0)


TEXTS = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))


@pytest.mark.parametrize("statistics", ["exact", "recent"])
@pytest.mark.parametrize("transform", [BucketTransform(64), IdentityTransform(), TruncateTransform(2)], ids=str)
def test_text_that_is_no_utf8(
    by_spark: None, spark: SparkSession, lake: Lake, transform: Transform[Any, Any], statistics: Any
) -> None:
    """Spark makes such text of binary values: its bucket is that of its bytes, but it is no value of a manifest."""
    lake.create(schema=TEXTS, by={"name": transform})
    sink = lake.open(spark).sink("s", statistics=statistics)
    rows = spark.range(100).selectExpr("id", "cast(unhex(if(id % 2 = 0, '61FF62', '61')) as string) AS name")
    if not isinstance(transform, BucketTransform):
        with pytest.raises(SchemaMismatch, match="Cannot write into partition field 'p0_name': a value is no UTF-8"):
            sink.run(rows, 0)
        return
    for number in range(2):
        assert sink.run(rows, number).rows == 100
    rows_of_bucket = Counter[object]()
    for file in lake.files():
        rows_of_bucket[file.partition[0]] += file.record_count
    assert rows_of_bucket == {BucketTransform(64).transform(BinaryType())(each): 100 for each in (b"a\xffb", b"a")}
