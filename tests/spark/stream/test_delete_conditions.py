"""The same condition and the same ties in Arrow and in Spark."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import DoubleType, LongType, NestedField, StringType
from pyspark.sql import SparkSession

from icesize.spark.engine.columns import Conditions
from icesize.table.upserts.arrow_events import rows_deleted_by
from icesize.table.upserts.conditions import deletes
from tests.support.spark_lake import Lake

NAN, INFINITY = float("nan"), float("inf")
START = datetime(2026, 1, 1)
VALUES: dict[str, tuple[str, pa.DataType, list[Any], list[str]]] = {
    "op": ("string", pa.string(), ["", "c", "d", "de", "d%", "é", None], ["''", "'c'", "'d'", "'é'"]),
    "n": ("bigint", pa.int64(), [-(2**63), -1, 0, 7, None], ["0", "-1", "7", "9223372036854775807"]),
    "i": ("int", pa.int32(), [-(2**31), 0, 7, None], ["0", "7", "99999999999"]),
    "f": ("double", pa.float64(), [NAN, -INFINITY, -0.0, 0.0, 0.1, None], ["0.0", "0.1", "-0.0", "7.5"]),
    "g": ("float", pa.float32(), [NAN, -0.0, 0.1, 7.0, None], ["0.0", "0.1", "7.0"]),
    "m": ("decimal(6,2)", pa.decimal128(6, 2), [Decimal("-1.50"), Decimal("7.00"), None], ["7.0", "-1.5", "0.01"]),
    "flag": ("boolean", pa.bool_(), [True, False, None], ["true", "false"]),
    "day": ("date", pa.date32(), [date(1969, 12, 31), date(2026, 1, 1), None], ["'2026-01-01'"]),
    "at": ("timestamp_ntz", pa.timestamp("us"), [START, START + timedelta(hours=1), None], ["'2026-01-01T01:00:00'"]),
    "z": (
        "timestamp", pa.timestamp("us", "UTC"),
        [(START + timedelta(hours=hour)).replace(tzinfo=timezone.utc) for hour in (0, 1)] + [None],
        ["'2026-01-01T01:00:00'", "'2026-01-01T02:00:00+01:00'", "'2026-01-01'"],
    ),
}  # fmt: skip
NESTED = {"s": ("struct<op:string>", pa.struct({"op": pa.string()}), [None, {"op": None}, {"op": "d"}])}


def condition(chance: random.Random, depth: int = 3) -> str:
    if depth and chance.random() < 0.6:
        left, right = condition(chance, depth - 1), condition(chance, depth - 1)
        return chance.choice([f"({left} and {right})", f"({left} or {right})", f"not {left}", f"not ({left})"])
    name = chance.choice([*VALUES, "op", "s.op"])
    literals = VALUES[name.split(".")[-1]][3]
    value, several = chance.choice(literals), ", ".join(chance.sample(literals, min(len(literals), 2)))
    forms = [f"{name} is null", f"{name} is not null", f"{name} in ({several})", f"{name} not in ({several})"]
    forms += [f"{name} {sign} {value}" for sign in ("=", "!=", "<>", "<", "<=", ">", ">=")] + [f"{value} < {name}"]
    forms += [f"{name} like 'd%'", f"{name} not like 'd%'"] * 2 if name.endswith("op") else []
    forms += [f"{name} is nan", f"{name} is not nan"] * 2 if name in "fg" else []
    forms += ["flag", "not flag"] * 3 if name == "flag" else []
    return chance.choice(forms)


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_a_condition_has_one_meaning(spark: SparkSession, zone: str) -> None:
    """Random conditions select the same rows in Arrow and in Spark, in any time zone of the session."""
    chance = random.Random(zone)
    kinds = {name: each[:3] for name, each in {**VALUES, **NESTED}.items()}
    rows = [{name: chance.choice(values) for name, (_, _, values) in kinds.items()} for _ in range(150)]
    table = pa.Table.from_pylist(rows, pa.schema({name: kind for name, (_, kind, _) in kinds.items()}))
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", zone)
    try:
        schema = ", ".join(f"{name} {kind}" for name, (kind, _, _) in kinds.items())
        df = spark.createDataFrame([tuple(row.values()) for row in rows], schema)
        conditions = list(dict.fromkeys(condition(chance) for _ in range(120)))
        engine = Conditions(df.schema, str.lower)
        computed = df.select(*(deletes(each, "t", engine).alias(f"c{at}") for at, each in enumerate(conditions)))
        in_spark = computed.fillna(False).toArrow()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(before))
    for at, each in enumerate(conditions):
        assert in_spark.column(at).to_pylist() == rows_deleted_by(each, table, "t").tolist(), each


@pytest.mark.parametrize("seed", range(3))
def test_ties_have_one_meaning(spark: SparkSession, lake: Lake, seed: int) -> None:
    """The same events, with their columns in any order, leave the same rows: deletes, equal orders, NULL and NaN."""
    chance = random.Random(seed)
    kinds = {"id": "bigint", "at": "bigint", "x": "double", "y": "string", "op": "string"}
    values = [range(4), range(3), [NAN, -0.0, 0.0, 1.5, None], ["", "a", "b", None], ["d", "u", "u", None]]
    events = [dict(zip(kinds, map(chance.choice, values), strict=True)) for _ in range(40)]
    in_arrow = pa.Table.from_pylist(events).select(chance.sample(list(kinds), len(kinds)))
    names = chance.sample(list(kinds), len(kinds))
    df = spark.createDataFrame(
        [tuple(event[name] for name in names) for event in events], ", ".join(f"{name} {kinds[name]}" for name in names)
    )
    types = (LongType(), LongType(), DoubleType(), StringType())
    schema = Schema(
        *(NestedField(at, name, kind) for at, (name, kind) in enumerate(zip(kinds, types, strict=False), 1))
    )
    for table, rows in (("one", in_arrow), ("other", df)):
        lake.create(table, schema, {})
        lake.open(spark, table).upsert(rows, "id", "at", "op not in ('u', 'c')", except_columns="op", ties="max_row")
    assert repr(lake.rows("one")) == repr(lake.rows("other"))
