"""Files that were written and are not yet visible: what an Iceberg manifest entry needs to know of each, and which
older files they take the place of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from icesize.parquet.format.refusals import LOG, Refusal
from icesize.planning.files import DeleteFile, FileFact, PartitionKey


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """An older data file whose bytes are in a new one; not `whole` when only some of its row groups are."""

    path: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """One finished Parquet file.

    Maps are keyed by Iceberg field id; bounds are Iceberg's single-value serialisation. `sequence_number` is the data
    sequence number to record: None for new rows (inherited from their snapshot), the largest of its inputs for a
    merged file, so that a merge never makes old rows look new. `bytes_copied` of its bytes were moved without decoding.

    `copied_from` names the files that they came from, each once, by the paths that manifests have. As long as it does,
    bounds and NaN counts are those of the other `rows_decoded` rows alone, with `nulls_decoded` nulls by field id; what
    manifests say of the copied files is merged in (`icesize.parquet.files.metrics.carry_over`) before any commit.
    Value and null counts are the whole file's from the start, and bounds are, too, where it `has_bounds`.

    `counts` has for each leaf column, by field id, its entries and how many of them have no value, None for what is
    not known; it is empty once they are compared with those of the rows that were read (`reading.conservation`).

    One with `deletes_of` is no data file: it names deleted rows of the data file at this path.
    """

    path: str
    size_bytes: int
    rows: int
    partition: PartitionKey
    column_sizes: dict[int, int] = field(default_factory=dict)
    value_counts: dict[int, int] = field(default_factory=dict)
    null_value_counts: dict[int, int] = field(default_factory=dict)
    nan_value_counts: dict[int, int] = field(default_factory=dict)
    lower_bounds: dict[int, bytes] = field(default_factory=dict)
    upper_bounds: dict[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    sort_order_id: int | None = None
    sequence_number: int | None = None
    bytes_copied: int = 0
    copied_from: tuple[CopiedFrom, ...] = ()
    has_bounds: bool = False
    rows_decoded: int = 0
    nulls_decoded: dict[int, int] = field(default_factory=dict)
    deletes_of: str | None = None
    counts: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RewrittenDeletes:
    """Position delete files that take the place of others: `files`, one for each of the data files `covered` that has
    deleted rows, name all rows of it that the delete files `replaced` hit, those of the partition that may hit one of
    `covered`. `named` are the data files that position delete files name, of those that name several.
    """

    partition: PartitionKey
    covered: tuple[FileFact, ...]
    replaced: tuple[DeleteFile, ...]
    files: tuple[WrittenFile, ...]
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeResult:
    """Files that take the place of others: `files` hold exactly the live rows of `inputs`, of which `rows_deleted` were
    left out, since deletes hit them. `named` are the data files that position delete files name, of those that were
    read and name several.

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
    rows_deleted: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)

    @property
    def rows_in(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(file.rows for file in self.inputs)

    @property
    def rows_out(self) -> int:
        return sum(file.rows for file in self.files)


def decoded_because(results: Iterable[MergeResult]) -> dict[str, int]:
    """Count the decoded input files of all results by reason; log internal errors, which workers log elsewhere."""
    counts = sum((Counter(result.decoded_because) for result in results), Counter[str]())
    if files := counts[Refusal.INTERNAL_ERROR.value]:
        LOG.error("Internal error of icesize: %d files were decoded", files, extra={"internal_error": True})
    return dict(+counts)


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """A group was not merged: its inputs stay, no file of it is left, and `why` is a sentence for people."""

    why: str


Results = dict[int, MergeResult | MergeFailure]
"""What became of the groups of a run, by their numbers; nothing of those that were not begun when it was cancelled."""


@dataclass(frozen=True, slots=True)
class Written:
    """Finished files, the older files whose live rows are in them too, in sentences why others were not taken along,
    and by partition how many rows of the older files were deleted."""

    files: tuple[WrittenFile, ...] = ()
    absorbed: tuple[FileFact, ...] = ()
    failed: tuple[str, ...] = ()
    deleted: Mapping[PartitionKey, int] = field(default_factory=dict)

    @property
    def rows_deleted(self) -> int:
        """Rows of the older files that are in none of the new ones."""
        return sum(self.deleted.values())

    @property
    def new_rows(self) -> int:
        """Rows that were in none of the older files."""
        return sum(f.rows for f in self.files) - sum(f.rows for f in self.absorbed) + self.rows_deleted

    @classmethod
    def together(cls, parts: Iterable[Written]) -> Written:
        """What several writers of one batch did."""
        all_of = list(parts)
        return cls(
            tuple(f for part in all_of for f in part.files),
            tuple(f for part in all_of for f in part.absorbed),
            tuple(e for part in all_of for e in part.failed),
            sum((Counter(part.deleted) for part in all_of), Counter[PartitionKey]()),
        )
