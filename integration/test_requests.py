"""The number of requests that each operation on rows sends to an S3 server, as formulas of files and partitions.

The counts do not depend on the machine. A catalog in SQLite is used, whose client reads and writes the table's metadata
file itself. With a REST catalog, its server does that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from pyspark.sql import SparkSession

import icesize
from icesize.sized_table import SizedTable
from integration.object_store import ObjectStore, ObjectStoreProxy, object_store_proxy
from integration.s3_faulted_table import BUCKET
from tests.support.v3_tables import as_v3

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "p", IntegerType(), required=False),
    NestedField(3, "name", StringType(), required=False),
)
BY_P = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
PARTITIONS, ROWS = 6, 600


@dataclass
class Counted:
    """A table whose requests are counted: `lake` is its catalog."""

    lake: SqlCatalog
    proxy: ObjectStoreProxy
    spark: SparkSession

    def create(self, name: str, format_version: int) -> SizedTable:
        """An empty table in partitions."""
        self.lake.create_table(
            f"db.{name}", SCHEMA, partition_spec=BY_P, properties={"format-version": str(format_version)}
        )
        return icesize.open(self.spark, f"db.{name}", catalog=self.lake)

    def table(self, name: str) -> Table:
        return self.lake.load_table(f"db.{name}")

    def batch(self, number: int) -> Any:
        """Rows of every partition; ids repeat after two batches."""
        first = number * ROWS
        columns = f"id % {2 * ROWS} id", f"cast(id % {PARTITIONS} as int) p", "concat('n', id) name"
        return self.spark.range(first, first + ROWS, numPartitions=1).selectExpr(*columns)

    def requests(self, *, data: bool | None = None) -> Counter[str]:
        """The requests by method since the last call; `data` chooses those for data files or for others."""
        seen = [(method, path) for method, path, _ in self.proxy.seen() if data is None or ("/data/" in path) == data]
        return Counter(method for method, _ in seen)

    def forget(self) -> None:
        self.proxy.trouble()


@pytest.fixture(scope="module")
def proxy(store: ObjectStore, servers_dir: Path) -> Iterator[ObjectStoreProxy]:
    (servers_dir / "counted").mkdir()
    with object_store_proxy(servers_dir / "counted", store.endpoint) as found:
        yield found


@pytest.fixture
def counted(spark: SparkSession, store: ObjectStore, proxy: ObjectStoreProxy, tmp_path: Path) -> Counted:
    settings = store.properties(proxy.endpoint)
    lake = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"s3://{BUCKET}/{tmp_path.name}", **settings)
    lake.create_namespace("db")
    return Counted(lake, proxy, spark)


def test_a_batch_writes_each_file_once_and_reads_what_it_merges(counted: Counted) -> None:
    """Beside one request for each data file, a commit writes manifests, lists and the table's metadata: no look-up."""
    sink = counted.create("t", 2).sink("s", query_id="q")
    for number in range(8):
        counted.forget()
        report = sink.run(counted.batch(number), number)
        files, others = counted.requests(data=True), counted.requests(data=False)
        assert files == +Counter(PUT=report.files_added, GET=report.files_removed)
        snapshots = len(report.snapshot_ids)
        # each snapshot: a manifest and its list; the metadata file; what a merge finds in older manifests is known
        assert others["PUT"] <= 2 * snapshots + 1 + (snapshots - 1)
        assert others["GET"] <= (1 if number == 0 else 0)
        assert others.keys() <= {"PUT", "GET"}


def test_a_batch_of_upserts_writes_each_file_once(counted: Counted) -> None:
    """It reads the files that can hold its keys, whose maps it keeps, and the deletes of rows that die."""
    counted.create("u", 2)
    as_v3(counted.lake, "db.u")
    sink = icesize.open(counted.spark, "db.u", catalog=counted.lake).sink("s", query_id="q", mode="upsert", key=["id"])
    for number in range(6):
        live = len(list(counted.table("u").scan().plan_files()))
        counted.forget()
        report = sink.run(counted.batch(number), number)
        seen = counted.requests()
        assert seen["GET"] <= 3 * live + (1 if number == 0 else 0)
        assert seen["PUT"] <= report.files_added + PARTITIONS + 3 * len(report.snapshot_ids) + 2
        assert seen.keys() <= {"PUT", "GET"}


def test_a_compaction_reads_each_file_once(counted: Counted, spark: SparkSession) -> None:
    """N small files in P partitions: N + P requests for data, one for each manifest, and five more."""
    counted.create("c", 2)
    table, appends = counted.table("c"), 5
    for number in range(appends):
        table.append(counted.batch(number).toArrow().cast(table.schema().as_arrow()))
    counted.forget()
    report = icesize.open(None, "db.c", catalog=counted.lake).compact()
    assert (report.files_removed, report.files_added) == (appends * PARTITIONS, PARTITIONS)
    assert counted.requests(data=True) == Counter(GET=appends * PARTITIONS, PUT=PARTITIONS)
    # the metadata file, the list and the manifests; then a manifest, a list and a metadata file
    assert counted.requests(data=False) == Counter(GET=2 + appends, PUT=3)


def test_a_clustering_reads_each_file_once(counted: Counted, spark: SparkSession) -> None:
    """Small groups are sorted in this process: as many requests as a compaction sends."""
    counted.create("k", 2)
    with counted.table("k").transaction() as change:
        change.set_properties({"write.target-file-size-bytes": "2048"})
    table, appends = counted.table("k"), 3
    for number in range(appends):
        table.append(counted.batch(number).toArrow().cast(table.schema().as_arrow()))
    counted.forget()
    report = icesize.open(spark, "db.k", catalog=counted.lake).cluster(["name"])
    assert report.files_removed >= appends * PARTITIONS
    assert counted.requests(data=True) == Counter(GET=report.files_removed, PUT=report.files_added)
    assert counted.requests(data=False)["HEAD"] == 0
    assert counted.requests(data=False)["GET"] <= 2 + appends
    # a manifest, a list and a metadata file, after the metadata file with the choice of columns
    assert counted.requests(data=False)["PUT"] == 4
