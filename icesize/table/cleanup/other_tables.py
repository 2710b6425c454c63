"""Other tables of the catalog with files below a table's location, and the files that they refer to.

A listing does not show the owner of a file, and metadata files show it only if they lie beside the data. The catalog
lists its tables. If a directory of such a table overlaps the location, every file that the table refers to stays. Two
cases are not found: tables of other catalogs, and files that were added to a table from a directory that it does not
name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, NoSuchIcebergTableError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from icesize.concurrency import concurrently
from icesize.errors import TableNotFound, UnsupportedTable
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.locations import has_parent_segment, is_inside, normalised, split
from icesize.table.cleanup.expired_files import own_folders
from icesize.table.storage.reachable import Reachable
from icesize.units import format_count

MOST_TABLES = 2_000
"""Most tables of a catalog that are loaded: at a tenth of a second each, eight at a time, half a minute."""
MOST_NAMED = 3
"""Most tables that a note names."""

Name = tuple[str, ...]


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
    overlaps, in_turn = overlap(table.location(), due), _in_turn(catalog)
    names: list[Name] = []
    loaded: list[Table | str | None] = []
    doubts: list[str] = []
    each: Callable[..., Iterable[Any]] = map if in_turn else concurrently
    try:
        for _ in range(2):  # a table may be renamed into a namespace that was listed before
            listed = set(_names(catalog, each, doubts)).difference(names, [own])
            new = sorted(listed, key=lambda name: (name[:-1] != own[:-1], name))
            loaded += each(lambda name: _loaded(catalog, name, overlaps), new[: max(0, most_tables - len(names))])
            names += new
    except Exception as error:  # each catalog client raises its own errors
        doubts.append(f"the catalog cannot list its tables ({brief(error)})")
    needed, found = Reachable(), [each for each in loaded if isinstance(each, Table)]
    failed = [each for each in loaded if isinstance(each, str)]
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


def _in_turn(catalog: Catalog) -> bool:
    """Return True if only this thread may use the catalog.

    Hive has one connection, and SQLite one in-memory database per thread.
    """
    in_memory = catalog.properties.get("uri", "") in ("sqlite://", "sqlite:///:memory:")
    return in_memory or any(kind.__name__ == "HiveCatalog" for kind in type(catalog).__mro__)


def _names(catalog: Catalog, each: Callable[..., Iterable[Any]], doubts: list[str]) -> Iterator[Name]:
    """Yield the names of all tables of a catalog, level by level of namespaces; `doubts` collects listing failures."""
    level: list[Name] = [()]
    while level:
        children: list[Name] = []
        for tables, below in each(lambda namespace: _listed(catalog, namespace, doubts), level):
            yield from tables
            children += below
        level = children


def _listed(catalog: Catalog, namespace: Name, doubts: list[str]) -> tuple[list[Name], list[Name]]:
    """Return tables and namespaces directly below a namespace; the root has no tables.

    A listed namespace that is not found is a doubt: it may be gone, or hidden from this principal.
    """
    try:
        tables = [tuple(name) for name in catalog.list_tables(namespace)] if namespace else []
    except NoSuchNamespaceError:
        doubts.append(f"the namespace {'.'.join(namespace)} was listed and is not found")
        return [], []
    try:
        below = [tuple(name) for name in catalog.list_namespaces(namespace)]
    except (NoSuchNamespaceError, BadRequestError):
        if not namespace:
            raise
        below = []  # a catalog with a single level of namespaces
    return tables, [name for name in below if len(name) > len(namespace)]


def _loaded(catalog: Catalog, name: Name, overlaps: Callable[[str], bool]) -> Table | str | None:
    """Return a table with a directory that overlaps; None for any other, a sentence for one that cannot be loaded."""
    try:
        table = opening.load(catalog, name)
    except UnsupportedTable as error:
        if isinstance(error.__cause__, NoSuchTableError):
            return None  # a view, which has no files
        return f"{'.'.join(name)}: {brief(error)}"
    except TableNotFound as error:
        if isinstance(error.__cause__, NoSuchIcebergTableError):
            return None
        # the table was dropped or renamed after the listing, or is hidden from this principal
        return f"{'.'.join(name)}: it was listed and is not found"
    except Exception as error:  # each catalog client raises its own errors
        return f"{'.'.join(name)}: {brief(error)}"
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
