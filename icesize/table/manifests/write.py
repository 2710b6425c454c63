"""Manifests and manifest lists, written without decoding what is only kept.

Surviving entries are copied as bytes under the Avro schema that they were written with: fast, and lossless for
statistics that nobody here understands. Only partition values are encoded anew, where a column has been promoted since.
The files of one call go into as few manifests as their schemas allow.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence

from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.io import FileIO
from pyiceberg.manifest import UNASSIGNED_SEQ, ManifestFile, write_manifest_list
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import UnsupportedTable
from icesize.parquet.files.data_file import WrittenFile
from icesize.table.manifests.avro_container import without_gc
from icesize.table.manifests.entries import ADDED, DELETED, EXISTING, Entry
from icesize.table.manifests.writer import ManifestStreams, Target

_LIST_CODEC: AvroCompressionCodec = "deflate"


def write_manifests(
    io: FileIO,
    metadata: TableMetadata,
    spec_id: int,
    snapshot_id: int,
    new_path: Callable[[], str],
    *,
    added: Sequence[WrittenFile] = (),
    copied: Sequence[Entry] = (),
    existing: Sequence[Entry] = (),
    deleted: Sequence[Entry] = (),
) -> list[ManifestFile]:
    """Write the data manifests of one partition spec in snapshot `snapshot_id` and say what is in them.

    `added` become ADDED, with their sequence number where they have one; so do `copied`, which are described as the
    files that they are copies of (`under_new_path`); `existing` keep their snapshot and sequence numbers; `deleted`
    become DELETED by this snapshot. Each is of partition spec `spec_id`. One
    manifest results, more when the encodings of the entries differ in more than the types that their partition values
    had before columns were promoted, or when it would exceed
    `commit.manifest.target-size-bytes` (Iceberg's default: 8 MiB). In each of them changes come before what stays,
    so that `read_changes` ends early. `new_path` names each new file. The sequence numbers of the results are assigned
    by `write_list`.

    Raises `UnsupportedTable` for a format version above 2 and for entries that Iceberg could not read back, ValueError
    for a file of another spec or with values that do not fit; files written before an error stay.
    """
    if metadata.format_version > 2:
        raise UnsupportedTable(
            f"Cannot write manifests of Iceberg format v{metadata.format_version}: only v1 and v2 are supported",
            format_version=metadata.format_version,
        )
    target = Target(io, metadata, snapshot_id, spec_id, new_path)
    streams = ManifestStreams(target)
    with without_gc():
        if added:
            streams.add(added, Counter(entry.schema for entry in itertools.chain(existing, deleted, copied)))
        for status, entries in ((ADDED, copied), (DELETED, deleted), (EXISTING, existing)):
            for entry in entries:
                streams.copy(entry, status)
        return streams.finish()


def write_list(
    metadata: TableMetadata,
    io: FileIO,
    location: str,
    manifests: Sequence[ManifestFile],
    *,
    snapshot_id: int,
    parent_id: int | None,
    sequence_number: int,
) -> list[ManifestFile]:
    """Write the manifest list of a snapshot to `location`; `sequence_number` is ignored by format v1.

    Returns the manifests as the list has them: those that this snapshot wrote now carry its sequence number, which a
    second snapshot of the same commit needs to list and to read them. The given ones are left as they were.
    """
    listed = [_assigned(manifest, sequence_number if metadata.format_version > 1 else 0) for manifest in manifests]
    output = io.new_output(location)
    with write_manifest_list(
        metadata.format_version, output, snapshot_id, parent_id, sequence_number, _LIST_CODEC
    ) as out:
        out.add_manifests(listed)
    return listed


def _assigned(manifest: ManifestFile, sequence_number: int) -> ManifestFile:
    """A copy with sequence numbers; PyIceberg's own writer sets them on a shallow copy, which changes the original."""
    copy = ManifestFile(*[manifest[i] for i in range(len(manifest))])
    if copy.sequence_number == UNASSIGNED_SEQ:
        copy.sequence_number = sequence_number
    if copy.min_sequence_number == UNASSIGNED_SEQ:
        copy.min_sequence_number = sequence_number
    return copy
