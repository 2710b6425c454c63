"""Deletes many files, a few at a time: counts each failure and continues; loads the table again between groups."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from pyiceberg.io import FileIO

from icesize import failpoints
from icesize.concurrency import IO_THREADS, concurrently
from icesize.environment import Environment
from icesize.errors import TableError
from icesize.storage.locations import is_addressable
from icesize.storage.table_storage import Storage
from icesize.table.catalog.access_errors import asking_again, brief, is_throttled
from icesize.units import format_count

FILES_BETWEEN_CHECKS = 1_000
"""Files deleted between two loads of the table.

Iceberg's bulk deletes use the same number, the most files of one request to an object store.
"""
THROTTLED_SECONDS = 300.0
"""The time without any success for which rejected deletes are repeated. Object stores add capacity within minutes."""


def deleter(io: FileIO) -> Callable[[str], None]:
    """Return a function that deletes one file of the table's storage, and raises if it cannot.

    The function raises TableError for names by which PyIceberg would delete another file (see `is_addressable`).
    """
    storage = Storage.of(io)

    def delete(location: str) -> None:
        if not is_addressable(location):
            raise TableError(
                f"Cannot delete {location!r}: the storage client would read its name as the name of other files"
            )
        storage.delete(location)

    return delete


def delete_all(
    locations: Iterable[str],
    delete: Callable[[str], None],
    environment: Environment,
    max_concurrent: int = IO_THREADS,
    progress: Callable[[int], object] = lambda tried: None,
) -> dict[str, str]:
    """Delete files, and return those that could not be deleted, each with a sentence.

    A file that is already gone counts as deleted.

    `progress` is called with the number of files tried so far. `locations` is consumed during the deletion, so memory
    holds only a few of them. An error of `locations`, or Ctrl-C, stops the deletion after the running requests, and is
    raised. A delete that the storage rejects because there are too many requests is repeated, after a pause. If the
    storage has rejected all of them for `THROTTLED_SECONDS`, each of the others is tried once.
    """
    failures: dict[str, str] = {}
    # threads share the time of the last success
    succeeded_s = environment.monotonic()

    def attempt(location: str) -> tuple[str, str | None]:
        nonlocal succeeded_s
        left = max(0.0, succeeded_s + THROTTLED_SECONDS - environment.monotonic())
        try:
            asking_again(environment, left, passes=is_throttled)(delete, location)
        except Exception as error:  # each storage library raises its own errors
            if not isinstance(error, FileNotFoundError) and getattr(error, "errno", None) != errno.ENOENT:
                return location, f"{location}: {brief(error)}"
        succeeded_s = environment.monotonic()
        return location, None

    for done, (location, failure) in enumerate(concurrently(attempt, locations, max_concurrent), 1):
        if failure:
            failures[location] = failure
        progress(done)
    return failures


def failure_note(failures: Mapping[str, str]) -> str:
    """Return a sentence about files that could not be deleted."""
    return f"cannot delete {format_count(len(failures), 'file')}, the first is {next(iter(failures.values()))}"


LookAgain = Callable[[], Callable[[str], None] | None]
"""Loads the table again. Returns a function that removes one file; None stops the deletion."""


@dataclass
class Deletion:
    """A running deletion: the files that were `tried`, those of them that are `gone`, and the `failures` as sentences.

    `why_stays` returns a text for files that stay. `progress` receives the number of tried files and the `total`
    without `spared` files, which stay.
    """

    look: LookAgain
    why_stays: Callable[[str], str]
    total: int
    progress: Callable[[int, int], object]
    max_concurrent: int
    files_between_checks: int
    environment: Environment
    tried: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    spared: int = 0

    def run(self, files: Iterable[str]) -> bool:
        """Delete files that nothing needs; return False if `look` stopped it. Raises the errors of `look`."""
        waiting = iter(files)
        while batch := list(islice(waiting, self.files_between_checks)):
            failpoints.reach("before-delete")
            if (remove := self.look()) is None:
                return False
            doomed = [location for location in batch if not self.why_stays(location)]
            self.spared += len(batch) - len(doomed)
            progress = partial(self._progress, len(self.tried))
            delete = partial(self._delete, remove)
            self.failures |= delete_all(doomed, delete, self.environment, self.max_concurrent, progress)
            self.tried += doomed
        return True

    def _delete(self, remove: Callable[[str], None], location: str) -> None:
        remove(location)
        self.gone.append(location)

    def _progress(self, before: int, more: int) -> None:
        self.progress(before + more, self.total - self.spared)
