"""Manifest entries, read lean: what planning and conflict checks need, plus the encoded bytes to copy.

The writer's own schema decides how an entry is read, so that statistics are passed over, not decoded.
"""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, TypeAlias

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.table.manifests.avro_container import ContainerReader
from icesize.table.manifests.avro_decode import AvroSchema, Read, inlined, reader, skipper, structure
from icesize.table.manifests.avro_encode import writer

EXISTING, ADDED, DELETED = 0, 1, 2
"""Values of `Entry.status`."""
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2
"""Values of `Entry.content`."""

# What the compiled and the plain decoder raise for bytes that are not what the schema says.
_DAMAGE = (EOFError, IndexError, MemoryError, SystemError, ValueError)
_DELETED_PATH = 2147483546  # field id of `file_path` in position delete files


@dataclass(frozen=True, slots=True)
class DataFileSchema:
    """The Avro record that data files are encoded as in some manifests; equal when bytes can be copied between them."""

    key: str = field(repr=False)
    avro: AvroSchema = field(compare=False, repr=False)


@dataclass(slots=True)
class Entry:
    """One file of a manifest, sequence numbers and snapshot id inherited as Iceberg's specification says.

    `sequence_number` is the *data* sequence number, 0 in format v1. `values` are the partition values as stored, in
    spec-field order. `encrypted`: it carries key metadata. `data` is its encoded `data_file` record (empty when not
    asked for), to be read by `schema`. The last four are only read from delete manifests: the path of the data file
    that it is about when that is only one, the bounds of the paths in a position delete file (cut off to a prefix when
    long, the upper one then raised), and the columns of an equality delete file.
    """

    status: int
    snapshot_id: int | None
    sequence_number: int | None
    file_sequence_number: int | None
    content: int
    path: str
    file_format: str
    values: tuple[Any, ...]
    rows: int
    size_bytes: int
    encrypted: bool
    data: bytes
    schema: DataFileSchema
    referenced_path: str | None = None
    lowest_path: str | None = None
    highest_path: str | None = None
    equality_ids: tuple[int, ...] | None = None


def read_entries(
    io: FileIO, manifest: ManifestFile, *, live_only: bool = True, with_data: bool = True
) -> Iterator[Entry]:
    """The entries of one manifest in their order; `live_only` leaves out those of status DELETED.

    Python's garbage collector is off while the iteration runs: collecting over growing lists of entries more than
    doubles the time. Without `with_data` the bytes to copy are left out. Raises `TableError` for a damaged manifest
    and whatever `io` raises for a missing one.
    """
    with io.new_input(manifest.manifest_path).open() as stream:
        container = ContainerReader(stream.read(), manifest.manifest_path)
    if "avro.schema" not in container.metadata:
        raise container.broken("it has no schema")
    deletes = manifest.content == ManifestContent.DELETES
    read = _compiled(container.metadata["avro.schema"], deletes)
    inherited = manifest.sequence_number, manifest.added_snapshot_id
    with without_gc():
        for block in container.blocks():
            buffer = block.buffer if with_data else b""
            for _ in range(block.count):
                try:
                    entry = read(block.decoder, buffer)
                except _DAMAGE as damage:
                    raise container.broken(f"an entry is damaged ({damage})") from damage
                if entry.status != DELETED or not live_only:
                    yield _carry_over(entry, *inherited)


def read_changes(io: FileIO, manifest: ManifestFile) -> Iterator[Entry]:
    """The entries of one manifest that are ADDED or DELETED, without their data.

    Reading ends with the last of them where the manifest's counts are known: manifests of ours begin with them, so
    that a small change costs little however much the manifest keeps. Raises what `read_entries` raises for what it
    has read.
    """
    added, deleted = manifest.added_files_count, manifest.deleted_files_count
    left = None if added is None or deleted is None else added + deleted
    if left == 0:
        return
    for entry in read_entries(io, manifest, live_only=False, with_data=False):
        if entry.status != EXISTING:
            yield entry
            left = None if left is None else left - 1
            if left == 0:
                return


def under_new_path(entry: Entry, path: str) -> Entry:
    """What a manifest says of a byte for byte copy of a file: all that it says of the file, but nothing of when it came
    into the table. `entry` was read with its data."""
    decoder = new_decoder(entry.data)
    record = entry.schema.avro["fields"]
    at = next(i for i, each in enumerate(record) if each["field-id"] == _FILE_PATH)
    for each in record[:at]:
        skipper(each["type"])(decoder)
    start = decoder.tell()
    skipper(record[at]["type"])(decoder)
    written = bytearray()
    writer(record[at]["type"])(written, path)
    data = entry.data[:start] + bytes(written) + entry.data[decoder.tell() :]
    return replace(
        entry, status=ADDED, snapshot_id=None, sequence_number=None, file_sequence_number=None, path=path, data=data
    )


def _carry_over(entry: Entry, sequence_number: int, snapshot_id: int | None) -> Entry:
    if entry.snapshot_id is None:
        entry.snapshot_id = snapshot_id
    if entry.status == ADDED or sequence_number == 0:
        if entry.sequence_number is None:
            entry.sequence_number = sequence_number
        if entry.file_sequence_number is None:
            entry.file_sequence_number = sequence_number
    return entry


_gc_lock = threading.Lock()
_gc_holders = 0
_gc_was_enabled = False


@contextmanager
def without_gc() -> Iterator[None]:
    """Python's cyclic garbage collector is off inside; the outermost user of any thread restores it."""
    global _gc_holders, _gc_was_enabled
    with _gc_lock:
        if _gc_holders == 0:
            _gc_was_enabled = gc.isenabled()
            gc.disable()
        _gc_holders += 1
    try:
        yield
    finally:
        with _gc_lock:
            _gc_holders -= 1
            if _gc_holders == 0 and _gc_was_enabled:
                gc.enable()


_ReadEntry: TypeAlias = "Callable[[BinaryDecoder, bytes], Entry]"
_Steps: TypeAlias = "list[tuple[int, Read]]"

# Where a field of the manifest goes among the first arguments of Entry, by Iceberg field id. Key metadata is read into
# the place of `encrypted`.
_ENTRY_SLOTS = {0: 0, 1: 1, 3: 2, 4: 3}
_FILE_SLOTS = {134: 4, 100: 5, 101: 6, 102: 7, 103: 8, 104: 9, 131: 10}
_DELETE_SLOTS = {143: 13, 125: 14, 128: 15, 135: 16}
_NOWHERE = 17
_BLANK: list[Any] = [None] * (_NOWHERE + 1)
_DATA_FILE = 2
_FILE_PATH = 100


@lru_cache(maxsize=64)
def _compiled(schema_json: str, deletes: bool) -> _ReadEntry:
    """The function that reads entries written with this schema; kept, as the manifests of a table share few of them."""
    fields = inlined(json.loads(schema_json))["fields"]
    at = next(i for i, field in enumerate(fields) if field["field-id"] == _DATA_FILE)
    record = fields[at]["type"]
    before, after = _steps(fields[:at], _ENTRY_SLOTS), _steps(fields[at + 1 :], _ENTRY_SLOTS)
    inside = _steps(record["fields"], {**_FILE_SLOTS, **_DELETE_SLOTS} if deletes else _FILE_SLOTS)
    schema = DataFileSchema(structure(record), record)
    finish = _finish_delete if deletes else _finish

    def read(decoder: BinaryDecoder, buffer: bytes) -> Entry:
        row = _BLANK.copy()
        for slot, read_field in before:
            row[slot] = read_field(decoder)
        start = decoder.tell()
        for slot, read_field in inside:
            row[slot] = read_field(decoder)
        row[11] = buffer[start : decoder.tell()]
        for slot, read_field in after:
            row[slot] = read_field(decoder)
        row[12] = schema
        return finish(row)

    return read


def _steps(fields: list[dict[str, Any]], slots: dict[int, int]) -> _Steps:
    steps = []
    for each in fields:
        slot = slots.get(each["field-id"], _NOWHERE)
        steps.append((slot, skipper(each["type"]) if slot == _NOWHERE else reader(each["type"])))
    return steps


def _finish(row: list[Any]) -> Entry:
    row[4] = row[4] or DATA
    row[6] = row[6].upper()
    row[10] = row[10] is not None
    return Entry(*row[:13])


def _finish_delete(row: list[Any]) -> Entry:
    entry = _finish(row)
    entry.referenced_path = row[13]
    lowest, highest = ((bounds or {}).get(_DELETED_PATH) for bounds in row[14:16])
    # Half a character at the end of a shortened bound is left out: a shorter prefix only rules out less.
    entry.lowest_path = None if lowest is None else lowest.decode(errors="ignore")
    entry.highest_path = None if highest is None else highest.decode(errors="ignore")
    entry.equality_ids = None if row[16] is None else tuple(row[16])
    return entry
