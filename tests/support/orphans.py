"""Searches for orphan files of the table `db.t`, and files that look old or left over."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize.environment import Environment
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.storage.stores import delete_each
from icesize.table.cleanup.orphans import DAY_MS, ORPHANS_OLDER_THAN_MS, OrphanReport, OrphanSearch
from icesize.table.records.ledger import stream_hash
from icesize.table.storage.bulk_delete import Deleter
from tests.support.tables import arrow, local

HOUR_MS = 3_600_000


@dataclass
class Search:
    """Searches table `db.t` of a catalog; `aged` sets the times of files, counted from the time they have now."""

    catalog: SqlCatalog
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def table(self) -> Table:
        return self.catalog.load_table("db.t")

    def now_ms(self) -> int:
        """A moment at which files that were written by this test are zero to few milliseconds old."""
        probe = local(self.table.location()).parent / "probe"
        probe.write_text("")
        return probe.stat().st_mtime_ns // 1_000_000

    def __call__(
        self, dry_run: bool = False, older_than_ms: int = ORPHANS_OLDER_THAN_MS, trust_location: bool = False
    ) -> OrphanReport:
        options: dict[str, Any] = {
            "name": "lake.db.t",
            "reload": lambda: self.table,
            "environment": Environment(now_ms=self.now_ms),
        }
        search = OrphanSearch(**{**options, **self.changes})
        return search.run(older_than_ms, dry_run, trust_location=trust_location)


def one_by_one(delete: Callable[[str], None]) -> Deleter:
    """What deletes files by a function of one file, which raises if it cannot."""

    return Deleter(partial(delete_each, delete))


def aged(location: str | Path, age_ms: int = 4 * DAY_MS) -> str:
    """Make a file look older than it is; returns its location."""
    path = local(str(location))
    now_ns = path.stat().st_mtime_ns
    os.utime(path, ns=(now_ns, now_ns - age_ms * 1_000_000))
    return f"file://{path}"


def leftover(table: Table, name: str, age_ms: int = 4 * DAY_MS, text: str = "left") -> str:
    """A file below the table's location that nobody needs."""
    path = local(table.location()) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return aged(path, age_ms)


def all_aged(table: Table) -> None:
    """Every file of the table looks old, so that only being needed protects it."""
    for path in local(table.location()).rglob("*"):
        if path.is_file():
            aged(path, 30 * DAY_MS)


def left_by_batch(table: Table, stream: str, batch: int, age_ms: int) -> str:
    """A file that icesize wrote for a batch and nobody committed."""
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    (file,) = write_rows([arrow([1])], settings, FileNames(f"{stream_hash(stream)}-{batch}", 0, 7))
    return aged(file.path, age_ms)


def exists(location: str) -> bool:
    return local(location).is_file()


def on_load(search: Search, number: int, action: Callable[[], object]) -> None:
    """Run `action` when the table is loaded for the n-th time: 1 at the start, 2 after the listing, then per batch."""
    loads = [0]

    def reload() -> Table:
        loads[0] += 1
        if loads[0] == number:
            action()
        return search.table

    search.changes["reload"] = reload
