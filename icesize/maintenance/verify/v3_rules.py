"""Rules of a verification for tables of format v3: row ids, deletion vectors, and no new position delete files.

They are those of the specification: sections "Row Lineage" and "Deletion Vectors", and the Puffin specification.
"""

from __future__ import annotations

import io as streams
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.concurrency import concurrently
from icesize.parquet.deletes.vectors import BLOB_TYPE, PUFFIN
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.planning.deletes.delete_reach import plain_path
from icesize.planning.files import DeleteFile
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.manifest_lists import first_row_id_of

_TAIL_BYTES = 2**16
"""Bytes at the end of a Puffin file that are read first: the footer of about 200 vectors."""
_STRUCT_BYTES = 12
"""The end of a Puffin footer: the size of its payload, flags, and the magic, 4 bytes each."""
_IS_COMPRESSED = 1


def row_ids(metadata: TableMetadata, data: Sequence[ManifestFacts]) -> Iterator[tuple[str, str]]:
    """Snapshots, and the live files of the newest one, have row ids of their own, below the next one of the table."""
    if metadata.format_version < FIRST_WITH_LINEAGE:
        return
    next_row_id = getattr(metadata, "next_row_id", None)
    if next_row_id is None:
        yield metadata.location, "the metadata have no 'next-row-id'"
        return
    yield from _snapshots(metadata.snapshots, next_row_id)
    yield from _files(data, next_row_id)


def of_manifests(head: Snapshot | None, data: Iterable[ManifestFacts]) -> Iterator[tuple[str, str]]:
    """The data manifests of a snapshot with row ids also have some."""
    for facts in data if head and head.first_row_id is not None else ():
        if first_row_id_of(facts.manifest) is None:
            yield facts.path, "it has no first row id, although the snapshot has one"


def _snapshots(snapshots: Iterable[Snapshot], next_row_id: int) -> Iterator[tuple[str, str]]:
    numbered, others = list[Snapshot](), list[Snapshot]()
    for snapshot in snapshots:
        (others if snapshot.first_row_id is None else numbered).append(snapshot)
    first = np.array([snapshot.first_row_id for snapshot in numbered], np.int64)
    rows = np.array([snapshot.added_rows or 0 for snapshot in numbered], np.int64)
    for place in np.flatnonzero(first + rows > next_row_id).tolist():
        yield numbered[place].manifest_list, _beyond(first[place] + rows[place], next_row_id)
    for place in overlapping(first, rows).tolist():
        yield numbered[place].manifest_list, f"its row ids from {first[place]} on are also those of another snapshot"
    # a table is upgraded once, so a later snapshot has row ids
    since = min((snapshot.sequence_number or 0 for snapshot in numbered), default=None)
    for snapshot in others:
        if since is not None and (snapshot.sequence_number or 0) > since:
            yield snapshot.manifest_list, "it has no first row id, although an older snapshot has one"


def _files(data: Sequence[ManifestFacts], next_row_id: int) -> Iterator[tuple[str, str]]:
    ends = np.cumsum([facts.live.size for facts in data])
    first, rows = (
        np.concatenate([np.empty(0, np.int64), *columns])
        for columns in ([f.first_row_ids[f.live] for f in data], [f.columns.rows[f.live] for f in data])
    )

    def path(place: int) -> str:
        facts = data[at := int(np.searchsorted(ends, place, side="right"))]
        return facts.paths(facts.live[[place - int(ends[at]) + facts.live.size]])[0]

    with_ids = np.flatnonzero(first >= 0)
    first, rows = first[with_ids], rows[with_ids]
    for place in np.flatnonzero(first + rows > next_row_id).tolist():
        yield path(with_ids[place]), _beyond(first[place] + rows[place], next_row_id)
    for place in overlapping(first, rows).tolist():
        yield path(with_ids[place]), f"its row ids from {first[place]} on are also those of another file"


def _beyond(end: int, next_row_id: int) -> str:
    return f"its row ids end at {end - 1}, the next one of the table is {next_row_id}"


def overlapping(first: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the indexes of ranges of row ids that begin inside another range, or where a longer one begins.

    Args:
        first: The first id of each range.
        rows: The number of ids of each range; a range without ids overlaps nothing.
    """
    order = np.lexsort((-rows, first))
    order = order[rows[order] > 0]
    ends = np.maximum.accumulate((first + rows)[order])
    return order[1:][first[order][1:] < ends[:-1]]


def new_position_deletes(metadata: TableMetadata, deletes: Iterable[ManifestFacts]) -> Iterator[tuple[str, str]]:
    """No snapshot of format v3 adds a position delete file; those from before the upgrade stay valid."""
    of_v3 = {snapshot.snapshot_id for snapshot in metadata.snapshots if snapshot.first_row_id is not None}
    for facts in deletes if of_v3 else ():
        for delete, added_by in zip(facts.deletes(), facts.snapshot_ids[facts.live].tolist(), strict=True):
            if added_by in of_v3 and not delete.is_vector and not delete.equality_ids:
                yield delete.path, f"snapshot {added_by} of format v3 added it"


def vectors(io: FileIO, deletes: Iterable[DeleteFile]) -> Iterator[tuple[str, str]]:
    """A data file has one live deletion vector at most, which matches its Puffin file."""
    by_file, by_puffin = (defaultdict[str, list[DeleteFile]](list) for _ in range(2))
    for delete in deletes:
        if delete.is_vector and delete.referenced_path is not None:
            by_file[plain_path(delete.referenced_path)].append(delete)
            by_puffin[delete.path].append(delete)
        elif delete.is_vector or delete.file_format == "PUFFIN":
            yield delete.path, "the manifest does not have the data file and the place of its deletion vector"
    for same in by_file.values():
        if len(same) > 1:
            yield same[0].referenced_path or "", f"it has {len(same)} deletion vectors"
    footers = concurrently(partial(_blobs, io), by_puffin)
    for (path, listed), blobs in zip(by_puffin.items(), footers, strict=True):
        details = [blobs] if isinstance(blobs, str) else (_mismatch(each, blobs) for each in listed)
        yield from ((path, detail) for detail in details if detail)


def _mismatch(vector: DeleteFile, blobs: Mapping[int, Mapping[str, Any]]) -> str | None:
    """Return what is wrong with a vector, by the footer of its Puffin file; None if both agree."""
    name = f"the deletion vector of {vector.referenced_path}"
    blob = blobs.get(vector.content_offset or 0)
    if blob is None or blob.get("type") != BLOB_TYPE:
        return f"{name}: none begins at byte {vector.content_offset}"
    properties = blob.get("properties", {})
    pairs = {
        "length": (blob.get("length"), vector.content_size_bytes),
        "cardinality": (properties.get("cardinality"), str(vector.rows)),
        "referenced-data-file": (
            plain_path(properties.get("referenced-data-file", "")),
            plain_path(vector.referenced_path or ""),
        ),
    }
    wrong = [f"its '{key}' is {there}, in the manifest {here}" for key, (there, here) in pairs.items() if there != here]
    return f"{name}: {'; '.join(wrong)}" if wrong else None


def _blobs(io: FileIO, path: str) -> Mapping[int, Mapping[str, Any]] | str:
    """Return the blobs of a Puffin file from its footer, by their first byte; if that cannot be read, the reason."""
    try:
        footer = json.loads(_footer(io, path))
        return {blob["offset"]: blob for blob in footer["blobs"]}
    except FileNotFoundError:
        return "it is not there"
    except (ValueError, KeyError, TypeError) as error:
        return f"its footer is damaged ({type(error).__name__})"


def _footer(io: FileIO, path: str) -> bytes:
    """Return the payload of the footer of a Puffin file. Raises ValueError if there is none."""
    with io.new_input(path).open() as stream:
        size_bytes = stream.seek(0, streams.SEEK_END)

        def tail(count: int) -> bytes:
            stream.seek(max(0, size_bytes - count))
            return stream.read()

        data = tail(_TAIL_BYTES)
        needed = len(PUFFIN) + int.from_bytes(data[-_STRUCT_BYTES:][:4], "little") + _STRUCT_BYTES
        if data[-4:] != PUFFIN or needed > size_bytes:
            raise ValueError("no footer")
        data = (data if needed <= len(data) else tail(needed))[-needed:]
    if data[:4] != PUFFIN:
        raise ValueError("no footer")
    payload = data[len(PUFFIN) : -_STRUCT_BYTES]
    return _decompressed(payload) if data[-8] & _IS_COMPRESSED else payload


def _decompressed(payload: bytes) -> bytes:
    try:
        return bytes(pa.input_stream(pa.BufferReader(payload), compression="lz4").read())
    except OSError as error:  # not one of storage
        raise ValueError(str(error)) from error
