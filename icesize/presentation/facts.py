"""The content of a table's overview: values that were read and planned, and sentences of advice. Draws nothing."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from icesize.planning.insight.inspection import Inspection
from icesize.planning.insight.trends import FileSizes, Trends
from icesize.planning.plan import Plan
from icesize.results import Advice, Result, keys
from icesize.table.past.commits import History
from icesize.table.records.summary import CommitKind
from icesize.units import format_count

LEAST_RIVALRY_MS = 3_600_000
"""History from which on other writers are known to go on: a load is shorter."""
MANY_COMMITS = 1_000
"""Commits that a table keeps before expiry is advised.

Each metadata file names all of them, so every commit writes some 300 bytes for each.
"""


@dataclass(frozen=True)
class Comparison:
    """Data files by size at two times, each with its name in words; both are the same if nothing changes."""

    before: FileSizes
    before_name: str
    after: FileSizes
    after_name: str

    @property
    def differs(self) -> bool:
        """True if there are two things to show."""
        return self.before != self.after


@dataclass(frozen=True)
class Facts(Result):
    """One table at one time (`made_ms`): the sizes of its files, their history, and advice.

    `sizes` compares the data files now with the result of the plan, or with an older snapshot. `trends` are the table's
    partitions at some of its commits, `history` its newest commits.
    """

    made_ms: int
    inspection: Inspection
    plan: Plan
    history: History
    trends: Trends
    sizes: Comparison
    advice: tuple[Advice, ...]

    KEYS = keys("table")

    @property
    def table(self) -> str:
        """`catalog.namespace.table`."""
        return self.inspection.table


def advice_for(inspection: Inspection, plan: Plan, history: History) -> tuple[Advice, ...]:
    """Return advice, the most urgent first; if there is nothing to do, one sentence that reports this."""
    found = list(_advice(inspection, plan, history))
    return tuple(found) or (Advice("Nothing to do: no partition holds more files than it has to."),)


def _advice(inspection: Inspection, plan: Plan, history: History) -> Iterator[Advice]:
    table = shlex.quote(inspection.table)
    advice_shown = [Advice(as_sentence(advice.sentence), advice.command) for advice in inspection.advice]
    yield from advice_shown
    kinds = {commit.kind for commit in history.commits}
    kept_by_us = kinds & {CommitKind.BATCH, CommitKind.APPEND, CommitKind.MERGE}
    lasts_ms = history.commits[0].timestamp_ms - (history.since_ms or 0) if history.commits else 0
    if plan.groups and CommitKind.OTHER in kinds and not kept_by_us and lasts_ms >= LEAST_RIVALRY_MS:
        yield Advice(
            "Other writers add the rows, and nothing merges their files: write through a sink of icesize, or run one "
            "bounded pass every hour.",
            f"icesize maintain {table} --budget-seconds 600",
        )
    if history.commits_kept > MANY_COMMITS:
        yield Advice(
            f"The table keeps {format_count(history.commits_kept, 'commit')}, and each new commit writes the list of "
            "all of them again: preview what the table's rules would expire.",
            f"icesize expire-snapshots {table} --dry-run",
        )


def as_sentence(text: str) -> str:
    """Return the text with a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
