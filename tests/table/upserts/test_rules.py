"""Any columns of a table as its key and its order."""

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from icesize.table.upserts.settings import WantedRule
from tests.support.examples import sampled
from tests.support.tables import sqlite_catalog
from tests.support.upserts import upsert_rows

COLUMNS = ["a", "b", "c", "v"]


class Row(NamedTuple):
    a: int
    b: str
    c: int
    v: int

    def at(self, columns: list[str]) -> tuple[int | str, ...]:
        return tuple(getattr(self, column) for column in columns)


@pytest.mark.parametrize("seed", sampled(range(16), 4))
def test_key_and_order_may_share_columns(seed: int, tmp_path: Path) -> None:
    """The greatest order wins, also if columns of the order are in the key, first, last or in between."""
    chance = random.Random(seed)
    key = chance.sample(COLUMNS[:3], chance.choice([2, 2, 3]))
    order = [key[0], *chance.sample([each for each in COLUMNS if each != key[0]], 2)]
    catalog = sqlite_catalog(tmp_path)
    catalog.create_namespace_if_not_exists("db")
    kinds = dict(zip(COLUMNS, (LongType(), StringType(), LongType(), LongType()), strict=True))
    fields = [NestedField(number, name, kind) for number, (name, kind) in enumerate(kinds.items(), 1)]
    catalog.create_table("db.t", Schema(*fields))
    expected = dict[tuple[int | str, ...], Row]()
    for batch in range(5):
        rows = [
            Row(chance.randrange(2), chance.choice("xy"), chance.randrange(3), chance.randrange(9)) for _ in range(6)
        ]
        # of equal orders, the greatest row of a batch wins, and the row of an earlier batch stays
        for row in sorted(rows, key=lambda row: (row.at(order), row), reverse=True):
            known = expected.get(row.at(key))
            if known is None or row.at(order) > known.at(order):
                expected[row.at(key)] = row
        table = pa.Table.from_pylist([row._asdict() for row in rows])
        upsert_rows(catalog, table, [False] * len(rows), batch, WantedRule(key, order, ties="max_row"))
        seen = {Row(**row).at(key): Row(**row) for row in catalog.load_table("db.t").scan().to_arrow().to_pylist()}
        assert seen == expected, (key, order)
