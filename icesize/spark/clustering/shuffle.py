"""Clusters groups by all tasks together: a job that looks at their keys, one that moves their rows."""

from __future__ import annotations

import math
import threading
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.merge_result import MergeFailure
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import Ranking, RowOrder
from icesize.parquet.writing.file_writer import remove_files
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeGroup
from icesize.planning.sizing import merged_files
from icesize.spark.clustering.gather import Destination, Gather, Made, Place
from icesize.spark.clustering.scatter import BLOBS, Division, Look, Scatter, Seen
from icesize.spark.engine import session
from icesize.spark.engine.jobs import balanced, bin_numbers, run_job
from icesize.spark.engine.worker import Bins, read_answer
from icesize.spark.routing import repartition

SAMPLE_ROWS_PER_FILE = 4_000
SAMPLE_ROWS = (20_000, 200_000)
"""Rows of a group whose keys its cuts are learned from, for each output, and at least and at most of all of them:
outputs then have their share of the rows within 4% (2.5 standard deviations)."""

BIN_BYTES = 128 * 2**20
"""Bytes of files that a task scatters, and reads again when its output is lost."""

BLOBS_AT_ONCE = 32
"""Blobs that Spark hands to Python together: before version 4.1 it counts them, however large they are."""

FILES_OF_A_PLACE = 2
"""Planned for each place, at least: how much less rows need in order is known when a place has them all, and only
within it can files become fewer. What was planned as two is not one small file until rows need less than half."""

SMALL_SHARE = 0.25
"""More small files of a group than this share are not left to compaction, which would undo the order that they have.
Writing them again costs the second and larger job once more (the first, of keys, is not repeated)."""

SKEWED = 2.0
"""A part of equal keys with the rows of more places than this is sorted by several tasks."""


@dataclass(frozen=True)
class Dividing:
    """Groups to be written in `order`, by number: `tasks`, and `prefixes` of their file names.

    `slots` tasks run at one time; with `sparing` no job has more.
    """

    spark: SparkSession
    tasks: Mapping[int, MergeGroup]
    prefixes: Mapping[int, str]
    order: RowOrder
    settings: WriteSettings
    slots: int
    sparing: bool = False

    def run(self, cancelled: threading.Event) -> dict[int, list[Made]]:
        """What was made of each group, place by place; nothing of one whose files were not yet written when the
        work was cancelled.

        A group with many small files is written once more, as fewer, unless cancelled: how many bytes its rows need in
        order is then known, and no sample of them tells it before. Raises as `run_job` does.
        """
        seen = self._look(self.tasks)
        made: dict[int, list[Made]] = {i: [found] for i, found in seen.items() if isinstance(found, MergeFailure)}
        whole = {i: found for i, found in seen.items() if not isinstance(found, MergeFailure)}
        if cancelled.is_set() or not whole:
            return made
        made |= self._rewrite(whole, {i: self.tasks[i].outputs for i in whole})
        return made if cancelled.is_set() else self._without_small(made, whole, cancelled)

    def _look(self, groups: Mapping[int, MergeGroup]) -> dict[int, list[Seen] | MergeFailure]:
        strides = {i: max(1, task.rows // _sample_rows(task)) for i, task in groups.items()}
        bins = self._bins(groups)
        found: dict[int, list[Seen] | MergeFailure] = {i: [] for i in groups}
        work = Look(bins, strides, self.order, self.settings)
        for group, seen in map(read_answer, run_job(bin_numbers(self.spark, len(bins)), work, "cluster files")):
            before = found[group]
            if isinstance(seen, MergeFailure):
                found[group] = seen
            elif not isinstance(before, MergeFailure):
                before.append(seen)
        return found

    def _without_small(
        self, made: Mapping[int, list[Made]], seen: Mapping[int, Sequence[Seen]], cancelled: threading.Event
    ) -> dict[int, list[Made]]:
        fewer = {i: outputs for i in seen if (outputs := self._fewer(made[i]))}
        for i in fewer:
            remove_files(self.settings.storage, _files(made[i]))
        kept = {i: places for i, places in made.items() if i not in fewer}
        if not fewer:
            return kept
        try:
            return kept | self._rewrite({i: seen[i] for i in fewer}, fewer)
        except RewriteFailed as error:
            return kept if cancelled.is_set() else kept | {i: [MergeFailure(str(error))] for i in fewer}

    def _fewer(self, places: Sequence[Made]) -> int | None:
        """How many files there should be instead, where too many are small; None when they are well sized."""
        files = _files(places)
        if len(places) < 2 or any(isinstance(place, MergeFailure) for place in places):
            return None
        target, limit = self.settings.target_file_size_bytes, self.settings.small_file_limit_bytes
        small = sum(file.size_bytes < limit for file in files)
        outputs = merged_files(sum(file.size_bytes for file in files), target, limit)
        return outputs if small > SMALL_SHARE * len(files) and outputs < len(files) else None

    def _rewrite(self, seen: Mapping[int, Sequence[Seen]], outputs_of: Mapping[int, int]) -> dict[int, list[Made]]:
        total, limits = sum(self.tasks[i].size_bytes for i in seen), self.settings.limits
        places: list[Place] = []
        divisions: dict[int, Division] = {}
        destinations: dict[int, Destination] = {}
        for i, found in seen.items():
            task, sample = self.tasks[i], pa.concat_tables([one.keys for one in found])
            ranking = self.order.fit(sample)
            slots = math.ceil(self.slots * task.size_bytes / max(1, total))
            parts = max(_arrow_bytes(found, task.rows) / limits.sorted_bytes, task.rows / limits.sorted_rows)
            divisions[i], outputs = divide(ranking, sample, parts, outputs_of[i], slots, len(places))
            places += [Place(i, files) for files in outputs]
            sequence_number = max(input_file.sequence_number for input_file in task.inputs)
            destinations[i] = Destination(ranking, self.prefixes[i], task.partition, sequence_number)
        return self._shuffle(divisions, places, destinations)

    def _shuffle(
        self, divisions: Mapping[int, Division], places: Sequence[Place], destinations: Mapping[int, Destination]
    ) -> dict[int, list[Made]]:
        bins = self._bins(divisions)
        tasks = min(len(places), self.slots) if self.sparing else len(places)
        scatter = Scatter(bins, divisions, self.order, self.settings, tasks)
        blobs = bin_numbers(_with_few_blobs_at_once(self.spark), len(bins)).mapInArrow(scatter, BLOBS)
        work = Gather(tuple(places), destinations, self.order, self.settings)
        answers = map(read_answer, run_job(repartition.to_tasks(blobs, tasks), work, "cluster files"))
        made: dict[int, list[Made]] = {i: [] for i in divisions}
        for place, files in sorted(answers, key=lambda answer: int(answer[0])):
            made[places[place].group].append(files)
        self.settings.storage.note(file.path for found in made.values() for file in _files(found))
        return made

    def _bins(self, groups: Iterable[int]) -> Bins:
        """The input files of the groups, in bins of about equal bytes."""
        inputs = dict(enumerate((i, input_file) for i in groups for input_file in self.tasks[i].inputs))
        size_bytes = sum(input_file.size_bytes for _, input_file in inputs.values())
        wanted = self.slots if self.sparing else max(self.slots, math.ceil(size_bytes / BIN_BYTES))
        return tuple(self._by_group(bin_) for bin_ in balanced(inputs, lambda pair: pair[1].size_bytes, wanted))

    def _by_group(self, numbered: Iterable[tuple[int, tuple[int, FileFact]]]) -> tuple[tuple[int, MergeGroup], ...]:
        inputs: dict[int, list[FileFact]] = defaultdict(list)
        for _, (i, input_file) in sorted(numbered, key=lambda one: one[0]):
            inputs[i].append(input_file)
        return tuple((i, replace(self.tasks[i], inputs=tuple(files))) for i, files in inputs.items())


def divide(
    ranking: Ranking, sample: pa.Table, parts: float, outputs: int, slots: int, first_place: int = 0
) -> tuple[Division, tuple[int, ...]]:
    """Where the rows of a group go, and how many files each of its places makes, from keys of a sample of them.

    As many places as `slots`, or fewer so that each has `FILES_OF_A_PLACE` of the `outputs` or more, all about as many,
    numbered from `first_place` on; at least `parts` parts.
    """
    count = max(1, min(slots, outputs // FILES_OF_A_PLACE))
    of_places = [(outputs + place) // count for place in range(count)]
    each = max(1, math.ceil(parts / count))
    cuts = ranking.cuts(sample, [share / each for share in of_places for _ in range(each)])
    rows = np.bincount(cuts.part_of(sample), minlength=each * count)
    files = rows / max(1, sample.num_rows) * outputs
    ends = np.interp(np.append(0.0, files.cumsum()), np.append(0, np.cumsum(of_places)), np.arange(count + 1))
    routes = [_route(begin, end, count) for begin, end in pairwise(ends.tolist())]
    skewed = np.zeros(count)
    for route, share in zip(routes, files, strict=True):
        skewed[route.start : route.stop] += share / len(route)
    division = Division(cuts, tuple(range(first_place + r.start, first_place + r.stop) for r in routes))
    return division, tuple(max(1, round(skewed_partition)) for skewed_partition in skewed)


def _route(begin: float, end: float, places: int) -> range:
    """The places of the rows of a part; `begin` and `end` count places before it and up to its end."""
    if end - begin > SKEWED:
        first = min(round(begin), places - 1)
        return range(first, max(first + 1, min(round(end), places)))
    middle = min(int((begin + end) / 2), places - 1)
    return range(middle, middle + 1)


def _files(places: Iterable[Made]) -> list[WrittenFile]:
    return [file for place in places if not isinstance(place, MergeFailure) for file in place]


def _sample_rows(task: MergeGroup) -> int:
    least, most = SAMPLE_ROWS
    return max(least, min(most, SAMPLE_ROWS_PER_FILE * task.outputs))


def _arrow_bytes(seen: Sequence[Seen], rows: int) -> float:
    weighed = sum(one.weighed_rows for one in seen)
    return rows * sum(one.weighed_bytes for one in seen) / max(1, weighed)


def _with_few_blobs_at_once(spark: SparkSession) -> SparkSession:
    """A session of the same application that counts so few rows as a batch; other queries keep their settings."""
    if session.is_connect(spark):
        return spark
    own = spark.newSession()
    own.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BLOBS_AT_ONCE))
    return own
