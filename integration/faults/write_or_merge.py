"""The ways in which icesize writes or merges: a fault meets each of them that it could make a difference to."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession

from icesize.report import Report
from icesize.spark.stream.sink import Sink
from integration.faults.faulted_table import FaultedTable
from tests.support.spark_lake import events

T = TypeVar("T")

SINKS: dict[str, dict[str, Any]] = {
    "append": {},
    "absorb": {"placement": "absorb"},
    "absorb once": {"placement": "absorb", "stream_safe": False},
    "async": {"merge": "async"},
}
"""Options of `sink`; "absorb once" writes new rows and older ones together, in `overwrite` snapshots."""

INLINE = ("append", "absorb", "absorb once")
"""Ways whose merges are part of a batch."""


def each(*fast: str, slow: tuple[str, ...]) -> list[Any]:
    """Ways for a test to be run with; those that share most of their code with a fast one only by `.ci/full`."""
    return [*fast, *[pytest.param(how, marks=pytest.mark.slow) for how in slow]]


HOWS = each("append", "absorb once", "async", slow=("absorb", "compact", "maintain"))
BATCHES = each("append", "absorb once", slow=("absorb",))
RAISING = each("append", "absorb once", slow=("absorb", "compact"))
"""Ways that raise what keeps them from their end; merges beside a stream and `maintain` only tell of it."""

OPERATIONS = {
    "append": ("append", "replace"),
    "absorb": ("append", "replace"),
    "absorb once": ("overwrite",),
    "async": ("replace",),
    "compact": ("replace",),
    "maintain": ("replace",),
}
"""Snapshots that one `act` makes when nothing is in its way."""

ALONE = {"append": ("append",), "absorb": ("append",), "absorb once": ("overwrite",)}
"""The same when all merges had to be dropped: new rows alone, and without a sink nothing."""

WAIT_S = 120
"""Nothing here takes as long: what would hang fails."""


@dataclass
class WriteOrMerge:
    """Batches of ten rows over the hours h0 and h1; the last one, or the merge after it, is what the fault happens to.

    Batch n has the ids 10 n to 10 n + 9. `policy` keys go to the table. Waits between attempts at a commit move
    `faulted.time`, and nobody waits. `ends_well` is whether a pass of maintenance is to have no failed step.
    """

    faulted: FaultedTable
    how: str = "append"
    policy: dict[str, object] = field(default_factory=dict)
    number: int = -1
    ends_well: bool = True

    def prepare(self) -> None:
        """As many batches without merges as it takes for the next `act` to have some."""
        sinks_have_left_one = self.number >= 0 and self.how in SINKS
        for _ in range(0 if sinks_have_left_one else 2):
            self.next_batch()
            self._sink("append", merge="off").run(self._df(), self.number)

    def act(self) -> Report:
        """A new batch of the sink, or a merge of what is there; reports what became of the merge."""
        if self.how in SINKS:
            self.next_batch()
        return self.again()

    def next_batch(self) -> None:
        """Go on to the next batch, whose rows the table has to have in the end."""
        self.number += 1
        self.faulted.expect(self.rows())

    def rows(self) -> pa.Table:
        """The rows of the batch."""
        return events(range(self.number * 10, self.number * 10 + 10), hours=2)

    def again(self) -> Report:
        """The batch (once more), or the merge."""
        if self.how == "compact":
            return self._told(self.faulted.hasty(**self._policy).compact())
        if self.how == "maintain":
            upkeep = self.faulted.hasty(**self._policy).maintain()
            assert upkeep.succeeded == self.ends_well, upkeep.failed
            return self._told(upkeep.merges[0])
        sink = self._sink(self.how)
        report = sink.run(self._df(), self.number)
        return report if self.how != "async" else sink.drain(WAIT_S) or report

    def once(self, action: Callable[[], object]) -> Callable[[], None]:
        """For a failpoint: the action the first time that this way of working gets there, and never again.

        What the action itself does may pass the point as well. With "async" only the merges count, not their batch.
        """
        left = [action]

        def act() -> None:
            if left and (self.how != "async" or threading.current_thread().name == "icesize-background"):
                left.pop()()

        return act

    def of(self, faulted: FaultedTable) -> WriteOrMerge:
        """The same work as another process does it."""
        return replace(self, faulted=faulted)

    @property
    def _policy(self) -> dict[str, object]:
        return {"max_small_files": 1, **self.policy}

    def _sink(self, how: str, **options: Any) -> Sink:
        table = self.faulted.hasty(**self._policy)
        return table.sink("s", query_id="q", listener=self.faulted.reports.append, **SINKS[how], **options)

    def _df(self) -> DataFrame:
        return self.faulted.batch(self.rows())

    def _told(self, report: Report) -> Report:
        self.faulted.reports.append(report)
        return report


def rival_append(faulted: FaultedTable, *ids: int) -> None:
    """Another engine (PyIceberg) appends rows, which the table has to have in the end; hours take turns."""
    rows = events(list(ids), hours=2)
    faulted.expect(rows)
    faulted.table().append(rows.cast(rows.schema.set(0, rows.schema.field("id").with_nullable(False))))


def meeting(parties: int = 2) -> Callable[[], None]:
    """For a failpoint: each thread waits, the first time that it gets there, for the others."""
    barrier, met = threading.Barrier(parties), set[int]()

    def meet() -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait(WAIT_S)

    return meet


def at_the_same_time(*calls: Callable[[], T]) -> list[T]:
    """What the calls return, each made in a thread of its own; raises what one of them raises."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [running.result(WAIT_S) for running in [pool.submit(call) for call in calls]]


@dataclass(frozen=True)
class Iceberg:
    """Iceberg's Spark runtime with a catalog of its own in the session; statements name that catalog {}."""

    spark: SparkSession
    settings: dict[str, str]
    name: str = field(default_factory=lambda: f"rival{uuid.uuid4().hex}")

    def __post_init__(self) -> None:
        settings = {"": "org.apache.iceberg.spark.SparkCatalog", ".cache-enabled": "false", **self.settings}
        for key, value in settings.items():
            self.spark.conf.set(f"spark.sql.catalog.{self.name}{key}", value)

    def __call__(self, statement: str) -> None:
        self.spark.sql(statement.format(self.name)).collect()

    def compact(self) -> None:
        """All files of a partition into one, with the deletes that apply to them, which then go."""
        options = "map('rewrite-all', 'true', 'delete-file-threshold', '1', 'remove-dangling-deletes', 'true')"
        self(f"CALL {{}}.system.rewrite_data_files(table => 'db.events', options => {options})")

    def delete_ids(self, path: Path, ids: list[int]) -> None:
        """An equality delete of rows of hour h0, as Flink makes them: a file at `path`, committed by Iceberg itself."""
        column = pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"})
        pq.write_table(pa.table({"id": ids}, schema=pa.schema([column])), path)
        jvm: Any = self.spark._jvm
        gateway: Any = self.spark.sparkContext._gateway
        by_id = gateway.new_array(jvm.int, 1)
        by_id[0] = 1
        table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            self.spark._jsparkSession, f"{self.name}.db.events"
        )
        file = jvm.org.apache.iceberg.FileMetadata.deleteFileBuilder(table.spec()).ofEqualityDeletes(by_id)
        file.withPath(path.as_uri()).withFormat("PARQUET").withPartitionPath("p0_hour=h0")
        file.withFileSizeInBytes(path.stat().st_size).withRecordCount(len(ids))
        table.newRowDelta().addDeletes(file.build()).commit()
