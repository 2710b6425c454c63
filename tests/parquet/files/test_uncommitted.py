"""Files that no snapshot lists yet: who begins them, who removes them, and what must not be removed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyiceberg.types import LongType

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.events import CommitStarted, CommitStatus
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted, uncommitted
from icesize.storage.table_storage import Storage
from tests.support.parquet_files import NAMES, schema_of, settings_of


@dataclass
class AtStake:
    """A commit of which these files are visible, or may be."""

    files: set[str]

    def may_be_visible(self) -> set[str]:
        return self.files

    def status(self) -> CommitStatus:
        return CommitStatus(None)


@pytest.fixture
def settings(tmp_path: Path) -> WriteSettings:
    return settings_of(tmp_path, schema_of(("x", LongType())))


@pytest.fixture
def storage(settings: WriteSettings) -> Storage:
    return settings.storage


def write(files: NewFiles, location: Path) -> None:
    """A finished file of three bytes."""
    stream = files.create(str(location))
    stream.write(b"abc")
    stream.close()
    files.finished(str(location), 3)


@contextmanager
def ends_with(error: type[BaseException], why: str | None = None) -> Iterator[None]:
    """A whole block that an error leaves."""
    with pytest.raises(error, match=why):
        yield


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("error", [None, OSError, KeyboardInterrupt])
def test_what_no_commit_has_taken_goes_with_the_run(
    settings: WriteSettings, storage: Storage, tmp_path: Path, error: type[BaseException] | None
) -> None:
    """Whatever ended it, an error or nothing: only what a commit may have made visible stays."""

    def run() -> None:
        with uncommitted(storage, "s1-7", Environment()) as (owner, environment):
            for name in ("landed", "dropped"):
                write(NewFiles(settings, FileNames("s1-7", 3, 0, owner)), tmp_path / name)
            environment.observe(CommitStarted(AtStake({str(tmp_path / "landed")})))
            if error is not None:
                raise error

    if error is None:
        run()
    else:
        with pytest.raises(error):
            run()
    assert names(tmp_path) == ["landed"]


def test_files_of_other_processes_go_with_the_run_too(storage: Storage, tmp_path: Path) -> None:
    """They are noted where the run is; other files below the same folder are nobody's business."""
    for name in ("noted", "of somebody else"):
        (tmp_path / name).write_bytes(b"abc")
    with uncommitted(storage, "s1-7", Environment()) as (owner, _):
        owner.note([str(tmp_path / "noted")])
    assert names(tmp_path) == ["of somebody else"]


def test_an_interrupt_while_a_run_cleans_up_is_made_up_for(
    settings: WriteSettings, storage: Storage, tmp_path: Path
) -> None:
    """Ctrl-C at the end of a block that went well, before all is removed: it is removed all the same."""
    first = iter([True])

    class Interrupted(AtStake):
        def may_be_visible(self) -> set[str]:
            if next(first, False):
                raise KeyboardInterrupt
            return self.files

    with ends_with(KeyboardInterrupt), uncommitted(storage, "s1-7", Environment()) as (owner, environment):
        write(NewFiles(settings, FileNames("s1-7", 3, 0, owner)), tmp_path / "dropped")
        environment.observe(CommitStarted(Interrupted(set())))
    assert names(tmp_path) == []


def test_a_thread_that_is_late_finds_its_run_given_up(
    settings: WriteSettings, storage: Storage, tmp_path: Path
) -> None:
    """It removes its own file: whoever gave the run up has looked for it already."""
    owner = Uncommitted(storage, "s1-7")
    files = NewFiles(settings, FileNames("s1-7", 3, 0, owner))
    with ends_with(RewriteFailed, "the operation that writes it was cancelled"), files.all_or_none():
        stream = files.create(str(tmp_path / "late"))
        owner.abandon()
        stream.close()
        (tmp_path / "late").write_bytes(b"an object store has it when it is closed")
        files.finished(str(tmp_path / "late"), 0)
    assert names(tmp_path) == []


def test_an_attempt_that_fails_takes_its_own_files_only(settings: WriteSettings, tmp_path: Path) -> None:
    """The work around it goes on, and keeps what it has begun before and after."""
    files = NewFiles(settings, NAMES)
    with files.all_or_none():
        write(files, tmp_path / "before")
        with ends_with(OSError, "full"), files.all_or_none():
            write(files, tmp_path / "within")
            raise OSError("full")
        write(files, tmp_path / "after")
    assert names(tmp_path) == ["after", "before"]


def test_the_work_takes_the_files_of_its_attempts_with_it(settings: WriteSettings, tmp_path: Path) -> None:
    """An attempt that went well is no reason to keep files of work that fails later."""
    files = NewFiles(settings, NAMES)
    with ends_with(KeyboardInterrupt), files.all_or_none():
        with files.all_or_none():
            write(files, tmp_path / "within")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


def test_files_are_closed_before_they_are_removed(settings: WriteSettings, tmp_path: Path) -> None:
    """By what was said last; that this fails keeps no file from being removed."""
    files, closed = NewFiles(settings, NAMES), list[bool]()
    location = str(tmp_path / "open")

    def close() -> None:
        closed.append(Path(location).exists())
        raise OSError("no connection")

    with ends_with(KeyboardInterrupt), files.all_or_none():
        stream = files.create(location)
        files.close_by(location, close)
        raise KeyboardInterrupt
    stream.close()
    assert (closed, names(tmp_path)) == ([True], [])


def test_files_that_other_threads_finish_are_waited_for(settings: WriteSettings, tmp_path: Path) -> None:
    """No file appears after the failed work has removed its files."""
    files, may_end = NewFiles(settings, NAMES), threading.Event()
    location = str(tmp_path / "slow")

    def finish() -> None:
        may_end.wait(10)
        stream.close()

    with ends_with(OSError, "full"), files.all_or_none():
        stream = files.create(location)
        thread = threading.Thread(target=finish)
        thread.start()

        def wait() -> None:
            may_end.set()
            thread.join()

        files.close_by(location, wait)
        raise OSError("full")
    assert (thread.is_alive(), names(tmp_path)) == (False, [])
