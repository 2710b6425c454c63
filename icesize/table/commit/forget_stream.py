"""Taking a stream out of the ledger."""

from __future__ import annotations

from pyiceberg.table.update import RemovePropertiesUpdate

from icesize.errors import TableError
from icesize.table.commit import ledger
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged


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
