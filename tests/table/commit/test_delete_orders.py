"""Deletes and rows of others in every order around a merge: none is lost, none comes back, none hits too much."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import combinations_with_replacement, permutations, product

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import PartitionKey
from icesize.table.commit.protocol import CommitRequest, ConcurrentChange
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.examples import sampled
from tests.support.machine import Reader
from tests.support.parquet_files import fact
from tests.support.tables import append, check, make_table, merged, request_on, run, small_files, write

A = PartitionKey(0, ("a",))
OLD, NEW = (1, 2, 3, 4), (3, 50)
"""Ids in the two files that are merged, and in those that the commit itself adds."""


class Lake:
    """A table, and the rows that are in it by what was done to it."""

    def __init__(self, catalog: SqlCatalog) -> None:
        self.catalog, self.ids, self.reader = catalog, Counter(OLD), Reader()
        make_table(catalog)
        append(catalog, OLD[:2])
        append(catalog, OLD[2:])

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def act(self, event: str) -> None:
        """Row 1 is deleted by its position, or 3 and 60 wherever they are; or new rows come that have both."""
        if event == "position":
            path, position = self._place(1)
            delete_positions(self.table, {path: [position]}, A)
            self.ids[1] = 0
        elif event == "equality":
            delete_equal(self.table, ["id"], [(3,), (60,)], A)
            self.ids[3] = self.ids[60] = 0
        else:
            append(self.catalog, [3, 60])
            self.ids.update([3, 60])

    def _place(self, wanted: int) -> tuple[str, int]:
        for file in small_files(self.table, "a"):
            for position, row in enumerate(self.reader.rows_in(file.path)):
                if row[0] == wanted:
                    return file.path, position
        raise LookupError(wanted)

    @property
    def seen(self) -> Counter[int]:
        """The rows that readers see, of a table that is whole."""
        table = self.table
        head = table.metadata.current_snapshot()
        assert head is not None
        check(table)
        return Counter({row[0]: n for (_, row), n in self.reader.rows(head, table.io).items()})


def pure(lake: Lake) -> CommitRequest:
    """Older files alone."""
    table = lake.table
    return request_on(table, groups=[merged(table, small_files(table, "a"))])


def beside_new_rows(lake: Lake) -> CommitRequest:
    """Older files and new ones of the same commit."""
    table = lake.table
    new = write(table, NEW)
    return request_on(table, [new], [merged(table, [*small_files(table, "a"), fact(new)])], batch=1)


def beside_another_merge(lake: Lake) -> CommitRequest:
    """Older files apart from new ones of the same commit: all outputs in the partition get the number of these."""
    table = lake.table
    new = [write(table, [row]) for row in NEW]
    groups = [merged(table, small_files(table, "a")), merged(table, [*map(fact, new)])]
    return request_on(table, new, groups, batch=1)


def written_once(lake: Lake) -> CommitRequest:
    """New rows and older ones in the same file, which takes the place of the older files."""
    table = lake.table
    older = tuple(small_files(table, "a"))
    left = merged(table, older).files
    rows = [row[0] for file in left for row in lake.reader.rows_in(file.path)]
    return request_on(table, [write(table, [*rows, *NEW])], absorbed=older, batch=1)


def obsolete(table: Table) -> set[str]:
    """Delete files that hit no live data file of their partition."""
    head = table.metadata.current_snapshot()
    deletes = DeleteIndex.of(
        ManifestStore(), table.io, manifests_of(head, table.io, table.metadata.specs()).deletes, table.metadata.specs()
    )
    files = small_files(table, "a")
    numbers, paths = [f.sequence_number for f in files], {plain_path(f.path) for f in files}
    return {
        delete.path
        for delete in deletes.of_partition(A).files
        if (
            all(n >= delete.sequence_number for n in numbers)
            if delete.equality_ids
            else plain_path(only_path(delete) or "") not in paths
        )
    }


REQUESTS = (pure, beside_new_rows, beside_another_merge, written_once)
ORDERS = tuple(permutations(("position", "equality", "data")))


@pytest.mark.parametrize(
    ("events", "request_of"),
    sampled(product(ORDERS, REQUESTS), 7),
    ids=lambda case: "-".join(case) if isinstance(case, tuple) else case.__name__,
)
def test_every_order(lake: SqlCatalog, events: tuple[str, ...], request_of: Callable[[Lake], CommitRequest]) -> None:
    """Rows are exact after each event and after the commit. It drops the merge only for what would bring rows back: a
    position delete meanwhile, and an equality delete where the rows would be out of its reach."""
    for plan, commit in combinations_with_replacement(range(len(events) + 1), 2):
        watched = Lake(lake)
        _run(watched, events, plan, commit, request_of)
        assert watched.seen == +watched.ids
        for event in events[commit:]:
            watched.act(event)
        assert watched.seen == +watched.ids
        lake.drop_table("db.t")


def _run(
    watched: Lake, events: tuple[str, ...], plan: int, commit: int, request_of: Callable[[Lake], CommitRequest]
) -> None:
    for event in events[:plan]:
        watched.act(event)
    before = watched.table
    wanted = request_of(watched)
    meanwhile = events[plan:commit]
    for event in meanwhile:
        watched.act(event)
    brings_back = "position" in meanwhile or (request_of is not pure and "equality" in meanwhile)
    if request_of is written_once and brings_back:
        with pytest.raises(ConcurrentChange, match="another writer deleted rows of it"):
            run(watched.catalog, wanted, before)
    else:
        outcome = run(watched.catalog, wanted, before)
        watched.ids.update(() if request_of is pure else NEW)
        assert bool(outcome.conflicts) == brings_back
        assert all("files dropped: another writer deleted rows of it" in why for why in outcome.conflicts)
        if not brings_back:
            assert not obsolete(watched.table)
