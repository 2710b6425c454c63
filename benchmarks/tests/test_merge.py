"""Tests of the merge benchmarks: all methods keep the same rows, and a table can be restored."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import benchmarks
from benchmarks.merge_child import WAYS, Job, written
from benchmarks.restored import restore

FILES, ROWS = 3, 5_000
ROOT = Path(benchmarks.__file__).parent.parent


def _small_files(folder: Path) -> list[str]:
    paths = [str(folder / f"{n}.parquet") for n in range(FILES)]
    for n, path in enumerate(paths):
        ids = range(n * ROWS, (n + 1) * ROWS)
        table = pa.table({"id": pa.array(ids, pa.int64()), "text": [f"row {i}" for i in ids]})
        fields = [field.with_metadata({"PARQUET:field_id": str(at + 1)}) for at, field in enumerate(table.schema)]
        pq.write_table(table.cast(pa.schema(fields)), path, use_dictionary=False, compression="zstd")
    return paths


@pytest.mark.parametrize("way", ["row groups", "pages", "pyarrow", "duckdb"])
def test_every_way_to_merge_writes_all_rows_in_order(tmp_path: Path, way: str) -> None:
    """The output has the rows in the order of the files, and the printed counts."""
    job = Job(str(tmp_path), _small_files(tmp_path), str(tmp_path / "merged.parquet"), 1)
    outputs = WAYS[way](job)()
    assert outputs == [job.out]
    assert pq.ParquetFile(job.out).read()["id"].to_pylist() == list(range(FILES * ROWS))
    facts = written(outputs)
    assert (facts["files"], facts["rows"]) == (1, FILES * ROWS)
    assert facts["row_groups"] == (FILES if way == "row groups" else 1)
    assert facts["bytes"] == Path(job.out).stat().st_size


def test_the_peak_of_memory_counts_what_was_released() -> None:
    """The peak is that of the process, not its memory at the end, nor the peak of its larger parent."""
    program = "from benchmarks.merge_child import peak_bytes; bytearray(b'x') * 2**26; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert 2**26 <= int(done.stdout) < 2**26 + 2**25


def test_a_table_is_restored_after_programs_deleted_and_changed_its_files(tmp_path: Path) -> None:
    """Data files are links to the master's, which stay; the catalog, which programs write, is a copy."""
    table, master = tmp_path / "table", tmp_path / "master"
    (master / "data").mkdir(parents=True)
    (master / "data" / "a.parquet").write_bytes(b"rows")
    (master / "cat.db").write_bytes(b"catalog")
    for _ in range(2):
        restore(table, master)
        assert (table / "data" / "a.parquet").read_bytes() == b"rows"
        assert (table / "data" / "a.parquet").samefile(master / "data" / "a.parquet")
        assert (table / "cat.db").read_bytes() == b"catalog"
        (table / "data" / "a.parquet").unlink()
        (table / "cat.db").write_bytes(b"changed")
    assert (master / "data" / "a.parquet").read_bytes() == b"rows"
    assert (master / "cat.db").read_bytes() == b"catalog"
