"""Runs that are long or large: what a process holds does not grow, and neither snapshots nor bytes are too many."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.spark.stream.sink import MANY_SNAPSHOTS
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from integration.faults.faulted_table import needed
from integration.long_child import (
    BATCHES,
    EXPIRE_EVERY,
    LARGE_ROWS,
    MEASURED_EVERY,
    rows_of_batch,
    text_of,
)
from integration.tools import local_path, spark_rows
from tests.support.children import run_child
from tests.support.spark_lake import TARGET_BYTES, Lake, events, lake_catalog, rows_of
from tests.support.tables import check, make_visible

K = 3
MIB = 2**20

GROWTH = 1.10
"""Bytes that a driver may hold after 500 batches, by those that it held after 50."""

MORE_OBJECTS = 1.02
"""The same of Python objects, which no allocator blurs: eight for each batch. Forty-five more hours are 0.4 %."""

KEPT_SNAPSHOTS = 5
SHORT_HISTORY = {
    "history.expire.max-snapshot-age-ms": "1",
    "history.expire.min-snapshots-to-keep": str(KEPT_SNAPSHOTS),
}

MANY = 5_000
HOURS = 8

SIZES = (0.75, 1.1)
"""Least and most of the target that a file of a large batch is: below it would be small, above it would be two."""

WORKER_BYTES = 512 * MIB
"""The most that a Python worker may hold, half of what its executor has: one alone writes 742 MiB of files in 415."""

SAMPLED = 101
"""One row of so many has its text compared; ids and lengths of texts are compared for all."""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Lake]:
    """A catalog of this test alone in one SQLite file, which child processes open as well."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    yield Lake(catalog, tmp_path)
    catalog.close()


def run(lake: Lake, action: str, **options: Any) -> dict[str, Any]:
    """An action of `long_child`, and what it came to, printed as well."""
    figures = run_child("integration.long_child", str(lake.folder), action, json.dumps(options))
    print(json.dumps(figures, indent=1))
    return figures


@pytest.mark.slow
@pytest.mark.parametrize("merge", ["inline", "async"])
def test_a_driver_holds_no_more_after_500_batches(own: Lake, merge: str) -> None:
    """A sink that merges and expires takes 500 batches: the driver holds what it held after 50, and the table is small.

    Threads and open files do not grow by one.
    """
    own.create(properties=SHORT_HISTORY)
    held = run(own, "batches", merge=merge)["held"]
    early, late = held[0], held[-1]
    assert (early["batches"], late["batches"]) == (MEASURED_EVERY, BATCHES)
    assert late["bytes"] <= GROWTH * early["bytes"], held
    assert late["objects"] <= MORE_OBJECTS * early["objects"], held
    assert late["threads"] <= early["threads"], held
    assert late["open_files"] <= early["open_files"], held
    assert own.rows() == rows_of(pa.concat_tables([rows_of_batch(n) for n in range(BATCHES)]))
    assert max(own.files_per_partition().values()) <= K
    assert own.orphans() == set()
    # a batch is two snapshots at most, and the newest run of appends stays beside what the rules keep
    assert len(own.table().metadata.snapshots) <= KEPT_SNAPSHOTS + 2 * EXPIRE_EVERY


def grow(lake: Lake, snapshots: int) -> None:
    """As many appends of one row each, without merges, as a stream of years leaves; hours take turns."""
    table = lake.create()
    settings = WriteSettings.of(table.metadata, table.io.properties, TARGET_BYTES)
    builder = SnapshotBuilder(table, 0)
    made = [
        Append(tuple(write_rows([events([n], hours=HOURS)], settings, FileNames("old", n, 0)))).stage(builder, {})
        for n in range(snapshots)
    ]
    make_visible(lake.catalog, table, made)


def assert_rows(spark: SparkSession, lake: Lake, rows: int) -> None:
    """The table is whole and holds the rows 0 to `rows` - 1, for PyIceberg and for Iceberg's Spark runtime."""
    table = lake.table()
    check(table)
    expected = rows_of(events(range(rows), hours=HOURS))
    assert lake.rows() == expected
    spark.read.format("iceberg").load(local_path(table.metadata_location)).createOrReplaceTempView("second_reader")
    assert spark_rows(spark, "SELECT id, hour, text FROM second_reader") == expected


@pytest.mark.slow
def test_a_table_of_5000_snapshots(spark: SparkSession, own: Lake, caplog: pytest.LogCaptureFixture) -> None:
    """At 5,000 snapshots batches land and say what to do about it; reading, merging and expiring work as ever."""
    grow(own, MANY)
    table = own.open(spark)
    sink = table.sink("s")
    before = table.inspect()
    assert (before.files, before.rows, before.small_files_max) == (MANY, MANY, MANY // HOURS)

    with caplog.at_level(logging.WARNING, logger="icesize"):
        # ids of 5,000 and 5,001 belong to the hours h0 and h1
        report = sink.run(spark.createDataFrame(events([MANY, MANY + 1], hours=HOURS)), 0)
    told = f"the table has {MANY + 2:,} snapshots, each commit rewrites all of them"
    assert MANY >= MANY_SNAPSHOTS
    assert told in caplog.text
    assert any(note.startswith(told) for note in report.notes), report.notes
    assert report.operations == ("append", "replace")
    assert report.files_removed == 2 * MANY // HOURS

    plan = table.plan(where="hour = 'h7'")
    assert [len(group.inputs) for group in plan.groups] == [MANY // HOURS]
    assert table.compact(where="hour = 'h7'").files_removed == MANY // HOURS
    assert table.after_batch().files_removed == 5 * MANY // HOURS
    table.compact()
    assert set(own.files_per_partition().values()) == {1}
    assert_rows(spark, own, MANY + 2)

    expired = table.expire_snapshots(older_than=timedelta(0), retain_last=1)
    # the newest append and what is newer stay, for stream readers
    assert len(expired.snapshot_ids_expired) == MANY
    assert expired.files_failed == 0
    report = sink.run(spark.createDataFrame(events([MANY + 2], hours=HOURS)), 1)
    assert not any("snapshots" in note for note in report.notes), report.notes
    assert own.operations() == ["append", *["replace"] * 4, "append"]
    assert_rows(spark, own, MANY + 3)
    assert own.on_disk() == {path.rpartition("/")[2] for path in needed(own.table()) if path.endswith(".parquet")}


def assert_partition(files: list[DataFile], hour: int, hours: int) -> None:
    """Manifests say how many rows of a large batch the partition has, and which ids are the first and the last."""
    ids = range(hour, LARGE_ROWS, hours)
    assert sum(file.record_count for file in files) == len(ids)
    assert min(_id_of(file.lower_bounds[1]) for file in files) == ids[0]
    assert max(_id_of(file.upper_bounds[1]) for file in files) == ids[-1]


def _id_of(bound: bytes) -> int:
    return int(from_bytes(LongType(), bound))


def read_back(file: DataFile, hours: int) -> tuple[np.ndarray[Any, np.dtype[np.int64]], int]:
    """Ids in a file of a large batch, whose rows are what they were when they were made, and their bytes in Arrow."""
    found, size_bytes = [], 0
    hour = file.partition._data[0]
    with pq.ParquetFile(local_path(file.file_path)) as parquet:
        for batch in parquet.iter_batches(columns=["id", "hour", "text"]):
            ids = batch["id"].to_numpy()
            assert np.all(ids % hours == int(hour[1:]))
            assert pc.unique(batch["hour"]).to_pylist() == [hour]
            assert pc.unique(pc.utf8_length(batch["text"])).to_pylist() == [len(text_of(0))]
            sample = range(0, len(ids), SAMPLED)
            assert [batch["text"][i].as_py() for i in sample] == [text_of(int(ids[i])) for i in sample]
            found.append(ids)
            size_bytes += batch.nbytes
    return np.concatenate(found), size_bytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hours", "target_bytes", "statistics"),
    [(24, 16 * MIB, "exact"), (1, 256 * MIB, "exact"), (1, 256 * MIB, "recent")],
)
def test_a_batch_of_1_gib_on_executors_of_1_gib(own: Lake, hours: int, target_bytes: int, statistics: str) -> None:
    """A batch of 1 GiB, over 24 partitions or in one, lands whole, in files near the target; nothing dies."""
    own.create()
    figures = run(own, "large", hours=hours, target_bytes=target_bytes, statistics=statistics)
    assert [(e["alive"], e["failed"]) for e in figures["executors"]] == [(True, 0)] * 2
    assert 0 < figures["worker_peak_bytes"] <= WORKER_BYTES
    files = own.files()
    parts = sorted(file.file_size_in_bytes / target_bytes for file in files)
    assert SIZES[0] <= parts[0] <= parts[-1] <= SIZES[1], parts
    for hour in range(hours):
        assert_partition([f for f in files if f.partition._data[0] == f"h{hour}"], hour, hours)
    read = [read_back(file, hours) for file in files]
    assert np.array_equal(np.sort(np.concatenate([ids for ids, _ in read])), np.arange(LARGE_ROWS))
    assert sum(size_bytes for _, size_bytes in read) >= 1024 * MIB
    assert own.orphans() == set()
