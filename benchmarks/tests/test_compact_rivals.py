"""Tests of compaction beside rivals: each run starts with the same table, has its own cost, and shows lost rows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.catalog.sql import SqlCatalog

from benchmarks import compact, compact_rivals
from benchmarks.compact_rivals import WAYS, Bench, Contestant, Way, chosen, compared, made, ratios, run_measured
from benchmarks.compact_tables import CASES, Case
from tests.support.rival_tables import catalog_for_all

pytestmark = pytest.mark.engine
FILES, ROWS = 6, 500


def _make(warehouse: Path, scratch: Path) -> None:
    """Make a small `db.t`, without Spark, at the location of `peers.catalog`."""
    warehouse.mkdir()
    rows = pa.table({"id": range(ROWS), "name": [f"row {i}" for i in range(ROWS)]})
    with SqlCatalog("c", uri=f"sqlite:///{warehouse}/cat.db", warehouse=f"file://{warehouse}/wh") as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", rows.schema)
        for _ in range(FILES):
            table.append(rows)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """Return that table as a case."""
    monkeypatch.setitem(CASES, "small", Case(_make))
    with catalog_for_all(tmp_path) as uri:
        yield made(CASES["small"], tmp_path / "small", uri)


def test_ways_in_python_compact_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """icesize's command, its call, and scan + overwrite leave one file with all rows.

    Programs that did not run are named.
    """
    monkeypatch.setitem(CASES, "small", Case(_make))
    monkeypatch.setattr(compact_rivals, "local_rest_catalog", catalog_for_all)
    monkeypatch.delenv("ICEBERG_GO", raising=False)
    options = ["--case", "small", "--pairs", "1", "--ways", "icesize,call,overwrite,go", "--keep", str(tmp_path)]
    result = compact.main(options)
    ways = result["ways"]
    assert (result["table"]["files"], result["table"]["rows"], result["rows_exact"]) == (FILES, FILES * ROWS, True)
    assert {way: run["after"]["files"] for way, run in ways.items()} == {"icesize": 1, "call": 1, "overwrite": 1}
    assert {way for way, run in ways.items() if "call" in run} == {"call", "overwrite"}
    assert {part: set(some) for part, some in result["ratios"].items()} == {
        "process": {"icesize", "call", "overwrite"},
        "call": {"call", "overwrite"},
    }
    assert result["left_out"] == {"go": "ICEBERG_GO is not set"}
    printed = capsys.readouterr().out
    assert all(title in printed for title in ("process", "CPU", "call", "peak MB", "files", "row groups", "rows"))
    assert [printed.count(WAYS[way].title) for way in ("call", "overwrite", "go")] == [2, 2, 1]
    assert "left out: iceberg-go, as ICEBERG_GO is not set" in printed


def test_each_run_finds_the_table_as_it_was_made(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order alternates; a program that loses a row is found, and the next run has the row again."""
    ran: list[str] = []

    def idle(of: Bench) -> list[str]:
        ran.append("idle")
        return ["true"]

    def losing(of: Bench) -> list[str]:
        ran.append("losing")
        load_catalog("c", uri=of.uri).load_table("db.t").delete("id = 7")
        return ["true"]

    monkeypatch.setitem(WAYS, "idle", Way("idle", idle, has_call=False))
    monkeypatch.setitem(WAYS, "losing", Way("losing", losing, has_call=False))
    before = bench.contents()
    results = compared({way: Contestant(WAYS[way], bench, before) for way in ("idle", "losing")}, 2)
    assert ran == ["idle", "losing", "losing", "idle"]
    assert {way: run["rows_exact"] for way, run in results.items()} == {"idle": True, "losing": False}
    assert results["idle"]["after"] == before
    assert results["losing"]["after"]["rows"] == before["rows"] - FILES


def test_a_table_that_was_kept_is_not_made_again(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second run starts from the files of the first; an interrupted table is made again."""
    makes: list[Path] = []

    def make(warehouse: Path, scratch: Path) -> None:
        makes.append(warehouse)
        _make(warehouse, scratch)

    monkeypatch.setitem(CASES, "small", Case(make))
    folder = bench.table.parent
    assert made(CASES["small"], folder, bench.uri) == bench
    assert makes == []
    (folder / "made.json").unlink()
    made(CASES["small"], folder, bench.uri)
    assert makes == [bench.table]


def test_rivals_take_part_where_their_variable_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Missing programs are named with their variable; none of them is required."""
    monkeypatch.setenv("ICEBERG_GO", "/somewhere/iceberg")
    monkeypatch.delenv("ICEBERG_COMPACTION_PYTHON", raising=False)
    present, left_out = chosen(list(WAYS))
    assert present == ["icesize", "call", "rewrite", "overwrite", "go"]
    assert left_out == {"rust": "ICEBERG_COMPACTION_PYTHON is not set"}


def test_a_process_is_measured_with_what_it_leaves_running() -> None:
    """The peak excludes the larger parent process; the cost includes children that the process did not wait for."""
    ballast = b"x" * 2**28
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    program = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}]); b'x' * 2**26; print('{{}}')"
    cost, answer = run_measured([sys.executable, "-c", program])
    assert answer == "{}"
    assert cost["cpu_seconds"] >= 0.5
    assert 2**26 <= cost["peak_bytes"] < 2**27 < len(ballast)


def test_a_program_that_fails_says_why() -> None:
    """The benchmark ends with the program's own error."""
    with pytest.raises(RuntimeError, match=r"^Cannot run .*:\nno such table$"):
        run_measured([sys.executable, "-c", "raise SystemExit('no such table')"])


def test_others_are_compared_with_icesize_round_by_round() -> None:
    """Processes and calls are compared with their own kind, by the median of ratios; without icesize, nothing is."""
    ours = {
        "icesize": {"process": {"seconds": [1.0, 2.0, 1.0]}},
        "call": {"process": {"seconds": [1.0, 1.0, 1.0]}, "call": {"seconds": [0.5, 0.5, 0.5]}},
    }
    rust = {"rust": {"process": {"seconds": [3.0, 3.0, 2.0]}, "call": {"seconds": [1.0, 2.0, 3.0]}}}
    assert ratios(ours | rust) == {
        "process": {"icesize": 1.0, "call": 1.0, "rust": 2.0},
        "call": {"call": 1.0, "rust": 4.0},
    }
    assert ratios(rust) == {}


def test_lineitem_needs_its_generator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the package to install."""
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match="pip install tpchgen-cli"):
        CASES["lineitem"].make(tmp_path / "table", tmp_path)
