"""What Spark writes is valid, for `verify` as for Iceberg, and Iceberg's readers and expiry agree after a repair."""

from __future__ import annotations

import re
import shutil
import time

from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import icesize
from icesize.maintenance.verify.verification import Finding
from tests.support.breakages import BREAKAGES, Broken
from tests.support.tables import local

MERGE_ON_READ = ", ".join(f"'write.{verb}.mode' = 'merge-on-read'" for verb in ("delete", "update", "merge"))


def findings(lake: SqlCatalog, name: str) -> list[Finding]:
    """What is wrong; dangling deletes, which Spark leaves over, are not."""
    return [each for each in icesize.open(None, name, catalog=lake).verify(deep=True).findings if each.is_error]


def test_tables_of_format_v3_by_spark(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """An upgrade with position delete files, vectors that share Puffin files, rewrites, and a tag on an older state."""
    name, table = f"lake.{namespace}.t", f"{namespace}.t"
    spark.sql(
        f"CREATE TABLE {name} (id bigint, p int) USING iceberg PARTITIONED BY (p) "
        f"TBLPROPERTIES ('format-version' = '2', {MERGE_ON_READ})"
    )
    insert = f"INSERT INTO {name} SELECT id, id % 3 FROM range({{}}, {{}})"
    statements = [
        *(insert.format(20 * at, 20 * at + 20) for at in range(3)),
        f"DELETE FROM {name} WHERE id % 7 = 0",
        f"ALTER TABLE {name} SET TBLPROPERTIES ('format-version' = '3')",
        f"DELETE FROM {name} WHERE id % 7 = 1",
        f"UPDATE {name} SET id = id + 1000 WHERE id % 7 = 2",
        f"DELETE FROM {name} WHERE id % 7 = 3",
        f"ALTER TABLE {name} CREATE TAG before",
        insert.format(60, 80),
        f"ALTER TABLE {name} DROP PARTITION FIELD p",
        insert.format(80, 100),
        f"DELETE FROM {name} WHERE id % 7 = 4",
        f"CALL lake.system.rewrite_position_delete_files(table => '{table}', options => map('rewrite-all', 'true'))",
        f"CALL lake.system.rewrite_manifests(table => '{table}')",
        f"CALL lake.system.rewrite_data_files(table => '{table}', where => 'p = 1')",
        f"DELETE FROM {name} WHERE id % 7 = 5",
        f"CALL lake.system.set_current_snapshot(table => '{table}', ref => 'before')",
        insert.format(100, 120),
    ]
    most_vectors = 0
    for statement in statements:
        spark.sql(statement)
        assert findings(lake, table) == [], statement
        formats = [row[0] for row in spark.sql(f"SELECT file_format FROM {name}.delete_files").collect()]
        most_vectors = max(most_vectors, formats.count("PUFFIN"))
    assert most_vectors >= 6


def expired_by_java(spark: SparkSession, name: str) -> None:
    """Leave only the head, by the Java API, which deletes the file of each entry that an expired snapshot deleted."""
    jvm, session = spark._jvm, spark._jsparkSession
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(session, name)  # type: ignore[union-attr]
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000)).retainLast(1).commit()


def test_bounds_that_are_nan(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Spark writes NaN as a bound of floats with NaN: a warning, because readers ignore it. A merge leaves none."""
    name = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} (id bigint, d double, f float NOT NULL) USING iceberg")
    for first in (0, 10):
        spark.sql(f"INSERT INTO {name} VALUES ({first}, double('NaN'), float('NaN')), ({first + 1}, 1.5D, float(2))")
    table = icesize.open(None, name, catalog=lake)
    found = table.verify(deep=True).findings
    assert {(each.rule, each.severity.value) for each in found} == {("NaN bounds", "warning")}
    assert table.compact().files_removed > 1
    assert table.verify(deep=True, current=True).findings == ()


def test_readers_and_expiry_of_java_after_each_repair(spark: SparkSession, lake: SqlCatalog) -> None:
    """The rows are those that the repair promises, filters find them, and expiry deletes no file of the table."""
    lake.create_namespace_if_not_exists("db")
    for breakage in (each for each in BREAKAGES if each.rows is not None):
        it = Broken.new(lake, breakage.version)
        folder = local(it.table.location())
        breakage.breaks(it)
        sized = icesize.open(None, "db.t", catalog=lake)
        # a loss of more than a tenth of a table's files is confirmed by its number
        asked = re.search(r"--lost-files (\d+)", str(sized.repair(deep=True, dry_run=True).refused))
        assert sized.repair(deep=True, lost_files=int(asked[1]) if asked else None).repairs, breakage.name
        expired_by_java(spark, "lake.db.t")
        ids = [row[0] for row in spark.sql("SELECT id FROM lake.db.t ORDER BY id").collect()]
        assert ids == list(breakage.rows or ()), breakage.name
        # row 8 alone has no partition
        of_a = set(ids) - {7} - ({8} if 9 not in ids else set())
        found = [row[0] for row in spark.sql("SELECT id FROM lake.db.t WHERE kind = 'a' ORDER BY id").collect()]
        assert found == sorted(of_a), breakage.name
        assert spark.sql("SELECT count(*) FROM lake.db.t").first()[0] == len(ids), breakage.name
        assert sized.verify(deep=True).findings == (), breakage.name
        spark.sql("DROP TABLE lake.db.t")
        shutil.rmtree(folder, ignore_errors=True)
