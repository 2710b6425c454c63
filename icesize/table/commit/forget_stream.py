"""Taking a stream out of the ledger: a change of its own, through the same door as every commit."""

from __future__ import annotations

from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AssertRefSnapshotId, RemovePropertiesUpdate

from icesize.clock import Environment
from icesize.errors import TableError
from icesize.table.commit import ledger
from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged


class ForgetStream:
    """The change (a TableChange) that removes a stream's entry; it gives the entry.

    A batch of that stream at the same time comes before it, and its entry goes, or after it, and its entry stays.
    Raises TableError when staged on a table that has no such stream.
    """

    def __init__(self, table: str, stream_id: str, environment: Environment) -> None:
        self.run_id = environment.new_id()
        self._table, self._stream_id = table, stream_id
        self._asked: ledger.LedgerEntry | None = None

    @property
    def advice(self) -> str:
        """How a person finds out."""
        return f"Look whether `icesize streams {self._table}` still shows '{self._stream_id}'"

    def found(self, loaded: PyIcebergLoaded) -> ledger.LedgerEntry | None:
        """What an attempt whose answer was lost has removed."""
        return self._asked if self._entry(loaded) is None else None

    def stage(self, loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged, ledger.LedgerEntry]:
        """Lands where no batch has come meanwhile: entries change together with snapshots only."""
        self._asked = self._entry(loaded)
        if self._asked is None:
            why = f"'{self._table}' has no such stream"
            raise TableError(f"Cannot forget stream '{self._stream_id}': {why}", table=self._table)
        same_head = AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=loaded.head_id)
        update = RemovePropertiesUpdate(removals=[self._asked.key])
        return PyIcebergStaged((loaded.same_table, same_head), (update,), written=[]), self._asked

    def _entry(self, loaded: PyIcebergLoaded) -> ledger.LedgerEntry | None:
        entries = ledger.entries(loaded.table.metadata.properties)
        return next((entry for entry in entries if entry.stream_id == self._stream_id), None)
