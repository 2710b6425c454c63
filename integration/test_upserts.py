"""Maintenance beside a stream of upserts, which writes equality and position deletes all the time.

How many batches there are, of how many rows, and the pause after each `UPSERT_BATCHES`, `UPSERT_BATCH_ROWS` and
`UPSERT_SECONDS` in the environment say, `UPSERT_ROUND_SECONDS` the pause after each round of maintenance, and
`UPSERT_ROWS` how many rows the table has before.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFileContent
from pyiceberg.table import Table
from pyspark.sql import SparkSession

import icesize
from icesize.table.records.summary import RUN_ID
from integration.tools import POLICY, spark_rows
from integration.upserts import Upserts
from tests.support.delete_files import live_deletes
from tests.support.tables import check, live_paths

BATCHES = int(os.environ.get("UPSERT_BATCHES", "30"))
EVERY_SECONDS = float(os.environ.get("UPSERT_SECONDS", "0.3"))
ROUND_SECONDS = float(os.environ.get("UPSERT_ROUND_SECONDS", "0"))
BATCH_ROWS = int(os.environ.get("UPSERT_BATCH_ROWS", "60"))
ROWS_BEFORE = int(os.environ.get("UPSERT_ROWS", "60"))


class Rounds:
    """Maintenance of a table, round by round; what it is about has to be in the table before.

    `groups` counts merges that landed (those of one partition in one commit as one) and that were dropped, `left`
    counts rounds by what they left: the most small files and the most delete files of a partition, and of those the
    most that are read with one data file.
    """

    def __init__(self, catalog: Catalog, name: str) -> None:
        self.catalog, self.name = catalog, name
        self.table = icesize.open(None, name, catalog=catalog, policy=dict(POLICY))
        self.groups = Counter[str]()
        self.left = Counter[tuple[int, int, int]]()
        self._before = {s.snapshot_id for s in self._loaded().metadata.snapshots}

    def run(self) -> None:
        """One round."""
        report = self.table.maintain()
        assert report.failed == {}
        self.groups["landed"] += sum(merge.partitions_touched for merge in report.merges)
        self.groups["dropped"] += sum(len(merge.conflicts) for merge in report.merges)
        self.left[self._most_files()] += 1

    def amplification(self) -> str:
        """W: bytes that were written beside the stream since the first round, for each byte that it wrote itself."""
        table, size_bytes = self._loaded(), Counter[tuple[str, str]]()
        for snapshot in (s for s in table.metadata.snapshots if s.summary and s.snapshot_id not in self._before):
            who = "ours" if snapshot.summary and RUN_ID in snapshot.summary.additional_properties else "stream"
            for manifest in (m for m in snapshot.manifests(table.io) if m.added_snapshot_id == snapshot.snapshot_id):
                for entry in manifest.fetch_manifest_entry(table.io):
                    if entry.snapshot_id == snapshot.snapshot_id:
                        size_bytes[who, entry.data_file.content.name] += entry.data_file.file_size_in_bytes
        ours, streams = (sum(n for (by, _), n in size_bytes.items() if by == who) for who in ("ours", "stream"))
        return f"W {ours / streams:.2f} {dict(size_bytes)}"

    def _loaded(self) -> Table:
        return self.catalog.load_table(self.name)

    def _most_files(self) -> tuple[int, int, int]:
        """Whatever a scan of the partition reads is counted, were it written after the round."""
        table, small, deletes = self._loaded(), Counter[str](), Counter[str]()
        head = table.metadata.current_snapshot()
        for entry in (e for m in head.manifests(table.io) for e in m.fetch_manifest_entry(table.io)) if head else ():
            partition = repr(entry.data_file.partition)
            if entry.data_file.content != DataFileContent.DATA:
                deletes[partition] += 1
            elif entry.data_file.file_size_in_bytes < self.table.policy.small_file_limit_bytes:
                small[partition] += 1
        most_of_a_file = self.table.inspect().deletes.delete_files_max
        return max(small.values(), default=0), max(deletes.values(), default=0), most_of_a_file


@pytest.mark.slow
@pytest.mark.parametrize("partitions", [0, 3])
@pytest.mark.parametrize("where", ["rest", "lake"])
def test_rows_are_exact_beside_a_stream_of_upserts(
    spark: SparkSession, request: pytest.FixtureRequest, namespace: str, where: str, partitions: int
) -> None:
    """Whatever was merged meanwhile, the table has the rows of the model, and nearly every commit has landed."""
    upserts = Upserts(spark, f"{where}.{namespace}.t", partitions, BATCH_ROWS)
    catalog: Catalog = request.getfixturevalue(where)
    upserts.fill(ROWS_BEFORE)
    rounds = Rounds(catalog, f"{namespace}.t")
    with upserts.beside(BATCHES, EVERY_SECONDS) as ended:
        while not ended.wait(ROUND_SECONDS):
            rounds.run()
    spark.sql(f"REFRESH TABLE {upserts.name}")
    assert spark_rows(spark, upserts.name) == upserts.rows
    rounds.run()
    spark.sql(f"REFRESH TABLE {upserts.name}")
    assert spark_rows(spark, upserts.name) == upserts.rows
    table = catalog.load_table(f"{namespace}.t")
    check(table)
    left = f"{len(live_paths(table))} data files, {len(live_deletes(table))} delete files"
    print(f"\nbatches: {upserts.landed} landed, {len(upserts.refused)} refused; merges: {dict(rounds.groups)}; {left}")
    print(
        f"{rounds.amplification()}; rounds by the most small files and delete files of a partition, and delete "
        f"files of a data file: {dict(rounds.left)}"
    )
    assert upserts.landed >= 0.95 * BATCHES
    assert rounds.groups["landed"] >= 0.95 * rounds.groups.total() > 0
