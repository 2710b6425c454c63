"""A table and a stream that the release before this one left behind in the middle of their work (`tests.fixtures`)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import icesize
from icesize import failpoints
from icesize.sized_table import SizedTable
from icesize.spark.stream.sink import Sink
from tests.fixtures import earlier_release as earlier
from tests.support.spark_lake import Lake, Rows, lake_catalog, run
from tests.support.tables import check, referenced_metadata

FILE = Path(earlier.__file__).with_suffix(".tar.xz")
HOUR_S = 3_600


@pytest.fixture
def earlier_lake(tmp_path: Path) -> Iterator[Lake]:
    """What the release before left behind."""
    folder = earlier.unpack(FILE, tmp_path)
    catalog = lake_catalog(folder)
    yield Lake(catalog, folder)
    catalog.close()


def opened(spark: SparkSession, lake: Lake) -> SizedTable:
    """The table with the policy that is in its properties."""
    return icesize.open(spark, "db.events", catalog=lake.catalog)


def expected(batches: int) -> Rows:
    """All rows once the stream has committed so many batches."""
    rows = [*earlier.backfilled(), *(row for batch in range(batches) for row in earlier.rows_of_batch(batch))]
    return sorted((tuple(row.values()) for row in rows), key=repr)


def unneeded(lake: Lake) -> set[Path]:
    """Files of the table that no snapshot needs, metadata files and the journal aside."""
    table = lake.table()
    data = set(table.inspect.all_files().column("file_path").to_pylist())
    needed = {Path(path.removeprefix("file://")) for path in data | referenced_metadata(table)}
    folder = lake.folder / "lake"
    return {p for p in folder.rglob("*") if p.suffix in (".parquet", ".avro") and p not in needed}


def aged(files: set[Path], hours: int) -> None:
    """As if the files had been written that long ago."""
    for path in files:
        os.utime(path, (time.time() - hours * HOUR_S,) * 2)


def die_before_the_commit(spark: SparkSession, lake: Lake, sink: Sink) -> set[Path]:
    """Run what there is with a driver that dies before its commit; returns the files that it leaves behind."""
    before = unneeded(lake)
    written: dict[Path, bytes] = {}

    def die() -> None:
        written.update({path: path.read_bytes() for path in unneeded(lake) - before})
        raise failpoints.FailpointReached("before-swap")

    with failpoints.armed("before-swap", die), pytest.raises(StreamingQueryException):
        run(spark, lake, sink)
    for path, contents in written.items():
        path.write_bytes(contents)  # who dies removes nothing
    return set(written)


def test_a_stream_goes_on_where_the_release_before_left_it(spark: SparkSession, earlier_lake: Lake) -> None:
    """The batch that was committed but not noted is replayed without a commit, the next one lands, rows are exact."""
    table = opened(spark, earlier_lake)
    last = {entry.stream_id: entry.batch_id for entry in table.streams()}
    assert last == {earlier.STREAM: earlier.KILLED_AFTER, earlier.BACKFILL: 1}
    assert earlier_lake.rows() == expected(6)
    snapshots = len(earlier_lake.operations())

    sink = table.sink(earlier.STREAM)
    run(spark, earlier_lake, sink)
    assert sink.last_report is not None
    assert (sink.last_report.batch_id, sink.last_report.already_committed) == (earlier.KILLED_AFTER, True)
    assert len(earlier_lake.operations()) == snapshots

    earlier.feed(earlier_lake.folder, 6)
    run(spark, earlier_lake, sink)
    assert (sink.last_report.batch_id, sink.last_report.already_committed, sink.last_report.rows) == (6, False, 30)
    assert max(earlier_lake.files_per_partition().values()) <= int(earlier.PROPERTIES["icesize.policy.max-small-files"])
    assert earlier_lake.rows() == expected(7)
    assert str(table.plan_clustering()).startswith("cluster (sort by id)")
    check(earlier_lake.table())


def test_versions_of_the_release_before_are_readable(spark: SparkSession, earlier_lake: Lake) -> None:
    """Each version of each partition, those that are held by tags as well, has the rows that it is said to have."""
    table = opened(spark, earlier_lake)
    versions = table.versions()
    tags = [name for name in earlier_lake.table().metadata.refs if name.startswith("icesize-version-")]
    assert len(tags) == 2
    tagged = {int(name.rsplit("-", 1)[1]) for name in tags}
    assert tagged <= {version.snapshot_id for version in versions}
    for version in versions:
        assert table.read_version(version.partition, version.snapshot_id).count() == version.rows


def test_files_of_the_release_before_are_told_apart(spark: SparkSession, earlier_lake: Lake) -> None:
    """Leftovers of killed drivers, of that release and of this one, are known after a day, others after three; before
    that the next expiry finishes the one that was killed."""
    table = opened(spark, earlier_lake)
    journal = Path(earlier_lake.table().properties["icesize.expiry.journal"].removeprefix("file://"))
    assert journal.exists()
    table.expire_snapshots()
    assert not journal.exists()
    leftovers = unneeded(earlier_lake)

    sink = table.sink(earlier.STREAM)
    earlier.feed(earlier_lake.folder, 6)
    leftovers |= die_before_the_commit(spark, earlier_lake, sink)
    run(spark, earlier_lake, sink)
    assert earlier_lake.rows() == expected(7)
    assert unneeded(earlier_lake) == leftovers

    batches = {path for path in leftovers if path.suffix == ".parquet"}
    assert {path.name.split("-")[1] for path in batches} == {str(earlier.KILLED_BEFORE), "6"}
    aged(leftovers, 25)
    found = table.remove_orphan_files(dry_run=False)
    assert (found.files_deleted, found.from_committed_batches) == (len(batches), len(batches))
    aged(leftovers - batches, 73)
    assert table.remove_orphan_files(dry_run=False).files_deleted == len(leftovers - batches)
    assert unneeded(earlier_lake) == set()
    assert earlier_lake.rows() == expected(7)
    check(earlier_lake.table())
