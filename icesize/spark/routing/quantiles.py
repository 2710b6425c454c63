"""Quantiles of the values of some partitions, from a sample of their rows that is sorted in this process.

No Python worker is started, and values keep their types. The rank of a sample of n rows has a standard deviation of at
most 0.5 / sqrt(n): 0.16 % if all of `MOST_SAMPLED` are of one partition.
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
"""Quantiles of a key: the range between two of them has a thousandth of the key's rows."""

MOST_SAMPLED = 100_000
"""Rows whose values this process fetches, of all keys together."""

MOST_CHARACTERS = 1_000
"""Characters of a string in the sample, which then takes at most 0.1 GB; rows of real tables differ within so many."""

_KEY = "_icesize_key"
_VALUE = "_icesize_value"
_ORDERED = (
    spark_types.NumericType, spark_types.DateType, spark_types.TimestampType, spark_types.TimestampNTZType,
    spark_types.StringType,
)  # fmt: skip
# Python's dates have the years 1 to 9999; one day at each end is kept free for time zones.
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
    """Return `QUANTILES` equally spaced values of `value`, ascending, for each routing key of `wanted` that has values.

    j / `QUANTILES` of a key's sampled rows are below its value j. `rows` is the approximate number of rows of these
    keys; it sets the sampled share, so that the sample has about `most_sampled` rows. Values are numbers, decimals,
    dates, datetimes (without a zone if the column has none) or strings; null, NaN and text that is no UTF-8 do not
    count. The result is empty for columns of other types, which have no order, or none that a bound can express.
    """
    kept = df.select(key.alias(_KEY), value.alias(_VALUE))
    kind = kept.schema[_VALUE].dataType
    if not wanted or not isinstance(kind, _ORDERED):
        return {}
    if isinstance(kind, spark_types.StringType):
        kept = kept.withColumn(_VALUE, F.substring(_VALUE, 1, MOST_CHARACTERS))
        kept = kept.where(F.encode(_VALUE, "UTF-8") == F.col(_VALUE).cast("binary"))  # Python reads no other text
    kept = kept.where(looked_up(F.col(_KEY), dict.fromkeys(wanted, 1), "int").isNotNull())
    sample = fetch(kept.sample(min(1.0, most_sampled / max(1, rows)), seed=0))
    # Neither null nor NaN equals itself, so the filter drops both.
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
        # UTC, because Python compares two times of one zone by wall clock, which repeats an hour once a year.
        return tuple(micros.cast(pa.timestamp("us", kind.tz and "UTC")).to_pylist())
    return tuple(values.to_pylist())


def _within(values: pa.ChunkedArray, number: pa.DataType, least: int, most: int) -> pa.Array:
    return pa.array(np.clip(values.cast(number).to_numpy(), least, most), number)
