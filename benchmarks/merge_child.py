"""One method to merge files, repeated in one process on one core: a row of `benchmarks.merge`.

    python -m benchmarks.merge_child WAY JOB.json

Prints one JSON line. Each method imports its own modules, because modules count in the peak of memory.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

from tests.support.processes import peak_bytes

TARGET_BYTES = 512 * 2**20
"""Target of merged files, larger than all inputs, so that every method writes one file."""


class Job(NamedTuple):
    """Merge `files`, those of the table `c.db.t` in `warehouse`, into `out`, once and then `rounds` times."""

    warehouse: str
    files: list[str]
    out: str
    rounds: int


Once = Callable[[], list[str]]
"""Merges once; returns the paths of the written files."""


def pin() -> None:
    """Bind this process, and all of its children, to one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def _row_groups(job: Job) -> Once:
    from icesize.parquet.row_groups.assembly import Assembly
    from icesize.parquet.row_groups.row_groups import copy_row_group

    def copy(sources: list[Any], footers: list[Any], out: IO[bytes]) -> None:
        assembly = Assembly(out, footers)
        for source, footer in zip(sources, footers, strict=True):
            for group in footer.row_groups:
                copy_row_group(source, group, assembly)
        assembly.finish()

    return _copying(job, copy)


def _pages(job: Job) -> Once:
    from icesize.parquet.pages.column_plan import Part, plan_columns
    from icesize.parquet.pages.page_copy import merge_row_groups, runs_of
    from icesize.parquet.rewriting.output_file import works
    from icesize.parquet.row_groups.assembly import Assembly

    def copy(sources: list[Any], footers: list[Any], out: IO[bytes]) -> None:
        files = zip(sources, footers, strict=True)
        parts = [Part(source, footer, group) for source, footer in files for group in footer.row_groups]
        assembly = Assembly(out, footers)
        for group in runs_of(parts, 2**20, 128 * 2**20):
            plan = plan_columns(group)
            merge_row_groups(group, plan, assembly, (work(None) for work in works(group, plan)))
        assembly.finish()

    return _copying(job, copy)


def _copying(job: Job, copy: Callable[..., object]) -> Once:
    from icesize.parquet.format.footer import read_footer
    from icesize.parquet.format.sources import LocalSource

    def once() -> list[str]:
        sources = [LocalSource(file) for file in job.files]
        with open(job.out, "wb") as out:
            copy(sources, [read_footer(source) for source in sources], out)
        return [job.out]

    return once


def _chosen(job: Job) -> Once:
    return _ours(job, {})


def _lineage(job: Job) -> Once:
    return _ours(job, {}, version=3)


def _decode(job: Job) -> Once:
    return _ours(job, {"merge-by-copying": False})


def _ours(job: Job, policy: dict[str, object], version: int = 2) -> Once:
    """Return the whole merge of a Spark task, from manifest entries to metrics of the new files.

    In `version` 3 of the table format, the new files store the lineage of their rows.
    """
    import icesize
    from benchmarks import icesize_child, peers
    from icesize.parquet.files.names import FileNames
    from icesize.parquet.rewriting.merge import merge
    from icesize.parquet.writing.row_writer import use_system_memory
    from icesize.planning.plan import MergeTask

    use_system_memory()
    policy = {"target-file-size-bytes": TARGET_BYTES} | policy
    current, files = icesize_child.layout(
        icesize.open(None, "db.t", catalog=peers.catalog(Path(job.warehouse)), policy=policy)
    )
    (partition,) = files.partitions.values()
    inputs = sorted(partition.small, key=lambda input_file: input_file.path)
    starts = accumulate((file.rows for file in inputs), initial=0)
    inputs = [replace(file, first_row_id=start) for file, start in zip(inputs, starts, strict=False)]
    task = MergeTask(tuple(inputs), inputs[0].partition)
    settings = replace(current.settings(), format_version=version)

    def once() -> list[str]:
        return [file.path.removeprefix("file://") for file in merge(task, settings, FileNames("merge", 0, 0)).files]

    return once


def _pyarrow(job: Job) -> Once:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def once() -> list[str]:
        tables = [pq.ParquetFile(file).read(use_threads=False) for file in job.files]
        pq.write_table(pa.concat_tables(tables), job.out, compression="zstd")
        return [job.out]

    return once


def _duckdb(job: Job) -> Once:
    import duckdb

    database = duckdb.connect(config={"threads": 1})
    files = ", ".join(f"'{file}'" for file in job.files)

    def once() -> list[str]:
        query = f"SELECT * FROM read_parquet([{files}])"
        database.execute(f"COPY ({query}) TO '{job.out}' (FORMAT parquet, COMPRESSION zstd)")
        return [job.out]

    return once


WAYS: dict[str, Callable[[Job], Once]] = {
    "row groups": _row_groups,
    "pages": _pages,
    "chosen": _chosen,
    "lineage": _lineage,
    "decode": _decode,
    "pyarrow": _pyarrow,
    "duckdb": _duckdb,
}


def _run(way: str, job: Job) -> dict[str, Any]:
    """Return `seconds` of each round except the first (the warm-up), `peak_bytes`, and facts of the last output."""
    pin()
    once = WAYS[way](job)
    seconds: list[float] = []
    outputs: list[str] = []
    for _ in range(1 + job.rounds):
        _remove(outputs)
        began = time.perf_counter()
        outputs = once()
        seconds.append(time.perf_counter() - began)
    # The peak is read before `written` imports pyarrow.
    result: dict[str, Any] = {"seconds": seconds[1:], "peak_bytes": peak_bytes()}
    result |= written(outputs)
    _remove(outputs)
    return result


def written(outputs: list[str]) -> dict[str, int]:
    """Return `files`, `rows`, `row_groups` and `bytes` of Parquet files."""
    import pyarrow.parquet as pq

    footers = [pq.read_metadata(output) for output in outputs]
    return {
        "files": len(outputs),
        "rows": sum(footer.num_rows for footer in footers),
        "row_groups": sum(footer.num_row_groups for footer in footers),
        "bytes": sum(os.path.getsize(output) for output in outputs),
    }


def _remove(outputs: list[str]) -> None:
    for output in outputs:
        os.remove(output)


if __name__ == "__main__":
    print(json.dumps(_run(sys.argv[1], Job(**json.loads(Path(sys.argv[2]).read_text())))))
