"""One batch for three tables: what a replay finds done is skipped, what is missing is written, the source is read once.

The tables share nothing but the batch: each has its stream id, and two of them may be in one catalog, one in another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from icesize import failpoints
from icesize.failpoints import FailpointReached
from icesize.report import Report
from integration.streams import run
from integration.tools import files_per_partition, operations, sized, spark_rows
from tests.support.spark_lake import SCHEMA, events, rows_of, write_json
from tests.support.tables import check

K = 3
BATCHES = 3
ROWS = 60
CHOSEN: dict[str, tuple[str, Callable[[int], bool]]] = {
    "all": ("true", lambda i: True),
    "late": (f"id >= {ROWS}", lambda i: i >= ROWS),
    "even": ("id % 2 = 0", lambda i: i % 2 == 0),
}
"""The rows that each table takes, for Spark and for the test; `late` takes none of the first batch."""


@dataclass
class FanOut:
    """Three tables, what was said of each batch, and how often a row of the source was computed."""

    spark: SparkSession
    names: dict[str, str]
    reports: list[tuple[str, Report]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.computed = self.spark.sparkContext.accumulator(0)

    def stream(self, folder: Path) -> DataFrame:
        """One file per batch, its rows from a function that counts them."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))
        computed = self.computed

        def same(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                computed.add(batch.num_rows)
                yield batch

        return source.mapInArrow(same, source.schema)

    def sink(self) -> Callable[[DataFrame, int], None]:
        """The function for `foreachBatch`."""
        sinks = {
            key: sized(self.spark, name).sink(f"orders to {key}", listener=self._listener(key))
            for key, name in self.names.items()
        }

        def write(df: DataFrame, batch_id: int) -> None:
            df.persist()
            try:
                for key, sink in sinks.items():
                    sink(df.where(CHOSEN[key][0]), batch_id)
            finally:
                df.unpersist()

        return write

    def told(self) -> list[tuple[str, int | None, str]]:
        """Who said what of which batch, in order; then forgotten."""
        told = [(key, r.batch_id, _outcome(r)) for key, r in self.reports]
        self.reports.clear()
        return told

    def _listener(self, key: str) -> Callable[[Report], None]:
        return lambda report: self.reports.append((key, report))


def _outcome(report: Report) -> str:
    if report.already_committed:
        return "skipped"
    return "written" if report.rows else "nothing"


def raise_at(nth: int) -> Callable[[], None]:
    """Raises once, the nth time."""
    passed = count(1)

    def act() -> None:
        if next(passed) == nth:
            raise FailpointReached("here")

    return act


@pytest.mark.parametrize(
    ("point", "nth", "catalogs", "replayed"),
    [
        pytest.param("batch-started", 6, ("lake", "lake", "rest"), "written", id="between-2-and-3"),
        pytest.param(
            "files-written", 5, ("rest", "lake", "lake"), "written", id="in-3", marks=pytest.mark.slow
        ),
        pytest.param("after-swap", 5, ("lake", "rest", "lake"), "skipped", id="after-3", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_batch_for_three_tables(
    spark: SparkSession,
    rest: Catalog,
    lake: Catalog,
    namespace: str,
    tmp_path: Path,
    point: str,
    nth: int,
    catalogs: tuple[str, str, str],
    replayed: str,
) -> None:
    """A failure at table 3 of 3 and a restart: 1 and 2 skip the batch, 3 writes what it lacks; each table is exact."""
    names = {key: f"{catalog}.{namespace}.{key}" for key, catalog in zip(CHOSEN, catalogs, strict=True)}
    for name in names.values():
        spark.sql(f"CREATE TABLE {name} ({SCHEMA}) USING iceberg PARTITIONED BY (hour)")
    for number in range(BATCHES):
        write_json(tmp_path / "in", number, events(range(number * ROWS, number * ROWS + ROWS), hours=3))
    fan_out = FanOut(spark, names)

    with failpoints.armed(point, raise_at(nth)), pytest.raises(Exception, match="FailpointReached"):
        run(fan_out.stream(tmp_path / "in"), fan_out.sink(), tmp_path / "checkpoint")
    assert fan_out.told() == [
        ("all", 0, "written"), ("late", 0, "nothing"), ("even", 0, "written"),
        ("all", 1, "written"), ("late", 1, "written"),
    ]  # fmt: skip
    assert fan_out.computed.value == 2 * ROWS

    run(fan_out.stream(tmp_path / "in"), fan_out.sink(), tmp_path / "checkpoint")
    assert fan_out.told() == [
        ("all", 1, "skipped"), ("late", 1, "skipped"), ("even", 1, replayed),
        ("all", 2, "written"), ("late", 2, "written"), ("even", 2, "written"),
    ]  # fmt: skip
    # the batch that failed was computed again, each other one once for all tables
    computed_again = ROWS if replayed == "written" else 0
    assert fan_out.computed.value == BATCHES * ROWS + computed_again
    for key, name in names.items():
        _is_exact(spark, rest if name.startswith("rest.") else lake, key, name)


def _is_exact(spark: SparkSession, catalog: Catalog, key: str, name: str) -> None:
    rows = [row for row in rows_of(events(range(BATCHES * ROWS), hours=3)) if CHOSEN[key][1](row[0])]
    assert spark_rows(spark, name) == rows
    identifier = name.split(".", 1)[1]
    check(catalog.load_table(identifier))
    assert operations(catalog, identifier).count("append") == (BATCHES - 1 if key == "late" else BATCHES)
    assert max(files_per_partition(catalog, identifier).values()) <= K
    streams = [(entry.stream_id, entry.batch_id) for entry in sized(spark, name).streams()]
    assert streams == [(f"orders to {key}", BATCHES - 1)]
