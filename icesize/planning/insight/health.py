"""The health of a table: what its metadata cost each query now, and after maintenance. Pure.

All costs are seconds that a query over the whole table takes before it reads rows, so that data files, delete files,
manifests and snapshots add up, and tables can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icesize.planning.deletes.delete_plan import DeleteRewrite
from icesize.planning.insight.scan_cost import MS_PER_ENTRY, MS_PER_MANIFEST, LayoutCost, WorkCost
from icesize.policy import MIB
from icesize.results import KeySource, Result, keys

MS_PER_REQUEST = 10.0
"""A request to an object store: the 100 ms that Amazon S3 states for small objects, ten requests at a time."""

MS_PER_FILE = 2 * MS_PER_REQUEST + MS_PER_ENTRY
"""A file that is opened: its entry, a request for its footer, and one for its columns."""

MS_PER_SNAPSHOT = 0.035
"""Loading the metadata file, per snapshot. Measured: PyIceberg takes 2.4 s of CPU time for 70,000 snapshots."""

QUERY_SECONDS = 1.0
"""Seconds that any query takes: a table that costs much less cannot get much better."""

BYTES_PER_JOB = 4 * MIB
"""Work without bytes, such as a commit, counts as this many bytes when tables are ranked by benefit per byte."""

_MS = {
    "data files": MS_PER_FILE,
    "delete files": MS_PER_FILE,
    "manifests": MS_PER_REQUEST + MS_PER_MANIFEST,
    "snapshots": MS_PER_SNAPSHOT,
}
"""Milliseconds that a query takes for each."""

FORMULA = (
    f"health = 100 x ({QUERY_SECONDS:g} s + seconds after maintenance) / ({QUERY_SECONDS:g} s + seconds now); seconds "
    f"of a full scan before it reads rows: {', '.join(f'{ms:g} ms x {name}' for name, ms in _MS.items())}"
)
"""The formula of the score, as people read it."""


def _rounded(*names: str) -> dict[str, KeySource]:
    """Return the `KEYS` of properties that are rounded to a tenth of a millisecond."""

    def key(name: str) -> KeySource:
        return lambda result: round(getattr(result, name), 4)

    return {name: key(name) for name in names}


@dataclass(frozen=True)
class HealthPart:
    """One of the causes of cost.

    Attributes:
        name: `data files`, `delete files` (counted once for each data file that they apply to), `manifests` or
            `snapshots`.
        now: Their number.
        then: Their number after maintenance.
    """

    name: str
    now: int
    then: int

    KEYS = _rounded("seconds", "seconds_saved")

    @property
    def seconds(self) -> float:
        """Seconds that they cost each full scan now."""
        return self.now * _MS[self.name] / 1000

    @property
    def seconds_saved(self) -> float:
        """Seconds that each full scan would take less after maintenance."""
        return (self.now - self.then) * _MS[self.name] / 1000


@dataclass(frozen=True)
class TableSurvey(Result):
    """The benefit of maintenance for one table, from its metadata alone.

    Attributes:
        table: The full name of the table.
        snapshot_id: The newest snapshot; None for a table without snapshots.
        partitions: Number of partitions with files.
        files: Number of data files.
        size_bytes: Bytes of these files.
        small_files: Number of small files.
        delete_files: Number of delete files.
        snapshots: Number of snapshots.
        snapshots_due: Number of snapshots that an expiry by the table's own rules would remove.
        metadata_bytes: Bytes of the metadata file.
        manifests: Number of manifests of the newest snapshot.
        manifest_bytes: Bytes of these manifests.
        files_to_merge: Number of data files that merges would read.
        files_merged: Number of files that would replace them.
        parts: The causes of cost.
        work: The cost of the merges, and of a commit for each other step that is due.
        usd: The price of the work; None for a table on local disks.
        notes: Sentences for people.
    """

    table: str
    snapshot_id: int | None
    partitions: int
    files: int
    size_bytes: int
    small_files: int
    delete_files: int
    snapshots: int
    snapshots_due: int
    metadata_bytes: int
    manifests: int
    manifest_bytes: int
    files_to_merge: int
    files_merged: int
    parts: tuple[HealthPart, ...]
    work: WorkCost
    usd: float | None = None
    notes: tuple[str, ...] = ()

    KEYS = keys("health", "files_saved", **_rounded("seconds_saved", "seconds_saved_per_gib"))

    @property
    def health(self) -> int:
        """The score from 0 to 100: 100 if maintenance would save nothing. `FORMULA` explains it."""
        now = QUERY_SECONDS + sum(part.seconds for part in self.parts)
        score = 100 * (1 - self.seconds_saved / now)
        # only a table that has nothing to save has the best score
        return min(99, max(0, round(score))) if self.seconds_saved > 0 else 100

    @property
    def seconds_saved(self) -> float:
        """Seconds that a full scan would take less after maintenance: the benefit by which tables are ranked."""
        return sum(part.seconds_saved for part in self.parts)

    @property
    def files_saved(self) -> int:
        """Files of both kinds that a full scan would open less after maintenance."""
        return sum(part.now - part.then for part in self.parts if part.name in ("data files", "delete files"))

    @property
    def bytes_to_write(self) -> int:
        """Bytes of data files that are rewritten."""
        return self.work.bytes_read

    @property
    def seconds_saved_per_gib(self) -> float:
        """The benefit per GiB that is rewritten, by which a budget is spent best."""
        return self.seconds_saved * 1024 * MIB / (self.work.bytes_read + BYTES_PER_JOB)


def parts_of(
    cost: LayoutCost,
    rewrites: Sequence[DeleteRewrite] = (),
    *,
    manifests_then: int,
    snapshots: int,
    snapshots_due: int,
) -> tuple[HealthPart, ...]:
    """Return the causes of cost.

    Args:
        cost: Cost of a full scan, now and after the merges.
        rewrites: Data files whose delete files become one each.
        manifests_then: Manifests after they are merged.
        snapshots: Number of snapshots.
        snapshots_due: Those that would expire.
    """
    spared = sum(file.delete_files - 1 for rewrite in rewrites for file in rewrite.files)
    now, then = cost.now, cost.then
    return (
        HealthPart("data files", now.data_files, then.data_files),
        HealthPart("delete files", now.delete_files, max(0, then.delete_files - spared)),
        HealthPart("manifests", now.manifests, min(then.manifests, manifests_then)),
        HealthPart("snapshots", snapshots, snapshots - snapshots_due),
    )
