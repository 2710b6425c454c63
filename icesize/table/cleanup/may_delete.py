"""One answer to "may this file go?" for every command that deletes files, with the reason if it may not.

Neither a listing nor a manifest shows who else owns a file. The catalog does: it lists its tables, and their manifests
list their files, wherever these lie. So the paths in manifests decide, not the folders that tables have today. A table
that two names of the catalog share has no single owner, and no file of it goes.

Three cases are not found: tables of other catalogs that have no metadata file here, and, for an expiry, tables beyond
the limits below.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from threading import Lock

import numpy as np
from numpy.typing import NDArray
from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table import Table

from icesize.errors import TableError
from icesize.parquet.files.names import set_of
from icesize.storage.locations import FOLDER_PROPERTIES, is_addressable, is_inside, normalised, split
from icesize.table.catalog.access_errors import brief, storage_errors
from icesize.table.catalog.metadata_files import read_metadata_file
from icesize.table.catalog.opening import LIST, denied
from icesize.table.catalog.tables import Name, NotLoaded, each_of, load_named, names_of
from icesize.table.manifests.live_arrays import path_numbers
from icesize.table.storage.identity import LocalFiles, identity_of
from icesize.table.storage.reachable import Reachable, listed_files, loose_files
from icesize.units import format_count

MOST_TABLES = 2_000
"""Most tables of a catalog that are loaded: at a tenth of a second each, eight at a time, half a minute."""
MOST_READS = 1_000
"""Most manifest lists and manifests of tables elsewhere that an expiry reads: a few seconds in an object store."""
MOST_NAMED = 3
"""Most tables that a note names."""

_FILE_NAME = re.compile(r"([0-9a-f]{12})-(\d+)-\d+-\d+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(?:parquet|puffin)")
"""A name that icesize gives to a data file or a delete file."""
_OWN_METADATA = ("icesize-expiry-", "icesize-clock-")

NEEDED = "the table needs it"
LINKED = "needed under another name, by a link or a mount"
NEEDED_ELSEWHERE = "needed by other tables"
UNADDRESSABLE = "by a name with ? or # in it another file could be deleted"
OUTSIDE = "they lie outside of the table's folders"
DOUBTFUL = "only files with icesize's own names go, as other tables may need files here"


def stay_notes(stay: Mapping[str, int], other_tables: str) -> Iterator[str]:
    """Yield a sentence for each reason that keeps files; `other_tables` are names of those that need some."""
    for why in (OUTSIDE, UNADDRESSABLE, NEEDED_ELSEWHERE, LINKED, DOUBTFUL):
        if count := stay.get(why):
            whose = f" ({other_tables})" if why == NEEDED_ELSEWHERE else ""
            yield f"{format_count(count, 'file')} left alone: {why}{whose}"


def own_folders(table: Table) -> list[str]:
    """Return the directories of a table: its location, and those that its properties name for data and metadata."""
    properties = table.metadata.properties
    return [table.location(), *(properties[key] for key in FOLDER_PROPERTIES if key in properties)]


def batch_of(location: str) -> tuple[str, int] | None:
    """Return the hash of the stream and the number of the batch in a name of icesize; None for any other name."""
    match = _FILE_NAME.fullmatch(location.rpartition("/")[2])
    return (match[1], int(match[2])) if match else None


@dataclass
class Owners:
    """Everything that is known to need files near a table.

    Attributes:
        location: The location of the table.
        own: The files that states of the table need.
        folders: Directories outside of which nothing goes.
        others: Files that other tables need, and doubts.
        local: Own files under other names.
        trusts_location: True if no doubt counts.
    """

    location: str
    own: Reachable = field(default_factory=Reachable)
    folders: tuple[str, ...] = ()
    others: Others = field(default_factory=lambda: Others())
    local: LocalFiles = field(default_factory=LocalFiles)
    trusts_location: bool = False

    def why_stays(self, file: str) -> str:
        """Return the reason why a file must stay; empty if it may go."""
        if file in self.own:
            return NEEDED
        if self.folders and not any(is_inside(file, folder) for folder in self.folders):
            return OUTSIDE
        if not is_addressable(file):
            return UNADDRESSABLE
        if self.others.need(file, self.local):
            return NEEDED_ELSEWHERE
        if file in self.local:
            return LINKED
        if self.others.doubts and not self.trusts_location and not self._is_of_icesize(file):
            return DOUBTFUL
        return ""

    def _is_of_icesize(self, file: str) -> bool:
        """Return True if a file has one of icesize's names, and lies in a directory that only this table uses."""
        *folders, name = normalised(file)[len(normalised(self.location)) :].strip("/").split("/")
        if name.startswith(_OWN_METADATA):
            return True
        of_partition = folders[:1] == ["data"] and all("=" in folder for folder in folders[1:])
        return of_partition and (_FILE_NAME.fullmatch(name) is not None or set_of(file) is not None)


@dataclass
class Others:
    """Files that other tables need, by the names of these tables, and reasons that there may be more of them."""

    numbers: dict[str, NDArray[np.int64]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()
    found: set[str] = field(default_factory=set)

    def need(self, file: str, local: LocalFiles) -> bool:
        """Return True if one of them needs the file, in any spelling, or by a link. `found` gets its name."""
        if not self.numbers:
            return False
        wanted = [hash(normalised(file))]
        if (identity := local.identity(file)) is not None:
            wanted.append(hash(identity))
        for name, numbers in self.numbers.items():
            places = np.minimum(np.searchsorted(numbers, wanted), len(numbers) - 1)
            if len(numbers) and bool((numbers[places] == wanted).any()):
                self.found.add(name)
                return True
        return False

    def named(self) -> str:
        """Return the names of tables that need a file that was asked for."""
        return ", ".join(sorted(self.found)[:MOST_NAMED])


@dataclass
class _Other:
    """Another table as the catalog shows it: where its files are, and their numbers once they were read."""

    name: Name
    uuid: str
    location: str
    metadata_location: str
    folders: tuple[str, ...]
    io: FileIO
    lists: tuple[str, ...]
    files: tuple[str, ...]
    numbers: NDArray[np.int64] | None = None

    @classmethod
    def of(cls, name: Name, table: Table) -> _Other:
        metadata = table.metadata
        folders = (*own_folders(table), table.metadata_location.rpartition("/")[0])
        return cls(
            name, *identity_of_table(table), table.metadata_location,
            tuple(map(_real, folders)), table.io, tuple(s.manifest_list for s in metadata.snapshots),
            tuple(loose_files(metadata, table.metadata_location)),
        )  # fmt: skip

    def is_near(self, folders: Iterable[str]) -> bool:
        """Return True if one of its directories contains one of these, or lies in it."""
        pairs = product(folders, self.folders)
        return any(".." in own or one == own or is_inside(one, own) or is_inside(own, one) for one, own in pairs)

    def read(self) -> int:
        """Read the files; return how many lists and manifests were read."""
        read = set[str]()
        self.numbers = _numbers(self.io, chain(self.files, listed_files(self.io, self.lists, read)))
        self.lists = self.files = ()
        return len(read)


class CatalogOwners:
    """The tables of a catalog, for one command or one pass: each is loaded once, and its manifests are read once.

    Nothing is loaded before a file is to be deleted. Threads may share it.
    """

    def __init__(self, catalog: Catalog, own: Name | None = None, most_tables: int = MOST_TABLES) -> None:
        self._catalog, self._own, self._most_tables = catalog, own, most_tables
        self._lock, self._doubts, self._reads_left = Lock(), list[str](), MOST_READS
        self._tables: list[_Other] | None = None

    def check_names(self, table: Table, name: str) -> None:
        """Raise TableError if another name of the catalog has the UUID or the location of this table."""
        with self._lock:
            others = {".".join(each.name): (each.uuid, each.location) for each in self._others_than(table)}
        if why := shared({name: identity_of_table(table), **others}).get(name):
            raise TableError(why, table=name)

    def of_orphans(self, table: Table) -> Others:
        """Return all files of all other tables, and doubts if some of them could not be read."""
        with self._lock:
            others, doubts = list(self._others_than(table)), list(self._doubts)
            failed = [why for each in others if (why := self._read(each))]
        doubts += _cannot_be_read(failed)
        return Others(_by_name(others), tuple(dict.fromkeys(doubts)))

    def of_expired(self, table: Table) -> Others:
        """Return the files of other tables near this one, and of those elsewhere as far as the limit goes."""
        folders = [_real(folder) for folder in own_folders(table)]
        with self._lock:
            others = sorted(self._others_than(table), key=lambda each: not each.is_near(folders))
            for each in others:
                if each.numbers is None and (each.is_near(folders) or len(each.lists) < self._reads_left):
                    self._read(each)
        return Others(_by_name(others))

    def uuids(self) -> set[str]:
        """Return the UUIDs of the tables that were loaded."""
        return {each.uuid.lower() for each in self._tables or ()}

    def _others_than(self, table: Table) -> Iterator[_Other]:
        own = table.name()
        if self._tables is None:
            self._tables = list(self._loaded(own))
        for each in self._tables:
            # some catalogs list a name in lower case
            is_same = tuple(map(str.casefold, each.name)) == tuple(map(str.casefold, own))
            if each.name != own and not (is_same and each.metadata_location == table.metadata_location):
                yield each

    def _read(self, other: _Other) -> str:
        """Read the files of a table, if that is not done; return the reason why that failed."""
        if other.numbers is not None:
            return ""
        try:
            self._reads_left -= other.read()
        except Exception as error:  # each storage client raises its own errors
            return f"{'.'.join(other.name)}: {brief(error)}"
        return ""

    def _loaded(self, first: Name) -> Iterator[_Other]:
        """Yield the tables of the catalog, those in the namespace of `first` first; others that fail are doubts."""
        names: list[Name] = []
        failed: list[str] = []
        own = () if self._own is None else (self._own,)
        try:
            for _ in range(2):  # a table may be renamed into a namespace that was listed before
                listed = set(names_of(self._catalog, self._doubts.append)).difference(names, own)
                new = sorted(listed, key=lambda name: (name[:-1] != first[:-1], name))
                due = new[: max(0, self._most_tables - len(names))]
                for name, other in zip(due, each_of(self._catalog)(self._load, due), strict=True):
                    if isinstance(other, _Other):
                        yield other
                    elif other:
                        failed.append(f"{'.'.join(name)}: {other}")
                names += new
        except Exception as error:  # each catalog client raises its own errors
            self._doubts.append(f"the catalog cannot list its tables ({denied(error, LIST)})")
        self._doubts += _cannot_be_read(failed)
        if (more := len(names) - self._most_tables) > 0:
            self._doubts.append(f"{format_count(more, 'table')} beyond the first {self._most_tables:,} were not loaded")

    def _load(self, name: Name) -> _Other | str:
        """Return a table; the reason if it has files but cannot be loaded, and an empty text if it has none."""
        table = load_named(self._catalog, name)
        if isinstance(table, NotLoaded):
            return table.why if table.kind in ("unreadable", "unsupported") else ""
        return _Other.of(name, table)


def files_of_unlisted_tables(io: FileIO, found: Mapping[str, Iterable[str]], name: str) -> Others:
    """Return the files that metadata files of other tables lead to, and these files themselves; they are a doubt.

    Such a table was dropped, or another catalog has it. `found` has its metadata files by its UUID.
    """
    numbers = dict[str, NDArray[np.int64]]()
    for uuid, files in found.items():
        files = sorted(files, key=_version, reverse=True)
        with storage_errors(f"Cannot read which files the table {uuid} needs", "icesize deleted no file", table=name):
            numbers[f"the table {uuid}"] = _numbers(io, chain(files, _reached(io, files)))
    return Others(numbers)


def unlisted_table_notes(found: Mapping[str, list[str]]) -> Iterator[str]:
    """Yield a sentence about the metadata files of each other table."""
    for uuid, files in found.items():
        yield (
            f"{format_count(len(files), 'metadata file')} of another table ({uuid}) and its files left alone, the "
            f"first is {min(files)}. If that table was dropped and no other catalog has it, remove these metadata files"
        )


def _reached(io: FileIO, files: list[str]) -> Iterator[str]:
    """Yield the files that metadata files lead to, newest first. Those in the log of a newer one are not opened."""
    read, known = set[str](), set[str]()
    for file in files:
        if normalised(file) in known:
            continue
        try:
            metadata = read_metadata_file(io, file) or {}
        except TableError:  # cut off by a writer that died
            continue
        known.update(normalised(str(entry["metadata-file"])) for entry in metadata.get("metadata-log", ()))
        for key in ("statistics", "partition-statistics"):
            yield from (str(each["statistics-path"]) for each in metadata.get(key, ()))
        lists = [str(s["manifest-list"]) for s in metadata.get("snapshots", ()) if "manifest-list" in s]
        yield from listed_files(io, lists, read, (FileNotFoundError,))


def identity_of_table(table: Table) -> tuple[str, str]:
    """Return UUID and location of a table: no two tables of a catalog share one of them."""
    return str(table.metadata.table_uuid), _real(table.metadata.location)


def shared(tables: Mapping[str, tuple[str, str]]) -> dict[str, str]:
    """Return the names whose files must not be deleted, with the reason: another one has its UUID or location."""
    found = dict[str, str]()
    for index, reason in ((1, _SHARED_LOCATION), (0, _SECOND_NAME)):
        names = defaultdict[str, list[str]](list)
        for name, identity in tables.items():
            names[identity[index]].append(name)
        for sharing in names.values():
            for name in sharing if len(sharing) > 1 else ():
                others = ", ".join(f"'{other}'" for other in sharing if other != name)
                found[name] = f"Cannot delete files of '{name}': {others} {reason}"
    return found


_SHARED_LOCATION = "has the same location, so the owner of a file is unknown; give each table a location of its own"
_SECOND_NAME = (
    "in the same catalog is another name of this table (it has the same UUID) and may need them; drop one of the names "
    "without its files"
)


def _cannot_be_read(failed: Sequence[str]) -> Iterator[str]:
    if failed:
        yield f"{format_count(len(failed), 'table')} cannot be read, the first is {failed[0]}"


def _by_name(others: Iterable[_Other]) -> dict[str, NDArray[np.int64]]:
    return {".".join(each.name): each.numbers for each in others if each.numbers is not None}


def _version(location: str) -> tuple[int, str]:
    name = location.rpartition("/")[2]
    number = re.search(r"\d+", name)
    return int(number[0]) if number else 0, name


def _numbers(io: FileIO, files: Iterable[str]) -> NDArray[np.int64]:
    """Return the sorted numbers of files, by their names, and by device and inode if they are local."""
    paths = list(files)
    inodes = [found for path in paths if (found := identity_of(io, path)) is not None]
    return np.unique(np.concatenate([path_numbers(paths), np.fromiter(map(hash, inodes), np.int64, len(inodes))]))


def _real(location: str) -> str:
    """Return one spelling of a directory; in local storage, the spelling of the directory itself, not of a link."""
    scheme, _, path = split(location)
    return normalised(f"file://{os.path.realpath(path)}" if scheme == "file" else location)
