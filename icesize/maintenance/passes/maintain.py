"""One bounded pass of all maintenance, and its steps in the order that saves work (`STEPS`).

Each step commits by itself, merges and clustering in rounds. So the next pass continues one that was killed or used up
its budget. A step that fails does not stop the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from icesize.environment import Stopwatch, rounded
from icesize.errors import ClusteringOff, CommitStateUnknown, RewriteFailed, UnsupportedTable
from icesize.events import Progress
from icesize.maintenance.jobs.clustering import ClusterRequest, cluster_round, plan_clustering
from icesize.maintenance.jobs.compaction import merge_round, move_round, plan_rounds
from icesize.maintenance.jobs.dangling_deletes import DanglingReport, remove_dangling_deletes
from icesize.maintenance.jobs.rewrite_deletes import DeletesReport, rewrite_deletes
from icesize.maintenance.jobs.rewrite_manifests import ManifestReport, rewrite_manifests
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import Loads, TableContext
from icesize.parquet.format.refusals import log_if_internal
from icesize.planning.files import PartitionKey, SkipReason
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.results import Result, keys
from icesize.table.catalog.access_errors import said
from icesize.table.catalog.opening import responds
from icesize.table.cluster_settings import resolve

if TYPE_CHECKING:
    from icesize.table.cleanup.expiry import ExpiryReport
    from icesize.table.cleanup.orphans import OrphanReport

LOG = logging.getLogger("icesize")

UNCHECKED = "files that other tables have here are also counted: `icesize remove-orphan-files` keeps them"
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

    KEYS = keys("bytes_merged")

    @property
    def succeeded(self) -> bool:
        """True if no step failed, and expiry could delete all of its files."""
        return not self.failed and not (self.expiry and self.expiry.files_failed)

    @property
    def bytes_merged(self) -> int:
        """Bytes of data files that the merges wrote."""
        return sum(report.bytes_written for report in self.merges)

    @property
    def bytes_rewritten(self) -> int:
        """Bytes of data files that the merges and the clusterings wrote."""
        return self.bytes_merged + sum(report.bytes_written for report in self.clusterings)

    @property
    def is_changed(self) -> bool:
        """True if the pass changed the table."""
        others = (self.rewritten_deletes, self.deletes, self.manifests)
        snapshots = (report.snapshot_ids for report in (*self.merges, *self.clusterings, *others) if report)
        return any(snapshots) or bool(self.expiry and self.expiry.snapshot_ids_expired)


@dataclass(frozen=True)
class MaintenancePlan(Result):
    """The effect of each step of a pass on the table in its current state; nothing was changed.

    Each step is planned for the current table, although a pass changes the table from step to step. For example, merged
    files may need no clustering. A step that could not be planned is None.

    Attributes:
        table: The full name of the table.
        merges: The plan of the merges.
        clustering: The plan of the clustering; None also for a table that is not clustered.
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


@dataclass(frozen=True)
class MaintenanceStep:
    """One step of a pass.

    Attributes:
        name: The name in plans, errors and events.
        words: The words of its progress bar.
        run: The jobs of the step. A job takes the context and returns a report. If the step has rounds, a job is one
            round and also takes the bytes that are left (None: no limit) and the partitions to leave out. It is
            repeated until it returns None.
        plan: Returns its effect on the table in its current state, within a number of bytes; None for a dry run of its
            only job.
        rounds: The list in `MaintenanceReport` of the rounds of a step that rewrites data files, in rounds that count
            bytes. Empty for other steps, whose report is named like the step.
        is_wanted: Returns False if the step has nothing to do on this table, so that no pass leaves it to the next.
    """

    name: str
    words: str
    run: tuple[Callable[..., Any], ...]
    plan: Callable[[TableContext, int | None], Any] | None = None
    rounds: str = ""
    is_wanted: Callable[[TableContext], object] = lambda context: True


class Pass:
    """One pass over one table, with its remaining budget and the results of its steps.

    `without` are partitions that the rounds of a step leave out, by the name of the step.
    """

    def __init__(
        self, context: TableContext, budget: Budget, without: Mapping[str, frozenset[PartitionKey]] | None = None
    ) -> None:
        self._loads, self._bytes_left = Loads(), budget.size_bytes
        self._context = replace(context, loads=self._loads)
        self._without = without or {}
        self._is_late = budget.started(context.environment)
        self._watch = Stopwatch(context.environment)
        self._done = MaintenanceReport(context.handle.name)
        self._failed: dict[str, str] = {}
        self._unsupported: dict[str, str] = {}
        self._left: list[str] = []
        self._damaged = frozenset[PartitionKey]()
        self._is_down = False

    def run(self, steps: Sequence[MaintenanceStep]) -> MaintenanceReport:
        """Run every step that the budget allows.

        Raises CommitStateUnknown, with the attribute `report` of the steps before if any of them committed. The report
        contains every other error.
        """
        try:
            for step in steps:
                self._run(step)
                self._watch.lap(step.name)
        except CommitStateUnknown as error:
            if self._done.is_changed:
                error.report = self._report()
            raise
        return self._report()

    def _run(self, step: MaintenanceStep) -> None:
        is_late = self._is_down or self._is_late(MERGE_SHARE if step.rounds else 1.0)
        if not is_late:
            self._context.environment.observe(Progress(step.name, 0))
        try:
            if is_late:
                self._leave(step)
            elif step.rounds:
                self._rounds(step)
            else:
                for job in step.run:
                    self._put(step, self._alone(job))
        except CommitStateUnknown as error:
            if error.report is not None:
                self._put(step, error.report)
            self._failed[step.name] = said(error)
            raise
        except (ClusteringOff, UnsupportedTable) as error:
            self._unsupported[step.name] = str(error)
        except Exception as error:  # an error of one step must not stop the others
            self._note_failure(step, error)
            # each further step would wait for the catalog as long as this one did
            self._is_down = not responds(self._context.handle.catalog)

    def _put(self, step: MaintenanceStep, report: Any) -> None:
        """Add the report of a job to that of the pass."""
        found = {step.rounds: (*getattr(self._done, step.rounds), report)} if step.rounds else {step.name: report}
        self._done = replace(self._done, **found)
        if errors := getattr(report, "internal_errors", ()):
            self._note_failure(step, RewriteFailed("; ".join(errors)))

    def _alone(self, job: Callable[..., Any], *args: Any) -> Any:
        """Run a job. The next one begins with the state that this one loaded, if it neither committed nor lost one."""
        may_have_changed: object = True
        try:
            report = self._context.alone(job, *args)
            may_have_changed = report is not None and (
                getattr(report, "snapshot_ids", True) or getattr(report, "conflicts", ())
            )
            return report
        finally:
            self._loads.job_ended(may_have_changed=bool(may_have_changed))

    def _leave(self, step: MaintenanceStep) -> None:
        """Record a step as one that the next pass continues."""
        if self._is_down or step.is_wanted(self._context):
            self._left.append(step.name)
        self._loads.job_ended(may_have_changed=False)

    def _rounds(self, step: MaintenanceStep) -> None:
        if not all(self._repeated(step, job) for job in step.run):
            self._leave(step)

    def _repeated(self, step: MaintenanceStep, job: Callable[..., Report | None]) -> bool:
        """Run rounds until nothing is due; return False if time or bytes are used up before that.

        A round in which every rewrite fails is repeated without its partitions. They must not keep the others from
        their turn, in this pass or in the next.
        """
        without = self._without.get(step.name, frozenset())
        while self._bytes_left is None or self._bytes_left > 0:
            if self._is_late(MERGE_SHARE):
                break
            is_last = self._bytes_left is not None and self._bytes_left <= self._context.round_bytes()
            try:
                report = self._alone(job, self._bytes_left, self._damaged | without)
            except RewriteFailed as error:
                self._note_failure(step, error)
                damaged = self._damaged.union(error.facts.get("partitions", ()))
                if damaged == self._damaged:
                    return True
                self._damaged = damaged
                continue
            if report is None:
                return True
            self._put(step, report)
            if not report.snapshot_ids:
                # the same plan would end in the same way: it conflicts with other writers, or costs more than is left
                return bool(report.conflicts) or SkipReason.OVER_BUDGET not in report.skipped
            if self._bytes_left is not None:
                self._bytes_left -= report.bytes_written
            if is_last and SkipReason.OVER_BUDGET in report.skipped:
                # it took all that fits: what is left would pay for smaller and smaller merges
                break
        return False

    def _report(self) -> MaintenanceReport:
        return replace(
            self._done, failed=self._failed, unsupported=self._unsupported, not_started=tuple(self._left),
            seconds=rounded(self._watch.seconds),
        )  # fmt: skip

    def _note_failure(self, step: MaintenanceStep, error: Exception) -> None:
        if not log_if_internal(f"the step {step.name} of maintain", error):
            LOG.warning("maintain %s: %s failed", self._context.handle.name, step.name, exc_info=error)
        before = self._failed.get(step.name)
        self._failed[step.name] = f"{before}; {said(error)}" if before else said(error)


def _is_clustered(context: TableContext) -> bool:
    current = context.load()
    return resolve(current.table.metadata, current.policy, table=current.name) is not None


def _expire(context: TableContext, *, dry_run: bool = False) -> ExpiryReport:
    """Expire by the table's own rules."""
    from icesize.table.cleanup.expiry import expire  # slow: imports catalogs
    from icesize.table.cleanup.retention_inputs import ExpireOptions

    report = expire(context.handle, ExpireOptions(), context.environment, dry_run=dry_run, others=context.others)
    return context.refresh(report)


def _orphans(context: TableContext) -> OrphanReport:
    """Count orphan files and delete none. No other table has to be loaded for that, and a note warns of it."""
    from icesize.table.cleanup.orphans import OrphanSearch

    name, environment = context.handle.name, context.environment
    search = OrphanSearch(name, lambda: context.load().table, environment, counts_uploads=False)
    found = search.run(trust_location=True)
    return replace(found, notes=(*found.notes, UNCHECKED)) if found.files_found else found


STEPS = (
    MaintenanceStep(
        # cold partitions first, to the fewest files; then the others, hottest first by the plan
        "merges", "merging",
        (move_round, partial(merge_round, cold_only=True), partial(merge_round, cold_only=False)),
        plan_rounds, "merges",
    ),
    MaintenanceStep(
        "clustering", "clustering", (cluster_round,),
        lambda context, size: plan_clustering(context, ClusterRequest(budget_bytes=size)), "clusterings", _is_clustered,
    ),
    MaintenanceStep("rewritten_deletes", "rewriting delete files", (rewrite_deletes,)),
    MaintenanceStep("deletes", "looking for dangling delete files", (remove_dangling_deletes,)),
    MaintenanceStep("manifests", "merging manifests", (rewrite_manifests,)),
    MaintenanceStep("expiry", "expiring snapshots", (_expire,)),
    MaintenanceStep("orphans", "looking for orphan files", (_orphans,), lambda context, _: _orphans(context)),
)  # fmt: skip
"""The steps of a pass, in the order that saves work. Every list of them walks over this one."""


def plan_pass(context: TableContext, budget_bytes: int | None) -> MaintenancePlan:
    """Return the effect of every step. A step that cannot be planned does not stop the others."""
    planned, failed = dict[str, Any](), dict[str, str]()
    for step in STEPS:
        try:
            planned[step.name] = step.plan(context, budget_bytes) if step.plan else step.run[0](context, dry_run=True)
        except Exception as error:  # also if the table does not support the step
            failed[step.name] = said(error)
    return MaintenancePlan(context.handle.name, **planned, failed=failed)
