"""Deletion vectors: the deleted rows of one data file as a bitmap, which is a part of a Puffin file.

The layout of the bytes is Iceberg's (Puffin specification, blob type `deletion-vector-v1`). Readers of tables find a
vector by its manifest entry, and do not read the footer of the Puffin file.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping, Sequence

from pyroaring import BitMap, BitMap64

from icesize import __version__
from icesize.concurrency import Ahead
from icesize.parquet.deletes.delete_files import UnreadableDeletesError, blaming
from icesize.parquet.deletes.positions import check_positions
from icesize.parquet.files.data_file import NewDeleteFile
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.format.sources import StreamSource, read_ranges
from icesize.planning.deletes.delete_reach import vectors_hitting
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.storage.table_storage import Storage

BLOB_TYPE = "deletion-vector-v1"
"""The type of a vector among the blobs of a Puffin file."""
PUFFIN = b"PFA1"
"""The first and last bytes of a Puffin file and of its footer."""
_POSITION_ID = 2147483645
"""Iceberg's field id of the position of a row in its file (`_pos`), the column that a vector is about."""
_MAGIC = b"\xd1\xd3\x39\x64"
"""The first bytes of a vector, as in Delta Lake."""
_AROUND = 4 + 4
"""Bytes around the magic and the bitmap: their length before them, their CRC-32 behind them."""
_ONE_BITMAP = (1).to_bytes(8, "little") + (0).to_bytes(4, "little")
"""A 64-bit bitmap is a number of 32-bit bitmaps, each with the upper half of its positions: here one, with 0."""


def vectors_of(inputs: Sequence[FileFact], deletes: Sequence[DeleteFile]) -> dict[str, DeleteFile]:
    """Return the vector of each input among the deletes, by its path; raises `RewriteFailed` if an input has two."""
    by_path = dict[str, DeleteFile]()
    for path, vectors in vectors_hitting(inputs, deletes).items():
        by_path[path], *more = vectors
        for delete in more:
            with blaming(delete):
                raise UnreadableDeletesError(f"{path} has another deletion vector, check the table's metadata")
    return by_path


def mark_vectors(
    vectors: Mapping[str, DeleteFile],
    inputs: Sequence[FileFact],
    positions: Mapping[str, BitMap],
    storage: Storage,
    ahead: Ahead,
) -> None:
    """Add the rows of the vectors, by the path of their data file, to the bitmaps of the inputs.

    Each Puffin file is read once, and the next ones are read `ahead`.
    """
    by_puffin = defaultdict[str, list[tuple[DeleteFile, FileFact]]](list)
    for file in inputs:
        if (delete := vectors.get(file.path)) is not None:
            by_puffin[delete.path].append((delete, file))
    all_read = ahead.map(lambda pairs: _read(pairs, storage), by_puffin.values())
    for pairs, blobs in zip(by_puffin.values(), all_read, strict=True):
        for (delete, file), blob in zip(pairs, blobs, strict=True):
            with blaming(delete):
                deleted = positions[file.path]
                deleted |= decoded(blob, delete.rows, file)


def _read(pairs: Sequence[tuple[DeleteFile, FileFact]], storage: Storage) -> list[bytes]:
    """Return the bytes of vectors of one Puffin file, and read few other bytes of it."""
    first, _ = pairs[0]
    with blaming(first), storage.stream(first.path) as stream:
        source = StreamSource(stream)
        ranges = [_range(delete, source.size_bytes) for delete, _ in pairs]
        blobs = read_ranges(source, set(ranges))
        return [blobs[each] for each in ranges]


def _range(delete: DeleteFile, size_bytes: int) -> tuple[int, int]:
    """Return offset and length of a vector, after a check that its file of `size_bytes` has these bytes."""
    offset, length = delete.content_offset or 0, delete.content_size_bytes or 0
    if min(offset, length) < 0 or offset + length > size_bytes:
        raise UnreadableDeletesError(
            f"it has {size_bytes} bytes, a deletion vector of {length} bytes begins at {offset}, check that the file "
            "is whole"
        )
    return offset, length


def decoded(blob: bytes, rows: int, file: FileFact) -> BitMap:
    """Return the deleted rows of a data file from the bytes of its vector, which must have `rows` positions.

    Raises `UnreadableDeletesError` for damaged bytes, for another number of positions than the table's metadata has,
    and for positions beyond the end of the data file.
    """
    data = memoryview(blob)[4:-4]
    if len(blob) < _AROUND or int.from_bytes(blob[:4], "big") != len(data):
        raise UnreadableDeletesError("the length of its deletion vector is wrong, check that the file is whole")
    if zlib.crc32(data) != int.from_bytes(blob[-4:], "big"):
        raise UnreadableDeletesError("the checksum of its deletion vector is wrong, check that the file is whole")
    if data[:4] != _MAGIC:
        raise UnreadableDeletesError("it has no deletion vector at that place, check the table's metadata")
    positions = _positions(bytes(data[4:]))
    if len(positions) != rows:
        raise UnreadableDeletesError(
            f"its deletion vector has {len(positions)} rows, its manifest records {rows}, check the table's metadata"
        )
    if positions:
        check_positions(positions.min(), positions.max(), file)
    return positions if isinstance(positions, BitMap) else BitMap(positions)


def _positions(data: bytes) -> BitMap | BitMap64:
    try:
        if data.startswith(_ONE_BITMAP):  # of all files of less than 2**32 rows
            return BitMap.deserialize(data[len(_ONE_BITMAP) :])
        return BitMap64.deserialize(data)
    except (ValueError, IndexError) as error:
        raise UnreadableDeletesError(f"its deletion vector is no bitmap: {error}") from error


def write_vectors(
    new_files: NewFiles, partition: PartitionKey, deleted: Mapping[FileFact, BitMap], number: int | None = None
) -> tuple[NewDeleteFile, ...]:
    """Write one Puffin file with the vectors of data files, and return the vectors in the same order.

    The file lies where new files of `partition` do; the data files may be of any partition. `deleted` has all deleted
    rows of each data file, `number` is the data sequence number of the vectors, None for that of their snapshot. The
    bitmaps are compressed in place. Raises what `NewFiles` raises.
    """
    path = new_files.location(partition, "puffin")
    with new_files.create(path) as stream:
        stream.write(PUFFIN)
        size_bytes, places = len(PUFFIN), list[tuple[int, int]]()
        for rows in deleted.values():
            blob = encoded(rows)
            stream.write(blob)
            places.append((size_bytes, len(blob)))
            size_bytes += len(blob)
        footer = _footer(deleted, places)
        stream.write(footer)
        size_bytes += len(footer)
    new_files.finished(path, size_bytes)
    return tuple(
        NewDeleteFile(
            path, size_bytes, len(rows), file.partition, sequence_number=number,
            deletes_of=file.path, content_offset=offset, content_size_bytes=length,
        )
        for (file, rows), (offset, length) in zip(deleted.items(), places, strict=True)
    )  # fmt: skip


def encoded(rows: BitMap) -> bytes:
    """Return the bytes of the vector of these rows; the bitmap is compressed in place."""
    rows.run_optimize()
    data = _MAGIC + _ONE_BITMAP + rows.serialize()
    return len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def _footer(deleted: Mapping[FileFact, BitMap], places: Sequence[tuple[int, int]]) -> bytes:
    """Return the footer of a Puffin file. The numbers of its snapshot are -1, because that does not exist yet."""
    blobs = [
        {
            "type": BLOB_TYPE,
            "fields": [_POSITION_ID],
            "snapshot-id": -1,
            "sequence-number": -1,
            "offset": offset,
            "length": length,
            "properties": {"referenced-data-file": file.path, "cardinality": str(len(rows))},
        }
        for (file, rows), (offset, length) in zip(deleted.items(), places, strict=True)
    ]
    content = {"blobs": blobs, "properties": {"created-by": f"icesize version {__version__}"}}
    payload = json.dumps(content, separators=(",", ":")).encode()
    no_flags = bytes(4)
    return PUFFIN + payload + len(payload).to_bytes(4, "little") + no_flags + PUFFIN
