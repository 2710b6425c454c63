"""Expiry of a table with a history, and what must be true afterwards."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.environment import Environment
from icesize.table.cleanup.expiry import ExpiryReport, expire
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.state.handle import TableHandle
from tests.support.tables import (
    append,
    check,
    compact,
    data_files_on_disk,
    local,
    make_table,
    metadata_files_on_disk,
    referenced_metadata,
)

HOUR_MS = 3_600_000


def run_expiry(catalog: Catalog, *, dry_run: bool = False, days: int = 10, **options: Any) -> ExpiryReport:
    """Expire by the options given, some days after the table was last written to."""
    now_ms = catalog.load_table("db.t").metadata.last_updated_ms + days * 24 * HOUR_MS
    environment = Environment(now_ms=lambda: now_ms, sleep=lambda seconds: None)
    return expire(
        TableHandle(catalog, ("db", "t")),
        ExpireOptions(**options),
        environment,
        dry_run=dry_run,
    )


def history(catalog: Catalog) -> Table:
    """Four batches into partition `a`, merged after the second and the fourth, and one batch into `b`."""
    make_table(catalog)
    append(catalog, [1])
    append(catalog, [2])
    compact(catalog)
    append(catalog, [3])
    append(catalog, [10], "b")
    append(catalog, [4])
    return compact(catalog)


def needed_files(table: Table) -> set[str]:
    """Data files that some snapshot of the table refers to, as PyIceberg sees it."""
    return set(table.inspect.all_files().column("file_path").to_pylist())


def assert_clean(table: Table) -> None:
    """Every file that the table needs is there, and no other below its location but its metadata log."""
    check(table)
    assert data_files_on_disk(table) == needed_files(table)
    assert metadata_files_on_disk(table) == referenced_metadata(table)
    logged = {e.metadata_file for e in table.metadata.metadata_log} | {table.metadata_location}
    assert {f"file://{p}" for p in local(table.location()).rglob("*.json")} == logged
