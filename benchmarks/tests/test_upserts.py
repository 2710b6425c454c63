"""A table that is upserted and compacted beside a rival: whoever applies no deletes is found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from benchmarks import compact_rivals, upserts
from benchmarks.compact_rivals import Bench
from benchmarks.compact_tables import CASES, Case
from benchmarks.upserts import PEER, Compact

pytestmark = pytest.mark.engine

FILES, ROWS = 4, 500
OPTIONS = ["--compactions", "2", "--updates", "3", "--rows", "40"]


@contextmanager
def _sqlite(folder: Path) -> Iterator[str]:
    """Instead of a server, a catalog that every program in Python opens by its address alone."""
    uri = f"sqlite:///{folder}/runs.db"
    SqlCatalog("c", uri=uri).close()
    yield uri


def _make(warehouse: Path, scratch: Path) -> None:
    """A small `db.t` with the key of lineitem."""
    warehouse.mkdir()
    schema = pa.schema(
        {"l_orderkey": pa.int64(), "l_linenumber": pa.int32(), "l_quantity": pa.decimal128(15, 2)}.items()
    )
    with SqlCatalog("c", uri=f"sqlite:///{warehouse}/cat.db", warehouse=f"file://{warehouse}/wh") as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", schema)
        for first in range(0, FILES * ROWS, ROWS):
            rows = [(n, n % 7, Decimal(50)) for n in range(first, first + ROWS)]
            table.append(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema))


@contextmanager
def _ours(catalog: Catalog, bench: Bench) -> Iterator[Compact]:
    yield icesize.open(None, PEER, catalog=catalog).compact


@contextmanager
def _nothing(catalog: Catalog, bench: Bench) -> Iterator[Compact]:
    yield lambda: None


@pytest.mark.parametrize(("rival", "exact"), [(_ours, True), (_nothing, False)])
def test_both_tables_are_compared_with_the_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    rival: object,
    exact: bool,
) -> None:
    """Rows with their newest quantity and no others; what is left is told of both."""
    monkeypatch.setitem(CASES, upserts.BASE, Case(_make))
    monkeypatch.setitem(upserts.WAYS, PEER, rival)  # type: ignore[arg-type]
    monkeypatch.setattr(compact_rivals, "local_rest_catalog", _sqlite)
    result = upserts.main([*OPTIONS, "--keep", str(tmp_path)])
    ours, theirs = (result["ways"][title] for title in upserts.TITLES.values())
    assert (ours["rows_exact"], theirs["rows_exact"], result["rows_exact"]) == (True, exact, exact)
    assert (ours["after"]["files"], ours["after"]["delete_files"], ours["after"]["rows"]) == (1, 0, FILES * ROWS)
    assert (theirs["after"]["files"], theirs["after"]["delete_files"]) == ((1, 0) if exact else (FILES + 6, 6))
    assert (len(ours["seconds"]), result["updates"]) == (2, 6)
    assert ("NOT EXACT" in capsys.readouterr().out) is not exact
