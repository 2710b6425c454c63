"""The command line: parse, call the facade, print. Heavy imports wait inside the commands, so that `--help` is quick.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 outcome of the commit unknown, 130 interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icesize import cli_versions
from icesize.cli_options import SparkChoice, Target, choice_options, print_json, spark_options, table_options
from icesize.errors import CommitStateUnknown, EngineUnavailable, IcesizeError
from icesize.planning.cluster_by import STRATEGIES
from icesize.redaction import redacted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from icesize.planning.plan import Plan
    from icesize.report import Report

FAILED = 1
UNKNOWN = 3
INTERRUPTED = 130
"""128 + SIGINT, as shells count."""

_OUTSIDE = frozenset({"botocore", "py4j", "pyiceberg", "pyspark", "requests", "sqlalchemy", "thrift", "urllib3"})
"""Packages whose exceptions tell of the world (no network, no right, no server), not of a mistake in icesize."""


class _Group(click.Group):
    """Turns errors into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt:
            _complain("interrupted: the table is as it was, or the whole commit is in it")
            ctx.exit(INTERRUPTED)
        except CommitStateUnknown as error:
            _complain(str(error))
            ctx.exit(UNKNOWN)
        except IcesizeError as error:
            _complain(str(error))
            ctx.exit(FAILED)
        except Exception as error:
            if not _is_from_outside(error):
                raise
            # bodies of catalog answers can be pages
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            _complain(redacted(f"{type(error).__name__}: {first[:300]}"))
            ctx.exit(FAILED)


def _is_from_outside(error: Exception) -> bool:
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    return isinstance(error, OSError) or bool(modules & _OUTSIDE)


def _complain(message: str) -> None:
    from icesize.console import console_on, show_error

    show_error(console_on(stderr=True), message)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="icesize", message="%(prog)s %(version)s")
def main() -> None:
    """Keeps the files of Apache Iceberg tables well sized. TABLE is CATALOG.NAMESPACE.TABLE."""


@main.command()
@choice_options
@table_options
def inspect(target: Target, as_json: bool, where: str | None, policy: Mapping[str, str]) -> None:
    """Show how well sized the files of TABLE are."""
    from icesize.console import console_on, show_inspection

    inspection = target.open(policy).inspect(where)
    if as_json:
        print_json(inspection.to_dict())
    else:
        show_inspection(console_on(), inspection)


@main.command()
@choice_options
@table_options
def plan(target: Target, as_json: bool, where: str | None, policy: Mapping[str, str]) -> None:
    """Show what `compact` would do to TABLE, and `cluster` where it is to be clustered; change nothing."""
    from icesize.console import console_on, show_plan

    sized = target.open(policy)
    planned = sized.plan(where)
    try:
        clustering = sized.plan_clustering(where=where)
    except IcesizeError as error:
        clustering, planned = None, replace(planned, notes=(*planned.notes, str(error)))
    if as_json:
        print_json(planned.to_dict() | {"cluster_plan": clustering and clustering.to_dict()})
        return
    show_plan(console_on(), planned, groups=True)
    if clustering is not None:
        show_plan(console_on(), clustering, groups=True)


@main.command()
@spark_options
@choice_options
@table_options
def compact(target: Target, as_json: bool, where: str | None, policy: Mapping[str, str], spark: SparkChoice) -> None:
    """Merge the small files of TABLE to as few as possible, in one commit.

    Up to 1 GiB is merged in this process. For more give --master, --remote or --conf, and Spark does it.
    """
    with spark.session("compact") as session:
        _carry_out(partial(target.open(policy, session).compact, where), session, as_json)


@main.command()
@click.option("--by", metavar="COLUMNS", help="Columns, separated by commas; remembered in the table's properties.")
@click.option("--strategy", type=click.Choice(STRATEGIES), help="How; remembered, too: sort at first.")
@click.option("--budget-bytes", type=click.IntRange(0), metavar="N", help="Bytes that may be written anew.")
@spark_options
@choice_options
@table_options
def cluster(
    target: Target, as_json: bool, where: str | None, policy: Mapping[str, str], spark: SparkChoice,
    by: str | None, strategy: str | None, budget_bytes: int | None,
) -> None:  # fmt: skip
    """Lay the rows of TABLE out for queries by some columns, in one commit; what is in order is left alone.

    Up to 1 GiB is written in this process. For more give --master, --remote or --conf, and Spark does it.
    """
    columns = None if by is None else [name.strip() for name in by.split(",")]
    with spark.session("cluster") as session:
        sized = target.open(policy, session)
        _carry_out(partial(sized.cluster, columns, strategy, where, budget_bytes), session, as_json)


def _carry_out(work: Callable[..., Report], spark: SparkSession | None, as_json: bool) -> None:
    """Print plan, progress and report; exit code 1 when nothing was committed although there was something to do."""
    from icesize import console as show

    out = show.console_on(stderr=as_json)
    planned: list[Plan] = []

    def on_plan(plan: Plan) -> None:
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


def _check_size(plan: Plan, spark: SparkSession | None) -> None:
    """The facade's bound, told in the words of the command line."""
    from icesize.planning.words import size_words
    from icesize.table.maintenance import MAX_BYTES_WITHOUT_SPARK

    if spark is None and plan.bytes_to_write > MAX_BYTES_WITHOUT_SPARK:
        raise EngineUnavailable(
            f"Cannot rewrite {size_words(plan.bytes_to_write)} of files without Spark: the bound is "
            f"{size_words(MAX_BYTES_WITHOUT_SPARK)}; add --master 'local[*]' (or --remote URL), or choose fewer "
            "partitions with --where"
        )


@main.command()
@click.option("--forget", metavar="ID", help="Remove this stream: its next batch is taken whatever its query and id.")
@table_options
def streams(target: Target, as_json: bool, forget: str | None) -> None:
    """List the streams that have committed to TABLE, each with its newest batch."""
    from dataclasses import asdict

    from icesize.console import console_on, show_line, show_streams

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
    from icesize.console import console_on
    from icesize.demo.run import run_demo

    if not run_demo(console_on(), path, batches, rows, with_spark=not no_spark):
        raise click.exceptions.Exit(FAILED)


for _command in cli_versions.COMMANDS:
    main.add_command(_command)
