"""Commands that rewrite files or manifests and keep every row.

They are `compact`, `cluster`, `rewrite-deletes`, `remove-dangling-deletes` and `rewrite-manifests`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import click

from icesize.cli import options
from icesize.cli.options import Target, command
from icesize.cli.spark_choice import SparkChoice, spark_options
from icesize.events import Event, Planned
from icesize.presentation import views
from icesize.presentation.console import console_on, show

if TYPE_CHECKING:
    from icesize.planning.plan import Plan
    from icesize.report import Report
    from icesize.sized_table import SizedTable


@command(
    "compact",
    "Merge small files",
    "icesize compact lake.db.events",
    "icesize compact lake.db.events --where \"hour = 'h191'\" --dry-run",
    "icesize compact lake.db.events --budget-bytes 20GiB --master 'local[4]'",
    "icesize compact lake.db.events --into-current-spec",
)
@click.option(
    "--into-current-spec",
    is_flag=True,
    help="Move rows of old partition specs into the current partitions first.",
)
@options.budget_bytes_option
@options.budget_seconds_option
@options.dry_run_option
@spark_options
@options.choice_options
@options.table_options
def compact(
    target: Target, *, where: str | None, policy: Mapping[str, str], spark: SparkChoice,
    budget_bytes: int | None, budget_seconds: float | None, into_current_spec: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Merge the small files of TABLE into as few as possible.

    The merges run in this process, with a commit after each GiB. With --master, --remote or --conf, Spark runs them in
    one commit or, with --budget-seconds, in rounds of at most about 2 GiB.
    """
    if dry_run:
        sized = target.open(policy, conf=spark.conf)
        _show_plan(target, sized.plan(where, budget_bytes, into_current_spec=into_current_spec))
        return
    with spark.session("compact") as session:
        work = target.open(policy, session).compact
        _carry_out(partial(work, where, budget_bytes, budget_seconds, into_current_spec=into_current_spec), target)


@command(
    "cluster",
    "Order rows for queries by some columns",
    "icesize cluster lake.db.events --by customer_id,day --strategy hilbert",
    "icesize cluster lake.db.events --budget-bytes 20GiB",
)
@options.by_options("; stored in the table's properties, with the strategy")
@click.option(
    "--forget", is_flag=True, help="Remove the clustering settings and the sort order that they set; change no file."
)
@options.budget_bytes_option
@options.dry_run_option
@spark_options
@options.choice_options
@options.table_options
def cluster(
    target: Target, *, where: str | None, policy: Mapping[str, str], spark: SparkChoice, by: list[str] | None,
    strategy: str | None, budget_bytes: int | None, forget: bool, dry_run: bool,
) -> None:  # fmt: skip
    """Order the rows of TABLE for queries that filter on some columns; skip ordered files.

    The work runs in this process, with a commit after each GiB. With --master, --remote or --conf, Spark does it, in
    one commit.
    """
    if forget:
        if by or strategy or where or budget_bytes is not None:
            raise click.UsageError("--forget goes without --by, --strategy, --where and --budget-bytes")
        with spark.session("cluster") as session:
            _forget_clustering(target, target.open(policy, session), dry_run)
        return
    if dry_run:
        planned = target.open(policy, conf=spark.conf).plan_clustering(by, strategy, where, budget_bytes)
        if planned is None:
            raise click.UsageError("the table does not say by which columns it is clustered: add --by")
        _show_plan(target, planned)
        return
    with spark.session("cluster") as session:
        _carry_out(partial(target.open(policy, session).cluster, by, strategy, where, budget_bytes), target)


def _forget_clustering(target: Target, sized: SizedTable, dry_run: bool) -> None:
    """Remove the clustering without a prompt: the output has each setting with its value, so it can be set again."""
    forgotten = sized.forget_clustering(dry_run=dry_run)
    verb, removed = ("would forget", "would remove") if dry_run else ("forgot", "removed")
    line = f"{verb} the clustering of {sized.name}: {removed} {', '.join(forgotten.removed)}"
    target.answer(forgotten, ((line,), *views.notes(forgotten.notes)))


def _show_plan(target: Target, planned: Plan) -> None:
    options.warn(target, planned.notes)
    target.answer(planned)


def _carry_out(work: Callable[..., Report], target: Target) -> None:
    """Print plan, progress and report; exit with code 1 if there was work but no commit, or after an internal error."""
    from icesize.presentation.views import tables  # slow: imports PyIceberg

    planned: list[Plan] = []

    def show_plan(event: Event) -> None:
        if isinstance(event, Planned):
            plan = event.plan()
            options.warn(target, plan.notes)
            show(console_on(silent=target.as_json), tables.plan(plan, groups=False))
            planned.append(plan)

    with target.progress(show_plan):
        report = work()
    shown = tables.committed if planned[0].groups else tables.left_to_say
    failed = bool((planned[0].groups and not report.snapshot_ids) or report.internal_errors)
    target.answer(report, shown(report, planned[0]), exit_code=options.FAILED if failed else 0)


@command(
    "rewrite-deletes",
    "Merge the delete files of each data file",
    "icesize rewrite-deletes lake.db.events --dry-run",
    "icesize rewrite-deletes lake.db.events --policy max-delete-files=5",
)
@options.dry_run_option
@options.policy_option
@options.table_options
def rewrite_deletes(target: Target, *, policy: Mapping[str, str], dry_run: bool) -> None:
    """Merge the delete files of each data file of TABLE to which more than max-delete-files apply.

    Data files do not change. If rewriting a data file costs less, `compact` does that instead. Exit code 1 if every
    rewrite conflicted with other writers, or one failed because of a bug of icesize.
    """
    report = target.open(policy).rewrite_deletes(dry_run=dry_run)
    failed = bool((report.conflicts and not report.snapshot_ids) or report.internal_errors)
    target.answer(report, exit_code=options.FAILED if failed else 0)


@command(
    "remove-dangling-deletes",
    "Remove delete files that delete no row",
    "icesize remove-dangling-deletes lake.db.events --dry-run",
)
@options.dry_run_option
@options.table_options
def remove_dangling_deletes(target: Target, *, dry_run: bool) -> None:
    """Remove dangling delete files from TABLE in one commit; data files do not change.

    The removed files stay in storage until the snapshots that list them expire.
    """
    target.answer(target.open().remove_dangling_deletes(dry_run=dry_run))


@command("rewrite-manifests", "Merge small manifests", "icesize rewrite-manifests lake.db.events")
@options.dry_run_option
@options.table_options
def rewrite_manifests(target: Target, *, dry_run: bool) -> None:
    """Merge the small manifests of TABLE in one commit."""
    target.answer(target.open().rewrite_manifests(dry_run=dry_run))
