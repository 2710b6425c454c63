"""Deletes files in groups, and loads the table again before each: files that it needs by then stay."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from icesize import failpoints
from icesize.environment import Environment
from icesize.table.storage.bulk_delete import delete_all

LookAgain = Callable[[], tuple[Callable[[str], None], Callable[[str], bool]] | None]
"""Loads the table again. Returns a function that removes one file, and one that is True for files that stay.

None stops the deletion.
"""


@dataclass
class Deletion:
    """A running deletion: the files that were `tried`, those of them that are `gone`, and those that `failed`.

    `progress` receives the number of tried files and the `total` without `spared` files, which stay.
    """

    look: LookAgain
    total: int
    progress: Callable[[int, int], object]
    max_concurrent: int
    files_between_checks: int
    environment: Environment
    tried: list[str] = field(default_factory=list)
    gone: list[str] = field(default_factory=list)
    failed: tuple[str, ...] = ()
    first_failure: str = ""
    spared: int = 0

    def run(self, files: Iterable[str]) -> bool:
        """Delete files that nothing needs; return False if `look` stopped it. Raises the errors of `look`."""
        waiting = iter(files)
        while batch := list(islice(waiting, self.files_between_checks)):
            failpoints.reach("before-delete")
            if (seen := self.look()) is None:
                return False
            self._delete(batch, *seen)
        return True

    def _delete(self, batch: list[str], remove: Callable[[str], None], stays: Callable[[str], bool]) -> None:
        doomed = [location for location in batch if not stays(location)]
        self.spared += len(batch) - len(doomed)
        tried, left = len(self.tried), self.total - self.spared

        def delete(location: str) -> None:
            remove(location)
            self.gone.append(location)

        done = delete_all(
            doomed, delete, self.environment, self.max_concurrent, lambda more: self.progress(tried + more, left)
        )
        self.tried += doomed
        self.failed += tuple(sorted(done.failed))
        self.first_failure = self.first_failure or done.first_failure
