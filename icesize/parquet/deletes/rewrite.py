"""Names the deleted rows of data files anew, in one position delete file for each data file."""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap

from icesize import failpoints
from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.deletes.positions import PATH, POSITION
from icesize.parquet.files.data_file import NewDeleteFile, RewrittenDeletes
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import ReadInPlace
from icesize.planning.delete_plan import DeleteRewrite
from icesize.planning.delete_reach import may_hit
from icesize.planning.files import DeleteFile, FileFact

_SCHEMA = pa.schema([column.field for column in (PATH, POSITION)])


def rewrite_deletes(
    rewrite: DeleteRewrite, settings: WriteSettings, names: FileNames, threads: int = 1
) -> RewrittenDeletes:
    """Write what the delete files of some data files delete from them, each data file's rows in a file of its own.

    The new files carry the greatest data sequence number of the delete files that were read, so that they hit what
    those did, and nobody takes them for new deletes. Of data files only key columns are read, and these only where
    there are deletes by equality. Raises `RewriteFailed` as `deleted_rows` and `rewrite_failed` do, everything written
    removed.
    """
    new_files = NewFiles(settings, names)
    cannot = f"put the deletes of {len(rewrite.files)} files together"
    with rewrite_failed(cannot), ReadInPlace(settings, threads) as ahead, new_files.all_or_none():
        deleted = deleted_rows(rewrite.files, settings, rewrite.partition, ahead)
        replaced = _replaced(rewrite)
        number = max(delete.sequence_number for delete in replaced)
        hit = (file for file in rewrite.files if file.path in deleted.positions)
        files = tuple(_written(new_files, file, deleted.positions[file.path], number) for file in hit)
    return RewrittenDeletes(rewrite.partition, rewrite.files, replaced, files, deleted.named)


def _replaced(rewrite: DeleteRewrite) -> tuple[DeleteFile, ...]:
    """The delete files of the partition that may hit one of the data files."""
    own = (delete for delete in rewrite.files[0].deletes if delete.partition == rewrite.partition)
    return tuple(delete for delete in own if any(may_hit(delete, file) for file in rewrite.files))


def _written(new_files: NewFiles, file: FileFact, deleted: BitMap, number: int) -> NewDeleteFile:
    settings = new_files.settings
    path = new_files.location(file.partition)
    sink = new_files.create(path)
    writer = settings.parquet.writer(sink, _SCHEMA, [PATH.name])

    def close() -> None:
        for stream in (writer, sink):
            with contextlib.suppress(Exception):
                stream.close()

    new_files.close_by(path, close)
    positions = deleted.to_array()
    step = settings.parquet.row_group_rows
    for start in range(0, len(positions), step):
        writer.write_table(_rows(file.path, positions[start : start + step]))
        failpoints.reach("writing")
    writer.close()
    size_bytes = int(sink.tell())
    sink.close()
    new_files.finished(path, size_bytes)
    return _described(file, path, size_bytes, positions, number, writer.writer.metadata)


def _rows(path: str, positions: array[int]) -> pa.Table:
    numbers = np.frombuffer(positions, np.uint32).astype(np.int64)
    paths = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(numbers), np.int32)), pa.array([path]))
    return pa.table([paths, pa.array(numbers)], schema=_SCHEMA)


def _described(
    file: FileFact, path: str, size_bytes: int, positions: Sequence[int], number: int, footer: pq.FileMetaData
) -> NewDeleteFile:
    """Bounds are whole paths: readers take a delete file for one of a single data file by them."""
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    ids, rows = (PATH.field_id, POSITION.field_id), len(positions)
    lowest, highest = (int(positions[at]).to_bytes(8, "little") for at in (0, -1))
    name = file.path.encode()
    return NewDeleteFile(
        path,
        size_bytes,
        rows,
        file.partition,
        column_sizes={
            some: sum(group.column(i).total_compressed_size for group in groups) for i, some in enumerate(ids)
        },
        value_counts=dict.fromkeys(ids, rows),
        null_value_counts=dict.fromkeys(ids, 0),
        lower_bounds=dict(zip(ids, (name, lowest), strict=True)),
        upper_bounds=dict(zip(ids, (name, highest), strict=True)),
        sequence_number=number,
        deletes_of=file.path,
    )
