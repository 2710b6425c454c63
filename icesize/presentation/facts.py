"""What an overview of a table says: values that were read and planned, and sentences of advice. Draws nothing."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from icesize.planning.inspection import Inspection
from icesize.planning.plan import Plan
from icesize.planning.trends import FileSizes, Trends
from icesize.results import Advice, Keys, Result, keys
from icesize.table.past.commits import CommitKind, History
from icesize.units import format_bytes, format_count

MANY_COMMITS = 1_000
"""Commits that a table keeps from which on expiry is advised: each is named in every metadata file, so every commit
writes some 300 bytes for each of them."""


@dataclass(frozen=True)
class Comparison:
    """Data files by size at two times, each with its name in words; both the same where nothing is to be compared."""

    before: FileSizes
    before_name: str
    after: FileSizes
    after_name: str

    @property
    def differs(self) -> bool:
        """Whether there are two things to show."""
        return self.before != self.after


@dataclass(frozen=True)
class Facts(Result):
    """One table at one time (`made_ms`): how well sized its files are, how they came to be so, and what to do.

    `sizes` compare its data files now with what the plan leaves, or with an older snapshot; `trends` are its partitions
    at some of its commits, `history` its newest commits.
    """

    made_ms: int
    inspection: Inspection
    plan: Plan
    history: History
    trends: Trends
    sizes: Comparison
    advice: tuple[Advice, ...]

    KEYS: ClassVar[Keys] = keys("table")

    @property
    def table(self) -> str:
        """`catalog.namespace.table`."""
        return self.inspection.table


def advice_for(inspection: Inspection, plan: Plan, history: History) -> tuple[Advice, ...]:
    """What somebody should do, the most pressing first; a sentence that all is well where nothing is to be done."""
    found = list(_advice(inspection, plan, history))
    return tuple(found) or (Advice("Nothing to do: no partition holds more files than it has to."),)


def _advice(inspection: Inspection, plan: Plan, history: History) -> Iterator[Advice]:
    table = shlex.quote(inspection.table)
    advice_shown = [Advice(as_sentence(advice.sentence), advice.command) for advice in inspection.advice]
    compact = f"icesize compact {table}"
    if plan.groups and not any(advice.command == compact for advice in advice_shown):
        files = f"{plan.files_removed:,} files would become {plan.files_added:,}"
        yield Advice(f"{files}, for {format_bytes(plan.bytes_to_write)} to write.", compact)
    yield from advice_shown
    kinds = Counter(commit.kind for commit in history.commits)
    kept_by_us = any(kinds[kind] for kind in (CommitKind.BATCH, CommitKind.APPEND, CommitKind.MERGE))
    if plan.groups and kinds[CommitKind.OTHER] and not kept_by_us:
        yield Advice(
            "Other writers add the rows, and nothing merges their files: write through a sink of icesize, or run one "
            "bounded pass every hour.",
            f"icesize maintain {table} --budget-seconds 600",
        )
    if history.commits_kept > MANY_COMMITS:
        yield Advice(
            f"The table keeps {format_count(history.commits_kept, 'commit')}, and every commit rewrites that list: "
            "preview what its rules would expire.",
            f"icesize expire-snapshots {table} --dry-run",
        )


def as_sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
