"""Changes of a table's metadata other than batches: a column added, a restore, fewer manifests, a stream forgotten."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Generic, TypeVar

from pyiceberg.table.update import RemovePropertiesUpdate

from icesize.errors import TableError
from icesize.table.commit import ledger
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


def forget_stream(table: str, stream_id: str, run_id: str) -> MetadataChange[ledger.LedgerEntry]:
    """The change that removes a stream's entry; it gives the entry.

    A batch of that stream at the same time comes before it, and its entry goes, or after it, and its entry stays.
    Raises TableError when tried on a table that has no such stream.
    """

    def entry_of(loaded: PyIcebergLoaded) -> ledger.LedgerEntry | None:
        return next((e for e in ledger.entries(loaded.properties) if e.stream_id == stream_id), None)

    def build(loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged, ledger.LedgerEntry]:
        entry = entry_of(loaded)
        if entry is None:
            why = f"'{table}' has no such stream"
            raise TableError(f"Cannot forget stream '{stream_id}': {why}", table=table)
        # entries change together with snapshots only
        return loaded.staged([RemovePropertiesUpdate(removals=[entry.key])], loaded.same_head), entry

    advice = f"Look whether `icesize streams {table}` still shows '{stream_id}'"
    return MetadataChange(run_id, advice, build, lambda loaded: entry_of(loaded) is None)
