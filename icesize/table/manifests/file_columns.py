"""Facts of the files that one manifest lists, as columns for planning, conflict checks and cleanup.

Only this module reads entries for facts. `entries` reads those that are copied as bytes into another manifest. Measured
on 100,000 entries: columns take about 100 bytes per entry, most of them for its path.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache
from itertools import islice
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.parquet.deletes.positions import PATH_ID
from icesize.parquet.files.data_file import FileMetrics
from icesize.planning.files import DeleteFile, FileFact, PartitionKey, SkipReason
from icesize.table.manifests.avro_container import read_records
from icesize.table.manifests.avro_values import AvroSchema, fields_reader
from icesize.table.manifests.entries import ADDED, DELETED, EXISTING, PLACES, row_reader
from icesize.table.manifests.manifest_lists import PartitionFields, first_row_id_of, partition_fields_of
from icesize.table.records.summary import TOTALS

Integers = NDArray[np.signedinteger[Any]]
Row = Sequence[Any]
"""Decoded fields of an entry: those of `PLACES`, then those that the reader requests."""
_Target = tuple[str, tuple[int, ...], str | None, str | None, str | None, int | None, int | None]
"""File format, equality ids, referenced path, bounds of the paths, and place of the content of a delete file."""
T = TypeVar("T")

# Indexes in a row after `PLACES`: the targets of delete files, and the column metrics of data files in the order of the
# fields of FileMetrics after the number of records.
_DELETE_PLACES = ((135, 12), (143, 13), (125, 14), (128, 15), (145, 16))
_METRIC_PLACES = ((110, 12), (137, 13), (125, 14), (128, 15), (109, 16))

_OBSTACLES = (None, SkipReason.NOT_PARQUET, SkipReason.ENCRYPTED)
ENCRYPTED = 2
"""The obstacle of files with key metadata in `EntryColumns.obstacles`."""
_FILE_PATH = 100
COUNTS = range(7, 13)
"""Places in a ManifestFile of the numbers of files, then of rows: added, existing, deleted."""
MISSING = -1
"""The mark of a number that an entry does not have, or inherits from its manifest."""
_KEY_BYTES = 250
_ROWS_AT_ONCE = 50
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True, eq=False, slots=True)
class Texts:
    """Strings in one piece: their common prefix `start` is stored once."""

    start: str
    rest: str
    ends: Integers

    @classmethod
    def of(cls, texts: Sequence[str]) -> Texts:
        """Return these strings in one piece."""
        start = os.path.commonprefix(texts)  # noqa: RUF071 - characters are meant, not folders
        rest = [text[len(start) :] for text in texts]
        return cls(start, "".join(rest), _narrow(np.cumsum([0, *map(len, rest)])))

    def at(self, rows: NDArray[np.intp]) -> list[str]:
        """Return the strings of these rows."""
        start, rest = self.start, self.rest
        pairs = zip(self.ends[rows].tolist(), self.ends[rows + 1].tolist(), strict=True)
        return [start + rest[begin:end] for begin, end in pairs]


@dataclass(frozen=True, eq=False, slots=True)
class EntryColumns:
    """The entries of one manifest in their order, with stored values only: nothing is inherited.

    `keys` are the partitions of the manifest's files, and `partition` has the index of each file's partition in `keys`.
    `obstacles` are indexes of reasons why a file can never be rewritten, 0 for none. `targets` are the last fields of
    DeleteFile; only delete manifests have them. Unknown numbers and ids are -1.
    """

    keys: tuple[PartitionKey, ...]
    partition: Integers
    status: Integers
    snapshot_ids: Integers
    sequence_numbers: Integers
    file_sequence_numbers: Integers
    size_bytes: Integers
    rows: Integers
    obstacles: Integers
    first_row_ids: Integers
    paths: Texts
    targets: tuple[_Target, ...]

    @classmethod
    def of(cls, spec_id: int, rows: Iterable[Row], deletes: bool) -> EntryColumns:
        """Return the columns of decoded rows; `deletes` is True for a delete manifest."""
        column: list[list[Any]] = [[] for _ in range(len(PLACES) + len(_DELETE_PLACES) * deletes)]
        rows = iter(rows)
        # Few rows at a time, because Python's garbage collector would scan all rows in memory again and again.
        while some := list(islice(rows, _ROWS_AT_ONCE)):
            for values, more in zip(column, zip(*some, strict=True), strict=True):
                values.extend(more)
        snapshot_ids, numbers, file_numbers, first_row_ids = (
            _integers([MISSING if number is None else number for number in column[place]]) for place in (1, 2, 3, 10)
        )
        formats = [name.upper() for name in column[5]]
        obstacles = [
            ENCRYPTED if key is not None else name != "PARQUET" for name, key in zip(formats, column[9], strict=True)
        ]
        keys, partition = _dictionary(spec_id, column[6])
        return cls(
            keys, partition, _integers(column[0]), snapshot_ids, numbers, file_numbers, _integers(column[8]),
            _integers(column[7]), _integers(obstacles), first_row_ids, Texts.of(column[4]),
            tuple(map(_target, formats, *column[11:])) if deletes else (),
        )  # fmt: skip

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        arrays = [a for each in fields(self) if isinstance(a := getattr(self, each.name), np.ndarray)]
        texts = sys.getsizeof(self.paths.rest) + _array_bytes(self.paths.ends)
        return sum(map(_array_bytes, arrays)) + texts + len(self.keys) * _KEY_BYTES + len(self.targets) * 4 * _KEY_BYTES


def _dictionary(spec_id: int, values: Sequence[tuple[object, ...]]) -> tuple[tuple[PartitionKey, ...], Integers]:
    """Return the distinct partitions in order of their first file, and the index of each value's partition."""
    places = {each: place for place, each in enumerate(dict.fromkeys(values))}
    if any(value == 0 and isinstance(value, float) for each in places for value in each):
        # Python compares 0.0 and -0.0 as equal; `PartitionKey.of` makes them different.
        values = [PartitionKey.of(spec_id, each).values for each in values]
        places = {each: place for place, each in enumerate(dict.fromkeys(values))}
    return tuple(PartitionKey(spec_id, each) for each in places), _integers([places[each] for each in values])


def _target(
    file_format: str, offset: int | None, equality_ids: Sequence[int] | None, path: str | None, *others: Any
) -> _Target:
    *bounds, size_bytes = others
    lowest, highest = ((each or {}).get(PATH_ID) for each in bounds)
    # A shortened bound may end within a character. Dropping that part is safe: a shorter prefix only rules out less.
    lower, upper = (None if bound is None else bound.decode(errors="ignore") for bound in (lowest, highest))
    return file_format, tuple(equality_ids or ()), path, lower, upper, offset, size_bytes


def _integers(values: Sequence[int]) -> Integers:
    return _narrow(np.array(values, np.int64))


def _narrow(values: NDArray[np.int64]) -> Integers:
    """Return the numbers as 32-bit integers if they fit, and as a single stored number if all are equal."""
    if not values.size:
        return values
    least, most = int(values.min()), int(values.max())
    if least == most:
        return np.broadcast_to(values[:1].copy(), values.shape)
    return values.astype(np.int32) if _INT32.min <= least and most <= _INT32.max else values


def _array_bytes(array: NDArray[Any]) -> int:
    return array.nbytes if any(array.strides) else array.itemsize


@dataclass(frozen=True, eq=False)
class ManifestFacts:
    """The files that a manifest lists, with sequence numbers and snapshot ids inherited from the manifest list.

    Rows are the indexes of entries in the manifest. An unknown number is 0, an unknown snapshot id -1.
    """

    manifest: ManifestFile
    columns: EntryColumns

    @property
    def path(self) -> str:
        """Location of the manifest."""
        return self.manifest.manifest_path

    @property
    def keys(self) -> tuple[PartitionKey, ...]:
        """Partitions of the files; `columns.partition` has the index of each file's partition."""
        return self.columns.keys

    @cached_property
    def live(self) -> NDArray[np.intp]:
        """Rows of the live files: all that the manifest does not list as deleted."""
        return np.flatnonzero(self.columns.status != DELETED)

    def changed_by(self, snapshot_id: int | None, status: int) -> NDArray[np.intp]:
        """Return the rows of files that this snapshot ADDED or DELETED, as `status` selects."""
        return np.flatnonzero((self.columns.status == status) & (self.snapshot_ids == snapshot_id))

    def in_partition(self, key: PartitionKey) -> NDArray[np.intp]:
        """Return the rows of the live files of one partition; NaN among its values equals nothing."""
        places = [place for place, each in enumerate(self.keys) if each == key]
        return self.live[np.isin(self.columns.partition[self.live], places)] if places else np.empty(0, np.intp)

    @cached_property
    def snapshot_ids(self) -> Integers:
        """The snapshot that added each file, or deleted it."""
        own, added_by = self.columns.snapshot_ids, self.manifest.added_snapshot_id
        return np.where(own == MISSING, MISSING if added_by is None else added_by, own)

    @cached_property
    def sequence_numbers(self) -> Integers:
        """Data sequence numbers, which decide the deletes that apply to a file."""
        return self._inherited(self.columns.sequence_numbers)

    @cached_property
    def file_sequence_numbers(self) -> Integers:
        """Sequence numbers of the commits that added the paths to the table."""
        return self._inherited(self.columns.file_sequence_numbers)

    def _inherited(self, own: Integers) -> Integers:
        number = self.manifest.sequence_number or 0
        # Only an added file inherits (Iceberg specification, "Sequence Number Inheritance"); all have 0 in format v1.
        return np.where(own != MISSING, own, np.where(self.columns.status == ADDED, number, 0))

    @cached_property
    def first_row_ids(self) -> Integers:
        """The `_row_id` of the first row of each file; -1 if it has none.

        A live file without an id of its own follows the ones before it (Iceberg specification, "First Row ID
        Inheritance"). Java gives no ids to deleted entries.
        """
        first, own = first_row_id_of(self.manifest), self.columns.first_row_ids
        if first is None:
            return np.broadcast_to(np.int64(MISSING), own.shape)
        takes = (own == MISSING) & (self.columns.status != DELETED)
        taken = np.where(takes, self.columns.rows, 0).astype(np.int64)
        return np.where(takes, first + np.cumsum(taken) - taken, own)

    def totals(self, rows: NDArray[np.intp]) -> dict[int, tuple[int, int, int]]:
        """Return the number of files, bytes and records of these rows, by the index of their partition.

        Partitions are in the order of their first row.
        """
        places = self.columns.partition[rows]
        size_bytes, records = (np.zeros(len(self.keys), np.int64) for _ in range(2))
        np.add.at(size_bytes, places, self.columns.size_bytes[rows])
        np.add.at(records, places, self.columns.rows[rows])
        counts = np.bincount(places, minlength=len(self.keys))
        sums = list(zip(counts.tolist(), size_bytes.tolist(), records.tolist(), strict=True))
        return {place: sums[place] for place in dict.fromkeys(places.tolist())}

    def paths(self, rows: NDArray[np.intp] | None = None) -> list[str]:
        """Return the paths of these rows, or of all live files without `rows`."""
        return self.columns.paths.at(self.live if rows is None else rows)

    def files(self, rows: NDArray[np.intp]) -> list[FileFact]:
        """Return data files for planning; `obstacle` is the reason why a file can never be rewritten."""
        columns, location = self.columns, self.path
        picked = zip(
            self.paths(rows),
            columns.size_bytes[rows].tolist(),
            columns.rows[rows].tolist(),
            columns.partition[rows].tolist(),
            self.sequence_numbers[rows].tolist(),
            self.file_sequence_numbers[rows].tolist(),
            columns.obstacles[rows].tolist(),
            [None if row_id == MISSING else row_id for row_id in self.first_row_ids[rows].tolist()],
            strict=True,
        )
        return [
            # Both numbers are equal for most files; one shared object saves memory.
            FileFact(path, size, count, columns.keys[place], number, _OBSTACLES[obstacle], location,
                     file_sequence_number=number if number == added_by else added_by, first_row_id=row_id)
            for path, size, count, place, number, added_by, obstacle, row_id in picked
        ]  # fmt: skip

    def deletes(self) -> list[DeleteFile]:
        """Return the live delete files."""
        files = zip(self.files(self.live), self.live.tolist(), strict=True)
        return [
            DeleteFile(file.path, file.size_bytes, file.rows, file.partition, file.sequence_number, *target)
            for file, row in files
            for target in [self.columns.targets[row]]
        ]


def totals_of(manifests: Iterable[ManifestFacts]) -> dict[str, int]:
    """Return the totals of all live files of a snapshot, by their keys in its summary."""
    totals = dict.fromkeys(TOTALS, 0)
    for facts in manifests:
        live, columns = facts.live, facts.columns
        if facts.manifest.content == ManifestContent.DATA:
            totals["total-data-files"] += live.size
            totals["total-records"] += int(columns.rows[live].sum(dtype=np.int64))
            totals["total-files-size"] += int(columns.size_bytes[live].sum(dtype=np.int64))
        for delete in facts.deletes() if facts.manifest.content == ManifestContent.DELETES else ():
            totals["total-delete-files"] += 1
            totals["total-files-size"] += delete.content_bytes
            totals[f"total-{'equality' if delete.equality_ids else 'position'}-deletes"] += delete.rows
    return totals


def with_file_counts(facts: ManifestFacts) -> ManifestFile:
    """Return the manifest with the numbers of its files and rows, which a list may lack until format v2."""
    manifest, columns = facts.manifest, facts.columns
    copy = ManifestFile(*(manifest[place] for place in range(len(manifest))))
    for place, status in enumerate((ADDED, EXISTING, DELETED)):
        chosen = columns.status == status
        copy[COUNTS[place]], copy[COUNTS[place + 3]] = int(chosen.sum()), int(columns.rows[chosen].sum())
    return copy


def read_facts(io: FileIO, manifest: ManifestFile, *, changes_only: bool = False) -> ManifestFacts:
    """Return the facts of all entries of a manifest, or with `changes_only` of ADDED and DELETED entries.

    With `changes_only`, reading ends after the last change if the manifest list has the counts. icesize writes changes
    first, so reading a small change is cheap in a large manifest too.

    Raises TableError for damage in the part that is read, and what `io` raises for a missing manifest.
    """
    more = _DELETE_PLACES if manifest.content == ManifestContent.DELETES else ()
    fields = partition_fields_of(manifest)
    # lazily: a manifest without changes is not opened
    rows = read_records(io, manifest.manifest_path, lambda schema: _compiled(schema, more, fields))
    if changes_only:
        added, deleted = manifest.added_files_count, manifest.deleted_files_count
        most = None if added is None or deleted is None else added + deleted
        rows = islice((row for row in rows if row[0] != EXISTING), most)
    return ManifestFacts(manifest, EntryColumns.of(manifest.partition_spec_id, rows, bool(more)))


def read_described(
    io: FileIO, manifest: ManifestFile, describe: Callable[[FileMetrics], T]
) -> tuple[ManifestFacts, list[T]]:
    """Return the facts of a manifest without `targets`, and by row the result of `describe` for the column metrics.

    The metrics themselves are not kept, because they are several times as large as all other facts. Raises what
    `read_facts` raises.
    """
    described: list[T] = []

    def rows() -> Iterator[Row]:
        for row, metrics in _with_metrics(io, manifest.manifest_path, partition_fields_of(manifest)):
            described.append(describe(metrics))
            yield row

    return ManifestFacts(manifest, EntryColumns.of(manifest.partition_spec_id, rows(), False)), described


def read_metrics(io: FileIO, location: str) -> Iterator[tuple[str, FileMetrics]]:
    """Return an iterator over path and column metrics of a data manifest's live files, in their order.

    Raises what `read_facts` raises.
    """
    return ((row[4], metrics) for row, metrics in _with_metrics(io, location) if row[0] != DELETED)


def _with_metrics(
    io: FileIO, location: str, partition_fields: PartitionFields = None
) -> Iterator[tuple[Row, FileMetrics]]:
    for row in read_records(io, location, lambda schema: _compiled(schema, _METRIC_PLACES, partition_fields)):
        yield row[: len(PLACES)], FileMetrics(row[7], *(each or {} for each in row[len(PLACES) :]))


def row_of(record: AvroSchema, deletes: bool) -> Callable[[bytes], Row]:
    """Return the function that decodes a data file of a manifest into the last part of a row: all fields of the file.

    `record` describes the data file. `deletes` is True for a delete manifest.
    """
    places = {**PLACES, **dict(_DELETE_PLACES if deletes else ())}
    read, blank = fields_reader(record["fields"], places), [None] * len(places)

    def row(data: bytes) -> Row:
        decoded: list[Any] = blank.copy()
        read(new_decoder(data), decoded)
        return decoded[PLACES[_FILE_PATH] :]

    return row


@lru_cache(maxsize=64)
def _compiled(
    schema_json: str, more: tuple[tuple[int, int], ...], partition_fields: PartitionFields
) -> Callable[[BinaryDecoder, bytes], Row]:
    """Return the function that reads rows of entries with this schema.

    `more` are further fields to read: field ids with their indexes after `PLACES`. `partition_fields` is the order of
    the partition values.
    """
    _, read = row_reader(schema_json, {**PLACES, **dict(more)}, partition_fields)
    blank = [None] * (len(PLACES) + len(more))

    def row(decoder: BinaryDecoder, _: bytes) -> Row:
        found: list[Any] = blank.copy()
        read(decoder, found)
        return found

    return row
