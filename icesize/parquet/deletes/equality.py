"""Rows that equal a row of an equality delete file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types
from pyiceberg.schema import Schema, prune_columns
from pyroaring import BitMap

from icesize.concurrency import Ahead
from icesize.parquet.deletes.delete_files import UnreadableDeletesError, first_read, open_delete_file
from icesize.parquet.deletes.equal_keys import KeyLookup, Numbers, comparable
from icesize.parquet.deletes.positions import add_positions, by_code
from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.partitioning import source_path
from icesize.parquet.files.settings import NAME_MAPPING, WriteSettings
from icesize.parquet.reading.inputs import of_size, read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.reading.projection import Projection, field_id, with_ids
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.planning.plan import FileGroup

FieldIds = tuple[int, ...]

_BATCH_ROWS = 65_536
"""Keys that are read at once."""
_NUMBER = "number"
"""The column of a table of keys with the sequence number of their delete."""


@dataclass(frozen=True)
class EqualRows:
    """The rows that equal a row of an equality delete file, in data files of smaller sequence numbers.

    Keys that exceed `Limits.delete_keys_bytes` are applied in parts, the greatest sequence numbers first.
    """

    deletes: Sequence[DeleteFile]
    partition: PartitionKey
    settings: WriteSettings
    fetched: Fetched | None

    def mark(self, inputs: Sequence[FileFact], positions: Mapping[str, BitMap], ahead: Ahead) -> None:
        """Add the deleted rows to the bitmap of each input; delete files are read `ahead`."""
        if self.deletes and self.fetched is not None:
            # fetched once, although each part of the keys reads the inputs, and the merge reads their rows
            newest = max(delete.sequence_number for delete in self.deletes)
            self.fetched.fetch_remote([file for file in inputs if file.sequence_number < newest])
        for part in self._parts(ahead):
            greatest = max(keys.greatest for keys in part.values())
            older = tuple(file for file in inputs if file.sequence_number < greatest)
            if older:
                self._apply(part, FileGroup(older, self.partition), positions)

    def _parts(self, ahead: Ahead) -> Iterator[Mapping[FieldIds, _Keys]]:
        """Yield the keys of all delete files, by their columns, a bounded number of bytes at a time.

        Keys with the greatest sequence numbers come first, so that the first of equal keys is the one that counts.
        """
        columns = {ids: _KeyColumns(self.settings, self.partition, ids) for ids in map(_ids, self.deletes)}
        ordered = sorted(self.deletes, key=lambda delete: -delete.sequence_number)
        all_read = ahead.map(lambda delete: first_read(columns[_ids(delete)].read(delete)), ordered)
        waiting: defaultdict[FieldIds, list[pa.Table]] = defaultdict(list)
        size = 0
        for delete, keys_read in zip(ordered, all_read, strict=True):
            for read in keys_read:
                waiting[_ids(delete)].append(read)
                size += read.nbytes
                if size < self.settings.limits.delete_keys_bytes:
                    continue
                part = {ids: _Keys(tables) for ids, tables in waiting.items()}
                waiting.clear()
                distinct = sum(len(keys.lookup.firsts()) for keys in part.values())
                if 2 * distinct < sum(keys.rows.num_rows for keys in part.values()):
                    # most keys are repeated, so the distinct keys leave space for more
                    waiting.update((ids, [keys.distinct()]) for ids, keys in part.items())
                else:
                    yield part
                size = sum(tables[0].nbytes for tables in waiting.values())
        if waiting:
            yield {ids: _Keys(tables) for ids, tables in waiting.items()}

    def _apply(self, part: Mapping[FieldIds, _Keys], group: FileGroup, positions: Mapping[str, BitMap]) -> None:
        all_ids = tuple({some for ids in part for some in ids})
        columns = _KeyColumns(self.settings, self.partition, all_ids)
        rows_at_once = max(keys.lookup.rows_at_once for keys in part.values())
        inputs = _Inputs(group, positions)
        tables = read_inputs(group, columns.narrowed, self.fetched)
        for rows in of_size(tables, self.settings.limits.delete_keys_bytes, rows_at_once):
            for ids, keys in part.items():
                hits, found = keys.lookup.find(columns.of(rows, ids))
                inputs.delete(hits, keys.numbers[found])
            inputs.passed += rows.num_rows


@dataclass(frozen=True)
class _KeyColumns:
    """Key columns, read from rows with only these columns; threads may share it."""

    settings: WriteSettings
    partition: PartitionKey
    ids: FieldIds

    @cached_property
    def narrowed(self) -> WriteSettings:
        """Settings for rows of these columns, each as deep in structs as in the table."""
        schema = prune_columns(self.settings.schema, set(self.ids), select_full_types=False)
        return self.settings.with_schema(Schema(*schema.fields, schema_id=schema.schema_id))

    @cached_property
    def _projection(self) -> Projection:
        return Projection(self.narrowed, self.partition)

    def of(self, rows: pa.Table, ids: FieldIds) -> list[pa.ChunkedArray]:
        """Return the columns with these ids, in comparable form."""
        found = []
        for top, *below in (source_path(self.narrowed.schema, some) for some in ids):
            column = rows.column(top)
            found.append(comparable(pc.struct_field(column, below) if below else column))
        return found

    def read(self, delete: DeleteFile) -> Iterator[pa.Table]:
        """Yield the keys of a delete file, batch by batch.

        Each batch has one column per id, in the order of `ids`, and the delete's sequence number.
        """
        with open_delete_file(delete, self.settings.storage) as (parquet, _):
            _check_in_table(self.settings, self.ids)
            _check_has(parquet.schema_arrow, self.ids, self.settings)
            fitted = self._projection.fit(parquet.schema_arrow)
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=fitted.names, use_threads=False):
                keys = self.of(fitted(pa.Table.from_batches([batch])), self.ids)
                number = pa.repeat(pa.scalar(delete.sequence_number, pa.int64()), batch.num_rows)
                yield pa.table([*keys, number], names=[*map(str, self.ids), _NUMBER])


class _Keys:
    """Keys by some columns, and the sequence number of the delete of each key."""

    def __init__(self, tables: Sequence[pa.Table]) -> None:
        self.rows = pa.concat_tables(tables)
        self.lookup = KeyLookup(self.rows.columns[:-1])

    @cached_property
    def numbers(self) -> Numbers:
        found: Numbers = self.rows.column(_NUMBER).to_numpy()
        return found

    @cached_property
    def greatest(self) -> int:
        return int(self.numbers.max(initial=0))

    def distinct(self) -> pa.Table:
        """Return the first of equal keys, which has the greatest sequence number."""
        return self.rows.take(pa.array(self.lookup.firsts()))


def _ids(delete: DeleteFile) -> FieldIds:
    return tuple(sorted(set(delete.equality_ids)))


def _check_in_table(settings: WriteSettings, ids: FieldIds) -> None:
    flat = {leaf.field_id for leaf in leaves(settings) if leaf.flat}
    for some in ids:
        name = settings.schema.find_column_name(some)
        if name is None:
            raise UnreadableDeletesError(f"rows are equal in the column of field id {some}, which was dropped")
        if some not in flat:
            raise UnreadableDeletesError(f"rows are equal in column '{name}', which has not one value in each row")


def _check_has(stored: pa.Schema, ids: FieldIds, settings: WriteSettings) -> None:
    """Raise `UnreadableDeletesError` if a delete file lacks a key column; a missing column does not mean NULL."""
    found = set(_ids_in(with_ids(stored, settings.properties.get(NAME_MAPPING))))
    for some in ids:
        if some not in found:
            raise UnreadableDeletesError(f"it lacks column '{settings.schema.find_column_name(some)}'")


def _ids_in(fields: Iterable[pa.Field]) -> Iterator[int | None]:
    """Yield the field ids of columns, at the top and in structs."""
    for field in fields:
        if types.is_struct(field.type):
            yield from _ids_in([field.type.field(i) for i in range(field.type.num_fields)])
        else:
            yield field_id(field)


class _Inputs:
    """The inputs as one sequence of rows; `passed` counts the rows that were compared already."""

    def __init__(self, group: FileGroup, positions: Mapping[str, BitMap]) -> None:
        self._deleted = [positions[file.path] for file in group.inputs]
        self._starts: Numbers = np.cumsum([0, *(file.rows for file in group.inputs[:-1])], dtype=np.int64)
        self._own: Numbers = np.array([file.sequence_number for file in group.inputs], np.int64)
        self.passed = 0

    def delete(self, rows: Numbers, numbers: Numbers) -> None:
        """Mark rows of the current table as deleted if their file is older than the delete.

        `rows` are positions in the current table, and `numbers` are the sequence numbers of the deletes whose keys they
        equal.
        """
        rows = rows + self.passed
        # a last file with more rows than its entry records passes this line, and is refused at its end
        files = np.searchsorted(self._starts, rows, "right") - 1
        older = numbers > self._own[files]
        rows, files = rows[older], files[older]
        for file, some in by_code(files, rows - self._starts[files]):
            add_positions(self._deleted[file], some)
