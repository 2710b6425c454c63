"""Arrays on the local disk: bounded, private, the least recently used go first."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from icesize.array_files import Array
from icesize.table.upserts.index_files import IndexFolder

KB = 2**10


def folder_in(path: Path, most_bytes: int = 2**30) -> IndexFolder:
    """A folder whose first batch has begun."""
    folder = IndexFolder(path / "maps", most_bytes)
    folder.begin_batch()
    return folder


def use(folder: IndexFolder, names: Iterable[str], kilobytes: int = 100) -> list[str]:
    """Look for arrays of these names, and write those that are missing; the names of those that were there."""
    there = []
    for name in names:
        if folder.read([name]) is not None:
            there.append(name)
        else:
            folder.write([name], kilobytes * KB, [np.zeros(kilobytes * KB, np.uint8)])
    return there


def size_of(path: Path) -> int:
    """Bytes of all arrays."""
    return sum(each.stat().st_size for each in (path / "maps").glob("*.arrays"))


def test_arrays_come_back_exactly(tmp_path: Path) -> None:
    """Types, lengths and values are equal, also of empty arrays and of those that follow odd lengths."""
    arrays: list[Array] = [
        np.arange(3, dtype=np.uint8),
        np.arange(5),
        np.empty(0, np.uint32),
        np.array([1, 2], np.uint16),
    ]
    assert folder_in(tmp_path).write(["a", 1, None], 100, arrays)
    again = folder_in(tmp_path).read(["a", 1, None])
    assert again is not None
    assert [(each.dtype, each.tolist()) for each in again] == [(each.dtype, each.tolist()) for each in arrays]
    assert folder_in(tmp_path).read(["a", 1, 2]) is None


def test_the_bound_holds(tmp_path: Path) -> None:
    """What does not fit is not written, and what all batches use stays: no batch loses all for the next."""
    folder = folder_in(tmp_path, 350 * KB)
    names = [f"f{number}" for number in range(5)]
    for _ in range(3):
        there = use(folder, names)
        folder.begin_batch()
        assert size_of(tmp_path) <= 350 * KB
    assert there == names[:3]


def test_what_is_used_no_more_makes_room(tmp_path: Path) -> None:
    """Files that batches stopped using go before those that are used, and another process begins with the bound."""
    folder = folder_in(tmp_path, 350 * KB)
    for _ in range(2):
        use(folder, ["old", "kept"])
        folder.begin_batch()
    for _ in range(2):
        there = use(folder, ["kept", "new", "newer"])
        folder.begin_batch()
    assert there == ["kept", "new", "newer"]
    assert folder.read(["old"]) is None

    del folder
    again = folder_in(tmp_path, 350 * KB)
    for _ in range(2):
        there = use(again, ["kept", "next"])
        again.begin_batch()
        assert size_of(tmp_path) <= 350 * KB
    assert there == ["kept", "next"]


def test_what_a_killed_process_left_makes_room_first(tmp_path: Path) -> None:
    """Unfinished files count and go, and files of others stay."""
    use(folder_in(tmp_path), ["a"])
    unfinished = tmp_path / "maps" / "x.arrays-1-part"
    unfinished.write_bytes(b"x")
    os.utime(unfinished, (1, 1))
    (tmp_path / "maps" / "notes.txt").write_text("mine")
    use(folder_in(tmp_path, 150 * KB), ["b"])
    assert not unfinished.exists()
    assert (tmp_path / "maps" / "notes.txt").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no permissions of users")
def test_only_this_user_may_open_the_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It has mode 0700 and its files 0600; a directory that others may open is not used, and said once."""
    folder = folder_in(tmp_path)
    use(folder, ["a"])
    place = tmp_path / "maps"
    assert place.stat().st_mode & 0o777 == 0o700
    assert {each.stat().st_mode & 0o777 for each in place.iterdir()} == {0o600}

    place.chmod(0o755)
    with caplog.at_level(logging.WARNING, "icesize"):
        assert IndexFolder(place, 2**30).begin_batch() != folder.begin_batch()
        assert folder.read(["a"]) is None
        assert not folder.write(["b"], 8, [np.arange(3)])
    assert {record.getMessage() for record in caplog.records} == {
        f"Cannot keep maps of keys in {place}: other users may open it"
    }


def test_a_directory_that_cannot_be_made_is_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file in its place costs time only."""
    (tmp_path / "maps").write_text("")
    folder = folder_in(tmp_path)
    assert use(folder, ["a", "a"]) == []
    assert len(caplog.records) == 1
