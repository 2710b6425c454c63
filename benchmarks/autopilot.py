"""The autopilot against the best fixed setting, and against the defaults, on simulated tables of two weeks.

    python -m benchmarks autopilot [--case TEXT] [--json]

Each case is carried out for two weeks with many fixed settings, until a search finds no cheaper ones, and with the
autopilot, which begins with the defaults and looks after six hours and then once a day at what it could know then: the
newest commits. A case with a log of queries gives it those of the last day every six hours. Costs are those of merges,
opened files and requests at the case's prices, from the first batch on. `python -m benchmarks autopilot_real` compares
the simulation with Spark.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from benchmarks.autopilot_cases import DAYS, KNOWN, Case
from benchmarks.autopilot_others import OTHERS
from benchmarks.autopilot_unknown import UNKNOWN
from benchmarks.show import finish
from icesize.planning.advice.autopilot import (
    ASSUMED_READS_PER_DAY,
    FEWEST_BATCHES,
    LEAST_DAYS,
    MAX_SMALL_FILES,
    MOST_BATCHES,
    TARGET_BYTES,
    Question,
    Settings,
    Trial,
    Workload,
    choose,
)
from icesize.planning.files import PartitionKey
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.policy import MIB, SizePolicy

SEARCHED_SMALL_FILES = (*MAX_SMALL_FILES, 32)
SEARCHED_TARGETS = TARGET_BYTES
LOGS_A_DAY = 4
"""Times of a day at which a case gives the log of its queries."""
READS_A_DAY = 12
"""Times of a day at which its reads are simulated."""


def main(argv: list[str] | None = None) -> dict[str, Any]:
    """Carry out the cases, print a table or JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks autopilot", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--case", default="", help="part of the names of the cases to carry out")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    cases = [case for case in (*KNOWN, *OTHERS, *UNKNOWN) if args.case in case.name]
    found = {case.name: compared(case) for case in cases}
    rows = [
        (
            name, f"{one['auto_by_best']:.3f}", f"{one['auto_by_best_known']:.3f}", f"{one['auto_by_defaults']:.3f}",
            one["best"], one["chosen"], f"{one['changes']}",
        )
        for name, one in found.items()
    ]  # fmt: skip
    heads = (
        "case", "auto / best (<= 1.1)", "unclustered without a log", "auto / defaults (<= 1)",
        "best", "auto at the end", "changes",
    )  # fmt: skip
    return finish({"benchmark": "autopilot", "cases": found}, f"{DAYS} days each", heads, rows, args.json)


def compared(case: Case) -> dict[str, Any]:
    """Return the costs of a case by the autopilot, over the least of all fixed settings and over the defaults.

    Without a log, only queries would show the columns to cluster by: `auto_by_best_known` leaves such settings out.
    """
    batches, defaults = case.batches(), Settings.of(case.policy)
    fixed = _searched(case, batches)
    best = min(fixed, key=fixed.__getitem__)
    unclustered = min(cost for settings, cost in fixed.items() if case.is_logged or not settings.cluster_by)
    default_cost = fixed.get(defaults) or Run(case, batches, defaults).carried_out()
    auto = Run(case, batches, defaults, looks=True)
    cost = auto.carried_out()
    return {
        "auto_by_best": round(cost / fixed[best], 4), "auto_by_defaults": round(cost / default_cost, 4),
        "auto_by_best_known": round(cost / unclustered, 4),
        "best": _words(best), "chosen": _words(auto.settings), "changes": auto.changes,
        "cost_per_day": round(cost / DAYS, 6),
    }  # fmt: skip


def _searched(case: Case, batches: list[Batch]) -> dict[Settings, float]:
    """Return the costs of fixed settings: along each setting from the cheapest ones, until nothing is cheaper.

    The search begins with the defaults and with small files, both with and without clustering.
    """
    known = dict[Settings, float]()

    def cost(settings: Settings) -> float:
        if settings not in known:
            known[settings] = Run(case, batches, settings).carried_out()
        return known[settings]

    defaults = Settings.of(case.policy)
    for start in (defaults, replace(defaults, target_file_size_bytes=64 * MIB)):
        for columns in ((), case.columns) if case.columns else ((),):
            best, before = replace(start, cluster_by=columns), None
            while best != before:
                before = best
                if case.is_inline and "max_small_files" not in case.policy.given:
                    best = min((replace(best, max_small_files=k) for k in SEARCHED_SMALL_FILES), key=cost)
                best = min((replace(best, target_file_size_bytes=size) for size in SEARCHED_TARGETS), key=cost)
    return known


def _words(settings: Settings) -> str:
    by = f" by {','.join(settings.cluster_by)}" if settings.cluster_by else ""
    return f"k {settings.max_small_files}, {settings.target_file_size_bytes // MIB} MiB{by}"


class Run:
    """Two weeks of a case under settings, which the autopilot changes if it `looks`."""

    def __init__(self, case: Case, batches: list[Batch], settings: Settings, looks: bool = False) -> None:
        self.case, self.batches, self.settings, self.looks, self.changes = case, batches, settings, looks, 0
        self.missed, self.looked, self.changed = 0.0, 0, -case.batches_per_day
        workload = self._workload(batches, 0, case.before, ())
        self.trial = Trial(workload, case.policy, settings, before=Settings.of(SizePolicy()))

    def carried_out(self) -> float:
        """Return the costs."""
        for number, batch in enumerate(self.batches, 1):
            self.trial.take(batch)
            if number % self.trial.workload.batches_per_pass == 0:
                self.trial.maintain()
            day, at = divmod(number, self.case.batches_per_day)
            if at % max(1, self.case.batches_per_day // READS_A_DAY) == 0:
                self._read(day if at else day - 1)
            if self.looks and self._may_look(number):
                self._look(number)
        return self.trial.outcome(1.0).price(self.case.prices)

    def _read(self, day: int) -> None:
        times = -(-self.case.batches_per_day // max(1, self.case.batches_per_day // READS_A_DAY))
        for reads in self.case.reads(day):
            self.trial.read(reads, reads.per_day / times)

    def _may_look(self, number: int) -> bool:
        """Return whether the last look is old enough after so many batches, as `tune` and `maintain` decide it.

        Looks within a day of a change, which change nothing, are left out.
        """
        case = self.case
        if not case.is_logged and number % self.trial.workload.batches_per_pass:
            return False
        least = max(FEWEST_BATCHES, round(LEAST_DAYS * case.batches_per_day))
        wait = max(1, case.batches_per_day // LOGS_A_DAY) if case.is_logged else case.batches_per_day
        since = min(number - self.looked if self.looked else wait, number - self.changed - case.batches_per_day + wait)
        return number >= least and since >= wait

    def _look(self, number: int) -> None:
        """Choose the settings of the next batches from what is known after so many."""
        per_day = self.case.batches_per_day
        seen = self.batches[:number][-MOST_BATCHES:]
        partitions = {key for batch in seen for key in batch}
        arrived = {key: sum(batch.get(key, 0) for batch in seen) for key in partitions}
        before = {
            key: size_bytes
            for key in self.trial.partitions
            if (size_bytes := self.trial.table.layout.partitions[key].size_bytes - arrived.get(key, 0)) > 0
        }
        reads = self._log(number) if self.case.is_logged else (Reads(ASSUMED_READS_PER_DAY, len(partitions)),)
        question = Question(
            self.case.policy, self.settings, self.case.columns if self.case.is_logged else (),
            frozenset(self.case.policy.given), self.case.is_logged, prices=self.case.prices, missed=self.missed,
            days=(number - self.looked) / per_day if self.looked else min(1.0, number / per_day),
        )  # fmt: skip
        choice = choose(self._workload(seen, len(seen), before, reads), question)
        self.missed, self.looked = choice.missed, number
        if choice.then.settings != self.settings and choice.is_paid:
            self.changes, self.settings, self.missed = self.changes + 1, choice.then.settings, 0.0
            self.changed = number
            self.trial.use(self.settings)

    def _log(self, number: int) -> tuple[Reads, ...]:
        """Return the reads of the last day before a batch, parts of two days of the case."""
        day, at = divmod(number, self.case.batches_per_day)
        part = at / self.case.batches_per_day
        today = self.case.reads(day) if at else ()
        before = self.case.reads(day - 1) if day else ()
        if today == before or not before:
            return today
        parts = [replace(each, per_day=each.per_day * part) for each in today]
        return (*parts, *(replace(each, per_day=each.per_day * (1 - part)) for each in before))

    def _workload(
        self, batches: list[Batch], number: int, before: dict[PartitionKey, int] | Any, reads: tuple[Reads, ...]
    ) -> Workload:
        days = (number or len(batches)) / self.case.batches_per_day
        return Workload(
            tuple(batches), days, reads, before, self.case.files_per_arrival, self.case.is_inline,
            self.case.passes_per_day,
        )  # fmt: skip
