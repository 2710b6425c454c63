"""The drawing in the docstring of `icesize.spark.stream` is the order of calls of a batch."""

from __future__ import annotations

from pyspark.sql import SparkSession

from icesize.spark import stream
from tests.support.drawings import calls_of, drawing_in
from tests.support.spark_lake import Lake, counted, events


def test_the_drawing_is_the_order_of_calls(spark: SparkSession, lake: Lake) -> None:
    """A batch of an append calls the functions of the drawing in its order."""
    lake.create()
    sink, batch = lake.open(spark).sink("s"), counted(spark, events([1]))
    drawn = drawing_in(stream)
    assert calls_of(drawn, lambda: sink(batch, 0)) == drawn
