"""Clusters groups by all tasks together: a job that scans their keys, one that moves their rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from icesize.errors import RewriteFailed
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import Merged, MergeFailure, MergeResult, NewDataFile, Results
from icesize.parquet.files.settings import Limits
from icesize.parquet.ordering.cluster_order import Ranking
from icesize.parquet.reading.conservation import Conservation, Counts
from icesize.planning.plan import MergeTask
from icesize.planning.sizing import merged_files
from icesize.spark.clustering.gather import Assignment, Destination, Gather, Gathered
from icesize.spark.clustering.scatter import BLOBS, Division, KeySample, ScanKeys, Scatter
from icesize.spark.engine import session
from icesize.spark.engine.jobs import Cores, balanced, bin_numbers, run_job
from icesize.spark.engine.worker import Bins
from icesize.spark.routing.task_column import to_tasks

SAMPLE_ROWS_PER_FILE = 4_000
SAMPLE_ROWS = (20_000, 200_000)
"""Rows of a group whose keys its cuts are learned from, for each output, and at least and at most of all of them:
outputs then have their share of the rows within 4% (2.5 standard deviations)."""

BIN_BYTES = 128 * 2**20
"""Bytes of files that a task scatters, and reads again when its output is lost."""

BLOBS_AT_ONCE = 32
"""Blobs that Spark hands to Python together: before version 4.1 it counts them, however large they are."""

FILES_PER_ASSIGNMENT = 2
"""Planned for each task assignment, at least: how much less rows need in order is known when one has them all, and only
within it can files become fewer. What was planned as two is not one small file until rows need less than half."""

SMALL_SHARE = 0.25
"""More small files of a group than this share are not left to compaction, which would undo the order that they have.
Writing them again costs the second and larger job once more (the first, of keys, is not repeated)."""

SKEWED = 2.0
"""A shuffle partition of equal keys with the rows of more task assignments than this is sorted by several tasks."""


@dataclass(frozen=True)
class Shuffle:
    """Writes each group of `work` by several tasks, more of them for more bytes; no job has more than `cores.tasks`."""

    spark: SparkSession
    work: ClusterWork
    cores: Cores

    def run(self, cancelled: threading.Event) -> Results:
        """The result of each group; none of one whose files were not yet written when the work was cancelled.

        A group with many small files is written once more, as fewer, unless cancelled: how many bytes its rows need in
        order is then known, and no sample of them tells it before. Raises as `run_job` does.
        """
        samples, failures = self._scan()
        if cancelled.is_set() or not samples:
            return failures
        gathered = self._rewrite(samples, {n: self.work.groups[n].outputs for n in samples})
        if not cancelled.is_set():
            gathered = self._without_small(gathered, samples, cancelled)
        return failures | {n: self._result(n, found, samples[n]) for n, found in gathered.items()}

    def _scan(self) -> tuple[dict[int, list[KeySample]], Results]:
        """What the keys of each group look like, and why groups with a damaged file have to be left out."""
        groups = self.work.groups
        least, most = SAMPLE_ROWS
        wanted = {n: max(least, min(most, SAMPLE_ROWS_PER_FILE * group.outputs)) for n, group in groups.items()}
        strides = {n: max(1, group.rows // wanted[n]) for n, group in groups.items()}
        bins = self._bins(groups)
        samples: dict[int, list[KeySample]] = {n: [] for n in groups}
        failures: Results = {}
        scan = ScanKeys(bins, strides, self.work.order, self.work.settings)
        for number, found in run_job(bin_numbers(self.spark, len(bins)), scan, "cluster files"):
            if isinstance(found, MergeFailure):
                failures[number] = found
                samples.pop(number, None)
            elif number in samples:
                samples[number].append(found)
        return samples, failures

    def _without_small(
        self,
        gathered: Mapping[int, Gathered],
        samples: Mapping[int, Sequence[KeySample]],
        cancelled: threading.Event,
    ) -> dict[int, Gathered]:
        fewer = {n: outputs for n, files in gathered.items() if (outputs := self._fewer(files))}
        for n in fewer:
            self.work.owner.delete(_paths(gathered[n]))
        kept = {n: files for n, files in gathered.items() if n not in fewer}
        if not fewer:
            return kept
        try:
            return kept | self._rewrite({n: samples[n] for n in fewer}, fewer)
        except RewriteFailed as error:
            return kept if cancelled.is_set() else kept | dict.fromkeys(fewer, MergeFailure(str(error)))

    def _fewer(self, files: Gathered) -> int | None:
        """How many files there should be instead, where too many are small; None when they are well sized."""
        if isinstance(files, MergeFailure):
            return None
        target, limit = self.work.settings.target_file_size_bytes, self.work.settings.small_file_limit_bytes
        small = sum(file.size_bytes < limit for file in files)
        outputs = merged_files(sum(file.size_bytes for file in files), target, limit)
        return outputs if small > SMALL_SHARE * len(files) and outputs < len(files) else None

    def _result(self, number: int, files: Gathered, samples: Sequence[KeySample]) -> Merged | MergeFailure:
        """The result of a group, once its rows were counted."""
        if isinstance(files, MergeFailure):
            return files
        group, deleted = self.work.groups[number], sum(sample.rows_deleted for sample in samples)
        rows, live = sum(file.rows for file in files), group.rows - deleted
        if rows != live:
            self.work.owner.delete(_paths(files))
            return MergeFailure(f"Cannot cluster: {live} live rows went in and {rows} came out, report this")
        # samples of several bins may have read one delete file: each names all data files of it
        named = {path: names for sample in samples for path, names in sample.named.items()}
        return MergeResult(group.inputs, tuple(files), group.size_bytes, rows_deleted=deleted, named=named)

    def _rewrite(
        self, samples: Mapping[int, Sequence[KeySample]], outputs_of: Mapping[int, int]
    ) -> dict[int, Gathered]:
        """Write these groups, each into so many files: these, or why there are none."""
        total = sum(self.work.groups[n].size_bytes for n in samples)
        slots = self.cores.slots(self.spark)
        assignments: list[Assignment] = []
        divisions: dict[int, Division] = {}
        destinations: dict[int, Destination] = {}
        for n, found in samples.items():
            group, sample = self.work.groups[n], pa.concat_tables([one.keys for one in found])
            ranking = self.work.order.fit(sample)
            share = math.ceil(slots * group.size_bytes / max(1, total))
            partitions = _least_partitions(found, group.rows, self.work.settings.limits)
            divisions[n], outputs = divide(ranking, sample, partitions, outputs_of[n], share, len(assignments))
            assignments += [Assignment(n, files) for files in outputs]
            sequence_number = max(sample.sequence_number for sample in found)
            destinations[n] = Destination(ranking, self.work.prefixes[n], group.partition, sequence_number)
        return self._shuffle(divisions, Gather(assignments, destinations, self.work.order, self.work.settings))

    def _shuffle(self, divisions: Mapping[int, Division], gather: Gather) -> dict[int, Gathered]:
        bins = self._bins(divisions)
        tasks = min(len(gather.assignments), self.cores.tasks or len(gather.assignments))
        scatter = Scatter(bins, divisions, self.work.order, self.work.settings, tasks)
        blobs = bin_numbers(_with_few_blobs_at_once(self.spark), len(bins)).mapInArrow(scatter, BLOBS)
        answers = run_job(to_tasks(blobs, tasks), gather, "cluster files")
        gathered: dict[int, list[Gathered]] = {n: [] for n in divisions}
        counted: dict[int, list[Counts]] = {n: [] for n in divisions}
        for number, found, counts in sorted(answers, key=lambda answer: int(answer[0])):
            group = gather.assignments[number].group
            gathered[group].append(found)
            counted[group] += counts
            self.work.owner.note(_paths(found))
        return {n: checked(found, counted[n], self.work.groups[n], self.work) for n, found in gathered.items()}

    def _bins(self, numbers: Iterable[int]) -> Bins:
        """The input files of the groups, in bins of about equal bytes."""
        inputs = [(n, file) for n in numbers for file in self.work.groups[n].inputs]
        loads = {i: file.size_bytes for i, (_, file) in enumerate(inputs)}
        wanted = self.cores.tasks or max(self.cores.slots(self.spark), math.ceil(sum(loads.values()) / BIN_BYTES))
        bins = [groupby((inputs[i] for i in sorted(bin_)), itemgetter(0)) for bin_ in balanced(loads, wanted)]
        return [
            [(n, replace(self.work.groups[n], inputs=tuple(file for _, file in files))) for n, files in bin_]
            for bin_ in bins
        ]


def checked(gathered: Iterable[Gathered], counts: Iterable[Counts], group: MergeTask, work: ClusterWork) -> Gathered:
    """The files of all assignments of a group, compared with the `counts` of the rows read.

    It is a failure, and the files are removed, if these differ or one of the assignments has failed.
    """
    files, failure = list[NewDataFile](), None
    for found in gathered:
        if isinstance(found, MergeFailure):
            failure = failure or found
        else:
            files += found
    counted = Conservation(work.settings, paths={file.path for file in group.inputs})
    for some in counts:
        counted.add(some)
    try:
        if failure is None:
            return counted.check(files)
    except RewriteFailed as error:
        failure = MergeFailure(str(error))
    work.owner.delete(_paths(files))
    return failure


def divide(
    ranking: Ranking, sample: pa.Table, partitions: float, outputs: int, slots: int, first: int = 0
) -> tuple[Division, tuple[int, ...]]:
    """Where the rows of a group go, and how many files each of its task assignments makes, from keys of a sample.

    As many assignments as `slots`, or fewer so that each has `FILES_PER_ASSIGNMENT` of the `outputs` or more, all about
    as many, numbered from `first`; at least as many shuffle partitions as `partitions` says.
    """
    count = max(1, min(slots, outputs // FILES_PER_ASSIGNMENT))
    planned = [(outputs + number) // count for number in range(count)]
    each = max(1, math.ceil(partitions / count))
    cuts = ranking.cuts(sample, [share / each for share in planned for _ in range(each)])
    rows = np.bincount(cuts.part_of(sample), minlength=each * count)
    files = rows / max(1, sample.num_rows) * outputs
    ends = np.interp(np.append(0.0, files.cumsum()), np.append(0, np.cumsum(planned)), np.arange(count + 1))
    routes = [_route(begin, end, count) for begin, end in pairwise(ends.tolist())]
    files_of = np.zeros(count)
    for route, share in zip(routes, files, strict=True):
        files_of[route.start : route.stop] += share / len(route)
    numbers = tuple(range(first + route.start, first + route.stop) for route in routes)
    return Division(cuts, numbers), tuple(max(1, round(number)) for number in files_of)


def _route(begin: float, end: float, count: int) -> range:
    """Which of `count` assignments get the rows of a shuffle partition; `begin` and `end` count those before it and up
    to its end."""
    if end - begin > SKEWED:
        first = min(round(begin), count - 1)
        return range(first, max(first + 1, min(round(end), count)))
    middle = min(int((begin + end) / 2), count - 1)
    return range(middle, middle + 1)


def _paths(files: Gathered) -> list[str]:
    return [] if isinstance(files, MergeFailure) else [file.path for file in files]


def _least_partitions(samples: Sequence[KeySample], rows: int, limits: Limits) -> float:
    """How many shuffle partitions so many rows need, so that each can be sorted in memory."""
    weighed = sum(one.weighed_rows for one in samples)
    arrow_bytes = rows * sum(one.weighed_bytes for one in samples) / max(1, weighed)
    return max(arrow_bytes / limits.sorted_bytes, rows / limits.sorted_rows)


def _with_few_blobs_at_once(spark: SparkSession) -> SparkSession:
    """A session of the same application that counts so few rows as a batch; other queries keep their settings."""
    if session.is_connect(spark):
        return spark
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BLOBS_AT_ONCE))
    return own
