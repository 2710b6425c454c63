"""Facts of many manifests, read by Spark tasks."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from icesize.environment import WorkLimits
from icesize.errors import TableError
from icesize.planning.files import Layout
from icesize.spark.engine import manifest_job
from icesize.spark.engine.manifest_job import prefetching
from icesize.table.manifests import store as store_module
from icesize.table.manifests.lists import manifests_of
from icesize.table.manifests.spill import spill_to
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.handle import TableHandle
from icesize.table.state.layouts import LayoutReader
from tests.support.spark_lake import Lake, counted, events

LIMIT = 2**20
ALL_BY_TASKS = WorkLimits(driver_manifest_entries=0)


def filled(spark: SparkSession, lake: Lake) -> None:
    """A table with three manifests."""
    lake.create()
    table = lake.open(spark)
    for number in range(3):
        table.append(counted(spark, events(range(number * 10, number * 10 + 10), hours=3)))


def layout_of(spark: SparkSession, lake: Lake, store: ManifestStore, limits: WorkLimits = ALL_BY_TASKS) -> Layout:
    """The layout that a new process reads."""
    current = TableHandle(lake.catalog, ("db", "events")).load()
    reader = LayoutReader(LIMIT, store=store, prefetch=prefetching(spark, current, limits))
    return reader.read(current.table.metadata, current.table.io)


def test_tasks_find_what_the_driver_finds(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The layout is the same, over one job and over several; the driver reads no manifest, and the spill keeps them."""
    filled(spark, lake)
    expected = layout_of(spark, lake, ManifestStore(), WorkLimits())
    spilling = ManifestStore(table_uuid="t")
    spilling.spill = spill_to(str(tmp_path), 2**20)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "read_facts", None)
        patch.setattr(manifest_job, "JOB_ENTRIES", 4)
        assert layout_of(spark, lake, spilling) == expected
        patch.setattr(manifest_job, "read_manifests", _fail)
        warm = ManifestStore(table_uuid="t")
        warm.spill = spilling.spill
        assert layout_of(spark, lake, warm) == expected
        assert layout_of(spark, lake, spilling) == expected


def test_the_driver_reads_what_tasks_cannot(spark: SparkSession, lake: Lake) -> None:
    """A damaged manifest is reported as in any other table."""
    filled(spark, lake)
    table = lake.table()
    first = manifests_of(table.metadata.current_snapshot(), table.io, table.metadata.specs()).data[0]
    path = Path(first.manifest_path.removeprefix("file:"))
    content = path.read_bytes()
    path.write_bytes(content[:-20])
    with pytest.raises(TableError, match=path.name):
        layout_of(spark, lake, ManifestStore())
    path.write_bytes(content)


def test_a_failed_job_leaves_the_reading_to_the_driver(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The layout is found, and the log says why it took longer."""
    filled(spark, lake)
    expected = layout_of(spark, lake, ManifestStore(), WorkLimits())
    monkeypatch.setattr(manifest_job, "ReadManifests", lambda *arguments: _fail)
    assert layout_of(spark, lake, ManifestStore()) == expected
    assert "Cannot read manifests: " in caplog.text
    assert "the driver reads them" in caplog.text


def _fail(*arguments: object) -> object:
    raise ZeroDivisionError
