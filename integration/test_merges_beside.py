"""Spark deletes and updates rows, merge-on-read, while their files are merged: all readers see the right rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.report import Report
from icesize.sized_table import SizedTable
from integration.evolution.readers import duckdb_with_iceberg
from integration.streams import reading
from integration.tools import local_path, sized, spark_rows

IDS, FILES = range(12_000), 4
DELETED, UPDATED = (3, 5, 4000), (4, 4001)
NEW, LATER = range(20_000, 20_010), range(30_000, 30_010)
JOBS: dict[str, Callable[[SizedTable], Report]] = {
    "compact": lambda table: table.compact(),
    "cluster": lambda table: table.cluster(["id"]),
}
SKIPPED = {"streaming-skip-delete-snapshots": "true", "streaming-skip-overwrite-snapshots": "true"}
"""What a stream reader needs beside DELETE and UPDATE of others."""
REFUSED = "Delete files are currently not supported in changelog scans"


def value(i: int) -> int:
    """Numbers that do not compress, so that the rows need several files."""
    return i * 2654435761 % 2**31


class Lake:
    """Table `t` of a namespace of the catalog `lake`, which PyIceberg opens, too."""

    def __init__(self, spark: SparkSession, catalog: SqlCatalog, namespace: str, version: int) -> None:
        self.spark, self.catalog, self.version = spark, catalog, version
        self.short, self.name = f"{namespace}.t", f"lake.{namespace}.t"
        options = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update")}
        options |= {"format-version": str(version), "write.distribution-mode": "none"}
        written = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
        spark.sql(f"CREATE TABLE {self.name} (id bigint, v bigint) USING iceberg TBLPROPERTIES ({written})")

    def append(self, ids: Iterable[int]) -> None:
        """One file."""
        df = self.spark.createDataFrame([(i, value(i)) for i in ids], "id long, v long")
        df.coalesce(1).writeTo(self.name).append()

    def change(self) -> None:
        """A DELETE and an UPDATE of rows of several files."""
        self.spark.sql(f"DELETE FROM {self.name} WHERE id IN {DELETED}")
        self.spark.sql(f"UPDATE {self.name} SET v = -id WHERE id IN {UPDATED}")

    @property
    def sized(self) -> SizedTable:
        """All rows are about four files."""
        return sized(self.spark, self.name, target_file_size_bytes=20_000, small_file_limit_bytes=19_900)

    def head(self) -> int:
        """The newest snapshot."""
        return self.catalog.load_table(self.short).metadata.current_snapshot_id or 0

    def row_ids(self) -> dict[int, int]:
        """Row ids by `id`; none in format version 2."""
        return dict(spark_rows(self.spark, f"SELECT id, _row_id FROM {self.name}")) if self.version == 3 else {}

    def check(self, ids: Iterable[int]) -> None:
        """The rows, as Spark, PyIceberg and DuckDB read them."""
        self.spark.sql(f"REFRESH TABLE {self.name}")
        rows = sorted((i, -i if i in UPDATED else value(i)) for i in ids)
        assert sorted(spark_rows(self.spark, f"SELECT id, v FROM {self.name}")) == rows
        table = self.catalog.load_table(self.short)
        assert sorted((row["id"], row["v"]) for row in table.scan().to_arrow().to_pylist()) == rows
        found = duckdb_with_iceberg().execute(
            f"SELECT id, v FROM iceberg_scan('{local_path(table.metadata_location)}')"
        )
        assert sorted(found.fetchall()) == rows

    def changes(self, after: int, until: int) -> Counter[str]:
        """The kinds of changes of a changelog scan of the snapshots after one, until another."""
        options = f"map('start-snapshot-id', '{after}', 'end-snapshot-id', '{until}')"
        view = f"table => '{self.short}', changelog_view => 'changes', options => {options}"
        self.spark.sql(f"CALL lake.system.create_changelog_view({view})")
        return Counter(row[0] for row in self.spark.sql("SELECT _change_type FROM changes").collect())


@pytest.mark.parametrize(("version", "job"), [(3, "compact"), (2, "compact"), (3, "cluster"), (2, "cluster")])
def test_rows_changed_beside_a_merge(
    spark: SparkSession, lake: SqlCatalog, namespace: str, tmp_path: Path, version: int, job: str
) -> None:
    """The merge commits, and the rows are those of Spark's statements for all readers. A stream reader sees each row
    once. Changelog scans fail from the DELETE on, as without a merge, until a later merge has applied all deletes."""
    table = Lake(spark, lake, namespace, version)
    for number in range(FILES):
        table.append(IDS[number::FILES])
    filled, row_ids, moments = table.head(), table.row_ids(), list[int]()

    def change() -> None:
        if not moments:
            table.change()
            moments.append(table.head())

    with reading(spark, table.name, tmp_path / "checkpoint", SKIPPED) as reader:
        with failpoints.armed("files-written", change):
            report = JOBS[job](table.sized)
        assert (report.operations, report.conflicts) == (("replace",), ()), str(report)
        merged, left = table.head(), [i for i in IDS if i not in DELETED]
        assert merged in report.snapshot_ids
        summary = lake.load_table(table.short).metadata.current_snapshot().summary  # type: ignore[union-attr]
        assert summary is not None
        assert int(summary["added-delete-files"] or 0) > 0
        table.check(left)
        assert table.row_ids() == {i: row_id for i, row_id in row_ids.items() if i in left}
        table.append(NEW)
        reader.catch_up()
        assert reader.seen == Counter([*IDS, *NEW])
    assert table.changes(moments[0], merged) == Counter()
    for after, until in ((filled, moments[0]), (merged, table.head())):
        with pytest.raises(PySparkException, match=REFUSED):
            table.changes(after, until)
    sized(spark, table.name, delete_ratio_threshold=1e-6, target_file_size_bytes=1_000_000).compact()
    applied = table.head()
    table.append(LATER)
    assert table.changes(applied, table.head()) == {"INSERT": 10}
    table.check([*left, *NEW, *LATER])
