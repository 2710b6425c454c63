"""What is in a table, as plain values that cross every floor.

Nothing here reads anything: `table/state/live_files.py` fills these from manifests and `planning/merging/planner.py`
decides on them. Partition values are those that Iceberg stores (a `day` is the number of days since 1970-01-01), in the
order of the fields of the partition spec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Protocol

from icesize.planning.overlay import Overlay


class SkipReason(str, Enum):
    """Why a file stays as it is; each file of a layout is planned or has one of these, once."""

    WELL_SIZED = "WELL_SIZED"
    """At or above the small file limit, and no deletes of it are due."""
    TOO_FEW = "TOO_FEW"
    """Small, and merging now would not lower the number of files, or the slots of the partition are not used up."""
    OVER_BUDGET = "OVER_BUDGET"
    """Due, but the bytes that may be rewritten now are spent."""
    HAS_DELETES = "HAS_DELETES"
    """Deletes apply to it that must not be applied by merging (`apply-deletes`) or cannot be read."""
    OLD_SPEC = "OLD_SPEC"
    """Written under a partition spec that is not the table's current one."""
    NOT_PARQUET = "NOT_PARQUET"
    """ORC or Avro."""
    ENCRYPTED = "ENCRYPTED"
    """Carries key metadata."""
    LISTED_TWICE = "LISTED_TWICE"
    """The table lists it more than once: engines that expire snapshots would delete it when one listing goes."""
    NAN_PARTITION = "NAN_PARTITION"
    """Has NaN among its partition values: NaN equals nothing, so each such file is a partition of its own."""
    CONTESTED = "CONTESTED"
    """Other writers keep rewriting this partition; merging would starve them."""
    CLUSTERED = "CLUSTERED"
    """In a set that was clustered, or in order as it is."""


class NegativeZero(float):
    """-0.0 as a partition value: to Iceberg it is another partition than 0.0, to Python the same key."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and other.hex() == "-0x0.0p+0"

    def __hash__(self) -> int:
        return hash("-0.0")


def distinct_zeros(values: tuple[object, ...]) -> tuple[object, ...]:
    """Partition values whose floating-point zeros differ where their signs do."""
    if not any(value == 0 and isinstance(value, float) for value in values):
        return values
    return tuple(NegativeZero("-0.0") if isinstance(v, float) and v.hex() == "-0x0.0p+0" else v for v in values)


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition: the spec it belongs to and its values in spec-field order (`()` when unpartitioned).

    Of floating-point values that were read or computed it is made by `of`.
    """

    spec_id: int
    values: tuple[object, ...] = ()

    @classmethod
    def of(cls, spec_id: int, values: tuple[object, ...]) -> PartitionKey:
        """The key of these values, with -0.0 another one than 0.0."""
        return cls(spec_id, distinct_zeros(values))

    @property
    def rank(self) -> tuple[int, str]:
        """Where it stands among partitions in order; values may be None or of mixed types, which do not compare."""
        return self.spec_id, repr(self.values)


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """One live delete file: rows that are deleted beside the data files that hold them.

    `sequence_number` is its data sequence number. One with `equality_ids` deletes the rows whose columns of these field
    ids equal a row of it; one without names rows by the path of their file and their position there:
    `referenced_path` is that path where there is only one, else the paths lie between `lowest_path` and `highest_path`
    (cut off to a prefix when long, the upper one then raised), where these are known.
    """

    path: str
    size_bytes: int
    rows: int
    partition: PartitionKey
    sequence_number: int
    file_format: str = "PARQUET"
    equality_ids: tuple[int, ...] = ()
    referenced_path: str | None = None
    lowest_path: str | None = None
    highest_path: str | None = None


@dataclass(frozen=True, slots=True)
class FileFact:
    """One live data file, mostly one below the small file limit.

    `sequence_number` is Iceberg's *data* sequence number (0 in format v1). `obstacle` says why the file must not be
    merged, None when it may. `manifest_path` is where its entry was found. Where rows of it are deleted, or may be,
    `deletes` are all delete files of its partition, the same value for all files of it, `delete_files` counts those
    that may hit this one, `avoidable_deletes` those of them that would not hit a file in its place, and `deleted_rows`
    are the rows of those that name no other file. `file_sequence_number` is that of the commit that brought this path
    into the table, 0 where nobody knows.
    """

    path: str
    size_bytes: int
    rows: int
    partition: PartitionKey
    sequence_number: int = 0
    obstacle: SkipReason | None = None
    manifest_path: str = ""
    deletes: tuple[DeleteFile, ...] = field(default=(), compare=False)
    delete_files: int = 0
    deleted_rows: int = 0
    avoidable_deletes: int = 0
    file_sequence_number: int = field(default=0, compare=False)

    @property
    def live_bytes(self) -> int:
        """About the size of the file without the rows that are known to be deleted; at least 1."""
        if not self.deleted_rows:
            return self.size_bytes
        return max(1, self.size_bytes * max(0, self.rows - self.deleted_rows) // max(1, self.rows))


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The files of one partition: all of them counted, kept as values the small ones and, as `large`, those of the
    others that some delete may hit.

    `label` is how people write the partition (`hour=h191`, `` when unpartitioned). `newest` stamps the commit that
    brought the partition's newest rows. `Layout.commits_since` returns the age of a stamp: each commit changes all
    ages, and no stamp.
    """

    key: PartitionKey
    label: str
    files: int
    size_bytes: int
    rows: int
    small: tuple[FileFact, ...] = ()
    newest: int = 0
    large: tuple[FileFact, ...] = ()

    @property
    def with_deletes(self) -> list[FileFact]:
        """Files of any size that some delete may hit."""
        return [file for file in self.small + self.large if file.delete_files]

    def adding(self, file: FileFact, small_file_limit_bytes: int) -> PartitionFacts:
        """The partition once a new file is in it, too."""
        return replace(
            self,
            files=self.files + 1,
            size_bytes=self.size_bytes + file.size_bytes,
            rows=self.rows + file.rows,
            small=(*self.small, file) if file.size_bytes < small_file_limit_bytes else self.small,
            newest=NEW_ROWS,
        )

    def without(self, files: Iterable[FileFact]) -> PartitionFacts:
        """The partition once these of its files are gone."""
        gone = {file.path: file for file in files}
        return replace(
            self,
            files=self.files - len(gone),
            size_bytes=self.size_bytes - sum(file.size_bytes for file in gone.values()),
            small=tuple(file for file in self.small if file.path not in gone),
            large=tuple(file for file in self.large if file.path not in gone),
        )


NEW_ROWS = 1 << 62
"""The stamp of rows that are not committed yet: no commit came after them."""


def negative_age(stamp: int) -> int:
    """Return the age of a stamp that is a negative number of commits."""
    return max(0, -stamp)


MAIN = "main"
"""The branch of a table that is read and committed to where no other is named (Iceberg's `SnapshotRef.MAIN_BRANCH`)."""


@dataclass(frozen=True, slots=True)
class Head:
    """The snapshot that a branch `ref` points to, with its sequence number: None and 0 for a branch without one."""

    snapshot_id: int | None = None
    sequence_number: int = 0
    ref: str = MAIN


class PartitionSummary(Protocol):
    """A summary of all partitions of a layout that is updated with the changed ones."""

    @property
    def files(self) -> int:
        """Number of data files."""

    def changed(self, before: Iterable[PartitionFacts], after: Iterable[PartitionFacts]) -> PartitionSummary:
        """Return the summary with the partitions `after` in place of those in `before`."""


@dataclass(frozen=True)
class Layout:
    """The data files of the snapshot at `head`, the planning base of every conflict check.

    `spec_id` is the table's current partition spec; files of other specs are here too. `small_file_limit_bytes` is the
    limit that chose `small`. Not `complete`: manifests without partitions that matter were not read. `manifests` are
    those that were, of delete files as well.

    `commits_since` returns the number of commits that added rows after the one with a stamp. `standing` sums up what a
    plan says of partitions that it does not look at, if the reader keeps that from one state of the table to the next.
    """

    head: Head
    spec_id: int
    small_file_limit_bytes: int
    partitions: Mapping[PartitionKey, PartitionFacts] = field(default_factory=dict)
    complete: bool = True
    manifests: int = 0
    commits_since: Callable[[int], int] = field(default=negative_age, compare=False)
    standing: PartitionSummary | None = field(default=None, compare=False)

    @property
    def files(self) -> int:
        """Number of live data files."""
        if self.standing:
            return self.standing.files
        return sum(p.files for p in self.partitions.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of live data files."""
        return sum(p.size_bytes for p in self.partitions.values())

    @property
    def rows(self) -> int:
        """Records in live data files, deleted ones included."""
        return sum(p.rows for p in self.partitions.values())

    def with_partitions(self, changes: Mapping[PartitionKey, PartitionFacts | None]) -> Layout:
        """Return the layout with these partitions in addition or instead; None removes a partition."""
        before = [facts for key in changes if (facts := self.partitions.get(key))]
        return replace(
            self,
            partitions=Overlay.of(self.partitions).changed(changes),
            standing=self.standing and self.standing.changed(before, filter(None, changes.values())),
        )

    def recent(self, cold_after_commits: int) -> list[PartitionKey]:
        """Partitions that got rows within the last so many commits that added some."""
        return [key for key, facts in self.partitions.items() if self.commits_since(facts.newest) < cold_after_commits]

    def growing(self, since_number: int, cold_after_commits: int) -> list[PartitionKey]:
        """Partitions with small files of a merge that are not cold and got rows by the commit of that sequence number
        or a later one. A merged file keeps the number of its newest input; the commit that brought it comes after.
        """
        return [
            key
            for key in self.recent(cold_after_commits)
            if any(0 < file.sequence_number < file.file_sequence_number for file in self.partitions[key].small)
            and max(file.sequence_number for file in self.partitions[key].small) >= since_number
        ]
