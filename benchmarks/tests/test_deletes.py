"""Tests of compaction with deletes beside rivals: a program that leaves a deleted row or loses another is found."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from benchmarks import compact_rivals, deletes
from benchmarks.compact_rivals import WAYS, Bench, Way
from benchmarks.compact_tables import CASES, Case
from tests.support.rival_tables import catalog_for_all, make_lineitem

pytestmark = pytest.mark.engine

FILES, ROWS = 6, 500
KEYS = 20

_COPIES_ALL = """
import sys
from pyarrow import concat_tables
from pyarrow.parquet import read_table
from pyiceberg.catalog import load_catalog
table = load_catalog("c", uri=sys.argv[1]).load_table("db.t")
table.overwrite(concat_tables(read_table(task.file.file_path) for task in table.scan().plan_files()))
"""


def _make(warehouse: Path, scratch: Path) -> None:
    make_lineitem(warehouse, FILES, ROWS, pa.field("t", pa.string()), "row {}".format)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that table in place of lineitem, and three equality delete files."""
    monkeypatch.setitem(CASES, deletes.BASE, Case(_make))
    monkeypatch.setitem(deletes.CASES, "equality", partial(deletes.CASES["equality"].func, files=3))  # type: ignore[attr-defined]
    monkeypatch.setattr(compact_rivals, "local_rest_catalog", catalog_for_all)
    monkeypatch.delenv("ICEBERG_GO", raising=False)


@pytest.mark.parametrize(
    ("case", "deleted", "delete_files"),
    [("random", 60, FILES), ("clustered", 60, FILES), ("thirty", 900, FILES), ("equality", 3 * KEYS, 3)],
)
def test_deleted_rows_are_left_out(
    case: str, deleted: int, delete_files: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """icesize leaves one file with the live rows and no delete file, and also merges the table without deletes."""
    options = ["--case", case, "--pairs", "1", "--ways", "icesize,call,overwrite,go", "--keep", str(tmp_path)]
    result = deletes.main(options)
    before, ways = result["table"], result["ways"]
    assert (before["files"], before["delete_files"]) == (FILES, delete_files)
    assert (before["rows"], result["rows_exact"]) == (FILES * ROWS - deleted, True)
    after = {way: (run["after"]["files"], run["after"]["delete_files"]) for way, run in ways.items()}
    refused = {"overwrite"} if case == "equality" else set()
    assert set(after) == {"icesize", "call", "overwrite", "without"} - refused
    assert {after[way] for way in ("icesize", "call", "without")} == {(1, 0)}
    assert ways["without"]["after"]["rows"] == FILES * ROWS
    assert set(result["left_out"]) == {"go"} | refused
    printed = capsys.readouterr().out
    assert all(told in printed for told in ("delete files", "without deletes", "left out: iceberg-go", "exact"))


def test_rows_that_are_brought_back_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program that writes deleted rows again has not compacted the table; a kept table is not made again."""

    def forgetful(bench: Bench) -> list[str]:
        return [sys.executable, "-c", _COPIES_ALL, bench.uri]

    options = ["--pairs", "1", "--ways", "icesize", "--keep", str(tmp_path)]
    first = deletes.main(options)
    monkeypatch.setitem(WAYS, "icesize", Way("forgetful", forgetful, has_call=False))
    result = deletes.main(options)
    assert result["table"] == first["table"]
    assert (first["rows_exact"], result["rows_exact"]) == (True, False)
    assert result["ways"]["icesize"]["after"]["rows"] == FILES * ROWS
    assert "NOT EXACT" in capsys.readouterr().out
