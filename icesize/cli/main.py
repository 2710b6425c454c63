"""The command line: parse, call the facade, print. Heavy imports wait inside the commands, so that `--help` is quick.

Exit codes: 0 done, 1 failed, 2 wrong usage (also of a filter, a partition or a policy), 3 outcome of the commit
unknown, 130 interrupted (Ctrl-C), 143 terminated (SIGTERM).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from icesize import console
from icesize.cli.interrupts import exit_code_of, terminated_like_interrupted, what_became_of
from icesize.cli.options import (
    SparkChoice,
    Target,
    age_option,
    choice_options,
    partition_option,
    spark_options,
    table_options,
)
from icesize.cli.process import collect_from_now_on
from icesize.clock import Commitment
from icesize.console import console_on
from icesize.errors import ArgumentError, CommitStateUnknown, IcesizeError, PolicyError
from icesize.planning.cluster_by import STRATEGIES
from icesize.redaction import redacted

if TYPE_CHECKING:
    from rich.console import Console

    from icesize.planning.plan import Plan
    from icesize.report import Report

FAILED = 1
USAGE = 2
UNKNOWN = 3

_OUTSIDE = frozenset({"botocore", "py4j", "pyiceberg", "pyspark", "requests", "sqlalchemy", "thrift", "urllib3"})
"""Packages whose exceptions tell of the world (no network, no right, no server), not of a mistake in icesize."""


class _Group(click.Group):
    """Turns errors into one line on standard error and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        ctx.obj = list[Commitment]()
        try:
            with terminated_like_interrupted():
                return super().invoke(ctx)
        except (click.exceptions.Exit, click.ClickException, click.Abort, BrokenPipeError):
            raise
        except KeyboardInterrupt as interrupt:
            _complain(f"interrupted: {what_became_of(ctx.obj)}")
            ctx.exit(exit_code_of(interrupt))
        except CommitStateUnknown as error:
            _complain(str(error))
            ctx.exit(UNKNOWN)
        except IcesizeError as error:
            _complain(str(error))
            ctx.exit(USAGE if isinstance(error, (ArgumentError, PolicyError)) else FAILED)
        except Exception as error:
            packages = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
            if not isinstance(error, OSError) and packages.isdisjoint(_OUTSIDE):
                raise
            from icesize.table.catalog.access_errors import shortened

            # bodies of catalog answers can be pages
            first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
            _complain(redacted(f"{type(error).__name__}: {shortened(first, 300)}"))
            ctx.exit(FAILED)


def _complain(message: str) -> None:
    console.show_error(console_on(stderr=True), message)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="icesize", message="%(prog)s %(version)s")
def main() -> None:
    """Keeps the files of Apache Iceberg tables well sized. TABLE is CATALOG.NAMESPACE.TABLE."""


@main.command()
@choice_options
@table_options
def inspect(target: Target, *, where: str | None, policy: Mapping[str, str]) -> None:
    """Show how well sized the files of TABLE are."""
    inspection = target.open(policy).inspect(where)
    _warn(target, inspection.advice)
    target.answer(inspection.to_dict(), lambda out: console.show_inspection(out, inspection))


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
    target: Target, *, where: str | None, policy: Mapping[str, str], by: list[str] | None, strategy: str | None
) -> None:
    """Show what `compact` would do to TABLE, and `cluster` where it is to be clustered; change nothing."""
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
    _warn(target, planned.notes)

    def show(out: Console) -> None:
        console.show_plan(out, planned, groups=True)
        if clustering is not None:
            console.show_plan(out, clustering, groups=True)

    target.answer(planned.to_dict() | {"cluster_plan": clustering and clustering.to_dict()}, show)


@main.command()
@spark_options
@choice_options
@table_options
def compact(target: Target, *, where: str | None, policy: Mapping[str, str], spark: SparkChoice) -> None:
    """Merge the small files of TABLE to as few as possible, in one commit.

    It is done in this process, with a commit after each GiB. With --master, --remote or --conf Spark does it at once.
    """
    with spark.session("compact") as session:
        _carry_out(partial(target.open(policy, session).compact, where), target)


@main.command()
@_by_options("; remembered in the table's properties, with the strategy")
@click.option("--forget", is_flag=True, help="Cluster nothing; take back what is remembered, and a sort's sort order.")
@click.option("--budget-bytes", type=click.IntRange(0), metavar="N", help="Bytes that may be written anew.")
@spark_options
@choice_options
@table_options
def cluster(
    target: Target, *, where: str | None, policy: Mapping[str, str], spark: SparkChoice, by: list[str] | None,
    strategy: str | None, budget_bytes: int | None, forget: bool,
) -> None:  # fmt: skip
    """Lay the rows of TABLE out for queries by some columns, in one commit; what is in order is left alone.

    It is done in this process, with a commit after each GiB. With --master, --remote or --conf Spark does it at once.
    """
    if forget and (by or strategy or where or budget_bytes is not None):
        raise click.UsageError("--forget goes without --by, --strategy, --where and --budget-bytes")
    with spark.session("cluster") as session:
        sized = target.open(policy, session)
        if not forget:
            _carry_out(partial(sized.cluster, by, strategy, where, budget_bytes), target)
            return
        forgotten = sized.forget_clustering()

    def show(out: Console) -> None:
        removed = ", ".join(forgotten.removed)
        console.show_line(out, f"forgot the clustering of {sized.name}: removed {removed}")
        console.show_notes(out, forgotten.notes)

    target.answer(forgotten.to_dict(), show)


def _carry_out(work: Callable[..., Report], target: Target) -> None:
    """Print plan, progress and report; exit code 1 when nothing was committed although there was something to do."""
    out = console_on(silent=target.as_json)
    planned: list[Plan] = []

    def on_plan(plan: Plan) -> None:
        _warn(target, plan.notes)
        console.show_plan(out, plan)
        planned.append(plan)

    with console.merging(out, lambda: planned[0].bytes_to_write) as progress:
        report = work(on_plan=on_plan, progress=progress)

    def show(out: Console) -> None:
        if planned[0].groups:
            console.show_report(out, report, known=planned[0].notes)
        else:
            console.show_notes(out, [note for note in report.notes if note not in planned[0].notes])

    target.answer(report.to_dict(), show)
    if planned[0].groups and not report.snapshot_ids:
        raise click.exceptions.Exit(FAILED)


def _warn(target: Target, notes: Sequence[str]) -> None:
    """On standard error, where cron looks: a filter that chooses nothing ends with exit code 0 all the same."""
    from icesize.table.state.where import NO_MATCH

    if NO_MATCH in notes and not target.as_json:
        _complain(f"warning: {NO_MATCH}; nothing was chosen")


@main.command()
@click.option("--forget", metavar="ID", help="Remove this stream: its next batch is taken whatever its query and id.")
@table_options
def streams(target: Target, *, forget: str | None) -> None:
    """List the streams that have committed to TABLE, each with its newest batch."""
    sized = target.open()
    if forget is not None:
        sized.forget_stream(forget)
    entries = sized.streams()

    def show(out: Console) -> None:
        if forget is None:
            console.show_streams(out, sized.name, entries)
        else:
            console.show_line(out, f"forgot stream '{forget}' of {sized.name}")

    target.answer([asdict(entry) for entry in entries], show)


@main.command()
@click.option("--path", metavar="DIR", help="Where catalog, tables and logs go; default: a new temporary directory.")
@click.option("--batches", type=click.IntRange(1, 192), default=12, show_default=True, help="Micro-batches of events.")
@click.option("--rows", type=click.IntRange(1), default=20_000, show_default=True, help="Events in each batch.")
@click.option("--no-spark", is_flag=True, help="PyIceberg fills the table and icesize compacts it; needs no Java.")
def demo(path: str | None, batches: int, rows: int, no_spark: bool) -> None:
    """Stream events with late rows into two local tables, plainly and with icesize, and compare them."""
    from icesize.demo.run import run_demo

    collect_from_now_on()
    if not run_demo(console_on(), path, batches, rows, with_spark=not no_spark):
        raise click.exceptions.Exit(FAILED)


_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


@main.command()
@partition_option(required=False)
@table_options
def versions(target: Target, *, partition: Mapping[str, str] | None) -> None:
    """List the versions of a partition of TABLE, newest first; of all partitions without --partition."""
    sized = target.open()
    found = sized.versions(partition)
    document = [version.to_dict() for version in found]
    target.answer(document, lambda out: console.show_versions(out, sized.name, found))


@main.command()
@partition_option(required=True)
@click.option("--snapshot", "snapshot_id", type=int, required=True, help="The version, as `icesize versions` names it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_DRY_RUN
@table_options
def restore(target: Target, *, partition: Mapping[str, str], snapshot_id: int, yes: bool, dry_run: bool) -> None:
    """Make a partition of TABLE what it was at a snapshot; files that it has no more are copied.

    Streaming readers of the table stop at the commit, which is an overwrite.
    """
    if target.as_json and not (yes or dry_run):
        raise click.UsageError("--json does not ask: add --yes or --dry-run")
    sized = target.open()
    if not yes and not dry_run:
        name = "/".join(f"{field}={value}" for field, value in partition.items()) or "the whole table"
        rows = console.rows_before_and_after(sized.restore(partition, snapshot_id, dry_run=True))
        question = f"Restore {name} of {sized.name} to snapshot {snapshot_id}, {rows}?"
        click.confirm(f"{question} Streaming readers of this table will stop at the overwrite", abort=True, err=True)
    report = sized.restore(partition, snapshot_id, dry_run=dry_run)
    target.answer(report.to_dict(), lambda out: console.show_restored(out, report))


@main.command("expire-snapshots")
@click.option("--keep-versions", type=int, metavar="N", help="Keep the newest N versions of each partition.")
@age_option(or_time=True, help_text="Only those older than 5d, 12h or a time.")
@click.option("--retain-last", type=int, metavar="N", help="Keep the newest N snapshots of each branch.")
@click.option("--reader", "readers", multiple=True, metavar="PATH", help="A streaming reader's checkpoint. Repeatable.")
@click.option("--force", is_flag=True, help="Go on where a reader's position cannot be kept.")
@_DRY_RUN
@table_options
def expire_snapshots(
    target: Target,
    *,
    keep_versions: int | None,
    older_than: datetime | timedelta | None,
    retain_last: int | None,
    readers: tuple[str, ...],
    force: bool,
    dry_run: bool,
) -> None:
    """Remove snapshots of TABLE that no rule keeps, and the files that only they needed.

    Without options the table's own rules hold: history.expire.* and icesize.policy.keep-versions. A snapshot stays when
    any rule keeps it; nothing younger than the table's history.expire.max-snapshot-age-ms goes without --older-than.
    """
    with console.deleting(console_on(silent=target.as_json)) as progress:
        report = target.open().expire_snapshots(
            keep_versions, older_than, retain_last, dry_run, readers=readers, force=force, progress=progress
        )
    target.answer(report.to_dict(), lambda out: console.show_expiry(out, report))
    if report.files_failed > 0:
        raise click.exceptions.Exit(FAILED)


@main.command("remove-orphan-files")
@age_option("3d", help_text="At least 24h.")
@click.option("--dry-run/--delete", default=True, show_default=True, help="Show them, or delete them.")
@table_options
def remove_orphan_files(target: Target, *, older_than: timedelta, dry_run: bool) -> None:
    """Find files in the location of TABLE that nothing refers to; delete them with --delete."""
    report = target.open().remove_orphan_files(older_than, dry_run)
    target.answer(report.to_dict(), lambda out: console.show_orphans(out, report))
    if report.files_failed > 0:
        raise click.exceptions.Exit(FAILED)


@main.command("rewrite-manifests")
@table_options
def rewrite_manifests(target: Target) -> None:
    """Write many small manifests of TABLE together, in one commit."""
    report = target.open().rewrite_manifests()
    target.answer(report.to_dict(), lambda out: console.show_line(out, str(report)))


@main.command()
@click.option("--budget-bytes", type=click.IntRange(0), metavar="N", help="Bytes that merges may rewrite.")
@click.option("--budget-seconds", type=click.FloatRange(0), metavar="S", help="Seconds after which no step begins.")
@spark_options
@table_options
def maintain(target: Target, *, budget_bytes: int | None, budget_seconds: float | None, spark: SparkChoice) -> None:
    """One bounded pass over TABLE: merges, useless delete files, manifests, expiry by its rules, a look at orphans.

    Exit code 1 when a step failed; the others ran all the same. What a pass leaves the next one goes on with.
    """
    with spark.session("maintain") as session:
        report = target.open(None, session).maintain(budget_bytes, budget_seconds)
    target.answer(report.to_dict(), lambda out: console.show_upkeep(out, report))
    if not report.is_well:
        raise click.exceptions.Exit(FAILED)
