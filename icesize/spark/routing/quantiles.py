"""Quantiles of the values of some partitions: a sample of their rows, sorted in this process.

No Python worker is started, and values keep their types. A sample of n rows puts a rank off by 0.5 / sqrt(n) at most
(standard deviation): 0.16 % where all of `MOST_SAMPLED` are of one partition.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from icesize.spark.engine.jobs import fetch
from icesize.spark.routing.task_column import looked_up

QUANTILES = 1_000
"""Quantiles of a key: a range of them is a thousandth of its rows."""

MOST_SAMPLED = 100_000
"""Rows whose values come to this process, of all keys together."""

MOST_CHARACTERS = 1_000
"""Of a text; the sample then takes 0.1 GB at most, and no table's rows are equal in so many."""

_KEY = "_icesize_key"
_VALUE = "_icesize_value"
_ORDERED = (
    spark_types.NumericType, spark_types.DateType, spark_types.TimestampType, spark_types.TimestampNTZType,
    spark_types.StringType,
)  # fmt: skip
# Python knows the years 1 to 9999; a day is left for zones.
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_DAY_US = 86_400_000_000


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

    j / `QUANTILES` of a key's sampled rows are below its value j. `rows` is about the number of rows of these keys,
    which says what part of them to sample, so that it is about `most_sampled`. Values are numbers, decimals, dates,
    datetimes (without a zone where the column has none) or text; null and NaN do not count. Empty for columns of other
    types: they have no order, or none that bounds could be written for.
    """
    kept = df.select(key.alias(_KEY), value.alias(_VALUE))
    kind = kept.schema[_VALUE].dataType
    if not wanted or not isinstance(kind, _ORDERED):
        return {}
    if isinstance(kind, spark_types.StringType):
        kept = kept.withColumn(_VALUE, F.substring(_VALUE, 1, MOST_CHARACTERS))
    kept = kept.where(looked_up(F.col(_KEY), dict.fromkeys(wanted, 1), "int").isNotNull())
    sample = fetch(kept.sample(min(1.0, most_sampled / max(1, rows)), seed=0))
    # neither null nor NaN equals itself
    sample = sample.filter(pc.equal(sample[_VALUE], sample[_VALUE]))
    sample = sample.sort_by([(_KEY, "ascending"), (_VALUE, "ascending")])
    keys, starts, counts = np.unique(sample[_KEY].to_numpy(), return_index=True, return_counts=True)
    return {
        int(each): _as_python(sample[_VALUE].take(start + np.arange(QUANTILES) * count // QUANTILES))
        for each, start, count in zip(keys, starts, counts, strict=True)
    }


def _as_python(values: pa.ChunkedArray) -> tuple[Any, ...]:
    kind = values.type
    if pa.types.is_date(kind):
        return tuple(_within(values, pa.int32(), _FIRST_DAY, _LAST_DAY).cast(kind).to_pylist())
    if pa.types.is_timestamp(kind):
        micros = _within(values, pa.int64(), _FIRST_DAY * _DAY_US, _LAST_DAY * _DAY_US)
        # in UTC: of two times in one zone Python compares what the clock showed, which is set back once a year
        return tuple(micros.cast(pa.timestamp("us", kind.tz and "UTC")).to_pylist())
    return tuple(values.to_pylist())


def _within(values: pa.ChunkedArray, number: pa.DataType, least: int, most: int) -> pa.Array:
    return pa.array(np.clip(values.cast(number).to_numpy(), least, most), number)
