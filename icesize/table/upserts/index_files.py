"""The local directory of the maps of keys of a table, and the secret of their codes."""

from __future__ import annotations

import secrets
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from icesize.array_files import ArrayFolder
from icesize.storage.table_storage import local_folder

_FOLDER = "icesize-keys"
_SECRET_BYTES = 32


@dataclass(frozen=True)
class MapSettings:
    """The directory of maps, and its limits.

    Attributes:
        directory: A local directory; None for one of `SPARK_LOCAL_DIRS`, or that of temporary files.
        most_bytes: The most bytes for one table; None for a quarter of the free disk.
    """

    directory: str | None = None
    most_bytes: int | None = None


def index_folder(settings: MapSettings, table_uuid: str) -> IndexFolder:
    """Return the maps of a table in this directory, one object for all callers of this process."""
    return _shared(settings.directory or local_folder(), table_uuid, settings.most_bytes)


@lru_cache(maxsize=64)
def _shared(directory: str, table_uuid: str, most_bytes: int | None) -> IndexFolder:
    return IndexFolder(Path(directory) / f"{_FOLDER}-{table_uuid}", most_bytes)


class IndexFolder(ArrayFolder):
    """The maps of one table."""

    def __init__(self, path: Path, most_bytes: int | None) -> None:
        super().__init__(path, "maps of keys", most_bytes)
        self._secret = secrets.token_bytes(_SECRET_BYTES)

    def begin_batch(self) -> bytes:
        """Begin a batch, and return the secret of its codes: that of the directory, so that the next process has it."""
        self.begin()
        if self._folder.is_usable():
            place, content = self._folder.path / "secret", b""
            with suppress(OSError):
                content = place.read_bytes()
            if len(content) == _SECRET_BYTES:
                self._secret = content
            else:
                self._folder.write(place.name, lambda out: out.write(self._secret))
        return self._secret
