"""A directory on the local disk for files that only save time, and that no other user may open."""

from __future__ import annotations

import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

LOG = logging.getLogger("icesize")

PART = "-part"
"""End of the name of a file that is being written, and of one that a crash left unfinished."""


class PrivateFolder:
    """A directory that only this user may open. Threads and processes may share it.

    Errors of the disk are logged, never raised.

    Args:
        path: The directory. It is made on first use, with its parents.
        what: What it has, for a warning.
    """

    def __init__(self, path: Path, what: str) -> None:
        self.path = path
        self._what = what
        self._has_warned = False

    def is_usable(self) -> bool:
        """Make the directory; return True if no other user may open it."""
        try:
            self.path.mkdir(0o700, parents=True, exist_ok=True)
            status = self.path.lstat()
        except OSError as error:
            self.warn(str(error))
            return False
        is_ours = not hasattr(os, "geteuid") or (status.st_uid == os.geteuid() and not status.st_mode & 0o077)
        is_private = is_ours and stat.S_ISDIR(status.st_mode)
        if not is_private:
            self.warn("other users may open it")
        return is_private

    def write(self, name: str, write: Callable[[BinaryIO], object]) -> bool:
        """Write a file under a name of its own, and rename it when it is complete; return whether that worked."""
        part = self.path / f"{name}-{uuid.uuid4().hex}{PART}"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0)
        try:
            with open(os.open(part, flags, 0o600), "wb") as out:
                write(out)
            os.replace(part, self.path / name)
        except OSError as error:
            self.warn(str(error))
            return False
        finally:
            remove_file(part)
        return True

    def files(self, *endings: str) -> Iterator[tuple[int, int, Path]]:
        """Yield time of last use, length and path of each file with one of these endings; others do not count."""
        with os.scandir(self.path) as entries:
            for entry in entries:
                if entry.name.endswith(endings):
                    with suppress(FileNotFoundError):
                        status = entry.stat(follow_symlinks=False)
                        yield max(status.st_atime_ns, status.st_mtime_ns), status.st_size, Path(entry.path)

    def warn(self, why: str) -> None:
        """Log a warning once."""
        if not self._has_warned:
            LOG.warning("Cannot keep %s in %s: %s", self._what, self.path, why)
        self._has_warned = True


def remove_file(path: Path) -> None:
    """Remove a file if it is there."""
    with suppress(OSError):
        path.unlink()
