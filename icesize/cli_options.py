"""Options that several commands share: which table, in which catalog, which partitions, which policy."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icesize.errors import TableNotFound

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from icesize.sized_table import SizedTable

_CATALOG_TYPES = {
    "sqlite": "sql", "postgresql": "sql", "mysql": "sql", "http": "rest", "https": "rest", "thrift": "hive",
}  # fmt: skip

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """The table that a command line names, and how its catalog is found; not opened yet.

    `properties` can hold credentials, so it is left out of the printed form.
    """

    table: str
    catalog_uri: str | None = field(default=None, repr=False)
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def open(self, policy: Mapping[str, str] | None = None, spark: Any = None) -> SizedTable:
        """The table, ready to work on; `spark` is a SparkSession or None.

        Raises what `icesize.open` raises, and click.UsageError for an unknown scheme.
        """
        from icesize.sized_table import open as open_table

        catalog = self._catalog() if self.catalog_uri or self.properties else None
        return open_table(spark, self.table, catalog=catalog, policy=dict(policy or {}))

    def _catalog(self) -> Catalog:
        """The catalog given by options; its type is guessed from the address unless a property tells it."""
        from icesize.table.catalog import open_catalog, split_name

        name, _ = split_name(self.table)
        if self.catalog_uri is None:
            return open_catalog(name, self.properties)
        given = {"uri": self.catalog_uri, **self.properties}
        scheme = self.catalog_uri.partition(":")[0].partition("+")[0].lower()
        if "type" not in given and "py-catalog-impl" not in given:
            if scheme not in _CATALOG_TYPES:
                raise click.UsageError(
                    f"cannot tell the catalog's type from the scheme '{scheme}': "
                    "add --catalog-property type=rest, sql or hive"
                )
            given["type"] = _CATALOG_TYPES[scheme]
        path = self.catalog_uri.partition(":///")[2].partition("?")[0]
        if scheme == "sqlite" and path and not os.path.exists(path):
            raise TableNotFound(f"Cannot open catalog '{name}': there is no file '{path}'", catalog=name)
        # looking at a database must not make a catalog of it
        return open_catalog(name, {"init_catalog_tables": "false", **given})


def pair_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    """A repeatable option `K=V` that arrives as a mapping."""
    return click.option(name, metavar="K=V", multiple=True, callback=_pairs, help=help_text + " Repeatable.")


def _pairs(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key:
            # the value is not repeated: it may be a secret
            raise click.BadParameter("expected KEY=VALUE", ctx=ctx, param=parameter)
        pairs[key] = rest
    return pairs


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """TABLE, the catalog and `--json`: the command gets a Target first, and `as_json`."""

    @wraps(command)
    def with_target(table: str, catalog_uri: str | None, catalog_property: Mapping[str, str], **options: Any) -> Any:
        return command(Target(table, catalog_uri, catalog_property), **options)

    decorated: Callable[..., Any] = with_target
    for decorate in (
        click.option("--json", "as_json", is_flag=True, help="Print the API's dictionary, and nothing else."),
        pair_option("--catalog-property", "A PyIceberg property of the catalog."),
        click.option("--catalog-uri", help="Address of the catalog; without it PyIceberg's configuration is asked."),
        click.argument("table", metavar="TABLE"),
    ):
        decorated = decorate(decorated)
    return decorated


def choice_options(command: _Command) -> _Command:
    """`--where` and `--policy`."""
    where = click.option("--where", metavar="FILTER", help="Only partitions that match as a whole: \"hour = 'h191'\".")
    return where(pair_option("--policy", "A key of the size policy: max-small-files=4.")(command))
