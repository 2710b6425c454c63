"""What is to be merged, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icesize.parquet.files.data_file import WrittenFile
from icesize.planning.files import FileFact, PartitionKey


@dataclass(frozen=True, slots=True)
class MergeTask:
    """Merge `inputs`, all of `partition`, into `outputs` files."""

    inputs: tuple[FileFact, ...]
    partition: PartitionKey
    outputs: int = 1

    @property
    def size_bytes(self) -> int:
        """Bytes of the input files."""
        return sum(input_file.size_bytes for input_file in self.inputs)

    @property
    def rows(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(input_file.rows for input_file in self.inputs)


@dataclass(frozen=True, slots=True)
class MergeOutcome:
    """What a merge did; `rows_in` are the input files' rows, `bytes_read` their bytes.

    Of these `bytes_copied` were moved as they were, `pages_copied` counts pages that were moved one by one, and
    `bytes_decoded` were decoded and encoded again: whole input files, counted in `decoded_because` by
    `icesize.parquet.format.refusals.Refusal`, and columns whose dictionaries differ.
    """

    files: tuple[WrittenFile, ...]
    bytes_read: int
    rows_in: int
    rows_out: int
    bytes_decoded: int
    bytes_copied: int = 0
    pages_copied: int = 0
    decoded_because: Mapping[str, int] = field(default_factory=dict)
