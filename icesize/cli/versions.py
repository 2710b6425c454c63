"""The commands that keep, restore and remove versions."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

import click

from icesize.cli.options import (
    SparkChoice,
    Target,
    age_option,
    answer,
    partition_option,
    print_json,
    spark_options,
    table_options,
)

_DRY_RUN = click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")


@click.command()
@partition_option(required=False)
@table_options
def versions(target: Target, *, as_json: bool, partition: Mapping[str, str] | None) -> None:
    """List the versions of a partition of TABLE, newest first; of all partitions without --partition."""
    from icesize.console.tables import console_on
    from icesize.console.versions import show_versions

    sized = target.open()
    found = sized.versions(partition)
    if as_json:
        print_json([version.to_dict() for version in found])
    else:
        show_versions(console_on(), sized.name, found)


@click.command()
@partition_option(required=True)
@click.option("--snapshot", "snapshot_id", type=int, required=True, help="The version, as `icesize versions` names it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_DRY_RUN
@table_options
def restore(
    target: Target, *, as_json: bool, partition: Mapping[str, str], snapshot_id: int, yes: bool, dry_run: bool
) -> None:
    """Make a partition of TABLE what it was at a snapshot; files that it has no more are copied.

    Streaming readers of the table stop at the commit, which is an overwrite.
    """
    from icesize.console.versions import rows_before_and_after, show_restored

    if as_json and not (yes or dry_run):
        raise click.UsageError("--json does not ask: add --yes or --dry-run")
    sized = target.open()
    if not yes and not dry_run:
        name = "/".join(f"{field}={value}" for field, value in partition.items()) or "the whole table"
        planned = sized.restore(partition, snapshot_id, dry_run=True)
        click.confirm(
            f"Restore {name} of {sized.name} to snapshot {snapshot_id}, {rows_before_and_after(planned)}? Streaming "
            "readers of this table will stop at the overwrite",
            abort=True,
            err=True,
        )
    report = sized.restore(partition, snapshot_id, dry_run=dry_run)
    answer(report, as_json, show_restored)


@click.command("expire-snapshots")
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
    as_json: bool,
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
    from icesize.console.tables import console_on
    from icesize.console.versions import deleting, show_expiry

    out = console_on(silent=as_json)
    with deleting(out) as progress:
        report = target.open().expire_snapshots(
            keep_versions, older_than, retain_last, dry_run, readers=readers, force=force, progress=progress
        )
    if as_json:
        print_json(report.to_dict())
    else:
        show_expiry(out, report)
    if report.files_failed > 0:
        raise click.exceptions.Exit(1)


@click.command("remove-orphan-files")
@age_option("3d", help_text="At least 24h.")
@click.option("--dry-run/--delete", default=True, show_default=True, help="Show them, or delete them.")
@table_options
def remove_orphan_files(target: Target, *, as_json: bool, older_than: timedelta, dry_run: bool) -> None:
    """Find files in the location of TABLE that nothing refers to; delete them with --delete."""
    from icesize.console.versions import show_orphans

    report = target.open().remove_orphan_files(older_than, dry_run)
    answer(report, as_json, show_orphans)
    if report.files_failed > 0:
        raise click.exceptions.Exit(1)


@click.command("rewrite-manifests")
@table_options
def rewrite_manifests(target: Target, *, as_json: bool) -> None:
    """Write many small manifests of TABLE together, in one commit."""
    from icesize.console.versions import show_manifests

    report = target.open().rewrite_manifests()
    answer(report, as_json, show_manifests)


@click.command()
@click.option("--budget-bytes", type=click.IntRange(0), metavar="N", help="Bytes that merges may rewrite.")
@click.option("--budget-seconds", type=click.FloatRange(0), metavar="S", help="Seconds after which no step begins.")
@spark_options
@table_options
def maintain(
    target: Target, *, as_json: bool, budget_bytes: int | None, budget_seconds: float | None, spark: SparkChoice
) -> None:
    """One bounded pass over TABLE: merges, manifests, expiry by its own rules, a dry run of orphan cleanup.

    Exit code 1 when a step failed; the others ran all the same. What a pass leaves the next one goes on with.
    """
    from icesize.console.versions import show_upkeep

    with spark.session("maintain") as session:
        report = target.open(None, session).maintain(budget_bytes, budget_seconds)
    answer(report, as_json, show_upkeep)
    if not report.is_well:
        raise click.exceptions.Exit(1)


COMMANDS = (versions, restore, expire_snapshots, remove_orphan_files, rewrite_manifests, maintain)
"""In the order of their groups in the help."""
