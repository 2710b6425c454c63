"""Commands that delete what nothing needs: `expire-snapshots`, `remove-orphan-files`."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial

import click

from icesize.cli import options
from icesize.cli.options import Target, command
from icesize.cli.values import AGE, AGE_OR_TIME
from icesize.units import format_bytes, format_count


@command(
    "expire-snapshots",
    "Remove snapshots that no rule keeps, and their files",
    "icesize expire-snapshots lake.db.events --dry-run",
    "icesize expire-snapshots lake.db.events --keep-versions 3 --older-than 12h --yes",
    "icesize expire-snapshots lake.db.events --reader s3://checkpoints/downstream",
)
@click.option("--keep-versions", type=int, metavar="N", help="Keep the newest N versions of each partition.")
@click.option(
    "--older-than", type=AGE_OR_TIME, help="Expire only snapshots older than this age, such as 5d or 12h, or this time."
)
@click.option("--retain-last", type=int, metavar="N", help="Keep the newest N snapshots of each branch.")
@click.option(
    "--reader", "readers", multiple=True, metavar="PATH", help="Checkpoint of a streaming reader. Repeatable."
)
@click.option("--force", is_flag=True, help="Expire even if a reader's position cannot be kept.")
@options.yes_option
@options.dry_run_option
@options.table_options
def expire_snapshots(
    target: Target,
    *,
    keep_versions: int | None,
    older_than: datetime | timedelta | None,
    retain_last: int | None,
    readers: tuple[str, ...],
    force: bool,
    yes: bool,
    dry_run: bool,
) -> None:
    """Expire the snapshots of TABLE that no rule keeps; delete the files that only they need.

    \b
    A snapshot stays if at least one of these rules keeps it:
    - a branch or tag points to it, or it records the newest append or the
      progress of another writer
    - --older-than: it is younger; default: history.expire.max-snapshot-age-ms
    - --retain-last: it is among the newest of its branch; default:
      history.expire.min-snapshots-to-keep
    - --keep-versions: it is among the newest versions of a partition; default:
      icesize.policy.keep-versions, unless one of these three options is given
    - --reader: the reader of this checkpoint has not read it
    """
    sized = target.open()
    expire = partial(sized.expire_snapshots, keep_versions, older_than, retain_last, readers=readers, force=force)
    if options.asks(yes=yes, dry_run=dry_run):
        options.confirm_expiry(sized.name, expire(dry_run=True))
    with target.progress():
        report = expire(dry_run=dry_run)
    target.answer(report, exit_code=options.FAILED if report.files_failed else 0)


@command(
    "remove-orphan-files",
    "Find or delete files that nothing refers to",
    "icesize remove-orphan-files lake.db.events",
    "icesize remove-orphan-files lake.db.events --older-than 7d --delete --yes",
    "icesize remove-orphan-files lake.db.events --inventory inventory.parquet",
)
@click.option("--older-than", type=AGE, default="3d", show_default=True, help="Minimum age of a file, at least 24h.")
@click.option("--dry-run/--delete", default=True, show_default=True, help="Show the files, or delete them.")
@click.option(
    "--trust-location",
    is_flag=True,
    help="Assume that no other table has files in this location; load no other table.",
)
@options.inventory_option
@options.yes_option
@options.table_options
def remove_orphan_files(
    target: Target, *, older_than: timedelta, dry_run: bool, trust_location: bool, inventory: tuple[str, ...], yes: bool
) -> None:
    """Find unreferenced files in the location of TABLE; delete them with --delete.

    Files that other tables of the catalog refer to stay. If icesize cannot read one of these tables, it deletes only
    files with its own names. With --inventory, ages count from the newest file of the inventory.
    """
    sized = target.open()
    remove = partial(sized.remove_orphan_files, older_than, trust_location=trust_location, inventory=inventory)
    if options.asks(yes=yes, dry_run=dry_run):
        with target.progress():
            found = remove()
        files = f"{format_count(found.files_found, 'file')} ({format_bytes(found.bytes_found)})"
        options.confirm(f"Delete {files} that nothing refers to from the location of {sized.name}?")
    with target.progress():
        report = remove(dry_run=dry_run)
    target.answer(report, exit_code=options.FAILED if report.files_failed else 0)
