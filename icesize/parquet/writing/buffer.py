"""Rows that a task holds in memory, divided by partition."""

from __future__ import annotations

from dataclasses import dataclass, field

import pyarrow as pa

from icesize.parquet.files.partitioning import arrange_by_partition
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.encoding import nan_columns
from icesize.planning.files import PartitionKey

BLOCK_BYTES = 16 * 2**20
"""Arrow memory of the rows that are divided together, which takes as much again for a moment."""
MIN_CHUNK_ROWS = 1_024
"""Rows that lie in shorter chunks are copied into one: encoding begins anew with each."""


@dataclass(slots=True)
class Group:
    """Rows of one partition: `parts` of blocks (block, first row, rows), about `arrow_bytes` of them."""

    partition: PartitionKey
    rows: int = 0
    arrow_bytes: float = 0.0
    parts: list[tuple[pa.Table, int, int]] = field(default_factory=list)

    def add(self, block: pa.Table, start: int, rows: int, arrow_bytes: float) -> None:
        """Rows of a block."""
        self.rows += rows
        self.arrow_bytes += arrow_bytes
        self.parts.append((block, start, rows))

    def table(self) -> pa.Table:
        """The rows, in their order. Made when needed: a table for each of 10,000 partitions is large by itself."""
        table = pa.concat_tables([block.slice(start, rows) for block, start, rows in self.parts])
        return table.combine_chunks() if self.rows < MIN_CHUNK_ROWS * len(self.parts) else table


class Buffer:
    """Collects rows with the table's Arrow schema in any order of partitions."""

    def __init__(self, settings: WriteSettings) -> None:
        self.arrow_bytes = 0
        self._settings = settings
        self._undivided: list[pa.Table] = []
        self._undivided_bytes = 0
        self._groups: dict[PartitionKey, Group] = {}

    def add(self, rows: pa.Table) -> None:
        """Rows of any partitions; raises `SchemaMismatch`, now or later, for NaN under an identity transform."""
        self._undivided.append(rows)
        self._undivided_bytes += rows.nbytes
        self.arrow_bytes += rows.nbytes
        if self._undivided_bytes >= BLOCK_BYTES:
            self._divide()

    def add_to(self, partition: PartitionKey, rows: pa.Table) -> None:
        """Rows that are of this partition whatever their values are."""
        self._group(partition).add(rows, 0, rows.num_rows, rows.nbytes)
        self.arrow_bytes += rows.nbytes

    def empty(self) -> list[Group]:
        """All rows by partition, partitions in order of first appearance; the buffer is empty then."""
        if self._undivided:
            self._divide()
        groups, self._groups, self.arrow_bytes = self._groups, {}, 0
        return list(groups.values())

    def _group(self, partition: PartitionKey) -> Group:
        if partition not in self._groups:
            self._groups[partition] = Group(partition)
        return self._groups[partition]

    def _divide(self) -> None:
        block, ranges = arrange_by_partition(pa.concat_tables(self._undivided), self._settings)
        self._undivided, self._undivided_bytes = [], 0
        bytes_per_row, start = block.nbytes / block.num_rows, 0
        for partition, rows in ranges:
            self._group(partition).add(block, start, rows, bytes_per_row * rows)
            start += rows


def nan_in(groups: list[Group], settings: WriteSettings) -> frozenset[int]:
    """Field ids of the float columns in which rows of these groups hold NaN."""
    blocks = {id(block): block for group in groups for block, _, _ in group.parts}
    return nan_columns(settings, pa.concat_tables(blocks.values())) if blocks else frozenset()
