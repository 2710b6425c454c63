"""Clustering by Spark tasks of tables of format v3: rows keep their row ids and the numbers of their last changes."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import DoubleType, LongType
from pyspark.sql import SparkSession

from icesize.environment import WorkLimits
from icesize.maintenance.table_context import ClusterWork
from icesize.parquet.files.data_file import MergeResult
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.planning.cluster_by import SORT, ClusterBy
from icesize.planning.plan import MergeTask
from icesize.spark.clustering.run import run_clusters
from tests.support.parquet_files import fact, schema_of, settings_of, with_limits, write_one
from tests.support.row_lineage import lineage_of
from tests.support.row_maps import check

SCHEMA = schema_of(("id", LongType()), ("value", DoubleType()))
ROWS = 700


@pytest.mark.parametrize("parts_of_one_task", [1, 100], ids=["all tasks", "one task"])
def test_rows_keep_their_lineage(spark: SparkSession, tmp_path: Path, parts_of_one_task: int) -> None:
    """Whether one task sorts all rows of a group, or rows go from task to task; and their places are known."""
    settings = replace(settings_of(tmp_path, SCHEMA, target=25_000), format_version=3)
    settings = with_limits(settings, sorted_bytes=20_000, parts_of_one_task=parts_of_one_task)
    chance, inputs = random.Random(1), []
    for number in range(5):
        ids = pa.array(range(number * ROWS, (number + 1) * ROWS))
        rows = pa.table({"id": ids, "value": [chance.random() for _ in ids]})
        written = write_one(replace(settings, target_file_size_bytes=2**29), rows)
        inputs.append(replace(fact(written, number + 1), first_row_id=number * 10**6))
    task = MergeTask(tuple(inputs), inputs[0].partition, 4)
    order = RowOrder.of(ClusterBy(("value",), (2,), SORT, 2**40), settings)
    work = ClusterWork({0: task}, {0: "k00000000o-ab0"}, order, settings, Uncommitted(settings.storage, "s1-0"))
    done = run_clusters(spark, work, limits=replace(WorkLimits(), driver_merge_bytes=0))[0]
    assert isinstance(done, MergeResult)
    found = [lineage_of(replace(fact(file, 1), first_row_id=None)) for file in done.files]
    assert len(found) > 1
    expected = {key: value for file in inputs for key, value in lineage_of(file).items()}
    assert {key: value for each in found for key, value in each.items()} == expected
    check(done, chance)
