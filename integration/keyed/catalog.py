"""A catalog in a SQLite file that loses answers, and lets other writers come first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, TooManyRequestsError
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.update import AddSnapshotUpdate

FAULTS = ("busy", "lost", "lie", "unknown", "gone", "late")
"""busy: 429. lost: 409, nothing landed. lie: 409, and it landed. unknown: no answer, nothing landed. gone: no answer,
and it landed. late: no answer, and it is tried again at the load after the next one."""


class UnreliableCatalog(SqlCatalog):
    """Each of `faults` is spent by one commit. `landed` is called when a commit with snapshots is visible."""

    def __init__(self, name: str, **properties: str) -> None:
        self.faults: list[str] = []
        self.before_swap: list[Callable[[], object]] = []
        self.landed: list[Callable[[], object]] = []
        self.late: list[tuple[int, tuple[Any, ...], SqlCatalog]] = []
        super().__init__(name, **properties)

    def calm(self) -> None:
        """Forget faults and writers that did not come."""
        self.faults.clear()
        self.before_swap.clear()

    def load_table(self, identifier: Any) -> Table:
        waiting, self.late[:] = list(self.late), []
        for loads, arguments, catalog in waiting:
            if loads:
                self.late.append((loads - 1, arguments, catalog))
            else:
                catalog.__class__._try(catalog, arguments)  # type: ignore[attr-defined]
        return super().load_table(identifier)

    def commit_table(self, *arguments: Any) -> CommitTableResponse:
        if self.before_swap:
            self.before_swap.pop(0)()
        fault = self.faults.pop(0) if self.faults else None
        if fault == "busy":
            raise TooManyRequestsError("429")
        if fault == "lost":
            raise CommitFailedException("409, for no reason")
        if fault == "unknown":
            raise ConnectionError("no answer")
        if fault == "late":
            self.late.append((1, arguments, self))
            raise ConnectionError("no answer yet")
        response = super().commit_table(*arguments)
        self._note(arguments)
        if fault == "lie":
            raise CommitFailedException("409, but it landed")
        if fault == "gone":
            raise ConnectionError("no answer, but it landed")
        return response

    def _try(self, arguments: tuple[Any, ...]) -> None:
        """Commit a request that hung in the network, if it still can be."""
        try:
            super().commit_table(*arguments)
        except Exception:
            return
        self._note(arguments)

    def _note(self, arguments: tuple[Any, ...]) -> None:
        if self.landed and any(isinstance(each, AddSnapshotUpdate) for each in arguments[2]):
            self.landed[0]()
