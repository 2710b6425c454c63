"""Each row goes to the task that the table names for its key; Spark says where it went."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections import Counter
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.spark.routing import task_column
from icesize.spark.routing.task_column import TASK, Ranges, TaskAssignment, with_task
from tests.support.spark_lake import conf

TASKS = 7


def hashed(*names: str) -> Column:
    """A hash of columns: of `k` a routing key, of `id` what spreads rows."""
    return F.xxhash64(*names)


def rows_of_keys(spark: SparkSession, rows: int, keys: int) -> DataFrame:
    """Rows with ids 0, 1, ..; key number k is id modulo the number of keys."""
    return spark.range(rows).withColumn("k", F.col("id") % keys)


def keys_of(spark: SparkSession, keys: int) -> dict[int, int]:
    """Number of a key -> the key, a hash as routing keys are."""
    return {row["k"]: row["key"] for row in spark.range(keys).toDF("k").select("k", hashed("k").alias("key")).collect()}


def tasks_of(df: DataFrame, table: TaskAssignment, key: Column | None = None) -> dict[int, int]:
    """id -> task, by the expression and by the join alike."""
    key = hashed("k") if key is None else key
    by_column = with_task(df, key, table, literal_keys=1_000_000).select("id", TASK)
    by_rows = with_task(df, key, table)
    assert by_rows.columns == [*df.columns, TASK]
    assert by_rows.schema[TASK].dataType.simpleString() == by_column.schema[TASK].dataType.simpleString() == "int"
    found, again = (
        {row["id"]: row[TASK] for row in each.select("id", TASK).collect()} for each in (by_column, by_rows)
    )
    assert found == again
    return found


def even(*tasks: int) -> task_column.TaskShares:
    """These tasks, with equal shares."""
    return tuple((task, 1 / len(tasks)) for task in tasks)


@pytest.mark.parametrize("ansi", ["true", "false"])
@pytest.mark.parametrize("keys", [3, task_column.LITERAL_KEYS + 1, 10_000])
def test_unsplit_keys_go_to_their_tasks(spark: SparkSession, keys: int, ansi: str) -> None:
    """Every row of every key of the table, by literal and by join; keys that are not in it go by their value."""
    numbers = keys_of(spark, keys)
    placed = {key: even(number * 3 % TASKS) for number, key in numbers.items() if number % 5}
    with conf(spark, spark__sql__ansi__enabled=ansi):
        found = tasks_of(rows_of_keys(spark, 2 * keys, keys), TaskAssignment(TASKS, placed, hashed("id")))
    assert len(found) == 2 * keys
    wanted = {i: i % keys * 3 % TASKS if i % keys % 5 else numbers[i % keys] % TASKS for i in range(2 * keys)}
    assert found == wanted


@pytest.mark.parametrize("ansi", ["true", "false"])
def test_shares_of_split_keys(spark: SparkSession, ansi: str) -> None:
    """Rows of a split key go to its tasks only, to each its share of them within 2 %; so do rows of unknown keys."""
    numbers = keys_of(spark, 4)
    placed = {numbers[0]: ((1, 0.7), (4, 0.2), (6, 0.1)), numbers[1]: even(2), numbers[2]: even(0, 3)}
    unknown = ((2, 0.25), (5, 0.75))
    with conf(spark, spark__sql__ansi__enabled=ansi):
        found = tasks_of(rows_of_keys(spark, 40_000, 4), TaskAssignment(TASKS, placed, hashed("id"), unknown))
    shares = {k: Counter(task for i, task in found.items() if i % 4 == k) for k in range(4)}
    wanted = [placed[numbers[0]], placed[numbers[1]], placed[numbers[2]], unknown]
    for k, choices in enumerate(wanted):
        assert {task: n / 10_000 for task, n in shares[k].items()} == pytest.approx(dict(choices), abs=0.02)


@pytest.mark.smoke
def test_a_task_is_a_function_of_the_row(spark: SparkSession) -> None:
    """The same tasks twice, and after the rows have been in other tasks and in another order."""
    numbers = keys_of(spark, 30)
    placed = {numbers[k]: even(k % TASKS, (k + 1) % TASKS) if k < 5 else even(k % TASKS) for k in range(20)}
    table = TaskAssignment(TASKS, placed, hashed("id"), even(1, 2, 3))
    df = rows_of_keys(spark, 3000, 30)
    first = tasks_of(df, table)
    assert tasks_of(df, table) == first
    assert tasks_of(df.repartition(5, "id").sortWithinPartitions(F.desc("id")), table) == first


def test_rows_that_cannot_be_spread(spark: SparkSession) -> None:
    """Without a hash of the row unknown keys go to the first of their tasks."""
    numbers = keys_of(spark, 3)
    placed = {numbers[0]: even(4), numbers[1]: even(3)}
    found = tasks_of(rows_of_keys(spark, 30, 3), TaskAssignment(TASKS, placed, None, even(6, 5)))
    assert found == {i: (4, 3, 6)[i % 3] for i in range(30)}


def test_an_empty_table(spark: SparkSession) -> None:
    """Nothing is known: keys go by their value, rows below zero too."""
    found = tasks_of(spark.range(-10, 10), TaskAssignment(TASKS), F.col("id"))
    assert found == {i: i % TASKS for i in range(-10, 10)}


def test_extreme_keys(spark: SparkSession) -> None:
    """The smallest and the largest long are keys like others."""
    keys = [-(2**63), 2**63 - 1, 0, -1]
    placed = {key: even(i) for i, key in enumerate(keys)}
    df = spark.createDataFrame(pa.table({"id": keys}))
    assert tasks_of(df, TaskAssignment(TASKS, placed), F.col("id")) == {key: i for i, key in enumerate(keys)}


def test_the_table_is_folded_into_the_plan(spark: SparkSession, capsys: pytest.CaptureFixture[str]) -> None:
    """No JSON is read per row, whether Spark compiles the stage or not; a long table is joined, not printed."""
    numbers = keys_of(spark, task_column.LITERAL_KEYS + 1)
    placed = {key: even(1) for key in itertools.islice(numbers.values(), task_column.LITERAL_KEYS)}
    for codegen in ("true", "false"):
        with conf(spark, spark__sql__codegen__wholeStage=codegen):
            table = TaskAssignment(TASKS, {**placed, numbers[0]: even(1, 2)}, hashed("id"), even(3, 4))
            with_task(rows_of_keys(spark, 10, 10), hashed("k"), table).explain(mode="simple")
            plan = capsys.readouterr().out
            assert str(numbers[5]) in plan
            assert "json" not in plan.lower()
    longer = TaskAssignment(TASKS, {key: even(1) for key in numbers.values()}, hashed("id"))
    with_task(rows_of_keys(spark, 10, 10), hashed("k"), longer).explain(mode="simple")
    plan = capsys.readouterr().out
    assert str(numbers[5]) not in plan
    assert "BroadcastHashJoin" in plan


SINCE = datetime(2026, 3, 1, 2, 30, 0, 1)
SORTED: dict[str, tuple[str, list[Any]]] = {
    "bigint": ("bigint", [-5, 0, 3, 2**60]),
    "int": ("int", [-5, 0, 3, 2**31 - 1]),
    "double": ("double", [-1.5, 0.0, 1e-300, 2.5e10]),
    "text": ("string", ["", 'a"b\\', "日本", "🧊,;"]),
    "day": ("date", [date(1, 1, 2), date(1969, 12, 31), date(2026, 3, 1), date(9999, 12, 30)]),
    "decimal": ("decimal(9,2)", [Decimal("-14.20"), Decimal("0.00"), Decimal("0.05"), Decimal("9999999.99")]),
    "local": ("timestamp_ntz", [datetime(1, 1, 2), SINCE, SINCE + timedelta(hours=1), datetime(9999, 12, 30)]),
    "instant": (
        "timestamp",
        [
            t.replace(tzinfo=timezone.utc)
            for t in (
                datetime(1900, 1, 1),
                SINCE,
                SINCE + timedelta(seconds=1),
                datetime(2100, 1, 1),
            )
        ],
    ),
}


@pytest.mark.parametrize("name", SORTED)
@pytest.mark.parametrize("ansi", ["true", "false"])
def test_rows_go_to_the_range_of_their_value(spark: SparkSession, name: str, ansi: str) -> None:
    """Rows below a bound are in an earlier part than rows at it, for each type, whatever the session's zone."""
    kind, values = SORTED[name]
    table = pa.table({"id": range(4), "v": pa.array(values)})
    with conf(spark, spark__sql__ansi__enabled=ansi, spark__sql__session__timeZone="America/New_York"):
        df = spark.createDataFrame(table).withColumn("v", F.col("v").cast(kind))
        ranges = Ranges(F.col("v"), {0: values[1:], 9: values[:1]})
        found = tasks_of(
            df, TaskAssignment(9, {0: even(8, 6, 4, 2), 9: even(1, 3)}, hashed("id"), None, ranges), F.lit(0)
        )
    assert found == {0: 8, 1: 6, 2: 4, 3: 2}


@pytest.mark.parametrize(("nulls_first", "null_task"), [(True, 0), (False, 5)])
def test_rows_of_a_repeated_bound_are_spread(spark: SparkSession, nulls_first: bool, null_task: int) -> None:
    """A value that fills several parts is divided among them by their shares; nulls go where they are sorted."""
    choices = ((0, 0.1), (1, 0.2), (2, 0.2), (3, 0.2), (4, 0.1), (5, 0.2))
    ranges = Ranges(F.col("v"), {0: [10, 20, 20, 20, 30]}, nulls_first)
    df = spark.range(24_000).withColumn(
        "v", F.element_at(F.array(*map(F.lit, (9, 10, 20, 20, 20, 29, 30, None))), (F.col("id") % 8 + 1).cast("int"))
    )
    found = tasks_of(df, TaskAssignment(6, {0: choices}, hashed("id"), None, ranges), F.lit(0))
    by_place = {place: Counter(task for i, task in found.items() if i % 8 == place) for place in range(8)}
    alone = {0: 0, 1: 1, 5: 4, 6: 5, 7: null_task}
    assert {place: dict(by_place[place]) for place in alone} == {place: {task: 3000} for place, task in alone.items()}
    equal = by_place[2] + by_place[3] + by_place[4]
    assert {t: n / 9000 for t, n in equal.items()} == pytest.approx({2: 0.4, 3: 0.4, 4: 0.2}, abs=0.03)


def test_ranges_of_several_keys(spark: SparkSession) -> None:
    """Each key has its own bounds, as many as it has parts; keys without bounds are divided by hash as before."""
    bounds = {k: [step * (k + 1) for step in range(1, parts)] for k, parts in enumerate((2, 9, 40))}
    placed = {k: even(*range(k, len(b) + k + 1)) for k, b in bounds.items()} | {3: even(1, 5), 4: even(2)}
    df = rows_of_keys(spark, 1000, 5).withColumn("v", F.col("id") / 5)
    table = TaskAssignment(50, placed, hashed("id"), None, Ranges(F.col("v"), bounds))
    found = tasks_of(df, table, F.col("k"))
    for i, task in found.items():
        if i % 5 < 3:
            assert task == i % 5 + bisect_right(bounds[i % 5], i / 5)
    assert {task for i, task in found.items() if i % 5 == 3} == {1, 5}
    assert {task for i, task in found.items() if i % 5 == 4} == {2}
