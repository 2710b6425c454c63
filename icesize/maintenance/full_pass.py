"""One bounded pass of all maintenance, in the order that saves work.

The steps are: merge, cluster, rewrite delete files, remove dangling ones, merge manifests, expire snapshots, count
orphan files. Each step commits by itself, merges and clustering in rounds. So the next pass continues one that was
killed or used up its budget. A step that fails does not stop the others.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from icesize.environment import Stopwatch, rounded
from icesize.errors import ClusteringOff, CommitStateUnknown, RewriteFailed, UnsupportedTable
from icesize.events import Progress
from icesize.maintenance.clustering import STEP as CLUSTERING
from icesize.maintenance.clustering import ClusterRequest, cluster_round, plan_clustering, wanted_by
from icesize.maintenance.compaction import STEP as MERGES
from icesize.maintenance.compaction import merge_round, plan_rounds
from icesize.maintenance.dangling_deletes import DanglingReport, remove_dangling_deletes
from icesize.maintenance.rewrite_deletes import DeletesReport, rewrite_deletes
from icesize.maintenance.rewrite_manifests import ManifestReport, rewrite_manifests
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import TableContext
from icesize.planning.files import PartitionKey
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.results import Keys, Result, keys
from icesize.table.catalog.access_errors import said
from icesize.table.cleanup.expiry import STEP as EXPIRY
from icesize.table.cleanup.expiry import ExpiryReport, expire
from icesize.table.cleanup.orphans import STEP as ORPHANS
from icesize.table.cleanup.orphans import OrphanReport, OrphanSearch
from icesize.table.cleanup.retention_inputs import ExpireOptions

LOG = logging.getLogger("icesize")

UNCHECKED = "files that other tables have here are counted, too: `icesize remove-orphan-files` spares them"
"""Note on a count of orphan files, because no other table was loaded."""

MERGE_SHARE = 0.7
"""Share of `budget_seconds` after which no round of merges begins, so that the later steps have time left."""


@dataclass(frozen=True)
class MaintenanceReport(Result):
    """The result of one pass: the report of each step, and the steps that did not run.

    Attributes:
        table: The full name of the table.
        merges: The report of each round of merges.
        clusterings: The report of each round of clustering; empty if the table is not clustered.
        rewritten_deletes: The report of the rewrite of delete files.
        deletes: The report of the removal of dangling delete files.
        manifests: The report of the merge of manifests.
        expiry: The report of the expiry.
        orphans: The count of orphan files.
        failed: Step -> reason, for steps that failed.
        unsupported: Step -> reason, for steps that the table does not support: `gc.enabled` is false, or a clustering
            column was dropped.
        not_started: Steps that did not start or finish within the budget. The next pass continues them.
        seconds: Seconds of each step by its name, and `total`.
    """

    table: str = ""
    merges: tuple[Report, ...] = ()
    clusterings: tuple[Report, ...] = ()
    rewritten_deletes: DeletesReport | None = None
    deletes: DanglingReport | None = None
    manifests: ManifestReport | None = None
    expiry: ExpiryReport | None = None
    orphans: OrphanReport | None = None
    failed: dict[str, str] = field(default_factory=dict)
    unsupported: dict[str, str] = field(default_factory=dict)
    not_started: tuple[str, ...] = ()
    seconds: dict[str, float] = field(default_factory=dict)

    KEYS: ClassVar[Keys] = keys("bytes_merged")

    @property
    def succeeded(self) -> bool:
        """True if no step failed, and expiry could delete all of its files."""
        return not self.failed and not (self.expiry and self.expiry.files_failed)

    @property
    def bytes_merged(self) -> int:
        """Bytes of data files that the merges wrote."""
        return sum(report.bytes_written for report in self.merges)


@dataclass(frozen=True)
class MaintenancePlan(Result):
    """The effect of each step of a pass on the table in its current state; nothing was changed.

    Each step is planned for the current table, although a pass changes the table from step to step. For example, merged
    files may need no clustering. A step that could not be planned is None.

    Attributes:
        table: The full name of the table.
        merges: The plan of the merges.
        clustering: The plan of the clustering; None also if the table is not clustered.
        rewritten_deletes: A dry run of the rewrite of delete files.
        deletes: A dry run of the removal of dangling delete files.
        manifests: A dry run of the merge of manifests.
        expiry: A dry run of the expiry.
        orphans: The count of orphan files.
        failed: Step -> reason, for steps that could not be planned.
    """

    table: str = ""
    merges: Plan | None = None
    clustering: Plan | None = None
    rewritten_deletes: DeletesReport | None = None
    deletes: DanglingReport | None = None
    manifests: ManifestReport | None = None
    expiry: ExpiryReport | None = None
    orphans: OrphanReport | None = None
    failed: dict[str, str] = field(default_factory=dict)


Round = Callable[..., Report | None]
"""Runs one round of a step on a context, within a number of bytes and without some partitions.

Returns None if nothing is due.
"""


@dataclass(frozen=True)
class Step:
    """One step of a pass.

    `name` identifies it in plans, errors and events. `plan` returns its effect on the table in its current state,
    within a number of bytes. `run` returns the report of each of its commits: one report, or several, which the pass
    collects under the name `rounds`. The step does not begin after its `share` of the seconds.
    """

    name: str
    plan: Callable[[TableContext, int | None], Any]
    run: Callable[[Pass], Iterable[Any]]
    rounds: str = ""
    share: float = 1.0


class Pass:
    """One pass over one table, with its remaining budget and the results of its steps."""

    def __init__(self, context: TableContext, budget: Budget) -> None:
        self.context, self.bytes_left = context, budget.size_bytes
        self._seconds = budget.seconds
        self._now, self._began = context.environment.monotonic, context.environment.monotonic()
        self._watch = Stopwatch(context.environment)
        self._step = ""
        self._done: dict[str, list[Any]] = {}
        self._failed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}
        self._left: list[str] = []
        self._damaged = frozenset[PartitionKey]()

    def run(self, steps: Sequence[Step]) -> MaintenanceReport:
        """Run every step that the budget allows.

        Raises CommitStateUnknown, with the attribute `report` of the steps before if any of them committed. The report
        contains every other error.
        """
        try:
            for step in steps:
                self._run(step)
                self._watch.lap(step.name)
        except CommitStateUnknown as error:
            if any(map(_is_committed, chain.from_iterable(self._done.values()))):
                error.facts["report"] = self._report(steps)
            raise
        return self._report(steps)

    def leave(self) -> None:
        """Record the current step as one that the next pass continues."""
        self._left.append(self._step)

    def rounds(self, one: Round) -> Generator[Report, None, bool]:
        """Run rounds of limited size until nothing is due; return False if time or bytes are used up before that.

        A round in which every rewrite fails is repeated without its partitions. They must not keep the others from
        their turn, in this pass or in the next.
        """
        round_bytes = self.context.environment.limits.round_bytes
        while self.bytes_left is None or self.bytes_left > 0:
            if self._is_late(MERGE_SHARE):
                break
            try:
                budget_bytes = round_bytes if self.bytes_left is None else min(round_bytes, self.bytes_left)
                report = self.context.alone(one, budget_bytes, self._damaged)
            except RewriteFailed as error:
                self._note_failure(error)
                damaged = self._damaged.union(error.facts.get("partitions", ()))
                if damaged == self._damaged:
                    return True
                self._damaged = damaged
                continue
            if report is None:
                return True
            yield report
            if not report.snapshot_ids:
                # all groups conflicted with other writers: the same plan would conflict again
                return True
            if self.bytes_left is not None:
                self.bytes_left -= report.bytes_written
        self.leave()
        return False

    def _run(self, step: Step) -> None:
        self._step = step.name
        if self._is_late(step.share):
            self.leave()
            return
        self.context.environment.observe(Progress(step.name, 0))
        done = self._done.setdefault(step.name, [])
        try:
            done.extend(step.run(self))
        except CommitStateUnknown as error:
            done += [error.facts["report"]] if "report" in error.facts else []
            raise
        except (ClusteringOff, UnsupportedTable) as error:
            self._unsupported[step.name] = str(error)
        except Exception as error:  # an error of one step must not stop the others
            self._note_failure(error)

    def _report(self, steps: Sequence[Step]) -> MaintenanceReport:
        done = dict[str, Any]()
        for step in steps:
            reports = tuple(self._done.get(step.name, ()))
            done[step.rounds or step.name] = reports if step.rounds else next(iter(reports), None)
        return MaintenanceReport(
            self.context.handle.name, failed=self._failed, unsupported=self._unsupported,
            not_started=tuple(dict.fromkeys(self._left)),
            seconds=rounded(self._watch.seconds), **done,
        )  # fmt: skip

    def _note_failure(self, error: Exception) -> None:
        LOG.warning("maintain %s: %s failed", self.context.handle.name, self._step, exc_info=error)
        before = self._failed.get(self._step)
        self._failed[self._step] = f"{before}; {said(error)}" if before else said(error)

    def _is_late(self, share: float) -> bool:
        return self._seconds is not None and self._now() - self._began >= share * self._seconds


def _is_committed(report: Any) -> bool:
    """Return whether a step that adds snapshots has added some."""
    return bool(getattr(report, "snapshot_ids", ()) or getattr(report, "snapshot_id", None))


def merge(work: Pass, one: Round = merge_round) -> Iterator[Report]:
    """Merge cold partitions first, to the fewest files. Then merge the others, hottest first by the plan."""
    for cold_only in (True, False):
        if not (yield from work.rounds(partial(one, cold_only=cold_only))):
            return


def cluster(work: Pass, one: Round = cluster_round) -> Iterator[Report]:
    """Cluster in rounds, none of which begins after the time of merges."""
    report = None
    for report in work.rounds(lambda *args: one(*args, most_bytes=work.bytes_left)):
        yield report
    if report and not report.snapshot_ids:
        # work is due but too large for the budget, or conflicted with other writers: the report has the reason
        work.leave()


def _cluster(work: Pass) -> Iterable[Report]:
    """Cluster if the table is clustered; otherwise, leave nothing for the next pass."""
    return cluster(work) if wanted_by(work.context.load()) else ()


def _expire(context: TableContext, *, dry_run: bool = False) -> ExpiryReport:
    """Expire by the table's own rules."""
    return context.refresh(expire(context.handle, ExpireOptions(), context.environment, dry_run=dry_run))


def _orphans(context: TableContext) -> OrphanReport:
    """Count orphan files and delete none. No other table has to be loaded for that, and a note warns of it."""
    search = OrphanSearch(context.handle.name, lambda: context.handle.load().table, context.environment)
    found = search.run(trust_location=True)
    return replace(found, notes=(*found.notes, UNCHECKED)) if found.files_found else found


def _once(name: str, job: Callable[..., Any]) -> Step:
    """Return a step that commits once."""
    return Step(name, lambda context, _: job(context, dry_run=True), lambda work: [work.context.alone(job)])


STEPS = (
    Step(MERGES, plan_rounds, merge, "merges", MERGE_SHARE),
    Step(
        CLUSTERING,
        lambda context, size: plan_clustering(context, ClusterRequest(budget_bytes=size)),
        _cluster,
        "clusterings",
        math.inf,
    ),
    _once("rewritten_deletes", rewrite_deletes),
    _once("deletes", remove_dangling_deletes),
    _once("manifests", rewrite_manifests),
    _once(EXPIRY, _expire),
    Step(ORPHANS, lambda context, _: _orphans(context), lambda work: [work.context.alone(_orphans)]),
)
"""The steps of a pass, in the order that saves work."""


def plan_pass(context: TableContext, budget_bytes: int | None) -> MaintenancePlan:
    """Return the effect of every step. A step that cannot be planned does not stop the others."""
    planned, failed = dict[str, Any](), dict[str, str]()
    for step in STEPS:
        try:
            planned[step.name] = step.plan(context, budget_bytes)
        except Exception as error:  # also if the table does not support the step
            failed[step.name] = said(error)
    return MaintenancePlan(context.handle.name, failed=failed, **planned)
