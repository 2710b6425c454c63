"""Iceberg's Flink sinks fail and start again while icesize maintains its table.

`FLINK_SECONDS` in the environment says how long a job writes, `FLINK_FAILURES` how often it fails by plan.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from itertools import cycle
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table.snapshots import Snapshot
from pyspark.sql import SparkSession

import icesize
from icesize.table.records.summary import RUN_ID
from integration.flink.job import Changelog, has_compiler, make_table, running, starts
from integration.tools import POLICY, spark_rows
from tests.support.delete_files import live_deletes
from tests.support.tables import check, live_paths

SECONDS = int(os.environ.get("FLINK_SECONDS", "60"))
FAILURES = int(os.environ.get("FLINK_FAILURES", "6"))
PAUSE_SECONDS = 0.2
FEW_DELETES: Mapping[str, object] = {
    "max-delete-files": 1,
    "delete-ratio-threshold": 1,
    "close-file-cost-bytes": 0,
}
"""Two delete files become one, though by the other policy the deleted rows of a file soon make a merge due."""
KEPT = timedelta(seconds=60)
"""Flink looks for its newest checkpoint in the snapshots when it starts again: an expiry has to leave it that long."""


class MaintenanceRun:
    """icesize's maintenance of a table, one call after the other; `counts` says what came of it."""

    def __init__(self, catalog: RestCatalog, name: str) -> None:
        self.catalog, self.name = catalog, name
        self.table = icesize.open(None, name, catalog=catalog, policy=dict(POLICY))
        self.with_few_deletes = icesize.open(None, name, catalog=catalog, policy={**POLICY, **FEW_DELETES})
        self.counts = Counter[str]()
        self.seen = dict[int, Snapshot]()

    def beside(self, job: subprocess.Popen[bytes]) -> None:
        """Call in turn until the job has ended."""
        calls: dict[str, Callable[[], object]] = {
            "after_batch": self.table.after_batch,
            "rewrite_deletes": self.with_few_deletes.rewrite_deletes,
            "maintain": self._maintain,
            "expire": lambda: self.table.expire_snapshots(older_than=KEPT, retain_last=3),
        }
        for call, run in cycle(calls.items()):
            with suppress(subprocess.TimeoutExpired):
                job.wait(PAUSE_SECONDS)
                return
            if self._note_snapshots():
                report = run()
                self.counts[call] += 1
                for key in ("snapshot_ids", "snapshot_ids_expired", "conflicts"):
                    self.counts[f"{call} {key}"] += len(getattr(report, key, ()))

    def _maintain(self) -> None:
        report = self.table.maintain()
        assert report.failed == {}
        self.counts["maintain merges"] += sum(len(merge.snapshot_ids) for merge in report.merges)
        self.counts["maintain conflicts"] += sum(len(merge.conflicts) for merge in report.merges)

    def _note_snapshots(self) -> bool:
        """Keep what expires; False while there is nothing."""
        metadata = self.catalog.load_table(self.name).metadata
        self.seen |= {snapshot.snapshot_id: snapshot for snapshot in metadata.snapshots}
        return bool(metadata.snapshots)

    def commits(self) -> Counter[str]:
        """Count snapshots by writer, and the delete files and deleted rows that Flink wrote."""
        self._note_snapshots()
        found = Counter[str]()
        for summary in (s.summary.additional_properties for s in self.seen.values() if s.summary):
            found["ours" if RUN_ID in summary else "flink"] += 1
            if "flink.job-id" in summary:
                for key in ("added-delete-files", "added-equality-deletes", "added-position-deletes", "added-records"):
                    found[key] += int(summary.get(key, 0))
        return found


@pytest.mark.slow
@pytest.mark.skipif(not has_compiler(), reason="the job is compiled by javac")
@pytest.mark.parametrize("mode", ["upsert", "changelog"])
@pytest.mark.parametrize("sink", ["FlinkSink", "IcebergSink"])
def test_rows_are_those_of_the_changelog(
    spark: SparkSession, rest: RestCatalog, rest_catalog_uri: str, namespace: str, tmp_path: Path, sink: str, mode: str
) -> None:
    """Each change counts once, whatever was merged, rewritten and expired beside it, and the job was started again."""
    log, name = Changelog(sink, mode, SECONDS, FAILURES), f"{namespace}.t"
    make_table(rest, name)
    upkeep = MaintenanceRun(rest, name)
    with running(log, rest_catalog_uri, name, tmp_path) as job:
        upkeep.beside(job)
    rows = log.rows()
    assert spark_rows(spark, f"rest.{name}") == rows
    assert upkeep.table.maintain().failed == {}
    spark.sql(f"REFRESH TABLE rest.{name}")
    assert spark_rows(spark, f"rest.{name}") == rows
    table = rest.load_table(name)
    check(table)
    print(f"\n{sink} {mode}: {log.changes} changes, {len(rows)} rows, {starts(tmp_path)} starts of the job")
    print(f"commits: {dict(upkeep.commits())}; calls: {dict(upkeep.counts)}")
    print(f"left: {len(live_paths(table))} data files, {len(live_deletes(table))} delete files")
    assert starts(tmp_path) > FAILURES
    assert upkeep.counts["after_batch snapshot_ids"] + upkeep.counts["maintain merges"] > 0
    assert upkeep.counts["rewrite_deletes snapshot_ids"] > 0
    assert upkeep.counts["expire snapshot_ids_expired"] > 0
