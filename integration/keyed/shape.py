"""The tables of random histories: formats, partitions, and the columns of key and order, decided by a seed."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    UUIDType,
)

from icesize.table.upserts.settings import WantedRule
from integration.keyed.model import Event, Row
from tests.support.v3_tables import as_v3

_LONG = "a prefix that is longer than the bounds of sixteen bytes "
_EPOCH = datetime(1970, 1, 1)
Value = Callable[[int], Any]


def _spread(number: int) -> int:
    """Numbers in no order."""
    return number * 618_034 % 1_000_003 - 500_000


KEYS: Mapping[str, Sequence[tuple[IcebergType, Value]]] = {
    "int": [(IntegerType(), _spread)],
    "long": [(LongType(), lambda n: _spread(n) << 33)],
    "string": [(StringType(), lambda n: f"k{_spread(n)}")],
    "long-string": [(StringType(), lambda n: f"{_LONG}{_spread(n)}")],
    "decimal": [(DecimalType(9, 2), lambda n: Decimal(_spread(n)).scaleb(-2))],
    "wide-decimal": [(DecimalType(38, 4), lambda n: Decimal(_spread(n) * 10**25).scaleb(-4))],
    "date": [(DateType(), lambda n: date(2000, 1, 1) + timedelta(days=n))],
    "binary": [(BinaryType(), lambda n: _spread(n).to_bytes(4, "big", signed=True))],
    "uuid": [(UUIDType(), lambda n: uuid.UUID(int=_spread(n) % 2**60 << 64 | n))],
    "int-string": [(IntegerType(), lambda n: n % 3), (StringType(), lambda n: f"{_spread(n)}")],
    "long-long": [(LongType(), lambda n: n % 5), (LongType(), _spread)],
    "three": [(LongType(), lambda n: n % 3), (StringType(), lambda n: "ab"[n % 2]), (DateType(), lambda n: _day(n))],
}  # fmt: skip
ORDERS: Mapping[str, Sequence[tuple[IcebergType, Value]]] = {
    "none": [],
    "long": [(LongType(), lambda n: n)],
    "int": [(IntegerType(), lambda n: n - 50)],
    "timestamp": [(TimestampType(), lambda n: n)],
    "decimal": [(DecimalType(12, 1), lambda n: Decimal(n).scaleb(-1))],
    "string": [(StringType(), lambda n: f"{_LONG}{n:06}")],
    "double": [(DoubleType(), lambda n: n / 8 - 3)],
    "two": [(TimestampType(), lambda n: n // 7), (IntegerType(), lambda n: n % 7)],
}  # fmt: skip
"""A timestamp is known by its hours since 1970."""
PROMOTABLE_ORDERS = ("int", "decimal", "two")
_WEIGHTS = {"none": 1, "long": 3, "int": 1, "timestamp": 3, "decimal": 1, "string": 1, "double": 1, "two": 2}
PARTITIONS = ("none", "none", "part", "part", "bucket", "part+bucket", "many")


def _day(number: int) -> date:
    return date(1999, 12, 31) + timedelta(days=number // 6)


@dataclass(frozen=True)
class Shape:
    """One kind of table.

    `properties` are those of the table, `most_single` is the limit of single delete files, `remembers` says whether
    deletes are remembered, and `map_bytes` is the most bytes of maps of keys, None without maps.
    """

    version: int
    partitions: str
    key: str
    order: str
    properties: Mapping[str, str]
    most_single: int
    remembers: bool = False
    map_bytes: int | None = None

    @classmethod
    def of(cls, chance: random.Random) -> Shape:
        """A kind of table, by chance."""
        properties = {"icesize.policy.max-delete-files": str(chance.choice([3, 4, 10]))}
        if chance.random() < 0.5:
            properties["write.target-file-size-bytes"] = str(chance.choice([3_000, 20_000]))
        order = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        return cls(
            chance.choice([2, 3]), chance.choice(PARTITIONS), chance.choice(list(KEYS)), order, properties,
            chance.choice([1, 1, 16]), order != "none" and chance.random() < 0.5,
            chance.choice([None, None, 1_500, 10_000, 10**9, 10**9]),
        )  # fmt: skip

    @property
    def key_ids(self) -> range:
        return range(1, 1 + len(KEYS[self.key]))

    @property
    def order_ids(self) -> range:
        return range(self.key_ids.stop, self.key_ids.stop + len(ORDERS[self.order]))

    @property
    def part_id(self) -> int:
        return self.order_ids.stop

    @property
    def version_id(self) -> int:
        return self.part_id + 1

    @property
    def ids(self) -> tuple[int, ...]:
        """Field ids in the order of a row's values."""
        return (*self.key_ids, *self.order_ids, self.part_id, self.version_id)

    def rule_of(self, table: Table, rule: str = "order") -> WantedRule:
        """The rule, by the names that the columns have now; a delete wins over equal orders. `rule` is one of RULES."""
        order_ids = {
            "order": [*self.order_ids], "order+version": [*self.order_ids, self.version_id],
            "version+order": [self.version_id, *self.order_ids],
        }[rule]  # fmt: skip
        key, order = ([table.schema().find_field(i).name for i in ids] for ids in (self.key_ids, order_ids))
        return WantedRule(key, order, ties="last_delete", tombstones="2 days" if self.remembers else None)

    def create(self, catalog: Catalog) -> Table:
        """The empty table `db.t`."""
        fields = [NestedField(i, f"k{i}", kind) for i, (kind, _) in zip(self.key_ids, KEYS[self.key], strict=True)]
        fields += [
            NestedField(i, f"o{i}", kind) for i, (kind, _) in zip(self.order_ids, ORDERS[self.order], strict=True)
        ]
        fields += [NestedField(self.part_id, "part", StringType()), NestedField(self.version_id, "version", LongType())]
        catalog.create_namespace_if_not_exists("db")
        table = catalog.create_table(
            "db.t", Schema(*fields), partition_spec=self._spec(), properties=dict(self.properties)
        )
        return as_v3(catalog) if self.version == 3 else table

    def _spec(self) -> PartitionSpec:
        sources = {
            "none": [], "part": [(self.part_id, "identity")], "bucket": [(1, "bucket[3]")],
            "part+bucket": [(self.part_id, "identity"), (1, "bucket[2]")], "many": [(1, "bucket[12]")],
        }[self.partitions]  # fmt: skip
        fields = [
            PartitionField(source, 1000 + i, parse_transform(transform), f"by{i}")
            for i, (source, transform) in enumerate(sources)
        ]
        return PartitionSpec(*fields, spec_id=0)

    def key_of(self, number: int) -> tuple[Any, ...]:
        """The key with this number."""
        return tuple(value(number) for _, value in KEYS[self.key])

    def order_of(self, number: int) -> tuple[Any, ...]:
        """The order with this number; a greater number is a later order."""
        return tuple(value(number) for _, value in ORDERS[self.order])

    def row(self, values: Sequence[Any]) -> Row:
        """A row from values in the order of `ids`."""
        keys, orders = len(self.key_ids), len(self.order_ids)
        return Row(tuple(values[:keys]), tuple(values[keys : keys + orders]), *values[keys + orders :])

    def arrow(self, table: Table, rows: Sequence[Row], columns: Sequence[int] | None = None) -> pa.Table:
        """Rows under the names and types that the table's columns have now."""
        schema, ids = table.schema(), self.ids
        types = {int(each.metadata[b"PARQUET:field_id"]): each.type for each in schema_to_pyarrow(schema)}
        values = [(*row.key, *row.order, row.part, row.version) for row in rows]
        names = {i: schema.find_field(i).name for i in columns or ids}
        return pa.table(
            {
                names[i]: pa.array([_stored(each[at], types[i]) for each in values], types[i])
                for at, i in enumerate(ids)
                if i in names
            }
        )

    def events(self, table: Table, events: Sequence[Event]) -> tuple[pa.Table, list[bool]]:
        """Events as a batch has them."""
        return self.arrow(table, [event.row for event in events]), [event.is_delete for event in events]


def _stored(value: Any, kind: pa.DataType) -> Any:
    if pa.types.is_timestamp(kind) and value is not None:
        return _EPOCH + timedelta(hours=value)
    return value.bytes if isinstance(value, uuid.UUID) else value
