"""Tests of the benchmark of single columns: each method keeps all rows, and really is the method of its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import columns


def test_every_kind_goes_every_way_that_it_can(tmp_path: Path) -> None:
    """Few values are renumbered or encoded again, others are copied, and each method has its three figures."""
    found = [columns.measured(tmp_path / kind, kind, 2, 1_000, 1) for kind in ("few texts", "longs")]
    assert [list(kind["ways"]) for kind in found] == [[*columns.WAYS], ["copy", "encode again", "decode"]]
    figures = [way for kind in found for way in kind["ways"].values()]
    assert all(list(way) == ["predicted_ms", "cpu_ms", "beside_ms"] and min(way.values()) >= 0 for way in figures)
    assert found[1]["chosen"] == "copy"
    assert len(columns.KINDS) == 12


@pytest.mark.parametrize(("kind", "chosen"), [("few longs", "encode again"), ("few texts", "renumber")])
def test_indices_are_renumbered_where_that_is_less_work(tmp_path: Path, kind: str, chosen: str) -> None:
    """Strings in pages of usual size are renumbered and numbers are encoded again, each because it is less work."""
    files = columns.small_files(tmp_path, columns.KINDS[kind], 2, 20_000, alike=False)
    assert columns.chosen(files) == chosen
    assert columns.predicted(files, chosen) < columns.predicted(files, "decode")


def test_an_unknown_kind_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """The message lists the kinds."""
    with pytest.raises(SystemExit):
        columns.main(["--kinds", "colours"])
    assert "'colours' is none of few texts, few longs" in capsys.readouterr().err
