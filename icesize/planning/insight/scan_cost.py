"""The costs of files: of each scan of a whole table, and of maintenance. Pure.

Costs are opened files, bytes, requests to an object store, seconds of one core, and money at given prices.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, fields

from icesize.planning.files import Layout
from icesize.planning.plan import Plan
from icesize.policy import MIB
from icesize.results import document, keys

PRICE_PER_1000_REQUESTS = 0.0004
"""USD for 1,000 GET requests: the price of Amazon S3 Standard in us-east-1."""

PRICE_PER_1000_PUTS = 0.005
"""USD for 1,000 requests that write: the price of Amazon S3 Standard in us-east-1. Deletes are free there."""

PRICE_PER_CORE_HOUR = 0.04048
"""USD for an hour of one core: the price of a vCPU of AWS Fargate in us-east-1."""

DECODED_BYTES_PER_SECOND = 65_000_000
COPIED_BYTES_PER_SECOND = 400_000_000
"""Bytes of Parquet files that one core decodes and encodes, or copies. Measured, see `WorkLimits`."""

PART_BYTES = 10 * MIB
"""Part of a larger file that PyArrow writes to an object store with one request."""

ROW_GROUP_BYTES = 128 * MIB
"""Iceberg's `write.parquet.row-group-size-bytes`. A reader requests a footer, and then the columns of each row
group, whose neighbouring ranges it reads as one: two requests for a small file, five for one of 512 MiB."""

MS_PER_ENTRY = 0.06
"""Planning a scan, per data or delete file. Measured: `plan_files` of PyIceberg takes 62 microseconds for each of
100,000 files with statistics of 22 columns, 49 for each of 4,000 with statistics of 20, in CPU time. Engines that plan
in several threads, or keep manifests in memory, take less."""

MS_PER_MANIFEST = 0.9
"""Planning a scan, per manifest, beside its entries. Measured: `plan_files` of PyIceberg takes 290 ms of CPU time for
4,000 files in 100 manifests, 197 ms for as many in one, on a local disk. An object store adds the time of one request
each, some tens of milliseconds, of which readers make several at once."""

ENTRIES_PER_MANIFEST = 14_000
"""Entries of 600 bytes each, in a manifest of 8 MiB, Iceberg's `commit.manifest.target-size-bytes`."""


@dataclass(frozen=True)
class ScanCost:
    """The cost of one scan of all rows.

    It opens `data_files`, and `delete_files` once for each data file to which they apply; readers that share them among
    tasks open fewer. Planning reads `manifests` and takes `planning_seconds` on one core. The scan sends `requests` to
    an object store: one for the manifest list, one for each manifest, and for each opened file one for the footer and
    one for each row group.
    """

    data_files: int = 0
    delete_files: int = 0
    manifests: int = 0
    planning_seconds: float = 0.0
    requests: int = 0

    @classmethod
    def of(cls, data_files: int, data_bytes: int, delete_files: int, manifests: int) -> ScanCost:
        """Return the cost of a scan of these files; a table without files costs nothing."""
        if not data_files:
            return cls()
        row_groups = max(data_files, -(-data_bytes // ROW_GROUP_BYTES))
        planning_ms = MS_PER_ENTRY * (data_files + delete_files) + MS_PER_MANIFEST * manifests
        requests = 1 + manifests + data_files + row_groups + 2 * delete_files
        return cls(data_files, delete_files, manifests, planning_ms / 1000, requests)

    @property
    def opened(self) -> int:
        """Opened files of both kinds."""
        return self.data_files + self.delete_files


@dataclass(frozen=True)
class LayoutCost:
    """The cost of a scan `now`, and `then`, after a compaction. The price is in USD; None if requests are free."""

    now: ScanCost
    then: ScanCost
    price_per_1000_requests: float | None = PRICE_PER_1000_REQUESTS

    KEYS = keys(
        now=lambda cost: {**document(cost.now), "usd": cost.usd(cost.now)},
        then=lambda cost: {**document(cost.then), "usd": cost.usd(cost.then)},
    )

    @classmethod
    def of(
        cls, layout: Layout, plan: Plan, price_per_1000_requests: float | None = PRICE_PER_1000_REQUESTS
    ) -> LayoutCost:
        """Return the cost for a table, and for the table after a plan."""
        now = ScanCost.of(layout.files, layout.size_bytes, _delete_files_opened(layout), layout.manifests)
        return cls(now, _after(layout, plan) if plan.groups else now, price_per_1000_requests)

    def usd(self, scan: ScanCost) -> float | None:
        """Return the price of a scan's requests, None for storage that charges none."""
        price = self.price_per_1000_requests
        return None if price is None else scan.requests * price / 1000


NO_COST = LayoutCost(ScanCost(), ScanCost())
"""The cost of a table without files."""


def _after(layout: Layout, plan: Plan) -> ScanCost:
    inputs = {file.path for group in plan.groups for file in group.inputs}
    # deletes that may hit a file in their place, too, though none that was applied has a row left there
    deletes = _delete_files_opened(layout, inputs) + sum(
        group.outputs * max((f.delete_files - f.avoidable_deletes for f in group.with_deletes), default=0)
        for group in plan.groups
    )
    shed_bytes = sum(group.size_bytes - group.live_bytes for group in plan.groups)
    # a commit writes what is left of the manifests that it touches together
    touched = {file.manifest_path for group in plan.groups for file in group.inputs}
    together = min(layout.manifests, len(touched), -(-plan.files_after // ENTRIES_PER_MANIFEST))
    manifests = max(0, layout.manifests - len(touched)) + together
    return ScanCost.of(plan.files_after, layout.size_bytes - shed_bytes, deletes, manifests)


def _delete_files_opened(layout: Layout, without: Collection[str] = ()) -> int:
    """Return the delete files that a scan opens, counted once per data file, without the data files at some paths."""
    with_deletes = (file for facts in layout.partitions.values() for file in facts.with_deletes)
    return sum(file.delete_files for file in with_deletes if file.path not in without)


@dataclass(frozen=True)
class WorkCost:
    """The cost of maintenance work.

    Attributes:
        bytes_read: Bytes of data files that are read.
        bytes_written: Bytes of data files that are written.
        gets: Requests that read.
        puts: Requests that write.
        seconds: Seconds of one core.
    """

    bytes_read: int = 0
    bytes_written: int = 0
    gets: int = 0
    puts: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, plan: Plan) -> WorkCost:
        """Return the cost of the merges or the clustering of a plan, and of their commit.

        Without a forecast, all bytes count as decoded, which is the most that the work can take.
        """
        if not plan.groups:
            return cls()
        read, written = plan.bytes_to_write, sum(group.live_bytes for group in plan.groups)
        decoded, copied = (plan.forecast.bytes_decoded, plan.forecast.bytes_copied) if plan.forecast else (read, 0)
        opened = ScanCost.of(plan.files_removed, read, sum(len(group.with_deletes) for group in plan.groups), 0)
        puts = sum(group.outputs * _puts_of(group.output_size_bytes) for group in plan.groups)
        seconds = decoded / DECODED_BYTES_PER_SECOND + copied / COPIED_BYTES_PER_SECOND
        return cls(read, written, opened.requests, puts, seconds) + A_COMMIT

    def __add__(self, other: WorkCost) -> WorkCost:
        return WorkCost(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))

    @property
    def usd(self) -> float:
        """The price of the work on an object store, at the prices of AWS in us-east-1."""
        requests = self.gets * PRICE_PER_1000_REQUESTS + self.puts * PRICE_PER_1000_PUTS
        return requests / 1000 + self.seconds * PRICE_PER_CORE_HOUR / 3600


A_COMMIT = WorkCost(gets=4, puts=4)
"""A commit that loads the metadata, the manifest list and two manifests, and writes as many."""


def _puts_of(size_bytes: int) -> int:
    """Return the requests that write a file: one, or one for each part, one before them and one after them."""
    parts = -(-size_bytes // PART_BYTES)
    return 1 if parts <= 1 else parts + 2
