"""Rows that position delete files name, by the path of a data file and the position in it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import types
from pyiceberg.types import LongType, NestedField, StringType
from pyroaring import BitMap

from icesize.concurrency import Ahead
from icesize.parquet.deletes.delete_files import UnreadableDeletesError, blaming, first_read, open_delete_file
from icesize.parquet.reading.projection import field_id
from icesize.planning.deletes.delete_reach import DataFiles, may_hit, may_lie_between, only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact
from icesize.storage.table_storage import Storage


class _Column(NamedTuple):
    """A column of position delete files with its reserved Iceberg field id; files without ids have it by name."""

    field: NestedField
    type_name: str
    fits: Callable[[pa.DataType], bool]


def _is_text(kind: pa.DataType) -> bool:
    inner = kind.value_type if types.is_dictionary(kind) else kind
    return bool(types.is_string(inner) or types.is_large_string(inner))


PATH_ID = 2147483546
"""Iceberg's field id of `file_path` in position delete files."""
PATH = _Column(NestedField(PATH_ID, "file_path", StringType(), required=True), "texts", _is_text)
POSITION = _Column(NestedField(2147483545, "pos", LongType(), required=True), "whole numbers", types.is_integer)
_BATCH_ROWS = 2**18
"""Positions that are read at once."""
_MOST_ROWS = 2**32
"""Most rows of a file whose positions fit a bitmap."""

Positions: TypeAlias = NDArray[np.int64]


def mark_named(
    deletes: Sequence[DeleteFile],
    inputs: Sequence[FileFact],
    positions: Mapping[str, BitMap],
    storage: Storage,
    ahead: Ahead,
) -> dict[str, frozenset[str]]:
    """Add the rows that position delete files name to the bitmap of each input with a sequence number up to theirs.

    Each delete file is read once, and the next ones are read `ahead`. Returns the data files that a delete file names,
    by its path, for delete files that name several and were read as a whole. Raises `RewriteFailed` for a delete file
    that is missing or damaged, or that names rows that an input does not have.
    """
    targets = {plain_path(file.path): _Target(file, positions[file.path]) for file in inputs}
    covered = DataFiles(inputs)
    hits = [delete for delete in deletes if covered.may_be_hit(delete)]

    def read(delete: DeleteFile) -> Iterator[_Named]:
        only = only_path(delete)
        return first_read(_named_rows(delete, targets if only is None else {plain_path(only)}, storage))

    found = dict[str, frozenset[str]]()
    for delete, named in zip(hits, ahead.map(read, hits), strict=True):
        with blaming(delete):
            paths = _mark(delete, targets, named)
        if only_path(delete) is None and paths is not None:
            found[delete.path] = paths
    return found


def paths_named(delete: DeleteFile, storage: Storage) -> frozenset[str]:
    """Return the data files that a position delete file names, as `plain_path` writes them.

    Reads only the column of paths. Raises `RewriteFailed` if the file cannot be read.
    """
    found: set[str] = set()
    with _by_codes(delete, storage) as parquet:
        name = _column(parquet, PATH)
        for batch in _batches(parquet, [name], None):
            found.update(map(plain_path, _paths(batch, name).unique().to_pylist()))
    return frozenset(found)


@contextmanager
def _by_codes(delete: DeleteFile, storage: Storage) -> Iterator[pq.ParquetFile]:
    """Yield a delete file whose paths are read as codes; as strings they would take 100 bytes per row."""
    with open_delete_file(delete, storage) as (parquet, stream):
        names = [_column(parquet, PATH)]
        yield pq.ParquetFile(stream, metadata=parquet.metadata, read_dictionary=names, page_checksum_verification=True)


@dataclass(frozen=True)
class _Target:
    """A data file, and its deleted rows."""

    file: FileFact
    deleted: BitMap

    def delete(self, positions: Positions) -> None:
        check_positions(int(positions.min()), int(positions.max()), self.file)
        add_positions(self.deleted, positions)


def check_positions(lowest: int, highest: int, file: FileFact) -> None:
    """Raise `UnreadableDeletesError` for positions that are no rows of a data file, or too large for a bitmap."""
    if lowest < 0 or highest >= min(file.rows, _MOST_ROWS):
        wrong = lowest if lowest < 0 else highest
        raise UnreadableDeletesError(f"it deletes row {wrong} of {file.path}, which has {file.rows} rows")


def add_positions(deleted: BitMap, positions: Positions) -> None:
    """Add row numbers to a bitmap."""
    deleted.update(array("I", positions.astype(np.uint32).tobytes()))  # 3 ns per row as an array, otherwise 30


_Named = tuple[pa.DictionaryArray, Positions]
"""Some rows of a delete file: their paths, as codes, and their positions."""


def _named_rows(delete: DeleteFile, wanted: Collection[str], storage: Storage) -> Iterator[_Named]:
    """Yield the rows of row groups that may name wanted paths."""
    with _by_codes(delete, storage) as parquet:
        path, position = _column(parquet, PATH), _column(parquet, POSITION)
        for batch in _batches(parquet, [path, position], wanted):
            numbers = _present(batch.column(position)).cast(pa.int64())
            yield _paths(batch, path), numbers.to_numpy()


def _mark(delete: DeleteFile, targets: Mapping[str, _Target], rows: Iterator[_Named]) -> frozenset[str] | None:
    """Mark the named rows of those targets that the delete file may apply to; return all data files that it names.

    Returns None if row groups of it were skipped.
    """
    read = 0
    known: dict[str, _Target | None] = {}
    for paths, numbers in rows:
        read += len(numbers)
        for code, positions in by_code(paths.indices.to_numpy(), numbers):
            named = paths.dictionary[code].as_py()
            if named not in known:
                target = targets.get(plain_path(named))
                known[named] = target if target and may_hit(delete, target.file) else None
            if (target := known[named]) is not None:
                target.delete(positions)
    return frozenset(known) if read == delete.rows else None


def by_code(codes: NDArray[np.signedinteger[Any]], positions: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield the positions of each path or file, by its number; most writers keep the positions of a path together."""
    if not len(codes):
        return
    starts = _run_starts(codes)
    if len(starts) > int(codes.max()) + 1:
        order = np.argsort(codes)
        codes, positions = codes[order], positions[order]
        starts = _run_starts(codes)
    first = starts.tolist()
    for start, end in zip(first, [*first[1:], len(codes)], strict=True):
        yield int(codes[start]), positions[start:end]


def _run_starts(codes: NDArray[np.signedinteger[Any]]) -> NDArray[np.int64]:
    return np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))


def _column(parquet: pq.ParquetFile, wanted: _Column) -> str:
    """Return the name of a column of the file, found by field id or, without one, by name."""
    fields = list(parquet.schema_arrow)
    own, name = wanted.field.field_id, wanted.field.name
    found = [f for f in fields if field_id(f) == own] or [f for f in fields if f.name == name]
    if len(found) != 1 or not wanted.fits(found[0].type):
        raise UnreadableDeletesError(f"it has no column '{name}' of {wanted.type_name}")
    return str(found[0].name)


def _batches(parquet: pq.ParquetFile, names: Sequence[str], wanted: Collection[str] | None) -> Iterator[pa.RecordBatch]:
    """Yield columns of all row groups that may name wanted paths; the first column has the paths."""
    footer = parquet.metadata
    leaf = [footer.schema.column(i).path for i in range(footer.num_columns)].index(names[0])
    groups = [
        i
        for i in range(footer.num_row_groups)
        if wanted is None or _may_name_one(footer.row_group(i).column(leaf).statistics, wanted)
    ]
    if groups:
        yield from parquet.iter_batches(_BATCH_ROWS, groups, list(names), use_threads=False)


def _may_name_one(statistics: pq.Statistics | None, wanted: Collection[str]) -> bool:
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        lowest, highest = statistics.min, statistics.max
    except UnicodeDecodeError:  # the bound was truncated within a character
        return True
    if not (isinstance(lowest, str) and isinstance(highest, str)):
        return True
    return any(may_lie_between(path, lowest, highest) for path in wanted)


def _paths(batch: pa.RecordBatch, name: str) -> pa.DictionaryArray:
    paths = _present(batch.column(name))
    return paths if types.is_dictionary(paths.type) else paths.dictionary_encode()


def _present(values: pa.Array) -> pa.Array:
    if values.null_count:
        raise UnreadableDeletesError("it has a row without a path or a position")
    return values
