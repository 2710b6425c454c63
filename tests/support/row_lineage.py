"""The row lineage of format v3, read from files as the specification says."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.avro.file import AvroFile
from pyiceberg.io import FileIO
from pyiceberg.manifest import MANIFEST_ENTRY_SCHEMAS, MANIFEST_LIST_FILE_SCHEMAS
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

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

_DELETED = 2
_STATUS, _DATA_FILE = 0, 4
_PATH, _ROWS, _FIRST = 1, 4, 16
"""Places of fields in the records of PyIceberg's schemas of format v3."""


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


def first_row_ids(table: Table, snapshot: Snapshot, known: Collection[str] = ()) -> dict[str, tuple[int | None, int]]:
    """First row id and rows of each live file, as the specification demands, from what PyIceberg reads of v3.

    Deleted entries of files with `known` ids have them, so that no reader counts their rows.
    """
    ids = dict[str, tuple[int | None, int]]()
    for manifest in records(table.io, snapshot.manifest_list, MANIFEST_LIST_FILE_SCHEMAS[3]):
        if manifest[3]:
            assert manifest[15] is None, "a delete manifest has no row ids"
            continue
        next_id = manifest[15]
        for entry in records(table.io, manifest[0], MANIFEST_ENTRY_SCHEMAS[3]):
            file, is_live = entry[_DATA_FILE], entry[_STATUS] != _DELETED
            first = file[_FIRST] if next_id is not None else None
            if first is None and is_live and next_id is not None:
                first, next_id = next_id, next_id + file[_ROWS]
            if is_live:
                ids[file[_PATH]] = (first, file[_ROWS])
            elif file[_PATH] in known and next_id is not None:
                assert first is not None, "a deleted entry takes its row id along"
    return ids


def records(io: FileIO, location: str, schema: Any) -> Iterator[Any]:
    """The records of an Avro file, as PyIceberg reads them."""
    with AvroFile[Any](io.new_input(location), schema) as reader:
        yield from reader
