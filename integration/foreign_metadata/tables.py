"""Tables of random columns, partition specs, files and deletes, and their rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from itertools import count
from random import Random
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.expressions import literal
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact
from icesize.planning.plan import FileGroup
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.manifests.delete_index import DeleteIndex
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.tables import make_visible
from tests.support.v3_tables import as_v3

Row = tuple[Any, ...]
_numbers = count()
_DAY = date(2026, 1, 30)
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "kind", StringType()),
    NestedField(3, "number", IntegerType()),
    NestedField(4, "day", DateType()),
    NestedField(5, "price", DecimalType(9, 2)),
    NestedField(6, "at", TimestampType()),
    NestedField(7, "share", DoubleType()),
)
NAMES = tuple(field.name for field in SCHEMA.fields)
_VALUES: Mapping[str, Callable[[int], Any]] = {
    "kind": lambda n: [None, "a", "b", "ä/c"][n],
    "number": lambda n: [7, -7, 0, None][n],
    "day": lambda n: _DAY + timedelta(days=n),
    "price": lambda n: Decimal(n * 100 - 150).scaleb(-2),
    "at": lambda n: datetime(2026, 1, 31, 22) + timedelta(hours=n),
    "share": lambda n: n / 2,
}
_TRANSFORMS = {
    "id": ["bucket[2]", "truncate[10]"],
    "kind": ["identity", "truncate[1]", "bucket[2]", "void"],
    "number": ["identity", "bucket[3]"],
    "day": ["identity", "month", "day"],
    "price": ["identity", "truncate[100]"],
    "at": ["day", "hour", "year"],
    "share": ["identity"],
}


@dataclass(frozen=True)
class Made:
    """A table and its rows, in an order of their own."""

    table: Table
    rows: list[Row]


def make(catalog: Catalog, name: str, rng: Random) -> Made:
    """Make a table of a few files, some with deleted rows."""
    version = rng.choice([1, 2, 2, 2, 3])
    columns = rng.sample([*_TRANSFORMS], rng.choice([0, 1, 2, 3]))
    numbers = rng.sample(range(1000, 1000 + len(columns)), len(columns))
    fields = [
        PartitionField(SCHEMA.find_field(c).field_id, number, parse_transform(rng.choice(_TRANSFORMS[c])), f"{c}_part")
        for c, number in zip(columns, numbers, strict=True)
    ]
    table = catalog.create_table(
        name, SCHEMA, partition_spec=PartitionSpec(*fields), properties={"format-version": str(min(version, 2))}
    )
    used = {each: rng.sample(range(4), 2) for each in _VALUES}
    rows = dict[int, Row]()
    for batch in range(rng.choice([2, 3, 5])):
        ids = range(batch * 10, batch * 10 + rng.choice([2, 4]))
        new = {n: (n, *(_VALUES[each](used[each][rng.randrange(2)]) for each in _VALUES)) for n in ids}
        _append(catalog.load_table(name), pa.table(list(zip(*new.values(), strict=True)), schema=SCHEMA.as_arrow()))
        rows |= new
    if version > 1 and rng.random() < 0.6:
        _delete(catalog.load_table(name), rows, rng)
    table = as_v3(catalog, name) if version == 3 else catalog.load_table(name)
    return Made(table, sorted(rows.values(), key=repr))


def _append(table: Table, rows: pa.Table) -> None:
    """Append rows, one file for each partition; PyIceberg itself needs another package for most transforms."""
    settings = WriteSettings.of(table.metadata, table.io.properties, 2**29)
    files = write_rows([rows], settings, FileNames("test", next(_numbers), 0))
    make_visible(table.catalog, table, [Append(tuple(files)).stage(SnapshotBuilder(table, 0), {})])


def _delete(table: Table, rows: dict[int, Row], rng: Random) -> None:
    """Delete a row by its position, another one by the value of a column, or both."""
    for how in rng.choice([["position"], ["value"], ["position", "value"]]):
        file, row = rng.choice([(file, row) for file, row in live_rows(table) if row[0] in rows])
        if how == "position":
            at = [each[0] for other, each in live_rows(table) if other.path == file.path].index(row[0])
            table = delete_positions(table, {file.path: [at]}, file.partition)
        else:
            table = delete_equal(table, ["id"], [[row[0]]], file.partition)
        del rows[row[0]]


def live_rows(table: Table) -> list[tuple[FileFact, Row]]:
    """The rows that no delete file applies to, each with its file as the manifests list it."""
    metadata, store, found = table.metadata, ManifestStore(), list[tuple[FileFact, Row]]()
    manifests = manifests_of(metadata.current_snapshot(), table.io, metadata.specs())
    index = DeleteIndex.of(store, table.io, manifests.deletes, metadata.specs())
    settings = WriteSettings.of(metadata, table.io.properties, 2**30)
    for manifest in manifests.data:
        facts = store.facts(table.io, manifest)
        for file in map(index.noted, facts.files(facts.live)):
            deleted = deleted_rows([file], settings, file.partition).positions
            for rows in read_inputs(FileGroup((file,), file.partition), settings, deleted=deleted):
                found += [(file, tuple(row[name] for name in NAMES)) for row in rows.to_pylist()]
    return found


def misplaced(table: Table) -> str | None:
    """Return a file whose partition values are not those of its rows."""
    spec = table.spec()
    for file, row in live_rows(table):
        expected = []
        for field in spec.fields:
            value = row[field.source_id - 1]
            kind = SCHEMA.find_type(field.source_id)
            internal = None if value is None else literal(value).to(kind).value
            expected.append(field.transform.transform(kind)(internal))
        if tuple(expected) != file.partition.values:
            return f"{file.path} is listed in {file.partition.values}, its row {row} belongs in {expected}"
    return None
