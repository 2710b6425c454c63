"""The versioning approach, end to end, as a user would write it.

After every micro-batch each partition that it touched is one new file, a new version of that partition. Readers see
the newest version, old ones stay readable for a while, and are cleaned up later without disturbing anybody.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import Row, SparkSession

import icesize
from icesize import failpoints
from icesize.sized_table import SizedTable
from integration.tools import files_per_partition, local_path

KEPT = 3
"""Versions of each partition that stay: the newest, and two to look back at or to go back to."""


def open_orders(spark: SparkSession, name: str) -> SizedTable:
    """A table of orders by day, of which every partition is to be a single file as long as it is small."""
    spark.sql(f"CREATE TABLE {name} (day string, customer string, amount bigint) USING iceberg PARTITIONED BY (day)")
    return icesize.open(spark, name, policy={"max-small-files": 1})


def run_five_batches(spark: SparkSession, table: SizedTable) -> list[int]:
    """Orders of Monday keep coming in, Tuesday begins with the fourth batch; returns the snapshot after each batch."""
    # `absorb`: new rows end up in the partition's small file, so that each version of it is one file
    sink = table.sink("orders", placement="absorb")
    snapshots = []
    for batch in range(5):
        rows = [("mon", f"customer{batch}", 10 * batch)]
        if batch >= 3:
            rows.append(("tue", f"customer{batch}", 100 * batch))
        # a streaming query would do this by `.writeStream.foreachBatch(sink)`
        report = sink.run(spark.createDataFrame(rows, "day string, customer string, amount bigint"), batch)
        snapshots.append(report.snapshot_ids[-1])
    return snapshots


def customers(rows: list[Row]) -> list[str]:
    return sorted(row["customer"] for row in rows)


def test_each_batch_makes_a_version_of_one_file(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """`versions` lists what each batch made of a partition, newest first, and each can be read."""
    table = open_orders(spark, f"lake.{namespace}.orders")
    snapshots = run_five_batches(spark, table)
    assert files_per_partition(lake, f"{namespace}.orders") == {("mon",): 1, ("tue",): 1}

    versions = table.versions({"day": "mon"})
    assert [(v.snapshot_id, v.batch_id, v.files, v.rows) for v in versions] == [
        (snapshots[batch], batch, 1, batch + 1) for batch in (4, 3, 2, 1, 0)
    ]
    # a partition as it was, also while the table goes on
    as_it_was = table.read_version({"day": "mon"}, versions[3].snapshot_id)
    assert customers(as_it_was.collect()) == ["customer0", "customer1"]


def test_old_versions_are_cleaned_up_under_a_reader(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Three versions of each partition stay; a query on one of them reads the same before, while and after."""
    table = open_orders(spark, f"lake.{namespace}.orders")
    snapshots = run_five_batches(spark, table)
    folder = Path(local_path(lake.load_table(f"{namespace}.orders").location()))
    files_before = len(list(folder.glob("data/**/*.parquet")))

    # somebody's long analysis of the oldest version that will be kept
    analysis = spark.read.option("versionAsOf", snapshots[2]).table(table.name)
    before = customers(analysis.collect())
    during: list[list[str]] = []
    with failpoints.armed("before-delete", lambda: during.append(customers(analysis.collect()))):
        report = table.expire_snapshots(keep_versions=KEPT, older_than=timedelta(0))

    assert report.snapshot_ids_expired != ()
    # once before each bunch of files: data files, manifests, manifest lists
    assert len(during) == 3
    for rows in (before, *during, customers(analysis.collect())):
        assert rows == ["customer0", "customer1", "customer2"]
    assert [v.snapshot_id for v in table.versions({"day": "mon"})] == [snapshots[batch] for batch in (4, 3, 2)]
    assert [v.snapshot_id for v in table.versions({"day": "tue"})] == [snapshots[batch] for batch in (4, 3)]
    assert len(list(folder.glob("data/**/*.parquet"))) == files_before - report.files_deleted["data_files"]
    # what is gone is told by name
    with pytest.raises(icesize.IcesizeError, match=str(snapshots[0])):
        table.read_version({"day": "mon"}, snapshots[0])


def test_a_version_is_brought_back(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """After a bad batch a partition is what it was before, at once and for everybody; other partitions stay."""
    table = open_orders(spark, f"lake.{namespace}.orders")
    run_five_batches(spark, table)
    table.expire_snapshots(keep_versions=KEPT, older_than=timedelta(0))

    good = table.versions({"day": "mon"})[2]
    report = table.restore({"day": "mon"}, good.snapshot_id)
    assert report.operations == ("overwrite",)
    # the report says what a restore cannot undo
    assert any("'orders' are gone from the partition and will not be replayed" in note for note in report.notes)

    rows = spark.table(table.name).collect()
    assert customers([row for row in rows if row["day"] == "mon"]) == ["customer0", "customer1", "customer2"]
    assert customers([row for row in rows if row["day"] == "tue"]) == ["customer3", "customer4"]
    # the restore is a version too, so it can be taken back
    newest, bad, *_ = table.versions({"day": "mon"})
    assert (newest.rows, bad.rows) == (3, 5)
    table.restore({"day": "mon"}, bad.snapshot_id)
    assert spark.table(table.name).count() == 7


def test_other_engines_respect_old_versions(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Versions from before the newest snapshots are held by tags, which Iceberg's own expiry leaves alone."""
    name = f"{namespace}.orders"
    table = open_orders(spark, f"lake.{name}")
    snapshots = run_five_batches(spark, table)
    table.expire_snapshots(keep_versions=KEPT, older_than=timedelta(0))
    spark.sql(f"CALL lake.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")

    tagged = {row["snapshot_id"] for row in spark.sql(f"SELECT * FROM lake.{name}.refs WHERE type = 'TAG'").collect()}
    assert snapshots[2] in tagged
    oldest = table.read_version({"day": "mon"}, snapshots[2])
    assert customers(oldest.collect()) == ["customer0", "customer1", "customer2"]
    # an age is given up once there is no reason for it: the tags go with the versions that they held
    table.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert list(lake.load_table(name).metadata.refs) == ["main"]
