"""Readers other than Iceberg's Java library: Spark with and without vectorisation, and DuckDB."""

from __future__ import annotations

from importlib import resources
from typing import Any

from integration.evolution.engine import Engine
from integration.evolution.pair import Side
from integration.tools import plain

_VECTORISED = "spark.sql.iceberg.vectorization.enabled"


def by_spark(side: Side, where: str, vectorised: bool) -> list[str]:
    """Rows as Spark reads them, as text."""
    spark = side.engine.spark
    spark.conf.set(_VECTORISED, str(vectorised).lower())
    try:
        found = spark.table(side.full_name)
        return sorted(repr(plain(row)) for row in (found.where(where) if where else found).collect())
    finally:
        spark.conf.unset(_VECTORISED)


def by_duckdb(engine: Engine, side: Side) -> list[str]:
    """Rows as DuckDB's Iceberg extension reads them from the table's metadata file."""
    if engine.duckdb is None:
        engine.duckdb = duckdb_with_iceberg()
    location = side.table.metadata_location.removeprefix("file:")
    location = "/" + location.lstrip("/")
    return sorted(map(repr, engine.duckdb.execute(f"FROM iceberg_scan('{location}')").fetchall()))


def duckdb_with_iceberg() -> Any:
    """A connection with the extensions that are installed as Python packages; nothing is fetched."""
    import duckdb

    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("avro", "iceberg"):
        folder = resources.files(f"duckdb_extension_{name}") / "extensions"
        [file] = next(iter(folder.iterdir())).iterdir()  # type: ignore[union-attr]
        connection.execute(f"LOAD '{file}'")
    return connection
