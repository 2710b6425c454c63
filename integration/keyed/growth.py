"""`python -m integration.keyed.growth`: long streams of upserts that nobody disturbs, within the bounds of `bounds.py`.

The streams lie around the thresholds of the code: one partition and many, as many data files that a batch hits as get a
delete file each and one more, small files and large ones, keys of all ages and young ones.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField

import icesize
from icesize.policy import SizePolicy
from icesize.report import Report
from integration.keyed.bounds import Held, check_batch, check_delete_files
from tests.support.machine import Reader
from tests.support.tables import check
from tests.support.v3_tables import as_v3

SCHEMA = Schema(*(NestedField(i, name, LongType()) for i, name in enumerate(("k", "p", "o", "v"), 1)))
MOST_WRITTEN = 6.0
"""Bytes written for each byte of a batch; 1.0 to 4 were measured."""
LARGE_BYTES = 8_000
"""The limit of small files, if a stream has large ones."""
MOST_METADATA_BYTES = 100_000
"""Metadata of a batch into 40 partitions: 20 to 71 kB, measured, without a trend."""


@dataclass(frozen=True)
class Stream:
    """A stream of batches of the same kind.

    Attributes:
        version: The format version.
        partitions: Number of partitions.
        rows: Rows of a partition before the first of the batches.
        batch: Keys of a batch in each partition.
        has_large: Whether files of these rows are large, so that batches do not merge them for their size.
        is_young: Whether the keys of a batch are some of the newest ones, and new ones; otherwise any.
    """

    version: int
    partitions: int
    rows: int
    batch: int
    has_large: bool
    is_young: bool

    def run(self, folder: Path, batches: int, seed: int = 0) -> Work:
        """Run the batches; raise AssertionError where a bound is broken."""
        chance, catalog = random.Random(seed), SqlCatalog("lake", uri=f"sqlite:///{folder}/c.db", warehouse=str(folder))
        catalog.create_namespace("db")
        spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"))
        limit = {"icesize.policy.small-file-limit-bytes": str(LARGE_BYTES)} if self.has_large else {}
        catalog.create_table("db.t", SCHEMA, partition_spec=spec, properties=limit)
        if self.version == 3:
            as_v3(catalog)
        sized, newest = icesize.open(None, "db.t", catalog=catalog), self.rows * self.partitions
        work, reader = Work(), Reader()
        self._upsert(sized, range(newest), 0, chance)
        held = Held.of(catalog.load_table("db.t"), reader)
        for number in range(1, batches + 1):
            keys = self._keys(chance, newest)
            newest = max(newest, *(key + 1 for key in keys))
            report = self._upsert(sized, keys, number, chance)
            table, before = catalog.load_table("db.t"), held
            held = Held.of(table, reader)
            policy = SizePolicy(small_file_limit_bytes=LARGE_BYTES) if limit else SizePolicy()
            check_delete_files(held, 1 if self.version == 3 else policy.max_delete_files)
            check_batch(before, held, report, policy, 0)
            work = work.and_batch(report, held)
        check(table)
        catalog.close()
        return work

    def _keys(self, chance: random.Random, newest: int) -> list[int]:
        """Keys of one batch, as many of each partition."""
        keys = list[int]()
        for partition in range(self.partitions):
            every = range(partition, newest, self.partitions)
            if self.is_young:
                some = chance.sample(every[-4 * self.batch :], self.batch - self.batch // 2)
                keys += [*some, *(every[-1] + self.partitions * (1 + i) for i in range(self.batch // 2))]
            else:
                keys += chance.sample(every, self.batch)
        return keys

    def _upsert(self, sized: Any, keys: Sequence[int], order: int, chance: random.Random) -> Report:
        columns = {
            "k": keys, "p": [key % self.partitions for key in keys], "o": [order] * len(keys),
            "v": [chance.getrandbits(62) for _ in keys],
        }  # fmt: skip
        rows = pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})
        report: Report = sized.upsert(rows, key="k", order_by="o")
        return report


@dataclass(frozen=True)
class Work:
    """The work of a stream: bytes of its batches, bytes written for them, the most metadata of one, and the end."""

    ingested_bytes: int = 0
    written_bytes: int = 0
    metadata_bytes: int = 0
    held: Held = field(default_factory=Held)

    def and_batch(self, report: Report, held: Held) -> Work:
        """The work after one more batch."""
        most = max(self.metadata_bytes, report.metadata_bytes_written)
        assert most <= MOST_METADATA_BYTES, f"{most} bytes of metadata for one batch"
        ingested, written = self.ingested_bytes + report.bytes_ingested, self.written_bytes + report.bytes_written
        return Work(ingested, written, most, held)

    def __str__(self) -> str:
        share = self.written_bytes / max(1, self.ingested_bytes)
        return (
            f"{share:.1f} bytes written per byte, {len(self.held.files)} files, {self.held.dead_share:.0%} dead rows,"
            f" at most {self.metadata_bytes:,} bytes of metadata in a batch, {len(self.held.dangling)} dangling deletes"
        )


def streams(partitions: Sequence[int] = (1, 16, 17, 40)) -> list[Stream]:
    """Streams around the thresholds."""
    return [
        Stream(version, number, rows, batch, has_large, is_young)
        for version, number, (rows, batch), has_large, is_young in itertools.product(
            (2, 3), partitions, ((1_500, 1), (300, 20)), (False, True), (False, True)
        )
    ]


def run(stream: Stream, batches: int) -> Work:
    """Run a stream in a folder of its own. Raises AssertionError."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        work = stream.run(Path(folder), batches)
        assert work.written_bytes <= MOST_WRITTEN * work.ingested_bytes, str(work)
        return work


def main() -> int:
    """Run all streams; the exit code is 1 if one broke a bound."""
    parser = argparse.ArgumentParser(prog="python -m integration.keyed.growth", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="batches of each stream")
    parser.add_argument("--partitions", type=int, nargs="+", default=[1, 16, 17, 40], help="numbers of partitions")
    options, failed = parser.parse_args(), 0
    for stream in streams(options.partitions):
        try:
            print(f"{stream}: {run(stream, options.count)}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAILED, {stream}: {error}", flush=True)
    print(f"{failed} streams failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
