"""Values in their order, as Arrow compares them: no value becomes a Python object.

Python has no text that is no UTF-8 and no time after the year 9999, and data files have both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import types

from icesize.parquet.files.partitioning import ranked_floats
from icesize.parquet.keys.codes import Places

Ranks = NDArray[np.int64]


def sortable(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return values that Arrow sorts and compares in the order of Iceberg: UUIDs are bytes."""
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return column.cast(pa.binary()) if types.is_fixed_size_binary(column.type) else column


def by_order(
    first: Mapping[str, pa.Array], order: Sequence[pa.ChunkedArray], last: Mapping[str, pa.Array] | None = None
) -> Places:
    """Return the places of rows by the `first` columns, then by the columns of an order, then by the `last` ones.

    NULL is older than any value: the column is younger than the row. NaN is older than any number.
    """
    columns = dict[str, pa.Array | pa.ChunkedArray](first)
    for number, column in enumerate(order):
        if column.null_count:
            columns[f"known{number}"] = column.is_valid()
        if types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py():
            columns[f"number{number}"] = pc.invert(pc.is_nan(column))
        columns[f"order{number}"] = sortable(column)
    table = pa.table({**columns, **(last or {})})
    places: Places = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()
    return places.astype(np.intp)


def row_ranks(rows: pa.Table) -> Ranks:
    """Return numbers that compare like rows, column by column; NULL is before any value, and NaN after all numbers.

    Rows are equal if all their values are: 0.0 and -0.0 differ. Lists compare by their elements, and maps by their
    entries.
    """
    if not rows.num_columns:
        return np.zeros(rows.num_rows, np.int64)
    return _together([_ranks(column.combine_chunks()) for column in rows.columns])


def _together(columns: Sequence[Ranks]) -> Ranks:
    """Return the ranks of tuples."""
    order = np.lexsort(columns[::-1])
    differs = np.zeros(len(order), np.bool_)
    for column in columns:
        ascending = column[order]
        differs[1:] |= ascending[1:] != ascending[:-1]
    ranks: Ranks = np.empty(len(order), np.int64)
    ranks[order] = np.cumsum(differs)
    return ranks


def _ranks(array: pa.Array) -> Ranks:
    kind = array.type
    if types.is_null(kind):
        return np.zeros(len(array), np.int64)
    if types.is_struct(kind):
        known = np.asarray(array.is_valid()).astype(np.int64)
        return _together([known, *map(_ranks, array.flatten())])
    if types.is_map(kind):
        entries = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
        return _list_ranks(array, entries)
    if types.is_list(kind) or types.is_large_list(kind):
        return _list_ranks(array, array.values)
    if types.is_floating(kind):
        array = ranked_floats(array if kind.bit_width > 16 else array.cast(pa.float32()))
    column = sortable(pa.chunked_array([array]))
    encoded = column.combine_chunks().dictionary_encode()
    ranks: Ranks = np.empty(len(encoded.dictionary) + 1, np.int64)
    ranks[pc.sort_indices(encoded.dictionary).to_numpy()] = np.arange(len(encoded.dictionary))
    ranks[-1] = -1  # NULL
    result: Ranks = ranks[encoded.indices.fill_null(-1).to_numpy()]
    return result


def _list_ranks(array: pa.Array, elements: pa.Array) -> Ranks:
    offsets, ranks = array.offsets.to_pylist(), _ranks(elements).tolist()
    known = array.is_valid().to_pylist()
    spans = zip(known, offsets, offsets[1:], strict=False)
    # `()` for NULL, and a list begins with 0
    lists = [(0, *ranks[start:end]) if is_known else () for is_known, start, end in spans]
    numbers = {each: number for number, each in enumerate(sorted(set(lists)))}
    return np.array([numbers[each] for each in lists], np.int64)
