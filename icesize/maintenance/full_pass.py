"""One bounded pass of all maintenance, in the order that pays: merge, cluster, many delete files into few, those that
hit nothing, manifests, expiry, a look at orphans.

Each step commits by itself, merging and clustering in rounds, so a pass that is killed or runs out of its budget is
continued by the next. A step that fails does not keep the others from running.
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
"""Note on a count of orphan files."""

MERGE_SHARE = 0.7
"""Share of the seconds after which no round of merges begins: the steps after it need some, however much is left."""


@dataclass(frozen=True)
class MaintenanceReport(Result):
    """The result of one pass: the report of each step by its name, and the steps that did not run.

    `failed` and `unsupported` are step -> reason. A step is unsupported if the table forbids it (`gc.enabled`), or if
    a clustering column was dropped. `not_started` are steps for which no budget was left. `merges` has one report per
    round, and `clusterings` has one if the table is clustered. `bytes_merged` are the bytes that the merges wrote.
    `seconds` has the time of each step by its name, and `total`.
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
        """Whether nothing failed, single files included that could not be deleted."""
        return not self.failed and not (self.expiry and self.expiry.files_failed)

    @property
    def bytes_merged(self) -> int:
        """Bytes of data files that the merges wrote."""
        return sum(report.bytes_written for report in self.merges)


@dataclass(frozen=True)
class MaintenancePlan(Result):
    """What each step of a pass would do with the table as it is now, by its name; None for a step that could not tell.

    What a step changes, those after it would find: small files that are merged need no clustering, for one. `failed`
    are step -> why. Nothing was changed.
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
"""One round of a step: what it did on a context within so many bytes; None when nothing is due."""


@dataclass(frozen=True)
class Step:
    """One step of a pass, under the `name` that plans, errors and events have it by.

    `plan` says what it would do with the table as it is now, within so many bytes. `run` gives the report of each of
    its commits: one, or several that the pass reports under the name `rounds`. It does not begin after its `share` of
    the seconds.
    """

    name: str
    plan: Callable[[TableContext, int | None], Any]
    run: Callable[[Pass], Iterable[Any]]
    rounds: str = ""
    share: float = 1.0


class Pass:
    """One pass over one table: what is left of its budget, and what became of its steps."""

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

    def run(self, steps: Sequence[Step]) -> MaintenanceReport:
        """Run every step that there is budget for.

        Raises CommitStateUnknown with the report so far as its attribute `report`, if anything was committed before.
        Every other error is in the report.
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
        """Name the step under way as one that the next pass goes on with."""
        self._left.append(self._step)

    def rounds(self, one: Round) -> Generator[Report, None, bool]:
        """Run rounds of so many bytes each until nothing is due; False if time or bytes are spent before that."""
        round_bytes = self.context.environment.limits.round_bytes
        while self.bytes_left is None or self.bytes_left > 0:
            if self._is_late(MERGE_SHARE):
                break
            try:
                budget_bytes = round_bytes if self.bytes_left is None else min(round_bytes, self.bytes_left)
                report = self.context.alone(one, budget_bytes)
            except RewriteFailed as error:
                # partitions that cannot be merged must not keep the others from it: the round after this has those too
                self._note_failure(error)
                return True
            if report is None:
                return True
            yield report
            if not report.snapshot_ids:
                # all groups were lost to others: the same plan again would end the same
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
        except Exception as error:  # one step must not keep the others from running
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
        self._failed[self._step] = said(error)

    def _is_late(self, share: float) -> bool:
        return self._seconds is not None and self._now() - self._began >= share * self._seconds


def _is_committed(report: Any) -> bool:
    """Return whether a step that adds snapshots has added some."""
    return bool(getattr(report, "snapshot_ids", ()) or getattr(report, "snapshot_id", None))


def merge(work: Pass, one: Round = merge_round) -> Iterator[Report]:
    """Merge cold partitions first, once and for all; then the others, hottest first by the plan."""
    for cold_only in (True, False):
        if not (yield from work.rounds(partial(one, cold_only=cold_only))):
            return


def cluster(work: Pass, one: Round = cluster_round) -> Iterator[Report]:
    """Cluster, but do not begin too late either."""
    report = None
    for report in work.rounds(lambda context, size: one(context, size, most_bytes=work.bytes_left)):
        yield report
    if report and not report.snapshot_ids:
        # due, and larger than the budget or lost to others: its report says which
        work.leave()


def _cluster(work: Pass) -> Iterable[Report]:
    """Of a table that nobody wants clustered nothing is left for later."""
    return cluster(work) if wanted_by(work.context.load()) else ()


def _expire(context: TableContext, *, dry_run: bool = False) -> ExpiryReport:
    """Expire by the table's own rules."""
    return context.refresh(expire(context.handle, ExpireOptions(), context.environment, dry_run=dry_run))


def _orphans(context: TableContext) -> OrphanReport:
    """Count orphan files and delete none: no other table has to be loaded, and a note warns of that."""
    search = OrphanSearch(context.handle.name, lambda: context.handle.load().table, context.environment)
    found = search.run(trust_location=True)
    return replace(found, notes=(*found.notes, UNCHECKED)) if found.files_found else found


def _once(name: str, job: Callable[..., Any]) -> Step:
    """A step that commits once."""
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
"""The steps of a pass, in the order that pays."""


def plan_pass(context: TableContext, budget_bytes: int | None) -> MaintenancePlan:
    """What every step would do; one that cannot tell does not keep the others from it."""
    planned, failed = dict[str, Any](), dict[str, str]()
    for step in STEPS:
        try:
            planned[step.name] = step.plan(context, budget_bytes)
        except Exception as error:  # of a table that the step is refused for, too
            failed[step.name] = said(error)
    return MaintenancePlan(context.handle.name, failed=failed, **planned)
