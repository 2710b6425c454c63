"""Loads a table by its name, and says what is wrong with a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, UnauthorizedError
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import TableError, TableNotFound, UnsupportedTable
from icesize.redaction import remember_secrets
from icesize.table.catalog.access_errors import brief


def split_name(name: str) -> tuple[str, tuple[str, ...]]:
    """`lake.db.events` -> (`lake`, (`db`, `events`)). Raises TableNotFound for a name of fewer than three parts."""
    parts = tuple(p.strip("`") for p in name.split("."))
    if len(parts) < 3 or not all(parts):
        raise TableNotFound(f"Cannot find table '{name}': expected CATALOG.NAMESPACE.TABLE", table=name)
    return parts[0], parts[1:]


def load(catalog: Catalog, identifier: tuple[str, ...]) -> Table:
    """The table as the catalog has it now.

    Raises TableNotFound (for a missing namespace or table, with the nearest names) and UnsupportedTable for a view.
    """
    try:
        table = catalog.load_table(identifier)
    except NoSuchTableError as error:
        raise _not_found(catalog, identifier) from error
    remember_secrets(table.io.properties)
    return table


def load_failed(name: str, error: Exception) -> TableError:
    """Why a table could not be loaded, with the right that is missing where that is the reason."""
    advice = ""
    if isinstance(error, ForbiddenError):
        advice = (
            "; the principal needs the right to load the table and to read and write its files (in Polaris "
            "TABLE_READ_DATA and TABLE_WRITE_DATA)"
        )
    elif isinstance(error, UnauthorizedError):
        advice = "; the catalog does not know the principal: its token or credential is wrong, or has ended"
    return TableError(f"Cannot load '{name}': {brief(error)}{advice}", table=name)


def _not_found(catalog: Catalog, identifier: tuple[str, ...]) -> TableError:
    name = ".".join((catalog.name, *identifier))
    if _is_view(catalog, identifier):
        return UnsupportedTable(f"Cannot open '{name}': it is a view; name the table under it", table=name)
    try:
        known = [t[-1] for t in catalog.list_tables(identifier[:-1])]
    except NoSuchNamespaceError:
        namespace = ".".join(identifier[:-1])
        return TableNotFound(f"Cannot find table '{name}': there is no namespace '{namespace}'", table=name)
    except Exception:
        known = []  # the right to list is another one than the right to load
    return TableNotFound(f"Cannot find table '{name}'" + _nearest(identifier[-1], known), table=name)


def _is_view(catalog: Catalog, identifier: tuple[str, ...]) -> bool:
    try:
        return catalog.view_exists(identifier)
    except Exception:
        return False  # most catalogs know no views, and each says so in its own way


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean '{close[0]}'?" if close else ""


def check_supported(table: Table, spark_conf: Mapping[str, str] | None = None) -> None:
    """Refuse, one sentence each, what the committer cannot write safely. Raises UnsupportedTable."""
    name = ".".join(table.name())
    for why in _unsupported(table.metadata, spark_conf or {}):
        raise UnsupportedTable(f"Cannot work on '{name}': {why}", table=name)


def _unsupported(metadata: TableMetadata, spark_conf: Mapping[str, str]) -> Iterator[str]:
    if metadata.format_version > 2:
        yield f"its format version is {metadata.format_version}; icesize writes versions 1 and 2"
    if metadata.properties.get("write.wap.enabled", "").lower() == "true":
        yield "'write.wap.enabled' is true; icesize commits to the main branch only"
    for key in ("spark.wap.id", "spark.wap.branch"):
        if spark_conf.get(key):
            yield f"the session sets '{key}'; icesize commits to the main branch only"
    if metadata.properties.get("encryption.key-id"):
        yield "the table is encrypted ('encryption.key-id')"


def namespace_and_table(catalog: Catalog, name: str) -> tuple[str, ...]:
    """The identifier of a table in a given catalog; a leading catalog name is accepted."""
    parts = tuple(p.strip("`") for p in name.split("."))
    if len(parts) > 2 and parts[0] == catalog.name:
        parts = parts[1:]
    if len(parts) < 2 or not all(parts):
        raise TableNotFound(f"Cannot find table '{name}': expected NAMESPACE.TABLE", table=name)
    return parts
