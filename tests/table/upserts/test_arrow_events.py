"""Arrow tables as batches of upserts, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import icesize
from icesize.errors import ArgumentError, BatchError, EngineUnavailable, SchemaMismatch, TableError
from icesize.planning.upsert_rule import UpsertRule
from icesize.sized_table import SizedTable
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.arrow_events import EventsOfRows
from tests.support.tables import make_table, sqlite_catalog
from tests.support.upserts import live_rows

RULE: dict[str, Any] = {"key": "id", "order_by": "ts", "delete_when": "op = 'd'", "except_columns": ["op"]}


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    """A catalog with the empty table `db.t`."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    return catalog


def opened(catalog: Catalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=catalog)


def rows(*changes: tuple[int, str | None, int, str | None]) -> pa.Table:
    ids, kinds, times, ops = (list(column) for column in zip(*changes, strict=True))
    return pa.table({"id": ids, "kind": kinds, "ts": pa.array(times, pa.timestamp("us")), "op": ops})


def test_an_arrow_table_is_upserted(catalog: Catalog) -> None:
    """Its rows replace, delete and add rows in one commit; the rule of the first call holds for the next."""
    table = opened(catalog)
    table.upsert(rows((1, "a", 1, "i"), (2, "a", 1, "i")), **RULE)
    report = table.upsert(rows((1, "b", 2, "u"), (2, None, 2, "d"), (3, "a", 2, None)), except_columns="op")
    assert live_rows(catalog) == [(1, 2, "b"), (3, 2, "a")]
    assert report.upsert == {"events": 3, "keys": 3, "updated": 1, "deleted": 1, "late": 0, "doubled": 0}


def test_a_batch_with_a_name_is_upserted_once(catalog: Catalog) -> None:
    """A repeated call with the same stream and number changes nothing."""
    table = opened(catalog)
    batch = {"stream_id": "s", "batch_id": 0}
    assert not table.upsert(rows((1, "a", 1, "i")), **RULE, **batch).already_committed
    assert table.upsert(rows((1, "b", 2, "i")), **RULE, **batch).already_committed
    assert live_rows(catalog) == [(1, 1, "a")]


@pytest.mark.parametrize(
    ("stream_id", "batch_id", "message"),
    [
        ("s", "3", "Cannot commit batch '3': a batch id is a number from 0 on"),
        ("s", -1, "Cannot commit batch -1"),
        ("s", True, "Cannot commit batch True"),
        ("s", 1.0, "Cannot commit batch 1.0"),
        ("", 1, "Cannot commit a batch of stream '': a stream id is text, and not empty"),
        (7, 1, "Cannot commit a batch of stream 7"),
    ],
)
def test_names_that_cannot_be_compared(catalog: Catalog, stream_id: Any, batch_id: Any, message: str) -> None:
    """A batch has a number and its stream a name, or nothing is committed."""
    with pytest.raises(BatchError, match=message):
        opened(catalog).upsert(rows((1, "a", 1, "i")), **RULE, stream_id=stream_id, batch_id=batch_id)
    assert "icesize.upsert" not in catalog.load_table("db.t").properties


@pytest.mark.parametrize(
    ("condition", "deletes"),
    [
        (None, [False, False, False]),
        ("flag", [True, False, False]),
        ("op = 'd'", [False, True, False]),
        ("op in ('d', 'u') and id < 2", [True, False, False]),
        ("op is null", [False, False, True]),
        ("at < '2026-01-02'", [True, False, False]),
        ("op not in ('c', 'd')", [True, False, False]),
        ("not flag or op = 'd'", [False, True, True]),
        ("source.op like 'd%'", [False, True, False]),
    ],
)
def test_conditions(catalog: Catalog, condition: str | None, deletes: list[bool]) -> None:
    """A condition is a filter or a column of booleans, also inside of a struct; NULL deletes nothing."""
    table = pa.table(
        {
            "id": [1, 2, 3],
            "op": ["u", "d", None],
            "flag": [True, None, False],
            "at": pa.array(["2026-01-01", "2026-01-02", None]).cast(pa.timestamp("us")),
            "tags": [["a"], [], None],
            "source": [{"op": "c"}, {"op": "dd"}, None],
        }
    )
    events = EventsOfRows(table, ["op", "flag", "at", "tags", "source"])
    [fetch] = events.fetch(TableHandle(catalog, ("db", "t")).load(), UpsertRule((1,), (), condition))
    _, is_delete = fetch()
    assert np.array_equal(is_delete, deletes)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"delete_when": "nope = 1"}, SchemaMismatch, "cannot be computed: the batch has no column 'nope'"),
        ({"delete_when": "op ="}, ArgumentError, "Cannot read 'delete_when' from the mark on"),
        ({"delete_when": "op"}, SchemaMismatch, "column 'op' is a string, not a boolean"),
        ({"delete_when": "op = 1"}, SchemaMismatch, "column 'op' is a string, and 1 is no value of it"),
        ({"delete_when": "id is nan"}, SchemaMismatch, "column 'id' is a int64, which has no NaN"),
        ({"except_columns": ["kinds"]}, SchemaMismatch, "has no column 'kinds', which is part of 'except_columns'"),
        ({"except_columns": []}, SchemaMismatch, "the rows have the column 'op', which the table lacks; leave it out"),
        ({"except_columns": ["op", "ts"]}, SchemaMismatch, "has no column 'ts', which is part of 'order_by'"),
        ({"key": "name"}, TableError, "'name' of 'key' is no column of the table"),
    ],
)
def test_rows_that_do_not_fit(catalog: Catalog, change: dict[str, Any], error: type[Exception], message: str) -> None:
    """The message names the column or the condition, and nothing is stored."""
    with pytest.raises(error, match=message):
        opened(catalog).upsert(rows((1, "a", 1, "i")), **{**RULE, **change})
    assert "icesize.upsert" not in catalog.load_table("db.t").properties


@pytest.mark.parametrize(
    "condition",
    [
        "java_method('java.lang.System', 'exit', 1) = 1", "upper(op) = 'D'", "op = kind", "op rlike 'd'",
        "op like '%d'", "exists (select 1)", "true", "op = 'd' or true", "op = null", "op = 'd'; drop table t",
    ],
)  # fmt: skip
def test_conditions_that_would_be_code(catalog: Catalog, condition: str) -> None:
    """Only comparisons are stored; the message has the way on. A stored condition is read in the same way."""
    with pytest.raises(ArgumentError, match=r"Compute any other one as a boolean column of the batch, and name"):
        opened(catalog).upsert(rows((1, "a", 1, "i")), **{**RULE, "delete_when": condition})
    assert "icesize.upsert" not in catalog.load_table("db.t").properties
    with catalog.load_table("db.t").transaction() as change:
        change.set_properties({"icesize.upsert": UpsertRule((1,), (), condition).to_json()})
    with pytest.raises(ArgumentError, match=r"`icesize rekey --delete-when` changes a stored condition"):
        opened(catalog).upsert(rows((1, "a", 1, "i")), except_columns="op")
    opened(catalog).rekey(delete_when="op = 'd'")
    opened(catalog).upsert(rows((1, "a", 1, "i")), except_columns="op")
    assert live_rows(catalog) == [(1, 1, "a")]


def test_a_dataframe_needs_a_session(catalog: Catalog) -> None:
    """What is no Arrow table is Spark's."""
    with pytest.raises(EngineUnavailable, match="Cannot upsert a DataFrame: it needs Spark"):
        opened(catalog).upsert(object(), **RULE)  # type: ignore[arg-type]
