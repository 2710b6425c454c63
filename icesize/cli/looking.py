"""Commands that look at a table and change nothing: `inspect`, `plan`, `streams`, `versions`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import click

from icesize import console
from icesize.cli.options import (
    UNWELL,
    Target,
    by_options,
    choice_options,
    command,
    confirmed,
    is_asked,
    partition_option,
    table_options,
    warn,
    yes_option,
)
from icesize.errors import IcesizeError

if TYPE_CHECKING:
    from rich.console import Console


@command(
    "inspect",
    "How well sized the files are",
    "icesize inspect lake.db.events",
    "icesize inspect lake.db.events --where \"hour = 'h191'\" --json",
)
@click.option("--check", is_flag=True, help="Only whether TABLE is well by its policy; exit code 4 when it is not.")
@choice_options
@table_options
def inspect(target: Target, *, where: str | None, policy: Mapping[str, str], check: bool) -> None:
    """Show how well sized the files of TABLE are.

    A table is well when no partition has more small files to merge than max-small-files, and no file more delete files
    to be read with it than max-delete-files. --policy sets other thresholds.
    """
    inspection = target.open(policy).inspect(where)
    warn(target, inspection.advice)
    show = console.show_health if check else console.show_inspection
    target.answer(inspection.to_dict(), lambda out: show(out, inspection))
    if check and inspection.problems:
        raise click.exceptions.Exit(UNWELL)


@command(
    "plan",
    "What `compact` and `cluster` would do",
    "icesize plan lake.db.events",
    "icesize plan lake.db.events --policy target-file-size-bytes=128MiB",
    "icesize plan lake.db.events --by customer_id,day --strategy hilbert",
)
@by_options(": show `cluster --by` without changing or remembering anything")
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
    warn(target, planned.notes)

    def show(out: Console) -> None:
        console.show_plan(out, planned, groups=True)
        if clustering is not None:
            console.show_plan(out, clustering, groups=True)

    target.answer(planned.to_dict() | {"cluster_plan": clustering and clustering.to_dict()}, show)


@command(
    "streams",
    "The streams that have committed",
    "icesize streams lake.db.events",
    "icesize streams lake.db.events --forget clicks",
)
@click.option("--forget", metavar="ID", help="Remove this stream: its next batch is taken whatever its query and id.")
@yes_option
@table_options
def streams(target: Target, *, forget: str | None, yes: bool) -> None:
    """List the streams that have committed to TABLE, each with its newest batch."""
    if forget is None and yes:
        raise click.UsageError("--yes goes with --forget")
    sized = target.open()
    if forget is not None:
        if not yes and is_asked(target):
            confirmed(f"Forget stream '{forget}' of {sized.name}? A batch that is in the table may then land again")
        sized.forget_stream(forget)
    entries = sized.streams()

    def show(out: Console) -> None:
        if forget is None:
            console.show_streams(out, sized.name, entries)
        else:
            console.show_line(out, f"forgot stream '{forget}' of {sized.name}")

    target.answer([asdict(entry) for entry in entries], show)


@command(
    "versions",
    "The versions of partitions, newest first",
    "icesize versions lake.db.events --partition hour=h191",
    "icesize versions lake.db.events --limit 100",
)
@partition_option(required=False)
@click.option(
    "--limit",
    type=click.IntRange(1),
    metavar="N",
    help=f"How many, newest first.  [default: {console.MOST_VERSIONS}; all with --json]",
)
@table_options
def versions(target: Target, *, partition: Mapping[str, str] | None, limit: int | None) -> None:
    """List the versions of a partition of TABLE, newest first; of all partitions without --partition."""
    sized = target.open()
    found = sized.versions(partition)
    document = [version.to_dict() for version in found[:limit]]
    shown = limit or console.MOST_VERSIONS
    target.answer(document, lambda out: console.show_versions(out, sized.name, found, shown))
