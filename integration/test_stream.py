"""Streams: a real query through the sink into the REST catalog, and readers of the table that it keeps well sized."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.failpoints import FailpointReached
from icesize.report import Report
from integration.streams import K, created, event_files, reading, rows_of, run
from integration.tools import data_files, files_per_partition, local_path, operations, sized, spark_rows


@pytest.mark.parametrize("version", [*(pytest.param(version, marks=pytest.mark.slow) for version in (1, 2)), 3])
def test_stream_readers_see_each_row_once(
    spark: SparkSession, rest: Catalog, namespace: str, tmp_path: Path, version: int
) -> None:
    """Readers from before the first batch, from the middle, and restarted see each row once, through all merges."""
    table = created(spark, f"rest.{namespace}.t", version)
    sink = sized(spark, table).sink("s", query_id="q")
    reports: list[Report] = []
    with reading(spark, table, tmp_path / "before") as before:
        for batch in range(4):
            reports.append(sink.run(rows_of(spark, batch * 40), batch))
            before.catch_up()
        with reading(spark, table, tmp_path / "middle") as middle:
            middle.catch_up()
            for batch in range(4, 7):
                reports.append(sink.run(rows_of(spark, batch * 40), batch))
                before.catch_up()
            middle.catch_up()
    reports.append(sized(spark, table).compact())
    with reading(spark, table, tmp_path / "before") as restarted:
        sink.run(rows_of(spark, 280), 7)
        restarted.catch_up()
        before.seen += restarted.seen
    middle.seen.update(range(280, 320))
    with reading(spark, table, tmp_path / "after") as after:
        after.catch_up()
    each_once = Counter(range(320))
    assert before.seen == each_once
    assert middle.seen == each_once
    assert after.seen == each_once
    assert sum(r.files_removed for r in reports) > 8
    assert {o for r in reports for o in r.operations} == {"append", "replace"}
    assert set(operations(rest, f"{namespace}.t")) == {"append", "replace"}
    spark.sql(f"CALL rest.system.create_changelog_view(table => '{namespace}.t', changelog_view => 'changes')")
    assert spark_rows(spark, "SELECT id, _change_type FROM changes") == sorted(
        ((i, "INSERT") for i in range(320)), key=repr
    )
    if version == 3:
        ids = spark_rows(spark, f"SELECT _row_id, count(*) FROM {table} GROUP BY _row_id")
        assert [count for _, count in ids] == [1] * 320
        assert sized(spark, table).verify().findings == ()


@pytest.mark.slow
def test_a_query_through_the_rest_catalog_is_exact(
    spark: SparkSession, rest: Catalog, namespace: str, tmp_path: Path
) -> None:
    """A query that fails before and after its commit and is started again commits each batch once, in order, k held.

    The session that opened the table sees each batch at once, although the query runs in a copy of it.
    """
    table = created(spark, f"rest.{namespace}.t")
    stream = event_files(spark, tmp_path / "events", 9)
    reports: list[Report] = []
    most: list[int] = []
    visible: list[int] = []

    def listen(report: Report) -> None:
        reports.append(report)
        most.append(max(files_per_partition(rest, f"{namespace}.t").values()))
        visible.append(spark.table(table).count())

    failing: Iterator[str | None] = iter(["files-written", "after-swap", None])
    for point in failing:
        sink = sized(spark, table).sink("events", listener=listen)
        if point is None:
            run(stream(), sink, tmp_path / "checkpoint")
            break
        with failpoints.armed(point, raise_at_third()), pytest.raises(Exception, match="FailpointReached"):
            run(stream(), sink, tmp_path / "checkpoint")
    assert spark_rows(spark, table) == sorted(((i, f"h{i % 3 + i // 240}", i / 4) for i in range(540)), key=repr)
    batches = [r.batch_id or 0 for r in reports if not r.already_committed]
    assert sorted(r.batch_id or 0 for r in reports) == list(range(9))
    assert batches == sorted(batches)
    assert sum(r.already_committed for r in reports) == 1
    assert visible == [60 * (r.batch_id or 0) + 60 for r in reports]
    assert max(most) <= K
    assert set(operations(rest, f"{namespace}.t")) == {"append", "replace"}
    assert operations(rest, f"{namespace}.t").count("append") == 9
    assert referenced(rest, f"{namespace}.t") == on_disk(rest, f"{namespace}.t")


def raise_at_third() -> Callable[[], None]:
    passed = iter(range(100))

    def act() -> None:
        if next(passed) == 2:
            raise FailpointReached("here")

    return act


def referenced(catalog: Catalog, name: str) -> set[str]:
    """Data files that some snapshot of the table holds, as plain paths."""
    table = catalog.load_table(name)
    paths = {
        entry.data_file.file_path
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
    }
    return {local_path(path) for path in paths}


def on_disk(catalog: Catalog, name: str) -> set[str]:
    """Data files in the table's folder."""
    folder = Path(local_path(catalog.load_table(name).location())) / "data"
    return {str(path) for path in folder.rglob("*.parquet")}


def test_spark_sees_a_batch_at_once_through_its_catalog_cache(
    spark: SparkSession, rest: Catalog, namespace: str
) -> None:
    """With Spark's default catalog cache `spark.table` right after a batch, and after `compact`, sees the commit."""
    table = created(spark, f"rest.{namespace}.t")
    sink = sized(spark, table).sink("s", query_id="q")
    for batch in range(2):
        assert spark.table(table).count() == batch * 40
        sink(rows_of(spark, batch * 40), batch)
        assert spark.table(table).count() == batch * 40 + 40
    sized(spark, table).compact()
    files = spark.sql(f"SELECT count(*) FROM {table}.files").first()
    assert files is not None
    assert files[0] == len(data_files(rest, f"{namespace}.t")) == 4
