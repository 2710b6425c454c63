"""Maps from keys to positions, one for each data file.

A map has the codes of a file's keys in ascending order, and the position of each. It is computed from the key columns
and nothing else, whether rows are live or deleted, so that it can be missing, but never stale. A second kind of file
has the row ids of a file by position (format v3).

| array | bytes |
|---|---|
| codes of 64 bits and positions | 12 a key |
| codes of 128 bits and positions | 20 a key |
| row ids, as runs | 12 a run of consecutive ids |
| row ids otherwise, as narrow integers | up to 4 a row, 8 if the ids of the file lie far apart |

A file has parts of about a million rows, so that few rows are in memory while it is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from icesize.concurrency import Ahead
from icesize.parquet.files.names import writer_of
from icesize.parquet.files.settings import NAME_MAPPING
from icesize.parquet.keys.codes import Codes, Places
from icesize.planning.file_counts import in_batches
from icesize.planning.files import FileFact
from icesize.table.upserts.index_files import Array, Identity, IndexFolder
from icesize.table.upserts.lookup import Hits, NewRows, Positions, Scan, TableFiles

PART_ROWS = 2**20
"""Rows of one part: sorting them takes 28 bytes a row, 30 MB in each thread. Larger parts take longer for each row."""
_FILTERED_RATIO = 4
"""A part with fewer than so many keys for each key of the batch is filtered, and otherwise searched.

Measured with 50,000 keys of a batch: 50,000 keys of a file take 0.2 ms by the filter and 0.7 ms by searches, 500,000
take 1.5 ms and 1.4 ms, 4 million take 15 ms and 7 ms.
"""
_POSITION_BYTES, _WORD_BYTES, _ROW_ID_BYTES = 4, 8, 4
_INHERITED = np.int64(np.iinfo(np.int64).min)
"""The mark of a row id that the row inherits: the first row id of its file, and its position."""


@dataclass(frozen=True)
class KeyMaps:
    """Finds keys by maps, and reads the key columns of files that have none, whose maps it makes then.

    Attributes:
        scan: Reads key columns.
        folder: Keeps maps.
        made_of: What all maps are computed with: fields and types of the key, and what else decides their codes.
    """

    scan: Scan
    folder: IndexFolder
    made_of: tuple[int | str, ...]

    @classmethod
    def of(cls, files: TableFiles, key: Sequence[int], secret: bytes, folder: IndexFolder) -> KeyMaps:
        """Return the maps of these key columns, given by their field ids."""
        fields = {field.field_id: field for field in files.settings.schema.fields}
        typed = (f"{field_id} {fields[field_id].field_type}" for field_id in key)
        mark = blake2b(b"icesize", digest_size=16, key=secret).hexdigest()
        scan = Scan(files, tuple(files.names(key)), secret)
        # columns of files without field ids are found by the name mapping
        return cls(scan, folder, (*typed, mark, files.settings.properties.get(NAME_MAPPING, "")))

    def find(self, file: FileFact, codes: Codes) -> Hits:
        arrays = self.folder.read(self._identity(file))
        return self._scanned(file, codes) if arrays is None else _together(map(codes_at(codes), _parts(arrays)))

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        first = file.first_row_id or 0
        for identity in (_of_ids(file, first), _of_ids(file, None)):
            arrays = self.folder.read(identity)
            if arrays is not None:
                return _ids_at(arrays, positions, first)
        parts = list[Array]()

        def packed() -> Iterator[Array]:
            if not self.scan.files.stores_row_ids(file):
                parts.append(first + positions)
                yield from (np.zeros(1, np.uint32), np.array([_INHERITED]))  # one run, to the end
                return
            for start, ids in self._all_row_ids(file):
                here = slice(*np.searchsorted(positions, (start, start + len(ids))))
                parts.append(ids[positions[here] - start])
                yield from _packed(ids, start)

        if not self.folder.write(_of_ids(file, first), file.rows * _ROW_ID_BYTES, packed()):
            return self.scan.row_ids(file, positions)
        return np.concatenate([np.empty(0, np.int64), *parts])

    def learn(self, rows: NewRows) -> None:
        file, codes = rows.file, rows.codes
        if writer_of(file.path) is None:
            return  # another file may get the name, if a location provider has chosen it
        arrays = (each for start in range(0, len(codes), PART_ROWS) for each in _sorted_part(codes, start))
        self.folder.write(self._identity(file), len(codes) * _bytes_of(codes), arrays)
        if rows.row_ids is not None:
            ids = np.where(rows.row_ids < 0, _INHERITED, rows.row_ids)
            parts = (
                each
                for start in range(0, len(ids), PART_ROWS)
                for each in _packed(ids[start : start + PART_ROWS], start)
            )
            self.folder.write(_of_ids(file, None), len(ids) * _ROW_ID_BYTES, parts)

    def _identity(self, file: FileFact) -> Identity:
        return (*_of_file(file), "keys", self.made_of)

    def _scanned(self, file: FileFact, codes: Codes) -> Hits:
        """Return the hits of a scan, and keep the map on the way, if it is worth its bytes."""
        hits, find = list[Hits](), codes_at(codes)

        def arrays() -> Iterator[Array]:
            # a large file may be the only one without a map: one thread sorts its rows while the other reads
            with closing(Ahead(1 if file.rows > PART_ROWS else 0)) as ahead:
                for part in ahead.map(_part, _in_parts(self.scan.codes(file))):
                    hits.append(find(part))
                    yield from part

        wide = _WORD_BYTES if codes.low is None else 2 * _WORD_BYTES
        if self.folder.write(self._identity(file), file.rows * (wide + _POSITION_BYTES), arrays()):
            return _together(hits)
        return self.scan.find(file, codes)

    def _all_row_ids(self, file: FileFact) -> Iterator[tuple[int, Positions]]:
        tables, start = (table for table in self.scan.files.read(file, (), lineage=True) if table.num_rows), 0
        for some in in_batches(tables, lambda table: table.num_rows, PART_ROWS):
            ids = np.concatenate([table.column("_row_id").to_numpy() for table in some])
            yield start, ids
            start += len(ids)


def _of_file(file: FileFact) -> tuple[str, int, int]:
    """Return the value that distinguishes a data file from others of its path.

    No other file has the name of one that icesize wrote, and its map is made before a commit gives it a number.
    """
    return file.path, file.size_bytes, 0 if writer_of(file.path) is not None else file.file_sequence_number


def _of_ids(file: FileFact, first: int | None) -> Identity:
    return (*_of_file(file), "row ids", first)


MapPart = tuple[Array, ...]
"""Codes in ascending order, in one array or two, and their positions."""


def _part(rows: tuple[Positions, Codes]) -> MapPart:
    positions, codes = rows
    order = np.argsort(codes.high)  # equal codes in any order: hits are sorted by position
    codes = codes.take(order)
    words = (codes.high,) if codes.low is None else (codes.high, codes.low)
    return (*words, positions[order].astype(np.uint32))


def _sorted_part(codes: Codes, start: int) -> MapPart:
    some = codes.take(slice(start, start + PART_ROWS))
    return _part((np.arange(start, start + len(some)), some))


def _bytes_of(codes: Codes) -> int:
    return _POSITION_BYTES + (_WORD_BYTES if codes.low is None else 2 * _WORD_BYTES)


def _in_parts(read: Iterable[tuple[Positions, Codes]]) -> Iterator[tuple[Positions, Codes]]:
    """Return the same rows in parts of about `PART_ROWS`."""
    return map(joined, in_batches((part for part in read if len(part[0])), lambda part: len(part[0]), PART_ROWS))


def joined(parts: Sequence[tuple[Positions, Codes]]) -> tuple[Positions, Codes]:
    """Return the positions and the codes of several parts of a file together."""
    if len(parts) == 1:
        return parts[0]
    lows = [codes.low for _, codes in parts if codes.low is not None]
    high = np.concatenate([np.empty(0, np.uint64), *(codes.high for _, codes in parts)])
    positions = np.concatenate([np.empty(0, np.int64), *(positions for positions, _ in parts)])
    return positions, Codes(high, np.concatenate(lows) if lows else None)


def _parts(arrays: Sequence[Array]) -> Iterator[MapPart]:
    """Yield the parts of a map: codes have 8 bytes, and the positions after them 4."""
    part = list[Array]()
    for array in arrays:
        part.append(array)
        if array.dtype.itemsize == _POSITION_BYTES:
            yield tuple(part)
            part = []


def codes_at(codes: Codes) -> Callable[[MapPart], Hits]:
    """Return the function that finds these codes in a part of a map. They are ascending and differ from each other."""

    def find(part: MapPart) -> Hits:
        rows = Codes(part[0], part[1] if len(part) > 2 else None)
        if not len(codes) or not len(rows):
            return Hits(np.empty(0, np.int64), np.empty(0, np.intp))
        # keys of few ranges, or files of few ranges, leave little to search
        first, last = np.searchsorted(codes.high, rows.high[0]), np.searchsorted(codes.high, rows.high[-1], "right")
        start, end = np.searchsorted(rows.high, codes.high[0]), np.searchsorted(rows.high, codes.high[-1], "right")
        if end - start < _FILTERED_RATIO * (last - first):
            found, places = codes.matches(rows.take(slice(start, end)))
            found = found + start
        else:
            found, places = _searched(rows, codes.take(slice(first, last)))
            places = places + first
        return Hits(part[-1][found].astype(np.int64), places)

    return find


def _searched(rows: Codes, codes: Codes) -> tuple[Places, Places]:
    """Return the places of ascending codes in ascending rows, and the place of the code of each."""
    last = len(rows) - 1
    start = np.searchsorted(rows.high, codes.high)
    places = np.flatnonzero((start <= last) & (rows.high[np.minimum(start, last)] == codes.high))
    start, wanted = start[places], codes.high[places]
    end = start + 1
    repeated = np.flatnonzero((end <= last) & (rows.high[np.minimum(end, last)] == wanted))
    end[repeated] = np.searchsorted(rows.high, wanted[repeated], "right")
    times = end - start
    found = np.repeat(end - np.cumsum(times), times) + np.arange(times.sum())
    places = np.repeat(places, times)
    if rows.low is not None and codes.low is not None:
        same = rows.low[found] == codes.low[places]
        found, places = found[same], places[same]
    return found, places


def _together(parts: Iterable[Hits]) -> Hits:
    """Return the hits of all parts, by position."""
    hits = list(parts)
    positions = np.concatenate([np.empty(0, np.int64), *(each.positions for each in hits)])
    order = np.argsort(positions)
    return Hits(positions[order], np.concatenate([np.empty(0, np.intp), *(each.places for each in hits)])[order])


def _packed(ids: Positions, start: int) -> tuple[Array, Array]:
    """Return the row ids of one row or more as two arrays, of which the first has the type of the form.

    Runs: the positions at which they start, of 4 bytes, and the row id less the position in each. Narrow integers: one
    number of 8 bytes that they are added to. There, 0 means an inherited id.
    """
    inherited = np.flatnonzero(ids == _INHERITED)
    steps = ids - np.arange(start, start + len(ids))
    steps[inherited] = _INHERITED
    starts = np.concatenate(([0], np.flatnonzero(steps[1:] != steps[:-1]) + 1))
    runs = (starts + start).astype(np.uint32), steps[starts]
    if sum(each.nbytes for each in runs) <= len(ids):
        return runs
    stored = np.delete(ids, inherited)
    base = int(stored.min()) - 1 if len(stored) else 0
    values = ids - base
    values[inherited] = 0
    narrow = values.astype(np.min_scalar_type(int(values.max())))
    return runs if sum(each.nbytes for each in runs) <= narrow.nbytes else (np.array([base, start]), narrow)


def _ids_at(arrays: Sequence[Array], positions: Positions, first_row_id: int) -> Positions:
    """Return the row ids at ascending positions."""
    ids: NDArray[np.int64] = np.empty(len(positions), np.int64)
    pairs = list(zip(arrays[0::2], arrays[1::2], strict=True))
    starts = [int(key[0]) if key.dtype.itemsize == _POSITION_BYTES else int(key[1]) for key, _ in pairs]
    bounds = [*np.searchsorted(positions, starts).tolist(), len(positions)]
    for number, (key, values) in enumerate(pairs):
        here = slice(bounds[number], bounds[number + 1])
        some = positions[here]
        if key.dtype.itemsize == _POSITION_BYTES:
            steps = values[np.searchsorted(key, some.astype(np.uint32), "right") - 1]
            inherits = steps == _INHERITED
            ids[here] = np.where(inherits, first_row_id, steps) + some
        else:
            narrow = values[some - key[1]].astype(np.int64)
            ids[here] = np.where(narrow == 0, first_row_id + some, narrow + key[0])
    return ids
