"""The cost of a query for a table's files, measured with real readers: PyIceberg, and DuckDB if it can read Iceberg.

The files are on a local disk and were just written, so each figure is the minimum cost of the query.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module, resources
from typing import Any, TypeVar

from pyiceberg.table import Table

from icesize.table.catalog.history import head_snapshot

SQL = "SELECT kind, count(*) FROM events GROUP BY kind"
"""The query as SQL."""
RUNS = 3
"""Runs of each query, of which the fastest counts: the first run also loads code that all runs need."""

_Answer = dict[str, int]
_T = TypeVar("_T")


@dataclass(frozen=True)
class QueryCost:
    """Files that one query opened, and its seconds; `duckdb_seconds` is None if DuckDB cannot read the table.

    `files` are data files and delete files. `seconds` are those of PyIceberg, and include `planning_seconds`.
    """

    files: int
    manifests: int
    planning_seconds: float
    seconds: float
    duckdb_seconds: float | None
    answer: _Answer


def measure(table: Table) -> QueryCost:
    """Run the query on the current state of the table."""
    tasks, planning_seconds = _fastest(lambda: list(table.scan(selected_fields=("kind",)).plan_files()))
    answer, seconds = _fastest(lambda: _by_pyiceberg(table))
    snapshot = head_snapshot(table.metadata)
    return QueryCost(
        files=len(tasks) + len({delete.file_path for task in tasks for delete in task.delete_files}),
        manifests=len(snapshot.manifests(table.io)) if snapshot else 0,
        planning_seconds=planning_seconds,
        seconds=max(seconds, planning_seconds),
        duckdb_seconds=_duckdb_seconds(table),
        answer=answer,
    )


def _fastest(run: Callable[[], _T]) -> tuple[_T, float]:
    seconds = []
    for _ in range(RUNS):
        began = time.perf_counter()
        result = run()
        seconds.append(time.perf_counter() - began)
    return result, min(seconds)


def _by_pyiceberg(table: Table) -> _Answer:
    rows = table.scan(selected_fields=("kind",)).to_arrow()
    counted = rows.group_by("kind").aggregate([([], "count_all")]).to_pylist()
    return {row["kind"]: row["count_all"] for row in counted}


def _duckdb_seconds(table: Table) -> float | None:
    connection = _duckdb()
    if connection is None:
        return None
    place = table.metadata_location.removeprefix("file://")
    sql = SQL.replace("events", f"iceberg_scan('{place}')")  # icesize's own path
    with connection:
        _, seconds = _fastest(lambda: connection.execute(sql).fetchall())
    return seconds


def _duckdb() -> Any:
    """Return a connection that reads Iceberg with installed extensions, or None: the demo downloads nothing."""
    try:
        duckdb = import_module("duckdb")  # optional: icesize does not depend on DuckDB
    except ImportError:
        return None
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true", "autoinstall_known_extensions": "false"})
    try:
        for name in ("avro", "iceberg"):
            connection.execute(f"LOAD {_extension(name)}")
    except duckdb.Error:
        connection.close()
        return None
    return connection


def _extension(name: str) -> str:
    """Return the file of an extension installed as a Python package, or its name in DuckDB's own directory."""
    try:
        folder = resources.files(f"duckdb_extension_{name}") / "extensions"
    except ModuleNotFoundError:
        return name
    files = [file for version in folder.iterdir() for file in version.iterdir()]
    return f"'{files[0]}'" if files else name
