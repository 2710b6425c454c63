"""Storage of which any one call fails, is cut short or finds a full disk, under every operation."""

from __future__ import annotations

import contextlib
import random
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest

import icesize
from icesize.errors import IcesizeError
from icesize.sized_table import SizedTable
from tests.support.examples import sampled
from tests.support.failing_disk import DISK_KINDS, Disk
from tests.support.failing_storage import KINDS, Call, FailingLake, Saved, Stored, path_of
from tests.support.row_deletes import delete_rows
from tests.support.tables import FakeTime, append, compact, head_id, make_table, small_files

SMALL = {"max-small-files": 1}
SORTED = {"target-file-size-bytes": 800, "small-file-limit-bytes": 400}
WELL_SIZED = {"target_file_size_bytes": 1, "small_file_limit_bytes": 1, "close_file_cost_bytes": 0}
"""Every file is well sized, and one more file costs nothing: only many delete files are due."""
OURS = re.compile(
    r"[0-9a-f]{12}-\d+-\d+-\d+-[0-9a-f-]{36}\.parquet|k[0-9a-f]{8}[fo]-[0-9a-f]+-\d+-\d+-[0-9a-f-]{36}\.parquet"
    r"|[0-9a-f-]{36}-m\d+\.avro|snap-\d+-\d+-[0-9a-f-]{36}\.avro|icesize-(?:expiry|clock)-[0-9a-f-]+(?:\.json)?"
)
"""Names that icesize gives to files."""
OF_THE_CATALOG = re.compile(r"\d{5}-[0-9a-f-]{36}\.metadata\.json")


Facts = dict[str, object]
HOUR_MS = 3_600_000


@dataclass(frozen=True)
class Operation:
    """Something that a table is asked to do, and by which policy."""

    work: Callable[[SizedTable, int], object]
    policy: dict[str, object] = field(default_factory=dict)


OPERATIONS = {
    "compact": Operation(lambda table, first: table.compact(), SMALL),
    "cluster": Operation(lambda table, first: table.cluster(["id"]), SORTED),
    "maintain": Operation(lambda table, first: table.maintain(), SMALL),
    "restore": Operation(lambda table, first: table.restore({"kind": "a"}, first)),
    "expire": Operation(lambda table, first: table.expire_snapshots(older_than=timedelta(0))),
    "orphans": Operation(lambda table, first: table.remove_orphan_files(dry_run=False)),
    "rewrite manifests": Operation(lambda table, first: table.rewrite_manifests()),
    "rewrite deletes": Operation(lambda table, first: table.rewrite_deletes(), WELL_SIZED | {"max-delete-files": 1}),
    "remove dangling deletes": Operation(lambda table, first: table.remove_dangling_deletes()),
    "forget a stream": Operation(lambda table, first: table.forget_stream("s")),
}


@dataclass(frozen=True)
class Start:
    """A lake and how it was saved: a table for which every operation has something to do."""

    lake: FailingLake
    saved: Saved
    first: int
    rows: object
    now_ms: int

    def opened(self, operation: Operation) -> SizedTable:
        """The table an hour after its newest commit; nothing waits."""
        environment = replace(FakeTime().environment, now_ms=lambda: self.now_ms)
        return icesize.open(None, "db.t", catalog=self.lake.catalog, policy=operation.policy, environment=environment)

    def run(self, name: str) -> None:
        """The operation, from opening the table on."""
        operation = OPERATIONS[name]
        report = operation.work(self.opened(operation), self.first)
        # a pass of maintenance reports the steps that failed
        assert self.lake.faults.number or not getattr(report, "failed", None), report

    def calls(self, name: str) -> tuple[list[Call], Facts]:
        """What the operation asks of storage where nothing fails, and what it makes of the table."""
        self.lake.restore(self.saved)
        self.run(name)
        calls = list(self.lake.faults.calls)
        return calls, self.lake.facts()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The table in an object store."""
    with contextlib.closing(FailingLake(tmp_path_factory.mktemp("lake"))) as lake:
        yield filled(lake)


@pytest.fixture(scope="module")
def local_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The table on the local disk."""
    folder = tmp_path_factory.mktemp("lake")
    with contextlib.closing(FailingLake(folder, Disk(folder))) as lake:
        yield filled(lake)
        lake.heal()


def filled(lake: FailingLake) -> Start:
    """Partitions of few small files, old snapshots, files with many delete files and one that hits nothing, orphans."""
    make_table(lake.catalog, properties={"format-version": "2"})
    for number in range(4):
        append(lake.catalog, range(number, 100, 5), "aabb"[number], batch=number)
    first, (gone, _) = head_id(lake.table()), small_files(lake.table(), "a")
    compact(lake.catalog)
    append(lake.catalog, range(4, 100, 5), "a", batch=4)
    live = small_files(lake.table(), "a")[0]
    delete_rows(lake.catalog, gone)
    for number in range(3):
        delete_rows(lake.catalog, live, [number, number + 10])
    for name in ("data/kind=a/stray.parquet", f"metadata/{uuid.UUID(int=0)}-m0.avro"):
        lake.store.put(f"{path_of(lake.table().location())}/{name}", Stored(b"nothing", age_days=9))
    return Start(lake, lake.save(), first, lake.facts()["rows"], lake.table().metadata.last_updated_ms + HOUR_MS)


def try_with(start: Start, name: str, number: int, kind: str, ends_as: Facts) -> None:
    """Let one call of an operation fail: what comes out, what is left, and what the operation does after that."""
    lake = start.lake
    lake.restore(start.saved, number, kind)
    error = raised_by(lambda: start.run(name))
    about = f"{name}: {kind} at call {number} ({lake.faults.struck[:1]}) raises {error!r}"
    lake.heal()
    assert error is None or isinstance(error, IcesizeError), about
    facts, needed = lake.facts(), lake.needed()
    assert facts["rows"] in (start.rows, ends_as["rows"]), about
    new = {path.rpartition("/")[2] for path in lake.store.files.keys() - needed - start.saved.files.keys()}
    assert not {each for each in new if not OURS.fullmatch(each) and not OF_THE_CATALOG.fullmatch(each)}, about
    # a stream that was forgotten before the call failed is unknown
    is_gone = name == "forget a stream" and not facts["streams"]
    assert raised_by(lambda: start.run(name)) is None or is_gone, about
    assert lake.facts() == ends_as, about
    lake.store.age(4)
    start.run("orphans")
    assert lake.store.files.keys() == lake.needed(), about


def raised_by(work: Callable[[], object]) -> Exception | None:
    """What is raised, if anything is."""
    try:
        work()
    except Exception as error:
        return error
    return None


def tried(start: Start, name: str, kind: str, most: int | None = None) -> None:
    """Try each call to which this kind can happen, or so many of them."""
    calls, ends_as = start.calls(name)
    due = start.lake.faults.numbers(calls, kind)
    chosen = due if most is None else random.Random(f"{name} {kind}").sample(due, min(most, len(due)))
    for number in chosen:
        try_with(start, name, number, kind, ends_as)


@pytest.mark.parametrize("name", sampled(OPERATIONS, 3))
def test_a_call_of_storage_fails(start: Start, name: str) -> None:
    """Only icesize's own errors come out, no needed file goes, what is left over is ours and orphan cleanup takes it,
    and the next run does the work: two kinds of failures, each at one call."""
    for kind in random.Random(name).sample(KINDS, 2):
        tried(start, name, kind, most=1)


@pytest.mark.engine
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_some_calls_of_storage_fail(start: Start, name: str, kind: str) -> None:
    """The same of each kind, at up to four calls."""
    tried(start, name, kind, most=4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_of_storage_fails(start: Start, name: str, kind: str) -> None:
    """The same of each kind, at every call."""
    tried(start, name, kind)


@pytest.mark.engine
@pytest.mark.parametrize("kind", DISK_KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_some_calls_of_the_local_disk_fail(local_start: Start, name: str, kind: str) -> None:
    """The same on the local disk, which icesize reaches without PyIceberg, at up to three calls."""
    tried(local_start, name, kind, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", DISK_KINDS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_call_of_the_local_disk_fails(local_start: Start, name: str, kind: str) -> None:
    """The same on the local disk, at every call."""
    tried(local_start, name, kind)
