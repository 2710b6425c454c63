"""`icesize maintain` for the tables of a catalog."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from icesize.cli import options
from icesize.cli.options import Target
from icesize.units import format_bytes, format_count

if TYPE_CHECKING:
    from icesize.maintenance.fleet import FleetPlan

_WILDCARDS = frozenset("*?[")


@dataclass(frozen=True)
class FleetOptions:
    """The options of a command for several tables."""

    all_tables: bool
    concurrency: int | None
    take_over: bool

    def is_wanted(self, target: Target) -> bool:
        """Return whether the command line selects several tables. Raises click.UsageError for options without them."""
        if self.all_tables or _WILDCARDS & set(target.table):
            return True
        if self.take_over or self.concurrency is not None:
            raise click.UsageError("--take-over and --concurrency go with a pattern such as 'lake.db.*', or with --all")
        return False


def fleet_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options for several tables; they become a FleetOptions, the argument `several`."""

    @click.option("--all", "all_tables", is_flag=True, help="Maintain all tables of a catalog or namespace.")
    @click.option(
        "--concurrency", type=click.IntRange(1), metavar="N", help="Maintain N tables at the same time; default: 2."
    )
    @click.option("--take-over", is_flag=True, help="Also maintain tables that another service maintains.")
    @wraps(command)
    def with_fleet(*, all_tables: bool, concurrency: int | None, take_over: bool, **given: Any) -> Any:
        return command(several=FleetOptions(all_tables, concurrency, take_over), **given)

    return with_fleet


def maintain(
    target: Target, several: FleetOptions, limits: tuple[int | None, float | None], policy: Mapping[str, str], *,
    dry_run: bool, asks: bool,
) -> None:  # fmt: skip
    """Maintain the tables that the command line selects, or show what that would bring and cost.

    `limits` are the bytes and seconds of the budget.
    """
    from icesize.maintenance.fleet import Fleet  # slow: imports the jobs
    from icesize.maintenance.rounds import Budget
    from icesize.table.catalog.tables import TablePattern

    pattern, budget = TablePattern.of(target.table), Budget(*limits)
    fleet = Fleet(
        target.open_catalog(pattern.catalog), pattern, target.environment, dict(policy),
        threads=several.concurrency or 2, take_over=several.take_over,
    )  # fmt: skip
    if dry_run or asks:
        with target.progress():
            plan = fleet.plan(budget)
        if dry_run:
            target.answer(plan, exit_code=options.FAILED if plan.failed else 0)
            return
        _confirm(plan)
    with target.progress():
        report = fleet.run(budget)
    target.answer(report, exit_code=0 if report.succeeded else options.FAILED)


def _confirm(plan: FleetPlan) -> None:
    """Prompt with the work and the snapshots that would expire now."""
    due = sum(share.survey.snapshots_due for share in plan.tables)
    work = f"{format_count(len(plan.tables), 'table')}, {format_bytes(plan.bytes_to_write)} to write"
    options.confirm(f"Maintain {plan.pattern} ({work}), expire about {format_count(due, 'snapshot')} and their files?")
