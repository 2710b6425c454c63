"""What is to be merged, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact, PartitionKey


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merge `victims`, all of `partition`, into `outputs` files."""

    victims: tuple[FileFact, ...]
    partition: PartitionKey
    outputs: int = 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the victims."""
        return sum(victim.size_bytes for victim in self.victims)

    @property
    def rows(self) -> int:
        """Rows of the victims, as their manifest entries say."""
        return sum(victim.rows for victim in self.victims)


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What a merge did; `rows_in` are the victims' rows, `bytes_read` their bytes.

    Of these `bytes_copied` were moved as they were, `pages_copied` counts pages that were moved one by one, and
    `bytes_decoded` were decoded and encoded again: whole victims, counted in `decoded_because` by
    `icesize.parquet.refusal.Refusal`, and columns whose dictionaries differ.
    """

    files: tuple[WrittenFile, ...]
    bytes_read: int
    rows_in: int
    rows_out: int
    bytes_decoded: int
    bytes_copied: int = 0
    pages_copied: int = 0
    decoded_because: Mapping[str, int] = field(default_factory=dict)
