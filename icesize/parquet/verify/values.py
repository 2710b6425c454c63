"""The values of a Parquet file as they are stored, read by pyarrow without what they mean.

The footer is written again without logical types and names, so that bounds, which are stored values, can be compared
with what comes out, and any column can be read by itself, however columns are called.
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
"""What makes the tree."""

Positions = npt.NDArray[np.int64]
Extremes = tuple[Any, Any]
"""Least and greatest value, comparable with what `order_of` makes of a bound."""


@dataclass(frozen=True, slots=True)
class Leaves:
    """One column of a row group: its leaf `values`, nulls included.

    Both arrays have an entry for each row and one for the end: `starts` is where the row's values begin in `values`,
    `entries` how many entries the column's pages have before the row. An empty list has an entry but no value.
    """

    values: Any
    starts: Positions
    entries: Positions

    @property
    def rows(self) -> int:
        return len(self.starts) - 1

    @property
    def nulls(self) -> int:
        """Entries that are no value: nulls, empty lists, lists and structs that are null."""
        return self.nulls_of(0, self.rows)

    def of_rows(self, first: int, end: int) -> Any:
        """Leaf values of the rows from `first` up to `end`, which is not one of them."""
        start = int(self.starts[first])
        return self.values.slice(start, int(self.starts[end]) - start)

    def nulls_of(self, first: int, end: int) -> int:
        """The same count as `nulls` for some rows."""
        values = self.of_rows(first, end)
        entries = int(self.entries[end] - self.entries[first])
        return entries - len(values) + int(values.null_count)


class ValueReader:
    """Reads a file's columns one by one from a seekable `stream`; checksums of pages are verified. Close it after use,
    which closes the stream.

    Raises pyarrow's exceptions, `OSError`, and `CopyRefused` when pyarrow sees other columns in the schema.
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
        """Decode one column chunk. Row groups are counted without those of no rows."""
        table = self._file.read_row_group(group, columns=[self._paths[column]], use_threads=False)
        pieces = [_leaves(piece) for piece in table.column(0).chunks]
        values = pa.chunked_array([values for values, _, _ in pieces]) if pieces else pa.chunked_array([pa.nulls(0)])
        if len(pieces) > 1 and pa.types.is_binary(values.type):
            # pyarrow begins a piece where offsets of 32 bits end
            values = values.cast(pa.large_binary())
        lengths = [np.diff(starts) for _, starts, _ in pieces]
        counts = [counts for _, _, counts in pieces]
        return Leaves(pa.concat_arrays(values.chunks), _positions(lengths), _positions(counts))


def extremes_of(element: Element, order: Order) -> Callable[[Any], Extremes | None]:
    """How to find the least and greatest of some leaf values of a column with this order, NaN and nulls left out.

    The function gives None when no value is left.
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
    """Whether the column has integers that are never negative."""
    return element.type in (INT32, INT64) and bool(order(b"\xff" * (4 if element.type == INT32 else 8)) > 0)


def _of_floats(values: Any) -> Extremes | None:
    """-0.0 counts as less than 0.0, though they are equal: readers may compare bytes."""
    numbers = values.filter(pc.invert(pc.is_nan(values)))
    ranks = ranked_floats(numbers).to_numpy()
    return (numbers[ranks.argmin()].as_py(), numbers[ranks.argmax()].as_py()) if len(ranks) else None


def _of_others(values: Any) -> Extremes | None:
    """Integers and booleans, and bytes compared as such."""
    found = pc.min_max(values).as_py()
    return None if found["min"] is None else (found["min"], found["max"])


def _of_decimals(values: Any, order: Order) -> Extremes | None:
    """Decimals in byte arrays; numbers of no bytes are left out."""
    keys = [key for key in map(order, pc.unique(values.drop_null()).to_pylist()) if key is not None]
    return (min(keys), max(keys)) if keys else None


def _leaves(array: Any) -> tuple[Any, Positions, Positions]:
    """Leaf values of a nested array; where those of each element begin, and the end; entries of each element."""
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
    """Where parts of these lengths begin, and the end."""
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
