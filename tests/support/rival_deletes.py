"""Somebody deletes rows of `db.t` while something else is done to it, and the rows that there must be."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize import failpoints
from icesize.planning.files import PartitionKey
from tests.support.delete_files import delete_equal, delete_positions, live_deletes
from tests.support.machine import Reader
from tests.support.tables import arrow, check, ids_of, small_files

Ids = Counter[int]
KINDS = ("position", "equality")


class Rival:
    """Deletes the rows of partition `a` with the least and the greatest id that are there, and the `coming` ids.

    The latter by equality alone: that hits those that are there, and none that comes later. `ids` must be in the table
    now, `done` says what the operation beside makes of them: a reader sees the one or the other.
    """

    def __init__(self, catalog: Catalog, kind: str, ids: Ids, name: str = "db.t") -> None:
        self.catalog, self.kind, self.name = catalog, kind, name
        self.ids, self.reader, self.commits = Counter(ids), Reader(), 0
        self.begin()

    def begin(self, done: Callable[[Ids], Ids] = lambda ids: ids, coming: Iterable[int] = ()) -> None:
        """Another operation."""
        self._done, self._coming = done, list(coming)
        self.landed = self.has_deleted = False

    @property
    def table(self) -> Table:
        """As the catalog has it now."""
        return self.catalog.load_table(self.name)

    def delete(self) -> None:
        """One commit."""
        table = self.look()
        places = {
            row[0]: (file.path, position)
            for file in small_files(table, "a")
            for position, row in enumerate(self.reader.rows_in(file.path))
            if self.ids[row[0]]
        }
        gone = {min(places), max(places)}
        if self.kind == "position":
            delete_positions(table, _by_path(places[i] for i in gone), self._partition)
        else:
            gone.update(self._coming)
            delete_equal(table, ["id"], [(i,) for i in sorted(gone)], self._partition)
        for i in gone:
            self.ids[i] = 0
        self.ids, self.commits = +self.ids, self.commits + 1
        self.has_deleted = True

    def append_elsewhere(self) -> None:
        """A row in partition `b`: whoever commits now has to try again."""
        table, new = self.look(), 10_000 + sum(self.ids.values())
        table.append(arrow([new], "b"))
        self.ids[new], self.commits = 1, self.commits + 1

    def look(self) -> Table:
        """The table, whose rows are those that must be there, before or after what is done to it; no others ever."""
        table, seen = self.table, self.seen
        if seen != self.ids and not self.landed:
            self.ids, self.landed = self._done(self.ids), True
        assert seen == self.ids
        return table

    def finish(self) -> None:
        """A last look; what PyIceberg can read is read by it, too."""
        table = self.look()
        check(table)
        if not any(entry.data_file.equality_ids for entry in live_deletes(table)):
            assert ids_of(self.catalog, self.name) == sorted(self.ids.elements())

    @property
    def seen(self) -> Ids:
        """By both kinds of deletes, which PyIceberg cannot read."""
        table = self.table
        head = table.metadata.current_snapshot()
        found = self.reader.rows(head, table.io) if head else Counter()
        return Counter({row[0]: n for (_, row), n in found.items()})

    @property
    def _partition(self) -> PartitionKey:
        return PartitionKey(0, ("a",))


@contextmanager
def at_failpoint(point: str, nth: int, rival: Rival) -> Iterator[None]:
    """The rival deletes rows when the block gets to a point for the nth time, and the time after that.

    For `cleanup` the block loses its nth commit to the rival, who deletes rows ahead of the first two removals.
    """
    cleans = point == "cleanup"
    with ExitStack() as armed:
        armed.enter_context(failpoints.armed(point, _at((1, 2) if cleans else (nth, nth + 1), rival.delete)))
        if cleans:
            armed.enter_context(failpoints.armed("before-swap", _at((nth,), rival.append_elsewhere)))
        yield


def _at(numbers: Sequence[int], act: Callable[[], object]) -> Callable[[], None]:
    """Acts when it is called for the nth time, for some n; points are reached in threads, too."""
    lock, reached = threading.Lock(), count(1)

    def action() -> None:
        with lock:
            if next(reached) in numbers:
                act()

    return action


@contextmanager
def reached_points() -> Iterator[list[str]]:
    """The failpoints that the block has passed, in order."""
    passed = list[str]()
    with ExitStack() as armed:
        for point in failpoints.POINTS:
            armed.enter_context(failpoints.armed(point, lambda point=point: passed.append(point)))  # type: ignore[misc]
        yield passed


def _by_path(places: Iterable[tuple[str, int]]) -> dict[str, list[int]]:
    found = dict[str, list[int]]()
    for path, position in sorted(places):
        found.setdefault(path, []).append(position)
    return found
