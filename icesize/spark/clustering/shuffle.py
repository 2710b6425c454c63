"""Clusters a group by all tasks together: one job scans its keys, another one moves its rows."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, pairwise
from operator import itemgetter

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from icesize.errors import RewriteFailed
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.deletes.deleted_rows import DeletedPositions
from icesize.parquet.files.data_file import Merged, MergeFailure, MergeResult, NewDataFile, Results
from icesize.parquet.files.row_map import Ordered
from icesize.parquet.files.settings import Limits
from icesize.parquet.ordering.cluster_order import Ranking
from icesize.parquet.reading.conservation import Conservation, Counts
from icesize.parquet.rewriting.cluster import PART_SHARE
from icesize.planning.file_sizes import is_small_file, merged_files
from icesize.planning.plan import MergeTask
from icesize.spark.clustering.gather import MOST_NUMBERED_ROWS, Assignment, Destination, Gather, Gathered, RowNumbers
from icesize.spark.clustering.scatter import BLOBS, Division, KeySample, ScanKeys, Scatter
from icesize.spark.engine import session
from icesize.spark.engine.jobs import Cores, balanced, bin_numbers, run_job
from icesize.spark.engine.worker import Bins
from icesize.spark.routing.task_column import to_tasks

SAMPLE_ROWS_PER_FILE = 4_000
SAMPLE_ROWS = (20_000, 200_000)
"""Rows of a group whose keys decide its cuts: a number per output file, and a minimum and a maximum for the group.

Each output then has its share of the rows within 4% (2.5 standard deviations).
"""

BIN_BYTES = 128 * 2**20
"""Bytes of files that a task scatters, and reads again if its output is lost."""

BLOBS_AT_ONCE = 32
"""Blobs that Spark passes to Python together: before version 4.1, Spark limits only their number, not their bytes."""

FILES_PER_ASSIGNMENT = 2
"""Files planned for each task assignment, at least.

The size of rows in order is known only when a task has all of them, and only one assignment can then use fewer files.
Two planned files become one small file only if the rows need less than half of the planned bytes.
"""

SMALL_SHARE = 0.25
"""The largest share of small files in a group that stays for compaction.

Compaction would undo the order of more small files than that. Writing them again repeats the second, larger job, and
not the first one, which reads keys.
"""

SKEWED = 2.0
"""Several tasks sort a shuffle partition of equal keys with the rows of more task assignments than this."""


@dataclass(frozen=True)
class Shuffle:
    """Writes each group of `work` by several tasks, more for more bytes; no job has more than `cores.tasks` tasks.

    `numbers` has the numbers of the rows of each group in the order in which they were written.
    """

    spark: SparkSession
    work: ClusterWork
    cores: Cores
    numbers: dict[int, RowNumbers] = field(default_factory=dict)

    def run(self, cancelled: threading.Event) -> Results:
        """Return the result of each group; a group whose files were not written when the work was cancelled has none.

        A group with many small files is written once more, as fewer files, unless cancelled. The bytes of its rows in
        order are known only then; no sample shows them before. Raises as `run_job` does.
        """
        samples, failures = self._scan()
        if cancelled.is_set() or not samples:
            return failures
        gathered = self._rewrite(samples, {n: self.work.groups[n].outputs for n in samples})
        if not cancelled.is_set():
            gathered = self._without_small(gathered, samples, cancelled)
        return failures | {n: self._result(n, found, samples[n]) for n, found in gathered.items()}

    def _scan(self) -> tuple[dict[int, list[KeySample]], Results]:
        """Return the key samples of each group, and the failures of groups with a damaged file."""
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
        """Return a lower number of files if too many are small; None if the files are well sized."""
        if isinstance(files, MergeFailure):
            return None
        target, limit = self.work.settings.target_file_size_bytes, self.work.settings.small_file_limit_bytes
        small = sum(is_small_file(file.size_bytes, limit) for file in files)
        outputs = merged_files(sum(file.size_bytes for file in files), target, limit)
        return outputs if small > SMALL_SHARE * len(files) and outputs < len(files) else None

    def _result(self, number: int, files: Gathered, samples: Sequence[KeySample]) -> Merged | MergeFailure:
        """Return the result of a group, after a check of its row counts."""
        if isinstance(files, MergeFailure):
            return files
        group, deleted = self.work.groups[number], DeletedPositions.together(sample.deleted for sample in samples)
        rows, live = sum(file.rows for file in files), group.rows - deleted.rows
        if rows != live:
            self.work.owner.delete(_paths(files))
            return MergeFailure(f"Cannot cluster: {live} live rows went in and {rows} came out, report this")
        ordered, runs = Ordered(live), self.numbers.pop(number, [])
        for run in runs:
            ordered.write(run)
        row_map = deleted.left_out_of(ordered.row_map(group.inputs)) if runs else None
        return MergeResult(
            group.inputs, tuple(files), group.size_bytes, rows_deleted=deleted.rows, named=deleted.named,
            row_map=row_map,
        )  # fmt: skip

    def _rewrite(
        self, samples: Mapping[int, Sequence[KeySample]], outputs_of: Mapping[int, int]
    ) -> dict[int, Gathered]:
        """Write each of these groups into a number of files; return the files, or the failure."""
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
            division, outputs = divide(ranking, sample, partitions, outputs_of[n], share, len(assignments))
            divisions[n] = replace(division, numbers=_first_numbers(group, found))
            assignments += [Assignment(n, files) for files in outputs]
            sequence_number = max(sample.sequence_number for sample in found)
            destinations[n] = Destination(ranking, self.work.prefixes[n], group.partition, sequence_number)
        keeps_numbers = sum(self.work.groups[n].rows for n in samples) <= MOST_NUMBERED_ROWS
        gather = Gather(assignments, destinations, self.work.order, self.work.settings, keeps_numbers)
        return self._shuffle(divisions, gather)

    def _shuffle(self, divisions: Mapping[int, Division], gather: Gather) -> dict[int, Gathered]:
        bins = self._bins(divisions)
        tasks = min(len(gather.assignments), self.cores.tasks or len(gather.assignments))
        scatter = Scatter(bins, divisions, self.work.order, self.work.settings, tasks)
        blobs = bin_numbers(_with_few_blobs_at_once(self.spark), len(bins)).mapInArrow(scatter, BLOBS)
        answers = run_job(to_tasks(blobs, tasks), gather, "cluster files")
        gathered: dict[int, list[Gathered]] = {n: [] for n in divisions}
        counted: dict[int, list[Counts]] = {n: [] for n in divisions}
        self.numbers.update({n: [] for n in divisions})
        for number, found, counts, written in sorted(answers, key=lambda answer: int(answer[0])):
            group = gather.assignments[number].group
            self.numbers[group] += written
            gathered[group].append(found)
            counted[group] += counts
            self.work.owner.note(_paths(found))
        return {n: checked(found, counted[n], self.work.groups[n], self.work) for n, found in gathered.items()}

    def _bins(self, numbers: Iterable[int]) -> Bins:
        """Return the input files of the groups, in bins of about equal bytes."""
        inputs = [(n, file) for n in numbers for file in self.work.groups[n].inputs]
        loads = {i: file.size_bytes for i, (_, file) in enumerate(inputs)}
        wanted = self.cores.tasks or max(self.cores.slots(self.spark), math.ceil(sum(loads.values()) / BIN_BYTES))
        bins = [groupby((inputs[i] for i in sorted(bin_)), itemgetter(0)) for bin_ in balanced(loads, wanted)]
        return [
            [(n, replace(self.work.groups[n], inputs=tuple(file for _, file in files))) for n, files in bin_]
            for bin_ in bins
        ]


def _first_numbers(group: MergeTask, samples: Iterable[KeySample]) -> dict[str, int]:
    """Return the number of the first live row of each input file, by its path."""
    left_out = {path: len(rows) for sample in samples for path, rows in sample.deleted.positions.items()}
    rows = [file.rows - left_out.get(file.path, 0) for file in group.inputs]
    return {file.path: first for file, first in zip(group.inputs, accumulate(rows, initial=0), strict=False)}


def checked(gathered: Iterable[Gathered], counts: Iterable[Counts], group: MergeTask, work: ClusterWork) -> Gathered:
    """Return the files of all assignments of a group, after a comparison with the `counts` of the rows read.

    Returns a failure, and removes the files, if the counts differ or an assignment has failed.
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
    """Return the destinations of a group's rows, and the files of each of its task assignments, from a sample of keys.

    There are as many assignments as `slots`, or fewer if each would have less than `FILES_PER_ASSIGNMENT` of the
    `outputs`. All have about as many files, and their numbers begin with `first`. There are at least `partitions`
    shuffle partitions.
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
    """Return the assignments, of `count`, that receive the rows of a shuffle partition.

    `begin` and `end` count assignments: those filled before the partition, and those filled up to its end.
    """
    if end - begin > SKEWED:
        first = min(round(begin), count - 1)
        return range(first, max(first + 1, min(round(end), count)))
    middle = min(int((begin + end) / 2), count - 1)
    return range(middle, middle + 1)


def _paths(files: Gathered) -> list[str]:
    return [] if isinstance(files, MergeFailure) else [file.path for file in files]


def _least_partitions(samples: Sequence[KeySample], rows: int, limits: Limits) -> float:
    """Return the number of shuffle partitions that `rows` rows need, so that each can be sorted in memory."""
    weighed = sum(one.weighed_rows for one in samples)
    arrow_bytes = rows * sum(one.weighed_bytes for one in samples) / max(1, weighed)
    return max(arrow_bytes / limits.sorted_bytes, rows / limits.sorted_rows) / PART_SHARE


def _with_few_blobs_at_once(spark: SparkSession) -> SparkSession:
    """Return a session of the same application with small Arrow batches; other queries keep their settings."""
    if session.is_connect(spark):
        return spark
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BLOBS_AT_ONCE))
    return own
