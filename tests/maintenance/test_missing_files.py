"""A run that took so long that orphan cleanup may have come by looks for its files before it commits them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.table.commit.batch_commit import LONG_RUN_SECONDS
from tests.support.tables import data_files_on_disk, landed, live_paths, local, two_files


class Clock:
    """Stands still until somebody moves it."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.mark.parametrize(("took_s", "refused"), [(LONG_RUN_SECONDS, True), (LONG_RUN_SECONDS - 1, False)])
def test_a_long_compaction_whose_file_is_gone(lake: SqlCatalog, took_s: float, refused: bool) -> None:
    """Twelve hours in, a file that somebody removed fails the compaction; before, nobody can have removed one."""
    clock = Clock()
    two_files(lake)
    table = icesize.open(None, "db.t", catalog=lake, environment=Environment(monotonic=clock))
    before = set(live_paths(lake.load_table("db.t")))

    def hours_later() -> None:
        clock.seconds = took_s
        if refused:
            [new] = data_files_on_disk(lake.load_table("db.t")) - before
            Path(local(new)).unlink()

    with failpoints.armed("files-written", hours_later):
        if refused:
            with pytest.raises(RewriteFailed, match=r"Cannot commit to 'lake\.db\.t': 1 of 1 new files .* took 12 h"):
                table.compact()
        else:
            assert table.compact().files_removed == 2
    landed(lake, [1, 2])
