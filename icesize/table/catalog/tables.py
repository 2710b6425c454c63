"""The tables of a catalog: which names a pattern selects, and what a name refers to."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import BadRequestError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from icesize.concurrency import concurrently
from icesize.errors import ArgumentError, TableError, UnsupportedTable
from icesize.results import keys
from icesize.table.catalog import opening
from icesize.table.catalog.access_errors import brief, said
from icesize.table.catalog.hive import is_hive

Name = tuple[str, ...]

Ask = Callable[..., Any]
"""Calls a function with arguments; may call it again if the catalog does not respond."""

WILDCARDS = frozenset("*?[")
"""Characters that make a pattern of a name."""


@dataclass(frozen=True)
class TablePattern:
    """A pattern that selects tables of one catalog, such as `lake`, `lake.db` or `lake.db.events_*`.

    `*` matches any characters, dots included, `?` one, and `[ab]` one of these. A pattern without them names
    a table, or a namespace with all namespaces below it.

    Attributes:
        catalog: Name of the catalog.
        parts: The rest of the pattern, divided at its dots.
    """

    catalog: str
    parts: Name = ()

    @classmethod
    def of(cls, text: str) -> TablePattern:
        """Return the pattern. Raises ArgumentError if the name of the catalog is missing or a part is empty."""
        catalog, *parts = (part.strip("`") for part in text.split("."))
        if not all((catalog, *parts)) or WILDCARDS & set(catalog):
            raise ArgumentError(
                f"Cannot select tables by '{text}': expected CATALOG, CATALOG.NAMESPACE or CATALOG.NAMESPACE.PATTERN",
                pattern=text,
            )
        return cls(catalog, tuple(parts))

    def __str__(self) -> str:
        return ".".join((self.catalog, *self.parts))

    @property
    def fixed(self) -> Name:
        """The parts before the first one with a wildcard."""
        first = next((n for n, part in enumerate(self.parts) if WILDCARDS & set(part)), len(self.parts))
        return self.parts[:first]

    @property
    def has_wildcards(self) -> bool:
        """True if the pattern can select several tables of one namespace, but not all of them."""
        return len(self.fixed) < len(self.parts)

    def matches(self, name: Name) -> bool:
        """Return whether the pattern selects a table, given by its namespace and name."""
        if not self.has_wildcards:
            return name[: len(self.parts)] == self.parts
        return fnmatchcase(".".join(name), ".".join(self.parts))


@dataclass(frozen=True)
class NotLoaded:
    """A name that is no readable Iceberg table.

    Attributes:
        name: Namespace and name.
        kind: `view`, `other format` (of Hive or Glue), `unsupported` (icesize does not handle it), or `unreadable`.
        why: The reason, in one line.
    """

    name: Name
    kind: Literal["view", "other format", "unsupported", "unreadable"]
    why: str

    KEYS = keys(name=lambda skipped: ".".join(skipped.name))


def catalog_of(
    pattern: TablePattern, catalog: Catalog | None, conf: Mapping[str, str] = MappingProxyType({})
) -> Catalog:
    """Return the given catalog, or open the one that a pattern names, from settings of Spark if they have it.

    Raises ArgumentError if the pattern names another catalog than the given one: the rest of it would select other
    tables, or all of them. Raises what `open_catalog` raises.
    """
    if catalog is None:
        return opening.open_configured(pattern.catalog, conf)
    if pattern.catalog != catalog.name:
        raise ArgumentError(
            f"Cannot select '{pattern}' in catalog '{catalog.name}': the name begins with another catalog, "
            f"'{pattern.catalog}'. Write '{catalog.name}.{pattern}', or pass that catalog",
            pattern=str(pattern),
        )
    return catalog


def in_turn(catalog: Catalog) -> bool:
    """Return True if only one thread may use the catalog.

    Hive has one connection, and SQLite one in-memory database per thread.
    """
    in_memory = catalog.properties.get("uri", "") in ("sqlite://", "sqlite:///:memory:")
    return in_memory or is_hive(catalog)


def each_of(catalog: Catalog) -> Callable[..., Iterator[Any]]:
    """Return what maps a function that uses the catalog over items: in several threads, if the catalog allows them."""
    return map if in_turn(catalog) else concurrently


def _ask(function: Callable[..., Any], *arguments: Any) -> Any:
    return function(*arguments)


def names_of(
    catalog: Catalog, doubt: Callable[[str], object], pattern: TablePattern | None = None, ask: Ask = _ask
) -> Iterator[Name]:
    """Yield the names of the tables that a pattern selects (None: all), level by level of namespaces.

    Args:
        catalog: The catalog.
        doubt: Called with a sentence for each namespace that cannot be listed.
        pattern: The pattern; the name of its catalog is not compared.
        ask: Calls the catalog.

    Raises:
        Exception: The catalog cannot list its namespaces, or the one that the pattern names. Each catalog client has
            its own errors.
    """
    chosen = pattern or TablePattern(catalog.name)
    # a principal may have rights in this namespace only
    level = [chosen.fixed]
    while level:
        below = list[Name]()
        for at, listed in zip(level, each_of(catalog)(lambda at: _listed(catalog, at, ask), level), strict=True):
            if not isinstance(listed, Exception):
                tables, namespaces = listed
                yield from filter(chosen.matches, tables)
                below += namespaces
            elif not isinstance(listed, NoSuchNamespaceError):
                if at == chosen.fixed:
                    raise listed
                doubt(f"the namespace '{'.'.join(at)}' cannot be listed ({opening.denied(listed, opening.LIST)})")
            elif at == chosen.fixed and len(at) > 1 and not chosen.has_wildcards:
                yield at  # it is no namespace, so it may be a table
            else:  # it may be gone, or hidden from this principal
                doubt(f"the namespace '{'.'.join(at)}' is not found")
        level = below


def _listed(catalog: Catalog, namespace: Name, ask: Ask) -> tuple[list[Name], list[Name]] | Exception:
    """Return tables and namespaces directly below a namespace, or the error. The root has no tables."""
    try:
        tables = [tuple(name) for name in ask(catalog.list_tables, namespace)] if namespace else []
        below = list[Name]()
        with suppress(*(_SINGLE_LEVEL if namespace else ())):
            below += (tuple(name) for name in ask(catalog.list_namespaces, namespace))
    except Exception as error:  # each catalog client raises its own errors
        return error
    return tables, [name for name in below if len(name) > len(namespace)]


_SINGLE_LEVEL = (NoSuchNamespaceError, BadRequestError)
"""Errors of a catalog whose namespaces have none below them."""


def load_named(catalog: Catalog, name: Name, ask: Ask = _ask) -> Table | NotLoaded:
    """Return the table of a name that was listed, or the reason why there is none."""
    try:
        table: Table = ask(opening.load_listed, catalog, name)
        return table
    except opening.OTHER_FORMAT as error:
        return NotLoaded(name, "other format", brief(error))
    except NoSuchTableError:
        if opening.is_view(catalog, name):
            return NotLoaded(name, "view", "it is a view")
        # if it was listed, it was dropped or renamed since then, or is hidden from this principal
        return NotLoaded(name, "unreadable", "it is not found")
    except UnsupportedTable as error:
        return NotLoaded(name, "unsupported", said(error))
    except TableError as error:
        return NotLoaded(name, "unreadable", said(error))
    except Exception as error:  # each catalog client raises its own errors
        return NotLoaded(name, "unreadable", opening.denied(error, opening.LOAD))
