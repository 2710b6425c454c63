"""Options that commands share (table, catalog, partitions, policy), prompts and output."""

from __future__ import annotations

import json
import logging
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import wraps
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import click

from icesize.cli.interrupts import Observers
from icesize.cli.process import collect_from_now_on
from icesize.cli.values import SECONDS, SIZE, pair_option, pairs
from icesize.environment import Environment
from icesize.errors import TableNotFound
from icesize.planning.cluster_by import STRATEGIES
from icesize.planning.files import MAIN
from icesize.presentation.blocks import Block
from icesize.presentation.console import console_on, show, show_error
from icesize.presentation.display import view_of
from icesize.presentation.progress import drawn
from icesize.results import document
from icesize.telemetry import JsonLines, served_to_prometheus
from icesize.units import format_bytes, format_count

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem
    from pyiceberg.catalog import Catalog

    from icesize.config_file import Configuration
    from icesize.events import Event
    from icesize.maintenance.passes.survey import CatalogSurvey
    from icesize.sized_table import SizedTable
    from icesize.table.cleanup.expiry import ExpiryReport

FAILED = 1
USAGE = 2
UNKNOWN = 3
UNHEALTHY = 4

_CATALOG_TYPES = {
    "sqlite": "sql", "postgresql": "sql", "mysql": "sql", "http": "rest", "https": "rest", "thrift": "hive",
}  # fmt: skip

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True)
class Target:
    """The table or the tables that a command line names, their catalog, and the format of the output; not opened yet.

    `properties` can hold credentials, so it is left out of the printed form.
    """

    table: str
    catalog_uri: str | None = field(repr=False)
    properties: Mapping[str, str] = field(repr=False)
    as_json: bool
    branch: str = MAIN

    def answer(
        self, result: Any, shown: Iterable[Block] | None = None, *, exit_code: int = 0, in_line: bool = False
    ) -> None:
        """Print the result of a command, as JSON or as `shown` (None: its view); exit if the code is not 0.

        JSON output is the API's dictionary alone, on one line if `in_line`.
        """
        if self.as_json:
            click.echo(json.dumps(document(result), indent=None if in_line else 2))
        else:
            show(console_on(), view_of(result) or () if shown is None else shown)
        if exit_code:
            raise click.exceptions.Exit(exit_code)

    def open(
        self,
        policy: Mapping[str, str] | None = None,
        spark: Any = None,
        conf: Mapping[str, str] = MappingProxyType({}),
    ) -> SizedTable:
        """Open the table. `spark` is a SparkSession or None; `conf` are settings of Spark without a session.

        Raises the errors of `icesize.open`, and click.UsageError for an unknown scheme.
        """
        from icesize.sized_table import open as open_table
        from icesize.table.catalog.opening import split_name

        split_name(self.table)
        catalog, given = self._catalog(conf, spark), self.configuration.policy(policy)
        table = open_table(
            spark, self.table, catalog=catalog, policy=given, environment=self.environment, branch=self.branch
        )
        collect_from_now_on()
        return table

    @property
    def configuration(self) -> Configuration:
        """The configuration file. It is read at each use, so that a service sees changes. Raises ArgumentError."""
        from icesize.config_file import load

        return load()

    @property
    def environment(self) -> Environment:
        """The environment of the command."""
        return Environment(observe=_observers())

    @property
    def is_pattern(self) -> bool:
        """True if TABLE is a catalog, or a pattern with wildcards."""
        from icesize.table.catalog.tables import TablePattern

        pattern = TablePattern.of(self.table)
        return len(pattern.parts) < 2 or pattern.has_wildcards

    def open_catalog(self, conf: Mapping[str, str] = MappingProxyType({})) -> Catalog:
        """Open the catalog of the table or of the tables; `conf` are settings of Spark.

        Raises TableNotFound and TableError, and click.UsageError for an unknown scheme.
        """
        from icesize.table.catalog.opening import open_catalog
        from icesize.table.catalog.tables import TablePattern

        if self.branch != MAIN:
            raise click.UsageError("--branch needs one table: name it without wildcards")
        catalog = self._catalog(conf) or open_catalog(TablePattern.of(self.table).catalog)
        collect_from_now_on()
        return catalog

    def scan(self, policy: Mapping[str, str] | None = None) -> CatalogSurvey:
        """Survey the tables that TABLE selects as a pattern. Raises the errors of `icesize.scan`."""
        catalog = self.open_catalog()
        from icesize.maintenance.passes.survey import scan

        with self.progress():
            return scan(
                self.table, catalog=catalog, policy=self.configuration.policy(policy), environment=self.environment,
                is_chosen=self.configuration.is_chosen,
            )  # fmt: skip

    @contextmanager
    def progress(self, *observers: Callable[[Event], object]) -> Iterator[None]:
        """Draw a bar for each step of the block, and call `observers` with each event; --json has no bars."""
        with drawn(console_on(silent=self.as_json)) as draw, _observers().also(draw, *observers):
            yield

    def _catalog(self, conf: Mapping[str, str], spark: Any = None) -> Catalog | None:
        """Return the catalog from options, settings of Spark, or the configuration file; None if none names it.

        A session has its own settings of catalogs, so that the file is not used beside it.
        """
        from icesize.table.catalog.opening import open_catalog, pyiceberg_properties

        name = self.table.partition(".")[0].strip("`")
        if self.catalog_uri:
            return _existing(name, self._with_type({"uri": self.catalog_uri, **self.properties}))
        if self.properties:
            return open_catalog(name, self.properties)
        if f"spark.sql.catalog.{name}" in conf:
            return _existing(name, pyiceberg_properties(name, conf))
        configured = {} if spark else dict(self.configuration.properties_of(name))
        if not configured:
            return None
        return _existing(name, self._with_type(configured) if "uri" in configured else configured)

    def _with_type(self, given: dict[str, str]) -> dict[str, str]:
        """Infer the catalog's type from the scheme of its URI, unless a property sets it."""
        scheme = _scheme(given["uri"])
        if "type" in given or "py-catalog-impl" in given:
            return given
        if scheme not in _CATALOG_TYPES:
            raise click.UsageError(
                f"cannot infer the catalog's type from the scheme '{scheme}': "
                "add --catalog-property type=rest, sql or hive"
            )
        return {**given, "type": _CATALOG_TYPES[scheme]}


def _observers() -> Observers:
    """Return the observers of the command that runs."""
    observers: Observers = click.get_current_context().find_root().obj
    return observers


@contextmanager
def metrics_at(port: int | None) -> Iterator[None]:
    """Serve the metrics of the command to Prometheus inside the block, if there is a port."""
    if port is None:
        yield
        return
    observers = _observers()
    with served_to_prometheus(port) as observers.telemetry:
        yield


def _scheme(uri: str) -> str:
    return uri.partition(":")[0].partition("+")[0].lower()


def _existing(name: str, given: Mapping[str, str]) -> Catalog:
    """Open an existing catalog; reading a database must not create catalog tables in it."""
    from icesize.table.catalog.opening import open_catalog

    uri = given.get("uri", "")
    path = uri.partition(":///")[2].partition("?")[0]
    if _scheme(uri) == "sqlite" and path and not os.path.exists(path):
        raise TableNotFound(f"Cannot open catalog '{name}': there is no file '{path}'", catalog=name)
    return open_catalog(name, {"init_catalog_tables": "false", **given})


def command(name: str, short: str, *examples: str, needs: str = "") -> Callable[[Callable[..., Any]], click.Command]:
    """Return the decorator of a command, with a short description for the list and examples for its own help.

    Each example is a command line as you type it. The usage begins with `needs`, options of which one is required.
    """
    lines = "\n".join(f"  {example}" for example in examples)
    usage = f"{needs} [OPTIONS]".strip()
    return click.command(name, short_help=short, epilog=f"\b\nExamples:\n{lines}", options_metavar=usage)


def partition_option(*, required: bool) -> Callable[[_Command], _Command]:
    """Return `--partition K=V`, once per partition field; its value is a label, or None if it is omitted."""

    def given(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> str | None:
        if not all(map(str.strip, values)):
            raise click.UsageError("--partition is empty: give FIELD=VALUE, or leave it out for an unpartitioned table")
        return "/".join(values) if values or required else None

    return click.option(
        "--partition", metavar="FIELD=VALUE", multiple=True, callback=given,
        help="Partition as `inspect` prints it, whole or once per field; omit it if unpartitioned. p=null is NULL, "
        "p='\"null\"' is the string.",
    )  # fmt: skip


def names_option(name: str, help_text: str) -> Callable[[_Command], _Command]:
    """Return an option whose value is names of columns; None without the option, an empty list for an empty text."""

    def names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
        return None if value is None else [each.strip() for each in value.split(",") if value.strip()]

    return click.option(name, metavar="COLUMNS", callback=names, help=help_text)


def by_options(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return `--by`, whose value is names or None, and `--strategy`."""
    by = names_option("--by", f"Columns, separated by commas{help_text}.")
    strategy = click.option(
        "--strategy", type=click.Choice(STRATEGIES), help="Strategy; default: the strategy of the table, or sort."
    )
    return lambda command: by(strategy(command))


def choice_options(command: _Command) -> _Command:
    """Add `--where` and `--policy`."""
    where = click.option(
        "--where",
        metavar="FILTER",
        help="Process only partitions in which every row matches, such as \"hour = 'h191'\".",
    )
    return where(policy_option(command))


def policy_option(command: _Command) -> _Command:
    """Add `--policy K=V`, whose values become a mapping."""

    def keys(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        from icesize.policy import DOCUMENTED

        found = ((key, f"{default}; {source}") for key, default, source in DOCUMENTED if key.startswith(incomplete))
        return [CompletionItem(f"{key}=", help=default) for key, default in found]

    return click.option(
        "--policy", metavar="K=V", multiple=True, callback=pairs, shell_complete=keys,
        help="Set a key of the size policy, such as max-small-files=4 or target-file-size-bytes=64MiB. Repeatable.",
    )(command)  # fmt: skip


budget_bytes_option = click.option("--budget-bytes", type=SIZE, help="Rewrite at most this many bytes, such as 20GiB.")
budget_seconds_option = click.option(
    "--budget-seconds", type=SECONDS, help="Start no new work after this long, such as 25m."
)
inventory_option = click.option(
    "--inventory", type=click.Path(dir_okay=False), multiple=True, metavar="FILE",
    help="Read this inventory of the storage instead of a listing: Parquet or CSV with the columns path (or bucket and "
    "key), size and time, such as S3 Inventory. Repeatable.",
)  # fmt: skip
dry_run_option = click.option("--dry-run", is_flag=True, help="Preview the changes; change nothing.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Skip the prompt at a terminal.")


def asks(*, yes: bool, dry_run: bool = False) -> bool:
    """Return whether to prompt before a change: at a terminal, also with `--json`, but never in a scheduler."""
    return not (yes or dry_run) and sys.stdin.isatty() and sys.stderr.isatty()


def confirm(question: str) -> None:
    """Prompt on standard error; raise click.Abort if the answer is no."""
    click.confirm(question, abort=True, err=True)


def confirm_expiry(table: str, found: ExpiryReport) -> None:
    """Prompt before deleting what a dry run found; do not prompt if it found nothing."""
    if found.snapshot_ids_expired or found.files_deleted:
        files = format_count(sum(found.files_deleted.values()), "file")
        snapshots = format_count(len(found.snapshot_ids_expired), "snapshot")
        confirm(f"Expire {snapshots} of {table} and delete {files} ({format_bytes(found.bytes_deleted)})?")


def print_error(message: str) -> None:
    """Print one line to standard error."""
    show_error(console_on(stderr=True), message)


def warn(target: Target, notes: Sequence[str]) -> None:
    """Warn on standard error, which cron mails: a filter that matches nothing still ends with exit code 0."""
    from icesize.table.state.where import NO_MATCH

    if NO_MATCH in notes and not target.as_json:
        print_error(f"warning: {NO_MATCH}; nothing was chosen")


@contextmanager
def suppress_logs() -> Iterator[None]:
    """Suppress the log lines and warnings of all libraries inside the block: they would break a JSON document."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def log_to_stderr(level: int) -> Iterator[None]:
    """Log icesize's messages from this level up to standard error inside the block."""
    logger, handler = logging.getLogger("icesize"), logging.StreamHandler()
    handler.setFormatter(JsonLines() if _logs_json() else logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def _logs_json() -> bool:
    return click.get_current_context().find_root().params.get("log_format") == "json"


def _logging(verbose: int, as_json: bool) -> AbstractContextManager[None]:
    if verbose or _logs_json():
        return log_to_stderr(logging.DEBUG if verbose > 1 else logging.INFO)
    return suppress_logs() if as_json else nullcontext()


def table_options(command: Callable[..., Any], *, required: bool = True, metavar: str = "TABLE") -> Callable[..., Any]:
    """Add TABLE, the catalog options, `--branch`, `--json` and `-v`; they become a Target, the first argument."""

    @click.argument("table", metavar=metavar if required else f"[{metavar}]", required=required)
    @click.option(
        "--catalog-uri", help="Open the catalog at this URI; default: PyIceberg's configuration, or icesize.toml."
    )
    @pair_option("--catalog-property", "A PyIceberg property of the catalog.")
    @click.option(
        "--branch",
        metavar="NAME",
        default=MAIN,
        help="The branch to read and to commit to, for one table; default: main.",
    )
    @click.option("--json", "as_json", is_flag=True, help="Print only the result, as JSON.")
    @click.option("--verbose", "-v", count=True, help="Log progress to standard error; -vv logs more.")
    @wraps(command)
    def with_target(
        *, table: str | None, catalog_uri: str | None, catalog_property: Mapping[str, str], branch: str,
        as_json: bool, verbose: int, **options: Any,
    ) -> Any:  # fmt: skip
        with _logging(verbose, as_json):
            return command(Target(table or "", catalog_uri, catalog_property, as_json, branch), **options)

    return with_target
