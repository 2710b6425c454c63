"""S3, Google Cloud Storage and Azure through `obstore`: many requests at once, and one request for a small object."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import obstore
import pyarrow as pa
from obstore import store

from icesize.concurrency import concurrently, requests_at_once
from icesize.storage.credentials import NAMES, Credentials
from icesize.storage.kept_files import KeptFiles, never_changes
from icesize.storage.locations import split
from icesize.storage.store_errors import PastEndError, store_errors
from icesize.storage.store_settings import StoreSettings
from icesize.storage.stores import WHOLE_READ_BYTES, Listed, StoreSettingsError

PART_BYTES = 8 * 2**20
"""Bytes of an object from which on it is written in such parts; one request writes a smaller one."""
NAMES_AT_ONCE = 1_000
"""Objects that one request lists or deletes: S3's limit."""
_DELETES_AT_ONCE = {"s3": NAMES_AT_ONCE, "gs": 1}
"""Objects that one request deletes; Azure deletes 256."""

# The client reads `/a` as `a` and `a/b/` as `a/b`, and rejects the others.
_OTHER_OBJECT = re.compile(r"(?:^|/)(?:\.{0,2})(?:/|$)|[\x00-\x1f\x7f]")
# Errors of a request that the client has repeated, or that the store rejects because of its load.
_NOT_NOW = re.compile(r"status code (?:429|5\d\d)|after \d+ retries")


def has_plain_key(location: str) -> bool:
    """Return whether the client names exactly this object by its key.

    Keys that are empty, have empty segments, `.`, `..` or control characters, or begin or end with `/`, are others.
    """
    return _OTHER_OBJECT.search(_key(location)) is None


def _key(location: str) -> str:
    return split(location)[2].removeprefix("/")


class ObjectStore:
    """The `Store` of one bucket or container. Each location must pass `has_plain_key`.

    The client's threads do not survive a fork: after the first request, a forked process must not use it.
    """

    confirms_uploads = True
    lists_in_order = True
    whole_read_bytes = WHOLE_READ_BYTES

    def __init__(self, settings: StoreSettings, kept_files: KeptFiles) -> None:
        self._settings, self._kept_files = settings, kept_files
        self.deletes_at_once = _DELETES_AT_ONCE.get(settings.kind, 256)
        self._is_proved = False

    @property
    def _client(self) -> Any:
        return client(self._settings, os.getpid())

    def read(self, location: str) -> bytes:
        """Return all bytes of an object, by one request."""
        with store_errors("GetObject", location):
            return bytes(obstore.get(self._client, _key(location)).bytes())

    def read_range(self, location: str, start: int, size_bytes: int) -> bytes:
        """Return the bytes of a range, by one request; fewer if the object ends in it."""
        if size_bytes <= 0:
            return b""
        with suppress(PastEndError), store_errors("GetObject", location):
            return bytes(obstore.get_range(self._client, _key(location), start=start, length=size_bytes))
        return b""

    def open(self, location: str, size_bytes: int | None = None) -> Any:
        """Return a `RangedStream`, or a stream on the kept bytes of a file that never changes."""
        if never_changes(location):
            return pa.BufferReader(self._kept_files.get(location, self.read))
        return RangedStream(self, location, size_bytes)

    def can_open(self, location: str) -> bool:
        """Return True: each location passes `has_plain_key`."""
        return True

    def begin(self, location: str) -> tuple[bytes, int]:
        """Return the first `PART_BYTES` of an object, and its size."""
        with suppress(PastEndError), store_errors("GetObject", location):
            answer = obstore.get(self._client, _key(location), options={"range": (0, PART_BYTES)})
            return bytes(answer.bytes()), int(answer.meta["size"])
        return b"", 0  # an empty object has no ranges

    def create(self, location: str) -> Any:
        """Return an `Upload`."""
        return Upload(self, location, self._kept_files if never_changes(location) else None)

    def writer(self, location: str) -> Any:
        """Return the client's stream, which writes an object of `PART_BYTES` or more in parts, several at once."""
        return obstore.open_writer(self._client, _key(location), buffer_size=PART_BYTES)

    def size(self, location: str) -> int:
        """Return the bytes of an object."""
        return self.inspect(location).size_bytes

    def inspect(self, location: str) -> Listed:
        """Return size and time of an object."""
        try:
            with store_errors("HeadObject", location):
                found = _listed(location, obstore.head(self._client, _key(location)))
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError) and self._is_proved
            if not is_missing and "retries" not in str(error):
                self._explain(location)
            raise
        self._is_proved = True
        return found

    def _explain(self, location: str) -> None:
        """Raise the reason of a failure whose answer has no body: a missing bucket looks like a missing file."""
        try:
            self.read_range(location, 0, 1)
        except FileNotFoundError:
            self._is_proved = True
            raise

    def copy(self, location: str, new_location: str) -> None:
        """Copy an object inside of the bucket."""
        with store_errors("CopyObject", location):
            obstore.copy(self._client, _key(location), _key(new_location))

    def delete(self, locations: Sequence[str]) -> dict[str, Exception]:
        """Delete objects by one request, or one by one if some fail: the client does not say which ones.

        If the store does not answer, rejects requests for now, or rejects the client's settings, all have this error,
        and no more requests are sent.
        """
        try:
            with store_errors("DeleteObject", locations[0]):
                obstore.delete(self._client, [_key(location) for location in locations])
            return {}
        except OSError as error:
            if len(locations) == 1 or isinstance(error, StoreSettingsError) or _NOT_NOW.search(str(error)):
                return {} if isinstance(error, FileNotFoundError) else dict.fromkeys(locations, error)
        each = concurrently(lambda location: self.delete([location]), locations, requests_at_once())
        return {location: error for failed in each for location, error in failed.items()}

    def list(self, folder: str) -> Iterator[Listed]:
        """Yield the objects below a folder, by one request for each 1,000.

        The client names the empty objects that stand for folders without their final `/`, so each empty object is
        looked up. Objects are sorted by their keys.
        """
        with store_errors("ListObjectsV2", folder):
            prefix = _key(folder).rstrip("/")
            page: Any = None
            for page in obstore.list(self._client, prefix, chunk_size=NAMES_AT_ONCE):
                found = [_listed(folder.rstrip("/") + meta["path"][len(prefix) :], meta) for meta in page]
                empty = [each.location for each in found if not each.size_bytes]
                markers = set(empty) - set(concurrently(self._existing, empty, requests_at_once())) if empty else set()
                yield from (each for each in found if each.location not in markers)
            if page is None:
                raise FileNotFoundError(folder)

    def _existing(self, location: str) -> str:
        try:
            return self.inspect(location).location
        except FileNotFoundError:
            return ""


@lru_cache(maxsize=64)
def client(settings: StoreSettings, process_id: int) -> Any:
    """Return the client of a bucket; its connections are shared by all tables.

    Raises OSError in a process that was forked after the first request of its parent: its requests would hang.
    """
    global _first_process_id
    _first_process_id = _first_process_id or process_id
    if process_id != _first_process_id:
        raise OSError(
            "this process was forked from one that had used the object store; start processes with 'spawn', or use "
            "icesize only after the fork"
        )
    config: dict[str, Any] = dict(settings.config)
    if config.keys() & NAMES.keys():
        # the client would add variables of the environment to these credentials, or prefer them
        own = {"credential_provider": Credentials(settings), "skip_signature": False}
        config = own | {key: value for key, value in config.items() if key not in NAMES}
    kinds: dict[str, Any] = {"s3": store.S3Store, "gs": store.GCSStore}
    kind = kinds.get(settings.kind, store.AzureStore)
    return kind(settings.container, **config, client_options=dict(settings.client))


_first_process_id: int | None = None


def _listed(location: str, meta: Any) -> Listed:
    return Listed(location, int(meta["size"]), int(meta["last_modified"].timestamp() * 1000))


class Upload(io.RawIOBase):
    """A new object: one request at the end if it is smaller than `PART_BYTES`, parts as it grows otherwise.

    An upload that is not closed leaves no object. Errors of the store are raised by `write` and `close`. With `keep`,
    its bytes are put there as well.
    """

    def __init__(self, store: ObjectStore, location: str, keep: KeptFiles | None = None) -> None:
        super().__init__()
        self._location, self._writer = location, store.writer(location)
        self._kept = bytearray()
        self._written = 0
        self._keep = keep

    def __del__(self) -> None:
        """Do nothing: the base class would close the stream, and so store a truncated object."""

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._written

    def write(self, data: Any) -> int:
        """Take bytes; requests begin once there are `PART_BYTES`."""
        view = memoryview(data).cast("B")
        try:
            with store_errors("PutObject", self._location):
                self._writer.write(bytes(view))
        except BaseException:
            self.abandon()
            raise
        if self._keep is not None:
            self._kept += view
        self._written += len(view)
        return len(view)

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            self.abandon()
        self.close()

    def close(self) -> None:
        """Store the object."""
        if self.closed:
            return
        try:
            with store_errors("PutObject", self._location):
                self._writer.close()
            if self._keep is not None:
                self._keep.put(self._location, bytes(self._kept))
        finally:
            super().close()

    def abandon(self) -> None:
        """Close the stream without an object. If parts cannot be removed, they stay as an unfinished upload."""
        super().close()
        with suppress(Exception):
            self._writer.__exit__(OSError, None, None)  # aborts the upload


class RangedStream(io.RawIOBase):
    """An object as a seekable stream. Each read is a request, unless the first `PART_BYTES` have the bytes.

    They are requested with the size, unless that is given and larger.
    """

    def __init__(self, store: ObjectStore, location: str, size_bytes: int | None = None) -> None:
        super().__init__()
        self._store, self._location = store, location
        if size_bytes is not None and size_bytes > PART_BYTES:
            self._first, self._size = b"", size_bytes
        else:
            self._first, self._size = store.begin(location)
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes."""
        left = max(0, self._size - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        start, end = self._at, self._at + wanted
        data = (
            self._first[start:end] if end <= len(self._first) else self._store.read_range(self._location, start, wanted)
        )
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
