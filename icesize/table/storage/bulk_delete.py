"""Deletes many files, a few requests at a time: counts failures and continues; loads the table again in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
"""Files deleted between two loads of the table, if a request deletes one file (see `Deletion.run`).

Iceberg's bulk deletes use the same number, the most files of one request to an object store.
"""
THROTTLED_SECONDS = 300.0
"""The time without any success for which rejected deletes are repeated. Object stores add capacity within minutes."""

Group = Sequence[str]
"""Files that one request deletes."""
FileErrors = dict[str, Exception]
"""Errors by file; a missing file is gone and has none."""


@dataclass(frozen=True)
class Deleter:
    """Deletes files of a storage: `delete` those of a group, and `groups` divides files into groups, in their order."""

    delete: Callable[[Group], FileErrors]
    groups: Callable[[Iterable[str]], Iterator[Group]] = lambda files: ([file] for file in files)


def deleter(io: FileIO) -> Deleter:
    """Return what deletes files of the table's storage.

    It refuses names by which PyIceberg would delete another file (see `is_addressable`).
    """
    storage = Storage.of(io)

    def delete(group: Group) -> FileErrors:
        cannot = "the storage client would read its name as the name of other files"
        odd: FileErrors = {
            file: TableError(f"Cannot delete {file!r}: {cannot}") for file in group if not is_addressable(file)
        }
        return odd | storage.delete_group([file for file in group if file not in odd])

    return Deleter(delete, storage.delete_groups)


def delete_all(files: Iterable[str], io: FileIO, environment: Environment) -> FileErrors:
    """Delete files of the table's storage, one request after the other; return the errors of all of them."""
    groups = deleted(files, deleter(io), environment, 1)
    return {file: error for _, errors in groups for file, error in errors.items()}


def deleted(
    files: Iterable[str], deleter: Deleter, environment: Environment, max_concurrent: int = IO_THREADS
) -> Iterator[tuple[Group, FileErrors]]:
    """Delete files, and yield each group with the errors of those files in it that could not be deleted.

    A file that is already gone counts as deleted.

    `files` is consumed during the deletion, so memory holds only a few of them. An error of `files`, or Ctrl-C, stops
    the deletion after the running requests, and is raised. A delete that the storage rejects because there are too many
    requests is repeated, after a pause. If the storage has rejected all of them for `THROTTLED_SECONDS`, each of the
    others is tried once.
    """
    # threads share the time of the last success
    succeeded_s = environment.monotonic()

    def attempt(group: Group) -> tuple[Group, FileErrors]:
        nonlocal succeeded_s
        waiting, errors = group, FileErrors()

        def once() -> None:
            nonlocal waiting
            failed = deleter.delete(waiting)
            waiting = [file for file, error in failed.items() if is_throttled(error)]
            errors.update((file, error) for file, error in failed.items() if not is_throttled(error))
            if waiting:
                raise failed[waiting[0]]

        left = max(0.0, succeeded_s + THROTTLED_SECONDS - environment.monotonic())
        try:
            asking_again(environment, left, passes=is_throttled)(once)
        except Exception as error:  # each storage library raises its own errors
            errors.update(dict.fromkeys(waiting, error))
        if len(errors) < len(group):
            succeeded_s = environment.monotonic()
        return group, errors

    return concurrently(attempt, deleter.groups(files), max_concurrent)


def failure_note(failures: Mapping[str, str]) -> str:
    """Return a sentence about files that could not be deleted."""
    return f"cannot delete {format_count(len(failures), 'file')}, the first is {next(iter(failures.values()))}"


LookAgain = Callable[[], Deleter | None]
"""Loads the table again. Returns what removes files; None stops the deletion."""


@dataclass
class Deletion:
    """A running deletion: the files that were `tried`, and the `failures` of some of them as sentences.

    `why_stays` returns a text for files that stay. `progress` receives the number of tried files and the `total`
    without `spared` files, which stay.
    """

    look: LookAgain
    why_stays: Callable[[str], str]
    total: int
    progress: Callable[[int, int], object]
    max_concurrent: int
    environment: Environment
    tried: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)
    spared: int = 0

    def run(self, files: Iterable[str]) -> bool:
        """Delete files that nothing needs; return False if `look` stopped it. Raises the errors of `look`.

        If a request deletes many files, `max_concurrent` times as many are deleted between two looks, as fast.
        """
        waiting, most = iter(files), FILES_BETWEEN_CHECKS
        while batch := list(islice(waiting, most)):
            failpoints.reach("before-delete")
            if (remover := self.look()) is None:
                return False
            doomed = [location for location in batch if not self.why_stays(location)]
            self.spared += len(batch) - len(doomed)
            for group, errors in deleted(doomed, remover, self.environment, self.max_concurrent):
                self.tried += group
                self.failures |= {file: f"{file}: {brief(error)}" for file, error in errors.items()}
                self.progress(len(self.tried), self.total - self.spared)
                if len(group) > 1:
                    most = FILES_BETWEEN_CHECKS * self.max_concurrent
        return True
