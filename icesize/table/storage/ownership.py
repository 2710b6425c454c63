"""Whether a location belongs to one table alone, as far as storage can tell.

Two tables that share a location take each other's files for orphans. Metadata files show that, also those of tables of
another catalog; `icesize.table.cleanup.other_tables` reads what this catalog knows.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable

from pyiceberg.io import FileIO
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata

from icesize.concurrency import concurrently
from icesize.errors import TableError, UnsupportedTable
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.history import uncompressed
from icesize.table.catalog.locations import is_addressable, is_inside, normalised, split
from icesize.table.storage.listing import Lister, list_files
from icesize.table.storage.reachable import Reachable

_METADATA = (".metadata.json", ".metadata.json.gz")  # also what Java writes when compressing: `.gz.metadata.json`
_HEAD_BYTES = 4096
"""Where every known writer has put the table's UUID; the whole file is read when it is not there."""
_UUID = re.compile(rb'"table-uuid"\s*:\s*"([^"]*)"')


_GC_ENABLED = "gc.enabled"
"""Iceberg's table property that forbids, when false, to delete files that other tables may share."""


def check_may_delete(metadata: TableMetadata, table: str) -> None:
    """Raises UnsupportedTable when the table says that its files are not its own to delete."""
    if metadata.properties.get(_GC_ENABLED, "true").lower() == "false":
        raise UnsupportedTable(
            f"Cannot delete files of '{table}': its property '{_GC_ENABLED}' is false, so other tables may need them",
            table=table,
        )


def is_metadata_file(location: str) -> bool:
    """Whether the file is called as metadata files of tables are."""
    return location.endswith(_METADATA)


class UnfinishedMetadataError(TableError):
    """A metadata file whose text ends too early or is none, as of one that is being written to a local folder.

    `is_cut` is True if it begins like one, or is empty: a writer died or found the disk full.
    """


def check_metadata_files(
    io: FileIO, uuid: str, locations: Iterable[str], may_pass: Callable[[str, TableError], bool] = lambda *_: False
) -> None:
    """Refuse when one of these metadata files is another table's, or nobody can say whose.

    Raises TableError that names the file. A file that is gone by now is no reason, nor is one that cannot be read where
    `may_pass` says so of its location and the error.
    """

    def owner(location: str) -> str | None:
        try:
            return _owner(io, location)
        except TableError as error:
            if may_pass(location, error):
                return None
            raise

    for location, found in concurrently(lambda each: (each, owner(each)), locations):
        if found is not None and found.lower() != uuid.lower():
            raise TableError(
                f"Cannot assign files to tables: {location} is metadata of another table ({found}), whose "
                "files lie in the same location; give each table a location of its own",
                location=location,
            )


def check_alone(table: Table, lister: Lister = list_files) -> None:
    """Refuse when metadata of another table lies where this table keeps its own; raises TableError as above.

    Metadata files that the table's log names are its own and are not opened. One that cannot be read, perhaps being
    written now, is no reason here: what is deleted is what the table itself referred to.
    """
    metadata = table.metadata
    own = {normalised(entry.metadata_file) for entry in metadata.metadata_log} | {normalised(table.metadata_location)}
    folder = metadata.properties.get("write.metadata.path", f"{metadata.location}/metadata")
    found = (file.location for file in lister(table.io, folder) if is_metadata_file(file.location))
    others = (each for each in found if normalised(each) not in own)
    check_metadata_files(table.io, str(metadata.table_uuid), others, lambda *_: True)


def _owner(io: FileIO, location: str) -> str | None:
    """The UUID of the table that a metadata file describes; None when the file is gone."""
    text: bytes | None = None
    try:
        if not is_addressable(location):
            raise OSError("its name cannot be opened")
        with io.new_input(location).open() as stream:
            head = stream.read(_HEAD_BYTES)
            match = _UUID.search(uncompressed(head))
            if match is not None:
                return match[1].decode()
            text = uncompressed(head + stream.read())
        return str(json.loads(text)["table-uuid"])
    except FileNotFoundError:
        return None
    except Exception as error:  # of whatever the storage is reached by, and of whatever is wrong with the file
        # it is no JSON, or not all of it; half a character is a ValueError as well
        is_unfinished = text is not None and isinstance(error, ValueError)
        raise (UnfinishedMetadataError if is_unfinished else TableError)(
            f"Cannot look for orphan files: {location} cannot be read ({brief(error)}), it may be metadata of another "
            "table whose files lie in the same location; remove it or move it away if no table needs it",
            location=location,
            is_cut=is_unfinished and text is not None and text[:1] in (b"", b"{"),
        ) from error


def check_spelling(location: str, reachable: Reachable, suspects: Iterable[str]) -> None:
    """Refuse when a file that looks like an orphan may be one that the table needs, under another name.

    A bucket can be reached through two endpoints, a folder through a link or a mount: the table then names a file that
    is not below its location and has the same path below some other folder. Also refused: needed files whose location
    has `..` in it. Raises TableError that names both.
    """
    by_name: dict[str, list[str]] = defaultdict(list)
    for suspect in suspects:
        by_name[suspect.rpartition("/")[2]].append(suspect)
    for needed in reachable:
        if is_inside(needed, location):
            continue
        cannot = f"Cannot look for orphan files: the table needs {reachable.spelt(needed)}"
        if "/../" in needed:
            raise TableError(f"{cannot}, and '..' does not say where that lies", location=location)
        for suspect in map(normalised, by_name.get(needed.rpartition("/")[2], ())):
            below = suspect[len(normalised(location)) :]
            if needed.endswith(below) or split(needed)[2] == split(suspect)[2]:
                raise TableError(
                    f"{cannot}, and {suspect} may be the same file under another name; set the table's location as its "
                    "metadata spells it",
                    location=location,
                )
