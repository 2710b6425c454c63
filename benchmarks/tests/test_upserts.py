"""Tests of the benchmark of upserts: the model of its rows, and one short run of icesize and `MERGE`."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from benchmarks import upserts
from benchmarks.upsert_rows import Shape, Workload, batch_files, first_files, sums, values_of


@pytest.mark.parametrize("shape", ["uniform", "zipf"])
def test_sums_are_those_of_the_newest_rows(shape: Shape, tmp_path: Path) -> None:
    """The expected sums are those of the row with the greatest order of each key, in files that hold all keys."""
    Workload(300, 100, 4, shape).write(tmp_path)
    files = batch_files(tmp_path, 3)
    rows = [row for path in (*first_files(tmp_path), *files) for row in pq.read_table(path).to_pylist()]
    newest = {row["id"]: row for row in sorted(rows, key=lambda row: row["n"])}
    assert len(rows) == 300 + 3 * 100
    assert sums(tmp_path, 300, files) == (
        300, sum(row["n"] for row in newest.values()), sum(row["value"] for row in newest.values()),
    )  # fmt: skip
    assert all(row["value"] == values_of(row["id"], row["n"]) for row in rows)


def test_popular_keys_come_several_times(tmp_path: Path) -> None:
    """A uniform batch has each key once; a zipfian one repeats some."""
    for shape, repeats in (("uniform", False), ("zipf", True)):
        Workload(1_000, 500, 1, shape).write(tmp_path / shape)  # type: ignore[arg-type]
        ids = pq.read_table(batch_files(tmp_path / shape)[0])["id"].to_pylist()
        assert (len(set(ids)) < len(ids)) == repeats
        assert max(ids) < 1_000


@pytest.mark.slow
def test_both_ways_are_exact(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """icesize and `MERGE` leave the expected rows, and the table of figures has a column for each."""
    options = ["--keys", "5000", "--rows", "500", "--batches", "2", "--peer-batches", "1", "--shape", "zipf"]
    result = upserts.main([*options, "--dir", str(tmp_path)])
    ours, merge = result["ways"]
    assert (ours["rows_exact"], merge["rows_exact"], result["rows_exact"]) == (True, True, True)
    assert (len(ours["seconds"]), len(merge["seconds"])) == (4, 3)
    assert (ours["equality_deletes"], merge["equality_deletes"]) == (0, 0)
    assert ours["scans"].keys() == merge["scans"].keys() == set(upserts.READERS)
    assert "NOT EXACT" not in capsys.readouterr().out
