"""cluster: the rows of a partition in another order, all of them, with bounds that tell where they are."""

from __future__ import annotations

import errno
import math
import random
import struct
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.conversions import from_bytes
from pyiceberg.schema import Schema
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, StringType

from icesize import failpoints
from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import MergeFailure, MergeResult, NewDataFile
from icesize.parquet.files.names import FileNames, set_of, set_prefix, writer_of
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.cluster import TooLarge, cluster_in_threads, write_clustered
from icesize.parquet.writing.encoding import encoded_bytes
from icesize.parquet.writing.sorted_files import SortedFiles, Target
from icesize.planning.cluster_by import HILBERT, SORT, STRATEGIES, ZORDER, ClusterBy
from icesize.planning.file_sizes import merged_files
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.copying import content, spelt_rows
from tests.support.examples import examples
from tests.support.merge_cases import COLUMNS, Case, Coverage, Made, check_metrics, rows_of
from tests.support.parquet_files import (
    NAMES,
    REMOTE,
    fact,
    files_below,
    local,
    schema_of,
    settings_of,
    with_limits,
    write_one,
)
from tests.support.sort_values import ASC, FIRST, python_key, sorted_by

KEY = PartitionKey(0)
EVENTS = schema_of(("user", LongType()), ("at", LongType()), ("text", StringType()), ("value", DoubleType()))
PLAIN = python_key(ASC, FIRST)


def order_by(options: WriteSettings, *columns: str, strategy: str = SORT) -> RowOrder:
    """The order of a layout by these columns."""
    ids = tuple(options.schema.find_field(column).field_id for column in columns)
    return RowOrder.of(ClusterBy(columns, ids, strategy, 2**40), options)


def events(count: int, seed: int = 0, users: int = 500, heavy: float = 0.0) -> pa.Table:
    """Rows of EVENTS, `at` unique among those of a seed; `heavy` is the share of the rows that user 7 has."""
    chance = random.Random(seed)
    return pa.table(
        {
            "user": pa.array([7 if chance.random() < heavy else chance.randrange(users) for _ in range(count)]),
            "at": pa.array(chance.sample(range(seed * 10**7, (seed + 1) * 10**7), count)),
            "text": pa.array([chance.randbytes(8).hex() for _ in range(count)], pa.large_string()),
            "value": pa.array([chance.random() for _ in range(count)]),
        }
    )


def stored(options: WriteSettings, tables: Sequence[pa.Table]) -> tuple[FileFact, ...]:
    """One file for each table, its rows in their order."""
    unsorted = replace(options, target_file_size_bytes=2**30, sort_order_json="")
    return tuple(fact(write_one(unsorted, rows), number) for number, rows in enumerate(tables, 4))


def table_of(options: WriteSettings, files: Sequence[NewDataFile]) -> pa.Table:
    """The rows of files, one file after the other."""
    return pa.concat_tables([pq.read_table(local(file.path)) for file in files])


def bounds(options: WriteSettings, file: NewDataFile, name: str) -> tuple[Any, Any]:
    """Lowest and highest value of a column as manifests say."""
    column = options.schema.find_field(name)
    return (
        from_bytes(column.field_type, file.lower_bounds[column.field_id]),
        from_bytes(column.field_type, file.upper_bounds[column.field_id]),
    )


def in_passes(options: WriteSettings, tables: Sequence[pa.Table], passes: float) -> WriteSettings:
    """Settings with which these rows need about so many passes."""
    sorted_bytes = max(1, int(sum(t.nbytes for t in tables) / passes)) + 64
    scattered_bytes, decoded_bytes = sorted_bytes // 4, sorted_bytes  # of which runs of small files have a part
    return with_limits(options, sorted_bytes=sorted_bytes, scattered_bytes=scattered_bytes, decoded_bytes=decoded_bytes)


def clustered(
    options: WriteSettings, tables: Sequence[pa.Table], order: RowOrder, outputs: int, passes: float = 0.5
) -> MergeResult:
    """Rows written as one file for each table, and clustered."""
    facts = stored(options, tables)
    return write_clustered(MergeTask(facts, KEY, outputs), order, in_passes(options, tables, passes), NAMES)


@pytest.mark.parametrize("passes", [0.5, 2.5])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_all_rows_of_every_type_come_out(tmp_path: Path, strategy: str, passes: float) -> None:
    """Nested columns, nulls and NaN go with their rows; counts and bounds are those of the rows in each file."""
    options = settings_of(tmp_path, schema_of(*((name, kind) for name, (kind, _) in COLUMNS.items())), target=8_000)
    case = Case(list(COLUMNS), False, {}, [], 1, False)
    tables = [
        rows_of(case, Made(rows, seed, 0.2, True, {}, {}, "all", False, False), options.arrow_schema)
        for seed, rows in enumerate([300, 1, 500])
    ]
    done = clustered(options, tables, order_by(options, "number", "money", "raw", strategy=strategy), 3, passes)
    assert len(done.files) == 3
    assert content([file.path for file in done.files]) == Counter(s for t in tables for s in spelt_rows(t))
    seen = Coverage()
    for file in done.files:
        check_metrics(options, file, seen)
    assert min(seen.count["bounds"], seen.count["nan counts"]) > 0
    assert (done.rows_in, done.rows_out) == (801, 801)
    assert done.bytes_decoded == sum(f.size_bytes for f in done.inputs) > 0
    assert {(file.sequence_number, file.partition, file.sort_order_id) for file in done.files} == {(6, KEY, None)}


_KEYS = ["id", "small", "kind", "text", "number", "money", "large", "at", "day", "clock", "flag", "raw", "mark"]


@examples(15)
@given(
    keys=st.lists(st.sampled_from(_KEYS), min_size=1, max_size=3, unique=True),
    strategy=st.sampled_from(STRATEGIES),
    counts=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    seed=st.integers(0, 10**6),
    nulls=st.sampled_from([0.0, 0.3, 1.0]),
    outputs=st.integers(1, 4),
    passes=st.sampled_from([0.5, 1.2, 1.9]),
)
def test_any_rows_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    keys: list[str],
    strategy: str,
    counts: list[int],
    seed: int,
    nulls: float,
    outputs: int,
    passes: float,
) -> None:
    """No row is lost, doubled or changed, however many files and passes; a sort is what plain Python makes of it."""
    columns = [*keys, *(name for name in ("items", "part") if name not in keys)]
    options = settings_of(tmp_path_factory.mktemp("case"), schema_of(*((c, COLUMNS[c][0]) for c in columns)), target=1)
    case = Case(columns, False, {}, [], 1, False)
    tables = [
        rows_of(case, Made(rows, seed + i, nulls, seed % 2 == 0, {}, {}, "all", False, False), options.arrow_schema)
        for i, rows in enumerate(counts)
    ]
    done = clustered(options, tables, order_by(options, *keys, strategy=strategy), outputs, passes)
    found = table_of(options, done.files)
    assert Counter(spelt_rows(found)) == Counter(s for t in tables for s in spelt_rows(t))
    assert 1 <= len(done.files) <= outputs
    if strategy == SORT:
        rows = [tuple(row[key] for key in keys) for row in found.select(keys).to_pylist()]
        assert repr(rows) == repr(sorted(rows, key=lambda row: [PLAIN(plain(value)) for value in row]))


def plain(value: Any) -> Any:
    """A value as Python compares it in Iceberg's order."""
    return value.encode() if isinstance(value, str) else value


@pytest.mark.parametrize("passes", [0.5, 2.7])
def test_sorted_files_of_equal_size_have_users_of_their_own(tmp_path: Path, passes: float) -> None:
    """Sizes differ by a fifth at most, row groups are equal, and no user is in two files; they say that they are
    sorted."""
    plain_options = settings_of(tmp_path, EVENTS, properties={"write.parquet.row-group-limit": "1500"}, target=45_000)
    options = sorted_by(plain_options, (1, "identity", ASC, FIRST), (2, "identity", ASC, FIRST))
    tables = [events(2_500, seed) for seed in range(5)]
    done = clustered(options, tables, order_by(options, "user", "at"), 5, passes)
    assert len(done.files) == 5
    sizes = [file.size_bytes for file in done.files]
    assert max(sizes) <= 1.2 * min(sizes)
    ranges = [bounds(options, file, "user") for file in done.files]
    assert all(one[1] < two[0] for one, two in pairwise(ranges))
    assert {file.sort_order_id for file in done.files} == {7}
    rows = table_of(options, done.files).select(["user", "at"]).to_pylist()
    assert rows == sorted(rows, key=lambda row: (row["user"], row["at"]))
    if passes < 1:
        for file in done.files:
            footer = pq.read_metadata(local(file.path))
            counts = [footer.row_group(i).num_rows for i in range(footer.num_row_groups)]
            assert len(counts) == 2
            assert abs(counts[0] - counts[1]) <= 1


@pytest.mark.parametrize("passes", [0.5, 2.7])
def test_a_heavy_user_is_divided_by_time(tmp_path: Path, passes: float) -> None:
    """Files of one user follow each other in time and have about the size of the others."""
    options = settings_of(tmp_path, EVENTS, target=30_000)
    tables = [events(2_500, seed, heavy=0.6) for seed in range(4)]
    done = clustered(options, tables, order_by(options, "user", "at"), 6, passes)
    sizes = [file.size_bytes for file in done.files]
    assert len(sizes) == 6
    assert max(sizes) <= 1.2 * min(sizes)
    times = [bounds(options, file, "at") for file in done.files if bounds(options, file, "user") == (7, 7)]
    assert len(times) >= 2
    assert all(one[1] < two[0] for one, two in pairwise(times))


@pytest.mark.parametrize("strategy", [ZORDER, HILBERT])
def test_curves_bound_both_columns(tmp_path: Path, strategy: str) -> None:
    """Four files of a square each leave half of it out, in one column at least."""
    options = settings_of(tmp_path, EVENTS, target=20_000)
    done = clustered(
        options,
        [events(4_000, users=10**6)],
        order_by(options, "user", "at", strategy=strategy),
        4,
    )
    for name, span in (("user", 10**6), ("at", 10**7)):
        widths = [high - low for low, high in (bounds(options, file, name) for file in done.files)]
        assert sum(widths) / len(widths) < 0.7 * span
    sizes = [file.size_bytes for file in done.files]
    assert len(sizes) == 4
    assert max(sizes) <= 1.2 * min(sizes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_passes_do_not_change_the_order(tmp_path: Path, strategy: str) -> None:
    """Rows read once, or a part of them at a time with files that go on from part to part, end up in as many files of
    the same sizes; sorted they are the same files."""
    options = settings_of(tmp_path, EVENTS, target=80_000)
    tables = [events(1_500, seed) for seed in range(4)]
    order = order_by(options, "user", "at", strategy=strategy)
    one = clustered(options, tables, order, 3)
    several = clustered(options, tables, order, 3, 3.6)
    assert [f.rows for f in several.files] == pytest.approx([f.rows for f in one.files], rel=0.1)
    assert sum(pq.read_metadata(local(f.path)).num_row_groups for f in several.files) > 3
    two = [table_of(options, done.files) for done in (one, several)]
    assert Counter(spelt_rows(two[0])) == Counter(spelt_rows(two[1]))
    if strategy == SORT:
        assert two[0].equals(two[1])


def test_larger_rows_of_some_users_make_no_larger_files(tmp_path: Path) -> None:
    """Where rows of high users are ten times as large, files are cut by bytes and not by rows."""
    options = settings_of(tmp_path, EVENTS, target=200_000)
    rows = events(20_000)
    chance = random.Random(1)
    texts = [chance.randbytes(80 if u > 400 else 8).hex() for u in rows.column("user").to_pylist()]
    rows = rows.set_column(2, "text", pa.array(texts, pa.large_string()))
    done = clustered(options, [rows], order_by(options, "user", "at"), 4)
    sizes = [file.size_bytes for file in done.files]
    assert len(sizes) == 4
    assert max(sizes) <= 1.2 * min(sizes)
    assert max(f.rows for f in done.files) > 3 * min(f.rows for f in done.files)


def wide_rows(first: int, widths: Sequence[int], seed: int = 0) -> pa.Table:
    """Rows of EVENTS in order of `user`, one for each width of its text, from this user on."""
    chance = random.Random(seed)
    return pa.table(
        {
            "user": pa.array(range(first, first + len(widths)), pa.int64()),
            "at": pa.array([chance.randrange(2**62) for _ in widths], pa.int64()),
            "text": pa.array([chance.randbytes(width).hex() for width in widths], pa.large_string()),
            "value": pa.array([chance.random() for _ in widths], pa.float64()),
        }
    )


@pytest.mark.parametrize("wide", [range(2_500), range(2_500, 5_000), range(1_500, 3_000)])
@pytest.mark.parametrize("limit", [50_000, 75_000])
def test_parts_of_other_density_make_no_small_and_no_large_files(tmp_path: Path, wide: range, limit: int) -> None:
    """Whether the large rows come first, last or between: as many files as the bytes need, none small, none of many
    times the target."""
    options = replace(settings_of(tmp_path, EVENTS, target=100_000), small_file_limit_bytes=limit)
    rows = wide_rows(0, [150 if user in wide else 1 for user in range(5_000)])
    places = list(range(5_000))
    random.Random(0).shuffle(places)
    mixed = rows.take(places)
    tables = [mixed.slice(i * 500, 500) for i in range(10)]
    planned = sum(input_file.size_bytes for input_file in stored(options, tables)) // 100_000
    done = clustered(options, tables, order_by(options, "user"), planned, 3.5)
    sizes = [file.size_bytes for file in done.files]
    assert planned - 1 <= len(sizes) <= planned
    assert limit <= min(sizes)
    assert max(sizes) <= 160_000
    assert table_of(options, done.files).cast(rows.schema).equals(rows)


_TARGET, _LIMIT = 24_000, 18_000


def in_parts(options: WriteSettings, parts: Sequence[pa.Table], outputs: int | None, told: bool) -> list[NewDataFile]:
    """Rows in order of `user` written part by part; `told` says whether the size of later parts is."""
    target, order = Target(KEY, sum(part.num_rows for part in parts), outputs, None, 1), order_by(options, "user")
    writing = SortedFiles(target, NewFiles(options, NAMES))
    for number, part in enumerate(parts, 1):
        keys = order.keys(part)
        later = sum(part.nbytes for part in parts[number:]) if told else None
        writing.write([part], order.fit(keys).arrange(keys), later_arrow_bytes=later)
    return writing.close()


@pytest.mark.parametrize(("large", "expected"), [(7, [567]), (28, [560, 28])])
def test_a_file_that_has_its_share_ends_before_rows_enough_for_another(
    tmp_path: Path, large: int, expected: list[int]
) -> None:
    """Few rows that are larger than expected follow a file of 1.4 x target: they get a file of their own unless it
    would be small."""
    options = replace(settings_of(tmp_path, EVENTS, target=_TARGET), small_file_limit_bytes=_LIMIT)
    parts = [wide_rows(0, [40] * 560), wide_rows(560, [1_000] * large)]
    files = in_parts(options, [part.cast(options.arrow_schema) for part in parts], None, told=False)
    assert [file.rows for file in files] == expected


@examples(15)
@given(
    parts=st.lists(st.tuples(st.integers(1, 800), st.integers(4, 120)), min_size=1, max_size=5),
    spare=st.none() | st.integers(0, 3),
    told=st.booleans(),
)
def test_parts_of_any_density_make_files_near_the_target(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, int]], spare: int | None, told: bool
) -> None:
    """All rows in order, in no more files than planned. None but the last is small, and that only where the size of
    later rows was not told; then none is much above the target either, if more could be written."""
    folder = tmp_path_factory.mktemp("case")
    options = replace(settings_of(folder, EVENTS, target=_TARGET), small_file_limit_bytes=_LIMIT)
    tables, first = [], 0
    for rows, width in parts:
        tables.append(wide_rows(first, [width] * rows, first).cast(options.arrow_schema))
        first += rows
    everything = pa.concat_tables(tables)
    planned = merged_files(encoded_bytes(everything, options), _TARGET, _LIMIT) + (spare or 0)
    files = in_parts(options, tables, None if spare is None else planned, told)
    assert table_of(options, files).cast(everything.schema).equals(everything)
    sizes = [file.size_bytes for file in files]
    assert spare is None or len(files) <= planned
    assert all(size >= _LIMIT for size in sizes[:-1])
    if told and len(sizes) > 1:
        assert sizes[-1] >= _LIMIT
    if told and spare != 0:
        assert max(sizes) <= 1.7 * _TARGET


def test_rows_that_compress_better_in_order_become_fewer_files(tmp_path: Path) -> None:
    """No file falls below the small file limit because texts that were apart are together now."""
    options = replace(settings_of(tmp_path, EVENTS, target=200_000), small_file_limit_bytes=150_000)
    chance = random.Random(1)
    texts = [chance.randbytes(400).hex() for _ in range(500)]
    rows = events(4_000)
    rows = rows.set_column(2, "text", pa.array([texts[u] for u in rows.column("user").to_pylist()], pa.large_string()))
    done = clustered(options, [rows.slice(i * 200, 200) for i in range(20)], order_by(options, "user"), 8)
    assert sum(f.size_bytes for f in done.inputs) > 1_000_000
    assert 1 <= len(done.files) < 4
    assert all(file.size_bytes > 150_000 for file in done.files)


def test_long_texts_with_equal_beginnings_are_told_apart(tmp_path: Path) -> None:
    """Rows are in order beyond the sixteen characters that bounds have."""
    options = settings_of(tmp_path, EVENTS, target=1)
    rows = events(3_000)
    texts = [f"a prefix that is the same {i * 7_919 % 3_000:06d}" for i in range(3_000)]
    rows = rows.set_column(2, "text", pa.array(texts, pa.large_string()))
    done = clustered(options, [rows], order_by(options, "text"), 3)
    assert table_of(options, done.files).column("text").to_pylist() == sorted(texts)
    assert len(done.files) == 3
    assert {bounds(options, file, "text")[0] for file in done.files} == {"a prefix that is"}


@pytest.mark.parametrize("passes", [0.5, 2.5])
def test_files_of_older_schemas_are_read_as_the_table_s(tmp_path: Path, passes: float) -> None:
    """A renamed key keeps its values; a key that was added later is null in older files, whose rows come first."""
    options = settings_of(tmp_path, EVENTS, target=20_000)
    older = stored(options, [events(1_000)])
    fields = [*EVENTS.fields, NestedField(5, "raw", BinaryType(), required=False)]
    fields[0] = fields[0].model_copy(update={"name": "who"})
    newer = replace(options, schema_json=Schema(*fields, schema_id=1).model_dump_json(), schema_id=1)
    rows = events(1_000, 1).rename_columns(["who", "at", "text", "value"])
    rows = rows.append_column("raw", pa.array([bytes([i % 251]) for i in range(1_000)], pa.large_binary()))
    inputs = (*older, *stored(newer, [rows]))
    limited = in_passes(newer, [rows, rows], passes)
    done = write_clustered(MergeTask(inputs, KEY, 4), order_by(newer, "raw", "who"), limited, NAMES)
    found = table_of(newer, done.files)
    assert found.schema.names == ["who", "at", "text", "value", "raw"]
    assert found.column("raw").null_count == found.slice(0, 1_000).column("raw").null_count == 1_000
    keys = [(row["raw"] or b"", row["who"]) for row in found.to_pylist()]
    assert keys == sorted(keys)
    assert Counter(found.column("at").to_pylist()) == Counter(
        [*events(1_000).column("at").to_pylist(), *rows.column("at").to_pylist()]
    )


def test_nan_in_a_later_part_is_known_before_the_file_is_begun(tmp_path: Path) -> None:
    """A file that goes on from part to part counts NaN that comes late, and has no statistics that hide it.

    Its bounds are those of the other values.
    """
    options = settings_of(tmp_path, EVENTS)
    rows = events(3_000)
    values = [math.nan if user == 499 else 0.5 for user in rows.column("user").to_pylist()]
    rows = rows.set_column(3, "value", pa.array(values))
    (file,) = clustered(options, [rows.slice(0, 1_500), rows.slice(1_500)], order_by(options, "user"), 1, 2.5).files
    assert file.nan_value_counts[4] == sum(map(math.isnan, values)) > 0
    assert file.lower_bounds[4] == file.upper_bounds[4] == struct.pack("<d", 0.5)
    footer = pq.read_metadata(local(file.path))
    assert footer.num_row_groups > 2
    assert not any(footer.row_group(i).column(3).is_stats_set for i in range(footer.num_row_groups))


def test_more_parts_than_allowed_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    """The limit is judged from the first rows; by bytes and by rows."""
    options = settings_of(tmp_path, EVENTS)
    tables = [events(1_000, seed) for seed in range(4)]
    task = MergeTask(stored(options, tables), KEY, 2)
    before = files_below(tmp_path)
    total = sum(t.nbytes for t in tables)
    for limits in ({"sorted_bytes": total // 5}, {"sorted_rows": 799}):
        with (
            failpoints.armed("writing", lambda: pytest.fail("a file was begun")),
            pytest.raises(TooLarge, match=r"ordered in [78] parts$"),
        ):
            write_clustered(task, order_by(options, "user"), with_limits(options, **limits), NAMES, most_parts=6)
    assert files_below(tmp_path) == before
    options = with_limits(options, sorted_rows=1_000)
    assert write_clustered(task, order_by(options, "user"), options, NAMES, most_parts=6).rows_out == 4_000


def largest_written(options: WriteSettings, task: MergeTask, order: RowOrder) -> tuple[MergeResult, int]:
    """The outcome of a clustering, and the Arrow bytes of the rows that were put in order together at most."""
    sizes: list[int] = []
    write = SortedFiles.write

    def noted(self: SortedFiles, tables: list[pa.Table], *more: Any) -> None:
        sizes.append(sum(table.nbytes for table in tables))
        write(self, tables, *more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SortedFiles, "write", noted)
        return write_clustered(task, order, options, NAMES), max(sizes)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_part_that_outgrows_its_memory_is_divided_again(tmp_path: Path, strategy: str) -> None:
    """Where a few users have most of the bytes their part is too large by far; what is held at once never is."""
    options = settings_of(tmp_path, EVENTS, target=1)
    rows = events(8_000)
    texts = ["x" * (1_000 if user > 400 else 1) for user in rows.column("user").to_pylist()]
    rows = rows.set_column(2, "text", pa.array(texts, pa.large_string()))
    tables = [rows.slice(i * 500, 500) for i in range(16)]
    task, order = MergeTask(stored(options, tables), KEY, 4), order_by(options, "user", "at", strategy=strategy)
    limited = in_passes(options, tables, 8)
    done, most = largest_written(limited, task, order)
    assert most <= limited.limits.sorted_bytes
    found = table_of(options, done.files)
    assert Counter(spelt_rows(found)) == Counter(s for t in tables for s in spelt_rows(t))
    if strategy == SORT:
        assert found.cast(rows.schema).equals(rows.sort_by([("user", "ascending"), ("at", "ascending")]))


@pytest.mark.parametrize("others", [[], [3], [9], [None, 3, 9]])
def test_equal_keys_of_more_rows_than_fit_are_in_order(tmp_path: Path, others: list[int | None]) -> None:
    """One value of nearly all rows is written piece by piece, and what comes before and behind it stays there."""
    options = sorted_by(settings_of(tmp_path, EVENTS, target=100_000), (1, "identity", ASC, FIRST))
    rows = events(9_000)
    users = pa.array([7] * (9_000 - len(others)) + others, pa.int64())
    rows = rows.set_column(0, "user", users)
    tables = [rows.slice(i * 1_000, 1_000) for i in range(9)]
    task = MergeTask(stored(options, tables), KEY, 3)
    limited = in_passes(options, tables, 9)
    done, most = largest_written(limited, task, order_by(options, "user"))
    assert most <= limited.limits.sorted_bytes
    found = table_of(options, done.files)
    assert Counter(spelt_rows(found)) == Counter(s for t in tables for s in spelt_rows(t))
    assert found.column("user").to_pylist() == sorted(users.to_pylist(), key=lambda user: -1 if user is None else user)
    assert {file.sort_order_id for file in done.files} == {7}
    assert 2 <= len(done.files) <= 3


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that wait need room; the error says where."""
    options = settings_of(tmp_path, EVENTS, target=1)
    tables = [events(1_000, seed) for seed in range(3)]
    task = MergeTask(stored(options, tables), KEY, 2)
    before = files_below(tmp_path)

    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with pytest.raises(RewriteFailed, match=r"Cannot spill rows to .*No space left on device.* SPARK_LOCAL_DIRS"):
        write_clustered(task, order_by(options, "user"), in_passes(options, tables, 3), NAMES)
    assert files_below(tmp_path) == before


@pytest.mark.internal_error
def test_a_bug_fails_its_group_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says that it is one of icesize, nothing of the group stays, and the others are clustered."""
    options = settings_of(tmp_path, EVENTS)
    groups = {n: MergeTask(stored(options, [events(100 + n)]), KEY, 1) for n in range(2)}
    before, right = files_below(tmp_path), SortedFiles.close

    def close(self: SortedFiles) -> list[NewDataFile]:
        files = right(self)
        if files[0].rows == 100:
            raise IndexError("list index out of range")
        return files

    monkeypatch.setattr(SortedFiles, "close", close)
    owner = Uncommitted(options.storage, "s1-0")
    found = cluster_in_threads(groups, {0: "k1o-1", 1: "k1o-2"}, order_by(options, "user"), options, owner)
    assert isinstance(found[0], MergeFailure)
    assert "internal error IndexError: list index out of range, report this" in found[0].why
    assert isinstance(found[1], MergeResult)
    assert len(files_below(tmp_path)) == len(before) + 1
    assert "Internal error of icesize in an attempt to cluster 1 files, report this" in caplog.text


def test_threads_cluster_groups_of_any_size(tmp_path: Path) -> None:
    """Small groups and those that do not fit into memory, under names of their own; a damaged one fails alone."""
    options = settings_of(tmp_path, EVENTS, target=30_000)
    counts = [1, 6, 2, 6]
    facts = [stored(options, [events(1_000, 10 * n + i) for i in range(count)]) for n, count in enumerate(counts)]
    groups = {n: MergeTask(inputs, KEY, 3) for n, inputs in enumerate(facts)}
    Path(local(facts[2][0].path)).write_bytes(b"no parquet")
    limited = with_limits(options, sorted_bytes=200_000, scattered_bytes=50_000)
    prefixes, heard = {n: f"k{n:08x}o-ab{n}" for n in groups}, list[int]()
    order = order_by(options, "user", "at")
    results = cluster_in_threads(
        groups, prefixes, order, limited, Uncommitted(options.storage, "s1-0"), progress=heard.append
    )
    assert sum(heard) == sum(group.size_bytes for group in groups.values())
    assert len(heard) > 2 * len(groups)
    assert isinstance(results.pop(2), MergeFailure)
    for n, done in results.items():
        assert isinstance(done, MergeResult)
        assert all(f"/{prefixes[n]}-" in file.path for file in done.files)
        rows = table_of(options, done.files).select(["user", "at"])
        assert rows.num_rows == counts[n] * 1_000
        assert rows.equals(rows.sort_by([("user", "ascending"), ("at", "ascending")]))


_MEMORY = """
import sys
from pathlib import Path
import numpy as np
import pyarrow as pa
from pyiceberg.types import DoubleType, LongType, StringType
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.parquet_files import NAMES, fact, schema_of, settings_of, with_limits, write_one
from tests.support.processes import peak_bytes
columns = {"user": LongType(), "at": LongType(), "text": StringType(), "value": DoubleType()}
options, mib = settings_of(Path(sys.argv[1]), schema_of(*columns.items())), 2**20
def rows(seed):
    drawn = np.random.default_rng(seed)
    texts = pa.array(np.char.zfill(drawn.integers(0, 10**6, 100_000).astype(str), 100), pa.large_string())
    numbers = [pa.array(drawn.integers(0, 10**9, 100_000)) for _ in range(2)]
    return pa.table([*numbers, texts, pa.array(drawn.random(100_000))], names=[*columns])
facts = tuple(fact(write_one(options, rows(seed)), seed) for seed in range(30))
limited = with_limits(
    options, sorted_bytes=16 * mib, scattered_bytes=8 * mib, whole_file_bytes=4 * mib, batch_bytes=mib
)
order = RowOrder.of(ClusterBy(("user", "at"), (1, 2), SORT, 2**40), options)
before = peak_bytes()
done = write_clustered(MergeTask(facts, PartitionKey(0), 4), order, limited, NAMES)
assert done.rows_out == 3_000_000
print(peak_bytes() - before)
"""


@pytest.mark.slow
def test_memory_is_bounded(tmp_path: Path) -> None:
    """3 million rows of 380 MB, ordered 16 MiB at a time, take less than 128 MiB of memory beside what is there."""
    code = [sys.executable, "-c", _MEMORY, str(tmp_path)]
    done = subprocess.run(code, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 128 * 2**20


@pytest.mark.parametrize("passes", [0.5, 2.5])
@pytest.mark.parametrize("damage", ["missing", "truncated", "flipped", "other rows"])
def test_a_damaged_input_file_is_named(tmp_path: Path, damage: str, passes: float) -> None:
    """The error has the input file's path, and no file stays."""
    options = settings_of(tmp_path, EVENTS, target=1)
    tables = [events(1_000, seed) for seed in range(3)]
    facts = list(stored(options, tables))
    path = Path(local(facts[1].path))
    data = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other rows":
        facts[1] = replace(facts[1], rows=999)
    else:
        path.write_bytes(data[: len(data) // 2] if damage == "truncated" else data[:200] + bytes(400) + data[600:])
    before = files_below(tmp_path)
    options = in_passes(options, tables, passes)
    with pytest.raises(RewriteFailed, match="check") as caught:
        write_clustered(MergeTask(tuple(facts), KEY, 2), order_by(options, "user"), options, NAMES)
    assert caught.value.path == facts[1].path
    assert files_below(tmp_path) == before


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_storage_that_fails_leaves_nothing(tmp_path: Path, error: BaseException) -> None:
    """An error while the second file is written removes both; storage's own is told as a failed rewrite."""
    options = settings_of(tmp_path, EVENTS, target=1)
    task = MergeTask(stored(options, [events(2_000)]), KEY, 3)
    before = files_below(tmp_path)
    groups: list[int] = []

    def fail() -> None:
        groups.append(len(files_below(tmp_path)))
        if len(groups) == 2:
            raise error

    expected = RewriteFailed if isinstance(error, OSError) else KeyboardInterrupt
    with failpoints.armed("writing", fail), pytest.raises(expected):
        write_clustered(task, order_by(options, "user"), options, NAMES)
    assert groups == [2, 3]
    assert files_below(tmp_path) == before


def test_remote_files_are_fetched_once_for_all_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first look each input file is asked for one time more, however often it is read."""
    options = replace(settings_of(tmp_path, EVENTS, target=1), io_properties=REMOTE)
    tables = [events(1_000, seed) for seed in range(3)]
    facts = stored(options, tables)
    asked: Counter[str] = Counter()
    fetch = type(options.storage).fetch

    def counted(self: Any, location: str) -> bytes:
        asked[location] += 1
        return fetch(self, location)

    monkeypatch.setattr(type(options.storage), "fetch", counted)
    options = in_passes(options, tables, 3.5)
    done = write_clustered(MergeTask(facts, KEY, 2), order_by(options, "user", "at"), options, NAMES)
    assert content([file.path for file in done.files]) == Counter(s for t in tables for s in spelt_rows(t))
    assert set(asked) == {f.path for f in facts}
    assert max(asked.values()) <= 2


def test_input_files_without_rows_leave_no_file(tmp_path: Path) -> None:
    """There is nothing to write."""
    options = settings_of(tmp_path, EVENTS)
    path = tmp_path / "data" / "empty.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table(events(0)).cast(options.arrow_schema), path)
    task = MergeTask((FileFact(str(path), path.stat().st_size, 0, KEY),), KEY, 2)
    assert write_clustered(task, order_by(options, "user"), options, NAMES).files == ()


_HEX = st.text("0123456789abcdef", min_size=8, max_size=8)


@given(key=_HEX, run=_HEX, group=st.integers(0, 70_000), full=st.booleans(), task=st.integers(0, 999))
def test_names_tell_the_set(key: str, run: str, group: int, full: bool, task: int) -> None:
    """What is put into a name is found in it, wherever the file lies; the task as well."""
    name = FileNames(set_prefix(key, run, group, full), task, 1).next()
    for path in (name, f"s3://b/t/data/day=2024/{name}"):
        found = set_of(path)
        assert found is not None
        assert (found[0], found[2]) == (key, full)
        assert found[1].startswith(run)
        assert int(found[1][len(run) :], 16) == group
        assert writer_of(path) == task


def test_other_names_tell_no_set() -> None:
    """Names of appends and merges, of other writers, and changed ones."""
    name = FileNames(set_prefix("0" * 8, "ab", 1, True), 0, 0).next()
    others = [FileNames("0f3a5b7c-7", 3, 0).next(), "00000-0-k12345678f-ab.parquet", f"x{name}", f"{name}.tmp", ""]
    assert [set_of(other) for other in others] == [None] * 5
    assert set_of(name) == ("0" * 8, "ab0001", True)
