"""What a table with upserts must contain: a fold of events over rows, and nothing of icesize.

A row is known by its values. No two different rows of one key have the same order, except repeats of one event.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[Any, ...]
Order = list[tuple[bool, Any]]
"""An order that compares with others: NULL is before any value."""


class Row(NamedTuple):
    """Values of the columns of the key and of the order, of the partition, and a number that names the version."""

    key: Key
    order: tuple[Any, ...]
    part: str | None
    version: int | None


class Event(NamedTuple):
    """A row to write, or a row whose key is deleted: of that, only key and order have a meaning."""

    row: Row
    is_delete: bool = False


@dataclass(frozen=True)
class Effect:
    """What a batch must report: keys of each kind, and the rows that its snapshot wrote."""

    keys: int = 0
    updated: int = 0
    deleted: int = 0
    late: int = 0
    doubled: int = 0
    written: frozenset[Row] = frozenset()
    removed: frozenset[Row] = frozenset()
    replaces: dict[Row, tuple[Row, ...]] = field(default_factory=dict)


def comparable(order: Iterable[Any]) -> Order:
    """An order from values."""
    return [(value is not None, value) for value in order]


def newest(events: Sequence[Event]) -> dict[Key, Event]:
    """The event of each key with the greatest order; of equal orders a delete, else any, as they are repeats."""
    winners = dict[Key, Event]()
    for event in events:
        now = winners.get(event.row.key)
        if now is None or _rank(event) > _rank(now):
            winners[event.row.key] = event
    return winners


def _rank(event: Event) -> tuple[Order, bool]:
    return comparable(event.row.order), event.is_delete


@dataclass
class Model:
    """The live rows by key; a key has several of them only where another writer has added them.

    `tombstones` are the greatest orders of deletes by key; None if deletes are not remembered.
    """

    has_order: bool
    tombstones: dict[Key, Order] | None = None
    rows: dict[Key, list[Row]] = field(default_factory=dict)

    def all(self) -> list[Row]:
        """All live rows."""
        return [row for rows in self.rows.values() for row in rows]

    def set(self, rows: Iterable[Row]) -> None:
        """Make these the live rows."""
        self.rows = {}
        self.add(rows)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows that another writer appends."""
        for row in rows:
            self.rows.setdefault(row.key, []).append(row)

    def remove(self, rows: Iterable[Row]) -> None:
        """Remove rows that another writer deletes."""
        for row in rows:
            self.rows[row.key].remove(row)
            if not self.rows[row.key]:
                del self.rows[row.key]

    def apply(self, events: Sequence[Event]) -> Effect:
        """Change the rows as one batch of events must, and return what it must report."""
        winners = newest(events)
        updated = deleted = late = doubled = 0
        written, removed, replaces = set[Row](), set[Row](), dict[Row, tuple[Row, ...]]()
        for key, event in winners.items():
            live = self.rows.pop(key, [])
            doubled += len(live) > 1
            top = max(live, key=lambda row: comparable(row.order), default=None)
            order, is_buried = self._remembered(event)
            if self.has_order and top is not None and comparable(top.order) >= order:
                late += 1
                removed.update(row for row in live if row is not top)
                self.rows[key] = [top]
                continue
            late += is_buried
            is_delete = event.is_delete or is_buried
            removed.update(live)
            updated += bool(live) and not is_delete
            deleted += bool(live) and is_delete
            if not is_delete:
                self.rows[key] = [event.row]
                written.add(event.row)
                replaces[event.row] = tuple(live)
        return Effect(
            len(winners), updated, deleted, late, doubled, frozenset(written), frozenset(removed), replaces
        )  # fmt: skip

    def _remembered(self, event: Event) -> tuple[Order, bool]:
        """The order of a remembered delete of the key that is newer than the event, or as new, and True; else its own.

        A delete is remembered from now on.
        """
        key, order = event.row.key, comparable(event.row.order)
        deleted = None if self.tombstones is None else self.tombstones.get(key)
        is_buried = deleted is not None and deleted >= order
        if self.tombstones is not None and event.is_delete and not is_buried:
            self.tombstones[key] = order
        return (deleted, True) if deleted is not None and is_buried else (order, False)
