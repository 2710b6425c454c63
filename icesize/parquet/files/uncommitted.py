"""The owner of a run's files that no snapshot lists yet: when the run is over, those that are not in the table go."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from icesize.environment import Environment, PendingCommit
from icesize.errors import RewriteFailed
from icesize.events import CommitStarted
from icesize.parquet.files.storage import Storage


class Uncommitted:
    """Creates files of one run, whose names begin with `prefix`, and removes those that are given up.

    Every file is known here from before it exists until it is deleted: whoever gives up a run may be interrupted
    between any two steps, and what only a thread knew of would stay.
    """

    def __init__(self, storage: Storage, prefix: str) -> None:
        self.storage = storage
        self.prefix = prefix
        self._begun: set[str] = set()
        self._abandoned = False

    def create(self, location: str) -> Any:
        """A binary stream that becomes the file when closed; raises `RewriteFailed` once the run was abandoned."""
        self.note([location])
        self._check_wanted(location)
        return self.storage.create(location)

    def finished(self, location: str, written_bytes: int) -> None:
        """Raise `RewriteFailed` unless storage holds all that was written to a new file, and somebody wants it."""
        self._check_wanted(location)
        self.storage.check_whole(location, written_bytes)

    def note(self, locations: Iterable[str]) -> None:
        """Know of files that are about to be created, or that other processes have written for the same run."""
        self._begun.update(locations)

    def delete(self, locations: Iterable[str]) -> None:
        """Remove files that must not stay, as `Storage.delete` does."""
        for location in locations:
            if self.storage.delete(location):
                self._begun.discard(location)

    def abandon(self, keep: Collection[str] = ()) -> None:
        """Remove every file that was begun and is not to be kept; threads still at work remove theirs when they end."""
        self._abandoned = True
        self.delete(sorted(self._begun.difference(keep)))

    def _check_wanted(self, location: str) -> None:
        if self._abandoned:
            raise RewriteFailed(f"Cannot finish {location}: what it was written for was given up", path=location)


@contextmanager
def uncommitted(storage: Storage, prefix: str, environment: Environment) -> Iterator[tuple[Uncommitted, Environment]]:
    """Files that were begun by the owner that the block gets, in any thread, or noted for other processes, go when the
    block is left, but for those that a commit made visible, or may have. Commits in the block are made with the
    environment that it gets.
    """
    owner, begun = Uncommitted(storage, prefix), list[PendingCommit]()

    def note(event: object) -> None:
        if isinstance(event, CommitStarted):
            begun.append(event.commit)

    def clean() -> None:
        owner.abandon(keep=set().union(*(commitment.may_be_visible() for commitment in begun)))

    try:
        yield owner, environment.also_observing(note)
        clean()
    except BaseException:
        clean()
        raise
