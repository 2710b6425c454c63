"""The storage of a table: local files, object stores, and PyIceberg's FileIO for every other storage."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import pyarrow as pa
from pyiceberg.io import PY_IO_IMPL, FileIO, InputFile, InputStream, OutputFile, OutputStream, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.concurrency import IO_THREADS, concurrently, requests_at_once, workers
from icesize.errors import RewriteFailed
from icesize.redaction import remember_secrets
from icesize.storage.file_io_store import FileIOStore, file_io_store
from icesize.storage.kept_files import KeptFiles, never_changes
from icesize.storage.local_store import LocalStore
from icesize.storage.locations import split
from icesize.storage.object_store import ObjectStore, has_plain_key
from icesize.storage.store_settings import StoreSettings, store_settings
from icesize.storage.stores import Listed, OtherObjectError, Store

LOG = logging.getLogger("icesize")

_DEFAULT_IO = {"abfs": FsspecFileIO, "wasb": FsspecFileIO}
"""The FileIO that PyIceberg prefers for a scheme, if it is not PyArrow's."""
_LOCAL = re.compile(r"file:(?://(?:localhost)?(?=/)|(?!//))(/.*)", re.DOTALL | re.IGNORECASE)


STORAGE = f"{__name__}.Storage"
"""The value of `py-io-impl` by which PyIceberg makes a `Storage` of properties."""


class Storage(FileIO):
    """Opens, measures, lists and deletes the files of a table; a FileIO as well, which PyIceberg can use.

    `file:/x`, `file:///x` and `/x` go straight to the operating system (see `local_path`). Locations in S3, Google
    Cloud Storage and Azure go to an `ObjectStore` if it can do exactly what PyIceberg's FileIO would do. Every other
    location goes to `file_io`, whose properties are those of this object.

    Metadata files of object stores never change, so the newest that were read or written stay in `kept_files`.
    `without_memory` reads them again.

    A pickled copy has the properties only, no connections.
    """

    def __init__(self, source: FileIO | Mapping[str, Any], location: str | None = None) -> None:
        """Use a FileIO, or the one that PyIceberg makes of these properties for a table at `location`."""
        self._source = source
        if not isinstance(source, FileIO):
            own = source.get(PY_IO_IMPL) == STORAGE
            source = load_file_io({k: v for k, v in source.items() if not own or k != PY_IO_IMPL}, location)
        # a worker process has not registered these secrets yet
        remember_secrets(source.properties)
        super().__init__(source.properties)
        self.file_io = source
        self.kept_files = KEPT_FILES
        is_chosen = source is self._source or PY_IO_IMPL in source.properties
        self._chosen: type[FileIO] | None = type(source) if is_chosen else None
        """The class of a FileIO that the user chose; None if PyIceberg chooses one for each scheme."""
        self._local = LocalStore(self.local_path)
        self._clients: dict[tuple[str, str], ObjectStore | str] = {}
        self._others: dict[str, FileIOStore] = {}

    @classmethod
    def of(cls, io: FileIO) -> Storage:
        """Return the storage behind a FileIO: the object itself if it is one."""
        return io if isinstance(io, Storage) else cls(io)

    def without_memory(self) -> Storage:
        """Return the same storage, which reads each file again, once: to see whether the files are there."""
        again = Storage(self._source)
        again.kept_files = KeptFiles()
        return again

    def __reduce__(self) -> tuple[type[Storage], tuple[FileIO | Mapping[str, Any]]]:
        return Storage, (self._source,)

    def local_path(self, location: str) -> str | None:
        """Return the path in the local file system, for both of PyIceberg's FileIOs; None if the file is elsewhere.

        The path is the name as Iceberg's Java library writes it: `?`, `#` and `%` belong to it. PyArrowFileIO opens `a`
        if it is to open `a#b`. A subclass of FsspecFileIO may open local files in its own way.
        """
        io = self.file_io
        if not isinstance(io, PyArrowFileIO) and type(io) is not FsspecFileIO:
            return None
        if isinstance(io, PyArrowFileIO) and io.parse_location(location, io.properties)[0] != "file":
            return None
        match = _LOCAL.fullmatch(location)
        has_scheme = ":" in location.partition("/")[0]
        return match[1] if match else None if has_scheme else os.path.abspath(location)

    def store(self, location: str) -> Store:
        """Return the store of a location."""
        if self.local_path(location) is not None:
            return self._local
        client = self._client(location)
        return client if isinstance(client, ObjectStore) and has_plain_key(location) else self._other(location)

    def _client(self, location: str) -> ObjectStore | str:
        """Return the object store of a location, or the reason why PyIceberg's FileIO reaches it."""
        place = split(location)[:2]
        if place not in self._clients:
            found: StoreSettings | str = f"its FileIO is {type(self.file_io).__name__}"
            if self._chosen in (None, _DEFAULT_IO.get(place[0], PyArrowFileIO)):
                found = store_settings(location, self.properties)
            self._clients[place] = found if isinstance(found, str) else ObjectStore(found, self.kept_files)
        return self._clients[place]

    def _other(self, location: str) -> FileIOStore:
        """Return the store behind the FileIO that was chosen, or that PyIceberg chooses for the scheme."""
        scheme = split(location)[0]
        if scheme not in self._others:
            default = None if self._chosen else _DEFAULT_IO.get(scheme)
            self._others[scheme] = file_io_store(default(self.properties) if default else self.file_io)
        return self._others[scheme]

    def why_through_file_io(self, location: str) -> str | None:
        """Return the reason why PyIceberg's FileIO reaches a location; None for local files and object stores."""
        client = None if self.local_path(location) is not None else self._client(location)
        return client if isinstance(client, str) else None

    def lists_in_order(self, folder: str) -> bool:
        """Return whether `list` yields the files of a folder by their names, and requests no more than are taken."""
        return self.store(folder).lists_in_order

    def cannot_open(self, location: str) -> bool:
        """Return whether the storage rejects the name of a file."""
        return not self.store(location).can_open(location)

    def readers(self, locations: Iterable[str]) -> int:
        """Return the number of threads that read columns of these files: more if they wait for remote storage."""
        return workers() if all(self.local_path(each) is not None for each in locations) else 2 * IO_THREADS

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file `location` when closed.

        Names are unique, so nothing is overwritten.
        """
        return self.store(location).create(location)

    def open(self, location: str, size_bytes: int) -> Any:
        """Return a seekable stream on an existing file of `size_bytes`."""
        is_small = size_bytes <= self.store(location).whole_read_bytes
        return pa.BufferReader(self.fetch(location)) if is_small else self.stream(location, size_bytes)

    def fetch(self, location: str) -> bytes:
        """Return all bytes of a file, with one request."""
        return self.store(location).read(location)

    def pieces(self, location: str, size_bytes: int, piece_bytes: int) -> Iterator[bytes]:
        """Yield all bytes of a file of `size_bytes`, `piece_bytes` per request, a few requests at once.

        One byte more shows that the file is longer.
        """

        def piece(start: int) -> bytes:
            return self.range(location, start, min(piece_bytes, size_bytes + 1 - start))

        yield from concurrently(piece, range(0, size_bytes, piece_bytes), _PIECES_AT_ONCE, 1)

    def range(self, location: str, start: int, size_bytes: int) -> bytes:
        """Return a part of a file, with one request; fewer bytes if the file ends in it."""
        return self.store(location).read_range(location, start, size_bytes)

    def stream(self, location: str, size_bytes: int | None = None) -> Any:
        """Return a seekable stream that requests only the bytes that are read.

        If the size of the file is known, it is not requested.
        """
        return self.store(location).open(location, size_bytes)

    def tail(self, location: str, size_bytes: int, wanted_bytes: int) -> bytes:
        """Return the last `wanted_bytes` bytes of a file of `size_bytes`."""
        return self.range(location, size_bytes - wanted_bytes, wanted_bytes)

    def size(self, location: str) -> int:
        """Return the bytes of the file as storage reports them. Raises FileNotFoundError for a missing file."""
        known = self.kept_files.size(location)
        return self.store(location).size(location) if known is None else known

    def exists(self, location: str) -> bool:
        """Return whether the file is in storage. Raises the errors of the storage."""
        try:
            self.store(location).size(location)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def missing(self, paths: Sequence[str]) -> list[str]:
        """Return the paths that are not in storage. Raises the errors of the storage."""
        there = concurrently(self.exists, paths, requests_at_once())
        return [path for path, exists in zip(paths, there, strict=True) if not exists]

    def inspect(self, location: str) -> Listed:
        """Return size and time of a file. Raises FileNotFoundError for a missing file."""
        return self.store(location).inspect(location)

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield all files below `folder`, at any depth, in no order. Their locations begin with `folder` unchanged.

        Raises the errors of the storage, even after it yielded files.
        """
        last = ""
        try:
            for each in self.store(folder).list(folder):
                yield each
                last = each.location
        except OtherObjectError:
            # listings of object stores are sorted: what is not greater was yielded
            yield from (each for each in self._other(folder).list(folder) if each.location > last)

    def check_whole(self, location: str, written_bytes: int, end: bytes = b"") -> None:
        """Raise `RewriteFailed` unless storage holds all bytes of a new file, and it ends with `end`.

        A store that confirms uploads is not asked again: it received the length and a checksum with the bytes.
        """
        if self.store(location).confirms_uploads:
            return
        stored = self.size(location)
        if stored != written_bytes:
            raise RewriteFailed(
                f"Cannot finish {location}: storage holds {stored} bytes of {written_bytes}, try again", path=location
            )
        if end and self.tail(location, written_bytes, len(end)) != end:
            raise RewriteFailed(
                f"Cannot finish {location}: the footer read back from storage differs from the one written, try again",
                path=location,
            )

    def discard(self, locations: Iterable[str]) -> set[str]:
        """Remove files that must not stay, best effort, and return those that are gone.

        A failure is logged; the cleanup of orphan files finds the file.
        """
        gone = set[str]()
        for group in self.delete_groups(locations):
            try:
                failpoints.reach("cleanup")
                failed = self.delete_group(group)
            except Exception as error:
                failed = dict.fromkeys(group, error)
            for location, why in failed.items():
                LOG.warning("Cannot delete %s, it stays as an orphan: %s", location, why)
            gone.update(each for each in group if each not in failed)
        return gone

    def new_input(self, location: str) -> InputFile:
        """Return a file to read: that of a FileIO of another make, which may open it in its own way."""
        return _File(self, location) if self._is_pyicebergs else self.file_io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        """Return a file to write: that of a FileIO of another make, which may create it in its own way."""
        return _File(self, location) if self._is_pyicebergs else self.file_io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete a file; a missing one is gone already. Raises the errors of the storage."""
        location = location if isinstance(location, str) else location.location
        if failed := self.delete_group([location]):
            raise failed[location]

    def delete_groups(self, locations: Iterable[str]) -> Iterator[Sequence[str]]:
        """Yield files in their order, in groups that `delete_group` can delete by one request."""
        for store, files in groupby(locations, self._remover):
            while group := tuple(islice(files, store.deletes_at_once)):
                yield group

    def delete_group(self, group: Sequence[str]) -> dict[str, Exception]:
        """Delete files, and return the errors of those that may still exist."""
        return self._remover(group[0]).delete(group) if group else {}

    def _remover(self, location: str) -> Store:
        """Return the store that deletes a file: a FileIO of another make may delete it in its own way."""
        return self.store(location) if self._is_pyicebergs else self._other(location)

    @property
    def _is_pyicebergs(self) -> bool:
        return self._chosen in (None, PyArrowFileIO, FsspecFileIO)


_PIECES_AT_ONCE = 4


class _File(InputFile, OutputFile):
    """A file to read or to write, as PyIceberg opens and creates it."""

    def __init__(self, storage: Storage, location: str) -> None:
        super().__init__(location)
        self._storage = storage

    def __len__(self) -> int:
        return self._storage.size(self.location)

    def exists(self) -> bool:
        return self._storage.exists(self.location)

    def to_input_file(self) -> InputFile:
        return self

    def open(self, seekable: bool = True) -> InputStream:
        stream: InputStream = self._storage.stream(self.location)
        return stream

    def create(self, overwrite: bool = False) -> OutputStream:
        # a metadata file has a new UUID in its name, so another look at the storage would find nothing
        if not overwrite and not never_changes(self.location) and self.exists():
            raise FileExistsError(f"Cannot create {self.location}: it exists")
        stream: OutputStream = self._storage.create(self.location)
        return stream


KEPT_FILES = KeptFiles()
"""The kept files of this process."""
FOLDERS = "SPARK_LOCAL_DIRS"
"""The directories of Spark's shuffle files, separated by commas: Spark sets this variable for its Python workers."""


def local_folder() -> str:
    """Return a directory for temporary files.

    The process id selects one of Spark's directories, so that tasks on one machine share its disks.
    """
    folders = [folder for folder in os.environ.get(FOLDERS, "").split(",") if os.path.isdir(folder)]
    return folders[os.getpid() % len(folders)] if folders else tempfile.gettempdir()
