"""The row lineage of format v3, read from files as the specification says."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.planning.files import FileFact
from tests.support.parquet_files import local

ROW_ID, LAST_UPDATED = "_row_id", "_last_updated_sequence_number"
LINEAGE = pa.schema(
    [
        pa.field(ROW_ID, pa.int64(), metadata={"PARQUET:field_id": "2147483540"}),
        pa.field(LAST_UPDATED, pa.int64(), metadata={"PARQUET:field_id": "2147483539"}),
    ]
)
Lineage = dict[int, tuple[int | None, int | None]]
"""Row id and last change by the value of the column `id`."""


def lineage_of(file: FileFact, deleted: Iterable[int] = ()) -> Lineage:
    """The lineage of the live rows of a file; rows of a file without row ids have no row id."""
    table, gone, start = pq.ParquetFile(local(file.path)).read(), set(deleted), file.first_row_id
    inherited = [None] * table.num_rows if start is None else range(start, start + table.num_rows)
    columns = [table.column(name).to_pylist() if name in table.column_names else [None] * table.num_rows
               for name in LINEAGE.names]  # fmt: skip
    return {
        key: (own if row_id is None else row_id, file.sequence_number if last is None else last)
        for at, (key, own, row_id, last) in enumerate(
            zip(table.column("id").to_pylist(), inherited, *columns, strict=True)
        )
        if at not in gone
    }
