"""New rows and the rows of older small files, written once, into the same files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.deletes.deleted_rows import DeletedPositions, deleted_rows
from icesize.parquet.files.data_file import MergeFailure, Written
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.new_files import rewrite_failed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import PartitionKey
from icesize.planning.plan import FileGroup


@dataclass(frozen=True, slots=True)
class Absorption:
    """Older files whose rows are written together with new ones.

    `by_writer` maps a Spark task or thread to the files that it absorbs: files of the partitions that it writes,
    whatever new rows it receives.
    """

    by_writer: Mapping[int, tuple[FileGroup, ...]] = field(default_factory=dict)

    @property
    def most_bytes(self) -> int:
        """Bytes of the older files of the writer that absorbs the most."""
        return max((sum(group.size_bytes for group in groups) for groups in self.by_writer.values()), default=0)


NOTHING = Absorption()


def write_with(
    absorption: Absorption,
    writer: int,
    batches: Iterable[pa.RecordBatch | pa.Table],
    settings: WriteSettings,
    names: FileNames,
) -> Written:
    """Write all batches, after the rows of the files that this writer absorbs.

    If one file of a partition cannot be read, the files of that partition stay unchanged, and `failed` has the reason.
    The same applies to a file whose rows have no row ids yet. Older rows keep their lineage.

    Raises `SchemaMismatch` if new rows do not fit the table, and `RewriteFailed` or `OSError` if storage fails. Raises
    `RewriteFailed` with the attribute `column` if older rows would change. On any error, what was written is removed,
    best effort.
    """
    taken, failed, begun = list(absorption.by_writer.get(writer, ())), list[MergeFailure](), list[bool]()

    def new_rows() -> Iterator[pa.RecordBatch | pa.Table]:
        begun.append(True)
        yield from batches

    while taken:
        # new rows have no lineage before they are committed: NULL in its columns means that they inherit it
        counted = Conservation(settings.with_lineage)
        try:
            deleted = [_deleted(group, settings) for group in taken]
            files = write_rows(new_rows(), counted.settings, names, _rows_of(taken, deleted, counted), counted)
        except _DamagedError as damaged:
            # all rows are written again without that partition, because files may already hold some of its rows
            if begun:  # Spark yields its rows only once
                raise RuntimeError("new rows were read before all older rows") from damaged
            taken.remove(damaged.group)
            failed.append(MergeFailure.of(damaged, in_worker=names.owner is None))
        else:
            absorbed = tuple(input_file for group in taken for input_file in group.inputs)
            counts = Counter[PartitionKey]()
            for group, left_out in zip(taken, deleted, strict=True):
                counts[group.partition] += left_out.rows
            return Written(tuple(files), absorbed, tuple(failed), +counts)
    return Written(tuple(write_rows(batches, settings, names)), failed=tuple(failed))


class _DamagedError(Exception):
    """An input file of `group` cannot be read."""

    def __init__(self, group: FileGroup, why: str) -> None:
        super().__init__(why)
        self.group = group


def _deleted(group: FileGroup, settings: WriteSettings) -> DeletedPositions:
    try:
        with rewrite_failed(f"read the deletes of {len(group.inputs)} files"):
            return deleted_rows(group.inputs, settings, group.partition)
    except RewriteFailed as error:
        raise _DamagedError(group, str(error)) from error


def _rows_of(
    groups: Sequence[FileGroup], deleted: Sequence[DeletedPositions], counted: Conservation
) -> Iterator[tuple[PartitionKey, pa.Table]]:
    for group, left_out in zip(groups, deleted, strict=True):
        try:
            for table in read_inputs(group, counted.settings, deleted=left_out.positions, counted=counted):
                yield group.partition, table
        except RewriteFailed as error:
            raise _DamagedError(group, str(error)) from error
