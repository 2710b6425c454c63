"""Predictions for the next batch of a stream, learned from its batches so far.

If this state is lost, balance suffers until it is learned again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from uuid import UUID

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.parquet.files.data_file import NewDataFile, Written
from icesize.parquet.files.names import writer_of
from icesize.planning.files import Layout, PartitionKey
from icesize.planning.routing.router import skew
from icesize.planning.routing.row_sizes import RowSize, RowSizes, fitted
from icesize.planning.routing.traffic import PartitionWrites, Prediction, Traffic
from icesize.policy import SizePolicy
from icesize.spark.routing.write_plan import WritePlan
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.partition_changes import recent_appends

RELIABLE_SKEW = 1.1
"""Writer skew up to which a prediction is as good as a count: the skew that routing by a count allows itself."""

WORTH_A_NOTE_RATIO = 2.0
"""Multiple of its predicted size above which a batch gets a note in the report."""


@dataclass(frozen=True)
class Comparison:
    """A batch compared with its prediction; numbers as in `Report`."""

    bytes_predicted: int | None
    writer_skew: float | None
    notes: tuple[str, ...] = ()


class Learned:
    """Rows per partition and sizes of rows, learned from written files; and the quality of the last prediction."""

    def __init__(self) -> None:
        self._traffic: Traffic[PartitionKey] = Traffic()
        self._sizes: RowSizes[PartitionKey] = RowSizes()
        self._skew: float | None = None
        self._table: UUID | None = None

    def seed(self, metadata: TableMetadata, io: FileIO, store: ManifestStore) -> None:
        """Learn earlier batches of the stream from the table's newest commits, before the first batch of this process.

        If another table now has the name, the facts learned of the old one are dropped.
        """
        if self._table == metadata.table_uuid:
            return
        if self._table is not None:
            self._traffic, self._sizes, self._skew = Traffic(), RowSizes(), None
        self._table = metadata.table_uuid
        if self._traffic.predict() is None:
            for batch in recent_appends(metadata, io, store):
                self.observe(batch)

    def predict(self) -> Prediction[PartitionKey] | None:
        """Return the predicted rows of the next batch; None if nothing was ever written."""
        return self._traffic.predict()

    def sizes(self, policy: SizePolicy, layout: Layout) -> RowSizes[PartitionKey]:
        """Return sizes of rows: set by the policy, learned from batches, or from the table's files; or unknown."""
        if policy.bytes_per_row is not None:
            return RowSizes(RowSize(0.0, policy.bytes_per_row))
        of_files = None if self._sizes.is_known else fitted(_recent(layout, policy))
        return self.expect(of_files) if of_files else self._sizes

    def expect(self, prior: RowSize) -> RowSizes[PartitionKey]:
        """Return sizes of rows that begin with `prior`, if nothing was learned yet."""
        if not self._sizes.is_known:
            self._sizes = RowSizes(prior)
        return self._sizes

    @property
    def is_reliable(self) -> bool:
        """True if prediction alone balanced the last batch, or would have; if not, the next batch is counted."""
        return self._skew is not None and self._skew <= RELIABLE_SKEW

    def observe(self, batch: Mapping[PartitionKey, PartitionWrites]) -> None:
        """Learn from the files of new rows of a batch."""
        self._traffic.observe(batch)
        self._sizes.observe(batch)

    def compare(self, plan: WritePlan, written: Written, bytes_ingested: int) -> Comparison:
        """Learn from a committed batch, and return it compared with its prediction."""
        actual = _writer_skew(written.files, plan.tasks)
        # One writer is always balanced, so it shows nothing about the balance of two.
        if plan.expected is not None and plan.tasks > 1:
            own = actual if plan.is_predicted else None
            self._skew = plan.expected.skew_of(written.files, plan.tasks) if own is None else own
        if not written.absorbed:
            self.observe(seen_in(written.files))
        predicted, notes = plan.known.size_bytes if plan.known else None, tuple[str, ...]()
        if predicted is not None and plan.is_predicted and bytes_ingested > WORTH_A_NOTE_RATIO * predicted:
            times = bytes_ingested / max(1.0, predicted)
            notes = (f"the batch is {times:.1f} x its predicted size: files stop at the target size",)
        return Comparison(
            bytes_predicted=None if predicted is None else round(predicted),
            writer_skew=None if actual is None else round(actual, 3),
            notes=notes,
        )


def _writer_skew(files: Iterable[NewDataFile], tasks: int) -> float | None:
    """Return the most bytes of a writer over their mean; None if a file name does not contain its writer."""
    loads = [0.0] * tasks
    for file in files:
        writer = writer_of(file.path)
        if writer is None or writer >= tasks:
            return None
        loads[writer] += file.size_bytes
    return skew(loads)


def seen_in(files: Iterable[NewDataFile]) -> dict[PartitionKey, PartitionWrites]:
    """Return the rows, bytes and number of files of each partition."""
    seen: dict[PartitionKey, PartitionWrites] = {}
    for file in files:
        so_far = seen.get(file.partition, PartitionWrites(0, 0, 0))
        seen[file.partition] = PartitionWrites(
            so_far.rows + file.rows, so_far.size_bytes + file.size_bytes, so_far.files + 1
        )
    return seen


def _recent(layout: Layout, policy: SizePolicy) -> list[PartitionWrites]:
    """Return the content of the table's files, only of recently written partitions if there are any."""
    keys = [key for key in layout.partitions if key.spec_id == layout.spec_id]
    recent = {*layout.recent(policy.cold_after_commits)}
    partitions = layout.partitions.some(key for key in keys if key in recent or recent.isdisjoint(keys))
    return [PartitionWrites(facts.rows, facts.size_bytes, facts.files) for facts in partitions.values()]
