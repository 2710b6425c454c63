"""Files that were written and are not yet visible: what an Iceberg manifest entry needs to know of each, and which
older files they take the place of.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Generic, TypeVar, cast

from icesize.parquet.format.refusals import LOG, Refusal
from icesize.planning.files import DeleteFile, FileFact, PartitionKey

N = TypeVar("N", bound="NewFile")


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """An older data file whose bytes are in a new one; not `whole` when only some of its row groups are."""

    path: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class NewFile:
    """Facts of a finished Parquet file that a manifest entry needs.

    Maps are keyed by Iceberg field id; bounds are Iceberg's single-value serialisation. `sequence_number` is the data
    sequence number to record: None for new rows (inherited from their snapshot), the largest of its inputs for a
    merged file, so that a merge never makes old rows look new.
    """

    path: str
    size_bytes: int
    rows: int
    partition: PartitionKey
    column_sizes: Mapping[int, int] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    split_offsets: tuple[int, ...] = ()
    sort_order_id: int | None = None
    sequence_number: int | None = None

    def become(self, kind: type[N], **changes: object) -> N:
        """Return a file of another kind with the same facts but for the changes."""
        facts = {each.name: getattr(self, each.name) for each in fields(NewFile)}
        return kind(**facts | changes)


@dataclass(frozen=True, slots=True)
class NewDataFile(NewFile):
    """A data file that can be committed.

    `counts` has for each leaf column, by field id, its entries and how many of them have no value, None for what is
    not known; it is empty once they are compared with those of the rows that were read (`reading.conservation`).
    """

    counts: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewDeleteFile(NewFile):
    """A file of deleted rows: by position, of the data file at `deletes_of` if that is only one; by equality if there
    are `equality_ids`, the field ids of the columns that rows are compared by."""

    deletes_of: str | None = None
    equality_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """What is known of the columns of one file, or of some of its rows: maps by field id, as in a manifest.

    Only columns without a list or map above them count here. They have a value in each of the `rows`, but Iceberg's
    Java leaves out of the counts of some columns the rows in which a struct above them is null.
    """

    rows: int
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)

    @staticmethod
    def of(file: NewDataFile) -> FileMetrics:
        """Return the metrics of a new file."""
        return FileMetrics(
            file.rows, file.null_value_counts, file.nan_value_counts, file.lower_bounds, file.upper_bounds,
            file.value_counts,
        )  # fmt: skip

    @property
    def record_count(self) -> int:
        """The name of `rows` in PyIceberg's data files, which its evaluators of filters read."""
        return self.rows

    def nulls(self, field_id: int) -> int | None:
        """In how many rows a column is null, the struct above it or itself; None where that is not known."""
        counted = self.null_value_counts.get(field_id)
        return None if counted is None else self.outside(field_id) + counted

    def nans(self, field_id: int) -> int | None:
        """In how many rows a column is NaN; None where that is not known."""
        return self.nan_value_counts.get(field_id)

    def outside(self, field_id: int) -> int:
        """Return the number of rows that the counts of a column leave out."""
        return max(0, self.rows - self.value_counts.get(field_id, self.rows))


@dataclass(frozen=True, slots=True)
class CopiedFile(NewFile):
    """A data file with rows that were copied without decoding: it cannot be committed before `carry_over` of
    `icesize.parquet.files.metrics` has made a `NewDataFile` of it.

    `copied_from` names the files that those rows came from, each once, by the paths that manifests have; what these say
    of them is still to be merged with the metrics of the other rows, which were `decoded`. The value and null counts
    are the whole file's, and so are the bounds if it `has_bounds`; there are no others, and no NaN counts.
    """

    copied_from: tuple[CopiedFrom, ...] = ()
    has_bounds: bool = False
    decoded: FileMetrics | None = None


FinishedFile = NewDataFile | CopiedFile
"""A data file as a merge leaves it."""
F_co = TypeVar("F_co", bound=FinishedFile, covariant=True)
G = TypeVar("G", bound=FinishedFile)


@dataclass(frozen=True, slots=True)
class RewrittenDeletes:
    """Position delete files that take the place of others: `files`, one for each of the data files `covered` that has
    deleted rows, name all rows of it that the delete files `replaced` hit, those of the partition that may hit one of
    `covered`. `named` are the data files that position delete files name, of those that name several.
    """

    partition: PartitionKey
    covered: tuple[FileFact, ...]
    replaced: tuple[DeleteFile, ...]
    files: tuple[NewDeleteFile, ...]
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeResult(Generic[F_co]):
    """Files that take the place of others: `files` hold exactly the live rows of `inputs`, of which `rows_deleted` were
    left out, since deletes hit them. `named` are the data files that position delete files name, of those that were
    read and name several.

    Of the bytes of `inputs`, `bytes_copied` were moved as they were, `pages_copied` counts pages that were moved one by
    one, and `bytes_decoded` were decoded and encoded again: whole input files, counted in `decode_reasons` by
    `icesize.parquet.format.refusals.Refusal`, and columns whose dictionaries differ.
    """

    inputs: tuple[FileFact, ...]
    files: tuple[F_co, ...]
    bytes_decoded: int = 0
    bytes_copied: int = 0
    pages_copied: int = 0
    decode_reasons: Mapping[str, int] = field(default_factory=dict)
    rows_deleted: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def with_files(self, files: Iterable[G]) -> MergeResult[G]:
        """Return the same result with other files in the place of its own."""
        return cast("MergeResult[G]", replace(self, files=tuple(files)))  # type: ignore[arg-type]

    @property
    def rows_in(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(file.rows for file in self.inputs)

    @property
    def rows_out(self) -> int:
        return sum(file.rows for file in self.files)


Rewritten = MergeResult[FinishedFile]
"""A result as a rewrite leaves it."""
Merged = MergeResult[NewDataFile]
"""A result that can be committed."""


def decode_reasons(results: Iterable[Rewritten]) -> dict[str, int]:
    """Count the decoded input files of all results by reason; log internal errors, which workers log elsewhere."""
    counts = sum((Counter(result.decode_reasons) for result in results), Counter[str]())
    if files := counts[Refusal.INTERNAL_ERROR.value]:
        LOG.error("Internal error of icesize: %d files were decoded", files, extra={"internal_error": True})
    return dict(+counts)


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """A group was not merged: its inputs stay, no file of it is left, and `why` is a sentence for people."""

    why: str


Results = dict[int, Rewritten | MergeFailure]
"""What became of the groups of a run, by their numbers; nothing of those that were not begun when it was cancelled."""


@dataclass(frozen=True, slots=True)
class Written:
    """Finished files, the older files whose live rows are in them too, in sentences why others were not taken along,
    and by partition how many rows of the older files were deleted."""

    files: tuple[NewDataFile, ...] = ()
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
