"""Tests of one large partition beside `cp`: all rows stay, their pages are copied, and the disk is clean again."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from benchmarks import compact
from benchmarks.compact_rivals import WAYS, Bench, Way

pytestmark = pytest.mark.engine

OPTIONS = ["--case", "huge", "--gigabytes", "0.01"]
FILES, ROWS = 5, 300_000

_LOSES_A_ROW = """
import json, sys
from pyiceberg.catalog import load_catalog
from icesize.report import Report
load_catalog("c", uri=sys.argv[1]).load_table("db.t").delete("id = 7")
print(json.dumps(Report().to_dict(), indent=2))
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the directory in which the benchmark makes its table."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_icesize_copies_pages_beside_cp(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both programs have a cost, the result is printed, and no file is left."""
    result = compact.main([*OPTIONS, "--pairs", "2"])
    before, mine, copy = result["table"], result["icesize"], result["cp"]
    assert (before["files"], before["row_groups"], before["rows"], result["rows_exact"]) == (FILES, FILES, ROWS, True)
    assert (mine["after"]["files"], mine["after"]["row_groups"], mine["commits"]) == (1, 1, 1)
    # a column whose dictionaries differ is encoded again
    assert mine["moved"]["bytes_decoded"] < 0.05 * mine["moved"]["bytes_copied"]
    assert mine["moved"]["pages_copied"] > 0
    assert mine["peak_bytes"] > copy["peak_bytes"] > 0
    assert [len(one["seconds"]) for one in (mine, copy)] == [2, 2]
    # The seconds are rounded to milliseconds, and `cp` takes about 13 ms, so a ratio of them may differ by 0.01.
    ratios = [b / a for a, b in zip(mine["seconds"], copy["seconds"], strict=True)]
    assert result["ratios"] == pytest.approx(ratios, abs=0.015)
    printed = capsys.readouterr().out
    assert all(line in printed for line in ("GB/s", "peak MB", "page cache", "row groups", "commits", "exact"))
    assert list(folder.iterdir()) == []


def test_a_lost_row_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The checksum is of the table after the run."""

    def losing(bench: Bench) -> list[str]:
        return [sys.executable, "-c", _LOSES_A_ROW, bench.uri]

    monkeypatch.setitem(WAYS, "icesize", Way("losing", losing, has_call=False))
    result = compact.main([*OPTIONS, "--pairs", "1"])
    assert not result["rows_exact"]
    assert result["icesize"]["after"]["rows"] == ROWS - 1
    assert "NOT EXACT" in capsys.readouterr().out


def test_a_table_that_is_kept_is_all_that_stays(folder: Path) -> None:
    """Neither icesize's output nor the copy stays, and a second run makes no table."""
    options = [*OPTIONS, "--pairs", "1", "--keep", str(folder / "kept")]
    first = compact.main(options)["table"]
    master = folder / "kept" / "huge-0.01" / "master"
    made = master.stat().st_ctime_ns
    assert compact.main(options)["table"] == first
    assert (master.stat().st_ctime_ns, [path.name for path in folder.iterdir()]) == (made, ["kept"])
    assert len([*(folder / "kept").rglob("*.parquet")]) == FILES


def test_a_disk_that_is_too_small_is_refused(folder: Path) -> None:
    """The error names the needed space and the directory, and no file was made."""
    with pytest.raises(SystemExit, match=rf"needs 2200000000\.0 GB in {folder}.* GB are free\. .*--gigabytes"):
        compact.main(["--case", "huge", "--gigabytes", "1e9"])
    assert list(folder.iterdir()) == []
