"""Rewrites the deleted rows of data files as position deletes, in one delete file or deletion vector per data file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa
from pyiceberg.schema import Schema
from pyroaring import BitMap

from icesize.parquet.deletes.deleted_rows import deleted_rows
from icesize.parquet.deletes.positions import PATH, POSITION
from icesize.parquet.deletes.vectors import write_vectors
from icesize.parquet.files.data_file import NewDeleteFile, RewrittenDeletes
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import NewFiles, rewrite_failed
from icesize.parquet.files.properties import METRICS_DEFAULT
from icesize.parquet.files.settings import WriteSettings, derived
from icesize.parquet.reading.prefetch import ReadInPlace
from icesize.parquet.writing.encoding import Encoding
from icesize.parquet.writing.file_writer import FileEncoder
from icesize.planning.deletes.delete_plan import DeleteRewrite
from icesize.planning.deletes.delete_reach import DataFiles
from icesize.planning.files import DeleteFile, FileFact, PartitionKey

_COLUMNS = Schema(PATH.field, POSITION.field)
_OF_ROWS = ("write.metadata.metrics.", "write.parquet.bloom-filter-", "write.parquet.dict-")
"""Properties of the table's own columns."""


def write_position_deletes(
    rewrite: DeleteRewrite, settings: WriteSettings, names: FileNames, threads: int = 1
) -> RewrittenDeletes:
    """Write the deleted rows of some data files as position deletes, one new delete file per data file.

    From format v3 on, these are deletion vectors in one Puffin file, because Iceberg allows no other new position
    deletes. A vector also has the rows of the data file's position deletes, since readers ignore those beside it.

    The new files carry the greatest data sequence number of the delete files that they replace. They therefore apply to
    the same data files, and no reader takes them for new deletes. Data files are read only for equality deletes, and
    then only their key columns. Raises the errors of `deleted_rows` and `rewrite_failed`, after everything written is
    removed.
    """
    settings = settings.of_spec(rewrite.partition.spec_id)
    new_files = NewFiles(settings, names)
    cannot = f"put the deletes of {len(rewrite.files)} files together"
    with rewrite_failed(cannot), ReadInPlace(settings, threads) as ahead, new_files.all_or_none():
        deleted = deleted_rows(rewrite.files, settings, rewrite.partition, ahead)
        replaced = _replaced(rewrite)
        number = max(delete.sequence_number for delete in replaced)
        rows = {file: found for file in rewrite.files if (found := deleted.positions.get(file.path))}
        files = write_one_each(new_files, rewrite.partition, rows, number)
    return RewrittenDeletes(rewrite.partition, rewrite.files, replaced, files, deleted.named)


def _replaced(rewrite: DeleteRewrite) -> tuple[DeleteFile, ...]:
    """Return the delete files of the partition that may apply to one of the data files."""
    covered = DataFiles(rewrite.files)
    own = (delete for delete in rewrite.files[0].deletes if delete.partition == rewrite.partition)
    return tuple(delete for delete in own if covered.may_be_hit(delete))


@derived
def _of_positions(settings: WriteSettings) -> WriteSettings:
    """Return the settings for position delete files of a table."""
    properties = {key: value for key, value in settings.properties.items() if not key.startswith(_OF_ROWS)}
    properties[METRICS_DEFAULT] = "full"
    return replace(settings, schema_json=_COLUMNS.model_dump_json(), properties=properties)


def write_one_each(
    new_files: NewFiles, partition: PartitionKey, deleted: Mapping[FileFact, BitMap], number: int | None = None
) -> tuple[NewDeleteFile, ...]:
    """Write a vector for each data file of a partition, all in one Puffin file; before format v3, a delete file each.

    `number` is as in `write_positions`.
    """
    if new_files.settings.format_version < FIRST_WITH_LINEAGE:
        return tuple(write_positions(new_files, {file: rows}, number) for file, rows in deleted.items())
    return write_vectors(new_files, partition, deleted, number) if deleted else ()


def write_positions(
    new_files: NewFiles, deleted: Mapping[FileFact, BitMap], number: int | None = None
) -> NewDeleteFile:
    """Write one delete file with the deleted rows of data files of one partition.

    `new_files` have the settings of the table. `number` is the data sequence number, None for that of the snapshot.
    Rows are sorted by path and position, as Iceberg's specification demands. Bounds are whole paths: from equal bounds,
    readers recognize a delete file for a single data file.
    """
    settings, rows = _of_positions(new_files.settings), sum(map(len, deleted.values()))
    # a dictionary stores each path once, for any number of rows
    text = pa.dictionary(pa.int32(), pa.large_string())
    schema = settings.arrow_schema.set(0, settings.arrow_schema.field(0).with_type(text))
    files = sorted(deleted, key=lambda file: file.path.encode())
    encoder = FileEncoder(
        new_files, files[0].partition, Encoding((PATH.field.name,)), expected_rows=rows, schema=schema,
        settings=settings,
    )  # fmt: skip
    paths = pa.array([file.path for file in files], pa.large_string())
    numbers = np.concatenate([np.frombuffer(deleted[file].to_array(), np.uint32) for file in files])
    codes = np.repeat(np.arange(len(files), dtype=np.int32), [len(deleted[file]) for file in files])
    step = settings.parquet.row_group_rows
    for start in range(0, rows, step):
        named = pa.DictionaryArray.from_arrays(pa.array(codes[start : start + step]), paths)
        positions = pa.array(numbers[start : start + step].astype(np.int64))
        encoder.append(pa.table([named, positions], schema=schema))
    written = encoder.finish()
    bounds = [{PATH.field.field_id: file.path.encode()} for file in (files[0], files[-1])]
    return written.become(
        NewDeleteFile,
        split_offsets=(),
        lower_bounds={**written.lower_bounds, **bounds[0]},
        upper_bounds={**written.upper_bounds, **bounds[1]},
        sequence_number=number,
        deletes_of=files[0].path if len(files) == 1 else None,
    )
