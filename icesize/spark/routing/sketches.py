"""Quantiles of the values of some partitions, by sketches: bounded memory in every process, one pass, no shuffle.

Apache DataSketches, built in Spark's Python workers over two columns of the batch and put together here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import PyObjectSerDe, kll_doubles_sketch, kll_items_sketch
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from icesize.spark.engine.jobs import run_job
from icesize.spark.engine.worker import as_answer, prepare, read_answer
from icesize.spark.routing.task_column import looked_up

QUANTILES = 1_000
"""Quantiles of a key: a range of them is a thousandth of its rows."""

KLL_SIZE = 800
"""Size k of the sketches of values: their ranks are off by 0.35 % (`get_normalized_rank_error`)."""

MOST_SAMPLED = 1_000_000
"""Rows whose values are looked at, of all tasks together: 0.03 s for numbers, 0.3 s for text."""

_KEY = "_icesize_key"
_VALUE = "_icesize_value"
_ORDERED = (
    spark_types.NumericType, spark_types.DateType, spark_types.TimestampType, spark_types.TimestampNTZType,
    spark_types.StringType,
)  # fmt: skip
# Python knows the years 1 to 9999; a day is left for zones.
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_DAY_US = 86_400_000_000
_WIDE = Context(prec=80)


def quantiles(
    df: DataFrame,
    key: Column,
    value: Column,
    wanted: Collection[int],
    rows: int,
    *,
    most_sampled: int = MOST_SAMPLED,
) -> dict[int, tuple[Any, ...]]:
    """`QUANTILES` equally spaced values of `value`, ascending, for each routing key of `wanted` that has some.

    j / `QUANTILES` of a key's rows are below its value j, within `KLL_SIZE`'s error. `rows` is about the number of rows
    of these keys, which says how many of them to pass over, so that about `most_sampled` are looked at. Values are
    numbers, decimals, dates, datetimes (without a zone where the column has none) or text; null and NaN do not count.
    Empty for columns of other types: they have no order, or none that bounds could be written for.
    """
    kept = df.select(key.alias(_KEY), value.alias(_VALUE))
    if not wanted or not isinstance(kept.schema[_VALUE].dataType, _ORDERED):
        return {}
    kept = kept.where(looked_up(F.col(_KEY), dict.fromkeys(wanted, 1), "int").isNotNull())
    merged: dict[int, Any] = {}
    kind: pa.DataType = pa.null()
    for answer in run_job(kept, ValueSketches(max(1, rows // most_sampled)), "look at the values of the batch"):
        kind, found = read_answer(answer)
        for each, data in found.items():
            sketch = _read(data, kind)
            if each in merged:
                merged[each].merge(sketch)
            else:
                merged[each] = sketch
    ranks = [j / QUANTILES for j in range(QUANTILES)]
    return {each: _values(sketch.get_quantiles(ranks), kind) for each, sketch in merged.items()}


@dataclass(frozen=True)
class ValueSketches:
    """Sketches the second column by the first (a long), every `step`-th row; answers with (type, sketches by key).

    The step is the same in all tasks: sketches that are merged must stand for equally many rows each.
    """

    step: int = 1

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        sketches: dict[int, Any] = {}
        kind: pa.DataType = pa.null()
        skipped = 0
        for batch in batches:
            kind = batch.schema.field(1).type
            picked = pa.Table.from_batches([batch]).take(np.arange(skipped, batch.num_rows, self.step))
            skipped = (skipped - batch.num_rows) % self.step
            for key, values in _by_key(picked):
                _update(sketches.setdefault(key, _new(kind)), values)
        if sketches:
            serde = [Utf8()] if _is_text(kind) else []
            yield as_answer((kind, {key: sketch.serialize(*serde) for key, sketch in sketches.items()}))


class Utf8(PyObjectSerDe):  # type: ignore[misc]
    """How text is stored in a sketch. The package's own PyStringsSerDe cannot store text beyond Latin-1."""

    def get_size(self, item: str) -> int:
        return 4 + len(item.encode())

    def to_bytes(self, item: str) -> bytes:
        data = item.encode()
        return len(data).to_bytes(4, "little") + data

    def from_bytes(self, data: bytes, offset: int) -> tuple[str, int]:
        start = offset + 4
        size = int.from_bytes(data[offset:start], "little")
        return data[start : start + size].decode(), 4 + size


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _new(kind: pa.DataType) -> Any:
    return kll_items_sketch(KLL_SIZE) if _is_text(kind) else kll_doubles_sketch(KLL_SIZE)


def _read(data: bytes, kind: pa.DataType) -> Any:
    return kll_items_sketch.deserialize(data, Utf8()) if _is_text(kind) else kll_doubles_sketch.deserialize(data)


def _update(sketch: Any, values: Any) -> None:
    if isinstance(values, np.ndarray):
        sketch.update(values)
    else:
        for value in values:
            sketch.update(value)


def _by_key(rows: pa.Table) -> Iterator[tuple[int, Any]]:
    """Keys with their values: numbers as doubles, text as it is."""
    key, value = rows.column(0), rows.column(1)
    text = _is_text(value.type)
    rows = pa.table({"key": key, "value": value if text else _doubles(value)})
    rows = rows.filter(pc.is_valid(value) if text else pc.equal(rows["value"], rows["value"])).sort_by("key")
    # the sketch takes arrays that could be written to only
    values = rows["value"].to_pylist() if text else np.array(rows["value"].to_numpy())
    keys, starts = np.unique(rows["key"].to_numpy(), return_index=True)
    for place, each in enumerate(keys.tolist()):
        yield each, values[starts[place] : starts[place + 1] if place + 1 < len(starts) else None]


def _doubles(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Numbers in the order of the values; times in days or microseconds since 1970."""
    kind = values.type
    if pa.types.is_date(kind):
        values = values.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        values = values.cast(pa.int64())
    return values.cast(pa.float64(), safe=False)


def _values(found: list[Any], kind: pa.DataType) -> tuple[Any, ...]:
    """Doubles as values of the column's type, text as it is."""
    if pa.types.is_date(kind):
        days = np.clip(found, _FIRST_DAY, _LAST_DAY).astype(np.int32)
        return tuple(pa.array(days).cast(kind).to_pylist())
    if pa.types.is_timestamp(kind):
        micros = np.clip(found, _FIRST_DAY * _DAY_US, _LAST_DAY * _DAY_US).astype(np.int64)
        # in UTC: of two times in one zone Python compares what the clock showed, which is set back once a year
        return tuple(pa.array(micros).cast(pa.timestamp("us", kind.tz and "UTC")).to_pylist())
    if pa.types.is_decimal(kind):
        unit = Decimal(1).scaleb(-kind.scale)
        most = (10**kind.precision - 1) * unit
        return tuple(min(max(Decimal(value).quantize(unit, context=_WIDE), -most), most) for value in found)
    if not pa.types.is_integer(kind):
        return tuple(found)
    # a double near the largest number may be above it
    most_int = 2 ** (kind.bit_width - 1) - 1
    return tuple(min(max(round(value), -most_int - 1), most_int) for value in found)
