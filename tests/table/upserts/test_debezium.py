"""Upserts of Debezium's messages about the tables of CH-benCHmark, judged by the answers of its 22 queries.

Messages, queries and answers are those of RisingWave's tests (`tests/fixtures/ch_benchmark`, with its NOTICE).
Customers, orders and others are created and updated, and new orders are deleted when they are delivered.
"""

from __future__ import annotations

import json
import lzma
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

from icesize.table.upserts.settings import WantedRule
from tests.support.tables import sqlite_catalog
from tests.support.upserts import upsert_rows
from tests.support.v3_tables import as_v3

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ch_benchmark"
QUERIES: dict[str, dict[str, Any]] = json.loads((FIXTURES / "answers.json").read_text())
KEYS = {
    "customer": ("c_id", "c_d_id", "c_w_id"),
    "district": ("d_id", "d_w_id"),
    "history": ("h_c_id", "h_c_d_id", "h_c_w_id", "h_d_id", "h_w_id", "h_date", "h_data"),
    "item": ("i_id",),
    "nation": ("n_nationkey",),
    "neworder": ("no_o_id", "no_d_id", "no_w_id"),
    "orderline": ("ol_o_id", "ol_d_id", "ol_w_id", "ol_number"),
    "orders": ("o_id", "o_d_id", "o_w_id"),
    "region": ("r_regionkey",),
    "stock": ("s_i_id", "s_w_id"),
    "supplier": ("su_suppkey",),
    "warehouse": ("w_id",),
}
"""The primary keys. A key column cannot be a number with a fraction, so that of `history` lacks its amount."""
BATCHES = 5
ORDER = ("lsn", "place")
"""The LSN; within one, the place in the stream."""

Changes = dict[str, pa.Table]


@pytest.fixture(scope="module")
def changes() -> Changes:
    """The changes of each table, with the operation, the LSN and the place in the stream."""
    header, *lines = lzma.decompress((FIXTURES / "changes.jsonl.xz").read_bytes()).decode().splitlines()
    names, rows = json.loads(header), defaultdict[str, list[dict[str, Any]]](list)
    for place, line in enumerate(lines):
        table, operation, lsn, values = json.loads(line)
        row = dict(zip(names[table], values, strict=True))
        rows[table].append({**row, "op": operation, "lsn": lsn, "place": place})
    return {table: _typed(pa.Table.from_pylist(some)) for table, some in rows.items()}


def _typed(rows: pa.Table) -> pa.Table:
    """The rows; columns that are NULL everywhere are text."""
    return rows.cast(
        pa.schema([field.with_type(pa.string()) if pa.types.is_null(field.type) else field for field in rows.schema])
    )


@pytest.fixture(scope="module", params=[2, 3])
def database(
    request: pytest.FixtureRequest, changes: Changes, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[duckdb.DuckDBPyConnection]:
    """The tables after all changes in batches, of which one comes twice, as PyIceberg reads them."""
    catalog = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    with duckdb.connect() as connection:
        for table, rows in changes.items():
            _upsert(catalog, table, rows, request.param)
            connection.register(table, catalog.load_table(f"db.{table}").scan().to_arrow())
        yield connection


def _upsert(catalog: Catalog, table: str, rows: pa.Table, version: int) -> None:
    catalog.create_table(f"db.{table}", rows.drop(["op"]).schema)
    if version == 3:
        as_v3(catalog, f"db.{table}")
    rule = WantedRule(key=KEYS[table], order_by=ORDER, delete_when="op = 'd'")
    size = -(-rows.num_rows // BATCHES)
    parts = [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
    for number, part in enumerate([*parts, parts[-1]]):
        is_delete = [operation == "d" for operation in part["op"].to_pylist()]
        upsert_rows(catalog, part.drop(["op"]), is_delete, number, rule, f"db.{table}")


@pytest.mark.parametrize("query", QUERIES)
def test_answers_of_ch_benchmark(query: str, database: duckdb.DuckDBPyConnection) -> None:
    """The answer of each query is the one that RisingWave's tests expect, in any order of rows."""
    # a decimal without a scale has three digits in DuckDB, and all of them in PostgreSQL
    sql = QUERIES[query]["sql"].replace("::decimal", "::decimal(38, 10)")
    answer = database.execute(sql).fetchall()
    assert sorted(map(_words, answer)) == sorted(_expected(row) for row in QUERIES[query]["rows"])


def _words(row: tuple[Any, ...]) -> list[str]:
    return _expected(" ".join(map(str, row)))


def _expected(text: str) -> list[str]:
    """The words of a row; numbers without trailing zeros."""
    return [word.rstrip("0").rstrip(".") if _is_fraction(word) else word for word in text.split()]


def _is_fraction(word: str) -> bool:
    whole, point, fraction = word.removeprefix("-").partition(".")
    return bool(point) and whole.isdigit() and fraction.isdigit()
