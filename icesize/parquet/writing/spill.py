"""Rows that wait on local disk for the rest of their partition."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import IO, Generic, TypeVar

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.storage.table_storage import FOLDERS, local_folder

SpillKey = TypeVar("SpillKey", bound=Hashable)

PIECE_BYTES = 8 * 2**20
"""Arrow memory of the rows that are read back at once."""


@dataclass(slots=True)
class SpilledRows:
    """The waiting rows of one key: their number, their Arrow bytes, and field ids of columns that hold NaN."""

    rows: int = 0
    arrow_bytes: int = 0
    nan: frozenset[int] = frozenset()
    pieces: list[tuple[int, int]] = field(default_factory=list)


class Spill(Generic[SpillKey]):
    """Keeps rows in a temporary file, each under a key such as its partition, and returns them one key at a time.

    The file is created on first use, in one of the directories of `SPARK_LOCAL_DIRS`, otherwise in Python's directory
    for temporary files. It has no name, so that nothing stays when the process is killed. On a system without nameless
    files, it loses its name when it is closed.

    The file holds record batches as Arrow IPC messages, uncompressed; only this object has their offsets. Its space
    is reused when nothing waits. All methods raise `RewriteFailed` if the disk fails or is full.
    """

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._file: IO[bytes] | None = None
        self._folder = ""
        self._end = 0
        self._held: dict[SpillKey, SpilledRows] = {}

    def __bool__(self) -> bool:
        return bool(self._held)

    def __iter__(self) -> Iterator[SpillKey]:
        """Yield keys with waiting rows, in order of their first rows."""
        return iter(list(self._held))

    def held(self, key: SpillKey) -> SpilledRows:
        """Return the facts about the waiting rows of a key."""
        return self._held.get(key, SpilledRows())

    def put(self, key: SpillKey, tables: Iterable[pa.Table], nan: frozenset[int]) -> None:
        """Store rows; `nan` are field ids of the float columns in which they hold NaN."""
        for table in tables:
            step = max(1, table.num_rows * PIECE_BYTES // max(1, table.nbytes))
            for start in range(0, table.num_rows, step):
                self._put(key, table.slice(start, step), nan)

    def _put(self, key: SpillKey, rows: pa.Table, nan: frozenset[int]) -> None:
        (batch,) = rows.combine_chunks().to_batches()
        message = batch.serialize()
        with self._disk():
            file = self._open()
            file.seek(self._end)
            file.write(message)
        held = self._held.setdefault(key, SpilledRows())
        held.rows += rows.num_rows
        held.arrow_bytes += rows.nbytes
        held.nan |= nan
        held.pieces.append((self._end, message.size))
        self._end += message.size

    def read(self, key: SpillKey) -> Iterator[pa.Table]:
        """Return the rows of a key in their order, and keep them."""
        return self._read(self.held(key))

    def take(self, key: SpillKey) -> Iterator[pa.Table]:
        """Yield the rows of a key in their order, and remove them."""
        held = self._held.pop(key, SpilledRows())
        yield from self._read(held)
        if not self._held:
            self._end = 0

    def _read(self, held: SpilledRows) -> Iterator[pa.Table]:
        for start, size in held.pieces:
            with self._disk():
                file = self._open()
                file.seek(start)
                message = file.read(size)
                if len(message) < size:
                    raise OSError(f"{len(message)} of {size} bytes are there")
            yield pa.Table.from_batches([pa.ipc.read_record_batch(pa.py_buffer(message), self._schema)])

    def close(self) -> None:
        """Remove the file and all waiting rows."""
        self._held, self._end = {}, 0
        file, self._file = self._file, None
        if file is not None:
            with contextlib.suppress(OSError):  # unwritten rows are not needed any more
                file.close()

    def _open(self) -> IO[bytes]:
        if self._file is None:
            self._folder = local_folder()
            self._file = tempfile.TemporaryFile(prefix="icesize-", dir=self._folder)  # noqa: SIM115  (see `close`)
        return self._file

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise RewriteFailed(
                f"Cannot spill rows to '{self._folder}': {error}. Free space there, or set another directory in "
                f"{FOLDERS}",
                path=None,
            ) from error
