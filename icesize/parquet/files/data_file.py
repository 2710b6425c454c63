"""Facts of files that are written but not yet visible.

They are the values of an Iceberg manifest entry, and the older files that a merge replaces.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from traceback import format_exception
from typing import Generic, TypeVar, cast

from icesize.parquet.files.row_map import RowMap
from icesize.parquet.format.refusals import LOG, Refusal, is_internal
from icesize.planning.files import DeleteFile, FileFact, FileId, PartitionKey

N = TypeVar("N", bound="NewFile")


@dataclass(frozen=True, slots=True)
class CopiedFrom:
    """An older data file whose bytes are in a new one; `whole` is False if only some of its row groups are."""

    path: str
    whole: bool = True


@dataclass(frozen=True, slots=True)
class NewFile:
    """Facts of a finished Parquet file that a manifest entry needs.

    Maps are keyed by Iceberg field id. Bounds are Iceberg's single-value serialization. `sequence_number` is the data
    sequence number to record. It is None for new rows, which inherit it from their snapshot. A merged file has the
    largest number of its inputs and of the applied equality deletes. A merge therefore never makes old rows look new.
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
        """Return a file of another kind with the same facts, except for the changes."""
        facts = {each.name: getattr(self, each.name) for each in fields(NewFile)}
        return kind(**facts | changes)


@dataclass(frozen=True, slots=True)
class NewDataFile(NewFile):
    """A data file that can be committed.

    `counts` has two numbers for each leaf column, by field id: its entries, and its entries without a value. None means
    unknown. `counts` is empty after the comparison with the counts of the rows that were read (`reading.conservation`).
    """

    counts: dict[int, tuple[int | None, int | None]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NewDeleteFile(NewFile):
    """A file of deleted rows, by position or by equality, or a deletion vector in a Puffin file.

    `deletes_of` is the path of the data file, if the position deletes are for one data file only. `equality_ids` are
    the field ids of the compared columns, if the file deletes by equality. A deletion vector is `content_size_bytes`
    long and begins at `content_offset` in the file, which it may share with others; `size_bytes` is that of the file.
    """

    deletes_of: str | None = None
    equality_ids: tuple[int, ...] = ()
    content_offset: int | None = None
    content_size_bytes: int | None = None

    @property
    def id(self) -> FileId:
        """A value that no other live delete file has."""
        return self.path if self.content_offset is None else (self.path, self.content_offset)

    @property
    def content_bytes(self) -> int:
        """Bytes of the file, or of the vector in it: what Iceberg's summaries count."""
        return self.size_bytes if self.content_size_bytes is None else self.content_size_bytes


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """Known metrics of the columns of one file, or of some of its rows, by field id as in a manifest.

    They cover only columns without a list or map above them. Such a column has a value in each of the `rows`. For some
    columns, however, the counts of Iceberg's Java library omit the rows in which a struct above is null.
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
        """Rows, under the name that PyIceberg's filter evaluators read from its data files."""
        return self.rows

    def nulls(self, field_id: int) -> int | None:
        """Return the number of rows in which a column or a struct above it is null; None if unknown."""
        counted = self.null_value_counts.get(field_id)
        return None if counted is None else self.outside(field_id) + counted

    def nans(self, field_id: int) -> int | None:
        """Return the number of rows in which a column is NaN; None if unknown."""
        return self.nan_value_counts.get(field_id)

    def outside(self, field_id: int) -> int:
        """Return the number of rows that the counts of a column omit."""
        return max(0, self.rows - self.value_counts.get(field_id, self.rows))


@dataclass(frozen=True, slots=True)
class CopiedFile(NewFile):
    """A data file with rows that were copied without decoding.

    It can be committed only after `carry_over` of `icesize.parquet.files.metrics` turns it into a `NewDataFile`.

    `copied_from` names the source files of the copied rows, each once, by the paths in manifests. Their manifest
    metrics are still to be merged with `decoded`, the metrics of all decoded rows. The value counts and null counts
    cover the whole file, and so do the bounds if `has_bounds` is True. Otherwise there are no bounds. There are never
    NaN counts.
    """

    copied_from: tuple[CopiedFrom, ...] = ()
    has_bounds: bool = False
    decoded: tuple[FileMetrics, ...] = ()


FinishedFile = NewDataFile | CopiedFile
"""A data file as a merge leaves it."""
F_co = TypeVar("F_co", bound=FinishedFile, covariant=True)
G = TypeVar("G", bound=FinishedFile)


@dataclass(frozen=True, slots=True)
class RewrittenDeletes:
    """Position delete files or deletion vectors that replace other delete files.

    Each of the data files `covered` with deleted rows has one file in `files`. It names all rows that the delete files
    `replaced` mark as deleted. `replaced` are the delete files of the partition that may apply to one of `covered`.
    `named` has the data files that a position delete file names, for position delete files that name several.
    """

    partition: PartitionKey
    covered: tuple[FileFact, ...]
    replaced: tuple[DeleteFile, ...]
    files: tuple[NewDeleteFile, ...]
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MergeResult(Generic[F_co]):
    """Files that replace other files.

    `files` hold exactly the live rows of `inputs`, without the `rows_deleted` rows that deletes apply to. `named` has
    the data files that a position delete file names, for each position delete file that was read and names several.

    `bytes_copied` and `bytes_decoded` divide the bytes of `inputs`: `bytes_copied` were moved unchanged, and
    `bytes_decoded` were decoded and encoded again. The latter are whole input files, which `decode_reasons` counts by
    `icesize.parquet.format.refusals.Refusal`, and columns whose dictionaries differ. `pages_copied` counts the pages
    that were moved one by one. `row_map` is None if the places of the rows were not kept.
    """

    inputs: tuple[FileFact, ...]
    files: tuple[F_co, ...]
    bytes_decoded: int = 0
    bytes_copied: int = 0
    pages_copied: int = 0
    decode_reasons: Mapping[str, int] = field(default_factory=dict)
    rows_deleted: int = 0
    named: Mapping[str, frozenset[str]] = field(default_factory=dict)
    row_map: RowMap | None = field(default=None, compare=False)

    def with_files(self, files: Iterable[G]) -> MergeResult[G]:
        """Return the same result with these files instead of its own."""
        return cast("MergeResult[G]", replace(self, files=tuple(files)))  # type: ignore[arg-type]

    @property
    def moves(self) -> bool:
        """True if rows go into partitions of another spec."""
        return any(file.partition.spec_id != self.inputs[0].partition.spec_id for file in self.files)

    @property
    def rows_in(self) -> int:
        """Rows of the input files, according to their manifest entries."""
        return sum(file.rows for file in self.inputs)

    @property
    def rows_out(self) -> int:
        return sum(file.rows for file in self.files)


Rewritten = MergeResult[FinishedFile]
"""A result as a rewrite leaves it."""
Merged = MergeResult[NewDataFile]
"""A result that can be committed."""


def decode_reasons(results: Iterable[Rewritten]) -> dict[str, int]:
    """Count the decoded input files of all results by reason.

    Log internal errors here as well, because workers write them to other logs.
    """
    counts = sum((Counter(result.decode_reasons) for result in results), Counter[str]())
    if files := counts[Refusal.INTERNAL_ERROR.value]:
        LOG.error("Internal error of icesize: %d files were decoded", files, extra={"internal_error": True})
    return dict(+counts)


@dataclass(frozen=True, slots=True)
class MergeFailure:
    """A group that was not merged: its inputs stay, its new files are removed, and `why` is a sentence for people.

    `is_internal` is True for a mistake in icesize. It has a `traceback` if only the log of a Spark worker also has it.
    """

    why: str
    is_internal: bool = False
    traceback: str = ""

    @classmethod
    def of(cls, error: Exception, *, in_worker: bool = False) -> MergeFailure:
        """Return the failure that an error is; `in_worker` if this is a Spark worker."""
        internal = is_internal(error)
        return cls(str(error), internal, "".join(format_exception(error)) if internal and in_worker else "")


def log_of_workers(failures: Iterable[object]) -> None:
    """Log the tracebacks that Spark workers sent with failures among these results."""
    for each in failures:
        if isinstance(each, MergeFailure) and each.traceback:
            text = "Internal error of icesize in a Spark worker, report this\n%s"
            LOG.error(text, each.traceback, extra={"internal_error": True})


Results = dict[int, Rewritten | MergeFailure]
"""The outcomes of the groups of a run, by their numbers; nothing of those that were not begun when it was cancelled."""


@dataclass(frozen=True, slots=True)
class Written:
    """The result of writing a batch.

    `files` are the finished files. `absorbed` are the older files whose live rows are in them too. `failed` has one
    failure for each reason why older files were not absorbed. `deleted` is the number of deleted rows of the older
    files, by partition.
    """

    files: tuple[NewDataFile, ...] = ()
    absorbed: tuple[FileFact, ...] = ()
    failed: tuple[MergeFailure, ...] = ()
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
        """Return the combined results of several writers of one batch."""
        all_of = list(parts)
        return cls(
            tuple(f for part in all_of for f in part.files),
            tuple(f for part in all_of for f in part.absorbed),
            tuple(e for part in all_of for e in part.failed),
            sum((Counter(part.deleted) for part in all_of), Counter[PartitionKey]()),
        )
