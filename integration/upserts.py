"""A stream of upserts as Flink commits them, by Iceberg's Java library in Spark's JVM, and the rows that it leaves."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from integration.evolution.engine import Probe

_REFUSED = ("CommitFailedException", "ValidationException")
Row = tuple[int, str, int, str]


@dataclass
class Upserts:
    """Batches of changes to a table of its own, `catalog.namespace.table`: `partitions` of them, 0 for none.

    A batch is one commit: new rows, rows in place of older ones (some of them twice in the batch) and deleted ones.
    `model` holds the rows that must be there, by id; `refused` says of each commit that did not land why.
    """

    spark: SparkSession
    name: str
    partitions: int = 3
    rows_per_batch: int = 60
    seed: int = 0
    model: dict[int, Row] = field(default_factory=dict)
    landed: int = 0
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        by = "PARTITIONED BY (p)" if self.partitions else ""
        self.spark.sql(f"CREATE TABLE {self.name} (id bigint, p string, n bigint, t string) USING iceberg {by}")
        catalog, _, identifier = self.name.partition(".")
        session: Any = self.spark._jsparkSession
        java = session.sessionState().catalogManager().catalog(catalog).icebergCatalog()
        jvm: Any = self.spark._jvm
        self._table = java.loadTable(jvm.org.apache.iceberg.catalog.TableIdentifier.parse(identifier))
        self._probe = Probe(self.spark)
        self._chance = random.Random(self.seed)
        self._next_id = 0

    @property
    def rows(self) -> list[Row]:
        """The rows that must be there, in the order of `integration.tools.spark_rows`."""
        return sorted(self.model.values(), key=repr)

    def fill(self, rows: int) -> None:
        """Commit new rows; they count as no batch."""
        self._commit([self._row(i) for i in self._new(rows)], [])

    def batch(self) -> None:
        """Commit one batch; the model follows when it has landed."""
        self.landed += self._commit(*self._drawn())

    def _commit(self, written: list[Row], gone: list[Row]) -> bool:
        self._table.refresh()
        keys = ["p", "id"] if self.partitions else ["id"]
        try:
            self._probe.upsert(self._table, keys, _told(written), _told(gone), False, None)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getSimpleName()
            if kind not in _REFUSED:
                raise
            self.refused.append(f"{kind}: {error.java_exception.getMessage()}")
            return False
        self.model |= {row[0]: row for row in written}
        for row in gone:
            del self.model[row[0]]
        return True

    @contextmanager
    def beside(self, batches: int, every_seconds: float = 0.0) -> Iterator[threading.Event]:
        """Commit batches in a thread of its own, with a pause after each; the event is set when it is through.

        The block's end waits for that, and raises what stopped it.
        """
        ended, left, errors = threading.Event(), threading.Event(), list[BaseException]()

        def stream() -> None:
            try:
                for _ in range(batches):
                    if left.is_set():
                        return
                    self.batch()
                    left.wait(every_seconds)
            except BaseException as error:
                errors.append(error)
            finally:
                ended.set()

        thread = threading.Thread(target=stream, name="upserts")
        thread.start()
        try:
            yield ended
        except BaseException:
            left.set()
            raise
        finally:
            thread.join()
        for error in errors:
            raise error

    def _drawn(self) -> tuple[list[Row], list[Row]]:
        """Rows to be written, in order, and rows to be deleted."""
        old = self._chance.sample(sorted(self.model), min(len(self.model), self.rows_per_batch // 2))
        gone, changed = old[: len(old) // 5], old[len(old) // 5 :]
        ids = [*changed, *self._new(self.rows_per_batch // 2)]
        ids += self._chance.sample(ids, len(ids) // 5)
        return [self._row(i) for i in ids], [self.model[i] for i in gone]

    def _new(self, rows: int) -> range:
        """Ids that no row has had."""
        new = range(self._next_id, self._next_id + rows)
        self._next_id = new.stop
        return new

    def _row(self, number: int) -> Row:
        place = f"p{number % self.partitions}" if self.partitions else "p"
        return number, place, self._chance.randrange(10**9), self._chance.choice(("", "a", "b" * 40))


def _told(rows: list[Row]) -> str:
    """Rows as `Probe.java` reads them."""
    return json.dumps([{"id": str(i), "p": p, "n": str(n), "t": t} for i, p, n, t in rows])
