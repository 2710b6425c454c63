"""More rows than the buffer holds: no extra files, no small ones, few open at a time, nothing left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.file_writer import FileEncoder
from icesize.parquet.writing.filling import bytes_for_file
from icesize.parquet.writing.row_writer import RowWriter
from icesize.parquet.writing.spill import Spill
from icesize.planning.file_sizes import least_output_bytes, merged_files
from icesize.planning.files import PartitionKey
from icesize.storage.table_storage import FOLDERS
from tests.support.examples import examples
from tests.support.parquet_files import (
    HOURLY,
    NAMES,
    files_below,
    hourly,
    hourly_rows,
    local,
    settings_of,
    with_limits,
    write_one,
)


def write_in_batches(
    options: WriteSettings, batches: list[list[int]], buffer_bytes: int
) -> tuple[list[NewDataFile], dict[int, int]]:
    """The files of batches of rows given by their hours, and the hour of each row."""
    writer = RowWriter(options, NAMES, max_buffer_bytes=buffer_bytes)
    hour_of: dict[int, int] = {}
    for hours in batches:
        hour_of |= dict(enumerate(hours, len(hour_of)))
        writer.write(hourly_rows(hours, len(hour_of) - len(hours)))
    return writer.close(), hour_of


def write_or_nothing(options: WriteSettings, batches: Iterable[pa.Table]) -> None:
    """Write all batches with a buffer that holds few of them."""
    writer = RowWriter(options, NAMES, max_buffer_bytes=20_000)
    with writer.all_or_none():
        for batch in batches:
            writer.write(batch)
        writer.close()


def stored(file: NewDataFile) -> dict[int, int]:
    """Row ids and hours in a file."""
    rows = pq.ParquetFile(local(file.path)).read(columns=["id", "hour"]).to_pylist()
    return {row["id"]: int(row["hour"][1:]) for row in rows}


def open_in(folder: Path) -> list[str]:
    """Files of a folder that this process has open, also those without a name."""
    links = Path("/proc/self/fd")
    found = [os.readlink(link) for link in links.iterdir() if os.path.lexists(link)]
    return [path for path in found if path.startswith(str(folder))]


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where rows wait; the first folder of the list does not exist."""
    folder = tmp_path / "disk"
    folder.mkdir()
    monkeypatch.setenv(FOLDERS, f"{tmp_path}/gone,{folder}")
    return folder


@pytest.fixture
def most_open(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The numbers of files that were open whenever one was opened."""
    counts: list[int] = []
    now: set[int] = set()
    real = {name: getattr(FileEncoder, name) for name in ("__init__", "finish", "close")}

    def opened(self: FileEncoder, *arguments: Any, **others: Any) -> None:
        real["__init__"](self, *arguments, **others)
        now.add(id(self))
        counts.append(len(now))

    def closed(name: str) -> Any:
        def close(self: FileEncoder) -> Any:
            now.discard(id(self))
            return real[name](self)

        return close

    monkeypatch.setattr(FileEncoder, "__init__", opened)
    for name in ("finish", "close"):
        monkeypatch.setattr(FileEncoder, name, closed(name))
    yield counts
    assert not now


@examples(60)
@given(data=st.data())
def test_the_order_of_rows_makes_no_files(
    tmp_path: Path, disk: Path, most_open: list[int], data: st.DataObject
) -> None:
    """Any batches in any order of partitions: the same rows come out, in one file for each partition."""
    some_hours = st.integers(0, data.draw(st.sampled_from([1, 6, 40])))
    batches = data.draw(st.lists(st.lists(some_hours, max_size=40), max_size=12))
    batches = [[hour for hour in hours if hour % 5 or i % 2] for i, hours in enumerate(batches)]
    options = with_limits(hourly(tmp_path), open_files=3)
    files, hour_of = write_in_batches(options, batches, data.draw(st.sampled_from([1, 500, 4_000, 20_000])))
    found = [row for file in files for row in stored(file).items()]
    assert sorted(found) == sorted(hour_of.items())
    for file in files:
        assert {f"h{hour}" for hour in stored(file).values()} == {file.partition.values[0]}
    # rows with NaN may need a second file: the statistics of an open one may have been begun without
    partitions = {f"h{hour}" for hour in hour_of.values()}
    with_nan = {f"h{hour_of[i]}" for i in range(49, len(hour_of), 50)}
    several = [name for name in partitions if sum(file.partition.values == (name,) for file in files) > 1]
    assert set(several) <= with_nan
    assert max(most_open, default=0) <= 3
    assert (open_in(disk), list(disk.iterdir())) == ([], [])


def test_many_partitions_in_random_order_have_one_file_each(tmp_path: Path, disk: Path, most_open: list[int]) -> None:
    """Hot partitions grow in files that stay open, the others wait; row groups of hot ones are no remainders."""
    batches = [[(i * 7_919 + n) % 200 if i % 2 else n % 5 for i in range(300)] for n in range(40)]
    writer = RowWriter(with_limits(hourly(tmp_path), open_files=3), NAMES, max_buffer_bytes=200_000)
    for n, hours in enumerate(batches):
        writer.write(hourly_rows(hours, n * 300).set_column(2, "x", pa.array([0.5] * 300)))
    files = writer.close()
    assert len(files) == len({file.partition for file in files}) == 200
    assert sum(file.rows for file in files) == 12_000
    hot = max(files, key=lambda file: file.rows)
    footer = pq.read_metadata(local(hot.path))
    assert footer.num_row_groups > 1
    assert all(footer.row_group(i).num_rows >= 100 for i in range(footer.num_row_groups))
    assert max(most_open) == 3
    assert open_in(disk) == []


@examples(40)
@given(targets=st.floats(0.2, 5.0), other=st.integers(0, 60), buffer_bytes=st.sampled_from([8_000, 40_000, 10**9]))
def test_no_file_is_small_where_there_are_several(
    tmp_path: Path, disk: Path, targets: float, other: int, buffer_bytes: int
) -> None:
    """However many rows of a partition come, and whenever, they are one file or several that are not small."""
    options = hourly(tmp_path, target=60_000, limit=45_000)
    rows = int(targets * 60_000 / 46)
    batches = [[0] * min(150, rows - start) + [1 + start % 9] * other for start in range(0, rows, 150)]
    files, hour_of = write_in_batches(options, batches, buffer_bytes)
    assert sum(file.rows for file in files) == len(hour_of)
    plain = [file for file in files if file.partition.values == ("h0",)]
    # the last file is planned by the size of row groups before, and those are as tiny as the buffer
    assert len(plain) == 1 or min(file.size_bytes for file in plain) >= 0.9 * 45_000
    # 1.1 targets, and less than makes a file of its own; the footers of row groups as tiny as here count as well
    assert max(file.size_bytes for file in plain) <= 2.2 * 60_000


def test_a_share_just_above_the_target_is_one_file(tmp_path: Path, disk: Path) -> None:
    """1.12 targets are one file with a small file limit, whether they fit the buffer or not."""
    whole = write_one(hourly(tmp_path / "whole"), hourly_rows([0] * 3_000)).size_bytes
    options = hourly(tmp_path / "cut", target=int(whole / 1.12), limit=int(whole / 1.12 * 0.75))
    for buffer_bytes in (30_000, 10**9):
        files, _ = write_in_batches(options, [[0] * 100] * 30, buffer_bytes)
        assert [file.rows for file in files] == [3_000]


@given(
    open_targets=st.floats(0, 1.1),
    more=st.floats(0.001, 9),
    ratio=st.sampled_from([0.0, 0.5, 0.75]),
    last=st.booleans(),
)
def test_bytes_for_file(open_targets: float, more: float, ratio: float, last: bool) -> None:
    """A file gets all, or what makes it as large as the others (last) or the target; no last file begins small."""
    target = 1_000_000
    options = replace(settings_of("/nowhere", HOURLY, target=target), small_file_limit_bytes=int(ratio * target))
    part = bytes_for_file(open_targets * target, more * target, options, last=last)
    rest = more * target - part
    assert 0 <= part <= more * target
    size = open_targets * target + part
    if rest == 0 and not last:
        assert size <= 1.1 * target + 1
    if rest and last:
        assert rest >= least_output_bytes(options.small_file_limit_bytes)
        assert merged_files(int(open_targets * target + more * target), target, options.small_file_limit_bytes) > 1
    if rest and part:
        assert size <= 1.6 * target
        assert last or size == pytest.approx(target)


def test_nan_in_rows_that_waited(tmp_path: Path, disk: Path) -> None:
    """NaN is known before the first row of a file that waited is written: no statistics, one file."""
    hours = [i % 40 for i in range(2_000)]
    files, _ = write_in_batches(hourly(tmp_path), [hours[i : i + 50] for i in range(0, 2_000, 50)], 3_000)
    assert len(files) == 40
    with_nan = [file for file in files if file.nan_value_counts[3]]
    assert {file.partition.values[0] for file in with_nan} == {"h9", "h19", "h29", "h39"}
    footers = [(file in with_nan, pq.read_metadata(local(file.path)).row_group(0)) for file in files]
    assert all(group.column(2).is_stats_set != has_nan for has_nan, group in footers)


def test_an_error_leaves_no_rows_on_disk(tmp_path: Path, disk: Path) -> None:
    """Whatever fails after rows were put aside, neither their file nor a data file stays."""

    def broken() -> Iterator[pa.Table]:
        for start in range(0, 2_000, 100):
            yield hourly_rows([i % 50 for i in range(100)], start)
        assert open_in(disk) != []
        raise ZeroDivisionError

    options = hourly(tmp_path)
    with pytest.raises(ZeroDivisionError):
        write_or_nothing(options, broken())
    assert open_in(disk) == []
    assert files_below(tmp_path) == []


def test_a_full_disk_is_named(tmp_path: Path, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which folder is full and what to do, and nothing is left."""
    full = Path("/dev/full")
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **options: full.open("w+b"))
    options = hourly(tmp_path)
    batches = [hourly_rows([i % 50 for i in range(500)], start) for start in range(0, 10_000, 500)]
    with pytest.raises(RewriteFailed) as caught:
        write_or_nothing(options, batches)
    assert f"Cannot spill rows to '{disk}'" in str(caught.value)
    assert "No space left on device" in str(caught.value)
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("size_bytes", [0, 100, 50_000])
def test_rows_that_are_cut_short_are_named(tmp_path: Path, disk: Path, size_bytes: int) -> None:
    """If the disk returns less than was written, the error names the folder: no row is lost without a word."""
    options = hourly(tmp_path)
    spill = Spill[str](options.arrow_schema)
    spill.put("rows", [hourly_rows([1] * 5_000, 0).cast(options.arrow_schema)], frozenset())
    assert sum(rows.num_rows for rows in spill.read("rows")) == 5_000
    links = [link for link in Path("/proc/self/fd").iterdir() if os.path.lexists(link)]
    (link,) = (link for link in links if os.readlink(link).startswith(str(disk)))
    os.truncate(link, size_bytes)
    with pytest.raises(RewriteFailed, match=f"Cannot spill rows to '{disk}': {size_bytes} of .* bytes are there"):
        list(spill.read("rows"))
    spill.close()


def test_what_waits_comes_back_once(tmp_path: Path, disk: Path) -> None:
    """Rows of a partition come back in their order, also while others are put aside, and space is used again."""
    options = hourly(tmp_path)
    spill = Spill(options.arrow_schema)
    one, two = PartitionKey(0, ("h1",)), PartitionKey(0, ("h2",))
    tables = [hourly_rows([1] * 10, start).cast(options.arrow_schema) for start in range(0, 50, 10)]
    spill.put(one, tables[:2], frozenset())
    spill.put(two, tables[4:], frozenset({3}))
    spill.put(one, tables[2:3], frozenset())
    assert (list(spill), spill.held(one).rows, spill.held(two).nan) == ([one, two], 30, frozenset({3}))
    assert pa.concat_tables(spill.read(one)).column("id").to_pylist() == list(range(30))
    (path,) = open_in(disk)
    back = spill.take(one)
    first = next(back)
    spill.put(one, tables[3:4], frozenset())
    assert pa.concat_tables([first, *back]).column("id").to_pylist() == list(range(30))
    assert [spill.held(key).rows for key in (one, two)] == [10, 10]
    assert pa.concat_tables([*spill.take(one), *spill.take(two)]).column("id").to_pylist() == list(range(30, 50))
    assert not spill
    spill.put(two, tables, frozenset())
    assert pa.concat_tables(spill.take(two)).column("id").to_pylist() == list(range(50))
    assert open_in(disk) == [path]
    spill.close()
    assert open_in(disk) == []


def test_one_piece_of_what_waits_is_held_at_a_time(tmp_path: Path, disk: Path) -> None:
    """Not those that were looked at or written before, each of them half the buffer."""
    buffer_bytes = 400_000
    writer = RowWriter(hourly(tmp_path), NAMES, max_buffer_bytes=buffer_bytes)
    with writer.all_or_none():
        for n in range(400):
            writer.write(hourly_rows([i % 24 for i in range(500)], n * 500))
        tracemalloc.start()
        try:
            assert len(writer.close()) == 24
            # what is read back lies in Python's memory
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert buffer_bytes / 2 < peak < buffer_bytes


_MEMORY = """
import sys, tempfile
from icesize.parquet.writing.row_writer import RowWriter, use_system_memory
use_system_memory()
import pyarrow as pa
from tests.support.parquet_files import NAMES, hourly
from pathlib import Path
with tempfile.TemporaryDirectory() as folder:
    writer = RowWriter(hourly(Path(folder)), NAMES)
    text = pa.array(["%040x" % (i * 7_919**9 % 16**40) for i in range(10_000)])
    for start in range(0, 2_500_000, 10_000):
        hours = pa.array([f"h{i * 7_919 % int(sys.argv[1])}" for i in range(start, start + 10_000)])
        ids = pa.array(range(start, start + 10_000))
        writer.write(pa.table({"id": ids, "hour": hours, "x": pa.array([0.5] * 10_000), "text": text}))
    assert sum(file.rows for file in writer.close()) == 2_500_000
status = Path("/proc/self/status").read_text()
print(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [100, 5_000])
def test_memory_is_bounded(partitions: int) -> None:
    """A process that writes 2.5 million rows, twice what the buffer holds, stays below 512 MiB, Python included."""
    code = [sys.executable, "-c", _MEMORY, str(partitions)]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 512 * 1024
