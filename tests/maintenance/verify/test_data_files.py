"""With `deep`, each file is read: manifests and footers that its rows contradict are found, and ids that rows share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.types import LongType

import icesize
from icesize.errors import ArgumentError
from icesize.maintenance.verify.data_files import opened
from icesize.maintenance.verify.verification import Verification
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.verify.file import verify_file
from icesize.storage import stores
from icesize.storage.table_storage import Storage
from tests.support.command_line import run_in
from tests.support.delete_files import delete_positions
from tests.support.puffin import add_deletes, vectors_in_puffin
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.row_lineage import LINEAGE
from tests.support.tables import (
    append,
    arrow,
    commit_built,
    compact,
    live_paths,
    local,
    make_table,
    overwritten,
    request_on,
    run,
    small_files,
    write,
)
from tests.support.v3_tables import as_v3


def deep(catalog: Catalog, **options: Any) -> Verification:
    return icesize.open(None, "db.t", catalog=catalog).verify(deep=True, **options)


def broken(verification: Verification) -> list[tuple[str, str, str]]:
    return [(finding.rule, finding.path, finding.detail) for finding in verification.findings]


def commit(catalog: Catalog, change: Callable[[NewDataFile], NewDataFile], ids: tuple[int, ...] = (5, 6, 7)) -> str:
    """Commit a file whose entry has other facts; returns its path."""
    table = catalog.load_table("db.t")
    file = write(table, ids)
    run(catalog, request_on(table, [change(file)]), table)
    return file.path


@pytest.mark.parametrize("version", ["1", "2"])
def test_tables_of_all_writers(lake: SqlCatalog, version: str) -> None:
    """Appends of icesize and PyIceberg, merges, and deletes have no finding; files of older snapshots are read, too."""
    table = make_table(lake, properties={"format-version": version})
    table.append(arrow([1, 2]))
    append(lake, [2, 3], "a")
    append(lake, [4, 5], "a")
    if version == "2":
        delete_rows(lake, small_files(lake.load_table("db.t"), "a")[0])
        delete_ids(lake, small_files(lake.load_table("db.t"), "a")[1], [4])
    compact(lake, "a")
    verification = deep(lake)
    assert (verification.findings, verification.notes) == ((), ())
    assert verification.read_files == (6 if version == "2" else 4)
    assert deep(lake, current=True).read_files == 1


@pytest.mark.parametrize(
    ("change", "rule", "detail"),
    [
        (lambda f: replace(f, rows=9), "row counts", "it has 3 rows, by the manifest 9"),
        (lambda f: replace(f, value_counts={1: 4}), "column counts", "column 'id': it has 3 values, by the manifest 4"),
        (lambda f: replace(f, null_value_counts={1: 1}), "column counts",
         "column 'id': it has 0 nulls, by the manifest 1"),
        (lambda f: replace(f, lower_bounds={1: to_bytes(LongType(), 6)}), "bounds",
         "column 'id': the lower bound is 6, the least value 5"),
        (lambda f: replace(f, upper_bounds={1: to_bytes(LongType(), 6)}), "bounds",
         "column 'id': the upper bound is 6, the greatest value 7"),
        (lambda f: replace(f, upper_bounds={2: b"Z"}), "bounds",
         "column 'kind': the upper bound is b'Z', the greatest value b'a'"),
        (lambda f: replace(f, upper_bounds={2: "é".encode()[:1]}), "bounds",
         "column 'kind': the upper bound b'\\xc3' is no value of its type"),
        (lambda f: replace(f, lower_bounds={2: b""}, upper_bounds={1: to_bytes(LongType(), 2**62)}), "", ""),
    ],
)  # fmt: skip
def test_entries_that_the_file_contradicts(
    lake: SqlCatalog, change: Callable[[NewDataFile], NewDataFile], rule: str, detail: str
) -> None:
    """A wrong count or bound is found; a bound that is only wider is none."""
    make_table(lake)
    path = commit(lake, change)
    assert broken(deep(lake)) == ([(rule, path, detail)] if rule else [])


def test_damaged_pages(lake: SqlCatalog) -> None:
    """A page that does not match its checksum is found, and the file that is whole is not."""
    make_table(lake)
    append(lake, [1])
    path = local(commit(lake, lambda file: file))
    data = bytearray(path.read_bytes())
    data[30] ^= 0xFF
    path.write_bytes(data)
    findings = deep(lake).findings
    assert {local(finding.path) for finding in findings} == {path}
    assert "file contents" in {finding.rule for finding in findings}


def test_a_missing_file_is_one_finding(lake: SqlCatalog) -> None:
    """The listing lacks it, and reading it does not report it again."""
    make_table(lake)
    append(lake, [1])
    path = commit(lake, lambda file: file)
    local(path).unlink()
    assert broken(deep(lake)) == [("missing files", path, "it is not there")]


def test_a_run_goes_on_where_another_ended(lake: SqlCatalog, tmp_path: Path) -> None:
    """Verified files are skipped; one with a finding is read again; a line that was cut off counts for nothing."""
    make_table(lake)
    append(lake, [1])
    path = commit(lake, lambda file: replace(file, rows=9))
    resume = tmp_path / "verified.json"
    first = deep(lake, resume=resume)
    lines = resume.read_text().splitlines()
    assert len(lines) == 2  # the table and one file
    resume.write_text("\n".join([*lines, '{"path": "cut of']))
    (verified,) = (file for file in small_files(lake.load_table("db.t")) if file.path != path)
    local(verified.path).write_bytes(b"x" * verified.size_bytes)
    again = deep(lake, resume=str(resume))
    assert broken(again) == broken(first) == [("row counts", path, "it has 3 rows, by the manifest 9")]
    assert again.read_files == 2
    resume.write_text("other\n")
    with pytest.raises(ArgumentError, match="has no verified files of this table"):
        deep(lake, resume=resume)


def test_the_command(lake: SqlCatalog, tmp_path: Path) -> None:
    """`--resume` goes with `--deep`, and the files that were read are counted."""
    make_table(lake)
    append(lake, [1])
    command = run_in(tmp_path)
    assert command("verify", "--resume", "x").exit_code == 2
    done = command("verify", "--deep", "--resume", str(tmp_path / "x"))
    assert (done.exit_code, done.stdout.splitlines()[1]) == (
        0,
        "3 files of 1 snapshot compared with the storage, 1 file read",
    )


class Remote(PyArrowFileIO):
    """Local files under another scheme, so that they are fetched."""

    def new_input(self, location: str) -> Any:
        return super().new_input(location.replace("far://", "file://"))


@pytest.mark.parametrize("whole_bytes", [0, 2**20])
def test_remote_files(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, whole_bytes: int) -> None:
    """Small ones are fetched by one request, large ones piece by piece to the local disk."""
    make_table(lake)
    table = append(lake, [1, 2])
    (file,) = small_files(table)
    monkeypatch.setattr("icesize.maintenance.verify.data_files.WHOLE_READ_BYTES", max(whole_bytes, 100))
    assert stores.WHOLE_READ_BYTES > 100
    with opened(Storage(Remote({})), file.path.replace("file://", "far://"), file.size_bytes) as source:
        assert (verify_file(source, "x").problems, verify_file(source, "x").rows) == ((), 2)


def stored(table: Table, ids: tuple[int, ...], row_ids: tuple[int | None, ...]) -> NewDataFile:
    """A file that stores these row ids."""
    file = write(table, ids)
    rows = pq.read_table(local(file.path))
    for field, values in zip(LINEAGE, (row_ids, (1,) * len(ids)), strict=True):
        rows = rows.append_column(field, pa.array(values, pa.int64()))
    pq.write_table(rows, local(file.path), store_decimal_as_integer=True)
    return replace(file, size_bytes=local(file.path).stat().st_size)


def test_row_ids_that_live_rows_share(lake: SqlCatalog) -> None:
    """An updated row has the id of the row that it replaces, which is deleted; if it is live, both files are named."""
    make_table(lake)
    as_v3(lake)
    table = append(lake, [1, 2, 3])  # row ids 0, 1, 2
    (old,) = small_files(table)
    file = stored(table, (20, 4), (1, None))
    run(lake, request_on(table, [file]), table)
    assert {finding.path: finding.detail for finding in deep(lake).findings} == {
        old.path: "1 live rows have the id of another one, such as 1",
        file.path: "1 live rows have the id of another one, such as 1",
    }
    add_deletes(lake, vectors_in_puffin(table, {old: [1]}))
    assert broken(deep(lake)) == []


def test_row_ids_of_verified_files(lake: SqlCatalog, tmp_path: Path) -> None:
    """A resumed run compares the ids of skipped files, too."""
    make_table(lake)
    as_v3(lake)
    table = append(lake, [1, 2, 3])
    first = stored(table, (20, 4), (100, 7))
    run(lake, request_on(table, [first]), table)
    resume = tmp_path / "verified"
    assert broken(deep(lake, resume=resume)) == []
    table = lake.load_table("db.t")
    second = stored(table, (8, 9), (99, 100))
    run(lake, request_on(table, [second]), table)
    assert {finding.path for finding in deep(lake, resume=resume).findings} == {first.path, second.path}


def test_position_delete_files(lake: SqlCatalog) -> None:
    """Their rows and bounds are compared, too."""
    make_table(lake)
    append(lake, [1, 2])
    (file,) = small_files(lake.load_table("db.t"))
    delete_positions(lake.load_table("db.t"), {file.path: [0, 1]}, file.partition)
    verification = deep(lake)
    assert (verification.findings, verification.read_files) == ((), 2)


def test_row_ids_of_a_table_without_live_rows(lake: SqlCatalog) -> None:
    """No data file is left, and files of older snapshots store row ids."""
    make_table(lake)
    as_v3(lake)
    table = append(lake, [1])
    file = stored(table, (20,), (7,))
    run(lake, request_on(table, [file]), table)
    commit_built(lake, lambda builder: overwritten(builder, live_paths(lake.load_table("db.t"))))
    assert broken(deep(lake)) == []
