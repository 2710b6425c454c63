"""The events that icesize sends to `Environment.observe` while it works.

An observer is called with each event, a value of one of these classes. Several threads may call it, but only one at a
time per table and job. If the observer raises an error, the call that sent the event fails; after a commit, the error
is only logged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from icesize.planning.plan import Plan
    from icesize.report import Report
    from icesize.results import Result


@dataclass(frozen=True)
class Planned:
    """`compact` or `cluster` has made its plan and begins the work.

    `plan()` returns the plan. For a compaction, it also reads file footers and adds a forecast.
    """

    plan: Callable[[], Plan]


@dataclass(frozen=True)
class Progress:
    """A step of maintenance has finished `done` of `total`.

    `step` is the name of a step of `maintain`, a key of `MaintenancePlan`, or describes a verification or a pass over
    the tables of a catalog. Merges and clusterings count bytes, from 0 in each round of `maintain`. Others count files
    or tables: `noun`. `total` is None while it is unknown.
    """

    step: str
    done: int
    total: int | None = None
    noun: str = "file"


class PendingCommit(Protocol):
    """A commit that has begun. It returns its outcome, also after an interrupt."""

    def may_be_visible(self) -> set[str]:
        """Return the data files of this commit that are visible, or may be or become so."""

    def status(self) -> CommitStatus:
        """Return the outcome; loads the table if the outcome is unknown."""


@dataclass(frozen=True)
class CommitStatus:
    """The outcome of a commit.

    `is_committed` is None if the outcome is unknown; `advice` then describes how a person finds out.
    """

    is_committed: bool | None
    snapshot_ids: tuple[int, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class CommitStarted:
    """A commit begins; nothing of it is visible yet. `commit.status()` returns its outcome at any later time.

    `table` is the name of the table.
    """

    commit: PendingCommit
    table: str = ""


Outcome = Literal["committed", "nothing to do", "conflict", "failed", "unknown"]
"""The outcome of a commit. `unknown`: it may be visible."""


@dataclass(frozen=True)
class CommitEnded:
    """A commit has ended.

    Attributes:
        table: The name of the table.
        outcome: What became of it.
        seconds: Seconds from the beginning of the first attempt.
        attempts: Calls of the catalog.
        conflicts: Attempts that another writer was faster than.
        summaries: The summaries of the snapshots that it added, oldest first, each with the key `operation`.
        commit: The commit of the event `CommitStarted`.
    """

    table: str
    outcome: Outcome
    seconds: float
    attempts: int
    conflicts: int
    summaries: tuple[Mapping[str, str], ...] = ()
    commit: PendingCommit | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class JobFinished:
    """A job, or one round of it, has changed a table or found nothing to do; `result` is what it returned."""

    table: str
    result: Result


@dataclass(frozen=True)
class BatchCommitted:
    """A sink has committed a micro-batch, or merges or a clustering in the background (`report.batch_id` is None)."""

    report: Report


Event = Planned | Progress | CommitStarted | CommitEnded | JobFinished | BatchCommitted
