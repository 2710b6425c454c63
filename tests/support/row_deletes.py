"""Row-level deletes of one file or partition by another engine, the short way; `delete_files` has everything else."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.files import FileFact
from tests.support.delete_files import delete_equal, delete_positions, equality_deletes
from tests.support.puffin import add_deletes, vectors_in_puffin


def delete_rows(catalog: Catalog, input_file: FileFact | NewDataFile, positions: Sequence[int] = (0,)) -> Table:
    """Commit a position delete of some rows of a file that has none, as an engine with merge-on-read does."""
    table = catalog.load_table("db.t")
    if table.metadata.format_version < 3:
        return delete_positions(table, {input_file.path: positions}, input_file.partition)
    file = FileFact(input_file.path, 0, 0, input_file.partition)
    return add_deletes(catalog, vectors_in_puffin(table, {file: positions}))


def delete_ids(catalog: Catalog, like: FileFact | NewDataFile, ids: Sequence[int]) -> Table:
    """Commit an equality delete on `id`, in the partition of a file."""
    table, rows = catalog.load_table("db.t"), [(i,) for i in ids]
    if table.metadata.format_version < 3:
        return delete_equal(table, ["id"], rows, like.partition)
    file = equality_deletes(table, ["id"], rows, like.partition)
    size_bytes, field_ids = file.file_size_in_bytes, (table.schema().find_field("id").field_id,)
    made = NewDeleteFile(file.file_path, size_bytes, file.record_count, like.partition, equality_ids=field_ids)
    return add_deletes(catalog, [made])
