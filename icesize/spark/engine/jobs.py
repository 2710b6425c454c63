"""Spark jobs that write routed rows, fetch rows or rewrite groups of files.

Jobs move bytes and make no decisions.
"""

from __future__ import annotations

import os
import pickle
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from icesize.errors import EngineUnavailable, IcesizeError, RewriteFailed, SchemaMismatch
from icesize.parquet.files.data_file import MergeFailure, MergeResult, Results, Rewritten, Written, log_of_workers
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.planning.plan import MergeTask
from icesize.redaction import scrub
from icesize.spark.engine import session
from icesize.spark.engine.worker import Answering, RewriteGroups, WriteRows

_BAD_VALUE = re.compile(r"SQLSTATE: 22\w{3}")
"""The class of SQL errors that a value causes: out of range, not a number, divided by zero."""

_MISSING = re.compile(r"No module named '(icesize|pyarrow|pyiceberg)[^']*'|(PyArrow) >= [\d.]+ must be installed")


def write_in_tasks(
    df: DataFrame, settings: WriteSettings, owner: Uncommitted, absorption: Absorption = NOTHING
) -> Written:
    """Write the rows of each Spark task, and the older small files that the task absorbs.

    Returns the files of successful task attempts. Raises SchemaMismatch if a row does not fit, RewriteFailed if a task
    fails in all its attempts. The `owner` then knows the files written so far.
    """
    answers = run_job(df, WriteRows(settings, owner.prefix, absorption), "write the batch")
    written = Written.together(answer for answer in answers if isinstance(answer, Written))
    owner.note(file.path for file in written.files)
    log_of_workers(written.failed)
    for answer in answers:
        if isinstance(answer, IcesizeError):
            raise answer
    return written


def fetch(df: DataFrame) -> pa.Table:
    """Return the rows in this process; Spark before 4.0 has no public method that returns Arrow."""
    try:
        if hasattr(df, "toArrow"):
            return df.toArrow()
        return pa.Table.from_batches(df._collect_as_arrow())  # type: ignore[operator]
    except PySparkException as error:
        raise _translated(error, "fetch rows", df.sparkSession) from scrub(error)


@dataclass(frozen=True)
class Cores:
    """Limits of a rewrite: `threads` of this process, and `tasks` per Spark job.

    None means the useful number; a Spark job may then have more tasks than run at one time. If `at_once` is true,
    threads and tasks merge at the same time. Otherwise they do it one after the other, and other work finds free cores.
    """

    threads: int | None = None
    tasks: int | None = None
    at_once: bool = False

    @classmethod
    def half(cls, spark: SparkSession) -> Cores:
        """Return half of the cores, so that other work always finds free ones."""
        return cls(max(1, (os.cpu_count() or 2) // 2), max(1, session.parallelism(spark) // 2))

    def slots(self, spark: SparkSession) -> int:
        """Return the number of tasks that run at one time."""
        return self.tasks or session.parallelism(spark)


ALL_CORES = Cores(at_once=True)
IN_TURN = Cores()


@dataclass(frozen=True)
class GroupRewrite:
    """Groups of files that `rewrite` rewrites, by number; the names of a group's new files begin with its prefix.

    `results` receives the outcome of a group when the group ends: the result of `rewrite`, or a MergeFailure. A
    group has no entry if `rewrite` returns None for it, or if `cancelled` was set before the group began. After each
    entry, `progress` receives the bytes of the group; several threads call it. Errors contain `what`, as in "Cannot
    <what>: ...".
    """

    what: str
    groups: Mapping[int, MergeTask]
    settings: WriteSettings
    owner: Uncommitted
    prefixes: Mapping[int, str]
    rewrite: Callable[[MergeTask, WriteSettings, FileNames], Rewritten | None]
    results: Results
    progress: Callable[[int], None]
    cancelled: threading.Event

    def in_threads(self, numbers: Iterable[int], threads: int | None) -> None:
        """Rewrite these groups in this process."""

        def rewrite(number: int, group: MergeTask) -> Rewritten | None:
            return self.rewrite(group, self.settings, FileNames(self.prefixes[number], number, 0, self.owner))

        groups = {number: self.groups[number] for number in numbers}
        rewrite_in_threads(groups, rewrite, self._keep, cancelled=self.cancelled, threads=threads)

    def in_tasks(self, spark: SparkSession, loads: Mapping[int, int], tasks: int) -> None:
        """Rewrite each of these groups in one task of a Spark job; raise as `run_job` does.

        `loads` is the work of each group.
        """

        def run() -> dict[int, Any]:
            bins = [[(number, self.groups[number]) for number in numbers] for numbers in balanced(loads, tasks)]
            job = RewriteGroups(bins, self.settings, self.prefixes, self.rewrite)
            results = dict(run_job(bin_numbers(spark, len(bins)), job, self.what))
            made = (result for result in results.values() if isinstance(result, MergeResult))
            self.owner.note(file.path for result in made for file in result.files)
            return results

        self.by(run, loads)

    def by(self, job: Callable[[], Mapping[int, Any]], numbers: Collection[int]) -> None:
        """Run a job that rewrites these groups; if it fails, its groups fail, and the results of other groups stay."""
        if not numbers or self.cancelled.is_set():
            return
        try:
            results = job()
        except RewriteFailed as error:
            results = {} if self.cancelled.is_set() else dict.fromkeys(numbers, MergeFailure(str(error)))
        log_of_workers(results.values())
        for number, result in results.items():
            self._keep(number, result)

    def _keep(self, number: int, result: Rewritten | MergeFailure | None) -> None:
        if result is not None:
            self.results[number] = result
            self.progress(self.groups[number].size_bytes)


def bin_numbers(spark: SparkSession, bins: int) -> DataFrame:
    """Return the numbers of `bins` bins, each in a task of its own."""
    return spark.range(0, bins, 1, bins)


def balanced(loads: Mapping[int, int], tasks: int) -> list[list[int]]:
    """Divide numbered loads over at most `tasks` bins, the largest first, each into the least loaded bin."""
    bins: list[list[int]] = [[] for _ in range(max(1, min(tasks, len(loads))))]
    sums = [0] * len(bins)
    for number, load in sorted(loads.items(), key=lambda item: -item[1]):
        least = sums.index(min(sums))
        bins[least].append(number)
        sums[least] += load
    return bins


def run_job(df: DataFrame, function: Callable[[Any], Any], what: str) -> list[Any]:
    """Return the results of `function` in all tasks; errors contain `what`, as in "Cannot <what>: ...".

    Raises SchemaMismatch for a value that cannot be computed, EngineUnavailable if workers lack a module, RewriteFailed
    for every other failure.
    """
    spark = df.sparkSession
    session.use_this_python(spark)
    try:
        rows = df.mapInArrow(Answering(function), "answer binary").collect()
    except Exception as error:
        if isinstance(error, PySparkException) or type(error).__name__ == "Py4JJavaError":
            raise _translated(error, what, spark) from scrub(error)
        raise
    return [pickle.loads(bytes(row["answer"])) for row in rows]  # noqa: S301 - made by icesize's workers in this job


def _translated(error: Exception, what: str, spark: SparkSession) -> IcesizeError:
    text = str(error)
    if missing := _MISSING.search(text):
        module, workers = missing[1] or missing[2].lower(), session.python_of_workers(spark)
        return EngineUnavailable(
            f"Cannot {what}: Spark's workers have no module '{module}'; they run {workers}, and this driver is "
            f"'{sys.executable}'. Set PYSPARK_PYTHON (spark.pyspark.python) to a Python on the workers that has "
            "icesize, or ship an environment with --archives (spark.archives) or icesize with --py-files "
            "(spark.submit.pyFiles)",
            module=module,
            workers=workers,
            driver=sys.executable,
        )
    kind = SchemaMismatch if _BAD_VALUE.search(text) else RewriteFailed
    lines = [line for line in text.splitlines() if line.strip()]
    cause = next((x.strip() for x in reversed(lines) if re.match(r"\s*[\w.]+(Error|Exception|Mismatch)\b", x)), None)
    return kind(f"Cannot {what}: {cause or (lines[0] if lines else type(error).__name__)}")
