"""Changes of a table's metadata that add no snapshot: a column added, a tag set, a stream forgotten."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from pyiceberg.table.update import AssertRefSnapshotId, RemovePropertiesUpdate

from icesize.errors import TableError
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.retry import Attempts, Change
from icesize.table.records import ledger

T = TypeVar("T")


@dataclass(frozen=True)
class MetadataChange(Change[T]):
    """A change made of functions of the state that it is tried on.

    `build` gives what to commit on that state (None: nothing to do) and the result; it refuses by raising. `is_in` is
    True of a state that already has what the newest attempt has asked for.
    """

    run_id: str
    advice: str
    build: Callable[[Loaded], tuple[Staged | None, T]]
    is_in: Callable[[Loaded], bool]

    def found(self, loaded: Loaded, attempts: Attempts[T]) -> T | None:
        """The result of the attempt that landed."""
        return attempts.made[-1].result if attempts.made and self.is_in(loaded) else None

    def stage(self, loaded: Loaded, attempts: Attempts[T]) -> tuple[Staged | None, T]:
        return self.build(loaded)


def forget_stream(table: str, stream_id: str, run_id: str) -> MetadataChange[ledger.LedgerEntry]:
    """The change that removes a stream's entry; it gives the entry.

    A batch of that stream at the same time comes before it, and its entry goes, or after it, and its entry stays.
    Raises TableError when tried on a table that has no such stream.
    """

    def entry_of(loaded: Loaded) -> ledger.LedgerEntry | None:
        return next((e for e in ledger.entries(loaded.properties) if e.stream_id == stream_id), None)

    def build(loaded: Loaded) -> tuple[Staged, ledger.LedgerEntry]:
        entry = entry_of(loaded)
        if entry is None:
            why = f"'{table}' has no such stream"
            raise TableError(f"Cannot forget stream '{stream_id}': {why}", table=table)
        # entries change together with snapshots only
        same_head = AssertRefSnapshotId(ref=loaded.head.ref, snapshot_id=loaded.head.snapshot_id)
        return loaded.staged([RemovePropertiesUpdate(removals=[entry.key])], same_head), entry

    advice = f"Look whether `icesize streams {table}` still shows '{stream_id}'"
    return MetadataChange(run_id, advice, build, lambda loaded: entry_of(loaded) is None)
