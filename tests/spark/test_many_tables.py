"""A pass over the tables of a catalog with Spark: its tasks merge large groups of files, the driver the others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.failpoints import TESTING, VARIABLE, armed
from tests.support.spark_lake import Lake, conf, events, rows_of

SMALL, LARGE = 10, 20_000
"""Rows of each of the three files of a table."""
ROWS = {"large_a": LARGE, "large_b": LARGE, "small_a": SMALL, "small_b": SMALL}
ENVIRONMENT = Environment(limits=WorkLimits(driver_merge_bytes=20_000, local_work_bytes=-1))


@pytest.fixture
def tables(lake: Lake) -> Lake:
    """Two tables whose files Spark tasks merge, and two that the driver merges."""
    for name, rows in ROWS.items():
        table = lake.create(name, by={})
        for number in range(3):
            batch = events(range(number * rows, number * rows + rows))
            table.append(batch.cast(table.schema().as_arrow()))
    return lake


@pytest.fixture
def workers(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of Spark's workers, in which failpoints can be armed."""
    monkeypatch.setitem(spark.sparkContext.environment, TESTING, "1")
    monkeypatch.setitem(spark.sparkContext.environment, VARIABLE, "")
    return spark.sparkContext.environment


def files_of(lake: Lake) -> dict[str, int]:
    return {name: len(lake.files(name)) for name in ROWS}


def check_rows(lake: Lake) -> None:
    for name, rows in ROWS.items():
        assert lake.rows(name) == rows_of(events(range(3 * rows)))


def test_small_tables_do_not_wait_for_spark(
    spark: SparkSession, tables: Lake, workers: dict[str, str], tmp_path: Path
) -> None:
    """While Spark tasks merge as many large tables as are maintained at the same time, the driver merges small ones."""
    go, written, counting = tmp_path / "go", list[str](), threading.Lock()
    workers[VARIABLE] = f"writing=wait:{go}"

    def in_driver() -> None:
        with counting:
            written.append(threading.current_thread().name)
            if len(written) == 2:
                go.touch()

    with armed("writing", in_driver):
        report = icesize.maintain("lake.db.*", spark=spark, catalog=tables.catalog, environment=ENVIRONMENT)
    assert (report.succeeded, report.not_started, len(report.tables)) == (True, (), 4)
    assert len(written) == 2
    assert files_of(tables) == dict.fromkeys(ROWS, 1)
    check_rows(tables)


def test_both_work_on_one_table_at_once(
    spark: SparkSession, lake: Lake, workers: dict[str, str], tmp_path: Path
) -> None:
    """While a Spark task merges the large partition of a table, the driver merges the small one."""
    table, go, active = lake.create("mixed"), tmp_path / "go", list[bool]()
    small = events(range(3 * LARGE, 3 * LARGE + 60), hours=2).filter(pc.field("hour") == "h1")
    for number in range(3):
        large = events(range(number * LARGE, number * LARGE + LARGE))
        batch = pa.concat_tables([large, small.slice(number * 10, 10)])
        table.append(batch.cast(table.schema().as_arrow()))
    workers[VARIABLE] = f"writing=wait:{go}"
    tracker = spark.sparkContext.statusTracker()

    def in_driver() -> None:
        looks = (bool(tracker.getActiveJobsIds()) or threading.Event().wait(0.1) for _ in range(600))
        active.append(any(looks))
        go.touch()

    with armed("writing", in_driver):
        report = icesize.maintain("lake.db.*", spark=spark, catalog=lake.catalog, environment=ENVIRONMENT)
    assert (report.succeeded, active) == (True, [True])
    assert set(lake.files_per_partition("mixed").values()) == {1}
    assert lake.rows("mixed") == rows_of(pa.concat_tables([events(range(3 * LARGE)), small]))


def test_tasks_that_fail_cost_their_tables_only(spark: SparkSession, tables: Lake, workers: dict[str, str]) -> None:
    """The tables whose tasks died are reported as failed and unchanged, the others are maintained."""
    workers[VARIABLE] = "writing=kill"
    report = icesize.maintain("lake.db.*", spark=spark, catalog=tables.catalog, environment=ENVIRONMENT)
    assert sorted(report.failed) == ["lake.db.large_a", "lake.db.large_b"]
    for name, why in report.failed.items():
        assert why.startswith(f"merges: Cannot compact '{name}': every merge failed, and its files are unchanged: ")
        assert "Cannot merge files: " in why
    assert (report.succeeded, report.not_started) == (False, ())
    assert files_of(tables) == {"large_a": 3, "large_b": 3, "small_a": 1, "small_b": 1}
    check_rows(tables)


def test_the_driver_and_spark_have_one_budget(spark: SparkSession, tables: Lake) -> None:
    """A budget for one large table and the small ones pays for these; the other large table waits for the next pass."""
    sizes = {name: sum(file.file_size_in_bytes for file in tables.files(name)) for name in ROWS}
    budget = sum(sizes.values()) - 1
    report = icesize.maintain("lake.db.*", budget, spark=spark, catalog=tables.catalog, environment=ENVIRONMENT)
    assert report.bytes_rewritten <= budget
    files = files_of(tables)
    assert (files["small_a"], files["small_b"]) == (1, 1)
    assert sorted((files["large_a"], files["large_b"])) != [1, 1]
    check_rows(tables)


def test_the_session_names_the_catalog(spark: SparkSession, tables: Lake) -> None:
    """Without a catalog object, the settings of the session open it; its staged commits are refused."""
    name = "spark__sql__catalog__lake"
    uri = {f"{name}__type": "jdbc", f"{name}__uri": f"jdbc:sqlite:{tables.folder}/lake.db"}
    settings = {name: "org.apache.iceberg.spark.SparkCatalog", **uri, f"{name}__warehouse": f"file://{tables.folder}"}
    with conf(spark, **settings):
        assert len(icesize.maintain("lake.db.*", spark=spark, environment=ENVIRONMENT, dry_run=True).tables) == 4
        for table in ("small_a", "small_b"):
            with tables.catalog.load_table(f"db.{table}").transaction() as changed:
                changed.set_properties({"write.wap.enabled": "true"})
        with conf(spark, spark__wap__id="1"):
            report = icesize.maintain("lake.db.small_*", spark=spark, environment=ENVIRONMENT)
    why = (
        "Cannot work on 'db.{}': 'write.wap.enabled' is true, and the session sets 'spark.wap.id'; set "
        "'spark.wap.branch' to a branch instead"
    )
    assert report.plan.skipped == {f"lake.db.{name}": why.format(name) for name in ("small_a", "small_b")}
    assert files_of(tables) == dict.fromkeys(ROWS, 3)
