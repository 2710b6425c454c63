"""Batches of upserts that the driver cannot hold: it resolves them slice by slice, with the same result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import DataFrame, SparkSession

import icesize
from icesize import failpoints
from icesize.errors import BatchError
from icesize.planning.cluster_by import ClusterBy
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.commit import batch_commit
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.lookup import TableFiles
from icesize.table.upserts.state_files import FilesWithBounds
from tests.support.spark_lake import Lake
from tests.support.tables import check
from tests.support.v3_tables import as_v3

ORDERS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "state", StringType()),
    NestedField(3, "version", LongType()),
)
RULE: dict[str, Any] = {"key": "id", "order_by": "version", "delete_when": "op = 'd'", "except_columns": "op"}
Change = tuple[int, str | None, int, str]


@pytest.fixture(params=[(2, True), (3, True), (3, False)], ids=["v2", "v3", "v3 unpartitioned"])
def orders(request: pytest.FixtureRequest, spark: SparkSession, lake: Lake) -> SizedTable:
    """An empty table for which the driver holds three events at a time."""
    version, is_partitioned = request.param
    lake.create("orders", ORDERS, {"state": IdentityTransform()} if is_partitioned else {})
    if version == 3:
        as_v3(lake.catalog, "db.orders")
    lake.limits = replace(lake.limits, driver_upserts=3)
    return lake.open(spark, "orders")


def changes(spark: SparkSession, rows: Sequence[Change]) -> DataFrame:
    return spark.createDataFrame(list(rows), "id long, state string, version long, op string")


def left(lake: Lake) -> list[tuple[int, str, int]]:
    check(lake.table("orders"))
    return sorted(lake.rows("orders"))


def upserted(report: Report) -> tuple[int, ...]:
    assert report.upsert is not None
    return tuple(report.upsert[name] for name in ("events", "keys", "updated", "deleted", "late"))


def test_a_large_batch_has_the_result_of_a_small_one(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """New versions, deletes, late and repeated events of a batch in slices, over a first load in slices."""
    first = orders.upsert(changes(spark, [(key, "new", 5, "i") for key in range(40)]), **RULE)
    assert (first.operations, upserted(first)) == (("append",), (40, 40, 0, 0, 0))
    batch: list[Change] = [(key, "paid", 6, "u") for key in range(10)]
    batch += [(key, "sent", 7, "u") for key in range(5)] + [(key, None, 6, "d") for key in range(10, 15)]
    batch += [(key, "late", 4, "u") for key in range(15, 20)] + [(key, "new", 1, "i") for key in range(40, 45)]
    report = orders.upsert(changes(spark, batch), except_columns="op")

    assert (report.operations[0], upserted(report)) == ("overwrite", (30, 25, 10, 5, 5))
    expected = [(key, "sent" if key < 5 else "paid", 7 if key < 5 else 6) for key in range(10)]
    expected += [(key, "new", 5) for key in range(15, 40)] + [(key, "new", 1) for key in range(40, 45)]
    assert left(lake) == expected
    assert lake.orphans("orders") == set()
    assert upserted(orders.upsert(changes(spark, batch[:2]), except_columns="op")) == (2, 2, 0, 0, 2)


def test_a_large_batch_after_a_small_one_comes_in_slices(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """A batch that is too large is not fetched as a whole, and one after it, small or empty, comes in slices, too."""
    lake.limits = replace(lake.limits, driver_upserts=10)
    table = lake.open(spark, "orders")
    table.upsert(changes(spark, [(0, "new", 5, "i")]), **RULE)
    report = table.upsert(changes(spark, [(key, "paid", 6, "u") for key in range(40)]), except_columns="op")

    assert report.conflicts == ("the batch has more rows than the driver holds, and was read again in slices",)
    assert left(lake) == [(key, "paid", 6) for key in range(40)]
    assert table.upsert(changes(spark, [(0, "sent", 7, "u")]), except_columns="op").conflicts == ()
    assert table.upsert(changes(spark, [(0, "late", 6, "u")]).limit(0), except_columns="op").conflicts == ()


def test_a_load_of_an_unpartitioned_table_has_few_files(spark: SparkSession, lake: Lake) -> None:
    """Slices are not files: one writer takes the rows of all of them."""
    lake.create("orders", ORDERS, {})
    lake.limits = replace(lake.limits, driver_upserts=3)
    report = lake.open(spark, "orders").upsert(changes(spark, [(key, "new", 1, "i") for key in range(100)]), **RULE)
    assert report.files_added == 1


def test_updated_rows_keep_their_ids(spark: SparkSession, lake: Lake) -> None:
    """In format v3, the new version of a row has the row id of the old one."""
    lake.create("orders", ORDERS, {})
    as_v3(lake.catalog, "db.orders")
    lake.limits = replace(lake.limits, driver_upserts=3)
    table = lake.open(spark, "orders")
    table.upsert(changes(spark, [(key, "new", 1, "i") for key in range(8)]), **RULE)
    before = ids(lake)
    table.upsert(changes(spark, [(key, "paid", 2, "u") for key in range(4, 12)]), except_columns="op")
    after = ids(lake)
    assert {key: after[key] for key in range(8)} == before
    assert len(set(after.values())) == 12


def ids(lake: Lake) -> dict[int, int]:
    """The row id of each live row, by key."""
    handle = TableHandle(lake.catalog, ("db", "orders"))
    current = handle.load()
    files = TableFiles(current.settings())
    state = batch_commit.state_of(handle, current)
    live = FilesWithBounds.of(state, ClusterReader(ClusterBy(("id",), (1,), "keys", 0)))
    found = dict[int, int]()
    for file, deleted in live.with_deleted([live.noted(each) for each in live.files], files):
        rows = [row for part in files.read(file, ["id"], lineage=True) for row in part.to_pylist()]
        found |= {row["id"]: row["_row_id"] for place, row in enumerate(rows) if place not in deleted}
    return found


@pytest.mark.parametrize("key", [7, 99])
def test_rows_of_others_in_between(spark: SparkSession, lake: Lake, orders: SizedTable, key: int) -> None:
    """If another writer commits first, the slices are resolved on its state, and their files are used again."""
    orders.upsert(changes(spark, [(each, "new", 1, "i") for each in range(10)]), **RULE)
    rival = icesize.open(None, "db.orders", catalog=lake.catalog)
    todo = [pa.table({"id": [key], "state": ["theirs"], "version": [2], "op": ["u"]})]

    def act() -> None:
        if todo:
            rival.upsert(todo.pop(), except_columns="op")

    with failpoints.armed("before-swap", act):
        report = orders.upsert(changes(spark, [(each, "ours", 3, "u") for each in range(10)]), except_columns="op")
    assert not any("written again" in each for each in report.conflicts)
    expected = [(each, "ours", 3) for each in range(10)]
    assert left(lake) == expected + ([(99, "theirs", 2)] if key == 99 else [])


def test_a_rule_that_changes_in_between(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """A batch that was resolved by an earlier rule is planned again, and follows the new one."""
    orders.upsert(changes(spark, [(each, "new", 1, "i") for each in range(10)]), **RULE)
    rival = icesize.open(None, "db.orders", catalog=lake.catalog)
    todo = [{"ties": "max_row"}]

    def act() -> None:
        if todo:
            rival.rekey(**todo.pop())

    with failpoints.armed("files-written", act):
        report = orders.upsert(changes(spark, [(each, "paid", 3, "u") for each in range(10)]), except_columns="op")
    assert report.conflicts == (
        "the batch was written again: the key of the table was changed while the batch was written",
    )
    assert left(lake) == [(each, "paid", 3) for each in range(10)]


def test_columns_that_are_never_null(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """A batch whose columns cannot be NULL, as those of `range`, is resolved, too."""
    rows = spark.range(10).selectExpr("id", "'new' as state", "id as version", "'i' as op")
    orders.upsert(rows, **RULE)
    assert left(lake) == [(key, "new", key) for key in range(10)]


def test_large_batches_remember_deletes(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """Slices store the deletes that they have, and compare with those of earlier batches."""
    rule = {**RULE, "tombstones": "2 days"}
    orders.upsert(changes(spark, [(key, "new", 1, "i") for key in range(10)]), **rule)
    orders.upsert(changes(spark, [(key, None, 5, "d") for key in range(10)]), except_columns="op")
    report = orders.upsert(changes(spark, [(key, "late", 4, "u") for key in range(10)]), except_columns="op")
    assert (upserted(report)[-1], left(lake)) == (10, [])


def test_a_slice_refuses_the_batch(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """What one slice refuses is refused for all, and nothing is left."""
    tied = [(1, "a", 1, "i"), (1, "b", 1, "i"), *((key, "new", 1, "i") for key in range(5, 9))]
    with pytest.raises(BatchError, match="1 key has different events of the same order"):
        orders.upsert(changes(spark, tied), **RULE)
    assert (lake.rows("orders"), lake.orphans("orders")) == ([], set())


def test_expensive_rows_are_computed_once(spark: SparkSession, lake: Lake, orders: SizedTable) -> None:
    """Rows of a Python function stay in the cache while the batch runs, and leave it afterwards."""
    rows = changes(spark, [(key, "new", 1, "i") for key in range(10)])
    seen = spark.sparkContext.accumulator(0)

    def count(batches):  # type: ignore[no-untyped-def]
        for batch in batches:
            seen.add(batch.num_rows)
            yield batch

    df = rows.mapInArrow(count, rows.schema)
    orders.sink("s", mode="upsert", **RULE)(df, 0)
    assert (seen.value, df.is_cached, len(lake.rows("orders"))) == (10, False, 10)
