"""One bounded pass of all maintenance, in the order that pays: merge, cluster, many delete files into few, those that
hit nothing, manifests, expiry, a look at orphans.

Each step commits by itself, merging and clustering in rounds, so a pass that is killed or runs out of its budget is
continued by the next. A step that fails does not keep the others from running.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from icesize.environment import Environment
from icesize.errors import ClusteringOff, CommitStateUnknown, IcesizeError, RewriteFailed, UnsupportedTable
from icesize.maintenance.dangling_deletes import DanglingReport
from icesize.maintenance.rewrite_deletes import DeletesReport
from icesize.maintenance.rewrite_manifests import ManifestReport
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import Tally
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.results import Result, keys
from icesize.table.catalog.access_errors import brief
from icesize.table.cleanup.expiry import ExpiryReport
from icesize.table.cleanup.orphans import OrphanReport

LOG = logging.getLogger("icesize")

_SINGLE_STEPS = ("rewritten_deletes", "deletes", "manifests", "expiry", "orphans")
"""Those that are no rounds, in their order."""

UNCHECKED = "files that other tables have here are counted, too: `icesize remove-orphan-files` spares them"
"""Note on a count of orphan files."""

MERGE_SHARE = 0.7
"""Share of the seconds after which no round of merges begins: the steps after it need some, however much is left."""


@dataclass(frozen=True)
class UpkeepReport(Result):
    """What one pass came to: the report of each step by its name, and what became of the others.

    `failed` and `refused` (the table does not allow it: `gc.enabled`, or it is to be clustered by a column that was
    dropped) are step -> why; `left` are steps that there was no budget for. `merges` are one report per round,
    `bytes_merged` is what they rewrote; so are `clusterings` of a table that is to be clustered.
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
    refused: dict[str, str] = field(default_factory=dict)
    left: tuple[str, ...] = ()
    seconds: float = 0.0

    KEYS = keys("bytes_merged")

    @property
    def is_well(self) -> bool:
        """Whether nothing failed, single files included that could not be deleted."""
        return not self.failed and not (self.expiry and self.expiry.files_failed)

    @property
    def bytes_merged(self) -> int:
        """Bytes of data files that the merges wrote."""
        return sum(report.bytes_written for report in self.merges)


def _has_commits(report: UpkeepReport) -> bool:
    """Return whether a step before the expiry committed anything; no step after it commits."""
    rounds = (*report.merges, *report.clusterings, report.rewritten_deletes)
    singles = (report.deletes, report.manifests)
    return any(one.snapshot_ids for one in rounds if one) or any(one.snapshot_id for one in singles if one)


@dataclass(frozen=True)
class UpkeepPlan(Result):
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


class _Search(Protocol):
    def __call__(self, *, trust_location: bool) -> OrphanReport: ...


def _counted(search: _Search) -> OrphanReport:
    """Count orphan files and delete none: no other table has to be loaded, and a note warns of that."""
    found = search(trust_location=True)
    return replace(found, notes=(*found.notes, UNCHECKED)) if found.files_found else found


class Planned(Protocol):
    """What a plan of a pass asks of a table."""

    @property
    def name(self) -> str: ...
    def plan_merge_rounds(self, budget_bytes: int | None) -> Plan: ...
    def plan_clustering(
        self, by: None = None, strategy: None = None, where: None = None, budget_bytes: int | None = None
    ) -> Plan | None: ...
    def rewrite_deletes(self, *, dry_run: bool) -> DeletesReport: ...
    def remove_dangling_deletes(self, *, dry_run: bool) -> DanglingReport: ...
    def rewrite_manifests(self, *, dry_run: bool) -> ManifestReport: ...
    def expire_snapshots(self, *, dry_run: bool) -> ExpiryReport: ...
    def remove_orphan_files(self, *, trust_location: bool) -> OrphanReport: ...


def plan_upkeep(table: Planned, budget_bytes: int | None) -> UpkeepPlan:
    """What every step would do; one that cannot tell does not keep the others from it."""
    failed: dict[str, str] = {}

    def told(step: str, look: Callable[[], Any]) -> Any:
        try:
            return look()
        except Exception as error:  # of a table that the step is refused for, too
            failed[step] = str(error) if isinstance(error, IcesizeError) else brief(error)
            return None

    return UpkeepPlan(
        table.name,
        told("merges", lambda: table.plan_merge_rounds(budget_bytes)),
        told("clustering", lambda: table.plan_clustering(budget_bytes=budget_bytes)),
        told("rewritten_deletes", lambda: table.rewrite_deletes(dry_run=True)),
        told("deletes", lambda: table.remove_dangling_deletes(dry_run=True)),
        told("manifests", lambda: table.rewrite_manifests(dry_run=True)),
        told("expiry", lambda: table.expire_snapshots(dry_run=True)),
        told("orphans", lambda: _counted(table.remove_orphan_files)),
        failed,
    )


class Maintained(Protocol):
    """What a pass needs of a table; rounds give None when nothing is due."""

    @property
    def name(self) -> str: ...
    @property
    def is_clustered(self) -> bool: ...
    def merge_round(self, budget_bytes: int, cold_only: bool, *, progress: Tally) -> Report | None: ...
    def cluster_round(self, budget_bytes: int, most_bytes: int | None, *, progress: Tally) -> Report | None: ...
    def rewrite_deletes(self) -> DeletesReport: ...
    def remove_dangling_deletes(self) -> DanglingReport: ...
    def rewrite_manifests(self) -> ManifestReport: ...
    def expire_snapshots(self, *, progress: Tally) -> ExpiryReport: ...
    def remove_orphan_files(self, *, trust_location: bool, progress: Tally) -> OrphanReport: ...


StepProgress = Callable[[str, int, int | None], object]
"""Hears of a step by its name in the report, of how much of it is done, and of how much: bytes of merges and
clustering, which begin again with each round, else files; None where nobody knows."""


class Upkeep:
    """One pass over one table within a budget."""

    def __init__(
        self,
        table: Maintained,
        environment: Environment,
        budget: Budget,
        progress: StepProgress = lambda step, done, total: None,
    ) -> None:
        self._table, self._progress = table, progress
        self._now, self._round_bytes = environment.monotonic, environment.limits.round_bytes
        self._began = self._now()
        self._bytes_left = budget.size_bytes
        self._budget_seconds = budget.seconds
        self._failed: dict[str, str] = {}
        self._refused: dict[str, str] = {}
        self._left: list[str] = []
        self._merges: list[Report] = []
        self._clusterings: list[Report] = []
        self._done: dict[str, Any] = {}

    def run(self) -> UpkeepReport:
        """Run every step that there is budget for.

        Raises CommitStateUnknown with the report so far as its attribute `report`, if anything was committed before.
        Every other error is in the report.
        """
        try:
            self._run()
        except CommitStateUnknown as error:
            report = self._report()
            if _has_commits(report):
                error.facts["report"] = report
            raise
        return self._report()

    def _run(self) -> None:
        self._step("merges", self._merge, MERGE_SHARE)
        self._step("clustering", self._cluster, math.inf)
        self._step("rewritten_deletes", self._table.rewrite_deletes)
        self._step("deletes", self._table.remove_dangling_deletes)
        self._step("manifests", self._table.rewrite_manifests)
        self._step("expiry", lambda: self._table.expire_snapshots(progress=self._tally("expiry")))
        look = partial(self._table.remove_orphan_files, progress=self._tally("orphans"))
        self._step("orphans", lambda: _counted(look))

    def _report(self) -> UpkeepReport:
        return UpkeepReport(
            self._table.name, tuple(self._merges), tuple(self._clusterings),
            failed=self._failed, refused=self._refused, left=tuple(dict.fromkeys(self._left)),
            seconds=round(self._now() - self._began, 4), **{step: self._done.get(step) for step in _SINGLE_STEPS},
        )  # fmt: skip

    def _step(self, name: str, work: Callable[[], Any], share: float = 1.0) -> None:
        if self._is_late(share):
            self._left.append(name)
            return
        self._progress(name, 0, None)
        try:
            self._done[name] = work()
        except CommitStateUnknown as error:
            self._done[name] = error.facts.get("report")
            raise
        except (ClusteringOff, UnsupportedTable) as error:
            self._refused[name] = str(error)
        except Exception as error:  # one step must not keep the others from running
            self._note_failure(name, error)

    def _tally(self, step: str) -> Tally:
        return partial(self._progress, step)

    def _note_failure(self, name: str, error: Exception) -> None:
        LOG.warning("maintain %s: %s failed", self._table.name, name, exc_info=error)
        self._failed[name] = str(error) if isinstance(error, IcesizeError) else brief(error)

    def _is_late(self, share: float) -> bool:
        return self._budget_seconds is not None and self._now() - self._began >= share * self._budget_seconds

    def _merge(self) -> None:
        """Cold partitions first: they are merged once and for all; then the others, hottest first by the plan."""
        for cold_only in (True, False):
            one = partial(self._table.merge_round, cold_only=cold_only, progress=self._tally("merges"))
            if not self._rounds("merges", one, self._merges):
                return

    def _cluster(self) -> None:
        """Does not begin too late either; of a table that nobody wants clustered nothing is left for later."""
        if self._table.is_clustered:
            tally = self._tally("clustering")

            def one(size: int) -> Report | None:
                return self._table.cluster_round(size, self._bytes_left, progress=tally)

            self._rounds("clustering", one, self._clusterings)
            if self._clusterings and not self._clusterings[-1].snapshot_ids:
                # due, and larger than the budget or lost to others: its report says which
                self._left.append("clustering")

    def _rounds(self, name: str, one: Callable[[int], Report | None], done: list[Report]) -> bool:
        """Rounds until nothing is due; False when time or bytes were spent before that."""
        while self._bytes_left is None or self._bytes_left > 0:
            if self._is_late(MERGE_SHARE):
                break
            budget = self._round_bytes if self._bytes_left is None else min(self._round_bytes, self._bytes_left)
            try:
                report = one(budget)
            except RewriteFailed as error:
                # partitions that cannot be merged must not keep the others from it: the round after this has those too
                self._note_failure(name, error)
                return True
            if report is None:
                return True
            done.append(report)
            if not report.snapshot_ids:
                # all groups were lost to others: the same plan again would end the same
                return True
            if self._bytes_left is not None:
                self._bytes_left -= report.bytes_written
        self._left.append(name)
        return False
