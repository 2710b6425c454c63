"""Tables of format v3 whose metadata files icesize writes, in the catalog that Spark and PyIceberg share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from pyiceberg.table.update import (
    AddSnapshotUpdate,
    RemoveSnapshotsUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableUpdate,
)
from pyiceberg.types import LongType
from pyspark.sql import SparkSession

from icesize.table.commit.loaded import Loaded
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from integration.tools import spark_rows

NOW_MS = 1_700_000_000_000


def ref_to(snapshot_id: int, name: str, kind: SnapshotRefType) -> SetSnapshotRefUpdate:
    return SetSnapshotRefUpdate(
        ref_name=name, type=kind, snapshot_id=snapshot_id,
        max_ref_age_ms=None, max_snapshot_age_ms=None, min_snapshots_to_keep=None,
    )  # fmt: skip


def one_property(table: Table) -> tuple[TableUpdate, ...]:
    return (SetPropertiesUpdate(updates={"owner": f"v{table.metadata.next_sequence_number()}"}),)


def one_snapshot(table: Table) -> tuple[TableUpdate, ...]:
    """A snapshot with the manifests of the head, and a tag on the head before."""
    metadata, head = table.metadata, table.metadata.snapshots[-1]
    snapshot = Snapshot(
        snapshot_id=metadata.new_snapshot_id(), parent_snapshot_id=head.snapshot_id,
        schema_id=metadata.current_schema_id,
        sequence_number=metadata.next_sequence_number(), timestamp_ms=metadata.last_updated_ms + 1,
        manifest_list=head.manifest_list, summary=Summary(Operation.APPEND), added_rows=0,
        first_row_id=getattr(metadata, "next_row_id", None),
    )  # fmt: skip
    moved = ref_to(snapshot.snapshot_id, "main", SnapshotRefType.BRANCH)
    return AddSnapshotUpdate(snapshot=snapshot), moved, ref_to(head.snapshot_id, "before", SnapshotRefType.TAG)


def one_column(table: Table) -> tuple[TableUpdate, ...]:
    """A column with a default, which rows that are there already have."""
    update = table.transaction().update_schema()
    update.add_column(f"c{table.metadata.current_schema_id}", LongType(), default_value=5)
    return update._commit()[0]


def without_oldest(table: Table) -> tuple[TableUpdate, ...]:
    return (RemoveSnapshotsUpdate(snapshot_ids=[table.metadata.snapshots[0].snapshot_id]),)


CHANGES: tuple[Callable[[Table], tuple[TableUpdate, ...]], ...] = (
    one_property, one_snapshot, one_column, without_oldest,
)  # fmt: skip


def test_java_reads_every_document(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """After each metadata file of icesize, Java reads rows, row ids and defaults, and commits on top of it."""
    name = f"lake.{namespace}.t"
    spark.sql(f"CREATE TABLE {name} (id bigint) USING iceberg TBLPROPERTIES ('format-version' = '3')")
    rows: list[tuple[Any, ...]] = []
    for number, change in enumerate((*CHANGES, *CHANGES)):
        spark.sql(f"INSERT INTO {name} (id) VALUES ({number})")
        rows.append((number, number))
        table = lake.load_table(f"{namespace}.t")
        loaded = Loaded(table)
        PyIcebergCommitter(lake, table, lambda: NOW_MS).commit(loaded, loaded.staged(change(table)))
        assert spark_rows(spark, f"SELECT id, _row_id FROM {name}") == rows
    spark.sql(f"UPDATE {name} SET id = -1 WHERE id = 0")
    assert spark_rows(spark, f"SELECT id, _row_id, c0 FROM {name}")[:2] == [(-1, 0, 5), (1, 1, 5)]
    table = lake.load_table(f"{namespace}.t")
    assert {*table.metadata.refs} == {"main", "before"}
    assert table.properties["owner"] == "v7"
