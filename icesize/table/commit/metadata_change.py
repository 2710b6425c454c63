"""Changes of a table's metadata other than batches: a stream forgotten, a column added, a restore, fewer manifests."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged
from icesize.table.commit.retry import Attempts

T = TypeVar("T")


@dataclass(frozen=True)
class MetadataChange(Generic[T]):
    """A `Change` made of functions of the state that it is tried on.

    `build` gives what to commit on that state (None: nothing to do) and the result; it refuses by raising. `is_in`
    tells of a state whether it already has what the newest attempt has asked for; without it the run id in summaries of
    snapshots does. `files` are data files that become visible with it.
    """

    run_id: str
    advice: str
    build: Callable[[PyIcebergLoaded], tuple[PyIcebergStaged | None, T]]
    is_in: Callable[[PyIcebergLoaded], bool] | None = None
    files: Collection[str] = ()

    def found(self, loaded: PyIcebergLoaded, attempts: Attempts[T]) -> T | None:
        """The result of the attempt that landed."""
        if self.is_in is not None:
            return attempts.made[-1].result if attempts.made and self.is_in(loaded) else None
        landed = {snapshot_id for snapshot_id, _ in loaded.snapshots_of(self.run_id)}
        ours = (a.result for a in attempts.made if landed.intersection(i for i, _ in a.staged.snapshots))
        return next(ours, None)

    def stage(self, loaded: PyIcebergLoaded, attempts: Attempts[T]) -> tuple[PyIcebergStaged | None, T]:
        return self.build(loaded)

    def data_files(self, result: T) -> Collection[str]:
        return self.files
