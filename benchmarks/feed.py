"""Passes batch files to a function one by one, as DataFrames or as the micro-batches of a real streaming query."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Handle = Callable[["DataFrame", int], object]


def feed(
    spark: SparkSession, files: Sequence[Path], handle: Handle, checkpoint: Path | None, every_seconds: float = 0.0
) -> list[float]:
    """Call `handle(df, number)` for each file and return the seconds of each call.

    With a directory `checkpoint`, a file source passes one file per trigger to `foreachBatch`; without one, `read`
    does. Calls begin at least `every_seconds` apart.
    """
    seconds: list[float] = []

    def timed(df: DataFrame, number: int) -> None:
        began = time.perf_counter()
        handle(df, number)
        seconds.append(time.perf_counter() - began)
        time.sleep(max(0.0, every_seconds - seconds[-1]))

    if checkpoint is None:
        for number, file in enumerate(files):
            timed(spark.read.parquet(str(file)), number)
        return seconds
    schema = spark.read.parquet(str(files[0])).schema
    source = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).option("pathGlobFilter", "batch_*.parquet")
    query = source.parquet(str(files[0].parent)).writeStream.foreachBatch(timed)
    query.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start().awaitTermination()
    return seconds
