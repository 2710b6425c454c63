"""Columns of manifests on the local disk, so that another process need not read the manifests again.

A file has a checksum, a header in JSON and numpy's own format for arrays; nothing in it is executed. A file that is
missing, damaged or of another version costs time, never correctness. Measured on 1,000,000 entries: reading the columns
takes 0.2 s of CPU time, and decoding the manifests 6.6 s.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
from pyiceberg.manifest import ManifestFile

from icesize.planning.files import PartitionKey
from icesize.private_folder import PART, PrivateFolder, remove_file
from icesize.table.manifests.file_columns import ENCRYPTED, EntryColumns, Integers, Texts

LOG = logging.getLogger("icesize")

_VERSION = 3
"""Version of the files; part of their names, and raised with every change of `Columns`."""
_FOLDER = "icesize-manifests"
_SUFFIX = ".columns"
_MARK = b"icesize columns\n"
_DIGEST_BYTES = 16
_ARRAYS = (
    "partition", "status", "snapshot_ids", "sequence_numbers", "file_sequence_numbers", "size_bytes", "rows",
    "obstacles", "first_row_ids",
)  # fmt: skip
_SWEEPS = 16
"""Parts of the limit after each of which files are counted, because other processes also write to the folder."""
_KINDS: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "bool": (bool, str, "True".__eq__),
    "int": (int, str, int),
    "str": (str, str, str),
    "float": (float, lambda value: float(value).hex(), float.fromhex),
    "bytes": (bytes, lambda value: base64.b64encode(value).decode(), base64.b64decode),
    "decimal": (Decimal, str, Decimal),
    "uuid": (UUID, str, UUID),
}
"""Types of partition values, each with its text; the first one that a value has counts."""


@lru_cache(maxsize=8)
def spill_to(folder: str, max_bytes: int) -> ColumnSpill:
    """Return the spill below a folder, one for all tables of this process."""
    return ColumnSpill(Path(folder), max_bytes)


class ColumnSpill:
    """Columns below a folder of the local disk, at most about `max_bytes` of them; the least recently used go first.

    The files are in a directory of their own that only this user may open. Nothing is written and read if others may.
    Threads and processes may share the folder. Errors of the disk are logged, never raised.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder, self._max_bytes = PrivateFolder(folder / _FOLDER, "the columns of manifests"), max_bytes
        self._lock = threading.Lock()
        self._uncounted_bytes = max_bytes

    def read(self, table_uuid: str, manifest: ManifestFile) -> EntryColumns | None:
        """Return the columns of a manifest, if they are there. A damaged or foreign file of that name is removed."""
        if not self._folder.is_usable():
            return None
        place = self._folder.path / _name(table_uuid, manifest)
        try:
            content = place.read_bytes()
            os.utime(place)
        except OSError:
            return None
        try:
            return columns_from(content, manifest.partition_spec_id)
        except Exception as damage:  # of any kind: the bytes may come from anywhere
            LOG.debug("%s is damaged (%s)", place, damage)
            remove_file(place)
            return None

    def write(self, table_uuid: str, manifest: ManifestFile, columns: EntryColumns) -> None:
        """Keep the columns of a manifest, unless it is encrypted or lists an encrypted file."""
        if manifest.key_metadata is not None or bool((columns.obstacles == ENCRYPTED).any()):
            return
        content = bytes_from(columns)
        if content is None or len(content) > self._max_bytes or not self._folder.is_usable():
            return
        try:
            self._make_room(len(content))
        except OSError as error:
            self._folder.warn(str(error))
        else:
            self._folder.write(_name(table_uuid, manifest), lambda out: out.write(content))

    def _make_room(self, size: int) -> None:
        """Remove the least recently used files, once enough was written since the last time."""
        with self._lock:
            self._uncounted_bytes += size
            if self._uncounted_bytes < self._max_bytes // _SWEEPS:
                return
            self._uncounted_bytes = size
            files = sorted(self._folder.files(_SUFFIX, PART))
            excess = sum(length for _, length, _ in files) + size - self._max_bytes
            for _, length, path in files:
                if excess <= 0:
                    return
                remove_file(path)
                excess -= length


def _name(table_uuid: str, manifest: ManifestFile) -> str:
    parts = (_VERSION, table_uuid, manifest.manifest_path, manifest.manifest_length, manifest.partition_spec_id)
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=20).hexdigest() + _SUFFIX


def bytes_from(columns: EntryColumns) -> bytes | None:
    """Return the columns as bytes; None if a partition value has a type that no manifest has."""
    try:
        keys = [[_text_of(value) for value in key.values] for key in columns.keys]
    except LookupError:
        return None
    header = {
        "keys": keys, "entries": columns.status.size, "start": columns.paths.start, "targets": columns.targets,
    }  # fmt: skip
    out = BytesIO()
    head = json.dumps(header).encode()
    out.write(len(head).to_bytes(8, "little") + head)
    rest = np.frombuffer(columns.paths.rest.encode("utf-8", "surrogatepass"), np.uint8)
    for array in (rest, columns.paths.ends, *(getattr(columns, name) for name in _ARRAYS)):
        # a number that is stored once for all entries stays so
        np.lib.format.write_array(out, array if any(array.strides) else array[:1], allow_pickle=False)
    body = out.getvalue()
    return _MARK + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() + body


def columns_from(content: bytes, spec_id: int) -> EntryColumns:
    """Return columns from their bytes. Raises an error of any type for other bytes."""
    begin = len(_MARK) + _DIGEST_BYTES
    body = memoryview(content)[begin:]
    if content[:begin] != _MARK + hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest():
        raise ValueError("the checksum differs")
    end = 8 + int.from_bytes(body[:8], "little")
    header = json.loads(bytes(body[8:end]))
    stream = BytesIO(body[end:])
    rest = np.lib.format.read_array(stream, allow_pickle=False).tobytes().decode("utf-8", "surrogatepass")
    ends = _array(stream, header["entries"] + 1)
    arrays = {name: _array(stream, header["entries"]) for name in _ARRAYS}
    keys = tuple(PartitionKey.of(spec_id, tuple(map(_value_of, key))) for key in header["keys"])
    targets = tuple((kind, tuple(ids), *more) for kind, ids, *more in header["targets"])
    return EntryColumns(keys=keys, paths=Texts(header["start"], rest, ends), targets=targets, **arrays)


def _array(stream: BytesIO, size: int) -> Integers:
    array: Integers = np.lib.format.read_array(stream, allow_pickle=False)
    return np.broadcast_to(array, (size,)) if array.size == 1 else array


def _text_of(value: object) -> list[str] | None:
    """Return the name of a partition value's type and its text, None for NULL. Raises LookupError for another type."""
    if value is None:
        return None
    for name, (kind, text, _) in _KINDS.items():
        if isinstance(value, kind):
            return [name, text(value)]
    raise LookupError(type(value).__name__)


def _value_of(text: list[str] | None) -> object:
    return None if text is None else _KINDS[text[0]][2](text[1])
