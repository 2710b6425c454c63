"""Maintenance beside a stream of upserts, which writes equality and position deletes all the time.

How many batches there are, and what lies between two, `UPSERT_BATCHES` and `UPSERT_SECONDS` in the environment say.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

import icesize
from icesize.planning.plan import Plan
from integration.tools import POLICY, spark_rows
from integration.upserts import Upserts
from tests.support.delete_files import live_deletes
from tests.support.tables import check, live_paths

BATCHES = int(os.environ.get("UPSERT_BATCHES", "30"))
EVERY_SECONDS = float(os.environ.get("UPSERT_SECONDS", "0.3"))


class Rounds:
    """Maintenance of a table, round by round, and how many merge groups were planned and have landed."""

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog, self.name = catalog, name
        self.table = icesize.open(None, name, catalog=catalog, policy=dict(POLICY))
        self.groups = Counter[str]()

    def run(self) -> None:
        """One round: a compaction whose groups are counted, and everything else.

        Nobody else takes data files away: a group has landed where none of its inputs is live.
        """
        plans = list[Plan]()
        self.table.compact(on_plan=plans.append)
        live = set(live_paths(self.catalog.load_table(self.name)))
        for group in (group for plan in plans for group in plan.groups):
            self.groups["planned"] += 1
            self.groups["landed"] += not live & {file.path for file in group.inputs}
        assert self.table.maintain().failed == {}


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("where", ["rest", "lake"])
def test_rows_are_exact_beside_a_stream_of_upserts(
    spark: SparkSession, request: pytest.FixtureRequest, namespace: str, where: str, partitions: int
) -> None:
    """Whatever was merged meanwhile, the table has the rows of the model, and nearly every commit has landed."""
    upserts = Upserts(spark, f"{where}.{namespace}.t", partitions)
    catalog: Catalog = request.getfixturevalue(where)
    upserts.batch()
    rounds = Rounds(catalog, f"{namespace}.t")
    with upserts.beside(BATCHES, EVERY_SECONDS) as ended:
        while not ended.is_set():
            rounds.run()
    spark.sql(f"REFRESH TABLE {upserts.name}")
    assert spark_rows(spark, upserts.name) == upserts.rows
    rounds.run()
    spark.sql(f"REFRESH TABLE {upserts.name}")
    assert spark_rows(spark, upserts.name) == upserts.rows
    table = catalog.load_table(f"{namespace}.t")
    check(table)
    left = f"{len(live_paths(table))} data files, {len(live_deletes(table))} delete files"
    print(f"\nbatches: {upserts.landed} landed, {len(upserts.refused)} refused; groups: {dict(rounds.groups)}; {left}")
    assert upserts.landed >= 0.95 * (BATCHES + 1)
    assert rounds.groups["landed"] >= 0.95 * rounds.groups["planned"] > 0
