"""Changes of a table's metadata that add no snapshot: add a column, set a tag, forget a stream."""

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
    """A change built by functions of the state that it is tried on.

    `build` returns the attempt to commit on that state (None: nothing to do) and the result; it raises to refuse.
    `is_in` returns True for a state that already has the change of the newest attempt.
    """

    run_id: str
    advice: str
    build: Callable[[Loaded], tuple[Staged | None, T]]
    is_in: Callable[[Loaded], bool]

    def found(self, loaded: Loaded, attempts: Attempts[T]) -> T | None:
        """Return the result of the newest attempt if the table has its change."""
        return attempts.made[-1].result if attempts.made and self.is_in(loaded) else None

    def stage(self, loaded: Loaded, attempts: Attempts[T]) -> tuple[Staged | None, T]:
        return self.build(loaded)


def forget_stream(table: str, stream_id: str, run_id: str) -> MetadataChange[ledger.LedgerEntry]:
    """Return the change that removes a stream's entry; its result is the entry.

    A concurrent batch of that stream commits before it, and its entry is removed, or after it, and its entry stays. The
    change raises TableError if the table has no such stream.
    """

    def entry_of(loaded: Loaded) -> ledger.LedgerEntry | None:
        return next((e for e in ledger.entries(loaded.properties) if e.stream_id == stream_id), None)

    def build(loaded: Loaded) -> tuple[Staged, ledger.LedgerEntry]:
        entry = entry_of(loaded)
        if entry is None:
            why = f"'{table}' has no such stream"
            raise TableError(f"Cannot forget stream '{stream_id}': {why}", table=table)
        # entries change only together with snapshots, so an unchanged head means an unchanged entry
        same_head = AssertRefSnapshotId(ref=loaded.head.ref, snapshot_id=loaded.head.snapshot_id)
        return loaded.staged([RemovePropertiesUpdate(removals=[entry.key])], same_head), entry

    advice = f"Look whether `icesize streams {table}` still shows '{stream_id}'"
    return MetadataChange(run_id, advice, build, lambda loaded: entry_of(loaded) is None)
