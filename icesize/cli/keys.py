"""Commands about the key of a table: `deduplicate`, `rekey`."""

from __future__ import annotations

from functools import partial

import click

from icesize.cli import options
from icesize.cli.options import Target, command, names_option
from icesize.cli.values import SECONDS
from icesize.planning.upsert_rule import TIES
from icesize.units import format_count


@command(
    "deduplicate",
    "Keep the newest row of each key, delete the others",
    "icesize deduplicate lake.db.orders --key id --order-by changed_at --dry-run",
    "icesize deduplicate lake.db.orders --yes",
)
@names_option("--key", "Columns that identify a row; by default the stored key, or the table's identifier fields.")
@names_option("--order-by", "Columns by which the newest row is recognized; by default the stored ones.")
@options.yes_option
@options.dry_run_option
@options.table_options
def deduplicate(target: Target, *, key: list[str] | None, order_by: list[str] | None, yes: bool, dry_run: bool) -> None:
    """For each key of TABLE, keep the newest row and delete the others, in one commit.

    Without an order, the row of the newest commit stays. Stream readers of TABLE stop at this commit, because it
    deletes rows.
    """
    sized = target.open()
    remove = partial(sized.deduplicate, key, order_by)
    if options.asks(yes=yes, dry_run=dry_run):
        found = remove(dry_run=True)
        if found.rows_deleted:
            options.confirm(f"Delete {format_count(found.rows_deleted, 'row')} of {sized.name}?")
    target.answer(remove(dry_run=dry_run))


@command(
    "rekey",
    "Change the key of a table with upserts",
    "icesize rekey lake.db.orders --key id,region --dry-run",
    "icesize rekey lake.db.orders --order-by changed_at,sequence --ties last_delete",
    needs="{--key|--order-by|--delete-when|--ties|--tombstones}",
)
@names_option("--key", "Columns that identify a row.")
@names_option("--order-by", "Columns by which a later row is recognized; an empty string removes the stored value.")
@click.option(
    "--delete-when", help="SQL condition that makes a row a delete; an empty string removes the stored value."
)
@click.option("--ties", type=click.Choice(TIES), help="What is done with different rows of one key and order.")
@click.option("--tombstones", type=SECONDS, help="How long deletes are remembered, such as 48h.")
@options.dry_run_option
@options.table_options
def rekey(
    target: Target, *, key: list[str] | None, order_by: list[str] | None, delete_when: str | None, ties: str | None,
    tombstones: float | None, dry_run: bool,
) -> None:  # fmt: skip
    """Change the stored rule of TABLE, which all its writers follow; options you omit keep their stored value.

    If the key changes, icesize first checks that each key has one row. Files do not change. Streams that name the
    earlier rule stop at their next batch. icesize forgets remembered deletes if the key gets other columns, or if the
    order changes other than at its end.
    """
    wanted = (key, order_by, delete_when, ties, tombstones)
    if all(each is None for each in wanted):
        raise click.UsageError("name what to change: --key, --order-by, --delete-when, --ties or --tombstones")
    try:
        report = target.open().rekey(*wanted, dry_run=dry_run)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    target.answer(report)
