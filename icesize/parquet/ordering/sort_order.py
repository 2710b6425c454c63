"""Rows in the table's sort order, by Iceberg's rules of what comes first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import DoubleType, FloatType, IcebergType

from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.partitioning import integers, same, source_array, source_path, transform_steps
from icesize.parquet.files.settings import WriteSettings

Rank = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class _Key:
    """One sort field: where its source is, and a step to values whose natural order is Iceberg's."""

    path: tuple[int, ...]
    rank: Rank
    direction: str
    nulls_first: bool


class Sorter:
    """Sorts rows by the table's sort order number `order_id`.

    Equal rows keep their order. NaN is greater than all numbers, -0.0 less than 0.0; text and bytes are compared as
    unsigned bytes, values of other transforms than identity as what the transform makes of them. A void field orders
    nothing.
    """

    def __init__(self, order_id: int, keys: list[_Key]) -> None:
        self.order_id = order_id
        self._keys = keys

    def __call__(self, rows: pa.Table) -> pa.Table:
        """The same rows, sorted; the table itself when it is."""
        columns: dict[str, pa.Array] = {}
        keys = []
        for number, key in enumerate(self._keys):
            values = key.rank(source_array(rows, key.path))
            if values.null_count:
                columns[f"filled {number}"] = values.is_valid()
                keys.append((f"filled {number}", "ascending" if key.nulls_first else "descending"))
            columns[f"value {number}"] = values
            keys.append((f"value {number}", key.direction))
        if not keys:
            return rows
        order = pc.sort_indices(pa.table(columns), sort_keys=keys)  # stable
        return rows.take(order) if pc.any(pc.less(order[1:], order[:-1])).as_py() else rows


def sorter_of(settings: WriteSettings) -> Sorter | None:
    """What sorts rows of the table, None when it has no sort order or one with a field that cannot be honoured: a
    transform that is unknown, or a source that was dropped or is no single value of a row.
    """
    return settings.derived(_sorter)


def _sorter(settings: WriteSettings) -> Sorter | None:
    if not settings.sort_order_json:
        return None
    order = SortOrder.model_validate_json(settings.sort_order_json)
    fields = [field for field in order.fields if not isinstance(field.transform, VoidTransform)]
    sources = {leaf.field_id: leaf.type for leaf in leaves(settings) if leaf.flat}
    for field in fields:
        source = sources.get(field.source_id)
        if source is None or isinstance(field.transform, UnknownTransform) or not field.transform.can_transform(source):
            return None
    return Sorter(order.order_id, [_key(settings.schema, field) for field in fields])


def _key(schema: Schema, field: SortField) -> _Key:
    source = schema.find_field(field.source_id).field_type
    direction = "ascending" if field.direction == SortDirection.ASC else "descending"
    nulls_first = field.null_order == NullOrder.NULLS_FIRST
    return _Key(source_path(schema, field.source_id), _rank(field, source), direction, nulls_first)


def _rank(field: SortField, source: IcebergType) -> Rank:
    if isinstance(field.transform, IdentityTransform) and isinstance(source, (FloatType, DoubleType)):
        return ranked_floats
    reduce, value = transform_steps("", field.transform, source)
    if value is same:
        return reduce

    def rank(array: pa.Array) -> pa.Array:
        encoded = reduce(array).dictionary_encode()
        values = [value(v) for v in encoded.dictionary.to_pylist()]
        places = {v: place for place, v in enumerate(sorted(set(values)))}
        return pa.array([places[v] for v in values], pa.int64()).take(encoded.indices)

    return rank


def ranked_floats(array: pa.Array) -> pa.Array:
    """Integers in the order of the floats: the bits of negative ones run backwards."""
    bits = integers(array)
    top = pa.scalar(2 ** (bits.type.bit_width - 1) - 1, bits.type)
    forwards = pc.if_else(pc.less(bits, pa.scalar(0, bits.type)), pc.bit_wise_xor(bits, top), bits)
    return pc.if_else(pc.is_nan(array), top, forwards)
