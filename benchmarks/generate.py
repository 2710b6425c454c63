"""The workload of the stream benchmark as files: the micro-batches of `tests.support.late_events`.

The manifest has a digest of each batch, because numpy may change its random streams between versions.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.support.late_events import batch, newest_hour


def table_digest(table: pa.Table) -> str:
    """Return the SHA-256 of a batch's values, independent of their Parquet encoding."""
    digest = hashlib.sha256()
    for name in ("id", "event_time", "user_id", "amount"):
        column = table[name].combine_chunks()
        digest.update(np.asarray(column.cast("int64") if name == "event_time" else column).tobytes())
    for name in ("hour", "status", "payload"):
        digest.update("\n".join(table[name].to_pylist()).encode())
    return digest.hexdigest()


def generate(out: Path, batches: int = 24, rows: int = 50_000, seed: int = 7) -> dict[str, Any]:
    """Write `batch_000.parquet` ... and `manifest.json` into `out` and return the manifest.

    A directory that has this workload already stays unchanged; one with another workload raises `ValueError`.
    """
    wanted = {"batches": batches, "rows": rows, "seed": seed}
    manifest_path = out / "manifest.json"
    if manifest_path.exists():
        found: dict[str, Any] = json.loads(manifest_path.read_text())
        if {key: found.get(key) for key in wanted} != wanted:
            raise ValueError(f"Cannot generate into {out}: it holds another workload, delete it first")
        return found
    out.mkdir(parents=True, exist_ok=True)
    files = [_write(out, i, batch(i, rows, batches, seed), batches) for i in range(batches)]
    manifest = wanted | {"total_rows": batches * rows, "numpy": np.__version__, "files": files}
    # The manifest is written last, so that an interrupted workload is generated again.
    manifest_path.write_text(json.dumps(manifest, indent=1))
    return manifest


def batch_files(data: Path, batches: int | None = None) -> list[Path]:
    """Return the Parquet files of the first `batches` batches in `data` (all of them if None), in order."""
    return sorted(data.glob("batch_*.parquet"))[:batches]


def _write(out: Path, i: int, table: pa.Table, batches: int) -> dict[str, Any]:
    path = out / f"batch_{i:03d}.parquet"
    pq.write_table(table, path, compression="zstd")
    return {
        "file": path.name,
        "rows": table.num_rows,
        "bytes": path.stat().st_size,
        "newest_hour": f"h{newest_hour(i, batches):03d}",
        "hours": len(table["hour"].unique()),
        "sha256": table_digest(table),
    }
