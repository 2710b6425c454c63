"""`after_batch()` behind other writers: Iceberg's own append and MERGE INTO in a streaming query."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icesize import failpoints
from icesize.report import Report
from integration.streams import K, created, event_files, run
from integration.tools import files_per_partition, operations, sized, spark_rows

BATCHES = 8
ROWS = 60
Write = Callable[[DataFrame, str], None]


def append(df: DataFrame, table: str) -> None:
    df.writeTo(table).append()


def upsert(df: DataFrame, table: str) -> None:
    """Rows replace those of the same id, so a third of each batch updates older rows."""
    changes = df.selectExpr("CASE WHEN id % 3 = 0 THEN id - 60 ELSE id END AS id", "hour", "v")
    changes.createOrReplaceTempView("changes")
    df.sparkSession.sql(
        f"MERGE INTO {table} t USING changes c ON t.id = c.id "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )


def appended() -> list[tuple[int, str, float]]:
    return [(i, f"h{i % 3 + i // 240}", i / 4) for i in range(BATCHES * ROWS)]


def upserted() -> list[tuple[int, str, float]]:
    rows: dict[int, tuple[int, str, float]] = {}
    for i, hour, v in appended():
        key = i - 60 if i % 3 == 0 else i
        rows[key] = (key, hour, v)
    return list(rows.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "mode", "model"),
    [
        pytest.param(append, "copy-on-write", appended, id="append"),
        pytest.param(upsert, "copy-on-write", upserted, id="merge-into"),
        pytest.param(upsert, "merge-on-read", upserted, id="merge-into-mor"),
    ],
)
def test_a_stream_of_another_writer_holds_k(
    spark: SparkSession,
    rest: Catalog,
    namespace: str,
    tmp_path: Path,
    write: Write,
    mode: str,
    model: Callable[[], list[tuple[int, str, float]]],
) -> None:
    """After each batch of another writer and `after_batch()` no partition holds more than k mergeable small files.

    The table is opened anew each time, so nothing but the table itself can tell what is due.
    """
    table = created(spark, f"rest.{namespace}.t")
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('write.merge.mode'='{mode}')")
    reports: list[Report] = []
    most: list[int] = []

    def batch(df: DataFrame, batch_id: int) -> None:
        write(df, table)
        reports.append(sized(df.sparkSession, table).after_batch())
        most.append(max(files_per_partition(rest, f"{namespace}.t").values(), default=0))

    stream = event_files(spark, tmp_path / "events", BATCHES, ROWS)
    run(stream(), batch, tmp_path / "checkpoint")
    assert len(most) == BATCHES
    assert max(most) <= K
    assert sum(r.files_removed for r in reports) > 0
    assert {o for r in reports for o in r.operations} == {"replace"}
    # the query wrote through a copy of this session, which has a catalog cache of its own
    spark.sql(f"REFRESH TABLE {table}")
    assert spark_rows(spark, table) == sorted(model(), key=repr)


def test_after_batch_looks_at_what_changed_since_its_own_merge(
    spark: SparkSession, rest: Catalog, namespace: str
) -> None:
    """Partitions are merged when they changed since our newest merge; a second call in a row finds nothing to do."""
    table = created(spark, f"rest.{namespace}.t")
    for i in range(K + 1):
        spark.sql(f"INSERT INTO {table} VALUES ({i}, 'a', 0), ({i + 10}, 'b', 0)")
    first = sized(spark, table).after_batch()
    assert (first.operations, first.partitions_touched) == (("replace",), 2)
    assert sized(spark, table).after_batch().snapshot_ids == ()
    for i in range(K + 1):
        spark.sql(f"INSERT INTO {table} VALUES ({i + 20}, 'b', 0)")
    second = sized(spark, table).after_batch()
    assert (second.operations, second.partitions_touched) == (("replace",), 1)
    assert max(files_per_partition(rest, f"{namespace}.t").values()) <= K
    assert len(spark_rows(spark, table)) == 3 * (K + 1)
    assert operations(rest, f"{namespace}.t").count("replace") == 2


def test_after_batch_knows_what_changed_while_it_merged(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Files that another writer adds to a partition while `after_batch` merges are due in the next call."""
    table = created(spark, f"rest.{namespace}.t")
    for i in range(K + 1):
        spark.sql(f"INSERT INTO {table} VALUES ({i}, 'a', 0)")

    def rival() -> None:
        for i in range(K + 1):
            spark.sql(f"INSERT INTO {table} VALUES ({i + 10}, 'b', 0)")

    with failpoints.armed("files-written", rival):
        assert sized(spark, table).after_batch().operations == ("replace",)
    assert files_per_partition(rest, f"{namespace}.t")[("b",)] == K + 1
    sized(spark, table).after_batch()
    assert max(files_per_partition(rest, f"{namespace}.t").values()) <= K


def test_after_batch_names_what_its_budget_left(spark: SparkSession, rest: Catalog, namespace: str) -> None:
    """Merges that the budget does not pay for are in the report as files over budget; `compact` removes that debt."""
    table = created(spark, f"rest.{namespace}.t")
    for _ in range(K + 2):
        spark.sql(f"INSERT INTO {table} SELECT id, concat('p', id % 5), rand() FROM range(500)")
    report = sized(spark, table, merge_budget_bytes=6_000).after_batch()
    most = max(files_per_partition(rest, f"{namespace}.t").values())
    assert most == K + 2
    assert report.skipped["OVER_BUDGET"] > 0
    assert report.files_removed > 0
    sized(spark, table, merge_budget_bytes=6_000).compact()
    assert set(files_per_partition(rest, f"{namespace}.t").values()) == {1}
    assert len(spark_rows(spark, table)) == (K + 2) * 500
