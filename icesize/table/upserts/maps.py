"""Maps from keys to positions, one for each data file.

A map has the codes of a file's keys in ascending order, and the position of each. It is computed from the key columns
and nothing else, whether rows are live or deleted, so that it can be missing, but never stale. A second kind of file
has the row ids that a file stores, by position (format v3). The others follow from the first row id and the position.

| array | bytes |
|---|---|
| codes of 64 bits and positions | 12 a key |
| codes of 128 bits and positions | 20 a key |
| row ids, as narrow integers | up to 4 a row, 8 if the ids of the file lie far apart; none if it stores none |

A file has parts of about a million rows, so that few rows are in memory while it is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from icesize.array_files import Array, ArrayFolder, Identity
from icesize.concurrency import Ahead
from icesize.parquet.files.settings import NAME_MAPPING
from icesize.parquet.keys.codes import Codes
from icesize.planning.file_sizes import in_batches
from icesize.planning.files import FileFact
from icesize.table.upserts.lookup import Hits, Positions, Scan, TableFiles

PART_ROWS = 2**20
"""Rows of one part: sorting them takes 28 bytes a row, 30 MB in each thread. Larger parts take longer for each row."""
_POSITION_BYTES, _WORD_BYTES, _ROW_ID_BYTES = 4, 8, 4


@dataclass(frozen=True)
class KeyMaps:
    """Finds keys by maps, and reads the key columns of files that have none, whose maps it makes then.

    Attributes:
        scan: Reads key columns.
        folder: Keeps maps.
        made_of: What all maps are computed with: fields and types of the key, and what else decides their codes.
    """

    scan: Scan
    folder: ArrayFolder
    made_of: tuple[int | str, ...]

    @classmethod
    def of(cls, files: TableFiles, key: Sequence[int], secret: bytes, folder: ArrayFolder) -> KeyMaps:
        """Return the maps of these key columns, given by their field ids."""
        fields = {field.field_id: field for field in files.settings.schema.fields}
        typed = (f"{field_id} {fields[field_id].field_type}" for field_id in key)
        mark = blake2b(b"icesize", digest_size=16, key=secret).hexdigest()
        scan = Scan(files, tuple(files.names(key)), secret)
        # columns of files without field ids are found by the name mapping
        return cls(scan, folder, (*typed, mark, files.settings.properties.get(NAME_MAPPING, "")))

    def find(self, file: FileFact, codes: Codes) -> Hits:
        arrays = self.folder.read(self._identity(file))
        return (
            self._scanned(file, codes) if arrays is None else _together(hits_in(part, codes) for part in _parts(arrays))
        )

    def row_ids(self, file: FileFact, positions: Positions) -> Positions:
        first, parts = file.first_row_id or 0, [np.empty(0, np.int64)]
        arrays = self.folder.read(_of_ids(file))
        if arrays is not None:
            return _ids_at(arrays, positions, first)

        def stored() -> Iterator[Array]:
            for start, ids in self._all_row_ids(file):
                here = slice(*np.searchsorted(positions, (start, start + len(ids))))
                parts.append(ids[positions[here] - start])
                inherited = ids == np.arange(first + start, first + start + len(ids))
                yield from _packed(np.where(inherited, -1, ids), start)

        if not self.folder.write(_of_ids(file), file.rows * _ROW_ID_BYTES, stored()):
            return self.scan.row_ids(file, positions)
        return np.concatenate(parts)

    def _identity(self, file: FileFact) -> Identity:
        return (*_of_file(file), "keys", self.made_of)

    def _scanned(self, file: FileFact, codes: Codes) -> Hits:
        """Return the hits of a scan, and keep the map on the way, if it is worth its bytes."""
        hits = list[Hits]()

        def arrays() -> Iterator[Array]:
            # a large file may be the only one without a map: one thread sorts its rows while the other reads
            with closing(Ahead(1 if file.rows > PART_ROWS else 0)) as ahead:
                for part in ahead.map(_part, _in_parts(self.scan.codes(file))):
                    hits.append(hits_in(part, codes))
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
    """Return the value that distinguishes a data file from others of its path."""
    return file.path, file.size_bytes, file.file_sequence_number


def _of_ids(file: FileFact) -> Identity:
    return (*_of_file(file), "stored row ids")


MapPart = tuple[Array, ...]
"""Codes in ascending order, in one array or two, and their positions."""


def _part(rows: tuple[Positions, Codes]) -> MapPart:
    positions, codes = rows
    order = np.argsort(codes.high)  # equal codes in any order: hits are sorted by position
    codes = codes.take(order)
    words = (codes.high,) if codes.low is None else (codes.high, codes.low)
    return (*words, positions[order].astype(np.uint32))


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


def hits_in(part: MapPart, codes: Codes) -> Hits:
    """Return the rows of a part of a map that have one of these codes, which are ascending and differ from each other.

    In a part of a million rows, 100 codes are found in 0.03 ms, 50,000 in 4 ms.
    """
    rows = Codes(part[0], part[1] if len(part) > 2 else None)
    if not len(codes) or not len(rows):
        return Hits(np.empty(0, np.int64), np.empty(0, np.intp))
    # files or batches of few ranges leave few codes
    first, after = np.searchsorted(codes.high, rows.high[0]), np.searchsorted(codes.high, rows.high[-1], "right")
    wanted = codes.high[first:after]
    start = np.searchsorted(rows.high, wanted)
    there = np.flatnonzero(rows.high[start] == wanted)
    end = np.searchsorted(rows.high, wanted[there], "right")
    times = end - start[there]
    found = np.repeat(end - np.cumsum(times), times) + np.arange(times.sum())
    places = np.repeat(first + there, times)
    if rows.low is not None and codes.low is not None:
        same = rows.low[found] == codes.low[places]
        found, places = found[same], places[same]
    return Hits(part[-1][found].astype(np.int64), places)


def _together(parts: Iterable[Hits]) -> Hits:
    """Return the hits of all parts, by position."""
    hits = list(parts)
    positions = np.concatenate([np.empty(0, np.int64), *(each.positions for each in hits)])
    order = np.argsort(positions)
    return Hits(positions[order], np.concatenate([np.empty(0, np.intp), *(each.places for each in hits)])[order])


def _packed(ids: Positions, start: int) -> Iterator[Array]:
    """Yield the row ids of rows from a position on: what to add to each, and the position, then narrow integers.

    There, 0 is a row that inherits its id, which is below 0 in `ids`. Nothing is yielded if all rows do.
    """
    stores = ids >= 0
    if stores.any():
        base = int(ids[stores].min()) - 1
        values = np.where(stores, ids - base, 0)
        yield np.array([base, start])
        yield values.astype(np.min_scalar_type(int(values.max())))


def _ids_at(arrays: Sequence[Array], positions: Positions, first_row_id: int) -> Positions:
    """Return the row ids at ascending positions."""
    ids = first_row_id + positions
    for (base, start), narrow in zip(arrays[0::2], arrays[1::2], strict=True):
        here = slice(*np.searchsorted(positions, (start, start + len(narrow))))
        stored = narrow[positions[here] - start].astype(np.int64)
        ids[here] = np.where(stored == 0, ids[here], stored + base)
    return ids
