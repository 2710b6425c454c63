"""Opens delete files, or reports why their deletes cannot be applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

import pyarrow.parquet as pq

from icesize.errors import RewriteFailed
from icesize.parquet.reading.inputs import open_parquet, why_unreadable
from icesize.planning.files import DeleteFile
from icesize.storage.table_storage import Storage

T = TypeVar("T")


class UnreadableDeletesError(ValueError):
    """A delete file can be read, but its deletes cannot be applied; the message follows "...: "."""


@contextmanager
def blaming(delete: DeleteFile) -> Iterator[None]:
    """Turn any error in the block into a `RewriteFailed` with the `path` of the delete file.

    The block reads and applies the delete file, so an error means that its columns or values are wrong.
    """
    try:
        yield
    except Exception as error:
        why = str(error) if isinstance(error, UnreadableDeletesError) else why_unreadable(error)
        raise RewriteFailed(f"Cannot apply the deletes in {delete.path}: {why}", path=delete.path) from error


@contextmanager
def open_delete_file(delete: DeleteFile, storage: Storage) -> Iterator[tuple[pq.ParquetFile, Any]]:
    """Yield an open delete file and its stream, after a check of its row count; errors are `blaming` it.

    The file must have as many rows as its manifest entry records.
    """
    with blaming(delete):
        if delete.file_format != "PARQUET":
            raise UnreadableDeletesError(f"its format is {delete.file_format}, only PARQUET is read")
        with storage.open(delete.path, delete.size_bytes) as stream, open_parquet(stream) as parquet:
            if (rows := parquet.metadata.num_rows) != delete.rows:
                raise UnreadableDeletesError(
                    f"it has {rows} rows, its manifest records {delete.rows}, check the table's metadata"
                )
            yield parquet, stream


def first_read(rows: Iterator[T]) -> Iterator[T]:
    """Return the same rows, but read the first item now, before a caller takes it."""
    first = [*islice(rows, 1)]
    return chain(first, rows)
