"""merge by copying: which input files are copied, which are decoded and why, and what becomes of their rows."""

from __future__ import annotations

import os
import random
import struct
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.sorting import SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, StringType

from icesize.environment import WorkLimits
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import CopiedFrom, MergeResult, NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.rewriting.copy_or_decode import likely_copied
from icesize.parquet.rewriting.forecast import forecast, work_bytes
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from icesize.spark.engine.merge_job import work_for_spark
from icesize.storage.table_storage import Storage
from tests.support.copying import KEY, MERGED, PAGED_ROWS, SMALL, TINY_ROWS, WHOLE_ROWS, content, with_ids
from tests.support.examples import examples, sampled
from tests.support.parquet_files import (
    REMOTE,
    fact,
    files_below,
    foreign_file,
    local,
    rows_decoded,
    schema_of,
    settings_of,
    write_one,
)

LIMITS = Limits()
SCHEMA = schema_of(("id", LongType()), ("value", DoubleType()), ("word", StringType()))


def rows(count: int, start: int = 0, seed: int = 0) -> pa.Table:
    """Rows that hardly compress: about 24 bytes each."""
    random_bytes = random.Random(f"{start}-{count}-{seed}").randbytes(16 * count)
    halves = [random_bytes[16 * i : 16 * i + 16] for i in range(count)]
    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "value": pa.array([int.from_bytes(half[:7], "big") / 3 for half in halves], pa.float64()),
            "word": pa.array([half.hex() for half in halves]),
        }
    )


def written(options: WriteSettings, counts: list[int]) -> list[FileFact]:
    """One file of our own for each number of rows, ids running on."""
    starts = [sum(counts[:i]) for i in range(len(counts))]
    return [
        fact(write_one(options, rows(count, start)), sequence_number=i + 1)
        for i, (count, start) in enumerate(zip(counts, starts, strict=True))
    ]


def foreign(folder: Path, data: pa.Table, name: str, **options: object) -> FileFact:
    """A file of another writer with the field ids of SCHEMA, as Iceberg's import would list it."""
    path = foreign_file(folder, with_ids(data), name, store_schema=False, **options)
    return FileFact(str(path), path.stat().st_size, data.num_rows, KEY)


def merged(options: WriteSettings, inputs: list[FileFact], outputs: int = 1) -> MergeResult:
    """The outcome, each of its files verified from the first byte to the last."""
    done = merge(MergeTask(tuple(inputs), KEY, outputs), options, MERGED)
    for file in done.files:
        found = verify_file(LocalSource(local(file.path)), "merged")
        assert found.problems == ()
        assert found.rows == file.rows
        assert os.path.getsize(local(file.path)) == file.size_bytes
    return done


def rows_of(done: MergeResult) -> Counter[str]:
    """All rows of the outputs, in the columns of SCHEMA."""
    return content((file.path for file in done.files), ["id", "value", "word"])


def test_pages_of_small_files_become_one_row_group(tmp_path: Path) -> None:
    """Files too small for row groups of their own are copied page by page into one, rows in their order."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [20_000, 15_000, 30_000])
    done = merged(options, inputs)
    (file,) = done.files
    assert pq.read_metadata(local(file.path)).num_row_groups == 1
    assert pq.read_table(local(file.path)).column("id").to_pylist() == list(range(65_000))
    assert (done.bytes_decoded, dict(done.decode_reasons)) == (0, {})
    assert done.bytes_copied > 0.99 * sum(f.size_bytes for f in done.inputs)
    # 20,000 rows or 1 MiB are a page at most
    assert done.pages_copied == 3 * (1 + 1 + 2)
    assert file.copied_from == tuple(CopiedFrom(input_file.path) for input_file in inputs)
    assert (file.rows, file.sequence_number, file.split_offsets) == (65_000, 3, (4,))
    assert file.value_counts == {1: 65_000, 2: 65_000, 3: 65_000}
    assert file.null_value_counts == {1: 0, 2: 0, 3: 0}
    assert file.lower_bounds == file.upper_bounds == file.nan_value_counts == {}
    assert done.rows_in == done.rows_out == 65_000


def test_large_row_groups_are_copied_whole(tmp_path: Path) -> None:
    """A row group of 100,000 rows stays one; small ones beside it are joined among themselves."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [15_000, LIMITS.good_group_rows, 25_000])
    done = merged(options, inputs)
    (file,) = done.files
    footer = pq.read_metadata(local(file.path))
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [LIMITS.good_group_rows, 40_000]
    assert rows_of(done) == content(input_file.path for input_file in inputs)
    assert done.bytes_decoded == 0
    assert done.pages_copied == 3 * (1 + 2)


def test_tiny_files_are_decoded_beside_copied_ones(tmp_path: Path) -> None:
    """Only what is too small to copy is decoded; its bounds and counts are known at once."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [60_000, 50, 70])
    done = merged(options, inputs)
    (file,) = done.files
    assert dict(done.decode_reasons) == {"tiny": 2}
    assert done.bytes_decoded == inputs[1].size_bytes + inputs[2].size_bytes
    assert rows_of(done) == content(input_file.path for input_file in inputs)
    (decoded,) = file.decoded
    assert (file.rows, decoded.rows) == (60_120, 120)
    assert file.copied_from == (CopiedFrom(inputs[0].path),)
    assert int.from_bytes(decoded.lower_bounds[1], "little") == 60_000
    assert int.from_bytes(decoded.upper_bounds[1], "little") == 60_119


def test_a_merge_that_could_copy_little_is_decoded(tmp_path: Path) -> None:
    """Below 256 KiB nothing is copied; all files count with the reason."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [100] * 40)
    assert sum(input_file.size_bytes for input_file in inputs) < LIMITS.least_copied_bytes
    done = merged(options, inputs)
    assert (done.bytes_copied, done.pages_copied, dict(done.decode_reasons)) == (0, 0, {"tiny": 40})
    assert isinstance(done.files[0], NewDataFile)
    assert rows_of(done) == content(input_file.path for input_file in inputs)


@pytest.mark.parametrize("remote", sampled([True, False], 2))
def test_several_outputs_divide_row_groups(tmp_path: Path, remote: bool) -> None:
    """Outputs are of about equal size, whole input files each; also through a FileIO that is not the local file
    system."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [20_000] * 9)
    done = merged(replace(options, io_properties=REMOTE) if remote else options, inputs, outputs=3)
    sizes = [file.size_bytes for file in done.files]
    assert max(sizes) < 1.05 * min(sizes)
    assert [file.rows for file in done.files] == [60_000] * 3
    assert rows_of(done) == content(input_file.path for input_file in inputs)
    assert all(copied.whole for file in done.files for copied in file.copied_from)


def test_outputs_that_row_groups_are_too_coarse_for_are_decoded(tmp_path: Path) -> None:
    """Where whole row groups would leave a small file, rows are divided instead."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [70_000, 30_000, 20_000])
    half = sum(input_file.size_bytes for input_file in inputs) // 2
    done = merged(replace(options, small_file_limit_bytes=int(half / 1.07)), inputs, outputs=2)
    assert dict(done.decode_reasons) == {"uneven": 3}
    assert max(f.size_bytes for f in done.files) < 1.05 * min(f.size_bytes for f in done.files)
    assert rows_of(done) == content(input_file.path for input_file in inputs)


def test_a_row_group_in_each_output_is_told(tmp_path: Path) -> None:
    """An input file of several row groups may lie in several outputs; neither has it whole."""
    options = settings_of(tmp_path, SCHEMA, properties={"write.parquet.row-group-limit": "30000"})
    inputs = written(options, [60_000, 30_000, 30_000])
    done = merged(options, inputs, outputs=2)
    assert [file.rows for file in done.files] == [60_000, 60_000]
    parts = written(options, [30_000, 60_000, 30_000])
    divided = merged(options, parts, outputs=2)
    path = parts[1].path
    assert [CopiedFrom(path, whole=False) in file.copied_from for file in divided.files] == [True, True]
    assert rows_of(divided) == content(input_file.path for input_file in parts)


def _sorted(options: WriteSettings) -> WriteSettings:
    field = SortField(source_id=1, transform=IdentityTransform(), direction=SortDirection.ASC)
    return replace(options, sort_order_json=SortOrder(field, order_id=1).model_dump_json())


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("copying-off", lambda options: replace(options, merge_by_copying=False)),
        ("sorted", _sorted),
        ("codec", lambda options: replace(options, properties={"write.parquet.compression-codec": "snappy"})),
        (
            "bloom-filter",
            lambda options: replace(options, properties={"write.parquet.bloom-filter-enabled.column.id": "true"}),
        ),
        (
            "schema-evolved",
            lambda options: replace(
                options,
                schema_json=schema_of(
                    ("id", LongType()), ("value", DoubleType()), ("word", StringType()), ("more", IntegerType())
                ).model_dump_json(),
            ),
        ),
    ],
)
def test_what_the_table_asks_for_is_not_copied_away(tmp_path: Path, code: str, change: object) -> None:
    """Sort order, codec, bloom filters and schema of the table are those of merged files, at the price of decoding."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [30_000, 30_000])
    done = merged(change(options), inputs)  # type: ignore[operator]
    assert (dict(done.decode_reasons), done.bytes_copied) == ({code: 2}, 0)
    assert rows_of(done) == content(input_file.path for input_file in inputs)


def test_bloom_filters_are_kept_where_row_groups_are_copied_whole(tmp_path: Path) -> None:
    """Files that have the filters which the table asks for are copied with them."""
    asked = {"write.parquet.bloom-filter-enabled.column.id": "true"}
    options = settings_of(tmp_path, SCHEMA, properties=asked)
    done = merged(options, written(options, [LIMITS.good_group_rows, LIMITS.good_group_rows]))
    assert done.bytes_decoded == 0
    # verified above: each value is found in its filter
    footer = pq.read_metadata(local(done.files[0].path))
    assert footer.num_row_groups == 2


def test_bloom_filters_stay_when_a_column_is_required_in_one_file(tmp_path: Path) -> None:
    """Its row groups could not be copied whole, so the file is decoded, and the filters are made anew."""
    asked = {"write.parquet.bloom-filter-enabled.column.id": "true"}
    options = settings_of(tmp_path, SCHEMA, properties=asked)
    mine = written(options, [LIMITS.good_group_rows])
    data = rows(LIMITS.good_group_rows, LIMITS.good_group_rows)
    strict = data.cast(pa.schema([data.schema.field(0).with_nullable(False), *list(data.schema)[1:]]))
    how = {"compression": "zstd", "use_dictionary": False, "bloom_filter_options": {"id": True}}
    done = merged(options, [*mine, foreign(tmp_path / "f", strict, "strict.parquet", **how)])
    assert dict(done.decode_reasons) == {"bloom-filter": 1}
    footer = pq.read_metadata(local(done.files[0].path))
    assert [footer.row_group(n).column(0).bloom_filter_offset is not None for n in range(2)] == [True, True]


def test_foreign_files_are_decoded_or_copied_by_what_they_are(tmp_path: Path) -> None:
    """A file of another codec is decoded, a column that is required in one file encoded again; all is in one output."""
    options = settings_of(tmp_path, SCHEMA)
    mine = written(options, [60_000])
    data = rows(20_000, 60_000)
    required = pa.schema([data.schema.field(0).with_nullable(False), *list(data.schema)[1:]])
    other = pa.Table.from_arrays(rows(20_000, 80_000).columns, schema=required)
    snappy = foreign(tmp_path / "f", data, "snappy.parquet", compression="snappy")
    strict = foreign(tmp_path / "f", other, "required.parquet", compression="zstd", use_dictionary=False)
    done = merged(options, [*mine, snappy, strict])
    assert dict(done.decode_reasons) == {"codec": 1}
    assert snappy.size_bytes < done.bytes_decoded < snappy.size_bytes + strict.size_bytes
    assert pq.read_schema(local(done.files[0].path)).field("id").nullable
    assert rows_of(done) == content([mine[0].path, snappy.path, strict.path])


def test_dictionaries_of_their_own_are_decoded(tmp_path: Path) -> None:
    """Files whose columns all have different dictionaries cost more to copy than to decode."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = [foreign(tmp_path / "f", rows(30_000, n * 30_000), f"{n}.parquet", compression="zstd") for n in range(3)]
    done = merged(options, inputs)
    assert dict(done.decode_reasons) == {"dictionaries": 3}
    assert rows_of(done) == content(input_file.path for input_file in inputs)


def test_a_page_that_is_not_what_its_checksum_says_fails_the_merge(tmp_path: Path) -> None:
    """Copying notices, decoding notices too: the input file is named, and nothing is left."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [40_000, 40_000])
    path = local(inputs[1].path)
    with open(path, "r+b") as file:
        file.seek(os.path.getsize(path) // 2)
        byte = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte[0] ^ 1]))
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert caught.value.path == inputs[1].path
    assert len(files_below(tmp_path)) == 2


@pytest.mark.parametrize("remote", [False, True])
def test_an_input_file_that_is_gone_or_cut_off_is_named(tmp_path: Path, remote: bool) -> None:
    """What cannot be copied because it is not there cannot be decoded either, and the error says which file."""
    options = settings_of(tmp_path, SCHEMA)
    options = replace(options, io_properties=REMOTE) if remote else options
    inputs = written(options, [40_000, 40_000, 40_000])
    with open(local(inputs[2].path), "r+b") as file:
        file.truncate(inputs[2].size_bytes - 1_000)
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert caught.value.path == inputs[2].path
    os.remove(local(inputs[0].path))
    with pytest.raises(RewriteFailed) as caught:
        merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert caught.value.path == inputs[0].path
    assert len(files_below(tmp_path)) == 2


def test_an_input_file_with_other_rows_than_its_entry_is_refused(tmp_path: Path) -> None:
    """A file that is whole but not the one of the manifest is not copied in its place."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = written(options, [40_000, 40_000])
    inputs[1] = replace(inputs[1], rows=39_999)
    with pytest.raises(RewriteFailed, match="it has 40000 rows, its manifest records 39999"):
        merge(MergeTask(tuple(inputs), KEY), options, MERGED)
    assert len(files_below(tmp_path)) == 2


def test_a_merge_of_merges_copies_again(tmp_path: Path) -> None:
    """Outputs of copying are copied into larger outputs; rows stay."""
    options = settings_of(tmp_path, SCHEMA)
    first = [merged(options, written(options, [20_000, 20_000, 300])).files[0] for _ in range(2)]
    done = merged(options, [fact(file) for file in first])
    assert done.bytes_decoded == 0
    assert rows_of(done) == content(file.path for file in first)
    assert pq.read_metadata(local(done.files[0].path)).num_row_groups == 1


def test_nan_and_nulls_in_decoded_rows_stay_countable(tmp_path: Path) -> None:
    """NaN keeps bounds out of the decoded part's statistics; its counts and bounds are those of its other rows."""
    options = settings_of(tmp_path, SCHEMA)
    (large,) = written(options, [60_000])
    odd = pa.table(
        {"id": [7, None, 9], "value": [float("nan"), 2.5, None], "word": pa.array([None, None, None], pa.string())}
    )
    small = fact(write_one(options, odd))
    (file,) = merged(options, [large, small]).files
    (decoded,) = file.decoded
    assert decoded.nan_value_counts == {2: 1}
    assert decoded.null_value_counts == {1: 1, 2: 1, 3: 3}
    assert sorted(decoded.lower_bounds) == [1, 2]
    assert decoded.lower_bounds[2] == decoded.upper_bounds[2] == struct.pack("<d", 2.5)
    table = pq.read_table(local(file.path))
    assert pc.sum(pc.is_nan(table.column("value"))).as_py() == 1
    assert table.column("word").null_count == 3


@examples(12)
@given(
    counts=st.lists(st.sampled_from([0, 1, 90, 4_000, 25_000, 110_000]), min_size=1, max_size=5),
    outputs=st.integers(1, 3),
    remote=st.booleans(),
)
def test_every_row_comes_out_once(
    tmp_path_factory: pytest.TempPathFactory, counts: list[int], outputs: int, remote: bool
) -> None:
    """Whatever is copied and whatever is decoded, the outputs hold each row once and verify."""
    options = settings_of(tmp_path_factory.mktemp("merge"), SCHEMA)
    inputs = written(options, [count for count in counts if count])
    inputs += [
        foreign(Path(local(options.table_location)) / "f", rows(0), f"{n}.parquet") for n in range(counts.count(0))
    ]
    if remote:
        options = replace(options, io_properties=REMOTE)
    done = merged(options, inputs, outputs)
    assert rows_of(done) == content(input_file.path for input_file in inputs)
    assert done.bytes_copied + done.bytes_decoded <= sum(f.size_bytes for f in done.inputs)
    assert rows_decoded(done.files) <= done.rows_out


def test_tiny_is_told_from_the_manifest_entry() -> None:
    """Chunks below 16 KiB, or pages of few rows and few bytes, are not looked at; many rows always are."""
    options = settings_of("/nowhere", schema_of(*((f"c{n}", LongType()) for n in range(10))))
    sizes = [(100_000, 5_000), (200_000, 5_000), (200_000, 1_999), (400_000, 1_999), (1_000, LIMITS.good_group_rows)]
    files = [FileFact(f"{size}-{count}", size, count, KEY) for size, count in sizes]
    assert likely_copied(files, options) == [files[1], files[3], files[4]]


def _group(inputs: list[FileFact]) -> MergeTask:
    return MergeTask(tuple(inputs), KEY)


def test_a_forecast_tells_what_a_merge_then_does(tmp_path: Path) -> None:
    """Bytes to copy and to decode, and why, as the merge itself counts them."""
    options = settings_of(tmp_path, SCHEMA)
    copied = written(options, [60_000, 60_000, 40])
    small = written(options, [10] * 5)
    found = forecast([_group(copied), _group(small)], options)
    assert dict(found.decode_reasons) == {"tiny": 6}
    assert found.bytes_copied == copied[0].size_bytes + copied[1].size_bytes
    assert found.bytes_copied + found.bytes_decoded == sum(input_file.size_bytes for input_file in (*copied, *small))
    done = merged(options, copied)
    assert done.bytes_copied == pytest.approx(found.bytes_copied, rel=0.01)
    assert done.pages_copied == found.pages_copied
    off = forecast([_group(copied)], replace(options, merge_by_copying=False))
    assert (off.bytes_copied, dict(off.decode_reasons)) == (0, {"copying-off": 3})


def _worded(words: str, count: int, number: int) -> pa.Table:
    """Rows whose ids and words are few: the same in each file, or others; or all different."""
    random_numbers = np.random.default_rng(number)
    if words == "unique":
        ids, texts = np.arange(count), pa.array(random_numbers.integers(2**60, 2**62, count)).cast(pa.string())
    else:
        of = number if words == "own" else 0
        ids = np.arange(count) % 5_000 + 10**6 * of
        texts = pa.array([f"{of}-{i:040d}" for i in range(50)]).take(pa.array(np.arange(count) % 50))
    return pa.table({"id": pa.array(ids, pa.int64()), "value": random_numbers.random(count), "word": texts})


@examples(12)
@given(
    files=st.lists(
        st.tuples(
            st.sampled_from(["same", "own", "unique"]), st.sampled_from([40, 12_000, 30_000, 110_000]), st.booleans()
        ),
        min_size=2,
        max_size=4,
    ),
    outputs=st.integers(1, 2),
    numbers=st.booleans(),
    remote=st.booleans(),
)
def test_a_merge_does_what_was_forecast(
    tmp_path_factory: pytest.TempPathFactory,
    files: list[tuple[str, int, bool]],
    outputs: int,
    numbers: bool,
    remote: bool,
) -> None:
    """Where all files were looked at: the same bytes and pages copied, and the same reasons for what is decoded."""
    folder = tmp_path_factory.mktemp("forecast")
    options = replace(settings_of(folder, SCHEMA), io_properties=REMOTE if remote else {})
    inputs = [
        foreign(
            folder / "f", _worded(words, count, n), f"{n}.parquet",
            use_dictionary=(["id", "value", "word"] if numbers else ["word"]) if dictionary else False,
        )
        for n, (words, count, dictionary) in enumerate(files)
    ]  # fmt: skip
    found = forecast([MergeTask(tuple(inputs), KEY, outputs)], options)
    done = merge(MergeTask(tuple(inputs), KEY, outputs), options, MERGED)
    assert dict(found.decode_reasons) == dict(done.decode_reasons)
    assert (found.bytes_decoded, found.pages_copied) == (done.bytes_decoded, done.pages_copied)
    assert done.bytes_copied == pytest.approx(found.bytes_copied, rel=0.02)


def test_a_forecast_of_some_files_knows_that_their_dictionaries_differ(tmp_path: Path) -> None:
    """Of eight files with dictionaries of their own four are looked at: the column is encoded again; where the
    dictionaries are equal, it is copied."""
    options = settings_of(tmp_path, SCHEMA)

    def group(words: str) -> MergeTask:
        few = [_worded(words, 40_000, n).set_column(1, "value", pa.nulls(40_000, pa.float64())) for n in range(8)]
        large: dict[str, Any] = {"max_rows_per_page": 10**6, "use_dictionary": ["word"]}
        return _group([foreign(tmp_path / words, data, f"{n}.parquet", **large) for n, data in enumerate(few)])

    own, same = group("own"), group("same")
    found = forecast([own], options)
    assert dict(found.decode_reasons) == {}
    assert found.bytes_decoded == pytest.approx(merged(options, list(own.inputs)).bytes_decoded, rel=0.05) != 0
    found = forecast([same], options)
    assert (found.bytes_decoded, dict(found.decode_reasons)) == (0, {})
    assert merged(options, list(same.inputs)).bytes_decoded == 0


def test_columns_are_the_same_bytes_whatever_the_number_of_threads(tmp_path: Path) -> None:
    """Several columns are encoded again at a time, and written in their order."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = tuple(
        foreign(tmp_path, _worded("own", 40_000, n), f"{n}.parquet", use_dictionary=["word"]) for n in range(4)
    )
    found = []
    for threads in (1, 2, 5):
        done = merge(MergeTask(inputs, KEY), options, FileNames("s1", threads, 0), threads)
        assert (done.bytes_decoded > 0, dict(done.decode_reasons)) == (True, {})
        found.append([Path(local(file.path)).read_bytes() for file in done.files])
    assert found[0] == found[1] == found[2]


def test_a_forecast_reads_few_footers_of_a_large_plan(tmp_path: Path) -> None:
    """Of 40 groups some are looked at and the rest is taken to be alike; files that are gone count as decoded."""
    options = settings_of(tmp_path, SCHEMA)
    (file,) = written(options, [60_000])
    groups = [_group([file, file, file]) for _ in range(40)]
    found = forecast(groups, options)
    assert found.bytes_decoded == 0
    os.remove(local(file.path))
    lost = forecast(groups, options)
    assert (lost.bytes_copied, dict(lost.decode_reasons)) == (0, {"short-read": 48})


@pytest.mark.parametrize("damaged", [False, True])
def test_a_forecast_closes_the_files_of_a_group_before_those_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    """However large the plan, only the few files of one group are open, and none stays open."""
    options = settings_of(tmp_path, SCHEMA)
    (file,) = written(options, [60_000])
    if damaged:
        Path(local(file.path)).write_bytes(b"no parquet" * (file.size_bytes // 10))
    streams, most, open_stream = list[Any](), list[int](), Storage.stream

    def stream(storage: Storage, location: str, size_bytes: int) -> Any:
        streams.append(open_stream(storage, location, size_bytes))
        most.append(sum(not each.closed for each in streams))
        return streams[-1]

    monkeypatch.setattr(Storage, "stream", stream)
    forecast([_group([file, file, file]) for _ in range(8)], options)
    assert (len(streams), max(most)) == (24, 3)
    assert all(each.closed for each in streams)


def test_work_is_what_copying_leaves_of_it(tmp_path: Path) -> None:
    """Files that can be copied count an eighth, tiny ones whole; without copying all count whole."""
    options = settings_of(tmp_path, SCHEMA)
    large, small = FileFact("a", 4 * 2**20, 50_000, KEY), FileFact("b", 30_000, 90, KEY)
    assert work_bytes([large, small, small], options) == 2**19 + 60_000
    assert work_bytes([small] * 9, options) == 270_000
    assert work_bytes([large, small], replace(options, merge_by_copying=False)) == 4 * 2**20 + 30_000
    assert work_bytes([large], _sorted(options)) == 4 * 2**20


def test_the_driver_copies_a_little(tmp_path: Path) -> None:
    """Little work stays in the driver; of what is copied, and of what is much work, the largest groups do not."""
    options = settings_of(tmp_path, SCHEMA)

    def group(size_bytes: int, rows: int) -> MergeTask:
        return MergeTask((FileFact("a", size_bytes, rows, KEY),), KEY)

    def for_spark(groups: list[MergeTask], options: WriteSettings) -> dict[int, int]:
        return work_for_spark(dict(enumerate(groups)), options, WorkLimits())

    copied = [group(n * 2**20, 90_000) for n in (30, 20, 40, 1)]
    tiny = [group(40_000, 90)] * 300
    assert for_spark([*copied, *tiny], options) == {2: 5 * 2**20}
    assert for_spark([group(70 * 2**20, 90_000)], options) == {0: round(70 * 2**20 / 8)}
    off = replace(options, merge_by_copying=False)
    assert for_spark(copied, off) == {0: 30 * 2**20, 1: 20 * 2**20, 2: 40 * 2**20}


def test_files_of_one_row_are_decoded_together(tmp_path: Path) -> None:
    """Five hundred files of one row are one merge without a look at their footers."""
    options = settings_of(tmp_path, SCHEMA)
    names = FileNames("s1-1", 0, 0)
    files = [write_rows([rows(1, n)], options, names)[0] for n in range(500)]
    done = merged(options, [fact(file) for file in files])
    assert dict(done.decode_reasons) == {"tiny": 500}
    assert pq.read_table(local(done.files[0].path)).column("id").to_pylist() == list(range(500))


def _required(options: WriteSettings, folder: Path, count: int, start: int, name: str) -> FileFact:
    """A file in which no id may be null, as Spark writes columns that cannot be."""
    data = rows(count, start)
    schema = pa.schema([data.schema.field(0).with_nullable(False), *list(data.schema)[1:]])
    table = pa.Table.from_arrays(data.columns, schema=schema)
    return foreign(folder, table, name, compression="zstd", use_dictionary=False)


def test_a_few_rows_join_files_whose_columns_are_required(tmp_path: Path) -> None:
    """Rows without a null become part of such a file; one null, and everything is decoded."""
    options = settings_of(tmp_path, SCHEMA)
    large = _required(options, tmp_path / "f", 60_000, 0, "required.parquet")
    (small,) = written(options, [40])
    assert dict(merged(options, [large, small]).decode_reasons) == {"tiny": 1}
    null = pa.table({"id": pa.array([None, 2], pa.int64()), "value": [1.0, 2.0], "word": ["a", None]})
    odd = fact(write_one(options, null))
    done = merged(options, [large, odd])
    assert dict(done.decode_reasons) == {"schema-differs": 2}
    assert rows_of(done) == content([large.path, odd.path])


def test_nulls_are_counted_over_all_decoded_row_groups(tmp_path: Path) -> None:
    """NaN in one of several decoded row groups does not hide the nulls of the others."""
    options = settings_of(tmp_path, SCHEMA, properties={"write.parquet.row-group-limit": "1500"})
    (large,) = written(settings_of(tmp_path, SCHEMA), [60_000])
    first = pa.table({"id": range(1_500), "value": [float("nan")] * 1_500, "word": ["a"] * 1_500})
    later = pa.table({"id": range(1_500), "value": pa.array([None] * 500 + [2.5] * 1_000), "word": ["b"] * 1_500})
    done = merged(options, [large, fact(write_one(options, first)), fact(write_one(options, later))])
    (file,) = done.files
    assert dict(done.decode_reasons) == {"tiny": 2}
    assert len(file.decoded) > 1
    assert sum(part.null_value_counts[2] for part in file.decoded) == 500
    assert sum(part.nan_value_counts[2] for part in file.decoded) == 1_500


def test_a_location_that_no_file_io_knows_is_named(tmp_path: Path) -> None:
    """Whatever storage raises is an error of the group, with the input file's path."""
    options = settings_of(tmp_path, SCHEMA)
    (large,) = written(options, [60_000])
    lost = replace(large, path="xyz://bucket/x.parquet")
    with pytest.raises(RewriteFailed, match="Unrecognized filesystem type") as caught:
        merge(MergeTask((large, lost), KEY), options, MERGED)
    assert caught.value.path == lost.path
    assert forecast([_group([large, lost])], options).decode_reasons == {"short-read": 1}


def test_row_groups_of_two_codecs_lie_in_one_file(tmp_path: Path) -> None:
    """Whole row groups need no common codec; a table that once had another is not decoded for it."""
    options = settings_of(tmp_path, SCHEMA)
    inputs = [
        foreign(
            tmp_path / "f",
            rows(LIMITS.good_group_rows, 10**6 * n),
            f"{n}.parquet",
            compression=codec,
            use_dictionary=False,
        )
        for n, codec in enumerate(("zstd", "snappy"))
    ]
    done = merged(options, inputs)
    assert (dict(done.decode_reasons), done.bytes_decoded) == ({}, 0)
    assert rows_of(done) == content(input_file.path for input_file in inputs)


def test_a_few_rows_join_files_of_older_names(tmp_path: Path) -> None:
    """After a column was renamed its files are still copied, and the rows of tiny ones are written as theirs are."""
    old = settings_of(tmp_path, SCHEMA)
    inputs = written(old, [60_000, 60_000])
    new = settings_of(tmp_path, schema_of(("id", LongType()), ("value", DoubleType()), ("term", StringType())))
    small = fact(write_one(new, rows(50, 120_000).rename_columns(["id", "value", "term"])))
    done = merged(new, [*inputs, small])
    (file,) = done.files
    assert dict(done.decode_reasons) == {"tiny": 1}
    assert rows_of(done) == content([*(input_file.path for input_file in inputs), small.path])
    assert [sorted(part.lower_bounds) for part in file.decoded] == [[1, 2, 3]]


def test_many_rows_in_few_bytes_are_joined(tmp_path: Path) -> None:
    """Row groups of 100,000 rows that hardly take a byte are not kept as they are, but merged page by page."""
    options = settings_of(tmp_path, SCHEMA)

    def equal(count: int, start: int) -> pa.Table:
        return pa.table({"id": [start] * count, "value": [1.5] * count, "word": ["same"] * count})

    (large,) = written(options, [60_000])
    data = [equal(LIMITS.good_group_rows, n) for n in range(3)]
    inputs = [fact(write_one(options, table)) for table in data]
    assert all(input_file.size_bytes < 10_000 for input_file in inputs)
    done = merged(options, [large, *inputs])
    assert pq.read_metadata(local(done.files[0].path)).num_row_groups < 4
    assert sum(file.rows for file in done.files) == 360_000


def test_text_that_is_no_text_has_no_bounds(tmp_path: Path) -> None:
    """Spark stores any bytes as a string: they are merged as they are, copied or decoded."""
    options = settings_of(tmp_path, SCHEMA)
    data = rows(30_000)
    wild = pa.array([b"\xff\xfe" + str(i).encode() for i in range(30_000)], pa.binary()).view(pa.string())
    table = data.set_column(2, "word", wild)
    inputs = [
        foreign(tmp_path / "f", table, f"{n}.parquet", compression="zstd", use_dictionary=False) for n in range(2)
    ]
    for how in (options, replace(options, merge_by_copying=False)):
        done = merge(MergeTask(tuple(inputs), KEY), how, MERGED)
        assert done.rows_out == 60_000
        assert 3 not in done.files[0].lower_bounds


RARE: dict[str, dict[str, object]] = {
    "brotli": {"compression": "brotli"},
    "lz4": {"compression": "lz4"},
    "split bytes": {"column_encoding": {"value": "BYTE_STREAM_SPLIT"}},
}
"""Files that some readers refuse, Spark among them."""
SIZES = {"whole": WHOLE_ROWS, "pages": PAGED_ROWS, "tiny": TINY_ROWS}


def small_file(folder: Path, number: int, count: int, how: Mapping[str, object]) -> FileFact:
    """Rows of another writer, as they are copied by the limits of `SMALL`."""
    arguments = {"compression": "zstd", "use_dictionary": False, **how}
    return foreign(folder, rows(count, number * 10_000), f"{number}.parquet", **arguments)


@pytest.mark.parametrize("size", ["whole", "pages"])
@pytest.mark.parametrize("other", SIZES)
@pytest.mark.parametrize("many", [1, 3])
@pytest.mark.parametrize("kind", RARE)
def test_a_reader_of_some_input_files_can_read_the_merged_one(
    tmp_path: Path, kind: str, size: str, other: str, many: int
) -> None:
    """Chunks that some readers refuse do not lie beside rows that these could read, not even where most are so."""
    options = replace(settings_of(tmp_path, SCHEMA), limits=SMALL)
    odd = [small_file(tmp_path, n, SIZES[size], RARE[kind]) for n in range(many)]
    done = merged(options, [*odd, small_file(tmp_path, 9, SIZES[other], {})])
    footer = pq.read_metadata(local(done.files[0].path))
    chunks = [footer.row_group(g).column(c) for g in range(footer.num_row_groups) for c in range(3)]
    assert {chunk.compression for chunk in chunks} == {"ZSTD"}
    assert not any("BYTE_STREAM_SPLIT" in chunk.encodings for chunk in chunks)
    assert rows_of(done) == content(each.path for each in done.inputs)


@pytest.mark.parametrize("kind", RARE)
def test_files_that_are_odd_in_the_same_way_are_copied(tmp_path: Path, kind: str) -> None:
    """Each reader of one of them reads both together."""
    options = replace(settings_of(tmp_path, SCHEMA), limits=SMALL)
    done = merged(options, [small_file(tmp_path, n, WHOLE_ROWS, RARE[kind]) for n in range(2)])
    assert (done.bytes_decoded, dict(done.decode_reasons)) == (0, {})


def test_a_codec_that_the_table_names_is_copied(tmp_path: Path) -> None:
    """Rows that are decoded beside it get the same."""
    asked = {"write.parquet.compression-codec": "lz4_raw"}
    options = replace(settings_of(tmp_path, SCHEMA, properties=asked), limits=SMALL)
    counts = (WHOLE_ROWS, TINY_ROWS)
    done = merged(options, [small_file(tmp_path, n, count, RARE["lz4"]) for n, count in enumerate(counts)])
    assert dict(done.decode_reasons) == {"tiny": 1}


def test_an_odd_encoding_costs_its_column_alone(tmp_path: Path) -> None:
    """The other columns of a row group beside plain ones are copied, and no file is decoded."""
    options = replace(settings_of(tmp_path, SCHEMA), limits=SMALL)
    odd = small_file(tmp_path, 1, WHOLE_ROWS, RARE["split bytes"])
    done = merged(options, [odd, small_file(tmp_path, 2, WHOLE_ROWS, {})])
    assert (dict(done.decode_reasons), 0 < done.bytes_decoded < odd.size_bytes) == ({}, True)
    assert rows_of(done) == content(each.path for each in done.inputs)
