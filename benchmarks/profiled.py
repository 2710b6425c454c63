"""Profile of a batch: samples of the driver and of Spark's Python workers, taken by py-spy.

py-spy is no dependency of icesize: `pip install py-spy`, and the right to trace one's own processes.
"""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

SAMPLES_PER_SECOND = 100
"""Each sample stops the process for a moment: with 200 per second, a batch took twice as long."""

_IN_BATCH = "run (icesize/spark/stream/sink.py"

_DRIVER = (
    ("settings of the session", "settings_of (icesize/spark/engine/session.py"),
    ("table loaded from the catalog", "load (icesize/table/state/handle.py"),
    ("columns matched", "align (icesize/spark/engine/columns.py"),
    ("manifests read", "read (icesize/table/state/layouts.py"),
    ("asked for the size of the batch", "is_small (icesize/spark/routing/statistics.py"),
    ("rows or counts fetched from Spark", "fetch (icesize/spark/engine/jobs.py"),
    ("rows divided by partition", "arrange_by_partition (icesize/"),
    ("rest of planning", "plan (icesize/spark/stream/batch_plan.py"),
    ("Spark's write job", "run_job (icesize/spark/engine/jobs.py"),
    ("threads that write", "write_in_threads (icesize/parquet/rewriting/threads.py"),
    ("merges waited for", "(icesize/spark/engine/merge_job.py"),
    ("manifests made", "stage (icesize/table/commit/pyiceberg_committer.py"),
    ("rest of the commit", "commit_written (icesize/table/commit/batch_commit.py"),
    ("Spark's catalog refreshed", "refresh (icesize/spark/stream/process_state.py"),
    ("rest of the batch", _IN_BATCH),
)
"""Steps of the thread that handles a batch, each with a function on its stack; the first match counts."""

_WRITERS = (
    ("tasks unpacked, modules imported", "read_command ("),
    ("merges", "merge (icesize/parquet/rewriting/merge.py"),
    ("rows divided by partition", "arrange_by_partition (icesize/"),
    ("metrics taken from footers", "describe (icesize/parquet/files/metrics.py"),
    ("files named", "location (icesize/parquet/files/new_files.py"),
    ("files created", "create (icesize/parquet/files/uncommitted.py"),
    ("Parquet writers made", "parquet_writer (icesize/parquet/writing/file_writer.py"),
    ("rows encoded", "append (icesize/parquet/writing/file_writer.py"),
    ("files finished", "finish (icesize/parquet/writing/file_writer.py"),
    ("rows received from the JVM", "load_stream ("),
    ("rest of writing", "write_rows (icesize/parquet/writing/row_writer.py"),
)
"""Steps of threads and of Spark tasks that write files, summed over all of them."""


def sampling(folder: Path, name: str, *, as_folded: bool) -> list[str]:
    """Return the command that samples a program into `name`.svg or `name`.folded.

    The flame graph has only computing threads, the folded stacks also waiting ones. Raises SystemExit if py-spy is not
    installed.
    """
    program = shutil.which("py-spy") or shutil.which("py-spy", path=str(Path(sys.executable).parent))
    if program is None:
        raise SystemExit("Cannot profile: py-spy is not installed, `pip install py-spy`")
    how = (
        ["raw", "--idle", "-o", f"{folder / name}.folded"]
        if as_folded
        else ["flamegraph", "-o", f"{folder / name}.svg"]
    )
    return [program, "record", "--subprocesses", "--rate", str(SAMPLES_PER_SECOND), "--format", *how, "--"]


def steps(folded: Iterable[str], batches: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds per batch of each step, of the thread that handles it (`driver`) and of all `writers`.

    Each line is a stack and its number of samples.
    """
    found = {"driver": Counter[str](), "writers": Counter[str]()}
    for line in folded:
        stack, _, samples = line.rpartition(" ")
        who, rules = ("driver", _DRIVER) if _IN_BATCH in stack else ("writers", _WRITERS)
        step = next((step for step, function in rules if function in stack), None)
        if step is not None:
            found[who][step] += int(samples)
    of_sample = 1000 / SAMPLES_PER_SECOND / batches
    return {who: {step: round(n * of_sample, 1) for step, n in counts.most_common()} for who, counts in found.items()}
