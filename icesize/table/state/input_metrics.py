"""What manifests say of the columns of files that a merge copied: read again at the commit, for those files alone.

Layouts leave metrics out, as most merges decode their rows. Nothing here makes a commit fail: a bound that is not known
is left out of the merged file, which then only is read more often than it has to.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from typing import Any

from pyiceberg.avro.decoder import BinaryDecoder, new_decoder
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.parquet.files.carried_over_metrics import FileMetrics, carry_over
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.settings import WriteSettings
from icesize.planning.files import FileFact
from icesize.table.catalog.access_errors import brief
from icesize.table.commit.request import MergedGroup
from icesize.table.manifests.avro_decode import AvroSchema, Read, is_pairs, reader, skipper
from icesize.table.manifests.entries import DataFileSchema, read_entries

LOG = logging.getLogger("icesize")

# Where a field of a data file goes among the arguments of FileMetrics, by Iceberg field id.
_SLOTS = {103: 0, 110: 1, 137: 2, 125: 3, 128: 4, 109: 5}
_NOWHERE = 6
_LARGEST = 2**63 - 1
_THREADS = 4
"""Manifests that are read at a time; it only pays where each is a round trip away."""


def with_carried_over_metrics(
    merged: tuple[MergedGroup, ...],
    appended: Sequence[WrittenFile],
    io: FileIO,
    settings: Callable[[], WriteSettings],
) -> tuple[MergedGroup, ...]:
    """The groups with complete metrics for outputs that were copied from their input files.

    Input files are described by manifests, or by `appended` where the same commit brings them. `settings` are asked
    for, and manifests read, only when there is such an output.
    """
    copied = {old.path for group in merged for file in group.outputs for old in file.copied_from}
    if not copied:
        return merged
    known = metrics_of((v for group in merged for v in group.inputs if v.path in copied), io)
    known |= {file.path: FileMetrics.of(file) for file in appended}
    how = settings()
    return tuple(replace(g, outputs=tuple(carry_over(file, how, known) for file in g.outputs)) for g in merged)


def metrics_of(files: Iterable[FileFact], io: FileIO) -> dict[str, FileMetrics]:
    """Metrics by path of those files that are in the manifests that they were found in; each is read once.

    Of a manifest that is gone or damaged no file is among them.
    """
    wanted: dict[str, set[str]] = defaultdict(set)
    for file in files:
        if file.manifest_path:
            wanted[file.manifest_path].add(file.path)
    found: dict[str, FileMetrics] = {}
    with ThreadPoolExecutor(_THREADS) as pool:
        for part in pool.map(lambda item: _read_what_is_there(io, *item), wanted.items()):
            found |= part
    return found


def _read_what_is_there(io: FileIO, location: str, paths: set[str]) -> dict[str, FileMetrics]:
    try:
        return _read(io, location, paths)
    except Exception as error:  # of whatever the storage is reached by
        LOG.info("column metrics of %d merged files are not known: %s", len(paths), brief(error))
        return {}


def _read(io: FileIO, location: str, paths: set[str]) -> dict[str, FileMetrics]:
    # what a manifest list says besides is inherited by sequence numbers alone, and they do not matter here
    manifest = ManifestFile.from_args(manifest_path=location, content=ManifestContent.DATA, sequence_number=0)
    found: dict[str, FileMetrics] = {}
    for entry in read_entries(io, manifest):
        if entry.path in paths:
            found[entry.path] = metrics_reader(entry.schema)(new_decoder(entry.data))
            if len(found) == len(paths):
                break
    return found


@lru_cache(maxsize=64)
def metrics_reader(schema: DataFileSchema) -> Callable[[BinaryDecoder], FileMetrics]:
    """The function that reads metrics out of data files encoded like this, and nothing behind the last of them."""
    steps = []
    for each in schema.avro["fields"]:
        slot = _SLOTS.get(each["field-id"], _NOWHERE)
        steps.append((slot, skipper(each["type"]) if slot == _NOWHERE else _reader(each["type"])))
    while steps and steps[-1][0] == _NOWHERE:
        steps.pop()

    def read(decoder: BinaryDecoder) -> FileMetrics:
        row: list[Any] = [None] * (_NOWHERE + 1)
        for slot, step in steps:
            row[slot] = step(decoder)
        return FileMetrics(row[0], *(each or {} for each in row[1:_NOWHERE]))

    return read


def _reader(kind: AvroSchema) -> Read:
    """What `reader` gives; maps by field id are read by one call into compiled code."""
    pairs = kind[1] if isinstance(kind, list) and len(kind) == 2 and kind[0] == "null" else kind
    if not (isinstance(pairs, dict) and pairs["type"] == "array" and is_pairs(pairs)):
        return reader(kind)
    read_block = _BLOCKS.get(tuple(str(field["type"]) for field in pairs["items"]["fields"]))
    if read_block is None:
        return reader(kind)

    def read(decoder: BinaryDecoder) -> dict[int, Any] | None:
        if pairs is not kind and not decoder.read_int():
            return None
        values: dict[int, Any] = {}
        while count := decoder.read_int():
            if count < 0:
                # a negative count is followed by the size of the block, for those who skip it
                count = -count
                decoder.skip_int()
            read_block(decoder, count, values)
        return values

    return read


def _read_counts(decoder: BinaryDecoder, count: int, values: dict[int, Any]) -> None:
    numbers = decoder.read_ints(2 * count)
    if max(numbers) > _LARGEST:
        # the compiled decoder takes negative numbers for large ones
        numbers = tuple(n - 2**64 if n > _LARGEST else n for n in numbers)
    pairs = iter(numbers)
    values.update(zip(pairs, pairs, strict=True))


def _read_bounds(decoder: BinaryDecoder, count: int, values: dict[int, Any]) -> None:
    decoder.read_int_bytes_dict(count, values)


_BLOCKS: dict[tuple[str, ...], Callable[[BinaryDecoder, int, dict[int, Any]], None]] = {
    ("int", "long"): _read_counts,
    ("int", "bytes"): _read_bounds,
}
"""By the types of key and value: reads that many pairs into a dict."""
