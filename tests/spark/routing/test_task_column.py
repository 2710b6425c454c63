"""Each row goes to the task that the table names for its key; Spark says where it went."""

from __future__ import annotations

import itertools
from collections import Counter

import pyarrow as pa
import pytest
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from icesize.spark.routing import task_column
from icesize.spark.routing.task_column import TASK, TaskAssignment, with_task
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
