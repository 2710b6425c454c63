"""Ctrl-C at every step of a merge or a restore: nothing stays that nobody knows of; the commit is in or it is not."""

from __future__ import annotations

import gc
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize import failpoints
from icesize.concurrency import THREADS
from icesize.environment import Environment
from icesize.events import CommitStarted, PendingCommit
from icesize.sized_table import SizedTable
from tests.support.tables import (
    check,
    data_files_on_disk,
    ids_of,
    live_paths,
    local,
    make_table,
    request_on,
    run,
    write,
)

ICESIZE = str(Path(icesize.__file__).parent)
POOLS = ("/concurrent/futures/thread.py", "/concurrent/futures/_base.py")
"""The parts of Python in which this thread starts others and waits for them; locks below them do not stand it."""
IN_CHARGE = (
    "compaction.py",
    "batch_commit.py",
    "threads.py",
    "uncommitted.py",
    "handle.py",
    "attempted_steps.py",
    "attempts.py",
)
"""The modules that hand written files from one to the next."""


class _Steps:
    """Counts the lines that this thread gets to, and interrupts it at the n-th (never: 0). Each line is looked at no
    more than `often` times, as loops repeat themselves."""

    def __init__(self, nth: int, modules: tuple[str, ...], often: int) -> None:
        self.nth = nth
        self.count = 0
        self._modules = modules
        self._often = often
        self._seen: Counter[tuple[str, int]] = Counter()

    def begin(self) -> None:
        """From now on, in all functions that are under way and those they call."""
        sys.settrace(self._trace)
        frame: FrameType | None = sys._getframe()
        while frame is not None:
            frame.f_trace = self._trace
            frame = frame.f_back

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        path = frame.f_code.co_filename
        if not path.endswith(POOLS) and not (path.startswith(ICESIZE) and path.endswith(self._modules)):
            return self._trace if event != "call" or path.startswith(ICESIZE) else None
        line = (path, frame.f_lineno)
        if event == "line" and self._seen[line] < self._often:
            self._seen[line] += 1
            self.count += 1
            if self.count == self.nth:
                raise KeyboardInterrupt
        return self._trace


@contextmanager
def interrupted(steps: _Steps, begins: str) -> Iterator[None]:
    """From the moment that files may be written."""
    once = iter([steps.begin])
    try:
        with failpoints.armed(begins, lambda: next(once, lambda: None)()):
            yield
    finally:
        sys.settrace(None)


def fill(lake: SqlCatalog) -> Table:
    if lake.table_exists("db.t"):
        shutil.rmtree(local(lake.load_table("db.t").location()))
        lake.drop_table("db.t")
    table = make_table(lake)
    run(lake, request_on(table, [write(table, [number], "ab"[number % 2]) for number in range(6)]), table)
    return lake.load_table("db.t")


def filled_and_compacted(lake: SqlCatalog) -> Table:
    fill(lake)
    icesize.open(None, "db.t", catalog=lake).compact()
    return lake.load_table("db.t")


def restore(table: SizedTable) -> None:
    """Partition a as it was before it was compacted."""
    partition = {"kind": "a"}
    table.restore(partition, table.versions(partition)[-1].snapshot_id)


@dataclass(frozen=True)
class Work:
    """A call on a table that was filled for it, and the failpoint from which on files may be written."""

    fill: Callable[[SqlCatalog], Table]
    call: Callable[[SizedTable], object]
    begins: str


COMPACTION = Work(fill, SizedTable.compact, "planned")
RESTORE = Work(filled_and_compacted, restore, "after-swap")
"""A restore writes once its tag is in."""


def call_until(lake: SqlCatalog, work: Work, steps: _Steps) -> list[PendingCommit]:
    """The commits of a call that may have been interrupted; all threads have ended."""
    events = list[object]()
    table = icesize.open(None, "db.t", catalog=lake, environment=Environment(observe=events.append))
    try:
        with interrupted(steps, work.begins):
            work.call(table)
    except KeyboardInterrupt:
        pass
    # a pool whose end was cut short lets its threads go when it is collected
    gc.collect()
    for thread in threading.enumerate():
        if thread.name.startswith(THREADS):
            thread.join()
    return [event.commit for event in events if isinstance(event, CommitStarted)]


def head_id(table: Table) -> int:
    head = table.metadata.current_snapshot_id
    assert head is not None
    return head


def check_interrupted_at(lake: SqlCatalog, work: Work, table: Table, steps: _Steps) -> Table:
    """Nothing is left but what the catalog was being asked for; the table for the next time."""
    before = data_files_on_disk(table)
    statuses = [commitment.status() for commitment in call_until(lake, work, steps)]
    after = lake.load_table("db.t")
    new = data_files_on_disk(after) - before
    if head_id(after) == head_id(table):
        assert not any(status.is_committed for status in statuses if status.snapshot_ids)
        # while the catalog is being asked nobody knows
        assert not new or None in [status.is_committed for status in statuses], f"step {steps.nth}"
        for path in new:
            local(path).unlink()
        return table
    check(after)
    assert ids_of(lake) == list(range(6))
    assert [status.snapshot_ids for status in statuses if status.snapshot_ids] == [(head_id(after),)]
    assert new == set(live_paths(after)) - before, f"step {steps.nth}"
    return work.fill(lake)


def interrupt_each(lake: SqlCatalog, work: Work, modules: tuple[str, ...], first: int, step: int) -> tuple[int, int]:
    """Call again and again, interrupted one `step` later each time; (how often, how often it had committed)."""
    table, committed, nth = work.fill(lake), 0, first
    while True:
        steps = _Steps(nth, modules, often=1)
        after = check_interrupted_at(lake, work, table, steps)
        if steps.count < nth:
            return (nth - first) // step, committed
        committed += after is not table
        table, nth = after, nth + step


@pytest.mark.engine
def test_ctrl_c_where_files_change_hands_leaves_none(lake: SqlCatalog) -> None:
    """A compaction is interrupted at lines of the modules that hand files on: each time nothing stays, or all is in."""
    times, committed = interrupt_each(
        lake, COMPACTION, ("compaction.py", "batch_commit.py", "threads.py", "uncommitted.py"), first=1, step=5
    )
    assert times > 15
    assert committed > 0


@pytest.mark.slow
@pytest.mark.engine
def test_ctrl_c_in_a_restore_leaves_no_copies(lake: SqlCatalog) -> None:
    """Between the copies and the commit, and in the commit: the copies go, or the partition is restored."""
    modules = ("restore.py", "uncommitted.py", "handle.py", "metadata_change.py", "attempts.py")
    times, committed = interrupt_each(lake, RESTORE, modules, first=1, step=5)
    assert times > 15
    assert committed > 0


@pytest.mark.slow
@pytest.mark.parametrize("modules", [IN_CHARGE, (".py",)], ids=["in charge", "all"])
def test_ctrl_c_at_every_step_leaves_nothing(lake: SqlCatalog, modules: tuple[str, ...]) -> None:
    """The same at every line that is reached, of ours and of Python's thread pools."""
    times, committed = interrupt_each(lake, COMPACTION, modules, first=1, step=1)
    assert times > 200
    assert committed > 0
