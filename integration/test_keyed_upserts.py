"""Upserts of icesize and statements of Spark in turn, on one table: each key has the row that both would leave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize.planning.retention.ancestry import TOMBSTONE_BRANCH
from icesize.report import Report
from integration.evolution.readers import duckdb_with_iceberg
from integration.tools import local_path, sized, spark_rows

DUCKDB = cache(duckdb_with_iceberg)
"""One connection for all tests."""
Rows = dict[int, tuple[str, int]]
"""Value of `p`, and order `v`, by `id`."""


class Keyed:
    """A table of columns id, p and v, with the key id and the order v, and the rows that it should have."""

    def __init__(self, spark: SparkSession, catalog: Catalog, name: str, version: int) -> None:
        self.spark, self.catalog, self.name = spark, catalog, name
        self.rows: Rows = {}
        modes = "'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read', "
        modes += "'write.merge.mode'='merge-on-read', 'write.distribution-mode'='none'"
        self.sql(
            "CREATE TABLE {} (id bigint, p string, v bigint) USING iceberg PARTITIONED BY (p) "
            f"TBLPROPERTIES ('format-version'='{version}', {modes})"
        )

    def sql(self, statement: str) -> None:
        spark_rows(self.spark, statement.format(self.name))

    def upsert(self, rows: Mapping[int, tuple[str, int]], deleted: Iterable[tuple[int, int]] = ()) -> Report:
        events = [(i, p, v, False) for i, (p, v) in rows.items()] + [(i, None, v, True) for i, v in deleted]
        ids, ps, vs, gone = (list(column) for column in zip(*events, strict=True))
        table = pa.table({"id": ids, "p": pa.array(ps, pa.string()), "v": vs, "gone": gone})
        return sized(self.spark, self.name).upsert(
            table, key="id", order_by="v", delete_when="gone", except_columns=["gone"], tombstones="2 days"
        )

    def check(self) -> None:
        self.sql("REFRESH TABLE {}")
        expected = sorted((i, p, v) for i, (p, v) in self.rows.items())
        assert sorted(spark_rows(self.spark, f"SELECT id, p, v FROM {self.name}")) == expected
        short = self.name.partition(".")[2]
        location = local_path(self.catalog.load_table(short).metadata_location)
        found = DUCKDB().execute(f"SELECT id, p, v FROM iceberg_scan('{location}')").fetchall()
        assert sorted(found) == expected
        assert not [f for f in sized(self.spark, self.name).verify().findings if f.is_error]

    def call(self, procedure: str, options: str = "") -> None:
        catalog, _, short = self.name.partition(".")
        self.sql(f"CALL {catalog}.system.{procedure}(table => '{short}'{options})")


@pytest.fixture(params=[("lake", 2), ("lake", 3), ("rest", 2), ("rest", 3)], ids=lambda each: f"{each[0]}-v{each[1]}")
def keyed(spark: SparkSession, request: pytest.FixtureRequest, namespace: str) -> Keyed:
    """An empty table, in both kinds of catalogs and both format versions."""
    name, version = request.param
    return Keyed(spark, request.getfixturevalue(name), f"{name}.{namespace}.t", version)


def test_spark_and_icesize_in_turn(keyed: Keyed) -> None:
    """Statements, compaction and expiry of Spark change nothing about what upserts find and remember."""
    keyed.sql("INSERT INTO {} SELECT id, 'a', 0 FROM range(100)")
    keyed.rows = dict.fromkeys(range(100), ("a", 0))

    report = keyed.upsert(dict.fromkeys(range(10), ("b", 10)), [(i, 10) for i in range(10, 15)])
    keyed.rows |= dict.fromkeys(range(10), ("b", 10))
    keyed.rows = {i: row for i, row in keyed.rows.items() if i not in range(10, 15)}
    assert report.operations[0] == "overwrite"
    keyed.check()

    keyed.sql(
        "MERGE INTO {} t USING (SELECT id FROM range(20, 25)) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET v = 5"
    )
    keyed.sql("DELETE FROM {} WHERE id BETWEEN 30 AND 34")
    keyed.rows |= dict.fromkeys(range(20, 25), ("a", 5))
    keyed.rows = {i: row for i, row in keyed.rows.items() if i not in range(30, 35)}
    keyed.check()

    late = keyed.upsert({10: ("c", 9), 20: ("c", 6), 21: ("c", 4), 30: ("c", 1), 200: ("c", 1)})
    keyed.rows |= {20: ("c", 6), 30: ("c", 1), 200: ("c", 1)}
    assert late.upsert is not None
    assert late.upsert["late"] == 2
    keyed.check()

    keyed.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
    keyed.check()
    keyed.upsert({0: ("d", 20), 99: ("d", 20)}, [(1, 20)])
    keyed.rows |= {0: ("d", 20), 99: ("d", 20)}
    del keyed.rows[1]
    keyed.check()

    keyed.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    short = keyed.name.partition(".")[2]
    kept = keyed.catalog.load_table(short).metadata
    assert {each.snapshot_id for each in kept.snapshots} == {ref.snapshot_id for ref in kept.refs.values()}
    keyed.upsert({10: ("e", 9), 1: ("e", 19), 2: ("e", 30)})
    keyed.rows[2] = ("e", 30)
    keyed.check()
    assert TOMBSTONE_BRANCH in keyed.catalog.load_table(short).metadata.refs


def test_row_ids_stay_with_their_keys(keyed: Keyed) -> None:
    """In format v3, the new version of a row has its id, and the number of the commit that changed it."""
    if keyed.catalog.load_table(keyed.name.partition(".")[2]).metadata.format_version < 3:
        pytest.skip("rows have no ids")
    keyed.sql("INSERT INTO {} SELECT id, 'a', 0 FROM range(50)")
    query = f"SELECT id, _row_id, _last_updated_sequence_number FROM {keyed.name}"
    before = {i: rest for i, *rest in spark_rows(keyed.spark, query)}

    for number in range(1, 4):
        keyed.upsert(dict.fromkeys(range(0, 50, number + 1), ("b", number)) | {100 + number: ("a", 1)})

    keyed.sql("REFRESH TABLE {}")
    after = {i: rest for i, *rest in spark_rows(keyed.spark, query)}
    assert {i: row_id for i, (row_id, _) in after.items() if i < 50} == {i: row_id for i, (row_id, _) in before.items()}
    assert len({row_id for row_id, _ in after.values()}) == len(after)
    updated = {i for number in range(1, 4) for i in range(0, 50, number + 1)}
    assert {i for i in before if after[i][1] != before[i][1]} == updated


def test_replays_after_rollbacks_by_spark(keyed: Keyed) -> None:
    """Deletes that come again hit the rows that a rollback brought back, and Iceberg's expiry keeps their memory."""
    keyed.sql("ALTER TABLE {} SET TBLPROPERTIES ('history.expire.max-ref-age-ms'='1')")
    keyed.upsert(dict.fromkeys(range(1, 7), ("a", 1)))
    short = keyed.name.partition(".")[2]
    first = keyed.catalog.load_table(short).metadata.current_snapshot_id

    def replay() -> None:
        keyed.upsert({3: ("b", 3)}, [(1, 5), (2, 5)])
        keyed.upsert({}, [(3, 4)])

    replay()
    keyed.rows = dict.fromkeys(range(4, 7), ("a", 1))
    keyed.check()
    for procedure in ("rollback_to_snapshot", "set_current_snapshot"):
        keyed.call(procedure, f", snapshot_id => {first}")
        keyed.call("rewrite_data_files", ", options => map('rewrite-all', 'true')")
        replay()
        keyed.check()
    keyed.call("expire_snapshots", ", older_than => TIMESTAMP '2100-01-01', retain_last => 1")
    assert TOMBSTONE_BRANCH in keyed.catalog.load_table(short).metadata.refs
    keyed.upsert({1: ("c", 4), 3: ("c", 4), 4: ("c", 2)})
    keyed.rows[4] = ("c", 2)
    keyed.check()
