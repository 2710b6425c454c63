"""Arrays on the local disk: bounded, private, written by one process, kept by what they save."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from icesize.parquet.keys.index_files import Array, IndexFolder

KB = 2**10
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from icesize.parquet.keys.index_files import IndexFolder
folder = IndexFolder(Path(sys.argv[1]), 2**30)
secret = folder.begin_batch()
print([folder.read(["a"]) is not None, folder.write(["b"], 8, [np.arange(3)]), secret.hex()], flush=True)
sys.stdin.read()
"""


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
    for _ in range(20):
        there = use(folder, names)
        folder.begin_batch()
        assert size_of(tmp_path) <= 350 * KB
    assert there == names[:3]


def test_what_is_used_no_more_makes_room(tmp_path: Path) -> None:
    """Files that batches stopped using go before those that are used, and another process begins with the bound."""
    folder = folder_in(tmp_path, 350 * KB)
    for _ in range(10):
        use(folder, ["old", "kept"])
        folder.begin_batch()
    for _ in range(30):
        there = use(folder, ["kept", "new", "newer"])
        folder.begin_batch()
    assert there == ["kept", "new", "newer"]
    assert folder.read(["old"]) is None

    del folder
    again = folder_in(tmp_path, 350 * KB)
    for _ in range(30):
        there = use(again, ["kept", "next"])
        again.begin_batch()
        assert size_of(tmp_path) <= 350 * KB
    assert there == ["kept", "next"]


def test_small_files_go_before_large_ones(tmp_path: Path) -> None:
    """Opening a data file costs as much as reading many rows, so that a byte of a small map saves more, at once."""
    folder = folder_in(tmp_path, 1_050 * KB)
    for _ in range(20):
        use(folder, ["large"], 1_000)
        folder.begin_batch()
    for _ in range(2):
        use(folder, ["large"], 1_000)
        use(folder, ["small1", "small2"], 60)
        folder.begin_batch()
    assert folder.read(["small1"]) is not None
    assert folder.read(["small2"]) is not None


def test_arrays_of_files_that_are_gone_are_removed(tmp_path: Path) -> None:
    """Those of live files and those that this batch made stay, and those of an earlier process are looked at."""
    folder = folder_in(tmp_path)
    use(folder, ["live", "gone"])
    folder.sweep(lambda: ["live"])
    del folder
    folder = folder_in(tmp_path)
    for _ in range(16):
        use(folder, ["live"])
        folder.begin_batch()
        use(folder, ["new"])
        folder.sweep(lambda: ["live"])
    assert size_of(tmp_path) < 250 * KB
    assert folder.read(["gone"]) is None
    assert folder.read(["live"]) is not None
    assert folder.read(["new"]) is not None


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Unfinished files go, and files of others stay."""
    use(folder_in(tmp_path), ["a"])
    (tmp_path / "maps" / "x.arrays-1-part").write_bytes(b"x")
    (tmp_path / "maps" / "notes.txt").write_text("mine")
    use(folder_in(tmp_path), ["b"])
    assert not (tmp_path / "maps" / "x.arrays-1-part").exists()
    assert (tmp_path / "maps" / "notes.txt").exists()


@pytest.mark.engine
def test_a_second_process_reads_and_does_not_write(tmp_path: Path) -> None:
    """It has the same secret, and may write when the first one has ended."""
    pytest.importorskip("fcntl")

    def started() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", PROGRAM, str(tmp_path / "maps")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    folder = IndexFolder(tmp_path / "maps", 2**30)
    secret = folder.begin_batch().hex()
    assert folder.write(["a"], 8, [np.arange(3)])
    with started() as second:
        out, _ = second.communicate("")
    assert out.strip() == str([True, False, secret])

    del folder
    with started() as third:
        assert third.stdout is not None
        assert third.stdout.readline().strip() == str([True, True, secret])
        waiting = folder_in(tmp_path)
        assert waiting.read(["b"]) is not None
        assert not waiting.write(["c"], 8, [np.arange(3)])
        third.communicate("")
    assert waiting.write(["c"], 8, [np.arange(3)])


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
