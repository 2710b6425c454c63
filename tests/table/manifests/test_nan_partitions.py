"""NaN as a partition value: Iceberg compares it with nothing, so its files are told apart, counted and left alone."""

from __future__ import annotations

import math
from dataclasses import replace

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField

import icesize
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import PartitionKey, SkipReason
from tests.support import tables
from tests.support.row_deletes import delete_rows

NOTE = (
    "k=nan: 8 small files are ineligible (NAN_PARTITION 8), more than 'max-small-files' (6): icesize cannot merge them"
)


@pytest.fixture
def table(lake: SqlCatalog) -> Table:
    """Eight files in partitions of NaN, three in another."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "k"))
    schema = Schema(NestedField(1, "k", DoubleType()), NestedField(2, "id", LongType()))
    made = lake.create_table("db.t", schema, partition_spec=spec)
    settings = WriteSettings.of(made.metadata, made.io.properties, 10_000_000)
    files = []
    for number in range(11):
        (file,) = write_rows([pa.table({"k": [1.0], "id": [number]})], settings, FileNames("n", number, 0))
        # other engines write such files; icesize refuses to
        files.append(replace(file, partition=PartitionKey(0, (math.nan,))) if number < 8 else file)
    tables.run(lake, tables.request_on(made, files), made)
    return lake.load_table("db.t")


def test_files_of_nan_partitions_have_a_reason_of_their_own(lake: SqlCatalog, table: Table) -> None:
    """They are skipped as such, counted together in plan, report and inspection, and a second pass finds nothing."""
    opened = icesize.open(None, "db.t", catalog=lake)
    plan = opened.plan()
    assert plan.skipped_by_reason == {"NAN_PARTITION": 8}
    assert plan.to_dict()["ineligible"] == {"k=nan": {"NAN_PARTITION": 8}}
    assert plan.notes == (NOTE,)
    inspection = opened.inspect()
    assert inspection.ineligible == {"NAN_PARTITION": 8}
    assert [(p.label, p.small_files, p.mergeable) for p in inspection.ineligible_partitions] == [("k=nan", 8, 0)]
    assert any("1 partition with more than 6 ineligible small files" in advice.sentence for advice in inspection.advice)
    report = opened.compact()
    assert (report.files_removed, report.files_added) == (3, 1)
    assert (report.skipped["NAN_PARTITION"], report.ineligible) == (8, {"k=nan": 8})
    assert not opened.plan().is_due
    assert sorted(lake.load_table("db.t").scan().to_arrow()["id"].to_pylist()) == list(range(11))


def test_deletes_in_nan_partitions_change_nothing(lake: SqlCatalog, table: Table) -> None:
    """A file of NaN is ineligible as such whether deletes are pending on it or not, and clustering leaves it alone."""
    input_file = next(f for f in tables.small_files(table) if math.isnan(f.partition.values[0]))  # type: ignore[arg-type]
    table = delete_rows(lake, input_file)
    obstacles = {f.obstacle for f in tables.small_files(table) if math.isnan(f.partition.values[0])}  # type: ignore[arg-type]
    assert obstacles == {SkipReason.NAN_PARTITION}
    icesize.open(None, "db.t", catalog=lake).cluster(by=["id"])
    assert sum(math.isnan(f.partition.values[0]) for f in tables.small_files(lake.load_table("db.t"))) == 8  # type: ignore[arg-type]
