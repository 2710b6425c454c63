"""Somebody deletes rows, by position or by equality, at any point of any job: none comes back, none is lost.

Batches of a stream are in `integration/test_rival_deletes.py`.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.environment import Environment
from icesize.errors import CommitConflict
from icesize.sized_table import SizedTable
from tests.support.examples import sampled
from tests.support.rival_deletes import KINDS, Ids, Rival, at_failpoint, reached_points
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import append, local, make_table, small_files, sqlite_catalog

POLICY: dict[str, object] = {"target_file_size_bytes": 3_000, "small_file_limit_bytes": 2_900, "max_small_files": 1}
NO_MERGES: dict[str, object] = {"small_file_limit_bytes": 1, "max_delete_files": 1, "close_file_cost_bytes": 0}
"""Files are large, and their delete files are put together instead."""
DAY_MS = 86_400_000
A, B = range(1, 1201), range(2001, 2003)
"""Ids of the partitions `a` and `b`; the files of `a` overlap."""

Make = Callable[[], AbstractContextManager["FaultedTable"]]

MERGE = ("planned", "writing", "files-written", "before-swap", "after-swap", "cleanup")
PATHS = {
    "compact": MERGE,
    "after_batch": MERGE,
    "cluster": MERGE,
    "maintain": (*MERGE, "expiry-decided", "before-delete"),
    "rewrite_deletes": MERGE,
    "restore": MERGE[1:],
}
"""The points that each job passes, `cleanup` where it has lost a commit."""


def fill(catalog: SqlCatalog) -> tuple[int, Ids, Ids]:
    """A table with deletes of both kinds: a version of partition `a`, its rows, and those that there are now."""
    make_table(catalog, properties={"history.expire.max-snapshot-age-ms": "1"})
    for number in B:
        append(catalog, [number], "b")
    append(catalog, A[0::4])
    first, second = small_files(append(catalog, A[1::4]), "a")
    delete_rows(catalog, first, [1])
    version_id = delete_ids(catalog, second, [A[5]]).metadata.current_snapshot_id
    assert version_id is not None
    for number in (2, 3):
        append(catalog, A[number::4])
    delete_rows(catalog, first, [2])
    delete_ids(catalog, first, [A[9], A[6]])
    version = Counter([*A[0::4], *A[1::4]]) - Counter([A[4], A[5]])
    return version_id, version, Counter([*A, *B]) - Counter(A[i] for i in (4, 5, 6, 8, 9))


def age(table: Table) -> None:
    """A day passes, in which nobody changes rows."""
    path = local(table.metadata_location)
    path.write_text(re.sub(r'(?<=-ms":)\d+', lambda found: str(int(found[0]) - DAY_MS), path.read_text()))


@dataclass(frozen=True)
class FaultedTable:
    """The table of `fill`; a version of partition `a` may be restored."""

    catalog: SqlCatalog
    version_id: int
    version: Ids
    ids: Ids

    def opened(self, **policy: object) -> SizedTable:
        """As we open it: no waiting."""
        at_once = Environment(sleep=lambda seconds: None)
        return icesize.open(None, "db.t", catalog=self.catalog, policy=POLICY | policy, environment=at_once)

    def do(self, job: str) -> None:
        """A restore may refuse."""
        table = self.opened(**(NO_MERGES if job == "rewrite_deletes" else {}))
        if job == "restore":
            with suppress(CommitConflict):
                table.restore({"kind": "a"}, self.version_id)
        elif job == "cluster":
            table.cluster(["id"])
        elif job == "maintain":
            assert table.maintain().failed == {}
        else:
            getattr(table, job)()

    def restored(self, ids: Ids) -> Ids:
        """What a restore makes of these rows."""
        return self.version + Counter(i for i in ids.elements() if i not in A)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Makes the table anew, always in the same place, which its metadata names."""
    folder = tmp_path_factory.mktemp("rivals")
    (folder / "table").mkdir()
    catalog = sqlite_catalog(folder / "table")
    facts = fill(catalog)
    age(catalog.load_table("db.t"))
    catalog.close()
    (folder / "table").rename(folder / "master")

    @contextmanager
    def again() -> Iterator[FaultedTable]:
        shutil.copytree(folder / "master", folder / "table")
        catalog = sqlite_catalog(folder / "table")
        try:
            yield FaultedTable(catalog, *facts)
        finally:
            catalog.close()
            shutil.rmtree(folder / "table")

    return again


@pytest.fixture(scope="module")
def passed(made: Make) -> dict[str, Counter[str]]:
    """How often each job passes each point without a rival."""
    found = dict[str, Counter[str]]()
    for job in PATHS:
        with made() as undisturbed, reached_points() as points:
            undisturbed.do(job)
        found[job] = Counter(points)
    return found


def test_every_point_is_tried(passed: dict[str, Counter[str]]) -> None:
    """Without a rival nothing has to go, and all other points are passed."""
    assert {job: {*points, "cleanup"} for job, points in passed.items()} == {job: set(PATHS[job]) for job in PATHS}


POINTS = [(job, point, kind) for kind in KINDS for job, path in PATHS.items() for point in path]


@pytest.mark.parametrize(("job", "point", "kind"), sampled(POINTS, 2))
def test_no_delete_is_lost(made: Make, passed: dict[str, Counter[str]], job: str, point: str, kind: str) -> None:
    """Each time that the point is passed, and the time after that: the rows are those of the model."""
    for nth in range(1, passed[job]["before-swap" if point == "cleanup" else point] + 1):
        with made() as each:
            rival = Rival(each.catalog, kind, each.ids)
            if job == "restore":
                # rows that somebody has changed meanwhile are not put back
                rival.begin(lambda ids, rival=rival, each=each: ids if rival.has_deleted else each.restored(ids))  # type: ignore[misc]
            with at_failpoint(point, nth, rival):
                each.do(job)
            rival.finish()
        assert rival.commits
