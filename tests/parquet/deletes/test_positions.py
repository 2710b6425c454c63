"""Position deletes: each named row of each input once, and which files a delete file is about."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import LongType

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import NONE_DELETED, deleted_rows
from icesize.parquet.deletes.positions import paths_named
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.deletes.delete_reach import plain_path
from icesize.planning.files import DeleteFile
from tests.support.examples import examples
from tests.support.parquet_files import schema_of, settings_of
from tests.support.unit_deletes import (
    PATH,
    POSITION,
    UNPARTITIONED,
    data_file,
    delete_file,
    field,
    position_deletes,
    position_rows,
    written,
)

SCHEMA = schema_of(("id", LongType()))
PATHS = ["/t/a", "/t/b", "/t/bb", "/t/c"]
SPELLINGS = ["", "file:", "file://"]


def settings_in(folder: Path) -> WriteSettings:
    """Settings of a table."""
    return settings_of(folder, SCHEMA)


@st.composite
def named_rows(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Rows of files, of which some are gone, in any order and some twice."""
    row = st.tuples(st.sampled_from([*PATHS, "/t/gone"]), st.integers(0, 9), st.sampled_from(SPELLINGS))
    rows = [(spelling + path, position) for path, position, spelling in draw(st.lists(row, max_size=40))]
    return sorted(rows) if draw(st.booleans()) else rows


OPTIONS = st.fixed_dictionaries(
    {
        "row_group_size": st.sampled_from([1, 3, 100]),
        "use_dictionary": st.booleans(),
        "write_statistics": st.booleans(),
        "store_schema": st.booleans(),
    }
)


@examples(2000)
@given(
    st.lists(st.tuples(named_rows(), st.integers(1, 5), OPTIONS, st.booleans()), max_size=4),
    st.lists(st.integers(0, 5), min_size=1, max_size=4),
    st.sampled_from([pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]),
)
def test_exactly_the_rows_are_deleted_that_are_named_later_than_written(
    deletes: list[tuple[list[tuple[str, int]], int, dict[str, Any], bool]], numbers: list[int], texts: pa.DataType
) -> None:
    """Row by row: a row is deleted if a delete file of no smaller number names it, however that is written."""
    with tempfile.TemporaryDirectory() as name:
        folder, files = Path(name), list[DeleteFile]()
        for i, (named, number, options, bounded) in enumerate(deletes):
            rows = position_rows(named)
            rows = rows.set_column(0, PATH.with_type(texts), rows.column(0).cast(texts))
            bounds = dict[str, str]()
            if bounded and named:
                bounds = {"lowest_path": min(named)[0], "highest_path": max(named)[0]}
                if len({path for path, _ in named}) > 1 and bounds["lowest_path"] == bounds["highest_path"]:
                    bounds = {}
            file = delete_file(*written(folder, f"{i}.parquet", rows, **options), rows.num_rows, number, **bounds)
            files.append(file)
        inputs = [data_file(path, 10, files, number) for path, number in zip(PATHS, numbers, strict=False)]
        found = deleted_rows(inputs, settings_in(folder), UNPARTITIONED)
    expected = {
        file.path: {
            position
            for named, number, _, _ in deletes
            for path, position in named
            if plain_path(path) == file.path and file.sequence_number <= number
        }
        for file in inputs
    }
    assert {path: set(rows) for path, rows in found.positions.items()} == {k: v for k, v in expected.items() if v}
    assert (found.rows, found.equality_number) == (sum(map(len, expected.values())), 0)


@examples(500)
@given(named_rows(), OPTIONS)
def test_the_paths_of_a_delete_file_are_known(named: list[tuple[str, int]], options: dict[str, Any]) -> None:
    """All of them, in the plain spelling."""
    with tempfile.TemporaryDirectory() as name:
        rows = position_rows(named)
        delete = delete_file(*written(Path(name), "d.parquet", rows, **options), rows.num_rows)
        storage = settings_in(Path(name)).storage
        paths = {plain_path(path) for path, _ in named}
        assert paths_named(delete, storage) == paths


def test_inputs_without_deletes_cost_nothing(tmp_path: Path) -> None:
    """There is one value for that, and no file is opened."""
    assert deleted_rows([data_file("/gone", 3, ())], settings_in(tmp_path), UNPARTITIONED) is NONE_DELETED


def test_columns_are_found_by_field_id_and_others_not_read(tmp_path: Path) -> None:
    """Writers may name the columns as they like, and add the deleted rows."""
    row = pa.array([{"id": 1}], pa.struct([pa.field("id", pa.int64())]))
    columns = [row, pa.array([4], pa.int32()), pa.array(["/t/a"])]
    fields = [field(2147483544, "row", row.type), field(POSITION_ID, "p", pa.int32()), field(PATH_ID, "f", pa.string())]
    rows = pa.table(columns, schema=pa.schema(fields))
    delete = delete_file(*written(tmp_path, "d.parquet", rows), 1)
    found = deleted_rows([data_file("/t/a", 5, [delete])], settings_in(tmp_path), UNPARTITIONED)
    assert {path: list(some) for path, some in found.positions.items()} == {"/t/a": [4]}
    plain = pa.table({"pos": pa.array([3], pa.int64()), "file_path": ["/t/a"]})
    delete = delete_file(*written(tmp_path, "e.parquet", plain), 1)
    assert list(deleted_rows([data_file("/t/a", 5, [delete])], settings_in(tmp_path), UNPARTITIONED).positions) == [
        "/t/a"
    ]


POSITION_ID, PATH_ID = 2147483545, 2147483546


def test_a_delete_file_is_read_once_for_all_inputs(tmp_path: Path) -> None:
    """Two hundred inputs and one delete file that names them all: it is opened once."""
    paths = [f"/t/{i}" for i in range(200)]
    delete = position_deletes(tmp_path, "d.parquet", [(path, 1) for path in paths])
    settings = settings_in(tmp_path)
    opened, open_file = list[str](), settings.storage.open

    def counted(path: str, size_bytes: int) -> Any:
        opened.append(path)
        return open_file(path, size_bytes)

    settings.storage.__dict__["open"] = counted
    found = deleted_rows([data_file(path, 2, [delete]) for path in paths], settings, UNPARTITIONED)
    assert (found.rows, opened) == (200, [delete.path])


def refused(folder: Path, delete: DeleteFile, paths: Sequence[str] = ("/t/a",)) -> str:
    """Why a delete file cannot be applied, without its path."""
    with pytest.raises(RewriteFailed) as caught:
        deleted_rows([data_file(path, 5, [delete]) for path in paths], settings_in(folder), UNPARTITIONED)
    assert caught.value.path == delete.path
    beginning = f"Cannot apply the deletes in {delete.path}: "
    assert str(caught.value).startswith(beginning)
    return str(caught.value).removeprefix(beginning)


def test_positions_that_the_file_does_not_have(tmp_path: Path) -> None:
    """Beyond its end or before its start; those of files that are gone do not matter."""
    fine = [("/t/gone", 77), ("/t/gone", -1), ("/t/a", 4)]
    beyond = position_deletes(tmp_path, "d.parquet", [*fine, ("/t/a", 5)])
    assert refused(tmp_path, beyond) == "it deletes row 5 of /t/a, which has 5 rows"
    before = position_deletes(tmp_path, "e.parquet", [*fine, ("/t/a", -1)])
    assert refused(tmp_path, before) == "it deletes row -1 of /t/a, which has 5 rows"
    large = position_deletes(tmp_path, "f.parquet", [*fine, ("/t/a", 2**32 + 1)])
    assert refused(tmp_path, large) == f"it deletes row {2**32 + 1} of /t/a, which has 5 rows"


def test_rows_that_name_nothing(tmp_path: Path) -> None:
    """A row without a path, or without a position."""
    kinds = pa.schema([PATH, POSITION])
    for i, row in enumerate([(None, 1), ("/t/a", None)]):
        rows = pa.table([[row[0], "/t/a"], [row[1], 2]], schema=kinds)
        delete = delete_file(*written(tmp_path, f"{i}.parquet", rows), 2)
        assert refused(tmp_path, delete) == "it has a row without a path or a position"


def test_a_file_with_other_rows_than_its_entry_says(tmp_path: Path) -> None:
    """Part of it is missing, or it is another one."""
    delete = replace(position_deletes(tmp_path, "d.parquet", [("/t/a", 1)]), rows=2)
    assert refused(tmp_path, delete) == "it has 1 rows, its manifest records 2, check the table's metadata"


def test_a_file_without_the_columns(tmp_path: Path) -> None:
    """They are missing, or of other types."""
    no_path = delete_file(*written(tmp_path, "d.parquet", pa.table({"pos": [1]})), 1)
    assert refused(tmp_path, no_path) == "it has no column 'file_path' of texts"
    no_position = delete_file(*written(tmp_path, "e.parquet", pa.table({"file_path": ["/t/a"]})), 1)
    assert refused(tmp_path, no_position) == "it has no column 'pos' of whole numbers"
    text = delete_file(*written(tmp_path, "f.parquet", pa.table({"file_path": ["/t/a"], "pos": ["1"]})), 1)
    assert refused(tmp_path, text) == "it has no column 'pos' of whole numbers"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Gone, cut, or of a format that is not Parquet."""
    delete = position_deletes(tmp_path, "d.parquet", [("/t/a", 1)])
    assert refused(tmp_path, replace(delete, file_format="AVRO")) == "its format is AVRO, only PARQUET is read"
    data = Path(delete.path).read_bytes()
    Path(delete.path).write_bytes(data[:-9])
    assert refused(tmp_path, delete) == (
        "Parquet magic bytes not found in footer. Either the file is corrupted or this is not a parquet file., "
        "check that the file exists and is whole"
    )
    Path(delete.path).unlink()
    assert refused(tmp_path, delete) == (
        f"[Errno 2] No such file or directory: '{delete.path}', check that the file exists and is whole"
    )
    with pytest.raises(RewriteFailed, match=r"Cannot apply the deletes in .*: .Errno 2"):
        paths_named(delete, settings_in(tmp_path).storage)
