"""`icesize maintain`: one table, or the tables of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

import click

from icesize.cli import options
from icesize.cli.interrupts import SHELLS_COUNT_FROM, stopped_between_groups
from icesize.cli.options import FAILED, Target, command, print_error
from icesize.cli.spark_choice import SparkChoice, spark_options
from icesize.cli.values import SECONDS
from icesize.errors import IcesizeError, UnsupportedTable, is_from_outside
from icesize.units import format_bytes, format_count

if TYPE_CHECKING:
    from icesize.config_file import Configuration, Hours
    from icesize.maintenance.passes.many_tables import ManyTables, ManyTablesPlan, ManyTablesReport
    from icesize.maintenance.rounds import Budget
    from icesize.maintenance.table_context import Engine
    from icesize.sized_table import SizedTable


@dataclass(frozen=True)
class ManyTablesOptions:
    """The options of a command for several tables."""

    all_tables: bool
    concurrency: int | None
    take_over: bool
    watch: float | None
    metrics_port: int | None

    def is_wanted(self, target: Target) -> bool:
        """Return whether the command line selects several tables, or a service.

        Raises click.UsageError for options that go only with them.
        """
        from icesize.table.catalog.tables import WILDCARDS  # slow: imports PyIceberg

        if self.metrics_port is not None and self.watch is None:
            raise click.UsageError("--metrics-port goes with --watch")
        if self.all_tables or self.watch is not None or WILDCARDS & set(target.table):
            return True
        if self.take_over or self.concurrency is not None:
            raise click.UsageError("--take-over and --concurrency go with a pattern such as 'lake.db.*', or with --all")
        return False


def _many_tables_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for several tables; they become a ManyTablesOptions, the argument `several`."""

    @click.option("--all", "all_tables", is_flag=True, help="Maintain all tables of a catalog or namespace.")
    @click.option(
        "--concurrency", type=click.IntRange(1), metavar="N",
        help="Maintain N tables at the same time, and 4N small ones in object stores if N > 1; default: 2.",
    )  # fmt: skip
    @click.option("--take-over", is_flag=True, help="Also maintain tables that another service maintains.")
    @click.option("--watch", type=SECONDS, help="Run as a service: begin a pass this often, such as 5m.")
    @click.option(
        "--metrics-port", type=click.IntRange(1, 65535), help="Serve metrics to Prometheus on this port; with --watch."
    )
    @wraps(command)
    def with_tables(
        *, all_tables: bool, concurrency: int | None, take_over: bool, watch: float | None, metrics_port: int | None,
        **given: Any,
    ) -> Any:  # fmt: skip
        return command(several=ManyTablesOptions(all_tables, concurrency, take_over, watch, metrics_port), **given)

    return with_tables


@dataclass(frozen=True)
class Passes:
    """The passes of one command line.

    Each reads the configuration and opens the catalog again, so that expired credentials are renewed. `limits` are the
    bytes and seconds of the budget; None takes those of the configuration. The `engine` rewrites files.
    """

    target: Target
    several: ManyTablesOptions
    limits: tuple[int | None, float | None]
    policy: Mapping[str, str]
    engine: Engine
    is_stopped: Callable[[], bool] = lambda: False

    def plan(self) -> ManyTablesPlan:
        """Return what a pass would do, at any hour."""
        plan: ManyTablesPlan = self._with_tables(self.target.configuration, lambda tables, budget: tables.plan(budget))
        return plan

    def run(self) -> bool:
        """Run one pass and print its report; return True if no table failed."""
        configuration = self.target.configuration
        if configuration.hours.are_open(self.target.environment.now_ms()):
            report: ManyTablesReport = self._with_tables(configuration, lambda tables, budget: tables.run(budget))
        elif self.several.watch is None:
            report = self._outside(configuration.hours)
        else:
            return True
        self.target.answer(report, in_line=self.several.watch is not None)
        return report.succeeded

    def run_as_service(self) -> None:
        """Run one pass. An error of the catalog or of the configuration must not end the service: it is printed."""
        try:
            self.run()
        except Exception as error:
            from icesize.table.catalog.access_errors import said

            if not isinstance(error, IcesizeError) and not is_from_outside(error):
                raise
            print_error(said(error))

    def _with_tables(self, configuration: Configuration, work: Callable[[ManyTables, Budget], Any]) -> Any:
        """Return what `work` returns for the tables and the budget, with bars while it runs."""
        from icesize.maintenance.passes.many_tables import ManyTables  # slow: imports the jobs
        from icesize.maintenance.passes.survey import CatalogTables
        from icesize.maintenance.rounds import Budget
        from icesize.table.catalog.tables import TablePattern

        pattern, environment, hours = TablePattern.of(self.target.table), self.target.environment, configuration.hours
        size, seconds = self.limits
        size = configuration.budget_bytes if size is None else size
        seconds = configuration.budget_seconds if seconds is None else seconds
        budget = Budget(size, seconds, lambda: self.is_stopped() or not hours.are_open(environment.now_ms()))
        with closing(self.target.open_catalog(self.engine.spark_conf)) as catalog, self.target.progress():
            policy, threads = configuration.policy(self.policy), self.several.concurrency or configuration.concurrency
            tables = CatalogTables(catalog, pattern, environment, policy, configuration.is_chosen)
            return work(ManyTables(tables, threads, self.several.take_over, self.engine), budget)

    def _outside(self, hours: Hours) -> ManyTablesReport:
        from icesize.maintenance.passes.many_tables import ManyTablesPlan, ManyTablesReport

        notes = (f"nothing was done outside the hours of maintenance ({hours.text})",)
        return ManyTablesReport(self.target.table, plan=ManyTablesPlan(self.target.table, notes=notes))


def _maintain_tables(
    target: Target, several: ManyTablesOptions, limits: tuple[int | None, float | None], policy: Mapping[str, str],
    engine: Engine, *, dry_run: bool, asks: bool,
) -> None:  # fmt: skip
    """Maintain the tables that the command line selects, or show what that would bring and cost."""
    from icesize.maintenance.passes.many_tables import watch

    if dry_run or asks:
        plan = Passes(target, several, limits, policy, engine).plan()
        if dry_run:
            target.answer(plan, exit_code=FAILED if plan.failed else 0)
            return
        _confirm(plan)
    with stopped_between_groups(print_error) as stop:
        passes = Passes(target, several, limits, policy, engine, stop)
        if several.watch is not None:
            with options.metrics_at(several.metrics_port):
                watch(passes.run_as_service, several.watch, target.environment, stop)
            return
        succeeded = passes.run()
    if stop.signal is not None or not succeeded:
        raise click.exceptions.Exit(FAILED if stop.signal is None else SHELLS_COUNT_FROM + stop.signal)


def _confirm(plan: ManyTablesPlan) -> None:
    """Prompt with the work and the snapshots that would expire now."""
    due = sum(share.survey.snapshots_due for share in plan.tables)
    work = f"{format_count(len(plan.tables), 'table')}, {format_bytes(plan.bytes_to_write)} to write"
    options.confirm(f"Maintain {plan.pattern} ({work}), expire about {format_count(due, 'snapshot')} and their files?")


@command(
    "maintain",
    "Run all maintenance steps within a budget",
    "icesize maintain lake.db.events --dry-run",
    "icesize maintain 'lake.db.*' --budget-bytes 200GiB --budget-seconds 50m",
    "icesize maintain lake --all --dry-run",
    "icesize maintain lake --all --master spark://spark.example.com:7077",
    "icesize maintain lake.db.events --budget-bytes 20GiB --budget-seconds 25m --master 'local[4]' --json",
)
@options.budget_bytes_option
@options.budget_seconds_option
@options.dry_run_option
@options.yes_option
@_many_tables_options
@spark_options
@options.policy_option
@partial(options.table_options, metavar="TABLE|PATTERN")
def maintain(
    target: Target, *, budget_bytes: int | None, budget_seconds: float | None, policy: Mapping[str, str],
    spark: SparkChoice, dry_run: bool, yes: bool, several: ManyTablesOptions,
) -> None:  # fmt: skip
    """Run one bounded pass: merge small files, cluster, clean up deletes and manifests, expire snapshots, count
    orphans.

    TABLE can be a pattern such as 'lake.db.*', or a catalog or namespace with --all. icesize spends the budget where it
    saves the most files per byte, and gives each table a share. It skips tables that another service maintains.

    With --master, --remote or --conf, Spark tasks rewrite large groups of files, and this process does all other work.

    A failed step or table does not stop the others, but the exit code is then 1. The next pass continues where this one
    stopped.
    """
    if several.is_wanted(target):
        from icesize.sized_table import engine_of

        limits, asks = (budget_bytes, budget_seconds), options.asks(yes=yes)
        with nullcontext() if dry_run else spark.session("maintain") as session:
            engine = engine_of(session, target.environment, spark.conf)
            _maintain_tables(target, several, limits, policy, engine, dry_run=dry_run, asks=asks)
        return
    if target.is_pattern:
        raise click.UsageError(f"'{target.table}' is not the name of a table: add --all to maintain all its tables")
    if dry_run:
        target.answer(target.open(policy, conf=spark.conf).plan_maintenance(budget_bytes))
        return
    with spark.session("maintain") as session:
        sized = target.open(policy, session)
        if options.asks(yes=yes):
            _ask_for_expiry(sized)
        with target.progress():
            report = sized.maintain(budget_bytes, budget_seconds)
    target.answer(report, exit_code=0 if report.succeeded else options.FAILED)


def _ask_for_expiry(sized: SizedTable) -> None:
    """Prompt with the snapshots that an expiry would remove now.

    The pass plans its expiry again after its merges, which create snapshots to keep and remove files from the table.
    """
    try:
        found = sized.expire_snapshots(dry_run=True)
    except UnsupportedTable:
        return  # the expiry of the pass fails in the same way, and its report has the reason
    options.confirm_expiry(sized.name, found)
