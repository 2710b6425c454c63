"""New rows written together with those of older files: all of both, once, or nothing at all."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import DoubleType, LongType, StringType

from icesize.errors import RewriteFailed, SchemaMismatch
from icesize.failpoints import armed
from icesize.parquet.files.data_file import Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting import absorb
from icesize.parquet.rewriting.absorb import NOTHING, Absorption, write_with
from icesize.parquet.rewriting.threads import write_in_threads
from icesize.parquet.writing.row_writer import RowWriter
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.armed import failing_at
from tests.support.internal_errors import watched
from tests.support.parquet_files import NAMES, fact, files_below, local, schema_of, settings_of, spec_of, write_one

SCHEMA = schema_of(("id", LongType()), ("hour", StringType()), ("x", DoubleType()))


@pytest.fixture
def options(tmp_path: Path) -> WriteSettings:
    """A table partitioned by hour, with files of 2**29 bytes."""
    return settings_of(tmp_path, SCHEMA, spec_of(SCHEMA, hour="identity"))


def rows_of(ids: range, hours: int = 1) -> pa.Table:
    return pa.table({"id": list(ids), "hour": [f"h{i % hours}" for i in ids], "x": [i / 7 for i in ids]})


def older(options: WriteSettings, ids: range, hour: str = "h0") -> FileFact:
    """A file of the table with these rows."""
    rows = pa.table({"id": list(ids), "hour": [hour] * len(ids), "x": [i / 7 for i in ids]})
    return fact(write_one(options, rows), 5)


def ids(written: Written) -> dict[str, list[int]]:
    """The ids of each file in their order, by hour."""
    return {
        str(f.partition.values[0]): pq.ParquetFile(local(f.path)).read(columns=["id"]).column("id").to_pylist()
        for f in written.files
    }


def take(*inputs: FileFact) -> tuple[MergeTask, ...]:
    """Tasks that take these files along, one for each partition."""
    partitions = dict.fromkeys(input_file.partition for input_file in inputs)
    return tuple(MergeTask(tuple(v for v in inputs if v.partition == p), p) for p in partitions)


def test_older_rows_come_first(options: WriteSettings) -> None:
    """Older rows and new ones of a partition share a file, partitions of either alone have theirs."""
    inputs = older(options, range(10)), older(options, range(10, 15)), older(options, range(90, 92), "h9")
    new = rows_of(range(20, 24), 2)
    written = write_with(Absorption({3: take(*inputs)}), 3, new.to_batches(max_chunksize=1), options, NAMES)
    assert ids(written) == {"h0": [*range(15), 20, 22], "h9": [90, 91], "h1": [21, 23]}
    assert written.absorbed == inputs
    assert (written.new_rows, written.failed) == (4, ())
    assert all(file.sequence_number is None for file in written.files)
    (first,) = (file for file in written.files if file.partition.values == ("h0",))
    assert (first.rows, first.lower_bounds[1], first.upper_bounds[1]) == (17, bytes(8), (22).to_bytes(8, "little"))


def test_only_the_writer_of_a_partition_takes_its_files(options: WriteSettings) -> None:
    """Each writer takes along what the plan gives to it and nothing else, also without new rows of that partition."""
    absorption = Absorption({0: take(older(options, range(3))), 1: take(older(options, range(5, 8), "h1"))})
    assert ids(write_with(absorption, 1, [rows_of(range(20, 22))], options, NAMES)) == {"h1": [5, 6, 7], "h0": [20, 21]}
    assert ids(write_with(absorption, 2, [rows_of(range(20, 22))], options, NAMES)) == {"h0": [20, 21]}
    assert write_with(absorption, 2, [], options, NAMES) == Written()


@pytest.mark.parametrize("damage", ["missing", "corrupt", "rows"])
def test_damaged_partition_stays_as_it_is(options: WriteSettings, tmp_path: Path, damage: str) -> None:
    """Where one file cannot be read, or has not the rows it should, none of its partition is taken along."""
    good, fine, bad = older(options, range(3), "h1"), older(options, range(10)), older(options, range(10, 20))
    if damage == "missing":
        Path(local(bad.path)).unlink()
    elif damage == "corrupt":
        Path(local(bad.path)).write_bytes(b"x" * bad.size_bytes)
    else:
        bad = FileFact(bad.path, bad.size_bytes, 9, bad.partition, 5)
    before = files_below(tmp_path)
    written = write_with(Absorption({3: take(fine, bad, good)}), 3, [rows_of(range(20, 22))], options, NAMES)
    assert ids(written) == {"h1": [0, 1, 2], "h0": [20, 21]}
    assert written.absorbed == (good,)
    assert [(bad.path in each.why, each.is_internal) for each in written.failed] == [(True, False)]
    assert len(files_below(tmp_path)) == len(before) + 2


def test_spilled_rows_stay_in_their_partition(options: WriteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a buffer of next to nothing every row is still in one file, and a damaged partition leaves none behind."""
    real = RowWriter.__init__
    monkeypatch.setattr(
        RowWriter, "__init__", lambda self, *a, **options_: real(self, *a, **options_ | {"max_buffer_bytes": 100})
    )
    inputs = [older(options, range(n * 10, n * 10 + 10), f"h{n % 2}") for n in range(4)]
    bad = older(options, range(500, 510), "h2")
    Path(local(bad.path)).unlink()
    new = rows_of(range(100, 130), 3).to_batches(max_chunksize=4)
    written = write_with(Absorption({3: take(*inputs, bad)}), 3, new, options, NAMES)
    by_hour: dict[str, list[int]] = {}
    for file in written.files:
        rows = pq.ParquetFile(local(file.path)).read().to_pylist()
        assert {row["hour"] for row in rows} == {file.partition.values[0]}
        by_hour.setdefault(str(file.partition.values[0]), []).extend(row["id"] for row in rows)
    assert {hour: sorted(found) for hour, found in by_hour.items()} == {
        "h0": [*range(10), *range(20, 30), *range(102, 130, 3)],
        "h1": [*range(10, 20), *range(30, 40), *range(100, 130, 3)],
        "h2": [*range(101, 130, 3)],
    }
    assert len(files_below(Path(options.table_location))) == 4 + len(written.files)


def test_older_rows_keep_the_partition_of_their_file(options: WriteSettings) -> None:
    """Rows stay in the partition that their file is in, whatever its values say: manifests decide, as for readers."""
    input_file = older(options, range(3), "h5")
    imported = FileFact(input_file.path, input_file.size_bytes, 3, PartitionKey(0, ("h0",)), 5)
    written = write_with(Absorption({3: take(imported)}), 3, [rows_of(range(20, 22))], options, NAMES)
    assert ids(written) == {"h0": [0, 1, 2, 20, 21]}


def test_new_rows_are_read_once_and_last(options: WriteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker has its rows once: a writer that begins with them must not begin again when an older file is damaged."""
    bad, new = older(options, range(3)), iter([rows_of(range(7, 9))])
    Path(local(bad.path)).unlink()

    def new_rows_first(batches: Iterator[pa.Table], *others: Any) -> None:
        _, _, old, _ = others
        list(batches)
        list(old)

    monkeypatch.setattr(absorb, "write_rows", new_rows_first)
    with pytest.raises(RuntimeError, match="before all older rows"):
        write_with(Absorption({3: take(bad)}), 3, new, options, NAMES)


def test_nan_in_older_rows_leaves_statistics_out(options: WriteSettings) -> None:
    """NaN that only an older file holds is known to the metrics of the common file, which has bounds without it."""
    rows = pa.table({"id": [1], "hour": ["h0"], "x": [float("nan")]})
    input_file = fact(write_one(options, rows))
    (file,) = write_with(Absorption({3: take(input_file)}), 3, [rows_of(range(7, 9))], options, NAMES).files
    assert file.nan_value_counts == {3: 1}
    assert file.lower_bounds[3] == struct.pack("<d", 1.0)
    assert not pq.read_metadata(local(file.path)).row_group(0).column(2).is_stats_set


@pytest.mark.parametrize(("limit", "files"), [(0, 2), (75_000, 1)])
def test_no_part_is_below_the_limit(tmp_path: Path, limit: int, files: int) -> None:
    """1.2 targets would be two equal files that are small again: with a limit they are one."""
    unlimited = settings_of(tmp_path, SCHEMA, spec_of(SCHEMA, hour="identity"), target=100_000)
    options = replace(unlimited, small_file_limit_bytes=limit)
    size = write_one(settings_of(tmp_path, SCHEMA, spec_of(SCHEMA, hour="identity")), rows_of(range(40_000))).size_bytes
    rows = rows_of(range(int(40_000 * 120_000 / size)))
    written = write_with(NOTHING, 3, [rows], options, NAMES)
    assert len(written.files) == files


def test_rows_that_do_not_fit_leave_nothing(options: WriteSettings, tmp_path: Path) -> None:
    """An error in new rows removes what was written and is raised; the older files are not touched."""
    input_file = older(options, range(3))
    before = files_below(tmp_path)
    with pytest.raises(SchemaMismatch):
        write_with(Absorption({3: take(input_file)}), 3, [pa.table({"more": [1]})], options, NAMES)

    def broken() -> Iterator[pa.Table]:
        yield rows_of(range(3))
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_with(Absorption({3: take(input_file)}), 3, broken(), options, NAMES)
    assert files_below(tmp_path) == before


def test_lost_rows_are_noticed(options: WriteSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that go in and do not come out fail the task, and its files are removed."""
    monkeypatch.setattr(
        "icesize.parquet.writing.row_writer.arrange_by_partition",
        lambda rows, settings: (rows, [(PartitionKey(0, ("h0",)), 2)]),
    )
    with pytest.raises(RewriteFailed, match="4 rows went in and 2 came out"):
        write_with(NOTHING, 3, [rows_of(range(4), 2)], options, NAMES)
    assert files_below(tmp_path) == []


def test_threads_take_along_what_is_theirs(options: WriteSettings, tmp_path: Path) -> None:
    """The n-th part is written with what writer n takes along; the owner knows those of all when one fails."""
    inputs = older(options, range(3)), older(options, range(5, 8), "h1")
    absorption = Absorption({0: take(inputs[0]), 1: take(inputs[1])})
    parts = [rows_of(range(20, 22)), pa.table({"id": [30], "hour": ["h1"], "x": [None]})]
    owner = Uncommitted(options.storage, "s1-9")
    written = write_in_threads(parts, options, owner, absorption)
    assert ids(written) == {"h0": [0, 1, 2, 20, 21], "h1": [5, 6, 7, 30]}
    assert written.absorbed == inputs
    assert FileNames("s1-9", 0, 0).prefix in written.files[0].path
    before = files_below(tmp_path)
    with pytest.raises(SchemaMismatch):
        write_in_threads([parts[0], pa.table({"more": [1]})], options, owner, absorption)
    owner.abandon(keep=[file.path for file in written.files])
    assert files_below(tmp_path) == before


def test_storage_that_fails_in_a_thread(options: WriteSettings, tmp_path: Path) -> None:
    """A full disk is told as icesize's own error, and nothing is left of any part."""

    def full() -> None:
        raise OSError(28, "No space left on device")

    with armed("writing", full), pytest.raises(RewriteFailed, match=r"Cannot write the batch: .*No space left"):
        write_in_threads([rows_of(range(2)), rows_of(range(2, 4))], options, Uncommitted(options.storage, "s1-9"))
    assert files_below(tmp_path) == []


@pytest.mark.internal_error
@pytest.mark.parametrize(
    ("error", "why"),
    [
        (IndexError("list index out of range"), "internal error IndexError: list index out of range, report this"),
        (type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})("503"), "HttpError: 503, try again"),
    ],
)
def test_another_error_in_a_thread(options: WriteSettings, tmp_path: Path, error: Exception, why: str) -> None:
    """A bug is named as one, an error of a package that reaches storage is none, and nothing is left of any part."""
    owner = Uncommitted(options.storage, "s1-9")
    with failing_at(1, "writing", error), watched() as bugs, pytest.raises(RewriteFailed, match=why):
        write_in_threads([rows_of(range(2)), rows_of(range(2, 4))], options, owner)
    owner.abandon()
    assert (files_below(tmp_path), len(bugs)) == ([], isinstance(error, IndexError))


@pytest.mark.internal_error
def test_a_bug_in_deletes_leaves_older_files_alone(options: WriteSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new rows are written without the files that they could not be written with."""

    def with_a_bug(*_: object) -> NoReturn:
        raise IndexError("list index out of range")

    monkeypatch.setattr(absorb, "deleted_rows", with_a_bug)
    written = write_with(Absorption({3: take(older(options, range(3)))}), 3, [rows_of(range(7, 9))], options, NAMES)
    assert (ids(written), written.absorbed) == ({"h0": [7, 8]}, ())
    assert "internal error IndexError: list index out of range, report this" in written.failed[0].why
    assert (written.failed[0].is_internal, "in with_a_bug" in written.failed[0].traceback) == (True, True)


def test_most_bytes(options: WriteSettings) -> None:
    """What a writer has to decode is the sum of the files it takes along; the largest counts."""
    one, two, three = (older(options, range(n)) for n in (3, 4, 5))
    absorption = Absorption({0: take(one), 4: (*take(two), *take(three))})
    assert absorption.most_bytes == two.size_bytes + three.size_bytes
    assert NOTHING.most_bytes == 0
