"""The newest metadata files that this process has read from object stores, or written there."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable

KEPT_BYTES = 64 * 2**20
"""Bytes of all kept files: a commit on a table of 10,000 snapshots needs some 10 MB of them."""
_UNIQUE_NAME = re.compile(
    r"[\da-f]{8}(?:-[\da-f]{4}){3}-[\da-f]{12}[^/]*\.(?:avro|metadata\.json)(?:\.gz)?$", re.IGNORECASE
)


def never_changes(location: str) -> bool:
    """Return whether a location is that of a manifest, manifest list or metadata file with a UUID in its name.

    No two files have the same such name.
    """
    return _UNIQUE_NAME.search(location) is not None


class KeptFiles:
    """Files by location, the least recently used first, up to `KEPT_BYTES`.

    A commit needs the files that its plan has read: the table's metadata, its manifest list, and the manifests that
    change. The next commit needs those that this one wrote.
    """

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()

    def get(self, location: str, read: Callable[[str], bytes]) -> bytes:
        """Return the bytes of a file, which is read if it is not kept. Raises the errors of `read`."""
        with self._lock:
            data = self._files.get(location)
        data = read(location) if data is None else data
        self.put(location, data)
        return data

    def size(self, location: str) -> int | None:
        """Return the bytes of a kept file; None if it is not kept."""
        with self._lock:
            data = self._files.get(location)
        return None if data is None else len(data)

    def put(self, location: str, data: bytes) -> None:
        """Keep a file as the most recently used one."""
        with self._lock:
            self._held_bytes -= len(self._files.pop(location, b""))
            self._files[location] = data
            self._held_bytes += len(data)
            while self._held_bytes > KEPT_BYTES:
                self._held_bytes -= len(self._files.pop(next(iter(self._files))))
