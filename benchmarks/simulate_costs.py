"""Files, bytes, requests and times of a simulated table over a period, from its commits."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.simulate_metadata import MetadataWrites
from benchmarks.simulate_writers import Commit
from icesize.planning.files import PartitionFacts, PartitionKey
from icesize.planning.insight.scan_cost import PRICE_PER_1000_PUTS, PRICE_PER_1000_REQUESTS, ScanCost
from icesize.planning.merging.simulation import BatchSizes
from icesize.policy import MIB

PART_BYTES = 32 * MIB
"""Iceberg's `s3.multipart.part-size-bytes`. A file above 1.5 parts is written in parts."""


def puts(size_bytes: int) -> int:
    """Return the requests that write a file: one, or one for each part and two to begin and end."""
    return 1 if size_bytes <= 1.5 * PART_BYTES else 2 - (-size_bytes // PART_BYTES)


@dataclass
class Tally:
    """Sums over the batches of a period, and one value per batch in the lists."""

    ingested_bytes: int = 0
    written_bytes: int = 0
    puts: int = 0
    gets: int = 0
    small_files: list[int] = field(default_factory=list)
    metadata_bytes: list[int] = field(default_factory=list)
    plan_ms: list[float] = field(default_factory=list)

    def add(
        self,
        batch: BatchSizes,
        commit: Commit,
        metadata: MetadataWrites,
        partitions: Mapping[PartitionKey, PartitionFacts],
    ) -> None:
        """Count a batch that was committed; `partitions` are those of the table after it."""
        changes = [change for snapshot in commit.snapshots for change in snapshot]
        inputs = [file for change in changes for file in change.inputs]
        read = ScanCost.of(len(inputs), sum(file.size_bytes for file in inputs), 0, metadata.read)
        self.ingested_bytes += sum(batch.values())
        self.written_bytes += sum(change.written_bytes for change in changes)
        self.puts += sum(puts(file.size_bytes) for change in changes for file in change.outputs) + metadata.written
        self.gets += read.requests
        self.small_files += [len(partitions[key].small) for key in batch]
        self.metadata_bytes.append(metadata.written_bytes)
        self.plan_ms.append(commit.plan_ms)

    def summary(self, batches_per_day: int, partitions: Iterable[PartitionFacts]) -> dict[str, Any]:
        """Return figures of the period, and of all partitions at its end."""
        batches, files = len(self.plan_ms), [facts.files for facts in partitions]
        days = batches / batches_per_day
        usd = (self.puts * PRICE_PER_1000_PUTS + self.gets * PRICE_PER_1000_REQUESTS) / 1000
        return {
            "partitions": len(files),
            "files": sum(files),
            "files_per_partition": round(sum(files) / len(files), 1),
            "files_per_partition_max": max(files),
            "small_files": round(statistics.fmean(self.small_files), 1),
            "small_files_max": max(self.small_files),
            "write_amplification": round(self.written_bytes / self.ingested_bytes, 2),
            "metadata_kb": round(statistics.fmean(self.metadata_bytes) / 1000, 1),
            "metadata_kb_p99": round(percentile(self.metadata_bytes, 0.99) / 1000, 1),
            "plan_ms": round(statistics.median(self.plan_ms), 2),
            "plan_ms_p99": round(percentile(self.plan_ms, 0.99), 2),
            "requests_per_day": round((self.puts + self.gets) / days),
            "usd_per_day": round(usd / days, 2),
        }


def percentile(values: Iterable[float], share: float) -> float:
    """Return the value that `share` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
