"""Spark jobs: write routed rows, measure some, rewrite groups of files. They move bytes and decide nothing."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from icesize.errors import EngineUnavailable, IcesizeError, RewriteFailed, SchemaMismatch
from icesize.parquet.files.data_file import MergeFailure, MergeResult, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.rewriting.absorb import NOTHING, Absorption
from icesize.parquet.rewriting.threads import rewrite_in_threads
from icesize.planning.plan import MergeGroup
from icesize.planning.routing.row_sizes import RowSize
from icesize.redaction import scrub
from icesize.spark.engine import session
from icesize.spark.engine.worker import ANSWERS, MeasureRows, RewriteGroups, WriteRows, read_answer

T = TypeVar("T")

SAMPLE_ROWS = 10_000
"""Rows encoded to learn how large a row is when the table has none yet."""

_BAD_VALUE = re.compile(r"SQLSTATE: 22\w{3}")
"""The class of SQL errors that a value causes: out of range, not a number, divided by zero."""

_MISSING = re.compile(r"No module named '(icesize|pyarrow|pyiceberg)[^']*'|(PyArrow) >= [\d.]+ must be installed")


def write_rows(df: DataFrame, settings: WriteSettings, owner: Uncommitted, absorption: Absorption = NOTHING) -> Written:
    """Write the rows of each Spark task, and what that task takes along; tells of the attempts that won.

    Raises SchemaMismatch when a row does not fit, RewriteFailed when tasks fail for good; the `owner` knows of the
    files that are there by then.
    """
    answers = run_job(df, WriteRows(settings, owner.prefix, absorption), "write the batch")
    parts: list[Written] = []
    failed: IcesizeError | None = None
    for answer in answers:
        try:
            parts.append(read_answer(answer))
        except IcesizeError as error:
            failed = error
    written = Written.together(parts)
    owner.note(file.path for file in written.files)
    if failed is not None:
        raise failed
    return written


def fetch(df: DataFrame) -> pa.Table:
    """The rows in this process; Spark before 4.0 has no public way to get them as Arrow."""
    try:
        if hasattr(df, "toArrow"):
            return df.toArrow()
        return pa.Table.from_batches(df._collect_as_arrow())  # type: ignore[operator]
    except PySparkException as error:
        raise _translated(error, "fetch rows", df.sparkSession) from scrub(error)


def measure_rows(df: DataFrame, settings: WriteSettings) -> RowSize | None:
    """How large the rows of a sample of the batch are when encoded; None when it is empty."""
    answers = [read_answer(a) for a in run_job(df.limit(SAMPLE_ROWS), MeasureRows(settings), "encode a sample")]
    return max(answers, key=lambda sample: sample[1])[0] if answers else None


@dataclass(frozen=True)
class Cores:
    """How much of the machine a rewrite takes: `threads` of this process, and no Spark job of more than `tasks`.

    None for as many as are useful: a Spark job then may have more tasks than run at one time.
    """

    threads: int | None = None
    tasks: int | None = None

    @classmethod
    def half(cls, spark: SparkSession) -> Cores:
        """So that others find free ones at any time."""
        return cls(max(1, (os.cpu_count() or 2) // 2), max(1, session.parallelism(spark) // 2))


ALL_CORES = Cores()


@dataclass(frozen=True)
class GroupRewrite:
    """Groups that `rewrite` is to rewrite, each under names with its own prefix; all by number.

    `keep` hears what has become of each: what `rewrite` has made of it, or a MergeFailure; nothing of groups that were
    not begun when it was `cancelled`. `what` says in errors what failed, as in "Cannot <what>: ...".
    """

    what: str
    groups: Mapping[int, MergeGroup]
    settings: WriteSettings
    owner: Uncommitted
    prefixes: Mapping[int, str]
    rewrite: Callable[[MergeGroup, WriteSettings, FileNames], Any]
    keep: Callable[[int, Any], object]
    cancelled: threading.Event

    def in_threads(self, numbers: Iterable[int], threads: int | None) -> None:
        """Rewrite these groups in this process; `keep` is called in its threads."""

        def rewrite(number: int, group: MergeGroup) -> Any:
            return self.rewrite(group, self.settings, FileNames(self.prefixes[number], number, 0, self.owner))

        groups = {number: self.groups[number] for number in numbers}
        rewrite_in_threads(groups, rewrite, self.keep, cancelled=self.cancelled, threads=threads)

    def in_tasks(
        self, spark: SparkSession, numbers: Collection[int], load: Callable[[MergeGroup], int], tasks: int
    ) -> None:
        """Rewrite each of these groups in one task of a Spark job, which raises as `run_job` does."""

        def run() -> dict[int, Any]:
            bins = balanced({number: self.groups[number] for number in numbers}, load, tasks)
            job = RewriteGroups(bins, self.settings, self.prefixes, self.rewrite)
            results: dict[int, Any] = {}
            for answer in run_job(bin_numbers(spark, len(bins)), job, self.what):
                results.update(read_answer(answer))
            made = (result for result in results.values() if isinstance(result, MergeResult))
            self.owner.note(file.path for result in made for file in result.files)
            return results

        self.by(run, numbers)

    def by(self, job: Callable[[], Mapping[int, Any]], numbers: Collection[int]) -> None:
        """Have a job rewrite these groups. One that fails takes them with it, not those that are done."""
        if not numbers or self.cancelled.is_set():
            return
        try:
            results = job()
        except RewriteFailed as error:
            results = {} if self.cancelled.is_set() else dict.fromkeys(numbers, MergeFailure(str(error)))
        for number, result in results.items():
            self.keep(number, result)


def bin_numbers(spark: SparkSession, bins: int) -> DataFrame:
    """The numbers of so many bins, each in a task of its own."""
    return spark.range(0, bins, 1, bins)


def balanced(items: Mapping[int, T], load: Callable[[T], int], tasks: int) -> tuple[tuple[tuple[int, T], ...], ...]:
    """The items with their numbers in at most `tasks` bins, the largest first into the least loaded one."""
    bins: list[list[tuple[int, T]]] = [[] for _ in range(max(1, min(tasks, len(items))))]
    loads = [0] * len(bins)
    for size, number in sorted(((load(item), number) for number, item in items.items()), key=lambda pair: -pair[0]):
        least = loads.index(min(loads))
        bins[least].append((number, items[number]))
        loads[least] += size
    return tuple(map(tuple, bins))


def run_job(df: DataFrame, function: Any, what: str) -> Iterable[bytes]:
    """What `function` answers in each task; `what` says in errors what failed, as in "Cannot <what>: ...".

    Raises SchemaMismatch for a value that cannot be computed, EngineUnavailable when workers lack a module,
    RewriteFailed else.
    """
    spark = df.sparkSession
    session.use_this_python(spark)
    try:
        return [row["answer"] for row in df.mapInArrow(function, ANSWERS).collect()]
    except Exception as error:
        if isinstance(error, PySparkException) or type(error).__name__ == "Py4JJavaError":
            raise _translated(error, what, spark) from scrub(error)
        raise


def _translated(error: Exception, what: str, spark: SparkSession) -> IcesizeError:
    text = str(error)
    if missing := _MISSING.search(text):
        module, workers = missing[1] or missing[2].lower(), session.python_of_workers(spark)
        return EngineUnavailable(
            f"Cannot {what}: Spark's workers have no module '{module}'; they run {workers}, and this driver is "
            f"'{sys.executable}'. Set PYSPARK_PYTHON (spark.pyspark.python) to a Python that has icesize where they "
            "run, or ship an environment with --archives (spark.archives) or icesize with --py-files "
            "(spark.submit.pyFiles)",
            module=module,
            workers=workers,
            driver=sys.executable,
        )
    kind = SchemaMismatch if _BAD_VALUE.search(text) else RewriteFailed
    lines = [line for line in text.splitlines() if line.strip()]
    cause = next((x.strip() for x in reversed(lines) if re.match(r"\s*[\w.]+(Error|Exception|Mismatch)\b", x)), None)
    return kind(f"Cannot {what}: {cause or (lines[0] if lines else type(error).__name__)}")
