"""Commands on tables whose metadata other writers made, with Spark as the second reader."""

from __future__ import annotations

from random import Random
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import icesize
from icesize.planning.files import PartitionKey
from integration.foreign_metadata.commands import prepare, run
from integration.foreign_metadata.tables import Made
from integration.tools import spark_rows
from tests.support.delete_files import delete_equal
from tests.support.foreign_metadata import Shape, as_written_by

pytestmark = pytest.mark.engine


def test_spark_finds_the_rows_of_swapped_partition_values(
    spark: SparkSession, lake: SqlCatalog, namespace: str
) -> None:
    """Iceberg's own library finds the same rows by their partitions before and after a merge."""
    name = f"{namespace}.t"
    spark.sql(f"CREATE TABLE lake.{name} (id bigint, p string, q string) PARTITIONED BY (p, q)")
    for number in range(3):
        lake.load_table(name).append(
            pa.table({"id": pa.array([number, 10], pa.int64()), "p": ["a", "b"], "q": ["b", "a"]})
        )
    delete_equal(lake.load_table(name), ["id"], [[0]], PartitionKey(0, ("a", "b")))
    swapped = Shape(partition_order=lambda fields: [*reversed(fields)])
    as_written_by(lake, swapped, name=name)
    spark.catalog.refreshTable(f"lake.{name}")
    query = f"SELECT id FROM lake.{name} WHERE p = 'a' AND q = 'b'"
    assert spark_rows(spark, query) == [(1,), (2,)]
    sized = icesize.open(None, f"lake.{name}", catalog=lake)
    report = sized.compact()
    assert (report.files_removed, report.files_added) == (6, 2)
    spark.catalog.refreshTable(f"lake.{name}")
    assert spark_rows(spark, query) == [(1,), (2,)]
    assert spark_rows(spark, f"SELECT DISTINCT partition.p, partition.q FROM lake.{name}.files") == [
        ("a", "b"),
        ("b", "a"),
    ]
    assert sized.verify().findings == ()


@pytest.mark.parametrize("seed", range(1000, 1010))
def test_spark_reads_what_it_has_read_before(spark: SparkSession, lake: SqlCatalog, namespace: str, seed: int) -> None:
    """After all commands, Iceberg's library finds the rows that it found in the metadata of the other writer."""
    name, rng = f"{namespace}.t", Random(seed)
    made, writer = prepare(lake, name, rng)
    queries = [f"SELECT id, kind, number FROM lake.{name}", f"SELECT id FROM lake.{name} WHERE {_condition(made)}"]
    before = _rows(spark, queries)
    assert run(lake, name, made, rng) is None
    if isinstance(before, str):
        pytest.skip(f"Spark does not read the metadata in the shape of {writer}: {before}")
    assert before == _rows(spark, queries)
    assert before[0] == sorted((row[:3] for row in made.rows), key=repr)


def _condition(made: Made) -> str:
    """A filter by columns that may be partitioned by, with the values of a row."""
    row = made.rows[0]
    kind = "kind IS NULL" if row[1] is None else f"kind = '{row[1]}'"
    number = "number IS NULL" if row[2] is None else f"number = {row[2]}"
    return f"{kind} AND {number} AND day = DATE '{row[3]}'"


def _rows(spark: SparkSession, queries: list[str]) -> list[list[tuple[Any, ...]]] | str:
    """The rows of the queries, or the reason why Spark cannot read the metadata."""
    try:
        return [spark_rows(spark, query) for query in queries]
    except PySparkException as error:
        return str(error)
