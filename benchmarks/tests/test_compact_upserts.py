"""Tests of a table that is upserted and compacted beside a rival: a program that applies no deletes is found."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog

import icesize
from benchmarks import compact_rivals, compact_upserts
from benchmarks.compact_rivals import Bench
from benchmarks.compact_tables import CASES, Case
from benchmarks.compact_upserts import PEER, Compact
from tests.support.rival_tables import catalog_for_all, make_lineitem

pytestmark = pytest.mark.engine

FILES, ROWS = 4, 500
OPTIONS = ["--compactions", "2", "--updates", "3", "--rows", "40"]


def _make(warehouse: Path, scratch: Path) -> None:
    make_lineitem(warehouse, FILES, ROWS, pa.field("l_quantity", pa.decimal128(15, 2)), lambda n: Decimal(50))


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
    """Each table must have exactly the rows with their newest quantity; the contents of both are reported."""
    monkeypatch.setitem(CASES, compact_upserts.BASE, Case(_make))
    monkeypatch.setitem(compact_upserts.WAYS, PEER, rival)  # type: ignore[arg-type]
    monkeypatch.setattr(compact_rivals, "local_rest_catalog", catalog_for_all)
    result = compact_upserts.main([*OPTIONS, "--keep", str(tmp_path)])
    ours, theirs = (result["ways"][title] for title in compact_upserts.TITLES.values())
    assert (ours["rows_exact"], theirs["rows_exact"], result["rows_exact"]) == (True, exact, exact)
    assert (ours["after"]["files"], ours["after"]["delete_files"], ours["after"]["rows"]) == (1, 0, FILES * ROWS)
    assert (theirs["after"]["files"], theirs["after"]["delete_files"]) == ((1, 0) if exact else (FILES + 6, 6))
    assert (len(ours["seconds"]), result["updates"]) == (2, 6)
    assert ("NOT EXACT" in capsys.readouterr().out) is not exact
