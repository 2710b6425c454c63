"""The verbs by which icesize reaches a store: a local disk, an object store, or another one behind a FileIO."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

WHOLE_READ_BYTES = 32 * 2**20
"""Remote files up to this size are fetched by one request instead of one per column chunk."""


class OtherObjectError(OSError):
    """A store's client met an object whose key it cannot express, such as one with `//`."""


class StoreSettingsError(OSError):
    """A store rejected the bucket, the region or the credentials that its client uses. Another try would not help."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A file in storage: location, bytes, and milliseconds since 1970 of its last change.

    The location has the table's own spelling. The time is from the clock of the storage.
    """

    location: str
    size_bytes: int
    modified_ms: int


class Store(Protocol):
    """Reads, writes, lists and deletes files by their locations.

    Its errors are `OSError`s: FileNotFoundError for a missing file, PermissionError for a request that the store
    denied, StoreSettingsError for a wrong bucket, region or credential. A FileIO that is not PyIceberg's may also raise
    others.
    """

    confirms_uploads: bool
    """True if a file that was closed without an error is known to be whole in the store."""
    deletes_at_once: int
    """Most files that one request deletes."""
    lists_in_order: bool
    """True if `list` yields files by their names, and requests no more than are taken."""
    whole_read_bytes: int
    """Files up to this size are read at once."""

    def read(self, location: str) -> bytes:
        """Return all bytes of a file."""

    def read_range(self, location: str, start: int, size_bytes: int) -> bytes:
        """Return the bytes of a range; fewer if the file ends in it."""

    def can_open(self, location: str) -> bool:
        """Return False for a name that the store rejects."""

    def open(self, location: str, size_bytes: int | None = None) -> Any:
        """Return a seekable stream that pyarrow accepts; with the size of the file, if it is known."""

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file when closed. An existing file is replaced."""

    def size(self, location: str) -> int:
        """Return the bytes of a file."""

    def inspect(self, location: str) -> Listed:
        """Return size and time of a file."""

    def copy(self, location: str, new_location: str) -> None:
        """Copy a file inside of the store."""

    def delete(self, locations: Sequence[str]) -> dict[str, Exception]:
        """Delete at most `deletes_at_once` files, and return the errors of those that may still exist."""

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield everything below a folder, at any depth.

        Raises OtherObjectError if the store holds an object that this client cannot name.
        """


def delete_each(remove: Callable[[str], object], locations: Sequence[str]) -> dict[str, Exception]:
    """Call `remove` with each location, and return the errors of files that may still exist: missing ones are gone."""
    failures = dict[str, Exception]()
    for location in locations:
        try:
            remove(location)
        except FileNotFoundError:
            continue
        except Exception as error:  # each storage library raises its own errors
            failures[location] = error
    return failures


def abandon(stream: Any) -> None:
    """Close a stream that `Store.create` returned. An object store then holds nothing, other storage a part of a file.

    Raises the errors of the storage.
    """
    getattr(stream, "abandon", stream.close)()
