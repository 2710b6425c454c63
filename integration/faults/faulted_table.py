"""A table that a fault happens to, and what has to hold when the dust has settled, whatever the fault was."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

import icesize
from icesize.environment import Environment
from icesize.report import Report
from icesize.sized_table import SizedTable
from integration.tools import POLICY, local_path, spark_rows
from tests.support.spark_lake import EVENTS, Lake, rows_of
from tests.support.tables import FakeTime, check, referenced_metadata

K = 3
"""Small files that a partition of these tables may hold."""

LONG_AGO_S = 4 * 86_400
"""Age that files are given before orphan cleanup looks for them; it takes nothing younger than three days."""


@dataclass
class FaultedTable(Lake):
    """One fault and its table `db.events`; `expect` says which rows must be in it at the end.

    `db.neighbour` lies beside it and must stay as it is. `reports` are what batches and maintenance said. `columns` are
    compared, as many of each row as there are: a test that changes the schema says which. `time` is that of `hasty`
    tables.
    """

    spark: SparkSession = field(kw_only=True)
    reports: list[Report] = field(default_factory=list)
    columns: tuple[str, ...] = ("id", "hour", "text")
    time: FakeTime = field(default_factory=FakeTime)
    _expected: Counter[tuple[Any, ...]] | None = None
    _neighbour: str = ""

    def begin(self, properties: dict[str, str] | None = None) -> None:
        """Make both tables; the one beside gets a file."""
        self.create("neighbour").append(pa.table({"id": [1], "hour": ["h0"], "text": ["x"]}, schema=_arrow_schema()))
        self._neighbour = self._digest_beside()
        self.create("events", properties=properties)

    def sized(self, **policy: object) -> SizedTable:
        """`db.events` opened as after a restart: small files below 750,000 bytes, at most three per partition."""
        return self.open(self.spark, "events", **policy)

    def hasty(self, **policy: object) -> SizedTable:
        """The same, except that the waits of commits move the clock `time` and nobody waits."""
        settings = {**POLICY} | {key.replace("_", "-"): value for key, value in policy.items()}
        environment = Environment(monotonic=lambda: self.time.seconds, sleep=self.time.sleep, limits=self.limits)
        return icesize.open(self.spark, "db.events", catalog=self.catalog, policy=settings, environment=environment)

    def seen_by(self, catalog: Catalog) -> FaultedTable:
        """The same tables as another process has them, by a catalog client of its own; expectations are shared."""
        self.expect()
        return replace(self, catalog=catalog)  # type: ignore[arg-type]

    def make_again(self) -> Table:
        """An empty `db.events` after the table was dropped, in a folder of its own; no rows are expected in it."""
        self.expect()
        (self._expected or Counter()).clear()
        location = f"file://{self.folder}/lake/db/again"
        return self.catalog.create_table("db.events", EVENTS, location=location)

    def leftovers(self) -> set[str]:
        """Files below the table (metadata JSON aside) that no snapshot of it needs."""
        table = self.table()
        found = {str(p) for p in _files(self._folder(table)) if not p.name.endswith(".metadata.json")}
        return found - needed(table)

    def sized_at(self, environment: Environment) -> SizedTable:
        """The same with another clock."""
        return icesize.open(self.spark, "db.events", catalog=self.catalog, policy=POLICY, environment=environment)

    def batch(self, rows: pa.Table) -> DataFrame:
        """Rows as a DataFrame that is cheap to read again."""
        return self.spark.createDataFrame(rows)

    def expect(self, *parts: pa.Table) -> None:
        """The table has to end with these rows, each as often as it is here; nothing else."""
        if self._expected is None:
            self._expected = Counter()
        for part in parts:
            self._expected.update(tuple(row.values()) for row in part.to_pylist())

    def forget(self, *ids: int) -> None:
        """Rows that somebody deleted on purpose."""
        expected = self._expected or Counter()
        for row in [row for row in expected if row[0] in ids]:
            del expected[row]

    def holds(self) -> None:
        """Every invariant; called for each test after its last line."""
        assert self._expected is not None, "the test says which rows it expects"
        self._rows_are_exact()
        self._small_files_are_few_or_told()
        self._cleanup_leaves_what_is_needed()
        self._rows_are_exact()
        assert self._digest_beside() == self._neighbour, "a file of another table was touched"

    def _rows_are_exact(self) -> None:
        """PyIceberg and Iceberg's Spark runtime agree with the model; files are what their manifests say."""
        assert self._expected is not None
        expected = sorted((row[: len(self.columns)] for row in self._expected.elements()), key=repr)
        table = self.table()
        self._files_are_as_listed(table)
        assert rows_of(table.scan().to_arrow().select(self.columns)) == expected
        assert self._second_readers_rows(table) == expected

    def _files_are_as_listed(self, table: Table) -> None:
        check(table)

    def _second_readers_rows(self, table: Table) -> list[tuple[Any, ...]]:
        second = self.spark.read.format("iceberg").load(local_path(table.metadata_location))
        second.createOrReplaceTempView("second_reader")
        return spark_rows(self.spark, f"SELECT {', '.join(self.columns)} FROM second_reader")

    def _small_files_are_few_or_told(self) -> None:
        """A partition with more than k small files was named by a report, and one compaction ends that."""
        if max(self._mergeable().values(), default=0) <= K:
            return
        told = any(r.small_files_max > K or r.conflicts or r.notes for r in self.reports)
        assert told, f"{self._mergeable()} small files, and no report says so"
        self.sized().compact()
        assert max(self._mergeable().values(), default=0) <= K

    def _mergeable(self) -> Counter[tuple[object, ...]]:
        table = self.table()
        tasks = [task for task in table.scan().plan_files() if not task.delete_files]
        now = [t for t in tasks if t.file.spec_id == table.metadata.default_spec_id]
        return Counter(tuple(task.file.partition._data) for task in now if task.file.file_size_in_bytes < 750_000)

    def _cleanup_leaves_what_is_needed(self) -> None:
        """Orphan cleanup, days later, leaves exactly the files that some snapshot of the table needs."""
        folder = self._folder(self.table())
        for path in _files(folder):
            then = path.stat().st_mtime - LONG_AGO_S
            os.utime(path, (then, then))
        report = self.sized().remove_orphan_files(dry_run=False)
        assert report.files_failed == 0
        table = self.table()
        left = {str(p) for p in _files(folder) if not p.name.startswith(".") and not p.name.endswith(".metadata.json")}
        assert left - needed(table) == set(), "leaked"
        assert needed(table) - left == set(), "a file that a snapshot needs is gone"

    def _folder(self, table: Table) -> Path:
        return Path(local_path(table.location()))

    def _digest_beside(self) -> str:
        folder = self._folder(self.table("neighbour"))
        parts = [f"{p} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in _files(folder)]
        return "\n".join(parts)


def widened(rows: pa.Table, width_bytes: int) -> pa.Table:
    """The same rows, each with a text that takes `width_bytes` in a file, however it is compressed."""
    texts = [hashlib.shake_128(str(i).encode()).hexdigest(width_bytes) for i in rows["id"].to_pylist()]
    return rows.set_column(2, "text", pa.array(texts, pa.string()))


def needed(table: Table) -> set[str]:
    """Data, delete and metadata files (metadata JSON aside) that some snapshot refers to, as plain paths."""
    contents = (ManifestContent.DATA, ManifestContent.DELETES)
    files = {
        entry.data_file.file_path
        for snapshot in table.metadata.snapshots
        for manifest in snapshot.manifests(table.io)
        if manifest.content in contents
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }
    statistics = {s.statistics_path for s in (*table.metadata.statistics, *table.metadata.partition_statistics)}
    return {local_path(path) for path in files | referenced_metadata(table) | statistics}


def _files(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file())


def _arrow_schema() -> pa.Schema:
    return pa.schema(
        [pa.field("id", pa.int64(), nullable=False), pa.field("hour", pa.string()), pa.field("text", pa.string())]
    )
