"""Detects local files that are the same under several names: by links, mounts, or linked directories."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from pyiceberg.io import FileIO

from icesize.parquet.files.storage import local_path
from icesize.table.catalog.access_errors import storage_errors
from icesize.table.storage.reachable import Reachable


@dataclass
class LocalFiles:
    """Device and inode of needed files that no listing contains under the name that the table uses.

    Object stores have neither, so this is empty for them.
    """

    io: FileIO
    _known: set[tuple[int, int]] = field(default_factory=set)
    _seen: set[str] = field(default_factory=set)

    def listed(self, names: Iterable[str]) -> None:
        """Record the `normalised` names of a listing, which need no lookup."""
        self._seen.update(names)

    def add(self, needed: Reachable) -> None:
        """Look up needed files that were not listed; files that are gone are skipped.

        Raises TableError for a file that cannot be looked up.
        """
        for name in needed:
            if name in self._seen:
                continue
            self._seen.add(name)
            advice = "without this lookup, icesize cannot decide which files are orphans"
            with storage_errors(f"Cannot look up {name}", advice):
                if (found := identity_of(self.io, needed.spelt(name))) is not None:
                    self._known.add(found)

    def __contains__(self, location: str) -> bool:
        """Return True if the file is one of these needed files under another name."""
        return bool(self._known) and identity_of(self.io, location) in self._known


def identity_of(io: FileIO, location: str) -> tuple[int, int] | None:
    """Return device and inode of a file; None if it is gone or not local."""
    path = local_path(io, location)
    try:
        found = None if path is None else os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found and (found.st_dev, found.st_ino)
