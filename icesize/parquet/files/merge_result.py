"""What became of a `MergeGroup`: the files that take the place of its inputs, or why there are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from icesize.parquet.files.data_file import WrittenFile
from icesize.planning.files import FileFact


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Files that take the place of others: `files` hold exactly the live rows of `inputs`.

    Of the bytes of `inputs`, `bytes_copied` were moved as they were, `pages_copied` counts pages that were moved one by
    one, and `bytes_decoded` were decoded and encoded again: whole input files, counted in `decoded_because` by
    `icesize.parquet.format.refusals.Refusal`, and columns whose dictionaries differ.
    """

    inputs: tuple[FileFact, ...]
    files: tuple[WrittenFile, ...]
    bytes_decoded: int = 0
    bytes_copied: int = 0
    pages_copied: int = 0
    decoded_because: Mapping[str, int] = field(default_factory=dict)

    @property
    def bytes_read(self) -> int:
        """Bytes of the input files."""
        return sum(file.size_bytes for file in self.inputs)

    @property
    def rows_in(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(file.rows for file in self.inputs)

    @property
    def rows_out(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """A group was not merged: its inputs stay, no file of it is left, and `why` is a sentence for people."""

    why: str


Results = dict[int, MergeResult | MergeFailure]
"""What became of the groups of a run, by their numbers; nothing of those that were not begun when it was cancelled."""
