"""merge: small files of a partition become few, all rows once, or nothing at all."""

from __future__ import annotations

import logging
import math
import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, ListType, LongType, NestedField, StringType, StructType

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import NewDataFile, decode_reasons
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.refusals import log_internal_error
from icesize.parquet.format.thrift import i64
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.rewriting.merge import merge, output_rows
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from icesize.storage.table_storage import Storage
from tests.support.footers import edited
from tests.support.internal_errors import watched
from tests.support.parquet_files import (
    NAMES,
    REMOTE,
    append,
    catalog_in,
    data_file,
    fact,
    files_below,
    local,
    metadata_of,
    schema_of,
    settings_of,
    spec_of,
    with_limits,
    write_one,
)

SCHEMA = schema_of(("id", LongType()), ("hour", StringType()), ("text", StringType()))
MERGED = FileNames("s1-8", 0, 0)


def inputs(options: WriteSettings, counts: list[int]) -> tuple[FileFact, ...]:
    """One file for each number of rows, ids running on."""
    facts: list[FileFact] = []
    start, chance = 0, random.Random(1)
    for count in counts:
        rows = pa.table(
            {
                "id": list(range(start, start + count)),
                "hour": ["h1"] * count,
                "text": [chance.randbytes(16).hex() for _ in range(count)],
            }
        )
        facts.append(fact(write_one(options, rows), sequence_number=len(facts) + 5))
        start += count
    return tuple(facts)


def hourly(folder: Path, **more: object) -> WriteSettings:
    """Settings of a table partitioned by hour."""
    return settings_of(folder, SCHEMA, spec_of(SCHEMA, hour="identity"), **more)  # type: ignore[arg-type]


def ids(path: str) -> list[int]:
    """The ids in a file."""
    found: list[int] = pq.read_table(local(path), columns=["id"]).column("id").to_pylist()
    return found


def test_small_files_become_one_with_their_rows_in_order(tmp_path: Path) -> None:
    """Partition and newest sequence number are kept; the input files stay, the table decides about them."""
    options = hourly(tmp_path)
    small = inputs(options, [10, 1, 30, 5])
    done = merge(MergeTask(small, small[0].partition, 1), options, MERGED)
    (file,) = done.files
    assert ids(file.path) == list(range(46))
    assert (file.rows, done.rows_in, done.rows_out) == (46, 46, 46)
    assert file.partition == PartitionKey(0, ("h1",))
    assert file.sequence_number == 8
    assert sum(f.size_bytes for f in done.inputs) == done.bytes_decoded == sum(v.size_bytes for v in small)
    assert (done.bytes_copied, type(file)) == (0, NewDataFile)
    assert "/hour=h1/s1-8-0-0-" in file.path
    assert len(files_below(tmp_path)) == 5


def test_remote_files_are_merged(tmp_path: Path) -> None:
    """Through a FileIO that is not the local file system, files are read whole and rows come out alike."""
    options = replace(hourly(tmp_path), io_properties=REMOTE)
    small = inputs(options, [100, 200])
    (file,) = merge(MergeTask(small, small[0].partition, 1), options, MERGED).files
    assert ids(file.path) == list(range(300))
    os.remove(small[0].path)
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeTask(small, small[0].partition, 1), options, MERGED)
    assert caught.value.path == small[0].path


def test_several_outputs_are_of_equal_size(tmp_path: Path) -> None:
    """Outputs are cut by bytes, also in the middle of an input file, and no row is lost or doubled."""
    options = replace(hourly(tmp_path), merge_by_copying=False)
    small = inputs(options, [4_000, 100, 9_000, 2_000, 7_000])
    done = merge(MergeTask(small, small[0].partition, 3), options, MERGED)
    assert [i for file in done.files for i in ids(file.path)] == list(range(22_100))
    sizes = [file.size_bytes for file in done.files]
    assert len(sizes) == 3
    assert max(sizes) <= 1.1 * min(sizes)


@given(st.lists(st.tuples(st.integers(1, 10**9), st.integers(0, 10**6)), min_size=1, max_size=20), st.integers(1, 30))
def test_cuts_give_all_rows_away_in_parts_of_equal_bytes(files: list[tuple[int, int]], outputs: int) -> None:
    """Rows add up for each cut, none is negative, and a part's bytes are its share up to the rounding of one row."""
    key = PartitionKey(0)
    small = tuple(FileFact(str(i), size, rows, key) for i, (size, rows) in enumerate(files))
    parts = output_rows(small, [rows for _, rows in files], outputs)
    assert len(parts) == outputs
    assert sum(parts) == sum(f.rows for f in small)
    assert min(parts) >= 0
    if len({f.size_bytes / f.rows if f.rows else 0 for f in small}) == 1 and small[0].rows:
        assert max(parts) - min(parts) <= 2


@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "not parquet"])
def test_a_damaged_input_file_fails_the_merge_and_is_named(tmp_path: Path, damage: str) -> None:
    """The error has the input file's path; whatever was written before is gone, input files are untouched."""
    options = hourly(tmp_path)
    small = inputs(options, [500, 500, 500])
    path = Path(small[1].path)
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "truncated":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flipped":
        path.write_bytes(data[:200] + bytes(400) + data[600:])
    else:
        path.write_bytes(b"hello")
    before = files_below(tmp_path)
    with pytest.raises(RewriteFailed, match="check that the file exists and is whole") as caught:
        merge(MergeTask(small, small[0].partition, 2), options, MERGED)
    assert caught.value.path == small[1].path
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("claimed", [2**31, 499, -1])
def test_a_row_group_that_claims_rows_that_the_file_has_not_is_not_read(tmp_path: Path, claimed: int) -> None:
    """pyarrow takes room for them: 64 GB for a file of 3 kB."""
    options = hourly(tmp_path)
    (small,) = inputs(options, [500])
    data = edited(Path(local(small.path)).read_bytes(), lambda tree: tree.groups[0].update({3: i64(claimed)}))
    Path(local(small.path)).write_bytes(data)
    damaged = replace(small, size_bytes=len(data))
    with pytest.raises(RewriteFailed, match=f"row groups of {claimed} rows in a file of 500") as caught:
        merge(MergeTask((damaged,), damaged.partition), options, MERGED)
    assert caught.value.path == damaged.path


@pytest.mark.parametrize("claimed", [499, 501])
@pytest.mark.parametrize("position", [0, 1])
def test_rows_are_counted_against_the_manifest(tmp_path: Path, claimed: int, position: int) -> None:
    """More or fewer rows than the entry says fail the merge: one of both is wrong and nobody knows which."""
    options = hourly(tmp_path)
    small = list(inputs(options, [500, 500]))
    wrong = small[position]
    small[position] = FileFact(wrong.path, wrong.size_bytes, claimed, wrong.partition)
    before = files_below(tmp_path)
    with pytest.raises(RewriteFailed, match=f"it has 500 rows, its manifest records {claimed}") as caught:
        merge(MergeTask(tuple(small), wrong.partition, 1), options, MERGED)
    assert caught.value.path == wrong.path
    assert files_below(tmp_path) == before


@pytest.mark.internal_error
def test_a_bug_in_copying_is_named_and_the_rows_are_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The result counts `internal-error`, and the log has the traceback: the input files are sound."""
    options = hourly(tmp_path)
    facts = inputs(options, [3, 4])
    monkeypatch.setattr("icesize.parquet.rewriting.merge.copy_merge", _with_a_bug)
    result = merge(MergeTask(facts, facts[0].partition), options, MERGED)
    assert ids(result.files[0].path) == list(range(7))
    assert decode_reasons([result, result]) == {"internal-error": 4}
    assert "Internal error of icesize in copying 2 files, report this" in caplog.text
    assert "in _with_a_bug\n" in caplog.text


@pytest.mark.internal_error
def test_a_bug_in_decoding_is_no_damage_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says that it is one of icesize, and nothing that was written stays."""
    options = hourly(tmp_path)
    facts = inputs(options, [3, 4])
    before = files_below(tmp_path)
    monkeypatch.setattr("icesize.parquet.reading.inputs.open_parquet", _with_a_bug)
    with pytest.raises(RewriteFailed, match="internal error IndexError: list index out of range, report this"):
        merge(MergeTask(facts, facts[0].partition), options, MERGED)
    assert files_below(tmp_path) == before
    assert "in _with_a_bug\n" in caplog.text


def test_an_error_of_a_package_that_reaches_storage_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Few of these errors are an `OSError`, when a file is opened and when it is read."""
    metadata = metadata_of(tmp_path, SCHEMA, spec_of(SCHEMA, hour="identity"))
    facts = inputs(WriteSettings.of(metadata, REMOTE, 2**29), [3, 4])
    opens, reads = "tests.support.parquet_files.RemoteLike.new_input", "icesize.parquet.reading.inputs.open_parquet"
    for broken, copying in ((opens, True), (opens, False), (reads, False)):
        options = WriteSettings.of(metadata, REMOTE, 2**29, merge_by_copying=copying)
        with monkeypatch.context() as patch:
            patch.setattr(broken, _without_connection)
            with pytest.raises(RewriteFailed, match="HttpError: 503, connection reset, "):
                merge(MergeTask(facts, facts[0].partition), options, MERGED)
    assert "Internal error" not in caplog.text


def _without_connection(*_: object) -> NoReturn:
    kind = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})
    raise kind("503, connection reset")


@pytest.mark.internal_error
def test_internal_errors_are_noticed_by_the_tests() -> None:
    """A test in which one is logged fails unless it is marked: this is what its check finds."""
    with watched() as found:
        logging.getLogger("icesize").error("Cannot reach the catalog")
        assert found == []
        log_internal_error("merging", IndexError("list index out of range"))
    assert found == ["Internal error of icesize in merging, report this\nIndexError: list index out of range"]


def _with_a_bug(*_: object) -> NoReturn:
    raise IndexError("list index out of range")


def test_storage_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk in the second output is RewriteFailed, and the first output is removed."""
    options = hourly(tmp_path)
    small = inputs(options, [500, 500])
    before = files_below(tmp_path)
    real, calls = Storage.create, []

    def create(self: Storage, location: str) -> object:
        calls.append(location)
        if len(calls) == 2:
            raise OSError(28, "No space left on device")
        return real(self, location)

    monkeypatch.setattr(Storage, "create", create)
    with pytest.raises(RewriteFailed, match="No space left on device"):
        merge(MergeTask(small, small[0].partition, 2), options, MERGED)
    assert len(calls) == 2
    assert files_below(tmp_path) == before


def test_many_rows_go_through_in_bounded_row_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups obey the table's row limit in equal parts, and never hold more decoded bytes than allowed."""
    options = replace(hourly(tmp_path, properties={"write.parquet.row-group-limit": "4000"}), merge_by_copying=False)
    small = inputs(options, [3_000] * 5)
    (file,) = merge(MergeTask(small, small[0].partition, 1), options, MERGED).files
    footer = pq.read_metadata(file.path)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [3_750] * 4

    options = with_limits(options, decoded_bytes=60_000, whole_file_bytes=0, batch_bytes=2_000)
    (file,) = merge(MergeTask(small, small[0].partition, 1), options, MERGED).files
    footer = pq.read_metadata(file.path)
    assert max(footer.row_group(i).num_rows for i in range(footer.num_row_groups)) < 1_500
    assert ids(file.path) == list(range(15_000))


def test_nan_in_a_later_row_group_begins_again(tmp_path: Path) -> None:
    """The footer of the output has no bounds for a column that holds NaN anywhere, and no first attempt stays.

    The manifest has the bounds of all other values.
    """
    schema = schema_of(("x", DoubleType()), ("y", DoubleType()))
    options = settings_of(tmp_path, schema, properties={"write.parquet.row-group-limit": "2"})
    small = tuple(
        fact(write_one(options, pa.table({"x": xs, "y": [1.0, 2.0]})))
        for xs in ([1.0, 2.0], [3.0, None], [math.nan, 4.0])
    )
    (file,) = merge(MergeTask(small, PartitionKey(0), 1), options, MERGED).files
    footer = pq.read_metadata(file.path)
    for i in range(footer.num_row_groups):
        x, y = (footer.row_group(i).column(j).statistics for j in range(2))
        assert x is None or not x.has_min_max
        assert y.has_min_max
    assert footer.num_row_groups == 3
    assert (file.nan_value_counts, file.null_value_counts) == ({1: 1, 2: 0}, {1: 1, 2: 0})
    assert [struct.unpack("<d", ends[1]) for ends in (file.lower_bounds, file.upper_bounds)] == [(1.0,), (4.0,)]
    assert len(files_below(tmp_path)) == 4


def contents_of(options: WriteSettings, small: tuple[FileFact, ...], threads: int) -> list[bytes]:
    """The bytes of what a merge writes."""
    done = merge(MergeTask(small, small[0].partition, 2), options, FileNames("s1", threads, 0), threads)
    return [Path(local(file.path)).read_bytes() for file in done.files]


@pytest.mark.parametrize("counts", [[3] * 500, [40_000, 1, 700, 40_000], [70_000, 70_000]])
def test_files_are_the_same_bytes_whatever_the_number_of_threads(tmp_path: Path, counts: list[int]) -> None:
    """Threads that read ahead change nothing: small files or some that are read in batches, decoded or copied."""
    options = with_limits(hourly(tmp_path), whole_file_bytes=2**20, batch_bytes=2**15)
    small = inputs(options, counts)
    one, two, five = (contents_of(options, small, threads) for threads in (1, 2, 5))
    assert one == two == five


@pytest.mark.parametrize(("limits", "ahead"), [({}, 10), ({"whole_file_bytes": 1, "decoded_bytes": 32}, 2)])
def test_small_files_are_read_ahead_as_far_as_memory_allows(tmp_path: Path, limits: dict[str, int], ahead: int) -> None:
    """Of small files with many rows no more are read than one that large could hold: others may be gone by then."""
    options = with_limits(hourly(tmp_path), **limits)
    small = inputs(options, [100] * 10)
    tables = read_inputs(MergeTask(small, small[0].partition), options)
    first = next(tables)
    for input_file in small[ahead:]:
        os.remove(local(input_file.path))
    if ahead == len(small):
        assert first.num_rows + sum(table.num_rows for table in tables) == 1_000
    else:
        with pytest.raises(RewriteFailed) as raised:
            list(tables)
        assert raised.value.path == small[ahead].path


def test_a_file_among_small_ones_that_does_not_fit_is_named(tmp_path: Path) -> None:
    """Rows of small files are projected together; the error is about the one that cannot be."""
    inner = NestedField(2, "n", LongType(), required=True)
    options = settings_of(tmp_path, Schema(NestedField(1, "s", StructType(inner))))
    ids = [pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "2"})]
    stored = pa.schema([pa.field("s", pa.struct(ids), metadata={"PARQUET:field_id": "1"})])
    small = []
    for number, value in enumerate([1, 2, None, 4]):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table({"s": [{"n": value}]}, schema=stored), path)
        small.append(FileFact(str(path), path.stat().st_size, 1, PartitionKey(0), sequence_number=1))
    with pytest.raises(RewriteFailed, match=r"Cannot read .*2.parquet: column 's' has null in required") as raised:
        merge(MergeTask(tuple(small), small[0].partition, 1), options, MERGED)
    assert raised.value.path == small[2].path


def test_files_without_rows_are_merged_away(tmp_path: Path) -> None:
    """An empty file is an input file like any other; only empty ones still give a file, so that outputs match the
    plan."""
    options = settings_of(tmp_path, schema_of(("id", LongType())))
    empty = tmp_path / "empty.parquet"
    pq.write_table(pa.table({"id": []}, schema=options.arrow_schema), empty)
    none = FileFact(str(empty), empty.stat().st_size, 0, PartitionKey(0))
    full = fact(write_one(options, pa.table({"id": [1, 2]})))
    (file,) = merge(MergeTask((none, full, none), PartitionKey(0), 1), options, MERGED).files
    assert ids(file.path) == [1, 2]
    assert merge(MergeTask((none, none), PartitionKey(0), 1), options, MERGED).files == ()


def test_merged_and_fresh_files_read_alike_in_pyiceberg(tmp_path: Path) -> None:
    """After a schema change and a merge of all files a table scans to the same rows, NULL lists included."""
    table = catalog_in(tmp_path).create_table(
        "db.t",
        schema_of(
            ("id", LongType()),
            ("n", LongType()),
            ("l", ListType(9, StructType(NestedField(8, "x", LongType(), False)), False)),
        ),
        partition_spec=PartitionSpec(),
    )
    options = WriteSettings.of(table.metadata, {}, 2**29)
    lists = [[{"x": 1}], None, [], [None]]
    files = []
    for i in range(4):
        rows = pa.Table.from_pylist([{"id": i, "n": -i, "l": lists[i]}], schema=options.arrow_schema)
        files += write_rows([rows], options, NAMES)
    append(table, files)
    with table.update_schema() as update:
        update.rename_column("n", "renamed")
        update.add_column("added", StringType())
    options = WriteSettings.of(table.metadata, {}, 2**29)
    (merged,) = merge(MergeTask(tuple(map(fact, files)), PartitionKey(0), 1), options, MERGED).files
    with table.transaction() as tx, tx.update_snapshot().overwrite() as producer:
        for file in files:
            producer.delete_data_file(data_file(file))
        producer.append_data_file(data_file(merged))
    found = pq.read_table(local(merged.path)).sort_by("id").to_pylist()
    assert found == [{"id": i, "renamed": -i, "l": lists[i], "added": None} for i in range(4)]
    assert table.scan(selected_fields=("id", "renamed")).to_arrow().num_rows == 4
    assert table.scan("renamed <= -3").to_arrow().column("id").to_pylist() == [3]
