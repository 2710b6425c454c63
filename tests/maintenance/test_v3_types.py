"""Tables of format v3 whose columns have defaults or nanoseconds, maintained without Spark and read by PyIceberg."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.errors import ArgumentError
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.sized_table import SizedTable
from tests.support.tables import append, live_paths, make_table, request_on, run
from tests.support.v3_tables import with_document

ALL_SMALL = {"target-file-size-bytes": 2**20, "small-file-limit-bytes": 2**19}
ADDED: list[dict[str, Any]] = [
    {"id": 4, "name": "must", "type": "long", "required": True, "initial-default": 8, "write-default": 9},
    {"id": 5, "name": "note", "type": "string", "required": False, "initial-default": "old", "write-default": "new"},
    {"id": 6, "name": "bare", "type": "string", "required": False},
]
TIMES: list[dict[str, Any]] = [
    {"id": 4, "name": "local", "type": "timestamp_ns", "required": False},
    {"id": 5, "name": "at", "type": "timestamptz_ns", "required": False},
]


def upgraded(lake: SqlCatalog, fields: list[dict[str, Any]], *partition_fields: dict[str, Any]) -> Table:
    """The table in format v3, with these columns and partition fields as well."""

    def changed(document: dict[str, Any]) -> None:
        document["format-version"] = 3
        document.setdefault("next-row-id", 0)
        schema = document["schemas"][-1]
        document["schemas"].append({**schema, "schema-id": 1, "fields": schema["fields"] + fields})
        document["current-schema-id"], document["last-column-id"] = 1, fields[-1]["id"]
        document["partition-specs"][-1]["fields"] += partition_fields
        document["last-partition-id"] += len(partition_fields)

    return with_document(lake, changed)


def opened(lake: SqlCatalog) -> SizedTable:
    """The table, of which every file is small."""
    return icesize.open(None, "db.t", catalog=lake, policy=ALL_SMALL)


def rows_of(lake: SqlCatalog) -> list[dict[str, Any]]:
    """All rows as PyIceberg reads them."""
    rows = lake.load_table("db.t").scan().to_arrow().drop_columns(["kind", "ts"]).to_pylist()
    return sorted(rows, key=lambda row: str(row["id"]))


def with_defaults(lake: SqlCatalog) -> Table:
    """Two files from before columns were added, and two since, whose rows omit them."""
    make_table(lake, {"kind": "identity"})
    append(lake, [1, 2])
    append(lake, [3])
    upgraded(lake, ADDED)
    append(lake, [4])
    return append(lake, [5])


OLD = {"must": 8, "note": "old", "bare": None}
NEW = {"must": 9, "note": "new", "bare": None}
ROWS = [{"id": i, **(OLD if i < 4 else NEW)} for i in range(1, 6)]


@pytest.mark.parametrize("rewrite", [SizedTable.compact, SizedTable.maintain])
def test_rows_keep_their_defaults(lake: SqlCatalog, rewrite: Callable[[SizedTable], object]) -> None:
    """Those of older files the initial default, later ones the write default of their time."""
    with_defaults(lake)
    assert rows_of(lake) == ROWS
    rewrite(opened(lake))
    assert (rows_of(lake), len(live_paths(lake.load_table("db.t")))) == (ROWS, 1)
    assert opened(lake).verify().findings == ()


def test_restored_rows_have_the_initial_default(lake: SqlCatalog) -> None:
    """Their files are copied as they are, and still lack the columns."""
    table = with_defaults(lake)
    before = table.metadata.snapshots[1].snapshot_id
    report = opened(lake).restore({"kind": "a"}, before)
    assert rows_of(lake) == ROWS[:3]
    assert any("NULL in its rows, or have their initial default" in note for note in report.notes)
    opened(lake).compact()
    assert (rows_of(lake), opened(lake).verify().findings) == (ROWS[:3], ())


def test_nanoseconds_are_appended_named_and_merged(lake: SqlCatalog) -> None:
    """Partitions are named by their hours, rows stay what they are, and the table is valid after each commit."""
    make_table(lake, {})
    hour = {"source-id": 4, "field-id": 1000, "name": "local_hour", "transform": "hour"}
    table = upgraded(lake, TIMES, hour)
    values = [3_600_000_000_000 * (i // 4) + 1 - i % 4 for i in range(8)]
    for i, value in enumerate(values):
        settings = WriteSettings.of(table.metadata, table.io.properties, 2**20)
        columns = {"id": pa.array([i]), "kind": ["a"], "ts": pa.array([i], pa.timestamp("us"))}
        times = pa.array([value])
        columns |= {"local": times.cast(pa.timestamp("ns")), "at": times.cast(pa.timestamp("ns", "UTC"))}
        files = write_rows([pa.table(columns)], settings, FileNames("test", i, 0))
        run(lake, request_on(table, files), table)
        table = lake.load_table("db.t")

    def stored() -> dict[int, tuple[int, int]]:
        rows = lake.load_table("db.t").scan().to_arrow()
        times = (rows[name].cast(pa.int64()).to_pylist() for name in ("local", "at"))
        return dict(zip(rows["id"].to_pylist(), zip(*times, strict=True), strict=True))

    assert stored() == {i: (value, value) for i, value in enumerate(values)}
    assert {group.label for group in opened(lake).plan().groups} == {
        "local_hour=1970-01-01-00", "local_hour=1970-01-01-01", "local_hour=1969-12-31-23"
    }  # fmt: skip
    opened(lake).compact(where="local_hour = 0")
    opened(lake).compact()
    assert stored() == {i: (value, value) for i, value in enumerate(values)}
    assert opened(lake).verify().findings == ()
    with pytest.raises(ArgumentError, match=r"Cannot filter: .*timestamp_ns; columns are .*, partition fields are"):
        opened(lake).compact(where="local > '1970-01-01T00:00:00'")
