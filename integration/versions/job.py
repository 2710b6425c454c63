"""One program on whatever PySpark is installed: `python -m integration.versions.job FOLDER [JAR ...]`.

A stream through a sink, an append, compaction and clustering, on a table of a SQLite catalog in FOLDER. With Iceberg's
jars Spark makes the table and reads it at the end, too. What came of each step is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark
from pyspark.sql import DataFrame, SparkSession

import icesize
from icesize.sized_table import SizedTable
from integration.servers import FRUGAL, catalog_settings
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import SCHEMA, Lake, events, lake_catalog, rows_of, write_json

IN_HAND = 4
"""Files of the stream; one more is appended by hand."""


@dataclass(frozen=True)
class Program:
    """The steps, each raising what went wrong."""

    spark: SparkSession
    lake: Lake
    table: SizedTable
    by_iceberg: bool

    def sink(self) -> None:
        """One file per batch, through a query."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{self.lake.folder}/in")
        writer = source.writeStream.foreachBatch(self.table.sink("s", statistics="exact"))
        writer = writer.option("checkpointLocation", f"{self.lake.folder}/checkpoint")
        writer.trigger(availableNow=True).start().awaitTermination()
        assert max(self.lake.files_per_partition().values()) <= 3, "more small files than a partition may hold"

    def append(self) -> None:
        """Parquet files, which are written in the driver."""
        self.table.append(self._more())

    def compact(self) -> None:
        """All small files."""
        self.table.compact()
        assert set(self.lake.files_per_partition().values()) == {1}, "small files are left"

    def cluster(self) -> None:
        """By a column that files overlap in."""
        self.table.append(self._more())
        self.table.cluster(by=["id"])

    def rows(self) -> None:
        """PyIceberg's, and Spark's where it has Iceberg."""
        ids = [*range(400 * IN_HAND), *2 * [*range(9000, 9400)]]
        expected = rows_of(events(ids, hours=3))
        assert self.lake.rows() == expected, "rows are not exact"
        if self.by_iceberg:
            found = [tuple(row) for row in self.spark.table("lake.db.events").collect()]
            assert sorted(found, key=repr) == expected, "Spark reads other rows"

    def _more(self) -> DataFrame:
        pq.write_table(events(range(9000, 9400), hours=3), f"{self.lake.folder}/more.parquet")
        return self.spark.read.parquet(f"{self.lake.folder}/more.parquet")


def main(folder: Path, jars: list[str]) -> None:
    """Runs each step although another has failed."""
    catalog = lake_catalog(folder)
    catalog.create_namespace("db")
    lake = Lake(catalog, folder)
    lake.create()
    for number in range(IN_HAND):
        write_json(folder / "in", number, events(range(number * 400, number * 400 + 400), hours=3))
    iceberg = catalog_settings("http://127.0.0.1:1", folder) | {"spark.jars": ",".join(jars)} if jars else {}
    spark = session("local[2]", **FRUGAL, **iceberg)
    table = icesize.open(
        spark, "lake.db.events" if jars else "db.events", catalog=None if jars else catalog, policy=POLICY
    )
    program = Program(spark, lake, table, bool(jars))
    steps: list[Callable[[], None]] = [program.sink, program.append, program.compact, program.cluster, program.rows]
    told = {"python": sys.version.split()[0], "pyspark": pyspark.__version__, "pyarrow": pa.__version__}
    told["iceberg"] = "1.11" if jars else "none"
    print(json.dumps(told | {step.__name__: _came_to(step) for step in steps}))
    spark.stop()


def _came_to(step: Callable[[], None]) -> str:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return "ok"


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
