"""What an overview of a table says: values that were read and planned, and sentences of advice. Draws nothing."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from icesize.planning.files import SkipReason
from icesize.planning.inspection import Inspection
from icesize.planning.plan import Plan
from icesize.planning.trends import FileSizes, Trends
from icesize.table.past.commits import CommitKind, History
from icesize.units import format_bytes, format_count

MANY_COMMITS = 1_000
"""Commits that a table keeps from which on expiry is advised: each is named in every metadata file, so every commit
writes some 300 bytes for each of them."""

WHY_SKIPPED = {
    SkipReason.WELL_SIZED: "as large as they should be",
    SkipReason.TOO_FEW: "merging them now would not lower the number of files",
    SkipReason.OVER_BUDGET: "due, but the budget is spent: the next pass goes on",
    SkipReason.HAS_DELETES: "deletes apply to them that must not be applied, or cannot be read",
    SkipReason.OLD_SPEC: "written under a partition spec that is not the table's current one",
    SkipReason.NOT_PARQUET: "ORC or Avro",
    SkipReason.ENCRYPTED: "encrypted",
    SkipReason.LISTED_TWICE: "listed more than once by the table",
    SkipReason.NAN_PARTITION: "NaN is among their partition values",
    SkipReason.CONTESTED: "other writers keep rewriting their partitions",
    SkipReason.CLUSTERED: "clustered already",
}
"""Why files stay as they are, in words."""

_COMMAND = re.compile(r"`(icesize [^`]+)`")


@dataclass(frozen=True)
class Advice:
    """A sentence, and the command to copy that does what it says (None where there is none)."""

    sentence: str
    command: str | None = None


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
class Facts:
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

    @property
    def table(self) -> str:
        """`catalog.namespace.table`."""
        return self.inspection.table

    def to_dict(self) -> dict[str, Any]:
        """Stable keys, JSON-ready values; later releases may add keys, never rename them."""
        return {
            "table": self.table,
            "made_ms": self.made_ms,
            "inspection": self.inspection.to_dict(),
            "plan": self.plan.to_dict(),
            "history": self.history.to_dict(),
            "trends": self.trends.to_dict(),
            "sizes": asdict(self.sizes),
            "advice": [asdict(advice) for advice in self.advice],
        }

    def __str__(self) -> str:
        told = (advice.sentence for advice in self.advice)
        return "\n".join((str(self.inspection).splitlines()[0], str(self.plan), str(self.history), *told))


def advice_for(inspection: Inspection, plan: Plan, history: History) -> tuple[Advice, ...]:
    """What somebody should do, the most pressing first; a sentence that all is well where nothing is to be done."""
    found = list(_advice(inspection, plan, history))
    return tuple(found) or (Advice("Nothing to do: no partition holds more files than it has to."),)


def _advice(inspection: Inspection, plan: Plan, history: History) -> Iterator[Advice]:
    table = shlex.quote(inspection.table)
    told = [Advice(as_sentence(text), _command(text, table)) for text in inspection.advice]
    compact = f"icesize compact {table}"
    if plan.groups and not any(advice.command == compact for advice in told):
        files = f"{plan.files_removed:,} files would become {plan.files_added:,}"
        yield Advice(f"{files}, for {format_bytes(plan.bytes_to_write)} to write.", compact)
    yield from told
    kinds = Counter(commit.kind for commit in history.commits)
    kept_by_us = any(kinds[kind] for kind in (CommitKind.BATCH, CommitKind.APPEND, CommitKind.MERGE))
    if plan.groups and kinds[CommitKind.OTHER] and not kept_by_us:
        yield Advice(
            "Other writers bring the rows, and nothing merges their files: write through a sink of icesize, or let "
            "one bounded pass run every hour.",
            f"icesize maintain {table} --budget-seconds 600",
        )
    if history.commits_kept > MANY_COMMITS:
        yield Advice(
            f"The table keeps {format_count(history.commits_kept, 'commit')}, which every further commit writes down "
            "again: see what its rules would let go.",
            f"icesize expire-snapshots {table} --dry-run",
        )


def as_sentence(text: str) -> str:
    """With a capital letter and a full stop."""
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _command(text: str, table: str) -> str | None:
    """The command that a sentence names, with the table."""
    found = _COMMAND.search(text)
    if found is None:
        return None
    return found[1] if table in found[1] else f"{found[1]} {table}"
