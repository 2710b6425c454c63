"""Commands that read: `scan` a catalog, and seven for a table.

They are `inspect`, `plan`, `streams`, `versions`, `history`, `verify` and `report`. None changes anything, except
`streams --forget`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import click

from icesize.cli import options
from icesize.cli.options import Target, command
from icesize.cli.values import pairs
from icesize.environment import Environment
from icesize.errors import EngineUnavailable, IcesizeError
from icesize.presentation import views
from icesize.presentation.blocks import Block
from icesize.units import format_bytes

if TYPE_CHECKING:
    from icesize.maintenance.passes.survey import CatalogSurvey
    from icesize.sized_table import SizedTable
    from icesize.table.records.ledger import LedgerEntry

_FILE = click.Path(dir_okay=False, path_type=Path)
_MOST_LETTERS = 100
"""Characters of a table's name in the name of a file, which file systems limit to 255."""


def _lines(file: TextIO | None) -> list[str]:
    """Return the lines that are neither empty nor comments; `#` begins a comment."""
    lines = [line.strip() for line in file or ()]
    return [line for line in lines if line and not line.startswith("#")]


def _policies(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> list[dict[str, str]]:
    """Return each `a=1,b=2` as a mapping."""
    return [pairs(ctx, parameter, tuple(value.split(","))) for value in values]


def _limit_option(default: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option `--limit`, whose value is None if it is omitted."""
    help_text = f"Show at most N lines, newest first.  [default: {default}; all with --json]"
    return click.option("--limit", type=click.IntRange(1), metavar="N", help=help_text)


@command(
    "scan",
    "Rank the tables of a catalog",
    "icesize scan lake",
    "icesize scan lake.db --limit 5",
    "icesize scan 'lake.db.events_*' --json",
)
@click.option(
    "--limit", type=click.IntRange(1), metavar="N",
    help=f"Show at most N tables, the worst first.  [default: {views.MOST_TABLES}; all with --json]",
)  # fmt: skip
@options.policy_option
@partial(options.table_options, metavar="CATALOG[.NAMESPACE[.PATTERN]]")
def scan(target: Target, *, limit: int | None, policy: Mapping[str, str]) -> None:
    """Rank the tables of a catalog by the scan time that maintenance would save; show a health score.

    The command reads metadata only, changes nothing, and needs the rights to list and read. A namespace includes those
    below it; in PATTERN, * matches any characters. Views, tables of other formats and unreadable tables are named
    and skipped. Exit code 1 if no table could be read, or if the namespace is not found.
    """
    found = target.scan(policy)
    shown = replace(found, tables=found.tables[:limit])

    from icesize.presentation.views import jobs  # slow: imports PyIceberg

    target.answer(shown, jobs.survey(found, limit or views.MOST_TABLES), exit_code=_exit_code_of_scan(found))


def _exit_code_of_scan(found: CatalogSurvey) -> int:
    """Return FAILED if names were found, and none of them could be read as a table; otherwise 0."""
    return options.FAILED if not found.tables and (found.skipped or found.doubts) else 0


@command(
    "inspect",
    "Show file sizes and what they cost",
    "icesize inspect lake.db.events",
    "icesize inspect lake.db.events --where \"hour = 'h191'\" --json",
    'icesize inspect lake.db.events --filter "user_id = 7"',
)
@click.option("--check", is_flag=True, help="Only check TABLE against its policy; exit code 4 if unhealthy.")
@click.option(
    "--price-per-1000-requests",
    type=click.FloatRange(0),
    metavar="USD",
    help="Price of 1,000 GET requests. Default: 0.0004, the price of Amazon S3; none on local disks and HDFS.",
)
@click.option(
    "--filter",
    "filters",
    metavar="FILTER",
    multiple=True,
    help='Query filter, such as "user_id = 7": show the files it opens and what to cluster by. Repeatable.',
)
@click.option(
    "--filters",
    "filters_file",
    type=click.File(encoding="utf-8"),
    help="Read filters from this file, one per line; # starts a comment.",
)
@options.choice_options
@options.table_options
def inspect(
    target: Target,
    *,
    where: str | None,
    policy: Mapping[str, str],
    check: bool,
    price_per_1000_requests: float | None,
    filters: Sequence[str],
    filters_file: TextIO | None,
) -> None:
    """Show the file sizes of TABLE, and what they cost each scan.

    TABLE is healthy if no partition has more than max-small-files small files to merge, and no data file has more than
    max-delete-files delete files. --policy sets other thresholds.
    """
    asked = [*filters, *_lines(filters_file)]
    sized = target.open(policy)
    inspection = sized.inspect(where, filters=asked, price_per_1000_requests=price_per_1000_requests)
    options.warn(target, [str(advice) for advice in inspection.advice])
    if not check:
        target.answer(inspection)
    else:
        from icesize.presentation.views import tables  # slow: imports PyIceberg

        target.answer(inspection, tables.health(inspection), exit_code=options.UNHEALTHY if inspection.problems else 0)


@command(
    "verify",
    "Verify metadata and files",
    "icesize verify lake.db.events",
    "icesize verify lake.db.events --inventory inventory.parquet",
    "icesize verify lake.db.events --deep --resume verified.json",
)
@click.option("--deep", is_flag=True, help="Also read all data files and delete files.")
@click.option("--current", is_flag=True, help="Check only the files of the newest snapshot.")
@click.option(
    "--resume",
    type=_FILE,
    metavar="FILE",
    help="Keep the paths of verified files in this file, and skip them next time.",
)  # fmt: skip
@options.inventory_option
@options.table_options
def verify(target: Target, *, deep: bool, current: bool, resume: Path | None, inventory: tuple[str, ...]) -> None:
    """Verify that the metadata of TABLE agree with each other and with the storage; change nothing.

    The command reads the newest manifest list, all manifests and the footers of Puffin files, and no data file. It
    lists the table's directories to find the files of all kept snapshots. With --deep, it reads these files and
    compares them with the manifests and with their own footers. Exit code 4 if something is wrong.
    """
    if resume and not deep:
        raise click.UsageError("--resume goes with --deep")
    sized = target.open()
    with target.progress():
        found = sized.verify(deep=deep, current=current, inventory=inventory, resume=resume)
    target.answer(found, exit_code=0 if found.is_valid else options.UNHEALTHY)


@command(
    "plan",
    "Preview `compact` and `cluster`",
    "icesize plan lake.db.events",
    "icesize plan lake.db.events --policy target-file-size-bytes=128MiB",
    "icesize plan lake.db.events --by customer_id,day --strategy hilbert",
    "icesize plan lake.db.events --what-if target-file-size-bytes=256MiB,max-small-files=4",
)
@click.option(
    "--what-if",
    metavar="K=V,...",
    multiple=True,
    callback=_policies,
    help="Replay past batches under the current policy and under one with these keys changed. Repeatable.",
)
@options.by_options(": preview `cluster --by`; change and store nothing")
@options.choice_options
@options.table_options
def plan(
    target: Target,
    *,
    where: str | None,
    policy: Mapping[str, str],
    by: list[str] | None,
    strategy: str | None,
    what_if: Sequence[Mapping[str, str]],
) -> None:
    """Preview `compact` on TABLE, and `cluster` if TABLE is clustered; change nothing.

    With --what-if, show the cost of the past batches under other policies instead.
    """
    sized = target.open(policy)
    if what_if:
        if where or by or strategy:
            raise click.UsageError("--what-if is about the whole table: it goes without --where, --by and --strategy")
        target.answer(sized.compare_policies(*what_if))
        return
    planned = sized.plan(where)
    try:
        clustering = sized.plan_clustering(by, strategy, where)
    except IcesizeError as error:
        if by or strategy:
            raise
        clustering, planned = None, replace(planned, notes=(*planned.notes, str(error)))
    if strategy and clustering is None:
        raise click.UsageError("--strategy needs --by: the table does not say by which columns it is clustered")
    options.warn(target, planned.notes)

    from icesize.presentation.views import tables  # slow: imports PyIceberg

    both = (line for one in (planned, clustering) if one for line in tables.plan(one))
    target.answer(planned.to_dict() | {"cluster_plan": clustering and clustering.to_dict()}, both)


@command(
    "streams",
    "List the streams of a table",
    "icesize streams lake.db.events",
    "icesize streams lake.db.events --forget clicks --dry-run",
)
@click.option("--forget", metavar="ID", help="Remove this stream; accept its next batch from any query, with any id.")
@options.yes_option
@options.dry_run_option
@options.table_options
def streams(target: Target, *, forget: str | None, yes: bool, dry_run: bool) -> None:
    """List the streams that committed to TABLE, each with its newest batch.

    With --forget and --json, print the streams that remain.
    """
    if forget is None and (yes or dry_run):
        raise click.UsageError("--yes and --dry-run go with --forget")
    sized = target.open()
    if forget is None:
        entries = sized.streams()

        from icesize.presentation.views import tables  # slow: imports PyIceberg

        target.answer(entries, tables.streams(sized.name, entries))
        return
    if options.asks(yes=yes, dry_run=dry_run):
        entry = sized.forget_stream(forget, dry_run=True)
        options.confirm(f"Forget {_describe(entry, sized)}? A committed batch may then be committed again")
    entry = sized.forget_stream(forget, dry_run=dry_run)
    left = [other for other in sized.streams() if other.stream_id != forget]
    target.answer(left, [(f"{'would forget' if dry_run else 'forgot'} {_describe(entry, sized)}",)])


def _describe(entry: LedgerEntry, sized: SizedTable) -> str:
    return f"stream '{entry.stream_id}' of {sized.name} (query {entry.query_id}, batch {entry.batch_id})"


@command(
    "versions",
    "List the versions of partitions",
    "icesize versions lake.db.events --partition hour=h191",
    "icesize versions lake.db.events --limit 100",
)
@options.partition_option(required=False)
@_limit_option(views.MOST_VERSIONS)
@options.table_options
def versions(target: Target, *, partition: str | None, limit: int | None) -> None:
    """List the versions of a partition of TABLE, newest first. Without --partition, list all partitions."""
    sized = target.open()
    found = sized.versions(partition)

    from icesize.presentation.views import tables  # slow: imports PyIceberg

    target.answer(found[:limit], tables.versions(sized.name, found, limit or views.MOST_VERSIONS))


@command(
    "history",
    "List commits with their changes and cost",
    "icesize history lake.db.events",
    "icesize history lake.db.events --limit 100",
)
@_limit_option(views.MOST_COMMITS)
@options.table_options
def history(target: Target, *, limit: int | None) -> None:
    """List the commits of TABLE, newest first: rows, files, bytes, write amplification, seconds.

    A batch and its merges are one commit. Commits of other writers have the kind `other`. A cell is blank if the commit
    does not record the value.
    """
    target.answer(target.open().history(limit or (None if target.as_json else views.MOST_COMMITS)))


@command(
    "report",
    "Write a page with charts of the table, or of a catalog",
    "icesize report lake.db.events -o report.html",
    "icesize report lake -o lake.html --tables 5",
    "icesize report lake.db.events -o report.html --png report.png --since 8271638",
)
@click.option("--output", "-o", type=_FILE, metavar="FILE", help="Write the page to this HTML file; it works offline.")
@click.option("--png", type=_FILE, metavar="FILE", help="Write only the charts to this image.")
@click.option("--since", metavar="SNAPSHOT", help="Compare file sizes with those at this snapshot.")
@click.option(
    "--tables", type=click.IntRange(0), metavar="N", default=10, show_default=True,
    help="For a catalog, also write one page for each of the N worst tables.",
)  # fmt: skip
@partial(options.table_options, metavar="TABLE|PATTERN")
def report(target: Target, *, output: Path | None, png: Path | None, since: str | None, tables: int) -> None:
    """Draw charts of TABLE: file sizes before and after `compact`, partitions over time, cost of batches.

    If TABLE is a catalog such as `lake`, a namespace such as `lake.db`, or a pattern such as `lake.db.eu.*`, the page
    ranks its tables, as `scan` does, with the same exit code, and links to the pages of the worst ones.

    Charts need matplotlib, which the extra `report` of icesize installs.
    """
    if not (output or png or target.as_json):
        raise click.UsageError("say where the page goes: -o report.html, --png report.png or both")
    for path in filter(None, (output, png)):
        if not path.parent.is_dir():
            raise click.UsageError(f"cannot write '{path}': there is no folder '{path.parent}'")
    if target.is_pattern:
        if png or since:
            raise click.UsageError("--png and --since are about one table")
        _report_on_catalog(target, output, tables)
        return
    overview = target.open().report(since)
    if output:
        output.write_text(overview.to_html(), encoding="utf-8")
    if png:
        png.write_bytes(overview.to_png())
    target.answer(overview, (*_wrote(filter(None, (output, png))), *views.notes(overview.advice)))


def _wrote(paths: Iterable[Path]) -> list[Block]:
    return [((f"wrote {path}, {format_bytes(path.stat().st_size)}", "bold"),) for path in paths]


def _report_on_catalog(target: Target, output: Path | None, tables: int) -> None:
    """Write the page of a catalog, and beside it the pages of its worst tables; without `output`, only print JSON."""
    from icesize.presentation.page import catalog_page

    found = target.scan()
    if output is None:
        target.answer(found, exit_code=_exit_code_of_scan(found))
        return
    pages, failed = dict[str, Path](), list[str]()
    for number, table in enumerate(found.tables[:tables], 1):
        name = re.sub(r"[^\w.-]", "_", table.table, flags=re.ASCII)[:_MOST_LETTERS]
        page = output.with_name(f"{output.stem}.{number:02}.{name}.html")
        try:
            page.write_text(replace(target, table=table.table).open().report().to_html(), encoding="utf-8")
            pages[table.table] = page
        except EngineUnavailable:
            raise
        except (IcesizeError, OSError) as error:  # the other tables have a page
            failed.append(f"{table.table}: {error}")
    links = {table: page.name for table, page in pages.items()}
    output.write_text(catalog_page(found, links, Environment().now_ms()), encoding="utf-8")
    blocks = (*_wrote([output, *pages.values()]), *views.notes(failed))
    target.answer(found, blocks, exit_code=_exit_code_of_scan(found))
