"""One batch from a DataFrame to a commit: what happens when others, or the disk, get in between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icesize.errors import RewriteFailed, SchemaMismatch, TableError, TableNotFound
from icesize.failpoints import armed
from tests.support.spark_lake import Lake, Make, counted, events, rows_of


def fill(spark: SparkSession, lake: Lake, batches: int, *, name: str = "events", **policy: object) -> Any:
    """A sink whose next batch makes a merge due (k = 3): every batch adds one file to partition h0."""
    sink = lake.open(spark, name, **policy).sink("s")
    for batch in range(batches):
        sink(counted(spark, events(range(batch * 10, batch * 10 + 10))), batch)
    return sink


def test_empty_batch_commits_nothing(spark: SparkSession, lake: Lake, make: Make) -> None:
    """An empty batch is no error and no snapshot, and leaves the ledger as it is."""
    lake.create()
    sink = lake.open(spark).sink("s")
    report = sink.run(make(spark, events([])), 0)
    assert (report.rows, report.snapshot_ids, report.already_committed) == (0, (), False)
    assert str(report).startswith("batch 0: nothing to do")
    assert lake.operations() == []
    assert lake.open(spark).streams() == []


def test_failure_after_writing_leaves_nothing(spark: SparkSession, lake: Lake, make: Make) -> None:
    """An error between writing and commit removes new and merged files, joins the merges, and a retry is exact."""
    lake.create()
    sink = fill(spark, lake, 3)
    before = lake.on_disk()
    batch = make(spark, events(range(30, 40)))
    with armed("files-written", _fail), pytest.raises(KeyboardInterrupt):
        sink(batch, 3)
    assert lake.on_disk() == before
    assert [t.name for t in threading.enumerate() if t.name == "icesize-merges"] == []
    assert sink.run(batch, 3).operations == ("append", "replace")
    assert lake.rows() == rows_of(events(range(40)))


def _fail() -> None:
    raise KeyboardInterrupt


def test_failure_of_the_write_job_leaves_nothing(by_spark: None, spark: SparkSession, lake: Lake) -> None:
    """A value that cannot be written stops the batch while merges run: they are joined and their files removed."""
    lake.create()
    sink = fill(spark, lake, 3)
    before = lake.on_disk()
    # from files: the optimizer would evaluate rows in hand, and find it before the job does
    counted(spark, events(range(40))).write.parquet(f"{lake.folder}/source")
    source = spark.read.parquet(f"{lake.folder}/source")
    bad = source.selectExpr("id", "hour", "if(id < 39, text, raise_error('broken')) AS text")
    with pytest.raises(RewriteFailed, match=r"Cannot write the batch.*broken|Cannot write the batch.*USER_RAISED"):
        sink(bad, 3)
    assert lake.on_disk() == before
    assert len(lake.rows()) == 30


@pytest.mark.smoke
def test_failure_before_the_swap_leaves_nothing(spark: SparkSession, lake: Lake) -> None:
    """An error when everything is staged removes data files; the same batch commits on the next try."""
    lake.create()
    sink = fill(spark, lake, 3)
    before = lake.on_disk()
    with armed("before-swap", _fail), pytest.raises(KeyboardInterrupt):
        sink(counted(spark, events(range(30, 40))), 3)
    assert lake.on_disk() == before
    sink(counted(spark, events(range(30, 40))), 3)
    assert lake.rows() == rows_of(events(range(40)))


def test_failure_after_the_swap_is_known_as_done(spark: SparkSession, lake: Lake) -> None:
    """An error after the commit: nothing is removed, and the replayed batch is skipped."""
    lake.create()
    sink = fill(spark, lake, 3)
    with armed("after-swap", _fail), pytest.raises(KeyboardInterrupt):
        sink(counted(spark, events(range(30, 40))), 3)
    assert sink.run(counted(spark, events(range(30, 40))), 3).already_committed
    assert lake.rows() == rows_of(events(range(40)))
    assert lake.orphans() == set()


def add_column(lake: Lake) -> Callable[[], object]:
    def change() -> None:
        with lake.table().update_schema() as update:
            update.add_column("more", LongType())

    return change


def add_partition_field(lake: Lake) -> Callable[[], object]:
    def change() -> None:
        with lake.table().update_spec() as update:
            update.add_field("id", BucketTransform(2), "id_bucket")

    return change


@pytest.mark.parametrize("change", [add_column, add_partition_field])
def test_change_in_the_middle_drops_the_merge(
    spark: SparkSession, lake: Lake, make: Make, change: Callable[[Lake], Callable[[], object]]
) -> None:
    """Schema or spec changed while a batch runs: its rows land, its merge is dropped and said, nothing is left over."""
    lake.create()
    sink = fill(spark, lake, 3)
    with armed("files-written", change(lake)):
        report = sink.run(make(spark, events(range(30, 40))), 3)
    assert report.operations == ("append",)
    assert report.files_removed == 0
    assert [c for c in report.conflicts if "schema or partition spec changed while the merge ran" in c]
    assert lake.orphans() == set()
    assert [row[:3] for row in lake.rows()] == rows_of(events(range(40)))
    after = sink.run(make(spark, events(range(40, 50))), 4)
    assert after.rows == 10
    assert sorted(row[0] for row in lake.rows()) == list(range(50))


def test_change_between_batches_just_works(spark: SparkSession, lake: Lake) -> None:
    """A column, then a partition field added by somebody else: the next batches have them."""
    lake.create()
    sink = fill(spark, lake, 2)
    add_column(lake)()
    sink(counted(spark, events(range(20, 30))).selectExpr("*", "id * 2 AS more"), 2)
    add_partition_field(lake)()
    report = sink.run(counted(spark, events(range(30, 40))), 3)
    assert report.files_added == 2
    assert {tuple(f.partition._data) for f in lake.files() if f.spec_id == 1} == {("h0", 0), ("h0", 1)}
    assert {row[0]: row[3] for row in lake.rows()} == {i: 2 * i if 20 <= i < 30 else None for i in range(40)}


def test_dropped_table(spark: SparkSession, lake: Lake) -> None:
    """A table that is gone is an error."""
    lake.create()
    sink = fill(spark, lake, 1)
    lake.catalog.drop_table("db.events")
    with pytest.raises(TableNotFound, match=r"Cannot find table 'lake\.db\.events'"):
        sink(counted(spark, events([1])), 1)


def test_recreated_table_between_batches(spark: SparkSession, lake: Lake) -> None:
    """Another table under the same name gets nothing, until it is opened again."""
    lake.create()
    sink = fill(spark, lake, 1)
    table = lake.open(spark)
    lake.catalog.drop_table("db.events")
    lake.create()
    with pytest.raises(TableError, match="dropped and recreated after it was opened"):
        sink(counted(spark, events([1])), 1)
    with pytest.raises(TableError, match="dropped and recreated"):
        table.append(counted(spark, events([1])))
    assert lake.operations() == []
    fill(spark, lake, 1)
    lake.open(spark).append(counted(spark, events([1])))
    assert len(lake.rows()) == 11


def test_recreated_table_in_the_middle(spark: SparkSession, lake: Lake) -> None:
    """A table recreated while a batch runs gets nothing of it."""
    lake.create()
    sink = fill(spark, lake, 1)

    def recreate() -> None:
        lake.catalog.drop_table("db.events")
        lake.create()

    with armed("files-written", recreate), pytest.raises(TableError, match="nothing was written to the new table"):
        sink(counted(spark, events([1])), 1)
    assert lake.operations() == []


def test_rival_append_in_the_middle(spark: SparkSession, lake: Lake) -> None:
    """Another writer's append between planning and commit stays, and so does the merge."""
    lake.create()
    sink = fill(spark, lake, 3)
    with armed("files-written", lambda: lake.table().append(_required(events(range(100, 110))))):
        report = sink.run(counted(spark, events(range(30, 40))), 3)
    assert report.operations == ("append", "replace")
    assert lake.rows() == rows_of(events([*range(40), *range(100, 110)]))


def _required(rows: pa.Table) -> pa.Table:
    return rows.cast(rows.schema.set(0, rows.schema.field("id").with_nullable(False)))


def test_type_of_another_shape_is_refused_before_writing(spark: SparkSession, lake: Lake) -> None:
    """A list where the table has a number is refused; the message names the table as the catalog does."""
    lake.create()
    with pytest.raises(SchemaMismatch, match=r"Cannot write to 'lake\.db\.events'"):
        lake.open(spark).append(counted(spark, events([1])).selectExpr("array(id) AS id", "hour"))
    assert lake.on_disk() == set()
