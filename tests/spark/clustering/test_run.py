"""Clustering by threads, by one Spark task for each group, and by all tasks together: the same rows, in order."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date, datetime, timezone
from decimal import Decimal
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import DoubleType, LongType, StringType
from pyspark.sql import SparkSession

from icesize.environment import WorkLimits
from icesize.errors import RewriteFailed
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import MergeFailure, MergeResult, NewDataFile, Results
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.ordering.cluster_order import Ranking, RowOrder
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.planning.cluster_by import SORT, STRATEGIES, ZORDER, ClusterBy
from icesize.planning.plan import MergeTask
from icesize.spark.clustering import gather, scatter, shuffle
from icesize.spark.clustering import run as clusters
from icesize.spark.clustering.gather import Assignment, Destination, Gather
from icesize.spark.clustering.run import run_clusters
from icesize.spark.clustering.scatter import Division, KeySample, ScanKeys, Scatter
from icesize.spark.clustering.shuffle import checked, divide
from icesize.spark.engine import jobs, session
from icesize.spark.engine.jobs import Cores
from icesize.spark.engine.worker import RewriteGroups
from tests.support.footers import with_other_bounds
from tests.support.parquet_files import fact, files_below, local, schema_of, settings_of, with_limits, write_one
from tests.support.spark_lake import ALL_TYPES, rows_of
from tests.support.unit_deletes import position_deletes

SCHEMA = schema_of(("user", LongType()), ("at", LongType()), ("text", StringType()), ("share", DoubleType()))
VICTIM_ROWS = 1_000
ALL_IN_SPARK = WorkLimits(driver_merge_bytes=0)
WAYS = ("threads", "one task each", "all tasks")


def by(*field_ids: int, strategy: str = SORT) -> ClusterBy:
    return ClusterBy(tuple(f"c{i}" for i in field_ids), field_ids, strategy, 2**40)


def rows(seed: int, count: int = VICTIM_ROWS) -> pa.Table:
    """Rows of SCHEMA in no order, with nulls and, in one row, NaN."""
    drawn = np.random.default_rng(seed)
    users = pa.array(drawn.integers(0, 5_000, count), mask=drawn.random(count) < 0.02)
    shares = pa.array([math.nan, *drawn.random(count - 1)])
    texts = pa.array([f"{number:x}" for number in drawn.integers(0, 2**48, count)])
    return pa.table(
        [users, pa.array(drawn.integers(0, 2**40, count)), texts, shares], names=["user", "at", "text", "share"]
    )


@pytest.fixture
def settings(tmp_path: Path) -> WriteSettings:
    """How files of SCHEMA are written: small ones."""
    return settings_of(tmp_path, SCHEMA, target=25_000)


@pytest.fixture
def limited(settings: WriteSettings) -> WriteSettings:
    """The same, and files below a limit are small."""
    return replace(settings, small_file_limit_bytes=18_750)


def group(settings: WriteSettings, tables: Sequence[pa.Table], outputs: int) -> MergeTask:
    """Each table as one input file."""
    inputs = tuple(fact(write_one(replace(settings, target_file_size_bytes=2**29), t), 7) for t in tables)
    return MergeTask(inputs, inputs[0].partition, outputs)


def groups(settings: WriteSettings, count: int, inputs: int = 5, outputs: int = 4) -> list[MergeTask]:
    """Groups whose rows differ."""
    return [group(settings, [rows(10 * i + v) for v in range(inputs)], outputs) for i in range(count)]


def content(tasks: Sequence[MergeTask], settings: WriteSettings) -> list[Any]:
    """All rows of the input files, by their text."""
    return rows_of(pa.concat_tables([pq.read_table(local(v.path)) for task in tasks for v in task.inputs]))


def limits_of(way: str) -> WorkLimits:
    """Have small groups clustered by Spark, too, for one of the ways."""
    return ALL_IN_SPARK if way == "one task each" else WorkLimits()


def divide_all(settings: WriteSettings, way: str = "all tasks") -> WriteSettings:
    """Settings by which each group is more than one task can sort, and has several parts; the same for other ways."""
    return with_limits(settings, sorted_bytes=20_000, parts_of_one_task=1) if way == "all tasks" else settings


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[int, MergeTask]]:
    """The groups of each call that has groups divided."""
    seen: list[Mapping[int, MergeTask]] = []

    class Recorded(shuffle.Shuffle):
        def run(self, cancelled: threading.Event) -> Results:
            seen.append(self.work.groups)
            return super().run(cancelled)

    monkeypatch.setattr(clusters, "Shuffle", Recorded)
    return seen


def prefixes(tasks: Sequence[MergeTask]) -> dict[int, str]:
    return {i: f"k{i:08x}o-ab{i}" for i in range(len(tasks))}


def run(
    spark: SparkSession, tasks: Sequence[MergeTask], order: RowOrder, settings: WriteSettings, **options: Any
) -> list[Any]:
    """The result of each group, None for one that has none."""
    owner = options.pop("owner", None) or Uncommitted(settings.storage, "s1-0")
    work = ClusterWork(dict(enumerate(tasks)), prefixes(tasks), order, settings, owner)
    results = run_clusters(spark, work, **{"limits": WorkLimits(), **options})
    return [results.get(number) for number in range(len(tasks))]


def written_below(settings: WriteSettings, tasks: Sequence[MergeTask]) -> set[str]:
    """Files that are there besides the input files."""
    inputs = {local(input_file.path) for task in tasks for input_file in task.inputs}
    return {str(path) for path in files_below(Path(local(settings.table_location)))} - inputs


def keys_of_files(outcome: MergeResult, order: RowOrder) -> Iterator[pa.Table]:
    for file in outcome.files:
        yield order.keys(pq.read_table(local(file.path)))


def assert_in_order(outcome: MergeResult, order: RowOrder) -> None:
    """Each file is in order, and all of its rows come before those of the next one."""
    tables = list(keys_of_files(outcome, order))
    together = pa.concat_tables(tables)
    assert order.fit(together).arrange(together).order.tolist() == list(range(together.num_rows))
    assert all(not one.slice(one.num_rows - 1).equals(other.slice(0, 1)) for one, other in pairwise(tables))


@pytest.mark.parametrize(
    "way", [way if way == "all tasks" else pytest.param(way, marks=pytest.mark.slow) for way in WAYS]
)
def test_groups_are_sorted_each_by_itself(
    spark: SparkSession, settings: WriteSettings, way: str, divided: list[Mapping[int, MergeTask]]
) -> None:
    """Several groups at once: rows are the same, files are in order and disjoint, named and numbered as asked."""
    settings = divide_all(settings, way)
    tasks = groups(settings, 3)
    order = RowOrder.of(by(1, 2), settings)
    heard: list[int] = []
    results = run(spark, tasks, order, settings, limits=limits_of(way), progress=heard.append)
    assert [len(of_call) for of_call in divided] == ([3] if way == "all tasks" else [])
    for task, outcome, prefix in zip(tasks, results, prefixes(tasks).values(), strict=True):
        assert (outcome.rows_in, outcome.rows_out, outcome.inputs) == (5_000, 5_000, task.inputs)
        assert len(outcome.files) == task.outputs
        assert {os.path.basename(file.path).split("-")[0] for file in outcome.files} == {prefix.split("-")[0]}
        assert {file.sequence_number for file in outcome.files} == {7}
        assert_in_order(outcome, order)
        found = pa.concat_tables([pq.read_table(local(file.path)) for file in outcome.files])
        assert repr(rows_of(found)) == repr(content([task], settings))
    assert sorted(heard) == sorted(task.size_bytes for task in tasks)
    assert written_below(settings, tasks) == {local(file.path) for o in results for file in o.files}


@pytest.mark.slow
def test_group_that_others_would_wait_for_is_divided(
    spark: SparkSession,
    settings: WriteSettings,
    divided: list[Mapping[int, MergeTask]],
) -> None:
    """Most bytes of a run are not sorted by one task alone; one that makes a single file, or is small, is."""
    limits = replace(ALL_IN_SPARK, one_task_bytes=100_000)
    tasks = [*groups(settings, 1, inputs=8), *groups(settings, 1, inputs=1, outputs=2)]
    order = RowOrder.of(by(1, 2), settings)
    for outputs, expected in ((4, [{0: tasks[0]}]), (1, [])):
        divided.clear()
        large, small = run(spark, [replace(tasks[0], outputs=outputs), tasks[1]], order, settings, limits=limits)
        assert divided == expected
        assert (large.rows_out, small.rows_out) == (8_000, 1_000)
        assert_in_order(large, order)


@pytest.mark.slow
def test_half_of_the_cores_make_the_same_files(spark: SparkSession, settings: WriteSettings) -> None:
    """With one slot one task has the assignments of all groups, along a curve, too."""
    settings = divide_all(settings)
    tasks = groups(settings, 2, outputs=3)
    order = RowOrder.of(by(1, 2, strategy=ZORDER), settings)
    results = run(spark, tasks, order, settings, cores=Cores.half(spark))
    assert [len(outcome.files) for outcome in results] == [3, 3]
    assert [outcome.rows_out for outcome in results] == [5_000, 5_000]
    numbers = {os.path.basename(file.path).split("-")[2] for outcome in results for file in outcome.files}
    assert numbers == {"0"}, "one task"


@pytest.mark.parametrize("damage", [pytest.param("missing", marks=pytest.mark.slow), "a column that is no key"])
def test_damaged_victim_fails_its_group_alone(spark: SparkSession, settings: WriteSettings, damage: str) -> None:
    """Found when keys are read, or when rows are: the error names the path, the group leaves no file, others land."""
    settings = divide_all(settings)
    tasks = groups(settings, 2)
    bad = tasks[0].inputs[-1]
    path = Path(local(bad.path))
    if damage == "missing":
        path.unlink()
    else:
        column = pq.read_metadata(path).row_group(0).column(2)
        data = bytearray(path.read_bytes())
        middle = column.data_page_offset + column.total_compressed_size // 2
        data[middle : middle + 8] = bytes(8)
        path.write_bytes(data)
    failed, landed = run(spark, tasks, RowOrder.of(by(1), settings), settings)
    assert isinstance(failed, MergeFailure)
    assert bad.path in failed.why
    assert landed.rows_out == 5_000
    assert written_below(settings, tasks) == {local(file.path) for file in landed.files}


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["a row", "an assignment"])
def test_group_that_is_not_whole_leaves_nothing(
    spark: SparkSession, settings: WriteSettings, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """A row that got lost, or an assignment that could not be written, fails the group, and its files are removed."""

    right = shuffle.checked

    def losing(made: list[gather.Gathered], *arguments: Any) -> gather.Gathered:
        if loss == "an assignment":
            return right([*made, MergeFailure("Cannot cluster: disk is full")], *arguments)
        files = right(made, *arguments)
        assert isinstance(files, list)
        return [replace(files[0], rows=files[0].rows - 1), *files[1:]]

    settings = divide_all(settings)
    monkeypatch.setattr(shuffle, "checked", losing)
    tasks = groups(settings, 1, outputs=1)
    [failed] = run(spark, tasks, RowOrder.of(by(1), settings), settings)
    expected = "5000 live rows went in and 4999 came out" if loss == "a row" else "disk is full"
    assert expected in failed.why
    assert written_below(settings, tasks) == set()


def repeating_rows(seed: int) -> pa.Table:
    """Rows whose users have one long text each: in order they need less than a third of the bytes."""
    users = np.random.default_rng(seed).integers(0, 800, VICTIM_ROWS)
    texts = [np.random.default_rng(user).bytes(60).hex() for user in users.tolist()]
    same = pa.repeat(pa.scalar(0), VICTIM_ROWS)
    return pa.table([pa.array(users), same, pa.array(texts), same.cast(pa.float64())], names=SCHEMA.column_names)


@pytest.mark.slow
def test_rows_that_shrink_in_order_are_no_small_files(
    spark: SparkSession, limited: WriteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of many assignments makes a small file of them: they are written again, as fewer; a group beside is not."""
    limits = replace(ALL_IN_SPARK, one_task_bytes=0)
    monkeypatch.setattr(session, "parallelism", lambda spark: 16)
    tasks = [group(limited, [repeating_rows(v) for v in range(5)], 10), *groups(limited, 1)]
    order = RowOrder.of(by(1), limited)
    outputs_of: list[int] = []

    def recorded(
        ranking: Ranking, sample: pa.Table, partitions: float, outputs: int, slots: int, first: int
    ) -> tuple[Division, tuple[int, ...]]:
        outputs_of.append(outputs)
        return divide(ranking, sample, partitions, outputs, slots, first)

    monkeypatch.setattr(shuffle, "divide", recorded)
    shrunk, other = run(spark, tasks, order, limited, limits=limits)
    assert outputs_of == [10, 4, 3], "both groups, then the first one again"
    assert min(file.size_bytes for file in shrunk.files) >= limited.small_file_limit_bytes
    assert (shrunk.rows_out, other.rows_out) == (5_000, 5_000)
    assert_in_order(shrunk, order)
    assert written_below(limited, tasks) == {local(file.path) for o in (shrunk, other) for file in o.files}


def job_without_spark(
    settings: WriteSettings,
    tasks: Sequence[MergeTask],
    asked: list[Mapping[int, int]],
    error: BaseException | None,
    owner: Uncommitted | None = None,
) -> shuffle.Shuffle:
    """Each assignment writes a small file; `asked` hears how many are wanted, `error` is raised the second time."""

    class Small(shuffle.Shuffle):
        def _scan(self) -> tuple[dict[int, list[KeySample]], Results]:
            return {i: [] for i in self.work.groups}, {}

        def _rewrite(
            self, samples: Mapping[int, Sequence[KeySample]], outputs_of: Mapping[int, int]
        ) -> dict[int, gather.Gathered]:
            asked.append(outputs_of)
            if len(asked) == 2 and error is not None:
                raise error
            counts = {i: max(1, outputs // 2) for i, outputs in outputs_of.items()}
            made = {
                i: [write_one(settings, rows(n, VICTIM_ROWS // count)) for n in range(count)]
                for i, count in counts.items()
            }
            owner.note(file.path for files in made.values() for file in files)
            return {**made}

    owner = owner or Uncommitted(settings.storage, "s1-0")
    work = ClusterWork(dict(enumerate(tasks)), prefixes(tasks), RowOrder.of(by(1), settings), settings, owner)
    return Small(cast("SparkSession", None), work, Cores(tasks=8))


@pytest.mark.parametrize("error", [None, RewriteFailed("Cannot cluster files: no room"), KeyboardInterrupt()])
def test_small_files_are_written_again_once(limited: WriteSettings, error: BaseException | None) -> None:
    """Then those of the first time are gone, and all are when that is interrupted; a group that fails does so alone."""
    tasks = [group(limited, [rows(0)], 8), group(limited, [rows(1)], 3)]
    asked: list[Mapping[int, int]] = []
    owner = Uncommitted(limited.storage, "s1-0")
    job = job_without_spark(limited, tasks, asked, error, owner)
    results: Results = {}
    with pytest.raises(KeyboardInterrupt) if isinstance(error, KeyboardInterrupt) else nullcontext():
        results = job.run(threading.Event())
    assert asked == [{0: 8, 1: 3}, {0: 1}], "one assignment has no fewer files to make"
    if isinstance(error, RewriteFailed):
        assert results[0] == MergeFailure(str(error))
    elif error is not None:
        owner.abandon()
    left = [file for result in results.values() if isinstance(result, MergeResult) for file in result.files]
    assert len(left) == (2 if error is None else len(results) - 1 if results else 0)
    assert written_below(limited, tasks) == {local(file.path) for file in left}


def test_delete_files_that_name_several_files_are_known(settings: WriteSettings, tmp_path: Path) -> None:
    """The commit learns which data files they name, as when one process clusters: they go with the last of these."""
    task = group(settings, [rows(0), rows(1)], 1)
    paths = [file.path for file in task.inputs]
    deletes = (position_deletes(tmp_path, "several.parquet", [(path, 0) for path in paths], 9),)
    task = replace(task, inputs=tuple(replace(file, deletes=deletes) for file in task.inputs))
    order = RowOrder.of(by(1), settings)

    class InProcess(shuffle.Shuffle):
        def _scan(self) -> tuple[dict[int, list[KeySample]], Results]:
            bins = tuple(((0, replace(task, inputs=(file,))),) for file in task.inputs)
            answers = ScanKeys(bins, {0: 1}, order, settings)([pa.record_batch({"id": [0, 1]})])
            return {0: [sample for _, sample in answers if isinstance(sample, KeySample)]}, {}

        def _rewrite(
            self, samples: Mapping[int, Sequence[KeySample]], outputs_of: Mapping[int, int]
        ) -> dict[int, gather.Gathered]:
            live = rows(2, sum(sample.keys.num_rows for sample in samples[0]))
            return {0: [write_one(replace(settings, target_file_size_bytes=2**29), live)]}

    work = ClusterWork({0: task}, prefixes([task]), order, settings, Uncommitted(settings.storage, "s1-0"))
    [result] = InProcess(cast("SparkSession", None), work, Cores(tasks=2)).run(threading.Event()).values()
    assert isinstance(result, MergeResult)
    assert (result.rows_out, result.rows_deleted) == (2 * VICTIM_ROWS - 2, 2)
    assert result.named == {deletes[0].path: frozenset(paths)}
    assert result.named == write_clustered(task, order, settings, FileNames("k", 0, 0)).named


class LateEvent(threading.Event):
    """Is set when it has been asked so many times."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self.answers = answers

    def is_set(self) -> bool:
        self.answers -= 1
        return self.answers < 0


def test_cancelled_run_keeps_small_files(limited: WriteSettings) -> None:
    """Whoever is to be quick does not write them again."""
    tasks = [group(limited, [rows(0)], 8)]
    asked: list[Mapping[int, int]] = []
    [result] = job_without_spark(limited, tasks, asked, None).run(LateEvent(1)).values()
    assert isinstance(result, MergeResult)
    assert (asked, len(result.files)) == ([{0: 8}], 4)
    assert written_below(limited, tasks) == {local(file.path) for file in result.files}


def test_cancelled_second_writing_is_no_error(limited: WriteSettings) -> None:
    """A job that was stopped tells nothing of its groups, and leaves nothing of what they had."""
    tasks = [group(limited, [rows(0)], 8)]
    asked: list[Mapping[int, int]] = []
    job = job_without_spark(limited, tasks, asked, RewriteFailed("Cannot cluster files: cancelled"))
    assert job.run(LateEvent(2)) == {}
    assert asked == [{0: 8}, {0: 1}]
    assert written_below(limited, tasks) == set()


@pytest.mark.parametrize("way", [pytest.param("one task each", marks=pytest.mark.slow), "all tasks"])
def test_cancelled_run_leaves_nothing(spark: SparkSession, settings: WriteSettings, way: str) -> None:
    """Whenever it is cancelled between two steps: a group is a result with all of its files, or None without any."""
    settings = divide_all(settings, way)
    tasks = groups(settings, 1, outputs=2)
    found = []
    for answers in range(6):
        [result] = run(
            spark, tasks, RowOrder.of(by(1), settings), settings, limits=limits_of(way), cancelled=LateEvent(answers)
        )
        files = result.files if result is not None else ()
        assert written_below(settings, tasks) == {local(file.path) for file in files}
        found.append(len(files))
        Uncommitted(settings.storage, "s1-0").delete(file.path for file in files)
    assert found == sorted(found)
    assert {found[0], found[-1]} == {0, 2}
    assert written_below(settings, tasks) == set()


@pytest.mark.slow
def test_job_that_fails_does_not_lose_finished_groups(
    spark: SparkSession, settings: WriteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of a job that fails as a whole are its error, others are what they were, nothing is left of the job."""
    tasks = groups(settings, 2, inputs=2, outputs=1)
    tasks[1] = replace(tasks[1], inputs=tasks[1].inputs * 2)
    limits = WorkLimits(driver_merge_bytes=tasks[0].size_bytes)
    monkeypatch.setattr(RewriteGroups, "__reduce__", lambda self: (_fail_to_load, ()), raising=False)
    done, failed = run(spark, tasks, RowOrder.of(by(1), settings), settings, limits=limits)
    assert "Cannot cluster files" in failed.why
    assert written_below(settings, tasks) == {local(file.path) for file in done.files}


def _fail_to_load() -> object:
    raise ValueError("cannot be loaded")


def test_error_that_is_raised_removes_all_files(
    spark: SparkSession, settings: WriteSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody hears of the groups that were done: the owner knows of their files."""
    tasks = groups(settings, 2, inputs=2, outputs=1)
    limits = WorkLimits(driver_merge_bytes=min(task.size_bytes for task in tasks))
    owner = Uncommitted(settings.storage, "s1-0")
    monkeypatch.setattr(jobs, "balanced", _fail_to_load)
    with pytest.raises(TypeError):
        run(spark, tasks, RowOrder.of(by(1), settings), settings, limits=limits, owner=owner)
    assert written_below(settings, tasks)
    owner.abandon()
    assert written_below(settings, tasks) == set()


NESTED = pa.list_(pa.struct({"key": pa.string(), "m": pa.map_(pa.string(), pa.binary())}))
GIVEN = pa.schema(
    {
        "id": pa.int64(), "hour": pa.string(), "day": pa.date32(), "at": pa.timestamp("us"),
        "attz": pa.timestamp("us", "UTC"), "money": pa.decimal128(20, 3), "key": pa.string(), "fixed": pa.binary(),
        "bytes": pa.binary(), "double": pa.float64(), "nested": NESTED,
    }
)  # fmt: skip
"""ALL_TYPES as Spark gives them."""


def every_type(count: int) -> pa.Table:
    """Rows of GIVEN, in every third one hardly anything but nulls."""

    def row(i: int) -> dict[str, Any]:
        key = str(UUID(int=i * 2**96 % 2**128))
        at = datetime(1900 + i % 200, 1, 1, microsecond=i)
        return {
            "id": i * 7919 % count, "hour": f"h{i % 5}", "day": date(1 + i % 9000, 2, 3), "at": at,
            "attz": at.replace(tzinfo=timezone.utc), "money": Decimal(i * 10**12).scaleb(-3), "key": key,
            "fixed": bytes([i % 256, 0]), "bytes": b"\0" * (i % 4), "double": math.nan if i % 7 == 0 else -float(i),
            "nested": [{"key": key, "m": [("k", bytes([i % 256]))]}] * (i % 3),
        }  # fmt: skip

    nothing = dict.fromkeys(GIVEN.names)
    nested: list[dict[str, Any]] = [{"key": None, "m": []}]
    some = [nothing | {"id": i, "bytes": b"", "nested": nested if i % 2 else None} for i in range(count)]
    drawn = [row(i) if i % 3 else some[i] for i in range(count)]
    return pa.Table.from_pylist(drawn, schema=GIVEN)


@pytest.mark.parametrize(
    "strategy", [kind if kind == ZORDER else pytest.param(kind, marks=pytest.mark.slow) for kind in STRATEGIES]
)
def test_rows_of_all_types_go_through_the_shuffle(spark: SparkSession, tmp_path: Path, strategy: str) -> None:
    """Values of every type, nested ones and nulls come out as they went in, wherever NaN is."""
    settings = divide_all(settings_of(tmp_path, ALL_TYPES, target=10_000))
    whole = every_type(1_500)
    task = group(settings, [whole.slice(start, 500) for start in range(0, 1_500, 500)], 4)
    order = RowOrder.of(by(10, 2, 7, strategy=strategy), settings)
    [outcome] = run(spark, [task], order, settings)
    assert len(outcome.files) > 1
    found = pa.concat_tables([pq.read_table(local(file.path)) for file in outcome.files])
    assert repr(rows_of(found)) == repr(content([task], settings))
    assert sum(sum(file.nan_value_counts.values()) for file in outcome.files) == sum(
        1 for i in range(1_500) if i % 3 and i % 7 == 0
    )


def scattered(task: MergeTask, division: Division, order: RowOrder, settings: WriteSettings) -> list[pa.RecordBatch]:
    """What a task sends that reads all input files."""
    firsts = accumulate((file.rows for file in task.inputs), initial=0)
    division = replace(division, numbers={f.path: first for f, first in zip(task.inputs, firsts, strict=False)})
    work = Scatter((((0, task),),), {0: division}, order, settings, 1)
    return [batch.drop_columns([batch.schema.names[0]]) for batch in work([pa.record_batch({"id": [0]})])]


def _without_users(some: pa.Table) -> pa.Table:
    return some.set_column(0, some.schema.field(0), pa.chunked_array([pa.nulls(some.num_rows, some.schema.types[0])]))


def _at_one_time(some: pa.Table) -> pa.Table:
    return some.set_column(1, some.schema.field(1), pa.chunked_array([[2**39] * some.num_rows]))


def sent_with(change: Callable[[pa.Table], pa.Table], sent: pa.RecordBatch) -> pa.RecordBatch:
    """Change the rows that a task sends; counts and failures stay."""
    *others, blobs = sent.columns
    if not len(blobs[0].as_buffer()):
        return sent
    changed, stream = change(scatter.rows_of(blobs[0].as_buffer())), pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, changed.schema) as writer:
        writer.write_table(changed)
    return pa.record_batch([*others, pa.array([stream.getvalue().to_pybytes()])], names=sent.schema.names)


def through_tasks(
    task: MergeTask, settings: WriteSettings, change: Callable[[pa.Table], pa.Table] | None = None
) -> tuple[Any, list[NewDataFile]]:
    """Return the outcome of a group whose rows cross the shuffle, changed on their way, and all files written."""
    order = RowOrder.of(by(1), settings)
    ranking = order.fit(order.keys(rows(0)))
    division, outputs = divide(ranking, order.keys(rows(0)), 8.0, 4, 2)
    destination = Destination(ranking, "k1o-1", task.partition, 7)
    work = Gather(tuple(Assignment(0, n) for n in outputs), {0: destination}, order, settings)
    sent = scattered(task, division, order, settings)
    answers: list[Any] = list(work(sent if change is None else [sent_with(change, batch) for batch in sent]))
    counts = [some for _, _, counts, _ in answers for some in counts]
    owned = ClusterWork({0: task}, {}, order, settings, Uncommitted(settings.storage, "s1-0"))
    found = checked([made for _, made, *_ in answers], counts, task, owned)
    return found, [file for _, made, *_ in answers for file in made]


@pytest.fixture
def bounded(settings: WriteSettings) -> WriteSettings:
    """Footers are read of the smallest files, too."""
    return with_limits(settings, whole_file_bytes=500, compared_chunk_bytes=0)


@pytest.mark.parametrize(
    ("mutate", "why"),
    [
        (None, ""),
        (_without_users, "Cannot rewrite rows: column 'user' has"),
        (_at_one_time, "more: column 'at' has another minimum or maximum"),
    ],
)
def test_rows_that_change_between_tasks_are_noticed(
    bounded: WriteSettings, mutate: Callable[[pa.Table], pa.Table] | None, why: str
) -> None:
    """What all tasks have read is held against what all have written, before anything can be committed."""
    task = group(bounded, [rows(v) for v in range(3)], 4)
    found, written = through_tasks(task, bounded, mutate)
    assert [Path(local(file.path)).exists() for file in written] == [mutate is None] * len(written)
    if mutate is None:
        assert sum(file.rows for file in found) == task.rows
    else:
        assert why in found.why


def test_a_wrong_footer_fails_a_group_that_crosses_the_shuffle(bounded: WriteSettings) -> None:
    """Its values alone are not those that its footer says."""
    task = group(bounded, [rows(0)], 4)
    size_bytes = with_other_bounds(Path(local(task.inputs[0].path)), 1)
    task = replace(task, inputs=(replace(task.inputs[0], size_bytes=size_bytes),))
    found, written = through_tasks(task, bounded)
    assert not any(Path(local(file.path)).exists() for file in written)
    why = f"Cannot rewrite {task.inputs[0].path}: column 'at' has another minimum or maximum"
    assert found.why.startswith(why)


@pytest.mark.internal_error
def test_a_bug_in_a_task_that_gathers_fails_its_rows_alone(
    settings: WriteSettings, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The task answers with a failure that says what it is, and goes on with its other assignments."""
    task = group(settings, [rows(v) for v in range(3)], 4)
    order = RowOrder.of(by(1), settings)
    ranking = order.fit(order.keys(rows(0)))
    division, outputs = divide(ranking, order.keys(rows(0)), 8.0, 4, 2)
    blobs = scattered(task, division, order, settings)
    destination = Destination(ranking, "k1o-1", task.partition, 7)
    right, closed = gather.SortedFiles.close, list[int]()

    def close(self: gather.SortedFiles) -> Any:
        closed.append(1)
        if len(closed) == 1:
            raise IndexError("list index out of range")
        return right(self)

    monkeypatch.setattr(gather.SortedFiles, "close", close)
    work = Gather(tuple(Assignment(0, n) for n in outputs), {0: destination}, order, settings)
    (_, failed, *_), (_, made, *_) = work(blobs)
    assert isinstance(failed, MergeFailure)
    assert "internal error IndexError: list index out of range, report this" in failed.why
    assert made
    assert "Internal error of icesize in an attempt to cluster rows of a shuffle, report this" in caplog.text


@pytest.mark.parametrize("assignments", [1, 4])
def test_heavy_equal_keys(settings: WriteSettings, assignments: int) -> None:
    """A shuffle partition many times larger than planned is divided, by one task or by several that get it in turn."""
    settings = with_limits(settings, sorted_bytes=10_000, scattered_bytes=50_000, blob_bytes=5_000)
    heavy = [rows(v).set_column(0, "user", pa.repeat(pa.scalar(2_500), VICTIM_ROWS)) for v in range(6)]
    task = group(settings, [rows(100), *heavy], 8)
    order = replace(RowOrder.of(by(1), settings), sort_order_id=9)
    sample = order.keys(pa.concat_tables([rows(100), *heavy]))
    ranking = order.fit(sample)
    division, outputs = divide(ranking, sample, 8.0, 8, assignments)
    assert max(map(len, division.assignments)) == assignments
    destination = Destination(ranking, "k1o-1", task.partition, 7)
    work = Gather(tuple(Assignment(0, n) for n in outputs), {0: destination}, order, settings)
    answers: Iterable[Any] = work(scattered(task, division, order, settings))
    files = [file for _, made, *_ in answers for file in made]
    found = pa.concat_tables([pq.read_table(local(file.path)) for file in files])
    assert repr(rows_of(found)) == repr(content([task], settings))
    for file in files:
        users = pq.read_table(local(file.path))["user"]
        at = users.to_pylist()
        assert at == sorted(at, key=lambda user: -1 if user is None else user)
        assert file.sort_order_id == 9


def test_scattering_again_sends_rows_where_they_went(settings: WriteSettings) -> None:
    """A stage that is computed again is the same stage, to the byte."""
    task = group(settings, [rows(v) for v in range(3)], 4)
    order = RowOrder.of(by(1, 2), settings)
    sample = order.keys(rows(0))
    division, _ = divide(order.fit(sample), sample, 8.0, 4, 4)
    first, second = (scattered(task, division, order, settings) for _ in range(2))
    assert len(first) == len(division.assignments) + 1  # and what was counted
    assert all(one.equals(other) for one, other in zip(first, second, strict=True))


@given(
    values=st.lists(st.integers(0, 30) | st.none(), min_size=1, max_size=200),
    outputs=st.integers(1, 20),
    slots=st.integers(1, 8),
    parts=st.floats(0, 40),
)
def test_assignments_follow_each_other(values: list[int | None], outputs: int, slots: int, parts: float) -> None:
    """Shuffle partitions go to assignments in order: one for each slot, but two outputs for each; all rows have one."""
    order = RowOrder(SORT, (("v", ()),))
    keys = pa.table({"key 0": pa.array(values, pa.int64())})
    division, files = divide(order.fit(keys), keys, parts, outputs, slots, 100)
    assert len(files) == max(1, min(outputs // 2, slots))
    assert min(files) >= 1
    assert len(division.assignments) >= parts
    starts = [numbers.start for numbers in division.assignments]
    assert starts == sorted(starts)
    assert all(100 <= numbers.start < numbers.stop <= 100 + len(files) for numbers in division.assignments)
    assert int(division.cuts.part_of(keys).max()) < len(division.assignments)


def test_assignments_of_even_keys_are_even() -> None:
    """Every assignment has its share of the files, however many shuffle partitions it has."""
    order = RowOrder(SORT, (("v", ()),))
    keys = pa.table({"key 0": pa.array(range(10_000))})
    for outputs, slots, wanted in ((7, 3, (2, 2, 3)), (8, 4, (2, 2, 2, 2)), (5, 8, (2, 3)), (3, 8, (3,))):
        division, files = divide(order.fit(keys), keys, 20.0, outputs, slots)
        assert files == wanted
        of_each = np.array([numbers.start for numbers in division.assignments])[division.cuts.part_of(keys)]
        assert np.bincount(of_each) / 10_000 == pytest.approx([n / outputs for n in wanted], abs=0.01)
