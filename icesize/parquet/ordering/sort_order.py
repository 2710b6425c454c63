"""Rows in the table's sort order, by Iceberg's rules of comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform, UnknownTransform, VoidTransform
from pyiceberg.types import IcebergType

from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.partitioning import same, source_array, source_path, transform_steps
from icesize.parquet.files.settings import WriteSettings, derived
from icesize.parquet.ordering.curves import Words
from icesize.parquet.ordering.sort_keys import Rows, as_key, sorted_positions, words_of

Rank = Callable[[pa.Array], pa.Array]


@dataclass(frozen=True)
class _Key:
    """One sort field: the path of its source, and a function to values whose natural order is Iceberg's."""

    path: tuple[int, ...]
    rank: Rank
    descending: bool
    nulls_last: bool

    def words(self, rows: pa.Table) -> list[Words]:
        """Return numbers that compare like the rows by this field."""
        values = self.rank(source_array(rows, self.path))
        return words_of(values, descending=self.descending, nulls_last=self.nulls_last)


class Sorter:
    """Sorts rows by the table's sort order number `order_id`.

    Equal rows keep their order. NaN is greater than all numbers, and -0.0 is less than 0.0. Text and bytes are compared
    as unsigned bytes. Values under a transform other than identity are compared by its results. A void field has no
    effect on the order.
    """

    def __init__(self, order_id: int, keys: list[_Key]) -> None:
        self.order_id = order_id
        self._keys = keys

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return the same rows, sorted; return the table itself if it is sorted already."""
        return self.arranged(rows)[0]

    def arranged(self, rows: pa.Table) -> tuple[pa.Table, Rows]:
        """Return the sorted rows, and the positions that they had."""
        words = [word for key in self._keys for word in key.words(rows)]
        order = sorted_positions(words) if words else np.arange(rows.num_rows)  # stable
        return (rows.take(pa.array(order)) if np.any(order[1:] < order[:-1]) else rows), order


@derived
def sorter_of(settings: WriteSettings) -> Sorter | None:
    """Return the sorter of the table's rows; None without a sort order, or if a field of it cannot be honored.

    Such a field has an unknown transform, or a source that was dropped or is not a single value of a row.
    """
    order = settings.sort_order
    if order.is_unsorted:
        return None
    fields = [field for field in order.fields if not isinstance(field.transform, VoidTransform)]
    sources = {leaf.field_id: leaf.type for leaf in leaves(settings) if leaf.flat}
    for field in fields:
        source = sources.get(field.source_id)
        if source is None or isinstance(field.transform, UnknownTransform) or not field.transform.can_transform(source):
            return None
    return Sorter(order.order_id, [_key(settings.schema, field) for field in fields])


def _key(schema: Schema, field: SortField) -> _Key:
    rank = _rank(field, schema.find_field(field.source_id).field_type)
    descending, nulls_last = field.direction == SortDirection.DESC, field.null_order == NullOrder.NULLS_LAST
    return _Key(source_path(schema, field.source_id), rank, descending, nulls_last)


def _rank(field: SortField, source: IcebergType) -> Rank:
    if isinstance(field.transform, IdentityTransform):
        return as_key
    reduce, value = transform_steps("", field.transform, source)
    if value is same:
        return reduce

    def rank(array: pa.Array) -> pa.Array:
        encoded = reduce(array).dictionary_encode()
        values = [value(v) for v in encoded.dictionary.to_pylist()]
        places = {v: place for place, v in enumerate(sorted(set(values)))}
        return pa.array([places[v] for v in values], pa.int64()).take(encoded.indices)

    return rank
