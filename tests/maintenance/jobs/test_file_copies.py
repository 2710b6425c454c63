"""Copies of whole data files: the same bytes, checked against manifests, or nothing at all."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import RewriteFailed, TableError
from icesize.failpoints import FailpointReached
from icesize.maintenance.jobs import restore as copies
from icesize.maintenance.jobs.restore import Copy, copy_files
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.storage.table_storage import Storage
from icesize.table.manifests.entries import Entry, read_entries
from tests.support.failing_storage import FailingLake, path_of
from tests.support.tables import append, data_files_on_disk, local, make_table


def entries(table: Table) -> list[Entry]:
    """What the head's manifests say of its files."""
    head = table.metadata.current_snapshot()
    return [e for m in head.manifests(table.io) for e in read_entries(table.io, m)] if head else []


@pytest.fixture
def table(lake: SqlCatalog) -> Table:
    """Three files of one row each."""
    make_table(lake)
    for number in range(3):
        table = append(lake, [number])
    return table


def copied(table: Table, change: Callable[[Entry], Entry] = lambda entry: entry) -> list[Copy]:
    return [Copy(change(e), f"{table.location()}/data/new/copy-{i}.parquet") for i, e in enumerate(entries(table))]


def make(table: Table, copies: list[Copy]) -> list[bytes]:
    """As a restore does before its commit; what the copies hold by then, as nobody commits them."""
    with uncommitted(Storage(table.io), "s1-0", Environment()) as (owner, _):
        copy_files(table.io, owner, copies)
        return [local(copy.new_path).read_bytes() for copy in copies]


def test_copies_have_the_same_bytes(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a file takes many pieces; folders are made."""
    monkeypatch.setattr(copies, "PIECE_BYTES", 100)
    made = copied(table)
    assert make(table, made) == [local(c.entry.path).read_bytes() for c in made]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda e: replace(e, size_bytes=e.size_bytes + 1), r"storage holds \d+ bytes of \d+"),
        (lambda e: replace(e, rows=7), "it has 1 rows, its manifest records 7"),
    ],
)
def test_a_copy_that_is_not_what_manifests_say_is_refused(
    table: Table, change: Callable[[Entry], Entry], why: str
) -> None:
    """A file of another size or number of rows; nothing stays of any copy."""
    before = data_files_on_disk(table)
    with pytest.raises(RewriteFailed, match=why):
        make(table, copied(table, change))
    assert data_files_on_disk(table) == before


def test_a_copy_with_another_footer_is_refused(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that changes a count in it is noticed, though size and rows are right; nothing stays."""
    before, right = data_files_on_disk(table), Storage.pieces

    def changed(self: Storage, location: str, size_bytes: int, piece_bytes: int) -> Iterator[bytes]:
        data = b"".join(right(self, location, size_bytes, piece_bytes))
        yield data[:-20] + bytes([data[-20] ^ 1]) + data[-19:]

    monkeypatch.setattr(Storage, "pieces", changed)
    with pytest.raises(RewriteFailed, match="its copy has another footer"):
        make(table, copied(table))
    assert data_files_on_disk(table) == before


@pytest.mark.parametrize(("end_bytes", "times"), [(copies.END_BYTES, 1), (100, 2)])
def test_a_copy_is_opened_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_bytes: int, times: int) -> None:
    """So is the file that an object store copies by itself, or twice if its footer is longer than usual."""
    monkeypatch.setattr(copies, "END_BYTES", end_bytes)
    with contextlib.closing(FailingLake(tmp_path)) as lake:
        make_table(lake.catalog)
        table = append(lake.catalog, range(10_000))
        [made] = copied(table)
        lake.heal()
        copy_files(table.io, Uncommitted(Storage(table.io), "s1-0"), [made])
        opened = Counter(call.path for call in lake.faults.calls if call.what == "open")
        assert opened == {path_of(made.entry.path): times, path_of(made.new_path): 1}
        assert lake.store.files[path_of(made.entry.path)].data == lake.store.files[path_of(made.new_path)].data


def test_a_file_that_is_gone_is_named(table: Table) -> None:
    """It went after it was looked for; nothing stays of the others."""
    made = copied(table)
    table.io.delete(made[1].entry.path)
    before = data_files_on_disk(table)
    with pytest.raises(TableError, match=f"{made[1].entry.path} is gone"):
        make(table, made)
    assert data_files_on_disk(table) == before


@pytest.mark.parametrize("point", ["writing", "files-written"])
def test_an_interrupted_copy_leaves_nothing(table: Table, point: str) -> None:
    """Stopped at the second of three files, and after all of them."""
    before, reached = data_files_on_disk(table), iter(range(9))

    def stop() -> None:
        if point == "files-written" or next(reached) == 1:
            raise FailpointReached(point)

    with failpoints.armed(point, stop), pytest.raises(FailpointReached):
        make(table, copied(table))
    assert data_files_on_disk(table) == before


class _GivenUpMeanwhile(Storage):
    """The run is given up after a thread has asked whether its file is wanted, and before it makes it."""

    def __init__(self, io: FileIO) -> None:
        super().__init__(io)
        self.owner = Uncommitted(self, "s1-0")

    def create(self, location: str) -> Any:
        self.owner.abandon()
        return super().create(location)


def test_a_thread_that_was_left_behind_removes_its_copy(table: Table) -> None:
    """Whoever gave up has looked for the file already."""
    before = data_files_on_disk(table)
    with pytest.raises(RewriteFailed, match="the operation that writes it was cancelled"):
        copy_files(table.io, _GivenUpMeanwhile(table.io).owner, copied(table)[:1])
    assert data_files_on_disk(table) == before


@pytest.mark.parametrize("file_format", ["ORC", "AVRO", "PARQUET"])
def test_rows_are_only_counted_where_the_footer_can_be_read(tmp_path: Path, table: Table, file_format: str) -> None:
    """Files of other formats, and encrypted ones, are compared by size."""
    (tmp_path / "old").write_bytes(b"x" * 1000)
    entry = replace(
        entries(table)[0], path=f"{tmp_path}/old", size_bytes=1000, file_format=file_format,
        encrypted=file_format == "PARQUET",
    )  # fmt: skip
    io = PyArrowFileIO()
    copy_files(io, Uncommitted(Storage(io), "s1-0"), [Copy(entry, f"{tmp_path}/new")])
    assert (tmp_path / "new").read_bytes() == b"x" * 1000
