"""The stored values of a Parquet file, read by pyarrow without their logical types.

The footer is written again without logical types and names. Bounds are stored values, so the values read can be
compared with them. Any column can be read alone, whatever the names of columns are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from icesize.parquet.files.partitioning import ranked_floats
from icesize.parquet.format.fields import ColumnChunk, FileMetaData, LogicalType, SchemaElement
from icesize.parquet.format.fields import RowGroup as RowGroupIds
from icesize.parquet.format.footer import MAGIC, Footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import DOUBLE, FLOAT, INT32, INT64, Element
from icesize.parquet.format.statistics import Order
from icesize.parquet.format.thrift import Fields, bytes_field, struct_field, structs_field, structs_of, write_struct

_STRUCTURE = (
    SchemaElement.TYPE,
    SchemaElement.TYPE_LENGTH,
    SchemaElement.REPETITION_TYPE,
    SchemaElement.NUM_CHILDREN,
)
"""The fields of elements that make the tree."""

Positions = npt.NDArray[np.int64]
Extremes = tuple[Any, Any]
"""Least and greatest value, comparable with what `order_of` makes of a bound."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """One column of a row group: its leaf `values`, including nulls.

    Both arrays have an entry for each row and one for the end. `starts` are the positions of the row's first value in
    `values`. `entries` are the numbers of entries that the column's pages have before the row. An empty list has an
    entry but no value.
    """

    values: Any
    starts: Positions
    entries: Positions

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    @property
    def nulls(self) -> int:
        """Entries without a value: nulls, empty lists, null lists and null structs."""
        return self.nulls_of(0, self.rows)

    def of_rows(self, first: int, end: int) -> Any:
        """Return the leaf values of the rows from `first` up to `end`, exclusive."""
        start = int(self.starts[first])
        return self.values.slice(start, int(self.starts[end]) - start)

    def nulls_of(self, first: int, end: int) -> int:
        """Return the number of entries without a value in some rows."""
        values = self.of_rows(first, end)
        entries = int(self.entries[end] - self.entries[first])
        return entries - len(values) + int(values.null_count)


class ValueReader:
    """Reads a file's columns one by one from a seekable `stream`, and verifies checksums of pages.

    Close it after use; this closes the stream. Raises pyarrow's exceptions, `OSError`, and `CopyRefused` if pyarrow
    finds other columns in the schema.
    """

    def __init__(self, stream: Any, footer: Footer) -> None:
        raw = _bare_footer(footer)
        tail = MAGIC + raw + struct.pack("<I", len(raw)) + MAGIC
        metadata = pq.read_metadata(pa.BufferReader(tail))
        if metadata.num_columns != len(footer.columns):
            raise CopyRefused(Refusal.CORRUPT_FOOTER, f"pyarrow sees {metadata.num_columns} columns")
        self._paths = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
        self._stream = stream
        self._file = pq.ParquetFile(self._stream, metadata=metadata, page_checksum_verification=True)

    def close(self) -> None:
        self._file.close()
        self._stream.close()

    def read(self, group: int, column: int) -> Leaves:
        """Decode one column chunk; the row group's number does not count row groups without rows."""
        table = self._file.read_row_group(group, columns=[self._paths[column]], use_threads=False)
        pieces = [_leaves(piece) for piece in table.column(0).chunks]
        values = pa.chunked_array([values for values, _, _ in pieces]) if pieces else pa.chunked_array([pa.nulls(0)])
        if len(pieces) > 1 and pa.types.is_binary(values.type):
            # pyarrow begins a new piece when offsets exceed 32 bits
            values = values.cast(pa.large_binary())
        lengths = [np.diff(starts) for _, starts, _ in pieces]
        counts = [counts for _, _, counts in pieces]
        return Leaves(pa.concat_arrays(values.chunks), _positions(lengths), _positions(counts))


def extremes_of(element: Element, order: Order) -> Callable[[Any], Extremes | None]:
    """Return a function that finds the least and greatest leaf value of a column with this order.

    The function ignores NaN and nulls, and returns None if no value is left.
    """
    if element.type in (FLOAT, DOUBLE):
        return _of_floats
    if is_unsigned(element, order):
        kind = pa.uint32() if element.type == INT32 else pa.uint64()
        return lambda values: _of_others(values.view(kind))
    if element.logical is not None and element.logical[0] == LogicalType.DECIMAL and element.type not in (INT32, INT64):
        return lambda values: _of_decimals(values, order)
    return _of_others


def is_unsigned(element: Element, order: Order) -> bool:
    """Return whether the column has integers that are never negative."""
    return element.type in (INT32, INT64) and bool(order(b"\xff" * (4 if element.type == INT32 else 8)) > 0)


def _of_floats(values: Any) -> Extremes | None:
    """Return the ends of floats.

    Although they are equal, -0.0 counts as less than 0.0, because readers may compare bytes.
    """
    numbers = values.filter(pc.invert(pc.is_nan(values)))
    ranks = ranked_floats(numbers).to_numpy()
    return (numbers[ranks.argmin()].as_py(), numbers[ranks.argmax()].as_py()) if len(ranks) else None


def _of_others(values: Any) -> Extremes | None:
    """Return the ends of integers, booleans, or bytes compared as bytes."""
    found = pc.min_max(values).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _of_decimals(values: Any, order: Order) -> Extremes | None:
    """Return the ends of decimals in byte arrays; decimals of no bytes are left out."""
    keys = [key for key in map(order, pc.unique(values.drop_null()).to_pylist()) if key is not None]
    return (min(keys), max(keys)) if keys else None


def _leaves(array: Any) -> tuple[Any, Positions, Positions]:
    """Return the leaf values of a nested array, the positions of its elements, and their numbers of entries.

    The positions are that of each element's first value, and the end.
    """
    if pa.types.is_struct(array.type):
        (child,) = array.flatten()
        return _leaves(child)
    if pa.types.is_list(array.type):
        values, starts, counts = _leaves(array.values)
        offsets = array.offsets.to_numpy()
        before = _positions([counts])
        own = np.diff(before[offsets])
        own[np.diff(offsets) == 0] = 1
        return values, starts[offsets], own
    size = len(array)
    return array, np.arange(size + 1, dtype=np.int64), np.ones(size, dtype=np.int64)


def _positions(lengths: list[Positions]) -> Positions:
    """Return the first positions of parts with these lengths, and the end."""
    ends = np.cumsum(np.concatenate([np.zeros(1, dtype=np.int64), *lengths]))
    return np.asarray(ends, dtype=np.int64)


def _bare_footer(footer: Footer) -> bytes:
    elements: list[Fields] = []
    for number, element in enumerate(structs_of(footer.fields, FileMetaData.SCHEMA)):
        bare = {field: element[field] for field in _STRUCTURE if field in element}
        elements.append({**bare, SchemaElement.NAME: bytes_field(b"%d" % number)})
    groups: list[Fields] = []
    for group in footer.row_groups:
        chunks = ({**c.fields, ColumnChunk.META_DATA: struct_field(c.metadata)} for c in group.chunks)
        groups.append({**group.fields, RowGroupIds.COLUMNS: structs_field(chunks)})
    return write_struct(
        {
            FileMetaData.VERSION: footer.fields[FileMetaData.VERSION],
            FileMetaData.SCHEMA: structs_field(elements),
            FileMetaData.NUM_ROWS: footer.fields[FileMetaData.NUM_ROWS],
            FileMetaData.ROW_GROUPS: structs_field(groups),
        }
    )
