"""Somebody deletes rows, by position or by equality, at any point of a batch: none comes back, none is lost or doubled.

Everything else is in `tests/maintenance/test_rival_deletes.py`.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.spark.stream.sink import Sink
from integration.tools import sized, spark_rows
from tests.support.rival_deletes import KINDS, Rival, at_failpoint
from tests.support.tables import arrow, make_table

SINKS: dict[str, dict[str, Any]] = {
    "append": {},
    "absorb": {"placement": "absorb"},
    "absorb once": {"placement": "absorb", "stream_safe": False},
    "async": {"merge": "async"},
}
POINTS = failpoints.POINTS[: failpoints.POINTS.index("background")]
ROWS, WAIT_S = 6, 60


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", SINKS)
def test_no_delete_is_lost(spark: SparkSession, lake: SqlCatalog, namespace: str, how: str, kind: str) -> None:
    """A batch for each point at which somebody deletes older rows, and by equality rows of the batch itself: these stay
    where they come later. After each batch the rows are those of the model, in the end for Iceberg's reader, too."""
    make_table(lake, name=f"{namespace}.t")
    sink = sized(spark, f"lake.{namespace}.t", max_small_files=1).sink("s", **SINKS[how])
    rival = Rival(lake, kind, Counter(), f"{namespace}.t")
    for number, point in enumerate([None, None, *POINTS, *(["background"] if "merge" in SINKS[how] else [])]):
        new = range(number * ROWS, number * ROWS + ROWS)
        rival.begin(lambda ids, new=new: ids + Counter(new), new[1:3])  # type: ignore[misc]
        if point is None:
            run(spark, sink, number, new)
        else:
            commits = rival.commits
            with at_failpoint(point, 1, rival):
                run(spark, sink, number, new)
            assert rival.commits > commits, point
        rival.finish()
        assert rival.landed
    spark.sql(f"REFRESH TABLE lake.{namespace}.t")
    assert Counter(row[0] for row in spark_rows(spark, f"SELECT id FROM lake.{namespace}.t")) == rival.ids


def run(spark: SparkSession, sink: Sink, number: int, ids: range) -> None:
    """One batch, and merges of it that are made beside the stream."""
    sink.run(spark.createDataFrame(arrow(ids)), number)
    sink.drain(WAIT_S)
