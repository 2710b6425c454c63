"""The columns in which a file of format v3 stores the lineage of its rows.

A row inherits a value that its file does not store: `_row_id` from the file's first row id and the position of the row,
`_last_updated_sequence_number` from the file's data sequence number (Iceberg specification, Row Lineage).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from icesize.errors import UnsupportedTable
from icesize.parquet.format.schema import LAST_UPDATED, ROW_ID

FIRST_WITH_LINEAGE = 3
"""First format version whose rows have a lineage."""

LINEAGE_FIELDS = (
    NestedField(ROW_ID, "_row_id", LongType(), required=False),
    NestedField(LAST_UPDATED, "_last_updated_sequence_number", LongType(), required=False),
)
"""Both columns, in the order in which Iceberg's Java library writes them behind the table's columns."""

ARROW_SCHEMA = schema_to_pyarrow(Schema(*LINEAGE_FIELDS))
FIELD_ID = b"PARQUET:field_id"
"""Key of the field id in the metadata of an Arrow field."""
LINEAGE_NAMES = frozenset(field.name for field in LINEAGE_FIELDS)
_IDS = frozenset(str(field.field_id).encode() for field in LINEAGE_FIELDS)


def is_lineage(column: pa.Field) -> bool:
    """Return whether this is one of the columns of the row lineage."""
    return (column.metadata or {}).get(FIELD_ID) in _IDS


def inherited_values(nth: int, rows: int, first_row_id: int, sequence_number: int) -> NDArray[np.int64]:
    """Return the values of one of both columns that consecutive rows inherit, from the row with `first_row_id` on."""
    return np.arange(first_row_id, first_row_id + rows) if nth == 0 else np.full(rows, sequence_number, np.int64)


def check_column_names(columns: Iterable[str]) -> None:
    """Raise `UnsupportedTable` for a column of the table that is named like one of these columns."""
    for name in columns:
        if name in LINEAGE_NAMES:
            raise UnsupportedTable(
                f"Cannot write column '{name}': format v3 reserves the name for the lineage of rows, rename the column",
                column=name,
            )
