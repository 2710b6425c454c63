"""A stream of tables, cut anew."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from icesize.errors import RewriteFailed


class Stream:
    """Takes rows off a stream of tables with one schema, whatever their sizes; holds `max_bytes` and one table."""

    def __init__(self, tables: Iterable[pa.Table], max_bytes: int) -> None:
        self._tables = iter(tables)
        self._max_bytes = max_bytes
        self._next: pa.Table | None = None

    def _has_more(self) -> bool:
        while self._next is None or not self._next.num_rows:
            self._next = next(self._tables, None)
            if self._next is None:
                return False
        return True

    def peek(self) -> pa.Table:
        """The table that comes next. Raises `RewriteFailed` at the end."""
        if not self._has_more():
            raise RewriteFailed("Cannot write: there are fewer rows than were counted, report this", path=None)
        return self._next

    def take(self, rows: int) -> pa.Table:
        """The next `rows` rows; fewer when they would exceed `max_bytes`, or the stream ends early. Raises
        `RewriteFailed` when it has ended."""
        parts: list[pa.Table] = []
        taken = size = 0
        while not parts or (taken < rows and size < self._max_bytes and self._has_more()):
            table = self.peek()
            parts.append(table.slice(0, rows - taken))
            self._next = table.slice(rows - taken)
            taken, size = taken + parts[-1].num_rows, size + parts[-1].nbytes
        return pa.concat_tables(parts)

    def rest(self) -> Iterator[pa.Table]:
        """All tables that are left."""
        while self._has_more():
            table, self._next = self._next, None
            yield table
