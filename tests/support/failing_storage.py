"""An object store in memory, and a catalog in it, of which the n-th call fails, is cut short or finds no room.

Files, listings and deletions go through PyIceberg's own `PyArrowFileIO`, whose filesystem this is; statements of the
catalog's database are counted with them. So every way by which icesize or PyIceberg reaches an object store is one
call. `failing_disk` has the same for the local disk, which icesize reaches without PyIceberg.
"""

from __future__ import annotations

import errno
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, PyFileSystem
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestFile, clear_manifest_cache
from pyiceberg.table import Table
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from icesize.table.records import ledger

DAY_SECONDS = 86_400
ERROR, FOREIGN, CUT, CLIPPED, FULL, AWAY = KINDS = ("error", "foreign", "cut", "clipped", "full", "away")
"""The call fails; it fails with the error of a package, which is no OSError; it does half of its work (the answer of a
commit is lost); a read misses the last few bytes; the call and all writes after it find no room; it and all calls after
it fail."""


_WRITES = ("create", "write", "close", "copy")
_OF_FILES = ("info", "list", "delete", "open", "read", *_WRITES)
_STRIKES = {FOREIGN: _OF_FILES, CUT: ("read", "write", "list", "commit"), CLIPPED: ("read",), FULL: _WRITES}
_CLIPPED_BYTES = 20


HttpError = type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})
"""An error as gcsfs raises it."""


class Call(NamedTuple):
    """A call of storage: what it does, and of which file."""

    what: str
    path: str


@dataclass
class Faults:
    """Counts calls, and lets those fail that are to: none, until `number` and `kind` are set."""

    number: int = 0
    kind: str = ERROR
    calls: list[Call] = field(default_factory=list)
    struck: list[Call] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def numbers(self, calls: Sequence[Call], kind: str) -> Sequence[int]:
        """Numbers, from 1 on, of the calls to which this kind can happen."""
        return [number for number, call in enumerate(calls, 1) if _applies(call, kind)]

    def begin(self, number: int, kind: str) -> None:
        """Let the call of this number fail; none if it is 0."""
        self.number, self.kind = number, kind

    def reach(self, what: str, path: str) -> bool:
        """Count a call; true when it is to be cut short. Raises OSError, or HttpError, when it is to fail."""
        with self._lock:
            call = Call(what, path)
            self.calls.append(call)
            lasting = self.kind in (FULL, AWAY)
            due = len(self.calls) >= self.number if lasting else len(self.calls) == self.number
            if not self.number or not due or not _applies(call, self.kind):
                return False
            self.struck.append(call)
        if self.kind in (CUT, CLIPPED):
            return True
        if self.kind == FOREIGN:
            raise HttpError(f"503 {what} {path}")
        code, text = (errno.ENOSPC, "No space left on device") if self.kind == FULL else (errno.EIO, "I/O error")
        raise OSError(code, text, path)

    def heal(self) -> None:
        """Nothing fails from here on; calls are counted from 1."""
        self.number = 0
        self.calls.clear()
        self.struck.clear()


def _applies(call: Call, kind: str) -> bool:
    only = _STRIKES.get(kind)
    return only is None or call.what in only


class Stored(NamedTuple):
    """A file: its bytes, and how many days old it looks."""

    data: bytes
    age_days: int = 0


class Store:
    """The files of one store by path, which is a location without its scheme, and the faults of the calls to it."""

    warehouse = "gs://lake/tables"

    def __init__(self) -> None:
        self.files: Mapping[str, Stored] = {}
        self.faults = Faults()

    def properties(self) -> dict[str, str]:
        """Those of a catalog by which PyIceberg finds this store."""
        name = f"store-{id(self)}"
        STORES[name] = self
        return {"store": name, "py-io-impl": f"{FailingIO.__module__}.{FailingIO.__name__}"}

    def put(self, path: str, file: Stored) -> None:
        """Add a file, or write it again."""
        self.files = {**self.files, path: file}

    def remove(self, path: str) -> None:
        """Remove a file that may be there."""
        self.files = {other: file for other, file in self.files.items() if other != path}

    def age(self, days: int) -> None:
        """Every file looks older."""
        self.files = {path: file._replace(age_days=file.age_days + days) for path, file in self.files.items()}


STORES: dict[str, Store] = {}
"""The stores of this process by name: PyIceberg makes a `FailingIO` of properties alone."""


class FailingIO(PyArrowFileIO):
    """PyIceberg's FileIO on the store that the property `store` names."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(dict(properties))
        filesystem = PyFileSystem(_Handler(STORES[properties["store"]]))
        self.fs_by_scheme = lambda scheme, netloc: filesystem


class _Handler(FileSystemHandler):
    """PyArrow's calls to a store; there are no folders, as in object stores."""

    def __init__(self, store: Store) -> None:
        self._store, self._faults = store, store.faults

    def get_type_name(self) -> str:
        return "failing"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Iterable[str]) -> list[FileInfo]:
        return [self._info(path) for path in paths]

    def _info(self, path: str) -> FileInfo:
        self._faults.reach("info", path)
        found = self._store.files.get(path)
        return FileInfo(path, FileType.NotFound) if found is None else _file_info(path, found)

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        short = self._faults.reach("list", selector.base_dir)
        start = selector.base_dir + "/"
        below = {path: file for path, file in sorted(self._store.files.items()) if path.startswith(start)}
        found = {}
        for path, file in below.items():
            first, slash, _ = path.removeprefix(start).partition("/")
            top = FileInfo(start + first, FileType.Directory) if slash else _file_info(path, file)
            found[path if selector.recursive else top.path] = _file_info(path, file) if selector.recursive else top
        infos = list(found.values())
        return infos[: len(infos) // 2] if short else infos

    def delete_file(self, path: str) -> None:
        self._faults.reach("delete", path)
        self._store.remove(path)

    def copy_file(self, source: str, target: str) -> None:
        self._faults.reach("copy", target)
        self._store.put(target, Stored(self._store.files[source].data))

    def open_input_file(self, path: str) -> pa.NativeFile:
        self._faults.reach("open", path)
        if path not in self._store.files:
            raise FileNotFoundError(errno.ENOENT, "no such object", path)
        return pa.PythonFile(_Reading(path, self._store), "r")

    open_input_stream = open_input_file

    def open_output_stream(self, path: str, metadata: object) -> pa.NativeFile:
        self._faults.reach("create", path)
        return pa.PythonFile(_Writing(path, self._store), "w")

    def _unused(self, *_: object) -> None:
        raise NotImplementedError

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = move = open_append_stream = _unused


def _file_info(path: str, file: Stored) -> FileInfo:
    return FileInfo(path, FileType.File, size=len(file.data), mtime=time.time() - file.age_days * DAY_SECONDS)


class _Reading:
    """A file that is read: one that is cut short ends where it was cut."""

    closed = False

    def __init__(self, path: str, store: Store) -> None:
        self._path, self._data, self._at, self._faults = path, store.files[path].data, 0, store.faults

    def read(self, size: int | None = None) -> bytes:
        end = len(self._data) if size is None or size < 0 else min(len(self._data), self._at + size)
        if self._faults.reach("read", self._path):
            clipped = self._faults.kind == CLIPPED
            end = max(self._at, end - _CLIPPED_BYTES) if clipped else self._at + (end - self._at) // 2
            self._data = self._data[:end]
        start, self._at = self._at, max(end, self._at)
        return self._data[start:end]

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, len(self._data))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        self.closed = True


class _Writing:
    """A file that is written: it is there from the first byte on, as on a disk, and whole once it is closed."""

    closed = False

    def __init__(self, path: str, store: Store) -> None:
        self._path, self._store, self._data = path, store, bytearray()
        self._keep()

    def write(self, data: Any) -> int:
        content = bytes(data)
        if self._store.faults.reach("write", self._path):
            self._data += content[: len(content) // 2]
            self._keep()
            raise OSError(errno.ENOSPC, "No space left on device", self._path)
        self._data += content
        self._keep()
        return len(content)

    def flush(self) -> None:
        """Written bytes are there."""

    def tell(self) -> int:
        return len(self._data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._store.faults.reach("close", self._path)

    def _keep(self) -> None:
        self._store.put(self._path, Stored(bytes(self._data)))


def path_of(location: str) -> str:
    """The path of a location in its store."""
    return location.partition("://")[2]


@dataclass(frozen=True)
class Saved:
    """A store and its catalog as they were."""

    files: Mapping[str, Stored]
    database: sqlite3.Connection


class FailingLake:
    """A catalog of one table `db.t` with storage that fails; both go back to what was saved."""

    def __init__(self, folder: Path, store: Store | None = None) -> None:
        self.store = store or Store()
        # what a manifest or a list of them leads to: files never change
        self._reachable: dict[str, set[str]] = {}
        self.catalog = SqlCatalog(
            "lake", uri=f"sqlite:///{folder}/catalog.db", warehouse=self.store.warehouse, **self.store.properties()
        )
        self.catalog.create_namespace("db")
        event.listen(self.catalog.engine, "before_cursor_execute", self._on_statement)
        event.listen(self.catalog.engine, "commit", self._on_commit)

    @property
    def faults(self) -> Faults:
        """What fails."""
        return self.store.faults

    def table(self) -> Table:
        """The table now."""
        table: Table = self.catalog.load_table("db.t")
        return table

    def save(self) -> Saved:
        """The lake as it is."""
        copy = sqlite3.connect(":memory:", check_same_thread=False)
        self._database().backup(copy)
        return Saved(dict(self.store.files), copy)

    def restore(self, saved: Saved, number: int = 0, kind: str = ERROR) -> None:
        """As it was saved, with the calls counted from 1 and the call of this number failing."""
        self.heal()
        self.store.files = saved.files
        saved.database.backup(self._database())
        # manifests stay what they were read as in a process: nothing may be known from the run before
        clear_manifest_cache()
        self.heal()
        self.faults.begin(number, kind)

    def heal(self) -> None:
        """Nothing fails from here on."""
        self.faults.heal()

    def close(self) -> None:
        """The end of the catalog."""
        self.catalog.close()

    def _database(self) -> Any:
        with self.catalog.engine.connect() as connection:
            return connection.connection.driver_connection

    def _on_statement(self, *statement: Any) -> None:
        self._reach("statement", str(statement[2])[:40])

    def _on_commit(self, connection: Any) -> None:
        if self._reach("commit", ""):
            connection.connection.driver_connection.commit()
            raise OperationalError("COMMIT", {}, OSError(errno.EIO, "the answer is lost"))

    def _reach(self, what: str, of: str) -> bool:
        try:
            return self.faults.reach(what, of)
        except OSError as error:
            raise OperationalError(of or what, {}, error) from error

    def needed(self) -> set[str]:
        """Paths of all files that the table needs, each of which is there; metadata files of its log, too."""
        table = self.table()
        found = {table.metadata_location, *(entry.metadata_file for entry in table.metadata.metadata_log)}
        for snapshot in table.metadata.snapshots:
            if snapshot.manifest_list not in self._reachable:
                manifests = snapshot.manifests(table.io)
                listed = [self._in_manifest(manifest, table.io) for manifest in manifests]
                self._reachable[snapshot.manifest_list] = set().union(*listed)
            found |= {snapshot.manifest_list, *self._reachable[snapshot.manifest_list]}
        paths = {path_of(location) for location in found}
        assert not paths - self.store.files.keys(), "a file that the table needs is gone"
        return paths

    def _in_manifest(self, manifest: ManifestFile, io: FileIO) -> set[str]:
        path = manifest.manifest_path
        if path not in self._reachable:
            entries = manifest.fetch_manifest_entry(io)
            self._reachable[path] = {path, *(entry.data_file.file_path for entry in entries)}
        return self._reachable[path]

    def facts(self) -> dict[str, object]:
        """Rows, and numbers of live files, as PyIceberg reads them; names of streams."""
        table = self.table()
        head = table.metadata.current_snapshot()
        manifests = head.manifests(table.io) if head else []
        entries = [entry for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]
        return {
            "rows": sorted(table.scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()),
            "files": Counter(entry.data_file.content.name for entry in entries),
            "streams": [entry.stream_id for entry in ledger.entries(table.metadata.properties)],
        }
