"""Checks that every file that a snapshot names is in storage, with its size.

One listing of the table's directories answers that for almost all files, as two columns of numbers. A manifest is
compared when it is read, so memory holds neither the paths of the listing nor those of the manifests.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.concurrency import concurrently
from icesize.errors import TableError
from icesize.maintenance.verify.rules import DAMAGED, GONE, LOST, SIZES, STATISTICS, WITHOUT_FIELD_IDS, Found, Rule
from icesize.storage.locations import FOLDER_PROPERTIES, is_inside, normalised
from icesize.storage.stores import Listed
from icesize.storage.table_storage import Storage
from icesize.table.catalog.history import known_ancestors
from icesize.table.manifests.avro_values import NoFieldIds
from icesize.table.manifests.entries import DELETED
from icesize.table.manifests.file_columns import ManifestFacts
from icesize.table.manifests.live_arrays import path_numbers
from icesize.table.manifests.manifest_lists import read_list
from icesize.table.storage.listing import Lister
from icesize.table.storage.reachable import READERS

A = TypeVar("A")
B = TypeVar("B")

MOST_LOOKUPS = 10_000
"""Most remote files that are looked up one by one: at 50 ms each, eight at a time, a minute."""
LISTED_BETWEEN_TELLING = 10_000
"""Listed files between two progress reports."""
_ANY_SIZE = -1


@dataclass(frozen=True, eq=False)
class Stored:
    """The files of a listing: numbers of their paths in ascending order, and sizes.

    Attributes:
        numbers: See `path_numbers`.
        size_bytes: The size of each file.
        folders: The directories that were listed.
        is_current: False for an inventory, which lacks the newest files.
    """

    numbers: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    folders: tuple[str, ...]
    is_current: bool = True

    @classmethod
    def of(
        cls, listed: Iterable[Listed], folders: Sequence[str], is_current: bool, progress: Callable[[int], object]
    ) -> Stored:
        """Return the files of a listing; `progress` is called with their number so far."""
        numbers, sizes = array("q"), array("q")
        for count, file in enumerate(listed, 1):
            numbers.append(hash(normalised(file.location)))
            sizes.append(file.size_bytes)
            if not count % LISTED_BETWEEN_TELLING:
                progress(count)
        columns = [np.frombuffer(each, np.int64) if each else np.empty(0, np.int64) for each in (numbers, sizes)]
        order = np.argsort(columns[0])
        return cls(columns[0][order], columns[1][order], tuple(folders), is_current)

    def places(self, numbers: NDArray[np.int64], size_bytes: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the place of each file in the listing, -1 if it is not there with this size."""
        if not self.numbers.size:
            return np.full(numbers.size, -1, np.intp)
        places = np.minimum(np.searchsorted(self.numbers, numbers), self.numbers.size - 1)
        same = (self.numbers[places] == numbers) & ((size_bytes == _ANY_SIZE) | (self.size_bytes[places] == size_bytes))
        return np.where(same, places, -1)


def folders_of(metadata: TableMetadata) -> list[str]:
    """Return the table's location, and directories of its files that lie elsewhere."""
    found = [metadata.location.rstrip("/")]
    for key in FOLDER_PROPERTIES:
        place = metadata.properties.get(key, "").rstrip("/")
        if place and not any(normalised(place) == normalised(each) or is_inside(place, each) for each in found):
            found.append(place)
    return found


def listed_in(lister: Lister, io: FileIO, folders: Sequence[str]) -> Iterator[Listed]:
    """Yield the files below these directories; the first one must be there. Raises the errors of `lister`."""
    for place, folder in enumerate(folders):
        try:
            yield from lister(io, folder)
        except TableError as error:
            # a directory of a property may wait for its first file
            if not place or not isinstance(error.__cause__, FileNotFoundError):
                raise


@dataclass
class StorageCheck:
    """Compares files that snapshots name with a listing that was made after the table was loaded.

    A file that the listing lacks, or has with another size, is looked up: it may lie elsewhere, behind a link, or be
    newer than an inventory. At most `most_lookups` remote files are.

    Attributes:
        notes: Sentences about files that were not compared.
        removed: Numbers of the files that the newest snapshot or its ancestors removed.
    """

    io: FileIO
    stored: Stored
    most_lookups: int = MOST_LOOKUPS
    notes: list[str] = field(default_factory=list)
    removed: list[NDArray[np.int64]] = field(default_factory=list)
    _needed: NDArray[np.bool_] = field(init=False)
    _seen: set[str] = field(default_factory=set)
    _gone: set[str] = field(default_factory=set)
    _outside: int = 0
    _unknown: int = 0

    def __post_init__(self) -> None:
        self._needed = np.zeros(self.stored.numbers.size, np.bool_)

    @property
    def files(self) -> int:
        """Number of listed files that the snapshots need."""
        return int(self._needed.sum())

    def run(
        self,
        metadata: TableMetadata,
        snapshots: Sequence[Snapshot],
        read: Callable[[ManifestFile], ManifestFacts],
        reported: Collection[str] = (),
    ) -> Iterator[Found]:
        """Yield what is wrong with the files that some snapshots name.

        Args:
            metadata: The table's metadata, for its statistics files.
            snapshots: The snapshots, the newest one first.
            read: Reads a manifest.
            reported: Metadata files that are known to be missing or damaged.
        """
        ancestors = [snapshot.snapshot_id for snapshot in known_ancestors(metadata)]
        self._seen.update(reported)
        self._gone.update(reported)
        lists = [snapshot.manifest_list for snapshot in snapshots]
        yield from self._compared(LOST, lists)
        manifests = dict[str, ManifestFile]()
        specs = metadata.specs()
        paths = dict(zip(lists, lists, strict=True))
        for found in self._read(lambda path: list(read_list(self.io, path, specs)), paths):
            if isinstance(found, Found):
                yield from self._damaged(found)
            else:
                manifests |= {each.manifest_path: each for each in found if each.manifest_path not in manifests}
        lengths = [each.manifest_length for each in manifests.values()]
        yield from self._compared(LOST, list(manifests), np.array(lengths, np.int64))
        for facts in self._read(read, manifests):
            if isinstance(facts, Found):
                yield from self._damaged(facts)
            else:
                sizes = facts.columns.size_bytes[facts.live].astype(np.int64)
                yield from self._compared(LOST, facts.paths(), sizes)
                removed = np.flatnonzero(facts.columns.status == DELETED)
                # a snapshot that a rollback has left removes nothing
                removed = removed[np.isin(facts.snapshot_ids[removed], ancestors)]
                self.removed.append(path_numbers(facts.paths(removed)))
        kept = {snapshot.snapshot_id for snapshot in snapshots}
        statistics = [s for s in (*metadata.statistics, *metadata.partition_statistics) if s.snapshot_id in kept]
        sizes = np.array([each.file_size_in_bytes for each in statistics], np.int64)
        yield from self._compared(STATISTICS, [each.statistics_path for each in statistics], sizes)
        self._note()

    def _read(self, read: Callable[[A], B], items: Mapping[str, A]) -> Iterator[B | Found]:
        """Yield what is read from the files that are there, or what is wrong with them."""
        there = [path for path in items if path not in self._gone]
        return concurrently(lambda path: attempt(read, path, items[path]), there, READERS, READERS)

    def _damaged(self, found: Found) -> Iterator[Found]:
        # the comparison has reported a file that is gone
        if found.rule != LOST and found.path not in self._gone:
            self._gone.add(found.path)
            yield found

    def _compared(
        self, rule: Rule, paths: Sequence[str], size_bytes: NDArray[np.int64] | None = None
    ) -> Iterator[Found]:
        """Yield the files that are not there, or with another size."""
        numbers = path_numbers(paths)
        sizes = np.full(numbers.size, _ANY_SIZE, np.int64) if size_bytes is None else size_bytes
        places = self.stored.places(numbers, sizes)
        self._needed[places[places >= 0]] = True
        at_fault = {paths[at]: int(sizes[at]) for at in np.flatnonzero(places < 0).tolist()}
        suspects = {path: size for path, size in at_fault.items() if path not in self._seen}
        self._seen.update(suspects)
        few = {path: size for path, size in suspects.items() if self._looks_up(path)}
        for (path, size), found in zip(
            few.items(), concurrently(partial(size_of, Storage.of(self.io)), few), strict=True
        ):
            self._outside += found is not None and not self._is_listed(path)
            if found is None:
                self._gone.add(path)
                yield Found(rule, path, GONE)
            elif size not in (_ANY_SIZE, found):
                yield Found(SIZES, path, f"it has {found:,} bytes, by the metadata {size:,}")
        for path in suspects.keys() - few.keys():
            if self.stored.is_current and self._is_listed(path):
                detail = "the listing does not have it with the size in the metadata"
                yield Found(rule, path, detail, is_certain=False)
            else:
                self._unknown += 1

    def _looks_up(self, path: str) -> bool:
        storage = Storage.of(self.io)
        if storage.local_path(path) is not None:
            return True
        self.most_lookups -= 1
        return self.most_lookups >= 0 and not storage.cannot_open(path)

    def _is_listed(self, path: str) -> bool:
        return any(is_inside(path, folder) for folder in self.stored.folders)

    def _note(self) -> None:
        if self._outside:
            self.notes.append(f"{self._outside:,} files outside of the listed directories were looked up one by one")
        if self._unknown:
            why = f"more than {MOST_LOOKUPS:,} are not listed, or PyArrow cannot open names with `//`"
            self.notes.append(f"{self._unknown:,} files were not looked up: {why}")


def size_of(storage: Storage, path: str) -> int | None:
    """Return the size of a file; None if it is not there. Raises the errors of the storage."""
    try:
        return storage.size(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def attempt(read: Callable[[A], B], path: str, item: A) -> B | Found:
    """Return what is read from a file, or what is wrong with it. Raises the errors of the storage."""
    try:
        return read(item)
    except FileNotFoundError:
        return Found(LOST, path, GONE)
    except TableError as error:
        rule = WITHOUT_FIELD_IDS if isinstance(error.__cause__, NoFieldIds) else DAMAGED
        return Found(rule, path, str(error))
