"""Columns on the local disk: they come back exactly, and whatever happens to them costs only time."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent, ManifestFile

import icesize
from icesize.environment import Environment
from icesize.planning.files import PartitionKey
from icesize.table.manifests.file_columns import ENCRYPTED, EntryColumns, Texts
from icesize.table.manifests.spill import ColumnSpill
from icesize.table.manifests.store import ManifestStore
from tests.support.tables import LIMIT, CountingIO, append, make_table

FOLDER = "icesize-manifests"
LARGE = 2**30
_LONGS = st.integers(-(2**63), 2**63 - 1)
_TEXTS = st.text(max_size=9)
_VALUES = st.one_of(st.none(), st.booleans(), st.integers(-(2**200), 2**200), _TEXTS)
_TARGETS = st.tuples(_TEXTS, st.lists(_LONGS, max_size=3).map(tuple), *[st.none() | _TEXTS] * 3)


def manifest(path: str = "file:///m.avro", spec_id: int = 3, key_metadata: bytes | None = None) -> ManifestFile:
    """A manifest that does not exist."""
    content = ManifestContent.DATA
    return ManifestFile.from_args(
        manifest_path=path, manifest_length=9, partition_spec_id=spec_id, content=content, key_metadata=key_metadata
    )


@st.composite
def columns_of_any_values(draw: st.DrawFn) -> EntryColumns:
    """Columns of a few entries; arrays are narrow, or one number for all, as they are when they are read."""
    count = draw(st.integers(0, 5))

    def integers(size: int = count) -> Any:
        if size and draw(st.booleans()):
            return np.broadcast_to(np.array([draw(_LONGS)]), (size,))
        kind, values = draw(st.sampled_from([(np.int64, _LONGS), (np.int32, st.integers(-(2**31), 2**31 - 1))]))
        return np.array(draw(st.lists(values, min_size=size, max_size=size)), kind)

    keys = draw(st.lists(st.lists(_VALUES, max_size=3).map(tuple), max_size=3))
    obstacles = np.array(draw(st.lists(st.integers(0, 1), min_size=count, max_size=count)), np.int64)
    return EntryColumns(
        tuple(PartitionKey.of(3, values) for values in keys), *[integers() for _ in range(7)], obstacles, integers(),
        Texts(draw(_TEXTS), draw(_TEXTS), integers(count + 1)), tuple(draw(st.lists(_TARGETS, max_size=2))),
    )  # fmt: skip


def parts(columns: EntryColumns) -> list[Any]:
    """Everything of columns that can be compared, types of arrays and of values included."""
    texts = columns.paths
    keys = [[(type(value), repr(value)) for value in key.values] for key in columns.keys]
    arrays = [columns.partition, columns.status, columns.snapshot_ids, columns.sequence_numbers]
    arrays += [
        columns.file_sequence_numbers,
        columns.size_bytes,
        columns.rows,
        columns.obstacles,
        columns.first_row_ids,
        texts.ends,
    ]
    exact = [(array.dtype, array.shape, array.tolist()) for array in arrays]
    return [keys, [key.spec_id for key in columns.keys], exact, texts.start, texts.rest, columns.targets]


@given(columns_of_any_values())
def test_columns_come_back_exactly(tmp_path_factory: pytest.TempPathFactory, columns: EntryColumns) -> None:
    """Values and types are equal after a round trip, and one number for all entries is still held once."""
    spill = ColumnSpill(tmp_path_factory.mktemp("spill"), LARGE)
    spill.write("u", manifest(), columns)
    again = spill.read("u", manifest())
    assert again is not None
    assert parts(again) == parts(columns)
    assert again.held_bytes <= columns.held_bytes


def small(paths: int = 3, *, obstacle: int = 0, value: object = "a") -> EntryColumns:
    """Columns of a few files of one partition."""
    numbers = np.arange(paths, dtype=np.int64)
    obstacles = np.full(paths, obstacle, np.int64)
    return EntryColumns(
        (PartitionKey(3, (value,)),),
        *[numbers] * 7,
        obstacles,
        numbers,
        Texts.of([f"file:///{i}" for i in range(paths)]),
        (),
    )


def test_other_manifests_are_others(tmp_path: Path) -> None:
    """Another table, path or spec has columns of its own."""
    spill = ColumnSpill(tmp_path, LARGE)
    spill.write("u", manifest(), small())
    assert spill.read("u", manifest()) is not None
    for uuid, other in (("v", manifest()), ("u", manifest("file:///n.avro")), ("u", manifest(spec_id=4))):
        assert spill.read(uuid, other) is None


@pytest.mark.parametrize(
    ("of", "columns"),
    [
        (manifest(key_metadata=b"key"), small()),
        (manifest(), small(obstacle=ENCRYPTED)),
        (manifest(), small(value=1.5)),
    ],
)
def test_what_is_encrypted_or_unknown_stays_off_the_disk(
    tmp_path: Path, of: ManifestFile, columns: EntryColumns
) -> None:
    """Neither an encrypted manifest nor one that lists an encrypted file, nor values that JSON would change."""
    spill = ColumnSpill(tmp_path, LARGE)
    spill.write("u", of, columns)
    assert spill.read("u", of) is None
    assert files(tmp_path) == []


def files(folder: Path) -> list[Path]:
    """All files of a spill."""
    return sorted(each for each in folder.rglob("*") if each.is_file())


@given(st.data())
def test_a_damaged_file_is_removed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Changed, cut off, emptied or replaced bytes are never read as columns, and the file goes."""
    folder = tmp_path_factory.mktemp("spill")
    spill = ColumnSpill(folder, LARGE)
    spill.write("u", manifest(), small())
    (place,) = files(folder)
    whole = place.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    damaged = data.draw(
        st.sampled_from(
            [whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :], whole + b"x", b"\x80pickle"]
        )
    )
    place.write_bytes(damaged)
    assert spill.read("u", manifest()) is None
    assert files(folder) == []


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    """The limit holds; what was read last stays, and files of others in the directory stay, too."""
    ColumnSpill(tmp_path, LARGE).write("u", manifest(), small())
    (first,) = files(tmp_path)
    size = first.stat().st_size
    others = first.with_name("notes.txt")
    others.write_text("mine" * size)
    abandoned = first.with_name("a.arrays-part")
    abandoned.write_bytes(b"x" * size)
    os.utime(first, ns=(1, 1))
    os.utime(abandoned, ns=(0, 0))
    spill = ColumnSpill(tmp_path, 4 * size + size // 2)
    for number in range(8):
        assert spill.read("u", manifest()) is not None
        spill.write("u", manifest(f"file:///{number}.avro"), small())
        # the clock of a file system may be coarse
        for order, path in enumerate(sorted(set(files(tmp_path)) - {first, others}, key=_used)):
            os.utime(path, ns=(order, order))
    assert others in files(tmp_path)
    assert abandoned not in files(tmp_path)
    assert first in files(tmp_path)
    assert sum(each.stat().st_size for each in files(tmp_path) if each != others) <= 4 * size + size // 2


def _used(path: Path) -> int:
    return path.stat().st_mtime_ns


def test_columns_above_the_limit_are_not_written(tmp_path: Path) -> None:
    """They would remove all others."""
    ColumnSpill(tmp_path, 100).write("u", manifest(), small())
    assert files(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no permissions of users")
def test_only_this_user_may_open_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has mode 0700 and its files 0600; a directory that others may open is not used, and said once."""
    spill = ColumnSpill(tmp_path, LARGE)
    spill.write("u", manifest(), small())
    folder = tmp_path / FOLDER
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [each.stat().st_mode & 0o777 for each in files(folder)] == [0o600]
    folder.chmod(0o755)
    with caplog.at_level(logging.WARNING, "icesize"):
        assert spill.read("u", manifest()) is None
        spill.write("u", manifest("file:///n.avro"), small())
    assert len(files(folder)) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"Cannot keep the columns of manifests in {folder}: other users may open it"
    ]


def test_a_directory_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in its place, and a link to another directory, cost time only."""
    (tmp_path / "file").write_text("")
    (tmp_path / "linked").mkdir()
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / "linked" / FOLDER).symlink_to(tmp_path / "elsewhere")
    for name in ("file", "linked"):
        spill = ColumnSpill(tmp_path / name, LARGE)
        spill.write("u", manifest(), small())
        assert spill.read("u", manifest()) is None
    assert len(caplog.records) == 2
    assert files(tmp_path / "elsewhere") == []


def _removed(folder: Path) -> None:
    for each in files(folder):
        each.unlink()


def _directory_removed(folder: Path) -> None:
    _removed(folder)
    (folder / FOLDER).rmdir()


def _cut(folder: Path) -> None:
    for each in files(folder):
        each.write_bytes(each.read_bytes()[:-1])


@pytest.mark.parametrize("loss", [None, _removed, _directory_removed, _cut])
def test_a_new_process_reads_the_disk_or_the_table(
    lake: SqlCatalog, tmp_path: Path, loss: Callable[[Path], None] | None
) -> None:
    """A store without memory opens no manifest that is on disk; without the disk it has the same facts."""
    folder = tmp_path / "spill"
    make_table(lake)
    append(lake, [1], "a")
    table = append(lake, [2], "b")
    head = table.metadata.current_snapshot()
    assert head is not None
    listed = head.manifests(table.io)

    def read(io: CountingIO) -> list[list[Any]]:
        store = ManifestStore(table_uuid=str(table.metadata.table_uuid))
        store.spill = ColumnSpill(folder, LARGE)
        return [parts(store.facts(io, each).columns) for each in listed]

    first, again = CountingIO(), CountingIO()
    expected = read(first)
    if loss:
        loss(folder)
    assert read(again) == expected
    assert len(first.opened) == len(listed) == 2
    assert again.opened == ([] if loss is None else first.opened)
    assert len(files(folder)) == 2


def test_an_environment_names_the_folder(lake: SqlCatalog, tmp_path: Path) -> None:
    """A table that is opened with it keeps its facts there, any other table keeps none."""
    make_table(lake)
    append(lake, [1], "a")
    icesize.open(None, "db.t", catalog=lake, policy={"small-file-limit-bytes": LIMIT}).plan()
    assert files(tmp_path / "kept") == []
    append(lake, [2], "b")
    icesize.open(None, "db.t", catalog=lake, environment=Environment(spill_directory=str(tmp_path / "kept"))).plan()
    assert len(files(tmp_path / "kept")) == 1
