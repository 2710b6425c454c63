"""Files that a table lists more than once: none of them may go while another listing of it stays.

`add_files` of Iceberg's Spark lists a file again when told not to look, also under a newer partition spec. Once a
snapshot that removed one of the listings expires, Iceberg's Java library deletes the file without another look.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from pyiceberg.io import FileIO
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import UnsupportedTable
from icesize.table.catalog.locations import normalised
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.lists import manifests_of


class Listings:
    """How often files are listed, kept up to date manifest by manifest; spellings of one path count as one."""

    def __init__(self) -> None:
        self._times: Counter[str] = Counter()
        self._twice: set[str] = set()

    def add(self, paths: Iterable[str], times: int = 1) -> None:
        """The files of one more manifest; with -1 for `times` those of one that was added before and is gone."""
        for path in map(normalised, paths):
            self._times[path] += times
            if self._times[path] > 1:
                self._twice.add(path)
            else:
                self._twice.discard(path)
            if not self._times[path]:
                del self._times[path]

    def __bool__(self) -> bool:
        """Whether any file is listed more than once."""
        return bool(self._twice)

    def __contains__(self, path: str) -> bool:
        """Whether this file is."""
        return normalised(path) in self._twice


def check_listed_once(io: FileIO, head: Snapshot | None, paths: Collection[str]) -> None:
    """Refuse to replace files that some manifest lists again, also one that a filter has ruled out.

    Reads all data manifests. Raises UnsupportedTable.
    """
    wanted, listings = set(map(normalised, paths)), Listings()
    for manifest in manifests_of(head, io).data:
        listings.add(entry.path for entry in read_entries(io, manifest) if normalised(entry.path) in wanted)
    if twice := next((path for path in paths if path in listings), None):
        raise UnsupportedTable(
            f"Cannot rewrite {twice}: the table lists it more than once, also in a partition that the filter leaves "
            "out; without a filter it is skipped",
            path=twice,
        )
