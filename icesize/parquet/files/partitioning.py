"""Rows -> partitions, with the results of Iceberg's transforms.

icesize has its own functions on arrays. PyIceberg's transforms also take Arrow arrays, but need pyiceberg-core. That is
39 MB of native code, which every Spark worker would have to install. Measured with PyIceberg 0.12 and pyiceberg-core
0.11, the values are the same for all source types, nulls, values below zero and years outside 1-9999. However,
`truncate` of pyiceberg-core refuses the large_binary of PyIceberg's own Arrow schema.

icesize transforms each distinct value once. Buckets of a million strings, 20,000 of them distinct, take 0.09 s (0.16 s
with pyiceberg-core). Buckets of a million distinct longs take 0.9 s (0.08 s with pyiceberg-core).
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg import transforms, types
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Accessor, Schema

from icesize.errors import SchemaMismatch
from icesize.parquet.files.properties import NANOSECONDS
from icesize.parquet.files.settings import WriteSettings, derived
from icesize.planning.files import PartitionKey

Reduce = Callable[[pa.Array], pa.Array]
ValueTransform = Callable[[Any], Any]

_DAY_US = 86_400_000_000
_HOUR_US = 3_600_000_000
_MICROSECOND_NS = 1_000


def split_by_partition(table: pa.Table, settings: WriteSettings) -> list[tuple[PartitionKey, pa.Table]]:
    """Return the rows of each partition: partitions in order of first appearance, rows in their order.

    `table` has the table's columns (`ColumnAligner`). Partition values have the types that PyIceberg stores in a data
    file's partition: integers for days, hours, months, years and timestamps, `Decimal`, `UUID`, `bytes`, and None for
    null. Raises `SchemaMismatch` for NaN under an identity transform.
    """
    table, ranges = arrange_by_partition(table, settings)
    groups, start = [], 0
    for key, rows in ranges:
        groups.append((key, table.slice(start, rows)))
        start += rows
    return groups


def arrange_by_partition(table: pa.Table, settings: WriteSettings) -> tuple[pa.Table, list[tuple[PartitionKey, int]]]:
    """Return the rows of `split_by_partition` as one table, and each run's partition and number of rows."""
    fields = _fields(settings)
    codes, keys = _codes(table, fields, settings.spec_id)
    if len(keys) == 1:
        return table, [(keys[0], table.num_rows)]
    if pc.any(pc.less(codes[1:], codes[:-1])).as_py():
        order = pc.sort_indices(codes)  # stable
        table, codes = table.take(order), codes.take(order)
    return table, [(keys[run["values"]], run["counts"]) for run in pc.value_counts(codes).to_pylist()]


@dataclass(frozen=True)
class _Field:
    """One partition field: its name, the path of its source, a vectorized step, and a step on distinct values."""

    name: str
    path: tuple[int, ...] | None
    reduce: Reduce
    value: ValueTransform

    def encode(self, table: pa.Table) -> tuple[pa.Array, list[object]]:
        """Return a code per row, and the partition value of each code."""
        if self.path is None:
            return pa.nulls(table.num_rows, pa.int64()).fill_null(0), [None]
        values = source_array(table, self.path)
        try:
            encoded = self.reduce(values).dictionary_encode()
            distinct = [self.value(v) for v in encoded.dictionary.to_pylist()]
        except (UnicodeDecodeError, pa.ArrowInvalid) as error:
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                raise
            raise SchemaMismatch(
                f"Cannot write into partition field '{self.name}': a value is no UTF-8 text, which Iceberg's metadata "
                "cannot store; replace it before writing",
                field=self.name,
            ) from error
        indices = encoded.indices.cast(pa.int64())
        if encoded.null_count:
            indices = indices.fill_null(len(distinct))
            distinct.append(None)
        # several source values can share a partition value; 0.0 and -0.0 are two values, although equal in Python
        positions: dict[tuple[str, object], int] = {}
        codes = [positions.setdefault((str(v), v), len(positions)) for v in distinct]
        return pa.array(codes, pa.int64()).take(indices), [value for _, value in positions]


def source_array(table: pa.Table, path: tuple[int, ...]) -> pa.Array:
    """Return the values at a `source_path`; null if a struct above is null."""
    column = table.column(path[0])
    if len(path) > 1:
        column = pc.struct_field(column, list(path[1:]))
    array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _codes(table: pa.Table, fields: list[_Field], spec_id: int) -> tuple[pa.Array, list[PartitionKey]]:
    """Return a code per row, dense and in order of first appearance, and the partition of each code."""
    codes = pa.nulls(table.num_rows, pa.int64()).fill_null(0)
    keys: list[tuple[object, ...]] = [()]
    for field in fields:
        inner, values = field.encode(table)
        encoded = pc.add(pc.multiply(codes, len(values)), inner).dictionary_encode()
        codes = encoded.indices.cast(pa.int64())
        pairs = [divmod(code, len(values)) for code in encoded.dictionary.to_pylist()]
        keys = [(*keys[outer], values[position]) for outer, position in pairs]
    return codes, [PartitionKey.of(spec_id, key) for key in keys]


@derived
def _fields(settings: WriteSettings) -> list[_Field]:
    schema, found = settings.schema, []
    for field in settings.spec.fields:
        if isinstance(field.transform, transforms.VoidTransform):
            found.append(_Field(field.name, None, same, same))
        else:
            source = schema.find_field(field.source_id).field_type
            steps = transform_steps(field.name, field.transform, source)
            found.append(_Field(field.name, source_path(schema, field.source_id), *steps))
    return found


def source_columns(spec: PartitionSpec, schema: Schema) -> list[str]:
    """Return the top-level columns from which partition values are computed; those of void fields may be gone."""
    sources = [field.source_id for field in spec.fields if not isinstance(field.transform, transforms.VoidTransform)]
    positions = {source_path(schema, source)[0] for source in sources}
    return [field.name for position, field in enumerate(schema.fields) if position in positions]


def source_path(schema: Schema, field_id: int) -> tuple[int, ...]:
    """Return the positions from the table's columns down to the field.

    Iceberg allows sources in structs, but not in lists or maps.
    """
    positions: list[int] = []
    accessor: Accessor | None = schema.accessor_for_field(field_id)
    while accessor is not None:
        positions.append(accessor.position)
        accessor = accessor.inner
    return tuple(positions)


def transform_steps(name: str, transform: Any, source: types.IcebergType) -> tuple[Reduce, ValueTransform]:
    """Return the transform of partition field `name` as a step on arrays and a step on their distinct values.

    The second step is `same` if the first one does everything.
    """
    unit = _MICROSECOND_NS if isinstance(source, NANOSECONDS) else 1
    if isinstance(transform, transforms.HourTransform):
        return lambda array: _floor(integers(array), _HOUR_US * unit), same
    if isinstance(transform, transforms.TimeTransform):
        days = integers if isinstance(source, types.DateType) else lambda array: _floor(integers(array), _DAY_US * unit)
        return days, _calendar(transform)
    if isinstance(transform, transforms.BucketTransform):
        # text is hashed by its bytes, and need not be UTF-8
        return as_bytes if isinstance(source, types.StringType) else plain, _bucket(source, transform)
    if isinstance(transform, transforms.TruncateTransform):
        return _truncate(source, transform)
    if isinstance(transform, transforms.IdentityTransform):
        return _identity(name, source)
    raise NotImplementedError(str(transform))


def same(value: Any) -> Any:
    """Return the value itself."""
    return value


def plain(array: pa.Array) -> pa.Array:
    """Return dates, times and timestamps as integers and uuids as bytes; return other arrays unchanged."""
    if isinstance(array, pa.ExtensionArray):
        return array.storage
    return integers(array) if pa.types.is_temporal(array.type) else array


def as_bytes(array: pa.Array) -> pa.Array:
    """Return text as its bytes."""
    return array.cast(pa.large_binary() if pa.types.is_large_string(array.type) else pa.binary())


def integers(array: pa.Array) -> pa.Array:
    """Return the same bits as integers."""
    return array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())


def ranked_floats(array: pa.Array) -> pa.Array:
    """Return integers in the order of the floats: the bits of negative floats are in reverse order."""
    bits = integers(array)
    top = pa.scalar(2 ** (bits.type.bit_width - 1) - 1, bits.type)
    forwards = pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), pc.bit_wise_xor(bits, top), bits)
    return pc.if_else(pc.is_nan(array), top, forwards)


def _floor(array: pa.Array, unit: int) -> pa.Array:
    """Divide and round down, also before 1970; Arrow's own division rounds towards zero."""
    divisor = pa.scalar(unit, array.type)
    quotient = pc.divide(array, divisor)
    below = pc.less(array, pc.multiply(quotient, divisor))
    return pc.subtract(quotient, below.cast(array.type))


def _calendar(transform: transforms.TimeTransform[Any]) -> ValueTransform:
    """Return a function from a day to months or years since 1970.

    PyIceberg's function fails outside of Python's years 1-9999; numpy's does not.
    """
    if isinstance(transform, transforms.DayTransform):
        return same
    unit = "M8[M]" if isinstance(transform, transforms.MonthTransform) else "M8[Y]"
    return lambda day: int(np.datetime64(day, "D").astype(unit).astype(np.int64))


def _bucket(source: types.IcebergType, transform: transforms.BucketTransform[Any]) -> ValueTransform:
    """Return the bucket of a value with PyIceberg's hash and a modulo of icesize's own.

    With PyIceberg's modulo a value takes 3 us, otherwise 0.3 us.
    """
    hashed: ValueTransform = transform.transform(source, bucket=False)
    buckets = transform.num_buckets
    return lambda value: (hashed(value) & 0x7FFF_FFFF) % buckets


def _truncate(source: types.IcebergType, transform: transforms.TruncateTransform[Any]) -> tuple[Reduce, ValueTransform]:
    width = transform.width
    if isinstance(source, types.StringType):
        return lambda array: pc.utf8_slice_codeunits(array, 0, width), same  # code points, as Iceberg counts
    if isinstance(source, types.BinaryType):
        return lambda array: pc.binary_slice(array, 0, width), same
    if isinstance(source, types.DecimalType):
        return same, transform.transform(source)
    # Java's integers overflow below their smallest value, and Arrow's do as well
    return lambda array: pc.multiply(_floor(array, width), pa.scalar(width, array.type)), same


def _identity(name: str, source: types.IcebergType) -> tuple[Reduce, ValueTransform]:
    if isinstance(source, (types.FloatType, types.DoubleType)):
        code, bits = ("<i", "<f") if isinstance(source, types.FloatType) else ("<q", "<d")
        return lambda array: _float_bits(name, array), lambda v: struct.unpack(bits, struct.pack(code, v))[0]
    if isinstance(source, types.UUIDType):
        return plain, lambda value: UUID(bytes=value)
    return plain, same


def _float_bits(name: str, array: pa.Array) -> pa.Array:
    if pc.any(pc.is_nan(array)).as_py():
        raise SchemaMismatch(
            f"Cannot write NaN into partition field '{name}': Iceberg's metadata does not distinguish such partitions; "
            "replace NaN by null before writing",
            field=name,
        )
    return integers(array)
