"""Upserts of values that Python does not have: text that is no UTF-8, times after 9999; and UUIDs as an order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import BucketTransform, VoidTransform
from pyiceberg.types import DateType, LongType, NestedField, PrimitiveType, StringType, TimestampType, UUIDType

import icesize
from icesize.errors import BatchError
from icesize.table.upserts.settings import WantedRule
from tests.support.tables import sqlite_catalog
from tests.support.upserts import upsert_rows

INFINITY_US = 9_223_371_331_200_000_000
"""Debezium's `infinity` of Postgres: the year 294247."""


def text(numbers: Sequence[int]) -> pa.Array:
    return pa.array([b"a\xff" + bytes([64 + number]) for number in numbers]).view(pa.string())


def times(numbers: Sequence[int]) -> pa.Array:
    return pa.array([INFINITY_US + number for number in numbers]).cast(pa.timestamp("us"))


def days(numbers: Sequence[int]) -> pa.Array:
    return pa.array([2**30 + number for number in numbers], pa.int32()).cast(pa.date32())


def uuids(numbers: Sequence[int]) -> pa.Array:
    return pa.array([bytes([200 + number]) * 16 for number in numbers], pa.binary(16))


KINDS: dict[str, tuple[PrimitiveType, Any]] = {
    "text": (StringType(), text), "times": (TimestampType(), times), "days": (DateType(), days),
    "uuids": (UUIDType(), uuids),
}  # fmt: skip


def rows_of(kind: str, *rows: tuple[int, int, int]) -> pa.Table:
    """Rows of key, order and version; also a column that nobody compares."""
    keys, orders, versions = (list(column) for column in zip(*rows, strict=True))
    make = KINDS[kind][1]
    return pa.table({"k": make(keys), "o": make(orders), "v": versions, "until": times(versions)})


def versions(catalog: Catalog) -> list[int]:
    return sorted(catalog.load_table("db.t").scan(selected_fields=("v",)).to_arrow().column(0).to_pylist())


@pytest.fixture(params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def catalog(tmp_path: Path, kind: str) -> Catalog:
    """A table of such keys and orders in buckets of the key, with a partition field whose column was dropped."""
    catalog = sqlite_catalog(tmp_path)
    of_kind = KINDS[kind][0]
    fields = [NestedField(1, "k", of_kind), NestedField(2, "o", of_kind), NestedField(3, "v", LongType())]
    schema = Schema(*fields, NestedField(4, "until", TimestampType()), NestedField(5, "gone", LongType()))
    spec = PartitionSpec(
        PartitionField(5, 1000, VoidTransform(), "void"), PartitionField(1, 1001, BucketTransform(2), "bucket")
    )
    catalog.create_table("db.t", schema, partition_spec=spec).update_schema().delete_column("gone").commit()
    return catalog


def test_events_are_compared(catalog: Catalog, kind: str) -> None:
    """The greatest order wins, in a batch and across; an event that came twice is one; the greatest row breaks ties."""
    rule = WantedRule("k", "o", ties="max_row")
    upsert_rows(catalog, rows_of(kind, (1, 1, 11), (2, 5, 21)), [False, False], 0, rule)
    batch = rows_of(kind, (1, 2, 12), (1, 2, 12), (2, 4, 22), (3, 1, 31), (3, 1, 32))
    report = upsert_rows(catalog, batch, [False] * 5, 1, rule)
    assert versions(catalog) == [12, 21, 32]
    assert report.upsert == {"events": 5, "keys": 3, "late": 1, "updated": 1, "deleted": 0, "doubled": 0}
    upsert_rows(catalog, rows_of(kind, (3, 2, 33)), [True], 2, rule)
    assert versions(catalog) == [12, 21]


def test_doubled_keys_are_named_and_cleaned(catalog: Catalog, kind: str) -> None:
    """A late event leaves the newest row of a key that others doubled, and so does `deduplicate`."""
    rule = WantedRule("k", "o")
    with pytest.raises(BatchError, match=r"different events of the same order.*: \(k=.*\)"):
        upsert_rows(catalog, rows_of(kind, (1, 3, 13), (1, 3, 14)), [False, False], 0, rule)
    upsert_rows(catalog, rows_of(kind, (1, 3, 13), (2, 1, 21)), [False, False], 0, rule)
    for batch in (1, 2):
        # another writer does not know the rule
        other = WantedRule("v", "o")
        with catalog.load_table("db.t").transaction() as change:
            stored = change.table_metadata.properties["icesize.upsert"]
            change.remove_properties("icesize.upsert")
        upsert_rows(catalog, rows_of(kind, (1, 1, 11), (1, 2, 12)), [False, False], batch * 10, other)
        with catalog.load_table("db.t").transaction() as change:
            change.set_properties({"icesize.upsert": stored})
        assert versions(catalog) == [11, 12, 13, 21]
        if batch == 1:
            report = upsert_rows(catalog, rows_of(kind, (1, 1, 10)), [False], batch * 10 + 1, rule)
            assert report.upsert["doubled"] == 1
        else:
            cleaned = icesize.open(None, "db.t", catalog=catalog).deduplicate()
            assert (cleaned.doubled_keys, cleaned.rows_deleted) == (1, 2)
        assert versions(catalog) == [13, 21]
