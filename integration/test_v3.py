"""Tables of format v3 that Spark and icesize write in turn: Spark reads rows, their ids and deletion vectors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from icesize.sized_table import SizedTable
from integration.evolution.readers import duckdb_with_iceberg
from integration.tools import data_files, local_path, operations, sized, spark_rows

DUCKDB = cache(duckdb_with_iceberg)
"""One connection for all tests."""


@pytest.fixture(params=["lake", "rest"])
def catalog_name(request: pytest.FixtureRequest) -> str:
    """Catalogs of which PyIceberg writes the metadata, and of which a server does."""
    return str(request.param)


@dataclass
class V3:
    """A table of columns id, p and v, and what is known of its rows."""

    spark: SparkSession
    catalog: Catalog
    name: str
    policy: dict[str, object] = field(default_factory=dict)
    lineage: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Row id and number of the last change of each row, by the row's `id`."""

    @property
    def short(self) -> str:
        return self.name.partition(".")[2]

    @property
    def table(self) -> Table:
        return self.catalog.load_table(self.short)

    @property
    def sized(self) -> SizedTable:
        return sized(self.spark, self.name, **self.policy)

    def create(self, version: int = 3, **properties: str) -> V3:
        options = {"format-version": str(version), "write.delete.mode": "merge-on-read", **properties}
        options |= {"write.update.mode": "merge-on-read", "write.distribution-mode": "none"}
        written = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        columns = "(id bigint, p string, v bigint) USING iceberg PARTITIONED BY (p)"
        self(f"CREATE TABLE {{}} {columns} TBLPROPERTIES ({written})")
        return self

    def __call__(self, statement: str) -> list[tuple[Any, ...]]:
        return spark_rows(self.spark, statement.format(self.name))

    def insert(self, ids: Iterable[int], p: str = "a") -> None:
        """One file with these rows, by Spark."""
        rows = [(i, p, i * 10) for i in ids]
        df = self.spark.createDataFrame(rows, "id bigint, p string, v bigint").coalesce(1)
        df.writeTo(self.name).append()

    def refreshed(self) -> None:
        self(f"REFRESH TABLE {self.name}")

    def check(self, changed: Iterable[int] = (), new: Iterable[int] = (), gone: Iterable[int] = ()) -> None:
        """No row but those named has another id or another number of its last change than before."""
        self.refreshed()
        found = {row[0]: row[1:] for row in self("SELECT id, _row_id, _last_updated_sequence_number FROM {}")}
        changed, new, gone = set(changed), set(new), set(gone)
        assert found.keys() == (self.lineage.keys() | new) - gone
        for i, (row_id, number) in found.items():
            if i in new:
                continue
            assert row_id == self.lineage[i][0], f"row {i}"
            assert (number == self.lineage[i][1]) == (i not in changed), f"row {i}"
        assert len({row_id for row_id, _ in found.values()}) == len(found), "ids are unique"
        self.lineage = {i: (row_id, number) for i, (row_id, number) in found.items()}
        verification = self.sized.verify()
        assert not [finding for finding in verification.findings if finding.is_error]
        scanned = self.table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()
        assert sorted(scanned) == sorted(found)
        location = local_path(self.table.metadata_location)
        by_duckdb = DUCKDB().execute(f"SELECT id FROM iceberg_scan('{location}')").fetchall()
        assert sorted(i for (i,) in by_duckdb) == sorted(found)

    def expire(self) -> None:
        """All snapshots but the last, by Iceberg's own procedure."""
        catalog = self.name.partition(".")[0]
        options = "older_than => TIMESTAMP '2100-01-01', retain_last => 1"
        self(f"CALL {catalog}.system.expire_snapshots(table => '{self.short}', {options})")

    def vectors(self) -> list[tuple[Any, ...]]:
        return self("SELECT file_path, referenced_data_file, record_count FROM {}.delete_files")


@pytest.fixture
def v3(spark: SparkSession, catalog_name: str, request: pytest.FixtureRequest, namespace: str) -> V3:
    """A table that does not exist yet."""
    catalog = request.getfixturevalue(catalog_name)
    return V3(spark, catalog, f"{catalog_name}.{namespace}.t")


def test_appends_and_merges(v3: V3) -> None:
    """Rows keep their ids through merges of files of Spark and icesize, and through a second merge."""
    v3.create()
    v3.insert(range(5))
    v3.check(new=range(5))
    for start in (10, 20):
        df = v3.spark.createDataFrame([(i, "a", i) for i in range(start, start + 3)], "id long, p string, v long")
        report = v3.sized.append(df)
        assert report.operations == ("append",)
        v3.check(new=range(start, start + 3))
    for _ in range(2):
        assert v3.sized.compact().operations == ("replace",)
        v3.check()
        assert len(data_files(v3.catalog, v3.short)) == 1
        v3.insert([len(v3.lineage) + 100])
        v3.check(new=[len(v3.lineage) + 100])


def test_spark_changes_rows_between_merges(v3: V3) -> None:
    """Deleted rows stay deleted, vectors go with their files, and changed rows keep their ids."""
    v3.create()
    for start in (0, 10, 20):
        v3.insert(range(start, start + 10))
    v3.check(new=range(30))
    v3("DELETE FROM {} WHERE id IN (3, 14, 15)")
    v3.check(gone=[3, 14, 15])
    assert [row[2] for row in v3.vectors()] == [1, 2]
    v3("UPDATE {} SET v = -1 WHERE id IN (5, 16, 27)")
    v3.check(changed=[5, 16, 27])
    assert v3.sized.compact().operations == ("replace",)
    v3.check()
    assert v3.vectors() == []
    assert len(data_files(v3.catalog, v3.short)) == 1
    v3("DELETE FROM {} WHERE id = 27")
    v3.insert([40])
    v3.check(gone=[27], new=[40])
    assert v3.sized.compact().operations == ("replace",)
    v3.check()
    assert sorted(v for (v,) in v3("SELECT v FROM {} WHERE v < 0")) == [-1, -1]


def test_copied_pages(v3: V3) -> None:
    """Where pages are copied, columns of the row lineage are made beside them, for both of Spark's readers."""
    v3.create()
    for start in range(0, 120_000, 40_000):
        df = v3.spark.range(start, start + 40_000).selectExpr("id", "'a' p", "xxhash64(id) v").coalesce(1)
        df.writeTo(v3.name).append()
    v3.check(new=range(120_000))
    v3.policy = {"target_file_size_bytes": 64_000_000}
    report = v3.sized.compact()
    assert report.bytes_copied > 0
    assert report.decode_reasons == {}
    v3.check()
    v3("DELETE FROM {} WHERE id % 30000 = 7")
    v3.check(gone=range(7, 120_000, 30_000))
    v3.insert([500_000])
    v3.check(new=[500_000])
    v3.spark.conf.set("spark.sql.iceberg.vectorization.enabled", "false")
    try:
        v3.check()
        assert v3.sized.compact().bytes_decoded > 0, "pages with deleted rows are encoded again"
        v3.check()
    finally:
        v3.spark.conf.unset("spark.sql.iceberg.vectorization.enabled")
    v3.check()


def test_clustering(v3: V3) -> None:
    """Rows in another order keep their ids."""
    v3.create()
    for start in range(4):
        v3.insert(range(start, 40, 4))
    v3.check(new=range(40))
    v3("UPDATE {} SET v = -1 WHERE id IN (5, 16, 27)")
    v3.check(changed=[5, 16, 27])
    v3.policy = {"target_file_size_bytes": 1_000, "small_file_limit_bytes": 500}
    assert v3.sized.cluster(by=["v"]).snapshot_ids
    v3.check()


def test_upgrade_in_place(v3: V3) -> None:
    """The rows of an upgraded table get ids by a commit of their own, before they are merged."""
    v3.create(version=2)
    for start in (0, 10):
        v3.insert(range(start, start + 10))
    v3("DELETE FROM {} WHERE id = 4")
    v3("ALTER TABLE {} SET TBLPROPERTIES ('format-version' = '3')")
    v3.refreshed()
    assert {row for (row,) in v3("SELECT _row_id FROM {}")} == {None}
    assert v3.sized.plan().to_dict()["skipped"] == {"NO_ROW_IDS": 2}
    report = v3.sized.compact()
    v3.check(new={*range(20)} - {4})
    assert operations(v3.catalog, v3.short)[-2:] == ["replace", "replace"]
    assert report.files_removed == 2
    assert v3.vectors() == []
    v3("DELETE FROM {} WHERE id = 5")
    v3.check(gone=[5])
    assert [row[2] for row in v3.vectors()] == [1]


def test_a_puffin_file_that_vectors_share(v3: V3, tmp_path: Path) -> None:
    """Iceberg's own expiry deletes no Puffin file from which a live vector is read, and icesize's neither."""
    v3.create()
    for start in range(0, 40, 10):
        v3.insert(range(start, start + 10), p="ab"[start // 20])
    v3.check(new=range(40))
    v3.spark.conf.set("spark.sql.shuffle.partitions", "1")
    v3("DELETE FROM {} WHERE id % 10 = 3")
    v3.check(gone=range(3, 40, 10))
    shared = {path for path, _, _ in v3.vectors()}
    v3.sized.compact("p = 'a'")
    v3.check()
    assert {path for path, _, _ in v3.vectors()} <= shared
    v3.insert([100])
    v3.check(new=[100])
    v3.expire()
    v3.check()
    for path, _, _ in v3.vectors():
        assert Path(local_path(path)).exists()
    v3.sized.compact()
    v3.check()
    v3("DELETE FROM {} WHERE id = 100")
    v3.check(gone=[100])
    v3.expire()
    v3.check()
    assert not any(Path(local_path(path)).exists() for path in shared)
