"""Events of upserts for tables of `tests.support.tables.SCHEMA`, and the rows that readers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.environment import Environment, Stopwatch
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.inputs import read_inputs
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup
from icesize.report import Report
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.batch_life import exactly_once
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.batch import FetchEvents, FetchSlice, Upserts
from icesize.table.upserts.settings import WantedRule
from tests.support.tables import check, make_table, sqlite_catalog
from tests.support.v3_tables import as_v3

Event = tuple[int | None, int, str | None]
"""Key, order, and value of the column `kind`; None for a delete."""
Row = tuple[int, int, str]


def events_of(events: Sequence[Event]) -> tuple[pa.Table, NDArray[np.bool_]]:
    """The events as rows, and which of them are deletes."""
    ids, times, kinds = ([event[column] for event in events] for column in range(3))
    rows = pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "kind": pa.array(kinds, pa.string()),
            "ts": pa.array(times, pa.timestamp("us")),
        }
    )
    return rows, np.array([kind is None for kind in kinds], np.bool_)


def sliced(events: Sequence[Event], slices: int) -> list[FetchSlice]:
    """The events in slices by their key."""
    parts = ([event for event in events if (event[0] or 0) % slices == number] for number in range(slices))
    return [partial(events_of, part) for part in parts]


def upsert(
    handle: TableHandle, rule: WantedRule, fetch: FetchEvents, ledger: LedgerEntry | None = None,
    environment: Environment | None = None, **options: Any,
) -> Report:  # fmt: skip
    """Commit one batch of events, and return its report."""
    environment = environment or Environment()
    batch = Batch(handle, environment, Stopwatch(environment), ledger)
    return exactly_once(batch, Upserts(rule, fetch, **options)).report


def upsert_rows(
    catalog: Catalog, rows: pa.Table, is_delete: Sequence[bool], batch: int, rule: WantedRule, name: str = "db.t"
) -> Report:
    """Commit rows as one batch of the stream `s`, and check the table."""
    namespace, table = name.split(".")
    handle, events = TableHandle(catalog, (namespace, table)), (rows, np.array(is_delete, np.bool_))
    report = upsert(handle, rule, lambda current, rule: [lambda: events], LedgerEntry("s", "q", batch))
    check(catalog.load_table(name))
    return report


def catalog_with_table(folder: Path, format_version: int) -> Catalog:
    """A catalog with the empty table `db.t`, partitioned by `kind`, in format v2 or v3."""
    catalog = sqlite_catalog(folder)
    make_table(catalog)
    if format_version == 3:
        as_v3(catalog)
    return catalog


def live_rows(catalog: Catalog, name: str = "db.t") -> list[Row]:
    """All live rows of a table, in order, read from its files and delete files of any format version."""
    return sorted(row for _, row in live_rows_of(catalog.load_table(name)))


def live_rows_of(table: Table) -> list[tuple[FileFact, Row]]:
    """All live rows, each with its file."""
    metadata, store, found = table.metadata, ManifestStore(), list[tuple[FileFact, Row]]()
    manifests = manifests_of(metadata.current_snapshot(), table.io, table.metadata.specs())
    index = DeleteIndex.of(store, table.io, manifests.deletes, metadata.specs())
    for manifest in manifests.data:
        facts = store.facts(table.io, manifest)
        settings = WriteSettings.of(metadata, table.io.properties, 2**30)
        spec = metadata.specs()[manifest.partition_spec_id]
        settings = replace(settings, spec_json=spec.model_dump_json(), spec_id=spec.spec_id)
        for file in map(index.noted, facts.files(facts.live)):
            deleted = deleted_rows([file], settings, file.partition).positions
            for rows in read_inputs(FileGroup((file,), file.partition), settings, deleted=deleted):
                times = rows.column("ts").cast(pa.int64()).to_pylist()
                pairs = zip(rows.column("id").to_pylist(), times, rows.column("kind").to_pylist(), strict=True)
                found += [(file, row) for row in pairs]
    return found
