"""The command line: parse, call the facade, print. Heavy imports wait inside the commands, so that `--help` is quick.

Exit codes: 0 done, 1 failed, 2 wrong usage (also of a filter, a partition or a policy), 3 outcome of the commit
unknown, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icesize.cli import versions
from icesize.cli.options import SparkChoice, Target, answer, choice_options, print_json, spark_options, table_options
from icesize.clock import Commitment
from icesize.errors import ArgumentError, CommitStateUnknown, EngineUnavailable, IcesizeError, PolicyError
from icesize.planning.cluster_by import STRATEGIES
from icesize.redaction import redacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icesize.planning.plan import Plan
    from icesize.report import Report
    from icesize.sized_table import SizedTable

FAILED = 1
USAGE = 2
UNKNOWN = 3
SHELLS_COUNT_FROM = 128
"""A process that a signal has ended has this and the signal's number as its exit code."""

_OUTSIDE = frozenset({"botocore", "py4j", "pyiceberg", "pyspark", "requests", "sqlalchemy", "thrift", "urllib3"})
"""Packages whose exceptions tell of the world (no network, no right, no server), not of a mistake in icesize."""


class _Terminated(KeyboardInterrupt):
    """SIGTERM, which is to do what Ctrl-C does."""


@contextmanager
def _terminated_like_interrupted() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only that one may ask for signals
        return

    def terminate(number: int, frame: object) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _become_of(commitments: Sequence[Commitment]) -> str:
    """What an interrupt has left in the table."""
    fates = [commitment.fate() for commitment in commitments]
    if unknown := [fate.advice for fate in fates if fate.landed is None]:
        return f"outcome unknown: {unknown[-1]}"
    ids = [str(snapshot_id) for fate in fates for snapshot_id in fate.snapshot_ids]
    if ids:
        return f"snapshot{'s' if len(ids) > 1 else ''} {', '.join(ids)} {'were' if len(ids) > 1 else 'was'} committed"
    return "the change was committed" if any(fate.landed for fate in fates) else "nothing was committed"


class _Group(click.Group):
    """Turns errors into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = list[Commitment]()
        try:
            with _terminated_like_interrupted():
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as interrupt:
            _complain(f"interrupted: {_become_of(ctx.obj)}")
            number = signal.SIGTERM if isinstance(interrupt, _Terminated) else signal.SIGINT
            ctx.exit(SHELLS_COUNT_FROM + number)
        except CommitStateUnknown as error:
            _complain(str(error))
            ctx.exit(UNKNOWN)
        except IcesizeError as error:
            _complain(str(error))
            ctx.exit(USAGE if isinstance(error, (ArgumentError, PolicyError)) else FAILED)
        except Exception as error:
            if not _is_from_outside(error):
                raise
            from icesize.table.catalog.access_errors import shortened

            # bodies of catalog answers can be pages
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            _complain(redacted(f"{type(error).__name__}: {shortened(first, 300)}"))
            ctx.exit(FAILED)


def _is_from_outside(error: Exception) -> bool:
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(modules & _OUTSIDE)


def _complain(message: str) -> None:
    from icesize.console.tables import console_on, show_error

    show_error(console_on(stderr=True), message)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="icesize", message="%(prog)s %(version)s")
def main() -> None:
    """Keeps the files of Apache Iceberg tables well sized. TABLE is CATALOG.NAMESPACE.TABLE."""


@main.command()
@choice_options
@table_options
def inspect(target: Target, *, as_json: bool, where: str | None, policy: Mapping[str, str]) -> None:
    """Show how well sized the files of TABLE are."""
    from icesize.console.tables import show_inspection

    inspection = target.open(policy).inspect(where)
    if not as_json:
        _warn(inspection.advice)
    answer(inspection, as_json, show_inspection)


def _by_options(help_text: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """`--by`, which arrives as names or None, and `--strategy`."""

    def names(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[str] | None:
        return None if value is None else [name.strip() for name in value.split(",")]

    by = click.option("--by", metavar="COLUMNS", callback=names, help=f"Columns, separated by commas{help_text}.")
    strategy = click.option("--strategy", type=click.Choice(STRATEGIES), help="How: sort unless the table says it.")
    return lambda command: by(strategy(command))


@main.command()
@_by_options(": show `cluster --by` without changing or remembering anything")
@choice_options
@table_options
def plan(
    target: Target, *, as_json: bool, where: str | None, policy: Mapping[str, str], by: list[str] | None,
    strategy: str | None,
) -> None:  # fmt: skip
    """Show what `compact` would do to TABLE, and `cluster` where it is to be clustered; change nothing."""
    from icesize.console.tables import console_on, show_plan

    sized = target.open(policy)
    planned = sized.plan(where)
    try:
        clustering = sized.plan_clustering(by, strategy, where)
    except IcesizeError as error:
        if by or strategy:
            raise
        clustering, planned = None, replace(planned, notes=(*planned.notes, str(error)))
    if strategy and clustering is None:
        raise click.UsageError("--strategy needs --by: the table does not say by which columns it is clustered")
    if as_json:
        print_json(planned.to_dict() | {"cluster_plan": clustering and clustering.to_dict()})
        return
    _warn(planned.notes)
    show_plan(console_on(), planned, groups=True)
    if clustering is not None:
        show_plan(console_on(), clustering, groups=True)


@main.command()
@spark_options
@choice_options
@table_options
def compact(target: Target, *, as_json: bool, where: str | None, policy: Mapping[str, str], spark: SparkChoice) -> None:
    """Merge the small files of TABLE to as few as possible, in one commit.

    Up to 1 GiB is merged in this process. For more give --master, --remote or --conf, and Spark does it.
    """
    with spark.session("compact") as session:
        _carry_out(partial(target.open(policy, session).compact, where), session, as_json)


@main.command()
@_by_options("; remembered in the table's properties, with the strategy")
@click.option("--forget", is_flag=True, help="Cluster nothing; take back what is remembered, and a sort's sort order.")
@click.option("--budget-bytes", type=click.IntRange(0), metavar="N", help="Bytes that may be written anew.")
@spark_options
@choice_options
@table_options
def cluster(
    target: Target, *, as_json: bool, where: str | None, policy: Mapping[str, str], spark: SparkChoice,
    by: list[str] | None, strategy: str | None, budget_bytes: int | None, forget: bool,
) -> None:  # fmt: skip
    """Lay the rows of TABLE out for queries by some columns, in one commit; what is in order is left alone.

    Up to 1 GiB is written in this process. For more give --master, --remote or --conf, and Spark does it.
    """
    if forget and (by or strategy or where or budget_bytes is not None):
        raise click.UsageError("--forget goes without --by, --strategy, --where and --budget-bytes")
    with spark.session("cluster") as session:
        sized = target.open(policy, session)
        if forget:
            _forget(sized, as_json)
            return
        _carry_out(partial(sized.cluster, by, strategy, where, budget_bytes), session, as_json)


def _forget(sized: SizedTable, as_json: bool) -> None:
    from icesize.console.tables import console_on, show_line, show_notes

    forgotten = sized.forget_clustering()
    if as_json:
        print_json(forgotten.to_dict())
        return
    show_line(console_on(), f"forgot the clustering of {sized.name}: removed {', '.join(forgotten.removed)}")
    show_notes(console_on(), forgotten.notes)


def _carry_out(work: Callable[..., Report], spark: SparkSession | None, as_json: bool) -> None:
    """Print plan, progress and report; exit code 1 when nothing was committed although there was something to do."""
    from icesize.console import tables as show

    out = show.console_on(silent=as_json)
    planned: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        if not as_json:
            _warn(plan.notes)
        show.show_plan(out, plan)
        planned.append(plan)
        _check_size(plan, spark)

    with show.merging(out, lambda: planned[0].bytes_to_write) as progress:
        report = work(on_plan=on_plan, progress=progress)
    if as_json:
        print_json(report.to_dict())
    elif planned[0].groups:
        show.show_report(out, report, known=planned[0].notes)
    else:
        show.show_notes(out, [note for note in report.notes if note not in planned[0].notes])
    if planned[0].groups and not report.snapshot_ids:
        raise click.exceptions.Exit(FAILED)


def _warn(notes: Sequence[str]) -> None:
    """On standard error, where cron looks: a filter that chooses nothing ends with exit code 0 all the same."""
    from icesize.table.state.where import NO_MATCH

    if NO_MATCH in notes:
        _complain(f"warning: {NO_MATCH}; nothing was chosen")


def _check_size(plan: Plan, spark: SparkSession | None) -> None:
    """The facade's bound, told in the words of the command line."""
    from icesize.clock import WorkLimits
    from icesize.units import format_bytes

    most_bytes = WorkLimits().bytes_without_spark
    if spark is None and plan.bytes_to_write > most_bytes:
        raise EngineUnavailable(
            f"Cannot rewrite {format_bytes(plan.bytes_to_write)} of files without Spark: the bound is "
            f"{format_bytes(most_bytes)}; add --master 'local[*]' (or --remote URL), or choose fewer "
            "partitions with --where"
        )


@main.command()
@click.option("--forget", metavar="ID", help="Remove this stream: its next batch is taken whatever its query and id.")
@table_options
def streams(target: Target, *, as_json: bool, forget: str | None) -> None:
    """List the streams that have committed to TABLE, each with its newest batch."""
    from dataclasses import asdict

    from icesize.console.tables import console_on, show_line, show_streams

    sized = target.open()
    if forget is not None:
        sized.forget_stream(forget)
        if not as_json:
            show_line(console_on(), f"forgot stream '{forget}' of {sized.name}")
            return
    entries = sized.streams()
    if as_json:
        print_json([asdict(entry) for entry in entries])
    else:
        show_streams(console_on(), sized.name, entries)


@main.command()
@click.option("--path", metavar="DIR", help="Where catalog, tables and logs go; default: a new temporary directory.")
@click.option("--batches", type=click.IntRange(1, 192), default=12, show_default=True, help="Micro-batches of events.")
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True, help="Events in each batch.")
@click.option("--no-spark", is_flag=True, help="PyIceberg fills the table and icesize compacts it; needs no Java.")
def demo(path: str | None, batches: int, rows: int, no_spark: bool) -> None:
    """Stream events with late rows into two local tables, plainly and with icesize, and compare them."""
    from icesize.console.tables import console_on
    from icesize.demo.run import run_demo

    if not run_demo(console_on(), path, batches, rows, with_spark=not no_spark):
        raise click.exceptions.Exit(FAILED)


for _command in versions.COMMANDS:
    main.add_command(_command)
