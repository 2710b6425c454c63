"""Checks in storage that a location belongs to one table only.

Two tables that share a location treat each other's files as orphans. Metadata files show that, even for tables of
another catalog. `icesize.table.cleanup.may_delete` checks the tables of this catalog.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.concurrency import concurrently
from icesize.errors import TableError, UnsupportedTable
from icesize.storage.locations import is_addressable, is_inside, normalised, split
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.metadata_files import uncompressed
from icesize.table.storage.listing import list_files
from icesize.table.storage.reachable import Reachable

_METADATA = (".metadata.json", ".metadata.json.gz")  # the first also matches Java's `.gz.metadata.json`
_HEAD_BYTES = 4096
"""Bytes within which every known writer puts the table's UUID; the whole file is read if it is not there."""
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]*)"')
_GC_ENABLED = "gc.enabled"
"""Iceberg's table property that, if false, forbids the deletion of files that other tables may share."""
_NESSIE_TABLE = frozenset({"nessie.commit.id", "nessie.catalog.content-id"})
"""Properties that Nessie gives to each table."""
_NESSIE_CATALOG = "nessie.is-nessie-catalog"
"""The property that Nessie gives to its clients."""


def check_may_delete(table: Table, name: str) -> None:
    """Raise UnsupportedTable if only the catalog knows which files of the table are needed."""
    properties, catalog = table.metadata.properties, table.catalog.properties
    if _NESSIE_TABLE & properties.keys() or catalog.get(_NESSIE_CATALOG, "false").lower() == "true":
        raise UnsupportedTable(
            f"Cannot delete files of '{name}': its catalog, Nessie, has branches of its own, which may need them, "
            f"whatever '{_GC_ENABLED}' is. Run nessie-gc, Nessie's own collector",
            table=name,
        )
    if properties.get(_GC_ENABLED, "true").lower() == "false":
        raise UnsupportedTable(
            f"Cannot delete files of '{name}': its property '{_GC_ENABLED}' is false, so other tables may need them",
            table=name,
        )


def is_metadata_file(location: str) -> bool:
    """Return True if the file is named like a table's metadata file."""
    return location.endswith(_METADATA)


class UnfinishedMetadataError(TableError):
    """A metadata file with incomplete or invalid content, such as one that is being written to a local directory.

    `is_cut` is True if it begins like a metadata file, or is empty: its writer died, or the disk was full.
    """


def other_tables_among(
    io: FileIO, uuid: str, locations: Iterable[str], may_pass: Callable[[str, TableError], bool]
) -> dict[str, list[str]]:
    """Return those of these metadata files that belong to other tables, by their UUID.

    Files that are gone are ignored. So is an unreadable file if `may_pass` returns True for its location and the error.
    Raises TableError for any other file whose owner is unknown.
    """

    def owner(location: str) -> str | None:
        try:
            return _owner(io, location)
        except TableError as error:
            if may_pass(location, error):
                return None
            raise

    others = defaultdict[str, list[str]](list)
    for location, found in concurrently(lambda each: (each, owner(each)), locations):
        if found is not None and found.lower() != uuid.lower():
            others[found.lower()].append(location)
    return dict(others)


def other_tables_beside(table: Table) -> dict[str, list[str]]:
    """Return the metadata files of other tables in this table's metadata directory, by their UUID.

    Metadata files in the table's log are its own and are not opened. An unreadable one, which may still be being
    written, is ignored here, because an expiry deletes only files that the table itself referred to.
    """
    metadata = table.metadata
    own = {normalised(entry.metadata_file) for entry in metadata.metadata_log} | {normalised(table.metadata_location)}
    folder = metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata")
    found = (file.location for file in list_files(table.io, folder) if is_metadata_file(file.location))
    unknown = (each for each in found if normalised(each) not in own)
    return other_tables_among(table.io, str(metadata.table_uuid), unknown, lambda *_: True)


def _owner(io: FileIO, location: str) -> str | None:
    """Return the UUID of the table that a metadata file describes; None if the file is gone."""
    text: bytes | None = None
    try:
        if not is_addressable(location):
            raise OSError("its name cannot be opened")
        storage = Storage.of(io)
        # not through `io`, which would read and keep the whole file
        if match := _UUID.search(uncompressed(storage.range(location, 0, _HEAD_BYTES))):
            return match[1].decode()
        text = uncompressed(storage.fetch(location))
        return str(json.loads(text)["table-uuid"])
    except FileNotFoundError:
        return None
    except Exception as error:  # errors of each storage client, and of a damaged file
        # the content is not JSON, or only a part of it; half a character raises ValueError as well
        is_unfinished = text is not None and isinstance(error, ValueError)
        raise (UnfinishedMetadataError if is_unfinished else TableError)(
            f"Cannot look for orphan files: {location} cannot be read ({brief(error)}), it may be metadata of another "
            "table whose files lie in the same location; remove it or move it away if no table needs it",
            location=location,
            is_cut=is_unfinished and text is not None and text[:1] in (b"", b"{"),
        ) from error


def check_spelling(location: str, reachable: Reachable, suspects: Iterable[str]) -> None:
    """Raise TableError if a file that looks like an orphan may be a needed file under another name.

    A bucket can be reached through two endpoints, and a directory through a link or a mount. The table then names a
    file outside of its location that has the same path below another directory. Needed files with `..` in their
    location are refused as well. The error names both files.
    """
    by_name: dict[str, list[str]] = defaultdict(list)
    for suspect in suspects:
        by_name[suspect.rpartition("/")[2]].append(suspect)
    for needed in reachable:
        if is_inside(needed, location):
            continue
        cannot = f"Cannot look for orphan files: the table needs {reachable.spelt(needed)}"
        if "/../" in needed:
            raise TableError(
                f"{cannot}, but its path contains '..', so its real location is unknown", location=location
            )
        for suspect in map(normalised, by_name.get(needed.rpartition("/")[2], ())):
            below = suspect[len(normalised(location)) :]
            if needed.endswith(below) or split(needed)[2] == split(suspect)[2]:
                raise TableError(
                    f"{cannot}, and {suspect} may be the same file under another name; write the table's location in "
                    "the same form as the file paths in its metadata",
                    location=location,
                )
