"""What a table with upserts must contain: a fold of events over rows, and nothing of icesize.

A row is known by its values. No two different rows of one key have the same order, except repeats of one event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Key = tuple[Any, ...]
Order = list[tuple[bool, Any]]
"""An order that compares with others: NULL is before any value."""
RULES = ("order", "order+version", "version+order")
"""The columns of the order in the rule of the table: those of the shape, and the number of the version."""


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


def newest(events: Sequence[Event], order_of: Callable[[Row], Order]) -> dict[Key, Event]:
    """The event of each key with the greatest order; of equal orders a delete, else any, as they are repeats."""
    winners = dict[Key, Event]()
    for event in events:
        now, rank = winners.get(event.row.key), (order_of(event.row), event.is_delete)
        if now is None or rank > (order_of(now.row), now.is_delete):
            winners[event.row.key] = event
    return winners


@dataclass
class Model:
    """The live rows by key; a key has several of them only where another writer has added them.

    `tombstones` are the greatest orders of deletes by key; None if deletes are not remembered. `rule` is one of RULES.
    """

    has_order: bool
    tombstones: dict[Key, Order] | None = None
    rows: dict[Key, list[Row]] = field(default_factory=dict)
    rule: str = "order"

    def order_of(self, row: Row) -> Order:
        """The order of a row by the rule that the table has now."""
        order, version = comparable(row.order), comparable([row.version])
        return {"order": order, "order+version": order + version, "version+order": version + order}[self.rule]

    def change_rule(self, rule: str) -> bool:
        """Compare by another rule from now on; return whether deletes are forgotten, because it begins otherwise."""
        forgets = (rule == "version+order") != (self.rule == "version+order")
        self.rule = rule
        if self.tombstones is not None and forgets:
            self.tombstones = {}
        return forgets

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
        winners = newest(events, self.order_of)
        updated = deleted = late = doubled = 0
        written, removed, replaces = set[Row](), set[Row](), dict[Row, tuple[Row, ...]]()
        for key, event in winners.items():
            live = self.rows.pop(key, [])
            doubled += len(live) > 1
            top = max(live, key=lambda row: self.order_of(row), default=None)
            order, is_buried = self._remembered(event)
            if self.has_order and top is not None and self.order_of(top) >= order:
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
        key, order = event.row.key, self.order_of(event.row)
        # a delete that is remembered by a rule with more columns counts by those of the rule
        deleted = None if self.tombstones is None or key not in self.tombstones else self.tombstones[key][: len(order)]
        is_buried = deleted is not None and deleted >= order
        if self.tombstones is not None and event.is_delete and not is_buried:
            self.tombstones[key] = order
        return (deleted, True) if deleted is not None and is_buried else (order, False)
