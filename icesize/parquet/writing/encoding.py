"""The encoding of a file's columns, and the bytes that rows need with it, judged from rows in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from icesize.parquet.files.metrics import Leaf, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.schema import LINEAGE_IDS
from icesize.planning.routing.row_sizes import RowSize

T = TypeVar("T", pa.Table, pa.ChunkedArray)

DICTIONARY_RATIO = 0.3
"""Distinct values per row up to which a dictionary makes a column smaller. Measured: it breaks even at 0.35, and is 3.5
times the size near 1."""
SAMPLE_ROWS = 4_096


@dataclass(frozen=True, slots=True)
class Encoding:
    """The columns of a file with a dictionary, and the columns without statistics.

    `dictionary` has the paths of columns with a dictionary. All others are written as plain values, so that their pages
    can be copied later. `nan` has the field ids of float columns that hold NaN. They have no Parquet statistics,
    because some readers take bounds without NaN for the absence of NaN.
    """

    dictionary: tuple[str, ...] = ()
    nan: frozenset[int] = field(default_factory=frozenset)


def dictionary_columns(settings: WriteSettings, rows: pa.Table) -> tuple[str, ...]:
    """Return the paths of the columns that a dictionary makes smaller in files of rows like these."""
    limit = settings.parquet.dictionary_bytes
    columns = [leaf for leaf in leaves(settings) if leaf.field_id not in LINEAGE_IDS]
    return tuple(leaf.path for leaf, values in leaf_values(columns, rows) if repeats(values, limit))


def nan_columns(settings: WriteSettings, rows: pa.Table) -> frozenset[int]:
    """Return the field ids of the float columns, including nested ones, in which these rows hold NaN."""
    floats = [leaf for leaf in leaves(settings) if leaf.is_float]
    return frozenset(leaf.field_id for leaf, values in leaf_values(floats, rows) if pc.any(pc.is_nan(values)).as_py())


def leaf_values(wanted: Iterable[Leaf], rows: pa.Table) -> Iterator[tuple[Leaf, pa.ChunkedArray]]:
    """Yield the values of each Parquet column.

    A value is null if a struct above is null. Values below lists and maps are yielded in one sequence.
    """
    flat: dict[int, list[pa.ChunkedArray]] = {}
    for leaf in wanted:
        if leaf.column not in flat:
            flat[leaf.column] = flatten(rows.column(leaf.column))
        yield leaf, flat[leaf.column][leaf.nth]


def flatten(column: pa.ChunkedArray) -> list[pa.ChunkedArray]:
    """Return the values of each leaf of a column that a file stores; NULL and empty lists have none."""
    if isinstance(column.type, pa.BaseExtensionType):
        return flatten(pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type))
    if types.is_struct(column.type):
        return [leaf for child in column.flatten() for leaf in flatten(child)]
    if types.is_map(column.type):
        entries = pa.struct([column.type.key_field, column.type.item_field])
        return flatten(pa.chunked_array([_values(chunk) for chunk in column.chunks], entries))
    if hasattr(column.type, "value_field"):
        return flatten(pa.chunked_array([_values(chunk) for chunk in column.chunks], column.type.value_type))
    return [column]


def _values(lists: pa.Array) -> pa.Array:
    """Return the elements of lists, or the entries of maps.

    Arrow may store more of them below NULL and outside of slices.
    """
    if lists.null_count == len(lists):  # Arrow cannot flatten such lists of structs with an extension type
        return lists.values.slice(0, 0)
    if not types.is_map(lists.type):
        return lists.flatten()
    maps = lists.drop_null()
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return maps.values.slice(first, last - first)


def repeats(values: pa.ChunkedArray, dictionary_bytes: int) -> bool:
    """Return whether distinct values / rows is at most `DICTIONARY_RATIO`, and they fit into `dictionary_bytes`.

    A dictionary that is abandoned midway costs time and leaves pages of two kinds. The result is exact only if a sample
    leaves doubt.
    """
    rows = len(values)
    if rows == 0 or types.is_boolean(values.type):
        return False
    some = sample(values)
    seen = len(some.unique())
    if rows <= SAMPLE_ROWS:
        return bool(seen <= DICTIONARY_RATIO * rows)
    if seen <= 0.5 * DICTIONARY_RATIO * len(some):
        return True
    estimate = _estimate(seen, len(some))
    if estimate > 2 * DICTIONARY_RATIO * rows or estimate * some.nbytes / len(some) > dictionary_bytes:
        return False
    return len(values.unique()) <= DICTIONARY_RATIO * rows


def sample(rows: T) -> T:
    """Return up to `SAMPLE_ROWS` rows of a table or column, in runs spread over it.

    Rows of a single run would be more alike than all rows are.
    """
    total, runs = len(rows), 16
    if total <= SAMPLE_ROWS:
        return rows
    length = SAMPLE_ROWS // runs
    parts = [rows.slice(i * (total - length) // (runs - 1), length) for i in range(runs)]
    if isinstance(rows, pa.Table):
        return pa.concat_tables(parts)
    return pa.chunked_array([chunk for part in parts for chunk in part.chunks], rows.type)


def _estimate(seen: int, drawn: int) -> float:
    """Estimate the distinct values of which `drawn` equally likely draws show `seen`.

    It is a lower bound if the values are not equally likely.
    """
    if seen >= drawn:
        return math.inf
    low, high = float(seen), 1e12
    while high > low * 1.01:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if middle * -math.expm1(-drawn / middle) < seen else (low, middle)
    return low


def encoded_bytes(rows: pa.Table, settings: WriteSettings, dictionary: tuple[str, ...] | None = None) -> int:
    """Return the bytes of one Parquet file of exactly these rows, encoded in memory as `write_rows` would encode them.

    `rows` has the table's Arrow schema (`ColumnAligner`). `dictionary` are the columns with a dictionary, if decided.
    """
    paths = dictionary_columns(settings, rows) if dictionary is None else dictionary
    return int(settings.parquet.in_memory(rows, paths).size)


def row_size(rows: pa.Table, settings: WriteSettings) -> RowSize:
    """Return the bytes per row, and the other bytes of a file with such rows.

    They are measured with all rows in one file, and with one row alone. `rows` has the table's Arrow schema and at
    least one row.
    """
    alone = encoded_bytes(rows.slice(0, 1), settings)
    if rows.num_rows == 1:
        return RowSize(alone / 2, alone / 2)
    per_row = (encoded_bytes(rows, settings) - alone) / (rows.num_rows - 1)
    # equal rows compress to almost nothing, but later rows will not
    per_row = max(per_row, 1.0)
    return RowSize(max(0.0, alone - per_row), per_row)
