"""Faults of what is stored, and batches out of the ordinary: damaged files, full disks, no rows, far too many."""

from __future__ import annotations

import io
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icesize.errors import IcesizeError, RewriteFailed
from icesize.parquet.writing.row_writer import RowWriter
from integration.faults.cluster_child import run_driver, workers
from integration.faults.faulted_table import FaultedTable, K, widened
from integration.tools import local_path
from tests.support.spark_lake import counted, events, uncounted

PLACEMENTS: dict[str, dict[str, Any]] = {
    "append": {},
    "absorb": {"placement": "absorb"},
    "absorb once": {"placement": "absorb", "stream_safe": False},
}
"""The ways in which new rows meet older small files, as options of a sink."""

DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "footer lost": lambda data: data[:-200] + bytes(192) + data[-8:],
    "footer overlong": lambda data: data[:-8] + b"\xff\xff\xff\x7f" + data[-4:],
    "pages lost": lambda data: data[:4] + bytes(300) + data[304:],
    "cut off": lambda data: data[: len(data) // 2],
    "too long": lambda data: data + bytes(100),
    "empty": lambda data: b"",
    "row missing": lambda data: with_rows(pq.read_table(io.BytesIO(data)).slice(1)),
}
"""What became of a data file; each is noticed by whoever decodes it."""


def with_rows(rows: pa.Table) -> bytes:
    """A whole Parquet file."""
    file = io.BytesIO()
    pq.write_table(rows, file)
    return file.getvalue()


def with_a_flipped_bit(data: bytes) -> bytes:
    """The same file with other values: one bit of a page flipped so that it decodes all the same."""
    footer = pq.read_metadata(io.BytesIO(data)).row_group(0)
    text = footer.column(footer.num_columns - 1)
    rows = pq.read_table(io.BytesIO(data))
    for place in range(text.data_page_offset + text.total_compressed_size - 1, text.data_page_offset, -1):
        flipped = data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]
        try:
            if not pq.read_table(io.BytesIO(flipped)).equals(rows):
                return flipped
        except (OSError, pa.ArrowException):
            continue
    raise AssertionError("each flipped bit was noticed")


@contextmanager
def damaged(files: dict[Path, Callable[[bytes], bytes]]) -> Iterator[None]:
    """Files that are not what was written, until somebody restores them; meanwhile nobody may touch them."""
    whole = {path: path.read_bytes() for path in files}
    for path, damage in files.items():
        path.write_bytes(damage(whole[path]))
    yield
    for path, damage in files.items():
        assert path.read_bytes() == damage(whole[path]), f"{path} was touched"
        path.write_bytes(whole[path])


@contextmanager
def quota(size_bytes: int) -> Iterator[None]:
    """No file of this process can grow beyond this size: writing fails as on a full disk (EFBIG, not ENOSPC)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def small_batches(faulted: FaultedTable, options: dict[str, Any], count: int, hours: int) -> list[pa.Table]:
    """The first batches of a stream, which merge nothing."""
    sink = faulted.sized().sink("s", listener=faulted.reports.append, **options)
    batches = [events(range(n * 400, n * 400 + 400), hours) for n in range(count + 1)]
    for number, rows in enumerate(batches[:count]):
        assert sink.run(faulted.batch(rows), number).operations == ("append",)
    return batches


@pytest.mark.fault(27)
@pytest.mark.parametrize("placement", PLACEMENTS)
def test_damaged_files_are_left_alone(faulted: FaultedTable, placement: str) -> None:
    """A damaged small file stays and is named in the report; new rows and merges of other partitions are committed."""
    options = PLACEMENTS[placement]
    hours = len(DAMAGES) + 1
    batches = small_batches(faulted, options, K, hours)
    first = {f.partition[0]: Path(local_path(f.file_path)) for f in faulted.files()}
    inputs = {first[f"h{n}"]: damage for n, damage in enumerate(DAMAGES.values())}
    sink = faulted.sized().sink("s", listener=faulted.reports.append, **options)
    with damaged(inputs):
        report = sink.run(faulted.batch(batches[K]), K)
        assert report.rows == 400
        notes = "\n".join(report.notes)
        assert [path.name for path in inputs if path.name not in notes] == []
        assert {local_path(f.file_path) for f in faulted.files()} >= {str(path) for path in inputs}
        whole = faulted.files_per_partition().pop((f"h{hours - 1}",))
        assert whole < K + 1
    faulted.sized().compact()
    assert max(faulted.files_per_partition().values()) == 1
    faulted.expect(*batches)


@pytest.mark.fault(27)
def test_a_flipped_bit_in_a_page(faulted: FaultedTable) -> None:
    """The checksum of a page reveals a flipped bit: the file stays unmerged, so that wrong values do not spread."""
    batches = small_batches(faulted, {}, K, 1)
    input_file = Path(local_path(faulted.files()[0].file_path))
    with damaged({input_file: with_a_flipped_bit}):
        report = faulted.sized().sink("s", listener=faulted.reports.append).run(faulted.batch(batches[K]), K)
        assert [note for note in report.notes if input_file.name in note]
        assert input_file in {Path(local_path(f.file_path)) for f in faulted.files()}
    faulted.expect(*batches)


@pytest.mark.fault(28)
@pytest.mark.parametrize("placement", ["append", "absorb once"])
def test_disk_full_for_rows(faulted: FaultedTable, placement: str) -> None:
    """If the disk is full, the batch fails with that reason, nothing is visible and no file remains; later the same
    batch succeeds."""
    batches = small_batches(faulted, PLACEMENTS[placement], 1, 2)
    rows = widened(events(range(1000, 1400), hours=2), 1000)
    batch = faulted.batch(rows)
    before, snapshots = faulted.on_disk(), len(faulted.operations())
    sink = faulted.sized().sink("s", listener=faulted.reports.append, **PLACEMENTS[placement])
    with quota(100_000), pytest.raises(RewriteFailed, match="File too large"):
        sink.run(batch, 1)
    assert (faulted.on_disk(), len(faulted.operations())) == (before, snapshots)
    assert sink.run(batch, 1).rows == 400
    faulted.expect(batches[0], rows)


@pytest.mark.fault(28)
@pytest.mark.parametrize("placement", ["append", "absorb"])
def test_disk_full_for_merges(faulted: FaultedTable, placement: str) -> None:
    """If there is space for new rows only, the batch is committed and reports its skipped merges; a later batch runs
    them."""
    sink = faulted.sized(max_small_files=1).sink("s", listener=faulted.reports.append, **PLACEMENTS[placement])
    rows = [widened(events(range(n * 100, n * 100 + 100)), 1000) for n in range(4)]
    batches = [faulted.batch(each) for each in rows]
    sink.run(batches[0], 0)
    with quota(150_000):
        for number in (1, 2):
            report = sink.run(batches[number], number)
            assert (report.operations, report.rows, report.small_files_max) == (("append",), 100, number + 1)
        assert [note for note in report.notes if "dropped" in note and "File too large" in note]
    assert faulted.leftovers() == set()
    report = sink.run(batches[3], 3)
    assert report.small_files_max < 3
    faulted.expect(*rows)


@pytest.mark.slow
@pytest.mark.fault(28)
def test_disk_full_for_the_commit(faulted: FaultedTable) -> None:
    """If the disk is full during the commit, nothing is visible, and the same batch is committed once later."""
    with faulted.table().transaction() as transaction:
        transaction.set_properties(comment="metadata that is larger than the rows " * 10_000)
    rows = events(range(30), hours=3)
    batch = faulted.batch(rows)
    sink = faulted.sized().sink("s", listener=faulted.reports.append)
    snapshots = len(faulted.operations())
    with quota(200_000), pytest.raises(IcesizeError, match="File too large"):
        sink.run(batch, 0)
    assert len(faulted.operations()) == snapshots
    assert sink.run(batch, 0).rows == 30
    faulted.expect(rows)


@pytest.mark.fault(28, 33)
def test_disk_full_for_rows_that_wait(faulted: FaultedTable, monkeypatch: pytest.MonkeyPatch) -> None:
    """If local disk is full while rows are spilled, the error names the directory and its variable, and no file
    remains."""
    monkeypatch.setattr(RowWriter.__init__, "__kwdefaults__", {"max_buffer_bytes": 2**18})
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(faulted.folder))
    rows = widened(events(range(8000), hours=200), 200)
    batch, before = faulted.batch(rows), faulted.on_disk()
    sink = faulted.sized().sink("s", listener=faulted.reports.append)
    with quota(300_000), pytest.raises(RewriteFailed, match=r"File too large. Free space.*SPARK_LOCAL_DIRS") as e:
        sink.run(batch, 0)
    assert str(faulted.folder) in str(e.value)
    assert faulted.on_disk() == before
    report = sink.run(batch, 0)
    assert (report.rows, report.files_added) == (8000, 200)
    faulted.expect(rows)


@pytest.mark.slow
@pytest.mark.fault(28)
@pytest.mark.parametrize("wide", [True, False], ids=["rows", "rows that wait"])
def test_disk_full_for_workers(faulted: FaultedTable, wide: bool) -> None:
    """If the disk of executors is full, the error gives the reason, nothing is visible and no file remains."""
    rows = widened(events(range(4000), hours=4 if wide else 200), 400)
    startup = faulted.folder / "startup"
    startup.mkdir()
    (startup / "sitecustomize.py").write_text(
        FULL_WORKERS.format(size_bytes=300_000, buffer_bytes=2**28 if wide else 2**18)
    )
    before, sink = faulted.on_disk(), {"write_tasks": 1}
    refused, _ = run_driver(faulted, "local[1]", [rows], spark=workers(startup=startup), sink=sink)
    assert "RewriteFailed: Cannot " in refused
    assert "File too large" in refused
    assert (faulted.on_disk(), faulted.operations()) == (before, [])
    refused, faulted.reports = run_driver(faulted, "local[1]", [rows], spark=workers(), sink=sink)
    assert (refused, faulted.reports[0].rows) == ("", 4000)
    faulted.expect(rows)


FULL_WORKERS = """
import resource
from icesize.parquet.writing.row_writer import RowWriter

resource.setrlimit(resource.RLIMIT_FSIZE, ({size_bytes}, resource.RLIM_INFINITY))
RowWriter.__init__.__kwdefaults__ = {{"max_buffer_bytes": {buffer_bytes}}}
"""


@pytest.mark.fault(33)
def test_empty_batches(faulted: FaultedTable) -> None:
    """A batch without rows commits nothing, and the next batch is committed."""
    rows = events(range(30), hours=3)
    parts = []
    for number, options in enumerate(PLACEMENTS.values()):
        sink = faulted.sized().sink("s", listener=faulted.reports.append, **options)
        for make in (counted, uncounted):
            report = sink.run(make(faulted.spark, rows.slice(0, 0)), 2 * number)
            assert (report.rows, report.snapshot_ids, report.already_committed) == (0, (), False)
        parts.append(events(range(number * 30, number * 30 + 30), hours=3))
        assert sink.run(faulted.batch(parts[-1]), 2 * number + 1).rows == 30
    assert faulted.leftovers() == set()
    faulted.expect(*parts)


@pytest.mark.slow
@pytest.mark.fault(33)
def test_all_rows_in_one_partition(faulted: FaultedTable) -> None:
    """If the rows of a one-partition batch are counted or predicted, all tasks share it; its files are well sized."""
    parts = []
    for number, statistics in enumerate(("auto", "exact", "recent")):
        parts.append(widened(events(range(number * 3800, number * 3800 + 3800)), 500))
        sink = faulted.sized().sink("s", statistics=statistics, write_tasks=2, listener=faulted.reports.append)
        report = sink.run(uncounted(faulted.spark, parts[-1]), number)
        assert (report.rows, report.partitions_touched) == (3800, 1)
        assert report.small_files_max <= K
        assert report.writer_skew == pytest.approx(1.0 if number else 2.0, abs=0.1)
    assert sum(f.file_size_in_bytes >= 750_000 for f in faulted.files()) >= 6
    faulted.expect(*parts)


@pytest.mark.slow
@pytest.mark.fault(33)
@pytest.mark.parametrize("statistics", ["auto", "exact"])
def test_ten_thousand_partitions(faulted: FaultedTable, statistics: str) -> None:
    """A batch with rows in 10,000 partitions is one commit, with one file per partition."""
    rows = events(range(10_000), hours=10_000)
    sink = faulted.sized().sink("s", statistics=statistics, write_tasks=2, listener=faulted.reports.append)
    report = sink.run(uncounted(faulted.spark, rows), 0)
    assert (report.rows, report.files_added, report.partitions_touched) == (10_000, 10_000, 10_000)
    assert (report.operations, report.small_files_max) == (("append",), 1)
    assert sink.run(uncounted(faulted.spark, rows), 0).already_committed
    faulted.expect(rows)


@pytest.mark.slow
@pytest.mark.fault(33)
def test_a_batch_that_does_not_fit_into_memory(faulted: FaultedTable) -> None:
    """A task with 300 MB of rows writes one file per partition in a worker with less memory."""
    rows = widened(events(range(75_000), hours=4), 2000)
    assert rows.nbytes > 300_000_000
    spark = workers() | {"spark.executor.pyspark.memory": WORKER_MEMORY}
    settings = {"sink": {"write_tasks": 1}, "policy": {"target-file-size-bytes": 64_000_000}}
    refused, faulted.reports = run_driver(faulted, "local[1]", [rows], spark=spark, **settings)
    assert refused == ""
    assert (faulted.reports[0].rows, faulted.reports[0].files_added) == (75_000, 4)
    faulted.expect(rows)


WORKER_MEMORY = "1300m"
"""Address space of a worker, libraries counted: 1 GB is enough, and this is not when all rows are held (measured)."""
