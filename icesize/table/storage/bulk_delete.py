"""Deletes many files at once: a few at a time, each failure counted, the others going on."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO

from icesize.concurrency import concurrently
from icesize.environment import MAX_CONCURRENT_DELETES
from icesize.errors import TableError
from icesize.table.catalog.access_errors import brief
from icesize.table.catalog.locations import is_addressable
from icesize.table.storage.listing import fsspec_filesystem, local_path

FILES_BETWEEN_CHECKS = 1_000
"""Files deleted between two looks at the table, as in Iceberg's bulk deletes, which is what one request of an object
store could take."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """How many files are gone, and which could not be deleted, with the first of those failures as a sentence."""

    count: int = 0
    failed: tuple[str, ...] = ()
    first_failure: str = ""


def deleter(io: FileIO) -> Callable[[str], None]:
    """A function that deletes one file of the table's storage and raises when it cannot.

    It refuses names by which PyIceberg would delete another file (see `is_addressable`) with TableError. Partition
    values with `*` are part of a name as Java writes it, and fsspec deletes all that match one: there it is told to
    delete exactly this file. In S3 PyArrow leaves an empty object for the folder of what it deleted; listings pass such
    objects over.
    """

    def delete(location: str) -> None:
        if not is_addressable(location):
            raise TableError(f"Cannot delete {location!r}: its name would be taken for that of other files")
        path = local_path(io, location)
        if path is not None:
            os.remove(path)
        elif isinstance(io, FsspecFileIO) and any(wildcard in location for wildcard in "*["):
            fsspec_filesystem(io, location).rm_file(location)
        else:
            io.delete(location)

    return delete


def delete_all(
    locations: Iterable[str],
    delete: Callable[[str], None],
    max_concurrent: int = MAX_CONCURRENT_DELETES,
    progress: Callable[[int], object] = lambda tried: None,
) -> Deleted:
    """Delete files; one that is gone already counts as deleted.

    `progress` gets how many were tried so far. `locations` is consumed as deleting goes on: only a few are held. What
    it raises, and Ctrl-C, stop it after the requests that are under way, and are raised.
    """
    done = 0
    failures: dict[str, str] = {}
    attempts = concurrently(lambda location: (location, _try(delete, location)), locations, max_concurrent)
    for done, (location, failure) in enumerate(attempts, 1):
        if failure:
            failures[location] = failure
        progress(done)
    return Deleted(done - len(failures), tuple(failures), next(iter(failures.values()), ""))


def _try(delete: Callable[[str], None], location: str) -> str | None:
    """None when the file is gone, otherwise why it is not."""
    try:
        delete(location)
    except Exception as error:  # of whatever the storage is reached by
        if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) != errno.ENOENT:
            return f"{location}: {brief(error)}"
    return None
