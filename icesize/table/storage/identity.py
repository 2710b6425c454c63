"""Detects local files that are the same under several names: by links, mounts, or linked directories."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import storage_errors
from icesize.table.storage.reachable import Reachable


@dataclass
class LocalFiles:
    """Device and inode of needed files that no listing contains under the name that the table uses.

    Object stores have neither: `io` is None, and this is empty.
    """

    io: FileIO | None = None
    _known: set[tuple[int, int]] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, table: Table) -> LocalFiles:
        """Return what finds the files of a table under other names."""
        return cls(table.io if Storage.of(table.io).local_path(table.location()) is not None else None)

    def listed(self, name: str) -> None:
        """Record the `normalised` name of a listed file, which needs no lookup."""
        if self.io is not None:
            self._seen.add(name)

    def add(self, needed: Reachable) -> None:
        """Look up needed files that were not listed; files that are gone are skipped.

        Raises TableError for a file that cannot be looked up.
        """
        for name in needed if self.io is not None else ():
            if name in self._seen:
                continue
            self._seen.add(name)
            advice = "without this lookup, icesize cannot decide which files are orphans"
            with storage_errors(f"Cannot look up {name}", advice):
                if (found := self.identity(needed.spelt(name))) is not None:
                    self._known.add(found)

    def __contains__(self, location: str) -> bool:
        """Return True if the file is one of these needed files under another name."""
        return bool(self._known) and self.identity(location) in self._known

    def identity(self, location: str) -> tuple[int, int] | None:
        """Return device and inode of a file; None if it is gone, or the table is not in local storage."""
        return None if self.io is None else identity_of(self.io, location)


def identity_of(io: FileIO, location: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it is gone or not local."""
    path = Storage.of(io).local_path(location)
    try:
        found = None if path is None else os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found and (found.st_dev, found.st_ino)
