"""Positions of Spark streaming queries in Iceberg tables, read from their checkpoint directories.

A query whose snapshot position has expired stops permanently and loses the rows that it had not read. Spark writes
`offsets/<batch>` before a batch and `commits/<batch>` after it. Iceberg's source adds `sources/<number>/offsets/0`, its
beginning.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from pyiceberg.table.metadata import TableMetadata

from icesize.errors import IcesizeError, TableError
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import known_ancestors

NOTHING_READ = -1
"""Iceberg's position of a query that began on an empty table: it reads from the table's oldest snapshot on."""
_EXPECTED = "expected the checkpoint folder of a Spark streaming query, with 'offsets' and 'commits' in it"
_NO_OFFSET = "-"


@dataclass(frozen=True)
class Reader:
    """A streaming query as its checkpoint at `path` describes it.

    `positions` are ids of snapshots that the query still needs, with all later snapshots. They are the positions after
    the newest committed batch, and after batches that began later and will be repeated. Before the first committed
    batch, and for sources without data so far, the position is the source's beginning. With `NOTHING_READ` among them,
    every snapshot is still needed. A position stays even if some files of its snapshot were read, because Iceberg looks
    the snapshot up. Positions in other Iceberg tables that the query reads are included. Other sources (Kafka, files)
    have no position. An empty tuple: the query has read no Iceberg table yet.

    `beginnings` are ids of snapshots at which the query began. They are no positions once a batch is committed. Only
    `Trigger.AvailableNow` reads them again, at every start, and Iceberg 1.11 fails there if they have expired. Keeping
    them would prevent every expiry of such a table.
    """

    path: str
    positions: tuple[int, ...]
    beginnings: tuple[int, ...] = ()


def read_checkpoint(path: str, properties: Mapping[str, str] | None = None) -> Reader:
    """Return the query whose checkpoint is at `path`, a local path or a URI.

    `properties` are the properties of the table's FileIO (endpoints, credentials). Raises TableError if the directory
    is missing, is not a checkpoint, or cannot be read.
    """
    try:
        found = _Checkpoint(Storage(properties or {}, path), path.rstrip("/"))
        positions, beginnings = found.positions(), found.beginnings()
    except IcesizeError:
        raise
    except Exception as error:  # each storage client raises its own errors
        why = str(error) if isinstance(error, _Unreadable) else brief(error)
        raise TableError(f"Cannot read the checkpoint {path}: {why}; {_EXPECTED}", path=path) from error
    return Reader(path, tuple(dict.fromkeys(positions)), tuple(dict.fromkeys(beginnings)))


class _Unreadable(Exception):
    """The problem with the directory or a file in it, in words."""


@dataclass
class _Checkpoint:
    storage: Storage
    folder: str

    def positions(self) -> list[int]:
        offsets, commits = self._batches("offsets"), self._batches("commits")
        # a started query without a batch has no such directories, because object stores keep no empty ones
        if not offsets and not self._has_metadata():
            raise _Unreadable("it has no 'offsets' and no 'metadata'")
        committed = max(set(offsets) & set(commits), default=None)
        if committed is None:
            return [*self.beginnings(), *self._ends(offsets)]
        return self._ends(n for n in offsets if n >= committed)

    def beginnings(self) -> list[int]:
        sources = {source for source, below, _ in (name.partition("/") for name in self._list("sources")) if below}
        found = map(self._beginning, sorted(sources))
        return [position for position in found if position is not None]

    def _batches(self, folder: str) -> list[int]:
        """Return the numbers of the batches in `offsets` or `commits`; Hadoop keeps checksum files beside them."""
        return sorted(int(name) for name in self._list(folder) if name.isdecimal())

    def _ends(self, batches: Iterable[int]) -> list[int]:
        positions = (position for batch in batches for position in self._end(f"offsets/{batch}"))
        return [position for position in positions if position is not None]

    def _end(self, name: str) -> Iterator[int | None]:
        """Yield the position of each source after a batch."""
        for source, offset in _offsets(self._text(name), name):
            yield self._beginning(source) if offset == _NO_OFFSET else _position(offset, name)

    def _beginning(self, source: str) -> int | None:
        """Return the position at which a source began; None before that, and for sources other than Iceberg's."""
        name = f"sources/{source}/offsets/0"
        try:
            return _position(self._text(name), name)
        except FileNotFoundError:
            return None

    def _has_metadata(self) -> bool:
        try:
            return bool(self._text("metadata"))
        except (FileNotFoundError, IsADirectoryError):
            return False

    def _list(self, folder: str) -> list[str]:
        """Return the names of the files below a directory; none if it is missing."""
        below = f"{self.folder}/{folder}"
        with suppress(FileNotFoundError):
            return [each.location.removeprefix(f"{below}/") for each in self.storage.list(below)]
        return []

    def _text(self, name: str) -> str:
        return self.storage.fetch(f"{self.folder}/{name}").decode()


def _offsets(text: str, name: str) -> list[tuple[str, str]]:
    """Return source and offset of each line of an offsets file: version 1 orders the sources, version 2 names them."""
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
    """Return the snapshot id of an offset; None for an offset of another source."""
    try:
        offset = json.loads(text)
    except ValueError:
        if text.lstrip().startswith("{"):
            raise _Unreadable(f"{name} is damaged: {text[:60]!r} is cut off or no JSON") from None
        return None  # other sources have formats of their own
    if not isinstance(offset, dict) or "snapshot_id" not in offset:
        return None
    if offset.get("version") != 1 or type(offset["snapshot_id"]) is not int:
        raise _Unreadable(f"{name} has an Iceberg offset of an unknown version: {text[:60]!r}")
    return int(offset["snapshot_id"])


def positions_in(metadata: TableMetadata, readers: Sequence[Reader], force: bool) -> tuple[set[int], list[str]]:
    """Return the snapshots at which readers are positioned, and notes about readers that `force` ignored.

    A query may read several tables, so some of its ids may be unknown to this table, but not all. Raises TableError for
    a reader without any position in the table, because the snapshots that it needs cannot be kept.
    """
    ids = {s.snapshot_id for s in metadata.snapshots}
    history = list(known_ancestors(metadata))
    found: set[int] = set()
    notes: list[str] = []
    for reader in readers:
        wanted = set(reader.positions)
        if NOTHING_READ in wanted:
            # Iceberg starts such a reader at the oldest snapshot of main
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
    """Return notes about readers whose first snapshot expires: `Trigger.AvailableNow` looks it up at each start."""
    return [
        f"the reader {reader.path} began at a snapshot that has expired: under Trigger.AvailableNow Iceberg looks it "
        "up at every start and fails; other triggers go on"
        for reader in readers
        if set(reader.beginnings) & set(expired)
    ]
