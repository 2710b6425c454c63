"""Options that several commands share: which table, in which catalog, which partitions, which policy."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icesize.cli.process import collect_from_now_on, load_arrow_alone
from icesize.clock import Environment
from icesize.console import console_on
from icesize.errors import EngineUnavailable, TableNotFound

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyspark.sql import SparkSession
    from rich.console import Console

    from icesize.sized_table import SizedTable

_CATALOG_TYPES = {
    "sqlite": "sql", "postgresql": "sql", "mysql": "sql", "http": "rest", "https": "rest", "thrift": "hive",
}  # fmt: skip

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """The table that a command line names, how its catalog is found, and how to answer; not opened yet.

    `properties` can hold credentials, so it is left out of the printed form.
    """

    table: str
    catalog_uri: str | None = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    as_json: bool

    def answer(self, document: object, show: Callable[[Console], object]) -> None:
        """Print what a command came to: the API's dictionary and nothing else, or what people see."""
        if self.as_json:
            click.echo(json.dumps(document, indent=2))
        else:
            show(console_on())

    def open(self, policy: Mapping[str, str] | None = None, spark: Any = None) -> SizedTable:
        """The table, ready to work on; `spark` is a SparkSession or None.

        Raises what `icesize.open` raises, and click.UsageError for an unknown scheme.
        """
        if spark is None:  # which hands data to pandas
            load_arrow_alone()
        from icesize.sized_table import open as open_table

        catalog = self._catalog() if self.catalog_uri or self.properties else None
        # whoever is interrupted is told what has become of the commits
        environment = Environment(on_commitment=click.get_current_context().find_root().obj.append)
        table = open_table(spark, self.table, catalog=catalog, policy=dict(policy or {}), environment=environment)
        collect_from_now_on()
        return table

    def _catalog(self) -> Catalog:
        """The catalog given by options; its type is guessed from the address unless a property tells it."""
        from icesize.table.catalog.opening import open_catalog, split_name

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


_AGE = re.compile(r"(\d+)\s*(s|m|h|d|w)")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def age_option(default: str | None = None, *, or_time: bool = False, help_text: str) -> Callable[[_Command], _Command]:
    """`--older-than` with an age such as `3d`, as a timedelta; with `or_time` also an ISO 8601 time (no zone: UTC)."""

    def parsed(ctx: click.Context, parameter: click.Parameter, value: str | None) -> timedelta | datetime | None:
        if value is None:
            return None
        if match := _AGE.fullmatch(value):
            return timedelta(**{_UNITS[match[2]]: int(match[1])})
        if or_time:
            with suppress(ValueError):
                time = datetime.fromisoformat(value)
                return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
        expected = "an age such as 3d, 12h or 30m" + (", or a time such as 2026-01-31T12:00" if or_time else "")
        raise click.BadParameter(f"'{value}' is not {expected}", ctx=ctx, param=parameter)

    return click.option(
        "--older-than", default=default, show_default=default is not None, callback=parsed, help=help_text,
        metavar="AGE|TIME" if or_time else "AGE",
    )  # fmt: skip


def partition_option(*, required: bool) -> Callable[[_Command], _Command]:
    """`--partition K=V`, once per partition field, that arrives as a mapping (None when it is not given)."""

    def given(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str] | None:
        return _pairs(ctx, parameter, values) if values or required else None

    return click.option(
        "--partition", metavar="FIELD=VALUE", multiple=True, callback=given,
        help="The partition, with values as `inspect` prints them; once per field, not at all if unpartitioned.",
    )  # fmt: skip


def spark_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """`--master`, `--remote` and `--conf`, which arrive as one SparkChoice named `spark`."""

    @click.option("--master", metavar="URL", help="Merge with Spark at this master, such as 'local[*]'.")
    @click.option("--remote", metavar="URL", help="Merge with Spark Connect at this address, such as sc://host.")
    @pair_option("--conf", "A setting of the Spark session.")
    @wraps(command)
    def with_choice(*, master: str | None, remote: str | None, conf: Mapping[str, str], **options: Any) -> Any:
        if master and remote:
            raise click.UsageError("--master and --remote exclude each other")
        return command(spark=SparkChoice(master, remote, conf, options["as_json"]), **options)

    return with_choice


@dataclass(frozen=True)
class SparkChoice:
    """Which Spark a command line wants, if any; `conf` can hold credentials. `silent`: its processes print nothing."""

    master: str | None
    remote: str | None
    conf: Mapping[str, str] = field(repr=False)
    silent: bool

    @contextmanager
    def session(self, command: str) -> Iterator[SparkSession | None]:
        """A session while the block runs, None when none is wanted. Raises EngineUnavailable."""
        if not (self.master or self.remote or self.conf):
            yield None
            return
        with _without_stderr() if self.silent else nullcontext():
            spark = self._start(command)
        try:
            yield spark
        finally:
            spark.stop()

    def _start(self, command: str) -> SparkSession:
        from icesize.spark.engine.launch import start_session

        try:
            return start_session(f"icesize {command}", master=self.master, remote=self.remote, conf=self.conf)
        except EngineUnavailable as error:
            raise EngineUnavailable(
                f"{error}. Without Spark `icesize {command}` works in its own process, and so does every other command "
                "(leave out --master, --remote and --conf)"
            ) from error


@contextmanager
def silence() -> Iterator[None]:
    """No log lines or warnings of any library while the block runs: whoever reads a document reads no prose."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def _without_stderr() -> Iterator[None]:
    """Processes that are started in the block write no errors: what counts of theirs comes back as exceptions."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def table_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """TABLE, the catalog and `--json`, which arrive as a Target, the command's first argument."""

    @click.argument("table", metavar="TABLE")
    @click.option("--catalog-uri", help="Address of the catalog; without it PyIceberg's configuration is asked.")
    @pair_option("--catalog-property", "A PyIceberg property of the catalog.")
    @click.option("--json", "as_json", is_flag=True, help="Print the API's dictionary, and nothing else.")
    @wraps(command)
    def with_target(
        *, table: str, catalog_uri: str | None, catalog_property: Mapping[str, str], as_json: bool, **options: Any
    ) -> Any:
        with silence() if as_json else nullcontext():
            return command(Target(table, catalog_uri, catalog_property, as_json), **options)

    return with_target


def choice_options(command: _Command) -> _Command:
    """`--where` and `--policy`."""
    where = click.option("--where", metavar="FILTER", help="Only partitions that match as a whole: \"hour = 'h191'\".")
    return where(pair_option("--policy", "A key of the size policy: max-small-files=4.")(command))
