"""The decision which lost data files a repair may believe in: those whose entries it removes.

A file that a request does not find may be lost. Or its disk is not mounted, its prefix is in another account, or a
whole copy of the table lacks it: then its entry must stay, because the file will be there again.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from icesize.units import format_count

MOST_SHARE = 10
"""One of this many files, or rows, of a table may be lost without a confirmed number."""


@dataclass(frozen=True)
class LostFiles:
    """The data files of a snapshot that a direct look at their names did not find, each counted once.

    Attributes:
        rows: The rows of each lost file, by its path.
        table_files: Number of data files of the snapshot.
        table_rows: Number of their rows.
        folders: Directories, or prefixes of an object store, with a data file that is there.
    """

    rows: Mapping[str, int]
    table_files: int
    table_rows: int
    folders: Collection[str]

    def why_kept(self, confirmed: int | None = None) -> dict[str, str]:
        """Return the reason for each lost file whose entry has to stay; `confirmed` is the number that the user gave.

        With the exact number, all entries go; with another number, all of them stay.
        """
        count = len(self.rows)
        if confirmed == count:
            return {}
        if confirmed is not None:
            return dict.fromkeys(
                self.rows, f"{format_count(count, 'data file')} of the table are missing, not {confirmed:,}"
            )
        confirm = f"if they are lost, confirm with `--lost-files {count}`"
        if MOST_SHARE * count > self.table_files or MOST_SHARE * sum(self.rows.values()) > self.table_rows:
            of_all = f"{count:,} of {format_count(self.table_files, 'data file')} are missing"
            why = f"{of_all}: the storage may not be mounted, or be another one; {confirm}"
            return dict.fromkeys(self.rows, why)
        return {
            path: f"No other file of the table is in {folder}, which may not be mounted; {confirm}"
            for path in self.rows
            if (folder := folder_of(path)) not in self.folders
        }


def folder_of(path: str) -> str:
    """Return the directory of a file, or its prefix in an object store."""
    return path.rpartition("/")[0]
