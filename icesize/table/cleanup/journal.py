"""What an expiry is about to make unreachable, written down before its commit, so that a killed one can go on.

After the commit the table no longer knows the snapshots that went, and with them which files they alone referred to.
The journal is one small JSON file beside the table's metadata; the commit names it in a table property, and it is the
last file that the expiry deletes. A property that names a file which is gone means: finished.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.errors import TableError
from icesize.table.catalog.history import read_metadata_file

JOURNAL = "icesize.expiry.journal"
"""Table property: where the journal of the newest expiry lies."""
VERSION = 1
LOST_REFS = (
    "during the expiry another writer made {} on an expiring snapshot, and the catalog removed both: no file was "
    "deleted, so an older metadata file still leads to the snapshot; orphan cleanup removes what is not restored"
)


@dataclass(frozen=True, slots=True)
class Expired:
    """A snapshot that was expired: enough of it to find its files."""

    snapshot_id: int
    parent_id: int | None
    manifest_list: str


@dataclass(frozen=True)
class Journal:
    """Snapshots that one expiry, and those it takes over from, removed.

    `files` are further locations to delete: statistics, and what an earlier run could not delete. `base_metadata` is
    the metadata file that the expiry was decided on, `refs` are the branches and tags that were there.
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
        """The journal of an expiry of these snapshots."""
        metadata = table.metadata
        gone = set(snapshot_ids)
        files = [*metadata.statistics, *metadata.partition_statistics]
        return cls(
            str(metadata.table_uuid),
            tuple(
                Expired(s.snapshot_id, s.parent_snapshot_id, s.manifest_list)
                for s in metadata.snapshots
                if s.snapshot_id in gone
            ),
            tuple(f.statistics_path for f in files if f.snapshot_id in gone),
            table.metadata_location,
            tuple(sorted(metadata.refs)),
        )

    def together_with(self, other: Journal | None) -> Journal:
        """One journal for both: an unfinished expiry is finished by the next."""
        if other is None or other.table_uuid != self.table_uuid:
            return self
        known = {e.snapshot_id for e in self.expired}
        # manifests of an unfinished expiry may be gone already, so they explain nothing about the snapshots after them
        gone = {e.snapshot_id for e in other.expired}
        mine = (replace(e, parent_id=None) if e.parent_id in gone else e for e in self.expired)
        return replace(
            self,
            expired=(*mine, *(e for e in other.expired if e.snapshot_id not in known)),
            files=tuple(dict.fromkeys((*self.files, *other.files))),
        )

    def write(self, io: FileIO, location: str) -> None:
        """Put it at `location`, in place of what is there."""
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
        """The journal at `location`; None when there is none, it is finished, or it is no journal.

        Raises TableError for one of a newer release.
        """
        if location is None:
            return None
        try:
            with io.new_input(location).open() as stream:
                data = json.loads(stream.read())
            if isinstance(data, dict) and isinstance(version := data.get("version"), int) and version > VERSION:
                raise TableError(
                    f"Cannot read the journal {location}: it has version {version}; a newer icesize wrote it, expire "
                    "with that one"
                )
            expired = tuple(Expired(int(i), parent, str(path)) for i, parent, path in data["snapshots"])
            files, refs = tuple(map(str, data["files"])), tuple(map(str, data["refs"]))
            return cls(str(data["table-uuid"]), expired, files, str(data["base-metadata"]), refs)
        except (FileNotFoundError, KeyError, TypeError, ValueError):
            return None


@dataclass(frozen=True)
class Rivals:
    """What others did to a table between the state that an expiry was decided on and that of its commit.

    `lost_refs` are names of refs that another writer made on a snapshot while it was being expired. A catalog that only
    checks what it is asked to assert knows no "no other ref": the REST protocol cannot say it. Such a catalog removes a
    new tag together with the snapshot it stands on. It cannot be put back, but its files can be spared. `expired` are
    snapshots of the journal that another expiry removed first, and `journal` is the location of that one's journal:
    Iceberg's REST server accepts the removal of snapshots that are gone already.
    """

    lost_refs: tuple[str, ...] = ()
    expired: frozenset[int] = frozenset()
    journal: str | None = None


def rivals_of(now: Table, journal: Journal, journal_location: str) -> Rivals:
    """Read the metadata files between the one that was decided on and that of the expiry: usually none.

    Nothing is found where the table's log does not go back that far. Raises TableError for a file that cannot be
    understood.
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
    """The states between the one that an expiry was decided on and that of its commit, oldest first."""
    log = [*(entry.metadata_file for entry in now.metadata.metadata_log), now.metadata_location]
    if journal.base_metadata not in log:
        return
    for path in log[log.index(journal.base_metadata) + 1 : -1]:
        metadata = read_metadata_file(now.io, path) or {}
        if metadata.get("properties", {}).get(JOURNAL) == journal_location:
            return
        if metadata:
            yield metadata
