"""Many files are deleted at once: failures are counted, missing files are done, stopping is clean."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.environment import Environment
from icesize.errors import TableError
from icesize.table.storage.bulk_delete import Deleter, FileErrors, deleted, deleter
from tests.support.orphans import one_by_one
from tests.support.tables import FakeTime


def _failures(files: Iterable[str], by: Deleter, environment: Environment | None = None, most: int = 8) -> FileErrors:
    groups = deleted(files, by, environment or Environment(), most)
    return {file: error for _, errors in groups for file, error in errors.items()}


def test_all_are_deleted_and_told() -> None:
    """Every location is tried once, and told in order."""
    tried: list[str] = []
    names = [f"f{i}" for i in range(100)]
    assert [*deleted(names, one_by_one(tried.append), Environment(), 3)] == [([name], {}) for name in names]
    assert sorted(tried) == sorted(names)


def test_failures_are_counted_and_the_others_go_on() -> None:
    """Failures are told in order; a missing file is no failure."""

    def delete(location: str) -> None:
        if location in ("f3", "f4"):
            raise PermissionError(f"not {location}")
        if location == "f5":
            raise FileNotFoundError(location)
        if location == "f6":
            raise OSError(2, "Path does not exist")

    done = _failures([f"f{i}" for i in range(10)], one_by_one(delete))
    assert [(name, str(error)) for name, error in done.items()] == [("f3", "not f3"), ("f4", "not f4")]


def test_nothing_to_delete() -> None:
    """An empty bulk delete deletes nothing and asks nobody."""
    assert _failures([], one_by_one(lambda location: pytest.fail(location))) == {}


def test_only_so_many_at_a_time() -> None:
    """Never more requests than allowed, and only a few locations are taken ahead of them."""
    lock, under_way, most, ahead = threading.Lock(), [0], [0], [0]
    started = [0]

    def delete(location: str) -> None:
        with lock:
            started[0] += 1
            under_way[0] += 1
            most[0] = max(most[0], under_way[0])
        with lock:
            under_way[0] -= 1

    def locations() -> Iterator[str]:
        for i in range(500):
            ahead[0] = max(ahead[0], i - started[0])
            yield f"f{i}"

    assert _failures(locations(), one_by_one(delete), most=2) == {}
    assert most[0] <= 2
    assert ahead[0] <= 8


def test_stopping_leaves_the_rest() -> None:
    """What interrupts the caller stops the sweep: what had not begun is not deleted."""
    gone: list[str] = []

    def interrupted() -> None:
        for _ in deleted([f"f{i}" for i in range(1000)], one_by_one(gone.append), Environment(), 2):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert 1 <= len(gone) <= 8


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_files_of_a_file_io(tmp_path: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO]) -> None:
    """Local files go through either FileIO, by each spelling; a missing one is gone already."""
    remover = deleter(kind({}))
    for name, spelling in (("a", f"file://{tmp_path}/a"), ("b", f"file:{tmp_path}/b")):
        (tmp_path / name).write_text("x")
        assert remover.delete([spelling]) == {}
    assert list(tmp_path.iterdir()) == []
    assert remover.delete([f"file://{tmp_path}/a"]) == {}


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_names_that_mean_other_files_are_refused(
    tmp_path: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO]
) -> None:
    """`a#b` would delete `a`, and `*` everything: neither happens, and a file of such a name goes alone."""
    for name in ("a", "a#b", "b", "*", "[ab]"):
        (tmp_path / name).write_text("x")
    remover = deleter(kind({}))
    for name in ("*", "[ab]"):
        assert remover.delete([f"file://{tmp_path}/{name}"]) == {}
    for location in (f"file://{tmp_path}/a#b", f"file://{tmp_path}/a?b"):
        error = remover.delete([location])[location]
        assert isinstance(error, TableError)
        assert "would read its name as the name of other files" in str(error)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "a#b", "b"]


@pytest.mark.parametrize(
    "text",
    [
        "AWS Error SLOW_DOWN during DeleteObject: Please reduce your request rate",
        "HTTP status 503",
        "ThrottlingException",
    ],
)
def test_a_store_that_asks_for_fewer_requests(text: str) -> None:
    """The delete is repeated after growing pauses, and fails only if the store goes on rejecting it."""
    rejected, time = {"f1": 3, "f2": 10_000}, FakeTime()

    def delete(location: str) -> None:
        if rejected.get(location, 0):
            rejected[location] -= 1
            raise OSError(text)

    done = _failures(["f0", "f1", "f2"], one_by_one(delete), time.environment, 1)
    assert ([*done], rejected["f1"]) == (["f2"], 0)
    assert 300 < time.seconds < 340
    assert max(time.sleeps) <= 10


def test_a_store_that_rejects_everything_is_waited_for_once() -> None:
    """After five minutes without a success, each further file is tried once; a success makes it worth waiting again."""
    tried, time = Counter[str](), FakeTime()

    def delete(location: str) -> None:
        tried[location] += 1
        if location != "f3":
            raise OSError("HTTP status 503")

    done = _failures([f"f{number}" for number in range(6)], one_by_one(delete), time.environment, 1)
    assert len(done) == 5
    assert [tried[f"f{number}"] for number in (1, 2, 3, 5)] == [1, 1, 1, 1]
    assert min(tried["f0"], tried["f4"]) > 10
    assert 600 < time.seconds < 680


def test_other_errors_are_not_repeated() -> None:
    """A right that is missing does not come by waiting."""

    def delete(location: str) -> None:
        raise PermissionError(f"no right to delete {location}")

    impatient = Environment(sleep=lambda seconds: pytest.fail("no pause"))
    done = _failures(["part-503.parquet"], one_by_one(delete), impatient)
    assert [*done] == ["part-503.parquet"]


def test_only_rejected_files_of_a_group_are_repeated() -> None:
    """A request for four files fails by name: those that the store rejected for now go again, the others are done."""
    requests, time = list[list[str]](), FakeTime()

    def delete(group: Sequence[str]) -> dict[str, Exception]:
        requests.append([*group])
        errors = {"f1": OSError("HTTP status 503"), "f2": PermissionError("no right")}
        return {file: errors[file] for file in group if file in errors and (file != "f1" or len(requests) < 3)}

    def groups(files: Iterable[str]) -> Iterator[Sequence[str]]:
        yield [*files]

    files = [f"f{number}" for number in range(4)]
    ((group, errors),) = deleted(files, Deleter(delete, groups), time.environment, 1)
    assert (group, [*errors], str(errors["f2"])) == (files, ["f2"], "no right")
    assert requests == [["f0", "f1", "f2", "f3"], ["f1"], ["f1"]]
