"""What a batch holds, by sketches: bounded memory in every process, one pass, no shuffle.

Apache DataSketches, built in Spark's Python workers over some columns of the batch and put together here.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasketches import (
    PyObjectSerDe,
    frequent_items_error_type,
    frequent_strings_sketch,
    kll_doubles_sketch,
    kll_items_sketch,
)
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as spark_types

from icesize.parquet.files.partitioning import split_by_partition
from icesize.parquet.files.settings import WriteSettings, pruned
from icesize.parquet.reading.column_matching import ColumnAligner
from icesize.planning.files import PartitionKey
from icesize.planning.routing.expected_rows import MOST_KEYS
from icesize.spark.engine.jobs import run_job
from icesize.spark.engine.worker import as_answer, prepare, read_answer
from icesize.spark.routing.task_column import looked_up

LG_SIZE = 15
"""Size of the sketch of keys: 3/4 of 2^15 keys are counted, 1 MB with a sample row of each. Below that many, counts are
exact; above, off by at most 3.5 / 2^15 of all rows (`epsilon`), a 9,000th."""

QUANTILES = 1_000
"""Quantiles of a key: a range of them is a thousandth of its rows."""

KLL_SIZE = 800
"""Size k of the sketches of values: their ranks are off by 0.35 % (`get_normalized_rank_error`)."""

MOST_SAMPLED = 1_000_000
"""Rows whose values are looked at, of all tasks together: 0.03 s for numbers, 0.3 s for text."""

_KEY = "_icesize_key"
_VALUE = "_icesize_value"
_INDEX = "_icesize_index"
_ORDERED = (
    spark_types.NumericType, spark_types.DateType, spark_types.TimestampType, spark_types.TimestampNTZType,
    spark_types.StringType,
)  # fmt: skip
# Python knows the years 1 to 9999; a day is left for zones.
_FIRST_DAY, _LAST_DAY = -719_161, 2_932_895
_DAY_US = 86_400_000_000
_WIDE = Context(prec=80)


def heavy_keys(
    df: DataFrame, settings: WriteSettings, columns: list[str], key: Column
) -> tuple[dict[tuple[int, PartitionKey], int], int]:
    """Rows per (routing key, partition) of the `MOST_KEYS` heaviest keys, and the number of all rows.

    `columns` are those that partition values come from, at least one. Reads only them, and the batch once. Counts are
    exact for batches of up to 24,000 keys; of larger ones they may be too high by `LG_SIZE`'s share of all rows. Raises
    SchemaMismatch when a sample row does not fit the table, RewriteFailed when tasks fail for good.
    """
    kept = df.select(key.alias(_KEY), *(F.col(f"`{column}`") for column in columns))
    sketch = frequent_strings_sketch(LG_SIZE)
    samples: list[pa.Table] = []
    total = 0
    for answer in run_job(kept, HeavyKeys(), "count the batch"):
        data, rows_of_keys, rows = read_answer(answer)
        sketch.merge(frequent_strings_sketch.deserialize(data))
        samples.append(rows_of_keys)
        total += rows
    counts = _heaviest(sketch)
    if not counts:
        return {}, total
    wanted = _first_of(pa.concat_tables(samples), counts)
    return {pair: counts[pair[0]] for pair in partitions_of(wanted, settings, columns)}, total


def _counted(sketch: frequent_strings_sketch) -> list[tuple[int, int]]:
    """Every key that a sketch holds, with its count."""
    items = sketch.get_frequent_items(frequent_items_error_type.NO_FALSE_NEGATIVES, 0)
    return [(int(item), estimate) for item, estimate, _, _ in items]


def _heaviest(sketch: frequent_strings_sketch) -> dict[int, int]:
    return dict(sorted(_counted(sketch), key=lambda item: (-item[1], item[0]))[:MOST_KEYS])


def _first_of(samples: pa.Table, wanted: Collection[int]) -> pa.Table:
    """One sample of each wanted key."""
    samples = samples.filter(pc.is_in(samples[_KEY], pa.array(wanted, pa.int64())))
    rows = samples.select([_KEY]).append_column(_INDEX, pa.array(np.arange(len(samples))))
    return samples.take(rows.group_by(_KEY).aggregate([(_INDEX, "min")])[f"{_INDEX}_min"])


def partitions_of(samples: pa.Table, settings: WriteSettings, columns: list[str]) -> Iterator[tuple[int, PartitionKey]]:
    """Routing key and partition of each row, from its key (first column) and `columns`, at least one of them.

    Partitions are computed as where rows are written. Raises SchemaMismatch when a row does not fit the table.
    """
    sources = pruned(settings, columns)
    rows = ColumnAligner(sources)(samples.select(columns)).append_column(_INDEX, samples.column(0))
    for partition, group in split_by_partition(rows, sources):
        for key in group[_INDEX].to_pylist():
            yield key, partition


@dataclass(frozen=True)
class HeavyKeys:
    """Counts the first column (a long) of one task; answers with (sketch, a sample row of each key in it, rows)."""

    lg_size: int = LG_SIZE

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        prepare()
        sketch = frequent_strings_sketch(self.lg_size)
        samples = _Samples(most=2**self.lg_size)
        rows = 0
        for batch in batches:
            if batch.num_rows:
                rows += batch.num_rows
                keys, counts, first = _grouped(batch)
                for key, count in zip(keys, counts, strict=True):
                    sketch.update(str(key), count)
                samples.add(batch, keys, first, sketch)
        if rows:
            yield as_answer((sketch.serialize(), samples.of(sketch), rows))


def _grouped(batch: pa.RecordBatch) -> tuple[list[int], list[int], list[int]]:
    """The keys of a batch, their numbers of rows, and the first row of each."""
    rows = pa.table({"key": batch.column(0), "row": pa.array(np.arange(batch.num_rows))})
    grouped = rows.group_by("key").aggregate([("row", "count"), ("row", "min")])
    return tuple(grouped[name].to_pylist() for name in ("key", "row_count", "row_min"))


class _Samples:
    """One row of each key that a sketch holds; keys that it has dropped go when more than twice `most` are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[int] = set()
        self._rows: list[pa.Table] = []

    def add(self, batch: pa.RecordBatch, keys: list[int], first: list[int], sketch: frequent_strings_sketch) -> None:
        new = [row for key, row in zip(keys, first, strict=True) if key not in self._known]
        if new:
            self._known.update(keys)
            self._rows.append(pa.Table.from_batches([batch]).take(pa.array(new)))
        if len(self._known) > 2 * self._most:
            self._rows = [self.of(sketch)]
            self._known = set(self._rows[0].column(0).to_pylist())

    def of(self, sketch: frequent_strings_sketch) -> pa.Table:
        rows = pa.concat_tables(self._rows)
        held = pa.array([key for key, _ in _counted(sketch)], pa.int64())
        return rows.filter(pc.is_in(rows.column(0), held)).combine_chunks()


def quantiles(
    df: DataFrame, key: Column, value: Column, wanted: Collection[int], rows: int
) -> dict[int, tuple[Any, ...]]:
    """`QUANTILES` equally spaced values of `value`, ascending, for each routing key of `wanted` that has some.

    j / `QUANTILES` of a key's rows are below its value j, within `KLL_SIZE`'s error.
    `rows` is about the number of rows of these keys, which says how many of them to pass over. Values are numbers,
    decimals, dates, datetimes (without a zone where the column has none) or text; null and NaN do not count. Empty for
    columns of other types: they have no order, or none that bounds could be written for.
    """
    kept = df.select(key.alias(_KEY), value.alias(_VALUE))
    if not wanted or not isinstance(kept.schema[_VALUE].dataType, _ORDERED):
        return {}
    kept = kept.where(looked_up(F.col(_KEY), dict.fromkeys(wanted, 1), "int").isNotNull())
    merged: dict[int, Any] = {}
    kind: pa.DataType = pa.null()
    for answer in run_job(kept, ValueSketches(max(1, rows // MOST_SAMPLED)), "look at the values of the batch"):
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
