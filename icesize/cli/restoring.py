"""Commands that bring back what was there, or what metadata should say: `restore`, `repair`."""

from __future__ import annotations

from datetime import datetime
from functools import partial

import click

from icesize.cli import options
from icesize.cli.options import Target, command
from icesize.cli.values import TIME
from icesize.units import format_count


@command(
    "restore",
    "Restore a partition to an earlier version",
    "icesize versions lake.db.events --partition hour=h191",
    "icesize restore lake.db.events --partition hour=h191 --snapshot 3817798880064455296 --dry-run",
    "icesize restore lake.db.events --partition hour=h191 --as-of 2026-01-31T12:00",
    needs="{--snapshot ID|--as-of TIME}",
)
@options.partition_option(required=True)
@click.option(
    "--snapshot", "snapshot_id", type=int, help="Snapshot id of the version, as `icesize versions` prints it."
)
@click.option("--as-of", type=TIME, help="Restore the version at this time; UTC unless the time has a zone.")
@options.yes_option
@options.dry_run_option
@options.table_options
def restore(
    target: Target, *, partition: str, snapshot_id: int | None, as_of: datetime | None, yes: bool,
    dry_run: bool,
) -> None:  # fmt: skip
    """Restore a partition of TABLE to a snapshot or a time; copy its removed files to new names.

    Stream readers of TABLE stop at the commit, which is an overwrite.
    """
    if (snapshot_id is None) == (as_of is None):
        raise click.UsageError("give either --snapshot or --as-of")
    asks = options.asks(yes=yes, dry_run=dry_run)
    sized = target.open()
    from icesize.presentation.views import tables  # slow: imports PyIceberg

    bring_back = partial(sized.restore, partition, snapshot_id, as_of=as_of)
    if asks:
        name = partition or "the whole table"
        rows = tables.rows_of(bring_back(dry_run=True))
        when = f"snapshot {snapshot_id}" if as_of is None else f"{as_of:%Y-%m-%d %H:%M:%S %Z}"
        question = f"Restore {name} of {sized.name} to {when}, {rows}?"
        options.confirm(f"{question} Streaming readers of this table will stop at the overwrite")
    report = bring_back(dry_run=dry_run)
    target.answer(report, tables.committed(report))


@command(
    "repair",
    "Repair metadata, and remove entries of lost files",
    "icesize repair lake.db.events --dry-run",
    "icesize repair lake.db.events --deep --yes",
    "icesize repair lake.db.events --lost-files 12 --dry-run",
)
@click.option("--deep", is_flag=True, help="Read all files, to find wrong counts and bounds in their entries.")
@click.option(
    "--lost-files", type=click.IntRange(1), metavar="N",
    help="Confirm that the missing data files are lost, by their exact number.",
)  # fmt: skip
@options.yes_option
@options.dry_run_option
@options.table_options
def repair(target: Target, *, deep: bool, lost_files: int | None, yes: bool, dry_run: bool) -> None:
    """Repair what `verify` finds in the newest snapshot of TABLE, if the cause is certain.

    \b
    Each kind of repair is one commit, which a rollback undoes:
    - remove the entries of data files that are missing in storage
    - remove the second entry of a file that is listed twice
    - remove dangling delete files
    - correct wrong sizes, counts, bounds and totals

    If a whole directory or more than a tenth of the table is missing, repair needs --lost-files. Exit code 4 if some
    findings cannot be repaired.
    """
    asks = options.asks(yes=yes, dry_run=dry_run)
    sized = target.open()
    repaired = partial(sized.repair, deep=deep, lost_files=lost_files)
    if asks:
        with target.progress():
            found = repaired(dry_run=True)
        if not found.repairs:
            target.answer(found, exit_code=options.UNHEALTHY if found.refused else 0)
            return
        if not target.as_json:
            target.answer(found)
        kinds = format_count(len(found.repairs), "commit")
        lost = (
            f", without {format_count(sum(found.rows_lost.values()), 'row')} that are lost" if found.rows_lost else ""
        )
        options.confirm(f"Repair {sized.name} in {kinds}{lost}?")
    with target.progress():
        report = repaired(dry_run=dry_run)
    target.answer(report, exit_code=options.UNHEALTHY if report.refused else 0)
