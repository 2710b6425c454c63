"""Cache of facts about files for all readers of a table, in memory that all tables of the process share.

Most are facts of manifests, and values computed from them. Others are deleted rows of data files. A file of a table
never changes, so they stay valid. Dropping a cached value costs time, never correctness.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile

from icesize.planning.files import FileFact
from icesize.table.manifests.file_columns import EntryColumns, ManifestFacts, read_facts
from icesize.table.manifests.live_arrays import Listing, path_numbers
from icesize.table.manifests.manifest_lists import inherited_from
from icesize.table.manifests.spill import ColumnSpill

T = TypeVar("T")

_MOST_KINDS = 4
"""A sink, calls with another policy, and the partition specs before and after a change."""
MAX_BYTES = 2**30
"""Memory of a process for this, about: the facts of two million files that are all small, or of ten million others."""


class _Value(NamedTuple):
    version: Hashable
    value: Any
    held_bytes: int


@dataclass(slots=True)
class _Held:
    """The cached values of one file, and the pass that used them last."""

    used: object
    values: dict[Hashable, _Value] = field(default_factory=dict)

    @property
    def held_bytes(self) -> int:
        """Approximate memory in bytes."""
        return sum(value.held_bytes for value in self.values.values())


class Memory:
    """Cached values by table and path, the least recently used first; `lock` guards them."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self.max_bytes: int = max_bytes
        self.lock: threading.Lock = threading.Lock()
        self.held: OrderedDict[tuple[str, str], _Held] = OrderedDict()
        self.held_bytes: int = 0

    def drop(self, name: tuple[str, str]) -> None:
        """Drop the cached values of a file, if there are any."""
        if held := self.held.pop(name, None):
            self.held_bytes -= held.held_bytes

    def shrink(self, max_bytes: int) -> None:
        """Drop the least recently used values until the others take no more than these bytes."""
        with self.lock:
            while self.held_bytes > max_bytes:
                self.drop(next(iter(self.held)))


_SHARED = Memory()


@lru_cache(maxsize=1_000)
def store_of(table_uuid: str) -> ManifestStore:
    """Return the store of a table, which all handles of the table in this process share."""
    return ManifestStore(_SHARED, table_uuid)


class ManifestStore:
    """Facts of manifests by path, and values computed from them. Threads may share a store.

    No thread holds the memory's lock while it reads storage. Threads that need the same value wait for the first of
    them. When the memory is full, the least recently used values are dropped first, except those that the newest state
    of the table uses. A table that is larger than the memory keeps the values that fit, and reads the rest each time.

    Attributes:
        spill: Keeps the columns of manifests on the local disk; None keeps none.
    """

    def __init__(self, memory: Memory | None = None, table_uuid: str = "") -> None:
        self._memory = memory or Memory()
        self._lock = self._memory.lock
        self._table = table_uuid
        self._making: dict[tuple[str, Hashable, Hashable], Future[Any]] = {}
        self._followed: frozenset[str] = frozenset()
        self._pass = object()
        self.spill: ColumnSpill | None = None

    def facts(self, io: FileIO, manifest: ManifestFile) -> ManifestFacts:
        """Return the facts of a manifest; raises what `read_facts` raises."""

        def read() -> tuple[EntryColumns, int]:
            spill = self.spill
            columns = spill.read(self._table, manifest) if spill else None
            if columns is None:
                columns = read_facts(io, manifest).columns
                if spill:
                    spill.write(self._table, manifest, columns)
            return columns, columns.held_bytes

        return ManifestFacts(manifest, self.get(manifest.manifest_path, "columns", read))

    def unread(self, manifests: Iterable[ManifestFile]) -> list[ManifestFile]:
        """Return the manifests whose facts are not in memory."""
        return [each for each in manifests if self.known(each.manifest_path, "columns") is None]

    def listing(self, io: FileIO, manifest: ManifestFile) -> Listing:
        """Return the live files of a manifest by partition and by path; raises what `read_facts` raises."""

        def make() -> tuple[Listing, int]:
            listing = Listing.of(self.facts(io, manifest))
            return listing, listing.held_bytes

        return self.get(manifest.manifest_path, "listing", make, inherited_from(manifest))

    def listed(self, io: FileIO, manifests: Iterable[ManifestFile], paths: Collection[str]) -> Iterator[str]:
        """Yield the live files of the manifests that are at one of these paths, in the spelling of each manifest.

        A file that is listed again is yielded again. Raises what `read_facts` raises.
        """
        for facts, rows in self._listed(io, manifests, paths):
            yield from facts.paths(rows)

    def listed_files(self, io: FileIO, manifests: Iterable[ManifestFile], paths: Collection[str]) -> Iterator[FileFact]:
        """Yield the live data files at these paths, like `listed`."""
        for facts, rows in self._listed(io, manifests, paths):
            yield from facts.files(rows)

    def _listed(
        self, io: FileIO, manifests: Iterable[ManifestFile], paths: Collection[str]
    ) -> Iterator[tuple[ManifestFacts, NDArray[np.intp]]]:
        numbers = path_numbers(list(paths))
        for manifest in manifests if paths else ():
            listing = self.listing(io, manifest)
            yield listing.facts, listing.rows_of(numbers)

    def remember(self, path: str, columns: EntryColumns) -> None:
        """Keep facts that the caller has read together with other data, or written."""
        self.get(path, "columns", lambda: (columns, columns.held_bytes))

    def changes(self, io: FileIO, manifest: ManifestFile) -> ManifestFacts:
        """Return the facts of at least the ADDED and DELETED entries of a manifest.

        Returns all cached facts, or reads only the changes if there are none. Raises what `read_facts` raises.
        """
        columns = self.known(manifest.manifest_path, "columns")
        return ManifestFacts(manifest, columns) if columns else read_facts(io, manifest, changes_only=True)

    def get(self, path: str, kind: Hashable, make: Callable[[], tuple[T, int]], version: Hashable = None) -> T:
        """Return a cached value of a file of the table, computed if it is not cached.

        Args:
            path: Location of the file.
            kind: Name of the value, the same for all values that are computed in the same way.
            make: Returns the value and its approximate bytes; called without a lock. Its errors are raised.
            version: Anything else that the value depends on; one version of a kind is kept.
        """
        with self._lock:
            known = self._use(path, kind, version)
        value: T = known.value if known else self._make_once(path, kind, make, version)
        return value

    def known(self, path: str, kind: Hashable, version: Hashable = None) -> Any:
        """Return a cached value as `get` does; None if it is not cached."""
        with self._lock:
            known = self._use(path, kind, version)
        return known.value if known else None

    def together(self, paths: Iterable[str], kind: Hashable, make: Callable[[], tuple[T, int]]) -> T:
        """Return a value of several files, computed again if the last call with this `kind` had other files."""
        return self.get("", kind, make, frozenset(paths))

    def evolve(self, kind: tuple[Hashable, ...], version: Hashable, make: Callable[[T | None], tuple[T, int]]) -> T:
        """Return a value of a version of the table, made from the value that was made last.

        Args:
            kind: Name of the value and what it depends on beside the table. The four newest of each name are kept.
            version: Identifies the state of the table.
            make: Returns the value and its approximate bytes. It gets the value of another version, or None if there is
                none. Called without a lock; its errors are raised.
        """
        with self._lock:
            held = self._memory.held.get((self._table, ""))
            known = held.values.get(kind) if held else None
        value = self.get("", kind, lambda: make(known.value if known else None), version)
        with self._lock:
            self._drop_older_kinds(name=kind[0])
        return value

    def _drop_older_kinds(self, name: Hashable) -> None:
        """Drop all but the newest values of this name, which other policies or partition specs made once."""
        if held := self._memory.held.get((self._table, "")):
            kinds = [kind for kind in held.values if isinstance(kind, tuple) and kind[0] == name]
            for kind in kinds[:-_MOST_KINDS]:
                self._memory.held_bytes -= held.values.pop(kind).held_bytes

    def _use(self, path: str, kind: Hashable, version: Hashable) -> _Value | None:
        held = self._memory.held.get((self._table, path))
        known = held and held.values.get(kind)
        if not held or not known or known.version != version:
            return None
        self._mark_used(path, held)
        return known

    def _mark_used(self, path: str, held: _Held) -> None:
        held.used = self._pass
        self._memory.held.move_to_end((self._table, path))

    def _make_once(self, path: str, kind: Hashable, make: Callable[[], tuple[T, int]], version: Hashable) -> T:
        name, mine = (path, kind, version), Future[T]()
        try:
            while True:
                with self._lock:
                    if known := self._use(*name):
                        found: T = known.value
                        return found
                    first = self._making.setdefault(name, mine)
                if first is mine:
                    break
                # If a thread fails, perhaps because its credentials are older, the next thread tries with its own.
                if first.exception() is None:
                    theirs: T = first.result()
                    return theirs
            value, size = make()
            with self._lock:
                self._keep(path, kind, _Value(version, value, size))
        except BaseException as error:
            self._end_making(name, mine)
            mine.set_exception(error)
            raise
        self._end_making(name, mine)
        mine.set_result(value)
        return value

    def _end_making(self, name: tuple[str, Hashable, Hashable], mine: Future[T]) -> None:
        with self._lock:
            if self._making.get(name) is mine:
                del self._making[name]

    def _keep(self, path: str, kind: Hashable, value: _Value) -> None:
        memory = self._memory
        held = memory.held.setdefault((self._table, path), _Held(self._pass))
        self._mark_used(path, held)
        if before := held.values.pop(kind, None):
            memory.held_bytes -= before.held_bytes
        held.values[kind] = value
        memory.held_bytes += value.held_bytes
        while memory.held_bytes > memory.max_bytes:
            oldest = next(iter(memory.held))
            if memory.held[oldest].used is self._pass:
                # This pass needs all other values too, so the newest value is not kept.
                memory.held_bytes -= held.values.pop(kind).held_bytes
                return
            memory.drop(oldest)

    def follow(self, paths: Collection[str]) -> None:
        """Begin a pass over the newest state of the table, which needs these metadata files.

        Drops the values of files that only an earlier state needed.
        """
        needed = frozenset(paths)
        with self._lock:
            self._pass = object()
            for path in self._followed - needed:
                self._memory.drop((self._table, path))
            self._followed = needed
            for path in needed:
                if held := self._memory.held.get((self._table, path)):
                    self._mark_used(path, held)
