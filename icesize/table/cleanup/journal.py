"""The snapshots and files that an expiry is about to make unreachable.

An expiry writes them before its commit, so that the next one can finish it if it is killed. After the commit, the table
no longer has the expired snapshots, and the files that only they referred to cannot be found through it. The journal is
one small JSON file beside the table's metadata. The commit names it in a table property, and the expiry deletes it
last. If the property names a missing file, the expiry is finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.errors import TableError
from icesize.table.catalog.metadata_files import read_metadata_file

JOURNAL = "icesize.expiry.journal"
"""Table property: location of the newest expiry's journal."""
VERSION = 1
LOST_REFS = (
    "during the expiry another writer made {} on an expiring snapshot, and the catalog removed both: no file was "
    "deleted, so an older metadata file still leads to the snapshot; orphan cleanup removes what is not restored"
)


@dataclass(frozen=True, slots=True)
class Expired:
    """An expired snapshot, with the fields that find its files."""

    snapshot_id: int
    parent_id: int | None
    manifest_list: str


@dataclass(frozen=True)
class Journal:
    """Snapshots removed by one expiry, and by unfinished ones that it continues.

    `files` are further locations to delete: statistics, and files that an earlier run could not delete. `base_metadata`
    is the metadata file that the expiry was decided on. `refs` are the branches and tags of that state.
    """

    table_uuid: str
    expired: tuple[Expired, ...] = ()
    files: tuple[str, ...] = ()
    base_metadata: str = ""
    refs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.expired or self.files)

    @classmethod
    def of(cls, table: Table, snapshot_ids: Iterable[int]) -> Journal:
        """Return the journal of an expiry of these snapshots."""
        metadata = table.metadata
        gone = set(snapshot_ids)
        expired = [s for s in metadata.snapshots if s.snapshot_id in gone]
        files = [*metadata.statistics, *metadata.partition_statistics]
        return cls(
            str(metadata.table_uuid),
            tuple(Expired(s.snapshot_id, s.parent_snapshot_id, s.manifest_list) for s in expired),
            tuple(f.statistics_path for f in files if f.snapshot_id in gone),
            table.metadata_location,
            tuple(sorted(metadata.refs)),
        )

    def together_with(self, other: Journal | None) -> Journal:
        """Return one journal for both: the next expiry finishes an unfinished one."""
        if other is None or other.table_uuid != self.table_uuid:
            return self
        known = {e.snapshot_id for e in self.expired}
        # an unfinished expiry may have deleted manifests already, so its snapshots no longer count as known parents
        gone = {e.snapshot_id for e in other.expired}
        mine = (replace(e, parent_id=None) if e.parent_id in gone else e for e in self.expired)
        return replace(
            self,
            expired=(*mine, *(e for e in other.expired if e.snapshot_id not in known)),
            files=tuple(dict.fromkeys((*self.files, *other.files))),
        )

    def write(self, io: FileIO, location: str) -> None:
        """Write the journal to `location`, and replace an existing file."""
        data = {
            "version": VERSION,
            "table-uuid": self.table_uuid,
            "snapshots": [[e.snapshot_id, e.parent_id, e.manifest_list] for e in self.expired],
            "files": list(self.files),
            "base-metadata": self.base_metadata,
            "refs": list(self.refs),
        }
        with io.new_output(location).create(overwrite=True) as stream:
            stream.write(json.dumps(data).encode())

    @classmethod
    def read(cls, io: FileIO, location: str | None) -> Journal | None:
        """Return the journal at `location`; None if the file is missing (a finished expiry) or is not a journal.

        Raises TableError for a journal of a newer release.
        """
        if location is None:
            return None
        try:
            with io.new_input(location).open() as stream:
                data = json.loads(stream.read())
            if isinstance(data, dict) and isinstance(version := data.get("version"), int) and version > VERSION:
                raise TableError(
                    f"Cannot read the journal {location}: it has version {version}, from a newer icesize: run the "
                    "expiry with that version"
                )
            expired = tuple(Expired(int(i), parent, str(path)) for i, parent, path in data["snapshots"])
            files, refs = tuple(map(str, data["files"])), tuple(map(str, data["refs"]))
            return cls(str(data["table-uuid"]), expired, files, str(data["base-metadata"]), refs)
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Rivals:
    """Other writers' changes between the state that an expiry was decided on and its commit.

    `lost_refs` are refs that another writer made on an expiring snapshot. The REST protocol cannot assert that no other
    ref exists, so such a catalog removes a new tag together with its snapshot. The tag cannot be restored, but its
    files can stay. `expired` are snapshots of the journal that another expiry removed first: Iceberg's REST server
    accepts the removal of missing snapshots. `journal` is the location of that expiry's journal.
    """

    lost_refs: tuple[str, ...] = ()
    expired: frozenset[int] = frozenset()
    journal: str | None = None


def rivals_of(now: Table, journal: Journal, journal_location: str) -> Rivals:
    """Return other writers' changes, from the metadata files between the expiry's base and its commit: usually none.

    The result is empty if the table's log does not reach that far back. Raises TableError for a damaged file.
    """
    states = list(_between(now, journal, journal_location))
    if not states:
        return Rivals()
    expired = frozenset(each.snapshot_id for each in journal.expired)
    refs = ((name, ref.get("snapshot-id")) for state in states for name, ref in state.get("refs", {}).items())
    found = {name for name, snapshot_id in refs if snapshot_id in expired}
    lost = sorted(found - now.metadata.refs.keys() - set(journal.refs))
    left = {int(snapshot["snapshot-id"]) for snapshot in states[-1].get("snapshots", ())}
    return Rivals(tuple(lost), expired - left, states[-1].get("properties", {}).get(JOURNAL))


def _between(now: Table, journal: Journal, journal_location: str) -> Iterator[dict[str, Any]]:
    """Yield the states between the expiry's base and its commit, oldest first."""
    log = [*(entry.metadata_file for entry in now.metadata.metadata_log), now.metadata_location]
    if journal.base_metadata not in log:
        return
    for path in log[log.index(journal.base_metadata) + 1 : -1]:
        metadata = read_metadata_file(now.io, path) or {}
        if metadata.get("properties", {}).get(JOURNAL) == journal_location:
            return
        if metadata:
            yield metadata
