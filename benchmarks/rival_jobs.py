"""The jobs in Spark on the table of the rivals' benchmark: a stream by icesize, a reader, statements of rivals."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.manifest import ManifestEntryStatus
from pyiceberg.table import Table

from benchmarks.rival_model import KINDS, MODES, Attempt, Chooser, Statement, paths_in, reason_of
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.records.summary import RUN_ID
from integration.tools import local_path

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME = "db.t"
STREAM = "rivals"
RETAINED = 60
"""Snapshots that every expiry keeps: more than the reader can lag behind."""
OLD_AFTER_S = 20


class Stream:
    """A query whose batch n has ids n x `rows` to n x `rows` + `rows` - 1; `committed` is the number of rows so far."""

    def __init__(
        self, spark: SparkSession, table: SizedTable, merge: str, rows: int, partitions: int, pause_seconds: float
    ) -> None:
        self.reports: list[Report] = []
        self.batches = 0
        self.rows = rows
        self._spark, self._partitions, self._pause = spark, partitions, pause_seconds
        self._sink = table.sink(STREAM, merge=merge)
        self._stopping, self._busy = threading.Event(), threading.Lock()
        self._query: StreamingQuery | None = None

    @property
    def committed(self) -> int:
        """Rows appended so far; their ids are the smaller numbers."""
        return self.batches * self.rows

    def start(self, checkpoint: Path) -> Stream:
        source = self._spark.readStream.format("rate-micro-batch").option("rowsPerBatch", self.rows)
        rows = source.option("numPartitions", 2).load()
        sink = rows.writeStream.foreachBatch(self._take).option("checkpointLocation", str(checkpoint))
        self._query = sink.start()
        return self

    def wait_for_rows(self) -> None:
        """Wait until the first batch is committed; raise RuntimeError if the query ends before."""
        while not self.batches:
            if self._query is None or self._query.awaitTermination(1):
                raise RuntimeError("Cannot begin: the stream has ended before its first batch")

    def stop(self) -> str | None:
        """Let the current batch end; return the reason if the query had failed before."""
        with self._busy:
            self._stopping.set()
        return _ended(self._query)

    def _take(self, df: DataFrame, batch_id: int) -> None:
        with self._busy:
            if self._stopping.is_set():
                return
            part = f"concat('h', value % {self._partitions}) AS part"
            text = "sha1(cast(value AS string)) AS text"
            batch = df.selectExpr("value AS id", part, "0L AS v", text)
            self.reports.append(self._sink.run(batch, batch_id))
            self.batches = batch_id + 1
        self._stopping.wait(self._pause)


class Reader:
    """Iceberg's stream reader, which skips overwrite and delete snapshots; `seen` counts ids."""

    def __init__(self, spark: SparkSession, table: str, checkpoint: Path) -> None:
        self.seen: Counter[int] = Counter()
        stream = spark.readStream.format("iceberg")
        for kind in ("overwrite", "delete"):
            stream = stream.option(f"streaming-skip-{kind}-snapshots", "true")
        sink = stream.load(table).writeStream.foreachBatch(self._take)
        self._query = sink.option("checkpointLocation", str(checkpoint)).start()

    def stop(self) -> str | None:
        """Read the remaining rows; return the reason if that fails."""
        try:
            self._query.processAllAvailable()
        except Exception as error:
            return reason_of(str(error))
        return _ended(self._query)

    def _take(self, df: DataFrame, batch_id: int) -> None:
        self.seen.update(row["id"] for row in df.select("id").collect())


def _ended(query: StreamingQuery | None) -> str | None:
    if query is None:
        return None
    failure = query.exception()
    query.stop()
    return None if failure is None else reason_of(str(failure))


@dataclass
class Rival:
    """Statements of a rival, through a catalog `name` of Spark's session, one after the other in one thread."""

    spark: SparkSession
    name: str
    catalog: RestCatalog
    stopping: threading.Event
    pause_seconds: float
    attempts: list[Attempt] = field(default_factory=list)

    @property
    def table(self) -> str:
        return f"{self.name}.{NAME}"

    def try_statement(self, label: str, sql: str, known: bool = False) -> bool:
        """Run a statement once, without a retry; return whether it was committed."""
        began = time.perf_counter()
        before = {s.snapshot_id for s in self.catalog.load_table(NAME).metadata.snapshots}
        try:
            self.spark.sql(sql).collect()
        except Exception as error:
            text = str(error)
            culprit = taker(self.catalog.load_table(NAME), before, paths_in(text))
            self.attempts.append(Attempt(label, time.perf_counter() - began, known, reason_of(text), culprit))
            return False
        self.attempts.append(Attempt(label, time.perf_counter() - began, known))
        return True


@dataclass
class RowLevel(Rival):
    """DELETE, UPDATE and MERGE in turns, copy-on-write and merge-on-read in turns; `landed` has the committed ones."""

    seed: int = 7
    landed: list[Statement] = field(default_factory=list)

    def run(self, partitions: int, touched: int, committed: Callable[[], int]) -> None:
        """Run statements on `touched` of the partitions until stopped; `committed` returns the rows of the stream."""
        rng = Random(self.seed)
        chooser = Chooser(partitions, touched, rng)
        while True:
            for mode in MODES:
                self._switch_to(mode)
                for kind in rng.sample(KINDS, len(KINDS)):
                    if self.stopping.wait(self.pause_seconds):
                        return
                    statement = chooser.choose(kind, mode, committed())
                    known = any(older.part == statement.part for older in self.landed)
                    if self.try_statement(statement.label, statement.sql(self.table), known):
                        chooser.landed(statement)
                        self.landed.append(statement)

    def _switch_to(self, mode: str) -> None:
        # If this fails, the labels of later statements are wrong; their rows are right.
        properties = ", ".join(f"'write.{kind.lower()}.mode' = '{mode}'" for kind in KINDS)
        self.try_statement("ALTER TABLE", f"ALTER TABLE {self.table} SET TBLPROPERTIES ({properties})")


@dataclass
class Compaction(Rival):
    """Iceberg's own maintenance: `rewrite_data_files`, and `expire_snapshots` after every second call."""

    target_bytes: int = 0

    def run(self) -> None:
        """Run maintenance until stopped."""
        options = f"map('min-input-files', '2', 'target-file-size-bytes', '{self.target_bytes}')"
        rounds = 0
        while not self.stopping.wait(self.pause_seconds):
            call = f"CALL {self.name}.system.rewrite_data_files(table => '{NAME}', options => {options})"
            self.try_statement("rewrite_data_files", call)
            rounds += 1
            if rounds % 2 == 0:
                old = datetime.now(timezone.utc) - timedelta(seconds=OLD_AFTER_S)
                what = f"older_than => TIMESTAMP '{old:%Y-%m-%d %H:%M:%S}', retain_last => {RETAINED}"
                self.try_statement(
                    "expire_snapshots", f"CALL {self.name}.system.expire_snapshots(table => '{NAME}', {what})"
                )


def taker(table: Table, known: Iterable[int], paths: Iterable[str]) -> str:
    """Return the writer that removed one of these files: "icesize", "others", or "nobody" if none did.

    Only snapshots outside `known` count.
    """
    wanted = set(paths)
    for snapshot in table.metadata.snapshots:
        if snapshot.snapshot_id in known:
            continue
        for manifest in snapshot.manifests(table.io):
            if manifest.added_snapshot_id != snapshot.snapshot_id or not manifest.deleted_files_count:
                continue
            entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
            gone = {local_path(e.data_file.file_path) for e in entries if e.status == ManifestEntryStatus.DELETED}
            if gone & wanted:
                ours = snapshot.summary is not None and RUN_ID in snapshot.summary.additional_properties
                return "icesize" if ours else "others"
    return "nobody"
