"""Merges of whole tables of many columns: every row is what it was to three readers, whatever way its columns went."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, seed, settings
from numpy.typing import NDArray
from pyiceberg.conversions import from_bytes
from pyiceberg.types import LongType

from icesize.parquet.files.data_file import CopiedFile, FinishedFile, MergeResult
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import LocalSource
from icesize.parquet.rewriting.merge import merge
from icesize.parquet.verify.file import verify_file
from icesize.planning.plan import MergeTask
from tests.support.copying import KEY, MERGED
from tests.support.parquet_files import fact, local
from tests.support.whole_tables import (
    COLUMNS,
    LIMITS,
    ROW,
    WHOLE_ROWS,
    Stored,
    WholeTable,
    Writer,
    settings_of_table,
    store,
    whole_tables,
    without_deleted,
)

WAYS = ("whole", "pages", "encoded again", "decoded", "decoded beside copied")
"""What becomes of files and columns."""


def merged(folder: Path, table: WholeTable) -> tuple[MergeResult, list[Stored]]:
    """Merge all files of a table, and what came out once more; each time the rows are held against those before."""
    options = settings_of_table(table, folder)
    inputs = without_deleted(table, store(table, options), options)
    done = merge_checked(options, inputs, table.outputs)
    if table.again and done.files:
        merge_checked(options, [of_output(options, file) for file in done.files], 1)
    return done, inputs


def merge_checked(options: WriteSettings, inputs: Sequence[Stored], outputs: int) -> MergeResult:
    """Merge some files, and hold what came out against what went in."""
    done = merge(MergeTask(tuple(file.fact for file in inputs), KEY, outputs), options, MERGED)
    assert done.rows_out == sum(file.rows.num_rows for file in inputs)
    assert done.bytes_copied + done.bytes_decoded <= sum(file.fact.size_bytes for file in inputs)
    paths = [local(file.path) for file in done.files]
    for path, file in zip(paths, done.files, strict=True):
        found = verify_file(LocalSource(path), "merged")
        assert (found.problems, found.rows) == ((), file.rows)
        if isinstance(file, CopiedFile) and file.has_bounds:
            check_bounds(path, file)
    if paths:
        order = check_rows(paths, inputs)
        # files of which all columns are encoded again have no byte copied and are not decoded
        mixed = done.rows_deleted or sum(done.decode_reasons.values()) < len(inputs)
        check_order(order, inputs, 4 * len(paths) if mixed else 1)
    return done


def check_bounds(path: str, file: FinishedFile) -> None:
    """Rows have the least and the greatest number that the file tells of, if it does: Spark answers with them."""
    numbers = pq.read_table(path, columns=[ROW]).column(ROW).to_pylist()
    for bounds, real in ((file.lower_bounds, min(numbers)), (file.upper_bounds, max(numbers))):
        assert 1 not in bounds or from_bytes(LongType(), bounds[1]) == real


def of_output(options: WriteSettings, file: FinishedFile) -> Stored:
    """An output as the input file of another merge."""
    rows, footer = pq.read_table(local(file.path)), pq.read_metadata(local(file.path))
    groups = tuple(footer.row_group(i).num_rows for i in range(footer.num_row_groups))
    return Stored(fact(file), rows.cast(options.arrow_schema), groups)


def check_rows(paths: Sequence[str], inputs: Sequence[Stored]) -> NDArray[np.int64]:
    """All rows are there, to pyarrow and to DuckDB; for each one its place among those of the input files."""
    before = pa.concat_tables(file.rows for file in inputs)
    of_each = [pq.read_table(path) for path in paths]
    numbers = np.concatenate([rows.column(ROW).to_numpy() for rows in of_each])
    places = dict(zip(before.column(ROW).to_pylist(), range(before.num_rows), strict=True))
    order = np.array([places[number] for number in numbers.tolist()], dtype=np.int64)
    assert np.array_equal(np.sort(order), np.arange(before.num_rows))
    expected = before.take(pa.array(order))
    assert differing(expected, pa.concat_tables(rows.cast(expected.schema) for rows in of_each)) == []
    check_duckdb(expected, paths)
    return order


def check_order(order: NDArray[np.int64], inputs: Sequence[Stored], runs: int) -> None:
    """Rows of a row group follow each other, and row groups are in their order but for so many runs of them: each
    output has what is copied whole, what is made of pages, and what was decoded."""
    counts = [count for file in inputs for count in file.groups if count]
    where = np.argsort(order)
    starts = [0, *np.cumsum(counts).tolist()]
    for start, end in pairwise(starts):
        assert np.all(np.diff(where[start:end]) == 1)
    group_order = np.argsort(where[starts[:-1]])
    assert 1 + int(np.sum(np.diff(group_order) < 0)) <= runs


def differing(expected: pa.Table, found: pa.Table) -> list[str]:
    """The columns that do not have the same values."""
    assert found.num_rows == expected.num_rows
    return [name for name in expected.column_names if not same(expected.column(name), found.column(name))]


def same(expected: pa.ChunkedArray, found: pa.ChunkedArray) -> bool:
    """Whether all values are equal: NaN to itself, and -0.0 not to 0.0."""
    kind = expected.type
    if pa.types.is_nested(kind) or pa.types.is_floating(kind):
        return repr(expected.to_pylist()) == repr(found.to_pylist())
    return bool(expected.equals(found.cast(kind)))


@cache
def duckdb_connection() -> Any:
    """One for all tests, on one core."""
    duckdb = pytest.importorskip("duckdb")
    return duckdb.connect(config={"threads": 1})


def check_duckdb(expected: pa.Table, paths: Sequence[str]) -> None:
    """DuckDB reads the same, and finds what it looks for by statistics, too."""
    read = duckdb_connection().execute("select * from read_parquet(?)", [list(paths)]).to_arrow_table()
    assert differing(expected, read) == []
    for name in expected.column_names:
        values = expected.column(name).drop_null()
        if pa.types.is_nested(values.type) or pa.types.is_floating(values.type) or not len(values):
            continue
        value = values[len(values) // 2]
        asked = "select count(*) from read_parquet($paths) where " + f'"{name}" = $value'
        counted = duckdb_connection().execute(asked, {"paths": list(paths), "value": value.as_py()}).fetchone()[0]
        assert (name, counted) == (name, pc.sum(pc.equal(values, value)).as_py())


def ways(done: MergeResult, inputs: Sequence[Stored]) -> set[str]:
    """Which ways files and columns went."""
    found = {
        "whole": done.bytes_copied and not done.pages_copied,
        "pages": done.pages_copied,
        "encoded again": done.bytes_copied and done.bytes_decoded and not done.decode_reasons,
        "decoded": done.decode_reasons and not done.bytes_copied,
        "decoded beside copied": done.decode_reasons and done.bytes_copied,
    }
    return {way for way, happened in found.items() if happened}


def table_of(how: str, *files: Writer, names: Sequence[str] = tuple(COLUMNS), **others: Any) -> WholeTable:
    """A table whose columns have such dictionaries."""
    return WholeTable(dict.fromkeys(names, how), files, **others)


def files_of(*rows: int, **how: Any) -> tuple[Writer, ...]:
    """Files of so many rows."""
    return tuple(Writer(count, seed=count + at, **how) for at, count in enumerate(rows))


_THREE = files_of(300, 200, 250)
_AGAIN = replace(LIMITS, least_chunk_bytes=1)
"""Columns are encoded again however few the bytes of the others are."""
_LATE = Writer(300, 9, options={"dictionary_pagesize_limit": 600, "data_page_size": 500})
"""A file whose longer dictionaries are given up after some pages."""
_PLAIN = ("comment", "key", "price", "total", "at", "local", "mark")
EXAMPLES: dict[str, tuple[WholeTable, set[str]]] = {
    "the same dictionaries": (table_of("same", *_THREE), {"pages"}),
    "dictionaries that begin alike": (table_of("prefix", *_THREE, limits=_AGAIN), {"pages", "encoded again"}),
    "no dictionaries": (table_of("none", *_THREE), {"pages"}),
    "different dictionaries": (table_of("different", *_THREE, limits=_AGAIN), {"pages", "encoded again"}),
    "different ones in small pages": (
        table_of("different", *files_of(300, 200, options={"max_rows_per_page": 33, "write_page_checksum": True})),
        {"pages", "encoded again"},
    ),
    "different ones in pages of both versions": (
        table_of("different", Writer(200, 1), Writer(200, 2, options={"data_page_version": "2.0"}), names=_PLAIN),
        {"pages", "encoded again"},
    ),
    "few columns with different ones": (
        replace(table_of("none", *_THREE), columns={**dict.fromkeys(_PLAIN, "none"), "mode": "different"}),
        {"pages", "encoded again"},
    ),
    "many columns with different ones": (
        table_of("different", *_THREE, limits=_AGAIN, nulls=0.6),
        {"pages", "encoded again"},
    ),
    "many columns with different ones beside few bytes": (
        table_of("different", *_THREE, limits=replace(LIMITS, least_chunk_bytes=1_000)),
        {"decoded"},
    ),
    "one given up in the last file": (
        table_of("same", *_THREE, _LATE, names=_PLAIN, distinct=150, nulls=0.0),
        {"pages", "encoded again"},
    ),
    "different ones, one given up in the last file": (
        table_of("different", *_THREE, _LATE, names=_PLAIN, distinct=150, nulls=0.0),
        {"pages", "encoded again"},
    ),
    "one given up in the first file": (
        table_of("same", _LATE, *_THREE, names=_PLAIN, distinct=150, nulls=0.0),
        {"pages", "encoded again"},
    ),
    "large row groups": (table_of("different", *files_of(WHOLE_ROWS, 2 * WHOLE_ROWS)), {"whole"}),
    "a column of nulls only in one file": (
        table_of("different", *files_of(300, 200), *files_of(250, empty=frozenset(COLUMNS) - {"key"}), limits=_AGAIN),
        {"pages", "encoded again"},
    ),
    "files of few rows and of none": (
        table_of("same", *_THREE, *files_of(0, 1, 9)),
        {"pages", "decoded beside copied"},
    ),
    "required columns": (
        table_of("different", *files_of(300, 200, strict=True), nulls=0.0, limits=_AGAIN),
        {"pages", "encoded again"},
    ),
    "columns required in one file": (
        table_of("same", *_THREE, *files_of(200, strict=True), names=_PLAIN, nulls=0.0),
        {"pages", "encoded again"},
    ),
    "nested columns required in one file": (
        table_of("same", *_THREE, *files_of(200, strict=True), nulls=0.0),
        {"pages", "decoded beside copied"},
    ),
}
"""Tables, and the ways that they go."""


@pytest.mark.parametrize("deleted", ["a run", "a row group"])
def test_bounds_are_those_of_rows_that_are_not_deleted(tmp_path: Path, deleted: str) -> None:
    """The first rows are deleted, or others: nothing says that they are there."""
    table = table_of("same", *files_of(300, 200, 250, options={"row_group_size": 100}), deleted=deleted, limits=_AGAIN)
    done, _ = merged(tmp_path, table)
    assert (done.rows_deleted, bool(done.bytes_copied)) == ({"a run": 150, "a row group": 100}[deleted], True)
    (file,) = done.files
    assert file.has_bounds
    assert from_bytes(LongType(), file.lower_bounds[1]) == (0 if deleted == "a run" else 100)


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_way_is_gone(tmp_path: Path, name: str) -> None:
    """What is made for one way goes that way and no other, and keeps all rows."""
    table, expected = EXAMPLES[name]
    done, inputs = merged(tmp_path, table)
    assert ways(done, inputs) == expected
    assert set().union(*(ways for _, ways in EXAMPLES.values())) == set(WAYS)


def check(tmp_path_factory: pytest.TempPathFactory, examples: int, number: int = 0) -> Counter[str]:
    """Merge so many tables; how often each way was gone, and why files were decoded."""
    seen = Counter[str]()

    @seed(number)
    @settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(whole_tables())
    def each(table: WholeTable) -> None:
        done, inputs = merged(tmp_path_factory.mktemp("table"), table)
        seen.update([*ways(done, inputs), *done.decode_reasons])

    each()
    return seen


@pytest.mark.parametrize("examples", [20, pytest.param(50, marks=pytest.mark.engine)])
def test_rows_of_whole_tables_stay(tmp_path_factory: pytest.TempPathFactory, examples: int) -> None:
    """Types, dictionaries, writers, pages, nulls and required columns in any combination, by most ways."""
    seen = check(tmp_path_factory, examples, 4)
    assert [way for way in ("pages", "whole", "decoded") if not seen[way]] == []


@pytest.mark.slow
@pytest.mark.parametrize("number", range(1, 6))
def test_rows_of_five_thousand_whole_tables_stay(tmp_path_factory: pytest.TempPathFactory, number: int) -> None:
    """The same with more tables; each way is among them."""
    seen = check(tmp_path_factory, 1_000, number)
    codes = ("codec", "dictionaries", "schema-differs", "schema-evolved", "tiny")
    assert [name for name in (*WAYS, *codes) if not seen[name]] == []
