"""Streams into a table of the REST catalog, and stream readers of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

K = 3


class Reader:
    """A stream reader, by default with Iceberg's options: what it has seen, as often as it has seen it."""

    def __init__(
        self, spark: SparkSession, table: str, checkpoint: Path, options: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.seen: Counter[int] = Counter()
        stream = spark.readStream.format("iceberg").options(**options).load(table)
        self._query = stream.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint)).start()

    def _take(self, df: DataFrame, batch_id: int) -> None:
        self.seen.update(row["id"] for row in df.select("id").collect())

    def catch_up(self) -> None:
        """Wait for all that is committed; raises what the query failed with."""
        self._query.processAllAvailable()

    def stop(self) -> None:
        """End the query; raises what it failed with before.

        `stop` interrupts its thread. If that waits for a connection to the catalog, the query ends with a
        CancellationException, which Spark counts as a failure.
        """
        error = self._query.exception()
        self._query.stop()
        if error is not None:
            raise error


@contextmanager
def reading(
    spark: SparkSession, table: str, checkpoint: Path, options: Mapping[str, str] = MappingProxyType({})
) -> Iterator[Reader]:
    reader = Reader(spark, table, checkpoint, options)
    try:
        yield reader
    finally:
        reader.stop()


def rows_of(spark: SparkSession, first: int, count: int = 40) -> DataFrame:
    """Rows with ids from `first` on, in four partitions."""
    return spark.range(first, first + count).selectExpr("id", "concat('h', id % 4) AS hour", "id * 1.5D AS v")


def created(spark: SparkSession, table: str, version: int = 2) -> str:
    spark.sql(
        f"CREATE TABLE {table} (id bigint, hour string, v double) USING iceberg PARTITIONED BY (hour) "
        f"TBLPROPERTIES ('format-version'='{version}')"
    )
    return table


def event_files(spark: SparkSession, folder: Path, batches: int, rows: int = 60) -> Callable[[], DataFrame]:
    """A stream over JSON files of events, one file per batch, in the order of their names."""
    folder.mkdir()
    for batch in range(batches):
        first = batch * rows
        lines = (f'{{"id": {i}, "hour": "h{i % 3 + batch // 4}", "v": {i / 4}}}' for i in range(first, first + rows))
        path = folder / f"{batch:03}.json"
        path.write_text("\n".join(lines))
        # the file source orders by modification time, whose clock may stand still between two files
        os.utime(path, (1_700_000_000 + batch, 1_700_000_000 + batch))

    def stream() -> DataFrame:
        reader = spark.readStream.schema("id bigint, hour string, v double").option("maxFilesPerTrigger", 1)
        return reader.json(str(folder))

    return stream


def run(stream: DataFrame, sink: Callable[[DataFrame, int], None], checkpoint: Path) -> StreamingQuery:
    query = stream.writeStream.foreachBatch(sink).option("checkpointLocation", str(checkpoint))
    started = query.trigger(availableNow=True).start()
    try:
        started.awaitTermination()
    finally:
        started.stop()
    return started
