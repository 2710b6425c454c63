"""Other readers of the table at the end of a history: DuckDB and Spark."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from pyiceberg.table import Table

from integration.evolution.readers import duckdb_with_iceberg
from integration.keyed.history import History
from tests.support.tables import local


@dataclass
class Readers:
    """DuckDB always, and `spark` if it is a session with Iceberg's runtime. Rows are known by their versions."""

    spark: Any = None

    @cached_property
    def _duckdb(self) -> Any:
        return duckdb_with_iceberg()

    def look(self, history: History) -> None:
        """Raise AssertionError if a reader finds other rows than the model has."""
        table, wanted = history.table, Counter(row.version for row in history.model.all())
        if (head := table.metadata.current_snapshot()) is None:
            return
        name = table.schema().find_field(history.shape.version_id).name
        location = str(local(table.metadata_location))
        # DuckDB ends the process at some equality deletes
        if head.summary is None or head.summary["total-equality-deletes"] == "0":
            found = self._duckdb.execute(f"SELECT \"{name}\" FROM iceberg_scan('{location}')").fetchall()
            assert Counter(row[0] for row in found) == wanted, "DuckDB reads other rows"
        if self.spark is not None:
            found = self.spark.read.format("iceberg").load(_path(table)).select(name).collect()
            assert Counter(row[0] for row in found) == wanted, "Spark reads other rows"


def _path(table: Table) -> str:
    location: str = table.metadata_location
    return location


@contextmanager
def spark_session() -> Iterator[Any]:
    """A session in this process, with nothing but Iceberg's runtime."""
    from integration.writers.in_spark import Reader

    folder = Path(tempfile.mkdtemp(prefix="keyed-spark-"))
    reader = Reader.start(folder)
    try:
        yield reader.spark
    finally:
        reader.spark.stop()
        shutil.rmtree(folder, ignore_errors=True)
        sys.stdout.flush()
