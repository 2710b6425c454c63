"""How far a Spark streaming query has read Iceberg tables, from its checkpoint folder, and what that keeps.

A query that finds the snapshot of its position expired stops for good, and rows that it had not read are lost to it.
Spark writes `offsets/<batch>` before a batch and `commits/<batch>` after it; Iceberg's source adds
`sources/<number>/offsets/0`, where it began.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pyarrow.fs import FileInfo, FileSelector, FileSystem, FileType
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import IcesizeError, TableError
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import known_ancestors

NOTHING_READ = -1
"""Iceberg's position of a query that began on an empty table: it reads from the table's oldest snapshot on."""
_EXPECTED = "expected the checkpoint folder of a Spark streaming query, with 'offsets' and 'commits' in it"
_NO_OFFSET = "-"


@dataclass(frozen=True)
class Reader:
    """A streaming query as its checkpoint at `path` tells. Ids of other Iceberg tables that it reads are among these.

    `positions` are the ids of snapshots that it still needs, beside all that came after them: the positions after the
    newest batch that is committed, and after batches that were begun since and will be repeated. While no batch is
    committed, and for sources that had nothing so far, the position where the source began counts. `NOTHING_READ`
    among them: every snapshot is still needed. Positions stay however many files of the snapshot were read, as Iceberg
    looks the snapshot up. Other sources (Kafka, files) have none. Empty: the query has read no Iceberg table yet.

    `beginnings` are the ids of snapshots where it began. They are no positions once a batch is committed: only
    `Trigger.AvailableNow` asks for them again, at every start, where Iceberg 1.11 fails once they are expired, and a
    table could expire nothing at all under it.
    """

    path: str
    positions: tuple[int, ...]
    beginnings: tuple[int, ...] = ()


def read_checkpoint(path: str, properties: Mapping[str, str] | None = None) -> Reader:
    """The query whose checkpoint lies at `path`, a local path or a URI.

    `properties` are those of the table's FileIO (endpoints, credentials). Raises TableError when the folder is
    missing, is not a checkpoint, or cannot be read.
    """
    try:
        io = PyArrowFileIO(dict(properties or {}))
        scheme, authority, folder = io.parse_location(path.rstrip("/"), io.properties)
        found = _Checkpoint(io.fs_by_scheme(scheme, authority), folder)
        positions, beginnings = found.positions(), found.beginnings()
    except IcesizeError:
        raise
    except Exception as error:  # of whatever the storage is reached by
        why = str(error) if isinstance(error, _Unreadable) else brief(error)
        raise TableError(f"Cannot read the checkpoint {path}: {why}; {_EXPECTED}", path=path) from error
    return Reader(path, tuple(dict.fromkeys(positions)), tuple(dict.fromkeys(beginnings)))


class _Unreadable(Exception):
    """What is wrong with the folder or a file in it, as words."""


@dataclass
class _Checkpoint:
    filesystem: FileSystem
    folder: str

    def positions(self) -> list[int]:
        offsets, commits = self._batches("offsets"), self._batches("commits")
        # a query that was started and has had no batch has no such folders: object stores keep no empty ones
        if not offsets and not any(i.base_name == "metadata" and i.type == FileType.File for i in self._list("")):
            raise _Unreadable("it has no 'offsets' and no 'metadata'")
        committed = max(set(offsets) & set(commits), default=None)
        if committed is None:
            return [*self.beginnings(), *self._ends(offsets)]
        return self._ends(n for n in offsets if n >= committed)

    def beginnings(self) -> list[int]:
        sources = [info for info in self._list("sources") if info.type == FileType.Directory]
        found = (self._beginning(info.base_name) for info in sorted(sources, key=lambda each: each.base_name))
        return [position for position in found if position is not None]

    def _batches(self, folder: str) -> list[int]:
        """The numbers of the batches in `offsets` or `commits`; Hadoop keeps checksums of the files beside them."""
        return sorted(int(info.base_name) for info in self._list(folder) if info.base_name.isdecimal())

    def _ends(self, batches: Iterable[int]) -> list[int]:
        positions = (position for batch in batches for position in self._end(f"offsets/{batch}"))
        return [position for position in positions if position is not None]

    def _end(self, name: str) -> Iterator[int | None]:
        """Where each source stood after a batch."""
        for source, offset in _offsets(self._text(name), name):
            yield self._beginning(source) if offset == _NO_OFFSET else _position(offset, name)

    def _beginning(self, source: str) -> int | None:
        """Where a source began, if it is one of Iceberg's and has begun."""
        name = f"sources/{source}/offsets/0"
        try:
            return _position(self._text(name), name)
        except FileNotFoundError:
            return None

    def _list(self, folder: str) -> list[FileInfo]:
        below = FileSelector(f"{self.folder}/{folder}".rstrip("/"), allow_not_found=True)
        return list(self.filesystem.get_file_info(below))

    def _text(self, name: str) -> str:
        with self.filesystem.open_input_stream(f"{self.folder}/{name}") as stream:
            return str(stream.read(), "utf-8")


def _offsets(text: str, name: str) -> list[tuple[str, str]]:
    """Source and offset per line of an offsets file: version 1 goes by the order of sources, 2 by their names."""
    version, *lines = text.split("\n")
    if len(lines) < 2:
        raise _Unreadable(f"{name} is cut off: it has no offset")
    del lines[0]  # Spark's own metadata
    if version == "v1":
        return [(str(number), line.strip()) for number, line in enumerate(lines)]
    if version == "v2":
        named = (line.partition(":") for line in lines)
        return [(source, offset.strip()) for source, _, offset in named]
    raise _Unreadable(f"{name} begins with {version[:20]!r} and not with 'v1' or 'v2'")


def _position(text: str, name: str) -> int | None:
    """The snapshot of an offset; None for an offset of another source."""
    try:
        offset = json.loads(text)
    except ValueError:
        if text.lstrip().startswith("{"):
            raise _Unreadable(f"{name} is damaged: {text[:60]!r} is cut off or no JSON") from None
        return None  # other sources write what they like
    if not isinstance(offset, dict) or "snapshot_id" not in offset:
        return None
    if offset.get("version") != 1 or type(offset["snapshot_id"]) is not int:
        raise _Unreadable(f"{name} has an Iceberg offset of an unknown version: {text[:60]!r}")
    return int(offset["snapshot_id"])


def positions_in(metadata: TableMetadata, readers: Sequence[Reader], force: bool) -> tuple[set[int], list[str]]:
    """Snapshots of the table that readers stand on; sentences about readers that were given up by `force`.

    A query may read several tables, so ids that this table does not have may be another's, but not all of them. Raises
    TableError for a reader none of whose positions the table has: what it needs cannot be kept.
    """
    ids = {s.snapshot_id for s in metadata.snapshots}
    history = list(known_ancestors(metadata))
    found: set[int] = set()
    notes: list[str] = []
    for reader in readers:
        wanted = set(reader.positions)
        if NOTHING_READ in wanted:
            # it begins at the oldest snapshot of main
            wanted |= {snapshot.snapshot_id for snapshot in history[-1:]}
        if wanted & ids:
            found |= wanted & ids
        elif force:
            notes.append(f"the reader {reader.path} was given up by force: the table does not have its position")
        else:
            where = ", ".join(map(str, reader.positions)) or "nowhere: it has read no Iceberg table yet"
            raise TableError(
                f"Cannot expire snapshots: reader {reader.path} is at {where}, which is not in this table "
                "(expired, or in another table), so its data cannot be kept. Omit the reader, or force the expiry",
                path=reader.path,
                snapshot_ids=reader.positions,
            )
    return found, notes


def stranded(readers: Sequence[Reader], expired: Collection[int]) -> list[str]:
    """Sentences about readers whose first snapshot goes: one trigger of Spark's asks for it again at each start."""
    return [
        f"the reader {reader.path} began at a snapshot that has expired: under Trigger.AvailableNow Iceberg looks it "
        "up at every start and fails; other triggers go on"
        for reader in readers
        if set(reader.beginnings) & set(expired)
    ]
