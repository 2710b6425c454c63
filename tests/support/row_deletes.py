"""Row-level deletes of one file or partition by another engine, the short way; `delete_files` has everything else."""

from __future__ import annotations

from collections.abc import Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import FileFact
from tests.support.delete_files import delete_equal, delete_positions


def delete_rows(catalog: Catalog, input_file: FileFact | NewDataFile, positions: Sequence[int] = (0,)) -> Table:
    """Commit a position delete of some rows of a file, as an engine with merge-on-read does."""
    return delete_positions(catalog.load_table("db.t"), {input_file.path: positions}, input_file.partition)


def delete_ids(catalog: Catalog, like: FileFact | NewDataFile, ids: Sequence[int]) -> Table:
    """Commit an equality delete on `id`, in the partition of a file."""
    return delete_equal(catalog.load_table("db.t"), ["id"], [(i,) for i in ids], like.partition)
