"""Ctrl-C at every step of a merge: nothing stays that nobody knows of, and the commit is wholly in or not at all."""

from __future__ import annotations

import shutil
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize import failpoints
from icesize.environment import Commitment, Environment
from icesize.parquet import pool
from tests.tables import check, data_files_on_disk, ids_of, live_paths, local, make_table, request_on, run, write

ICESIZE = str(Path(icesize.__file__).parent)
POOLS = ("/concurrent/futures/thread.py", "/concurrent/futures/_base.py")
"""The parts of Python in which this thread starts others and waits for them; locks below them do not stand it."""
IN_CHARGE = ("maintenance.py", "pool.py", "unseen.py", "outcome.py", "handle.py", "commit.py", "attempts.py")
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
def interrupted(steps: _Steps) -> Iterator[None]:
    """From the moment that merges may begin."""
    once = iter([steps.begin])
    try:
        with failpoints.armed("planned", lambda: next(once, lambda: None)()):
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


def compact_until(lake: SqlCatalog, steps: _Steps) -> list[Commitment]:
    """The commits of a compaction that may have been interrupted; all threads have ended."""
    told: list[Commitment] = []
    table = icesize.open(None, "db.t", catalog=lake, environment=Environment(on_commitment=told.append))
    try:
        with interrupted(steps):
            table.compact()
    except KeyboardInterrupt:
        pass
    for thread in threading.enumerate():
        if thread.name.startswith(pool.THREADS):
            thread.join()
    return told


def check_interrupted_at(lake: SqlCatalog, table: Table, steps: _Steps) -> Table:
    """Nothing is left but what the catalog was being asked for; the table for the next time."""
    before = data_files_on_disk(table)
    fates = [commitment.fate() for commitment in compact_until(lake, steps)]
    after = lake.load_table("db.t")
    new = data_files_on_disk(after) - before
    if after.metadata_location == table.metadata_location:
        assert not any(fate.landed for fate in fates)
        # while the catalog is being asked nobody knows
        assert not new or [fate.landed for fate in fates] == [None], f"step {steps.nth}"
        for path in new:
            local(path).unlink()
        return table
    check(after)
    assert ids_of(lake) == list(range(6))
    assert [fate.snapshot_ids for fate in fates] == [(after.current_snapshot().snapshot_id,)]
    assert new == set(live_paths(after)), f"step {steps.nth}"
    return fill(lake)


def interrupt_each(lake: SqlCatalog, modules: tuple[str, ...], often: int, first: int, step: int) -> tuple[int, int]:
    """Compact again and again, interrupted one `step` later each time; (how often, how often it had committed)."""
    table, committed, nth = fill(lake), 0, first
    while True:
        steps = _Steps(nth, modules, often)
        after = check_interrupted_at(lake, table, steps)
        if steps.count < nth:
            return (nth - first) // step, committed
        committed += after is not table
        table, nth = after, nth + step


def test_ctrl_c_where_files_change_hands_leaves_none(lake: SqlCatalog) -> None:
    """A compaction is interrupted at lines of the modules that hand files on: each time nothing stays, or all is in."""
    times, committed = interrupt_each(lake, ("maintenance.py", "pool.py", "unseen.py"), 1, first=1, step=3)
    assert times > 15
    assert committed > 0


@pytest.mark.slow
@pytest.mark.parametrize("modules", [IN_CHARGE, (".py",)], ids=["in charge", "all"])
def test_ctrl_c_at_every_step_leaves_nothing(lake: SqlCatalog, modules: tuple[str, ...]) -> None:
    """The same at every line that is reached, of ours and of Python's thread pools."""
    times, committed = interrupt_each(lake, modules, 1, first=1, step=1)
    assert times > 200
    assert committed > 0
