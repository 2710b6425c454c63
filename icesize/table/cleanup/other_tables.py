"""Other tables of the catalog with files below a table's location, and the files that they refer to.

A listing does not show the owner of a file, and metadata files show it only if they lie beside the data. The catalog
lists its tables. If a directory of such a table overlaps the location, every file that the table refers to stays. Two
cases are not found: tables of other catalogs, and files that were added to a table from a directory that it does not
name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.locations import has_parent_segment, is_inside, normalised, split
from icesize.table.catalog.opening import LIST, denied
from icesize.table.catalog.tables import Name, NotLoaded, each_of, load_named, names_of
from icesize.table.cleanup.expired_files import own_folders
from icesize.table.storage.reachable import Reachable
from icesize.units import format_count

MOST_TABLES = 2_000
"""Most tables of a catalog that are loaded: at a tenth of a second each, eight at a time, half a minute."""
MOST_NAMED = 3
"""Most tables that a note names."""


@dataclass(frozen=True)
class OtherTables:
    """Files that other tables refer to, the names of these tables, and reasons that there may be more of them."""

    needed: Reachable = field(default_factory=Reachable)
    names: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()


def other_tables(table: Table, due: Sequence[str], most_tables: int = MOST_TABLES) -> OtherTables:
    """Return the files of other tables in the catalog whose directories overlap this table's location.

    Args:
        table: The table whose location was listed.
        due: Files below that location that are to be deleted; directories without any are ignored.
        most_tables: Most tables that are loaded; tables of the same namespace come first.

    Returns:
        The files, and doubts. A catalog that cannot list its tables, or an unreadable table, is a doubt, not an error.
    """
    catalog, own = table.catalog, table.name()
    overlaps, each = overlap(table.location(), due), each_of(catalog)
    names: list[Name] = []
    loaded: list[Table | str | None] = []
    doubts: list[str] = []
    try:
        for _ in range(2):  # a table may be renamed into a namespace that was listed before
            listed = set(names_of(catalog, doubts.append)).difference(names, [own])
            new = sorted(listed, key=lambda name: (name[:-1] != own[:-1], name))
            loaded += each(lambda name: _loaded(catalog, name, overlaps), new[: max(0, most_tables - len(names))])
            names += new
    except Exception as error:  # each catalog client raises its own errors
        doubts.append(f"the catalog cannot list its tables ({denied(error, LIST)})")
    needed, found = Reachable(), [other for other in loaded if isinstance(other, Table)]
    failed = [why for why in loaded if isinstance(why, str)]
    for other in found:
        try:
            needed.add(other.metadata, other.metadata_location, other.io)
        except Exception as error:  # each storage client raises its own errors
            failed.append(f"{'.'.join(other.name())}: {brief(error)}")
    if failed:
        doubts.append(f"{format_count(len(failed), 'table')} cannot be read, the first is {failed[0]}")
    if (more := len(names) - most_tables) > 0:
        doubts.append(f"{format_count(more, 'table')} beyond the first {most_tables:,} were not loaded")
    return OtherTables(needed, tuple(".".join(other.name()) for other in found), tuple(dict.fromkeys(doubts)))


def _loaded(catalog: Catalog, name: Name, overlaps: Callable[[str], bool]) -> Table | str | None:
    """Return a table with a directory that overlaps; None for any other, a sentence for one that cannot be loaded."""
    table = load_named(catalog, name)
    if isinstance(table, NotLoaded):
        has_files = table.kind in ("unreadable", "unsupported")
        return f"{'.'.join(name)}: {table.why}" if has_files else None
    folders = [*own_folders(table), table.metadata_location.rpartition("/")[0]]
    return table if any(map(overlaps, folders)) else None


def overlap(location: str, due: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate: True for a directory that contains the location, or lies in it and contains a due file."""
    start, own = len(normalised(location)), _real(location)
    files = [own + normalised(file)[start:] for file in due]

    def overlaps(folder: str) -> bool:
        place = _real(folder)
        if place == own or is_inside(own, place) or has_parent_segment(place):
            return True
        return is_inside(place, own) and any(is_inside(file, place) for file in files)

    return overlaps


def _real(location: str) -> str:
    """Return one spelling of a directory; in local storage, the spelling of the directory itself, not of a link."""
    scheme, _, path = split(location)
    return normalised(f"file://{os.path.realpath(path)}" if scheme == "file" else location)
