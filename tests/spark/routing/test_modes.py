"""Statistics modes of the sink: how often a batch is read, how even writers are, and what is expected of a batch."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyspark import Accumulator
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.parquet.files.names import writer_of
from icesize.report import Report
from icesize.spark.engine.merge_job import BeforeJob, MergeRun
from icesize.spark.routing import statistics
from icesize.spark.stream import process_state
from icesize.spark.stream.options import SinkOptions
from icesize.spark.stream.sink import Sink
from tests.support import late_events
from tests.support.routing import file_floor
from tests.support.spark_lake import EVENTS, Lake, Make, counted, events, feed, rows_of, run, uncounted

TASKS = 4
"""Writers of these tests, whatever the machine has."""

FIRST_HOUR = 24
"""Hours that the generated stream has before its first batch: late rows go to that many and more."""


def hourly(number: int, rows: int = 8_000) -> pa.Table:
    """Batch `number` of the benchmark's stream: 60 % of its rows are of the newest hour, which moves by one per batch,
    the others of older ones, ever fewer."""
    made = late_events.batch(FIRST_HOUR + number, rows, late_events.HOURS)
    return made.select(["id", "hour", "payload"]).rename_columns(["id", "hour", "text"])


def uneven(number: int) -> pa.Table:
    """A batch of 3,600 rows whose eight partitions keep their shares, which differ by up to eight times."""
    ids = range(number * 3_600, number * 3_600 + 3_600)
    hours = [hour for hour in range(8) for _ in range(100 * (hour + 1))]
    return events(ids).set_column(1, "hour", pa.array([f"h{hour}" for hour in hours]))


def split_sink(spark: SparkSession, lake: Lake, mode: str, merge: str = "inline", **policy: object) -> Sink:
    """A sink of `TASKS` writers that may split a partition into three; closing a file costs in the measure of these
    tiny ones."""
    table = lake.open(spark, **{"max_small_files": 6, **policy})
    return table.sink("s", statistics=mode, write_tasks=TASKS, merge=merge)


def counting(seen: Accumulator[int]) -> Callable[[object], object]:
    """The identity; `seen` tells how often it was called."""

    def count(value: object) -> object:
        seen.add(1)
        return value

    return count


def watched(spark: SparkSession, rows: pa.Table) -> tuple[DataFrame, Accumulator[int]]:
    """A batch that is costly to compute, and the rows that were computed so far."""
    seen = spark.sparkContext.accumulator(0)
    local = spark.createDataFrame(rows)
    return spark.createDataFrame(local.rdd.map(counting(seen)), local.schema), seen


def new_rows(lake: Lake, report: Report) -> list[Any]:
    """Data files of the snapshot that added the rows of a batch."""
    table = lake.table()
    before = table.metadata.snapshot_by_id(report.snapshot_ids[0]).parent_snapshot_id
    paths = {task.file.file_path for task in table.scan(snapshot_id=before).plan_files()} if before else set()
    return [
        task.file
        for task in table.scan(snapshot_id=report.snapshot_ids[0]).plan_files()
        if task.file.file_path not in paths
    ]


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """The batches that were counted before they were written."""
    found: list[DataFrame] = []
    count_rows = statistics.count_rows

    def spy(df: DataFrame, settings: Any) -> Any:
        found.append(df)
        return count_rows(df, settings)

    monkeypatch.setattr(statistics, "count_rows", spy)
    return found


@pytest.mark.parametrize(
    ("mode", "cached", "times"),
    [("auto", False, 1), ("recent", False, 1), ("exact", False, 2), ("auto", True, 1), ("exact", True, 1)],
)
def test_times_that_a_batch_is_computed(
    spark: SparkSession, lake: Lake, mode: str, cached: bool, times: int, counts: list[DataFrame]
) -> None:
    """A costly batch is computed once, and once more only to be counted where that was asked for and nobody kept it."""
    lake.create()
    sink = lake.open(spark, bytes_per_row=30).sink("s", statistics=mode)
    for number in range(2):
        df, seen = watched(spark, events(range(number * 100, number * 100 + 100), hours=3))
        df = df.cache() if cached else df
        report = sink.run(df, number)
        df.unpersist()
        assert (report.rows, seen.value) == (100, 100 * times)
    assert len(counts) == (2 if mode == "exact" or cached else 0)
    assert lake.rows() == rows_of(events(range(200), hours=3))


def test_recent_counts_no_cheap_batch_either(
    by_spark: None, spark: SparkSession, lake: Lake, counts: list[DataFrame]
) -> None:
    """What `auto` would count is written without a look at it, from the first batch on."""
    lake.create()
    sink = lake.open(spark).sink("s", statistics="recent")
    reports = [sink.run(counted(spark, events(range(n * 90, n * 90 + 90), hours=3)), n) for n in range(3)]
    assert counts == []
    assert [r.bytes_predicted is None for r in reports] == [True, False, False]
    assert lake.rows() == rows_of(events(range(270), hours=3))


@pytest.mark.parametrize("mode", ["auto", "recent"])
def test_batch_of_a_query_is_computed_once(spark: SparkSession, lake: Lake, mode: str) -> None:
    """A streaming query over files computes each row once, also when earlier batches say what to expect."""
    lake.create()
    feed(lake, 0, 4)
    sink = lake.open(spark).sink("s", statistics=mode)
    seen = spark.sparkContext.accumulator(0)
    count = counting(seen)
    watched_text = F.udf(lambda text: count(text), "string")("text")
    run(spark, lake, lambda df, number: sink(df.withColumn("text", watched_text), number))  # type: ignore[arg-type]
    assert seen.value == 4 * 30
    assert lake.rows() == rows_of(events(range(120), hours=3))


@pytest.mark.slow
def test_recent_on_a_stream_whose_newest_hour_moves(spark: SparkSession, lake: Lake, counts: list[DataFrame]) -> None:
    """From the fourth batch on no writer has a quarter more than the mean, and again two batches after traffic jumped
    to other hours; bytes are foretold, small files stay bounded, nothing is counted."""
    lake.create()
    sink = split_sink(spark, lake, "recent")
    numbers = [*range(6), *range(60, 63)]
    reports = []
    for batch_id, number in enumerate(numbers):
        reports.append(sink.run(uncounted(spark, hourly(number)), batch_id))
        assert reports[-1].small_files_max <= 6
    skews = [report.writer_skew for report in reports]
    assert max(skews[3:6]) <= 1.25, skews
    assert skews[6] > 1.5, "the batch was to be one that is not as expected"
    assert skews[8] <= 1.25, skews
    errors = [abs((r.bytes_predicted or 0) / r.bytes_ingested - 1) for r in reports[3:]]
    assert median(errors) <= 0.1, errors
    assert counts == []
    assert lake.rows() == rows_of(pa.concat_tables(hourly(number) for number in numbers))


def test_exact_is_balanced_from_the_first_batch(spark: SparkSession, lake: Lake, counts: list[DataFrame]) -> None:
    """A counted batch has equal writers and hardly more files than any balanced routing needs, from the first on."""
    lake.create()
    sink = split_sink(spark, lake, "exact", merge="off")
    for number in range(3):
        report = sink.run(uncounted(spark, hourly(number)), number)
        weights: dict[object, int] = {}
        for file in new_rows(lake, report):
            weights[file.partition[0]] = weights.get(file.partition[0], 0) + file.file_size_in_bytes
        assert report.writer_skew is not None
        assert report.writer_skew <= 1.1
        assert report.files_added <= 1.05 * file_floor(weights, TASKS, 1_000_000)
        # a source that is not cheap is not read a third time for a sample
        assert (report.bytes_predicted is None) is (number == 0)
        assert number == 0 or report.bytes_predicted == pytest.approx(report.bytes_ingested, rel=0.1)
    assert len(counts) == 3
    assert lake.rows() == rows_of(pa.concat_tables(hourly(number) for number in range(3)))


def test_auto_counts_until_expecting_is_as_good(
    by_spark: None, spark: SparkSession, lake: Lake, counts: list[DataFrame]
) -> None:
    """Cheap batches are counted until a prediction would have been as good; one that was not brings counting back."""
    lake.create()
    sink = split_sink(spark, lake, "auto", merge="off")
    known = [uneven(number) for number in range(5)]
    elsewhere = [events(range(number * 3_600, number * 3_600 + 3_600)) for number in range(5, 7)]
    was_counted, skews = [], []
    for number, rows in enumerate([*known, *elsewhere]):
        before = len(counts)
        skews.append(sink.run(counted(spark, rows), number).writer_skew)
        was_counted.append(len(counts) > before)
    assert was_counted == [True, True, True, False, False, False, True]
    assert max(skews[:5]) <= 1.1, skews
    assert skews[5] > 1.5, "the batch was to be one that is not as expected"
    assert lake.rows() == rows_of(pa.concat_tables([*known, *elsewhere]))


def test_new_process_learns_from_the_table(spark: SparkSession, lake: Lake) -> None:
    """Where nothing is known partitions are placed by their hash; a new process takes the table's newest commits for
    what to expect, and is balanced from its first batch on."""
    lake.create()
    before = split_sink(spark, lake, "auto")
    first, *_ = [before.run(uncounted(spark, uneven(number)), number) for number in range(3)]
    assert first.writer_skew is not None
    assert first.writer_skew > 1.25, "placed by hash, these partitions were to be uneven"
    with lake.unremembered() as unknown:
        after = split_sink(spark, unknown, "auto").run(uncounted(spark, uneven(3)), 3)
    assert after.writer_skew is not None
    assert after.writer_skew <= 1.25
    assert after.bytes_predicted == pytest.approx(after.bytes_ingested, rel=0.1)
    assert lake.rows() == rows_of(pa.concat_tables([uneven(number) for number in range(4)]))


@pytest.mark.parametrize("in_hand", [True, False])
def test_bytes_of_the_first_batch(
    spark: SparkSession, lake: Lake, request: pytest.FixtureRequest, in_hand: bool
) -> None:
    """The size of a batch that is cheap to read is foretold for an empty table already, from a sample."""
    if not in_hand:
        request.getfixturevalue("by_spark")
    lake.create()
    report = lake.open(spark).sink("s").run(counted(spark, events(range(6_000), hours=3)), 0)
    assert report.bytes_predicted == pytest.approx(report.bytes_ingested, rel=0.25)


def test_pinned_bytes_per_row(spark: SparkSession, lake: Lake, make: Make) -> None:
    """Bytes per row of the policy are what is expected of each row, whatever files say."""
    lake.create()
    sink = lake.open(spark, bytes_per_row=50).sink("s")
    reports = [sink.run(make(spark, events(range(n * 300, n * 300 + 300), hours=3)), n) for n in range(3)]
    known = [report.bytes_predicted for report in reports if report.bytes_predicted is not None]
    assert known == [300 * 50] * len(known)
    assert len(known) == (2 if make is uncounted else 3)


def test_merges_that_were_expected_and_others(spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full partition that is expected to get rows is merged beside the write, one that got some unexpectedly after
    it; both hold at most k small files in the end."""
    begun: list[tuple[bool, list[object]]] = []

    start = MergeRun.start

    def spy(run: MergeRun, groups: Any, before_job: BeforeJob | None = None, *rest: Any) -> None:
        begun.append((before_job is not None, [group.partition.values[0] for group in groups.values()]))
        start(run, groups, before_job, *rest)

    monkeypatch.setattr(MergeRun, "start", spy)
    lake.create()
    sink = lake.open(spark).sink("s", statistics="recent")
    batches = [events(range(n * 20, n * 20 + 20)) for n in range(7)] + [events(range(140, 180), hours=2)]
    full = [events([1_001 + 2 * n], hours=2) for n in range(3)]
    begun_for = []
    for number, rows in enumerate(batches):
        report = sink.run(uncounted(spark, rows), number)
        assert report.small_files_max <= 3
        assert max(lake.files_per_partition().values()) <= 3
        begun_for.append({(beside, hour) for beside, found in begun for hour in found})
        begun.clear()
        # another writer fills a partition, once nobody looks at the table's past any more
        for each in full if number == 0 else ():
            lake.table().append(each.cast(EVENTS.as_arrow()))
    assert lake.files_per_partition()[("h1",)] <= 3
    assert set().union(*begun_for[:-1]) == {(True, "h0")}
    assert begun_for[-1] == {(True, "h0"), (False, "h1")}
    assert lake.rows() == rows_of(pa.concat_tables([*batches, *full]))


def test_batch_far_larger_than_expected(spark: SparkSession, lake: Lake) -> None:
    """A batch of thirty times the rows that were expected: the report says so, and files still end at the target."""
    target = 60_000
    lake.create()
    sink = lake.open(spark, target_file_size_bytes=target).sink("s", statistics="recent")
    rows = [events(range(2_000)), events(range(2_000, 4_000)), events(range(4_000, 64_000))]
    reports = [sink.run(uncounted(spark, each), number) for number, each in enumerate(rows)]
    assert [bool(r.notes) for r in reports] == [False, False, True]
    [note] = reports[2].notes
    assert "x its predicted size: files stop at the target size" in note
    assert reports[2].bytes_ingested > 4 * target
    assert max(file.file_size_in_bytes for file in lake.files()) <= 1.7 * target
    assert lake.rows() == rows_of(pa.concat_tables(rows))


@pytest.mark.parametrize(("mode", "source"), [("auto", counted), ("recent", uncounted), ("exact", uncounted)])
def test_write_tasks(spark: SparkSession, lake: Lake, mode: str, source: Make) -> None:
    """So many tasks write each batch, also the first and one that the driver could write, counted or not."""
    lake.create()
    sink = lake.open(spark).sink("s", statistics=mode, write_tasks=3)
    for number in range(2):
        rows = events(range(number * 240, number * 240 + 240), hours=12)
        report = sink.run(source(spark, rows), number)
        assert {writer_of(file.file_path) for file in new_rows(lake, report)} == {0, 1, 2}
        assert report.files_added == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            (
                {"write_tasks": value},
                f"'write_tasks' ({value!r}) must be a number of tasks >= 1, or None: then it follows from the bytes of "
                "each batch and the cores",
            )
            for value in (0, -1, True, "x")
        ),
        ({"statistics": "never"}, "'statistics' ('never') must be one of 'auto', 'recent', 'exact'"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str) -> None:
    """What is no number of tasks, or no way to know a batch, is refused when the sink is made."""
    with pytest.raises(ValueError) as error:
        Sink(process_state.TableSource("lake.db.events"), "s", SinkOptions(**options))
    assert str(error.value) == message


def create_sorted(lake: Lake) -> int:
    """Table `db.events`, partitioned by hour and sorted by id, largest first; the id of its sort order."""
    hour = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "hour"))
    by_id = SortField(1, IdentityTransform(), SortDirection.DESC, NullOrder.NULLS_LAST)
    table = lake.catalog.create_table("db.events", EVENTS, partition_spec=hour, sort_order=SortOrder(by_id))
    return table.sort_order().order_id


def ids_of(file: Any) -> pa.ChunkedArray:
    """The ids in a file, as they lie there."""
    return pq.read_table(file.file_path.removeprefix("file://"), columns=["id"], partitioning=None)["id"]


@pytest.mark.smoke
def test_sort_order(spark: SparkSession, lake: Lake, make: Make) -> None:
    """Files of a sorted table are sorted and say so, however they are written, merged ones too."""
    order = create_sorted(lake)
    sink = lake.open(spark).sink("s")
    for number in range(4):
        ids = [i * 7919 % 400 for i in range(number * 100, number * 100 + 100)]
        sink(make(spark, events(ids, hours=2)), number)
    assert "replace" in lake.operations()
    for file in lake.files():
        ids = ids_of(file)
        assert pc.all(pc.greater_equal(ids[:-1], ids[1:])).as_py()
        assert file.sort_order_id == order
    assert lake.rows() == rows_of(events(range(400), hours=2))


def test_parts_of_a_sorted_partition_are_sorted(spark: SparkSession, lake: Lake) -> None:
    """A partition that is split over writers is divided by its rows' hash; each file is sorted and says so."""
    order = create_sorted(lake)
    rows = events([i * 7919 % 4_000 for i in range(4_000)] + list(range(0, 4_000, 40)))
    report = split_sink(spark, lake, "exact").run(uncounted(spark, rows), 0)
    assert len(lake.files()) == report.files_added == 3
    for file in lake.files():
        ids = ids_of(file)
        assert pc.all(pc.greater_equal(ids[:-1], ids[1:])).as_py()
        assert file.sort_order_id == order
    assert report.writer_skew == pytest.approx(4 / 3, rel=0.05)
    assert lake.rows() == rows_of(rows)
