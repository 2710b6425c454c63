"""The owner of a run's files that no snapshot lists yet.

At the end of the run, it removes the files that are not in the table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.events import CommitStarted, PendingCommit
from icesize.storage.table_storage import Storage


class Uncommitted:
    """Creates the files of one run, whose names begin with `prefix`, and removes abandoned ones.

    Every file is recorded here from before it exists until it is deleted. The process that abandons a run may be
    interrupted between any two steps, and a file that only a thread had recorded would stay.
    """

    def __init__(self, storage: Storage, prefix: str) -> None:
        self.storage = storage
        self.prefix = prefix
        self._begun: set[str] = set()
        self._abandoned = False

    def create(self, location: str) -> Any:
        """Return a binary stream that becomes the file when closed.

        Raises `RewriteFailed` once the run is abandoned.
        """
        self.note([location])
        self._check_wanted(location)
        return self.storage.create(location)

    def finished(self, location: str, written_bytes: int, end: bytes = b"") -> None:
        """Raise `RewriteFailed` unless storage holds all bytes of a new file and the run is not abandoned.

        The last bytes of the file are `end`.
        """
        self._check_wanted(location)
        self.storage.check_whole(location, written_bytes, end)

    def note(self, locations: Iterable[str]) -> None:
        """Record files that are about to be created, or that other processes have written for the same run."""
        self._begun.update(locations)

    def delete(self, locations: Iterable[str]) -> None:
        """Remove files that must not stay, with `Storage.discard`."""
        self._begun.difference_update(self.storage.discard(locations))

    def abandon(self, keep: Collection[str] = ()) -> None:
        """Remove every recorded file except `keep`; threads that are still at work remove their files when they end."""
        self._abandoned = True
        self.delete(sorted(self._begun.difference(keep)))

    def _check_wanted(self, location: str) -> None:
        if self._abandoned:
            raise RewriteFailed(f"Cannot finish {location}: the operation that writes it was cancelled", path=location)


@contextmanager
def uncommitted(storage: Storage, prefix: str, environment: Environment) -> Iterator[tuple[Uncommitted, Environment]]:
    """Yield an owner of files and an environment for commits; remove uncommitted files at the end of the block.

    The removal covers files that any thread began with the owner, and files that were noted for other processes. It
    keeps files that a commit made visible, or may have made visible. Commits in the block must use the yielded
    environment.
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
