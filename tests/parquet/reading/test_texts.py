"""Texts of any length, with dictionaries in files or without, are read in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.types import LongType, NestedField, StringType, StructType

from icesize.errors import RewriteFailed
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.fields import ColumnMetaData, SizeStatistics
from icesize.parquet.format.footer import read_footer
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.format.thrift import LIST, struct_field
from icesize.parquet.reading import inputs
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeTask
from tests.support.copying import KEY, SMALL
from tests.support.footers import edited
from tests.support.parquet_files import foreign_file, local, schema_of, settings_of, with_limits

NAMES = "few", "many", "id"


def options_of(folder: Path, **properties: str) -> WriteSettings:
    """A table of texts that nothing is copied of, and whose files of a hundred rows are read as large ones are."""
    schema = schema_of(("few", StringType()), ("many", StringType()), ("id", LongType()))
    keys = {f"write.parquet.{key.replace('_', '-')}": value for key, value in properties.items()}
    options = replace(settings_of(folder, schema, properties=keys), merge_by_copying=False)
    return with_limits(options, whole_file_bytes=100_000, decoded_bytes=2**20)


def rows(options: WriteSettings, first: int, distinct: int = 5, count: int = 200) -> pa.Table:
    """Rows of which each seventh lacks one text."""
    few = [None if i % 7 == 0 else f"text {(i + first) % distinct}" for i in range(count)]
    many = [f"{first + i:09} is no other" for i in range(count)]
    return pa.table([few, many, range(first, first + count)], schema=options.arrow_schema)


def texts_of(values: list[str]) -> pa.Array:
    """A column."""
    return pa.array(values, pa.large_string())


def stored(options: WriteSettings, *tables: pa.Table, **how: Any) -> tuple[FileFact, ...]:
    """Files of another writer's, in which the texts that are few have dictionaries unless `how` says otherwise."""
    how = {"use_dictionary": ["few"], "store_schema": False, **how}
    folder = Path(local(options.table_location))
    paths = [foreign_file(folder, table, f"{table['id'][0]}.parquet", **how) for table in tables]
    return tuple(
        FileFact(str(path), path.stat().st_size, table.num_rows, KEY) for path, table in zip(paths, tables, strict=True)
    )


def merged(options: WriteSettings, files: tuple[FileFact, ...], threads: int = 1) -> tuple[Path, dict[str, Any]]:
    """The one file that a merge makes, which is what its footer says, and the bounds and null counts it comes with."""
    (file,) = merge(MergeTask(files, KEY, 1), options, FileNames(f"t{threads}", 0, 0), threads).files
    found = verify_file(LocalSource(local(file.path)), "merged")
    assert (found.problems, found.rows) == ((), sum(each.rows for each in files))
    metrics = {"lower": file.lower_bounds, "upper": file.upper_bounds, "nulls": file.null_value_counts}
    return Path(local(file.path)), metrics


def dictionary_sizes(path: Path) -> list[int]:
    """Bytes of the dictionary of the first column in each row group, 0 without one."""
    chunks = [group.chunks[0] for group in read_footer(LocalSource(str(path))).row_groups]
    return [chunk.data_offset - chunk.dictionary_offset if chunk.dictionary_offset else 0 for chunk in chunks]


def test_texts_of_few_values_are_read_as_plain_values(tmp_path: Path) -> None:
    """All rows are in the table's schema, whatever dictionaries the files have."""
    options = options_of(tmp_path)
    tables = [rows(options, 0), rows(options, 200, distinct=9)]
    files = stored(options, *tables)
    plain = [*read_inputs(MergeTask(files, KEY, 1), options)]
    assert all(table.schema.equals(options.arrow_schema, check_metadata=True) for table in plain)
    expected = pa.concat_tables(tables).to_pylist()
    assert [row for table in plain for row in table.to_pylist()] == expected


@pytest.mark.parametrize("coded", [["few"], ["few", "many"], False])
def test_files_with_and_without_dictionaries_are_merged(tmp_path: Path, coded: list[str] | bool) -> None:
    """Rows, bounds and null counts are the same as when each file is decoded to plain values, and so are the bytes for
    any number of threads."""
    options = options_of(tmp_path)
    tables = [rows(options, at, distinct) for at, distinct in ((0, 5), (200, 9), (400, 1), (600, 150))]
    files = stored(options, *tables[:2]) + stored(options, *tables[2:], use_dictionary=coded)
    path, metrics = merged(options, files)
    assert pq.read_table(path).cast(options.arrow_schema).equals(pa.concat_tables(tables))
    assert dictionary_sizes(path)[0] > 0
    plain = with_limits(options, whole_file_bytes=2**30)
    assert metrics == merged(plain, files, 2)[1]
    assert path.read_bytes() == merged(options, files, 3)[0].read_bytes()


@pytest.mark.parametrize("groups", [100, 1_000])
def test_dictionaries_stay_within_what_the_table_allows(tmp_path: Path, groups: int) -> None:
    """Where all files have more values together than a dictionary may have, in the first row group or a later one,
    they are given up as they are for plain values."""
    options = options_of(tmp_path, dict_size_bytes="400", row_group_limit=str(groups))
    tables = [rows(options, 0, 3), rows(options, 1_000, 3), rows(options, 2_030, 40)]
    path, _ = merged(options, stored(options, *tables))
    assert max(dictionary_sizes(path)) < 700
    assert pq.read_table(path).cast(options.arrow_schema).equals(pa.concat_tables(tables))


def test_bounds_are_of_the_rows_of_their_row_group(tmp_path: Path) -> None:
    """Not of the whole dictionary: a row group has some of its values, and nulls."""
    options = options_of(tmp_path, row_group_limit="100")
    first, last = rows(options, 0, 1), rows(options, 200, 2)
    path, metrics = merged(options, stored(options, pa.concat_tables([first, last])))
    footer = pq.read_metadata(path)
    bounds = [footer.row_group(i).column(0).statistics for i in range(footer.num_row_groups)]
    assert [(each.min, each.max) for each in bounds] == [("text 0", "text 0")] * 2 + [("text 0", "text 1")] * 2
    assert (metrics["lower"][1], metrics["upper"][1]) == (b"text 0", b"text 1")


def test_an_index_beyond_its_dictionary_fails_the_file(tmp_path: Path) -> None:
    """It is never read from beyond the dictionary."""
    options = options_of(tmp_path)
    (file,) = stored(options, rows(options, 0, 5), compression="none")
    data = bytearray(Path(file.path).read_bytes())
    chunk = read_footer(LocalSource(file.path)).row_groups[0].chunks[0]
    data[chunk.end - 8 : chunk.end] = b"\xff" * 8
    Path(file.path).write_bytes(data)
    with pytest.raises(RewriteFailed) as raised:
        [*read_inputs(MergeTask((file,), KEY, 1), options)]
    assert raised.value.path == file.path


def test_long_texts_behind_few_bytes_are_read_bit_by_bit(tmp_path: Path) -> None:
    """A dictionary hides them from the file's size: no table has more than is read at once, and all rows are there."""
    options = with_limits(options_of(tmp_path), decoded_bytes=1)
    some = rows(options, 0, 3)
    long = some.set_column(0, options.arrow_schema.field(0), texts_of([f"{i % 3}" * 20_000 for i in range(200)]))
    (file,) = stored(options, long)
    tables = [*read_inputs(MergeTask((file,), KEY, 1), options)]
    assert max(table.nbytes for table in tables) <= 100_000 < 200 * 20_000
    assert [row for table in tables for row in table["few"].to_pylist()] == long["few"].to_pylist()


@pytest.mark.parametrize(("width", "least", "most"), [(10_000, 5, 10), (1, 3_500, 4_500)])
def test_batches_are_cut_by_bytes(tmp_path: Path, width: int, least: int, most: int) -> None:
    """Wide rows come few at a time, narrow ones many: about `Limits.batch_bytes`, but for the last ones."""
    options = with_limits(options_of(tmp_path), batch_bytes=100_000, decoded_bytes=1)
    some = rows(options, 0, count=10_000 if width == 1 else 50)
    many = texts_of([f"{i % 10}" * width for i in range(some.num_rows)])
    (file,) = stored(options, some.set_column(1, options.arrow_schema.field(1), many), use_dictionary=False)
    counts = [table.num_rows for table in read_inputs(MergeTask((file,), KEY, 1), options)]
    assert sum(counts) == some.num_rows
    assert all(least <= count <= most for count in counts[:-1])
    assert len(counts) > 1


DELTA_AFTER_DICTIONARY = "arrow-rs-delta-after-dictionary.parquet"
"""2,000 rows by arrow-rs, writer version 2: DELTA_BYTE_ARRAY follows a dictionary of 2,000 bytes."""


def test_texts_whose_dictionary_gave_way_to_deltas_are_read_as_plain_values(tmp_path: Path) -> None:
    """pyarrow reads such pages, but not as a dictionary, and so few bytes look like few values."""
    path = Path(__file__).parents[2] / "fixtures" / "writers" / DELTA_AFTER_DICTIONARY
    options = with_limits(options_of(tmp_path), whole_file_bytes=2**20)
    file = FileFact(str(path), path.stat().st_size, 2_000, KEY)
    found = pa.concat_tables(read_inputs(MergeTask((file,), KEY, 1), options))
    assert found["few"].to_pylist() == [f"customer-{i:012d}" for i in range(2_000)]
    assert pq.read_table(merged(options, (file, file))[0]).num_rows == 4_000


CATEGORIES = pa.dictionary(pa.int8(), pa.string())


@pytest.mark.parametrize("whole_file_bytes", [1, 2**30])
def test_files_of_pandas_categories_are_merged(tmp_path: Path, whole_file_bytes: int) -> None:
    """Each has up to 128 values, as many as its indices of 8 bits can number; all together have more."""
    options = with_limits(options_of(tmp_path), whole_file_bytes=whole_file_bytes, decoded_bytes=2**20)
    tables = [
        rows(options, at, 100).set_column(1, "many", texts_of([f"{at} {i % 100}" for i in range(200)]))
        for at in (0, 500, 900)
    ]
    columns = [
        pa.field(f.name, CATEGORIES if f.name == "many" else f.type, metadata=f.metadata) for f in options.arrow_schema
    ]
    files = stored(options, *(table.cast(pa.schema(columns)) for table in tables), store_schema=True)
    path, _ = merged(options, files)
    assert pq.read_table(path)["many"].to_pylist() == [value for table in tables for value in table["many"].to_pylist()]


def nested_options(folder: Path) -> WriteSettings:
    """A table with texts within a struct, whose files are read a hundred kilobytes at a time."""
    schema = schema_of(("event", StructType(NestedField(11, "agent", StringType()))), ("id", LongType()))
    return with_limits(settings_of(folder, schema), whole_file_bytes=100_000, batch_bytes=50_000, decoded_bytes=200_000)


def nested_rows(options: WriteSettings, first: int, count: int = 400, distinct: int = 4) -> pa.Table:
    """Rows of few texts of 2,000 characters each."""
    events = [{"agent": f"{first + i % distinct:09}" * 222} for i in range(count)]
    return pa.table([events, range(first, first + count)], schema=options.arrow_schema)


@pytest.mark.parametrize("sizes", [True, False])
@pytest.mark.parametrize("encoding", ["dictionary", "DELTA_BYTE_ARRAY"])
def test_long_texts_within_structs_are_read_bit_by_bit(tmp_path: Path, sizes: bool, encoding: str) -> None:
    """They are read as plain values, which few pages hold: a fourth of them is in memory at once, whether the footer
    states their size or not."""
    options = nested_options(tmp_path)
    table = nested_rows(options, 0, 2_000)
    how: dict[str, Any] = (
        {"use_dictionary": True}
        if encoding == "dictionary"
        else {"use_dictionary": False, "column_encoding": {"event.agent": encoding}}
    )
    (file,) = stored(options, table, **how)
    if not sizes:
        remove_sizes(Path(file.path))
        file = replace(file, size_bytes=Path(file.path).stat().st_size)
    before, pool = pa.default_memory_pool(), pa.proxy_memory_pool(pa.system_memory_pool())
    pa.set_memory_pool(pool)
    try:
        found = [row for each in read_inputs(MergeTask((file,), KEY, 1), options) for row in each.to_pylist()]
    finally:
        pa.set_memory_pool(before)
    assert pool.max_memory() < 2_000 * 2_000 / 4
    assert found == table.to_pylist()


def remove_sizes(path: Path) -> None:
    """Write the footer without SizeStatistics, as older writers leave it."""
    path.write_bytes(
        edited(path.read_bytes(), lambda tree: [c.pop(16, None) for group in tree.metadata for c in group])
    )


def test_one_long_text_among_short_ones_leaves_batches_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row may have the long text as far as the footer shows; a batch of them is no more than is read at once."""
    options = nested_options(tmp_path)
    events = [{"agent": "x" * 1_000 if i == 77 else f"tag {i % 5}"} for i in range(3_000)]
    (file,) = stored(options, pa.table([events, range(3_000)], schema=options.arrow_schema), use_dictionary=True)
    remove_sizes(Path(file.path))
    file = replace(file, size_bytes=Path(file.path).stat().st_size)
    monkeypatch.setattr(inputs, "RUN_SHARE", 0)
    tables = [*read_inputs(MergeTask((file,), KEY, 1), options)]
    assert 75 < max(table.num_rows for table in tables) <= 100_000 // 1_000
    assert [event for table in tables for event in table["event"].to_pylist()] == events


def test_a_column_that_is_too_large_to_hold_is_not_encoded_again_as_a_whole(tmp_path: Path) -> None:
    """Its dictionaries differ, and its values take more memory than a row group may: rows are decoded a few
    at a time instead."""
    options = nested_options(tmp_path)
    files = stored(
        options, *(nested_rows(options, at, distinct=300) for at in (0, 400)), use_dictionary=["event.agent"]
    )
    group = MergeTask(files, KEY, 1)
    large = replace(options, limits=replace(SMALL, good_group_rows=10**6))
    assert merge(group, large, FileNames("t1", 0, 0)).bytes_copied > 0
    small = replace(options, limits=replace(large.limits, decoded_bytes=200_000))
    done = merge(group, small, FileNames("t2", 0, 0))
    assert (done.bytes_copied, sum(file.rows for file in done.files)) == (0, 800)


@pytest.mark.parametrize("whole", [2**30, 1_000])
def test_categories_in_pages_of_deltas_are_merged(tmp_path: Path, whole: int) -> None:
    """The Arrow schema of a file asks for dictionaries, and pyarrow makes none of its pages: they are plain texts."""
    options = with_limits(options_of(tmp_path), whole_file_bytes=whole)
    data = rows(options, 0)
    texts = data["few"].cast(pa.string()).dictionary_encode()
    coded = data.set_column(0, data.schema.field("few").with_type(texts.type), texts)
    how = {"use_dictionary": False, "column_encoding": {"few": "DELTA_BYTE_ARRAY"}, "store_schema": True}
    (deltas,) = stored(options, coded, **how)
    with pytest.raises(OSError, match="DictAccumulator"):
        pq.read_table(deltas.path)
    path, _ = merged(options, (deltas, *stored(options, rows(options, 200))))
    assert sorted(pq.read_table(path, columns=["id", "few"]).to_pylist(), key=lambda row: row["id"]) == [
        {"id": row["id"], "few": row["few"]} for at in (0, 200) for row in rows(options, at).to_pylist()
    ]


def test_categories_of_a_file_with_damaged_size_statistics_are_refused(tmp_path: Path) -> None:
    """The footer is read for them without pyarrow, which ends the process at a histogram of another length."""
    options = options_of(tmp_path)
    data = rows(options, 0)
    texts = data["few"].cast(pa.string()).dictionary_encode()
    (file,) = stored(options, data.set_column(0, data.schema.field("few").with_type(texts.type), texts))
    path = Path(local(file.path))
    four_zeros = {SizeStatistics.REPETITION_LEVEL_HISTOGRAM: (LIST, b"\x46\x00\x00\x00\x00")}
    histogram = {ColumnMetaData.SIZE_STATISTICS: struct_field(four_zeros)}
    path.write_bytes(edited(path.read_bytes(), lambda tree: tree.metadata[0][0].update(histogram)))
    damaged = replace(file, size_bytes=path.stat().st_size)
    with pytest.raises(RewriteFailed, match="Repetition level histogram size mismatch") as refused:
        merged(options, (damaged, *stored(options, rows(options, 200))))
    assert refused.value.path == file.path
