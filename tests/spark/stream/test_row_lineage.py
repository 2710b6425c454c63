"""Streams into tables of format v3: rows have their row ids from their commit on, and keep them."""

from __future__ import annotations

import pytest
from pyspark.sql import SparkSession

from icesize.errors import UnsupportedTable
from icesize.planning.files import FileFact
from tests.support.row_lineage import Lineage, lineage_of
from tests.support.spark_lake import Lake, counted, events, rows_of
from tests.support.tables import layout_of
from tests.support.v3_tables import as_v3


def lineage(lake: Lake) -> Lineage:
    partitions = layout_of(lake.catalog.load_table("db.events")).partitions
    files: list[FileFact] = [file for facts in partitions.values() for file in facts.small]
    return {key: value for file in files for key, value in lineage_of(file).items()}


def test_a_batch_and_its_merges(spark: SparkSession, lake: Lake) -> None:
    """Merges beside a batch leave each older row its row id, and each row of a batch gets one of its own."""
    lake.create()
    as_v3(lake.catalog, "db.events")
    sink = lake.open(spark, max_small_files=1).sink("s")
    known: Lineage = {}
    for number in range(4):
        report = sink.run(counted(spark, events(range(number * 10, number * 10 + 10), 2)), number)
        found = lineage(lake)
        assert found.items() >= known.items()
        known = found
    assert report.files_removed > 0
    assert lake.rows() == rows_of(events(range(40), 2))
    assert len({row_id for row_id, _ in known.values()} - {None}) == 40


def test_absorbing_in_the_commit_of_new_rows_is_refused(spark: SparkSession, lake: Lake) -> None:
    """A merge of rows that the same commit adds would give them other row ids; the message says what works."""
    lake.create()
    as_v3(lake.catalog, "db.events")
    sink = lake.open(spark, max_small_files=1).sink("s", placement="absorb")
    with pytest.raises(UnsupportedTable, match="Set stream_safe=False, or placement='append'"):
        sink.run(counted(spark, events(range(10))), 0)
    assert lake.rows() == []


def test_new_rows_written_with_older_ones(spark: SparkSession, lake: Lake) -> None:
    """With stream_safe=False, older rows in a new file keep their lineage, and new rows inherit theirs."""
    lake.create()
    as_v3(lake.catalog, "db.events")
    sink = lake.open(spark, max_small_files=1).sink("s", placement="absorb", stream_safe=False)
    known: Lineage = {}
    for number in range(3):
        report = sink.run(counted(spark, events(range(number * 10, number * 10 + 10), 2)), number)
        found = lineage(lake)
        assert found.items() >= known.items()
        assert {last for key, (_, last) in found.items() if key not in known} == {newest_number(lake)}
        known = found
    assert (report.operations, report.files_removed) == (("overwrite",), 2)
    assert len({row_id for row_id, _ in known.values()} - {None}) == 30


def newest_number(lake: Lake) -> int:
    """The sequence number of the newest commit."""
    return int(lake.catalog.load_table("db.events").metadata.last_sequence_number)
