"""Whole data files again under new names, byte for byte: a data file knows neither its name nor its table."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize import failpoints
from icesize.errors import RewriteFailed, TableError
from icesize.parquet.files.storage import Storage
from icesize.parquet.rewriting.threads import THREADS
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.locations import split
from icesize.table.manifests.entries import Entry
from icesize.table.storage.listing import arrow_filesystem, fsspec_filesystem

LOG = logging.getLogger("icesize")

PIECE_BYTES = 8 * 2**20
COPIED_AT_ONCE = 8
"""Files copied at a time, each holding one piece at most: inside of an object store each is one long request."""


@dataclass(frozen=True, slots=True)
class Copy:
    """A data file as a manifest describes it, and where its copy goes."""

    entry: Entry
    new_path: str


def copy_files(io: FileIO, storage: Storage, copies: Sequence[Copy]) -> None:
    """Make all copies, each checked against what its manifest says; `storage` knows of them from before they exist.

    It runs in threads of this process: an object store copies by itself, and elsewhere the bytes go through here piece
    by piece. Raises TableError for a file that is gone, RewriteFailed for a copy of another size or number of rows, and
    whatever storage raises.
    """
    storage.note(copy.new_path for copy in copies)
    with ThreadPoolExecutor(COPIED_AT_ONCE, thread_name_prefix=THREADS) as pool:
        # the first that fails cancels those that have not begun
        for _ in pool.map(lambda copy: _copy(io, storage, copy), copies):
            pass
    failpoints.reach("files-written")


def _copy(io: FileIO, storage: Storage, copy: Copy) -> None:
    failpoints.reach("writing")
    try:
        _write(io, storage, copy)
    except BaseException:
        # an interrupt may have left this thread behind, and whoever gave up has looked for the file already
        storage.delete(copy.new_path)
        raise


def _write(io: FileIO, storage: Storage, copy: Copy) -> None:
    entry, path = copy.entry, copy.new_path
    try:
        if not _copied_by_store(io, entry.path, path):
            with storage.create(path) as stream:
                for piece in storage.pieces(entry.path, PIECE_BYTES):
                    stream.write(piece)
    except FileNotFoundError as error:
        raise TableError(f"Cannot copy a file: {entry.path} is gone", path=entry.path) from error
    storage.check_whole(path, entry.size_bytes)
    if entry.file_format == "PARQUET" and not entry.encrypted:
        with io.new_input(path).open() as stream:
            rows = pq.read_metadata(stream).num_rows
        if rows != entry.rows:
            raise RewriteFailed(
                f"Cannot copy {entry.path}: it has {rows} rows, its manifest says {entry.rows}, check the table's "
                "metadata",
                path=entry.path,
            )


def _copied_by_store(io: FileIO, path: str, new_path: str) -> bool:
    """Whether an object store that holds both has made the copy; False where there is none, or it cannot.

    What hinders it (size, a missing right, no such request) does not matter: reading and writing is tried next.
    """
    (scheme, bucket, _), (new_scheme, new_bucket, _) = split(path), split(new_path)
    if scheme == "file" or (scheme, bucket) != (new_scheme, new_bucket):
        return False
    try:
        if isinstance(io, PyArrowFileIO):
            filesystem, source = arrow_filesystem(io, path)
            filesystem.copy_file(source, arrow_filesystem(io, new_path)[1])
            return True
        if isinstance(io, FsspecFileIO):
            fsspec_filesystem(io, path).cp_file(path, new_path)
            return True
    except Exception as error:  # of whatever the storage is reached by
        LOG.info("%s does not copy %s by itself (%s); it is read and written", scheme, path, brief(error))
    return False
