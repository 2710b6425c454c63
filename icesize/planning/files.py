"""The content of a table, as plain values that every layer uses.

`table/state/live_files.py` makes these values from manifests, and `planning/merging/planner.py` plans with them.
Partition values are those that Iceberg stores (a `day` is the number of days since 1970-01-01), in the order of the
fields of the partition spec.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, ItemsView, Iterable, Iterator, Mapping, ValuesView
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import takewhile
from typing import Protocol, TypeAlias

from icesize.planning.file_sizes import is_small_file
from icesize.planning.overlay import Overlay
from icesize.policy import SizePolicy


class SkipReason(str, Enum):
    """The reason why a file is not rewritten. Each file of a layout is in a plan once: in a group, or with a reason."""

    WELL_SIZED = "WELL_SIZED"
    """The file is not below the small file limit, and its deletes are not due."""
    TOO_FEW = "TOO_FEW"
    """The file is small, but the partition may keep it, or a merge now would not lower the number of files."""
    OVER_BUDGET = "OVER_BUDGET"
    """The file is due, but the budget for rewritten bytes is used up."""
    HAS_DELETES = "HAS_DELETES"
    """The file has deletes that a merge may not apply (`apply-deletes` is false) or cannot read."""
    OLD_SPEC = "OLD_SPEC"
    """The file is of an old partition spec that icesize cannot write. No file of an old spec is clustered."""
    NOT_PARQUET = "NOT_PARQUET"
    """The file is an ORC or Avro file."""
    ENCRYPTED = "ENCRYPTED"
    """The file has key metadata."""
    LISTED_TWICE = "LISTED_TWICE"
    """The table lists the file more than once. An expiry by another engine deletes it when one listing is removed."""
    NAN_PARTITION = "NAN_PARTITION"
    """A partition value of the file is NaN. NaN equals no value, so that each such file is a partition of its own."""
    CONTESTED = "CONTESTED"
    """Another writer changed rows of this partition in the last ten minutes. A merge could make its statement fail."""
    NO_ROW_IDS = "NO_ROW_IDS"
    """The table was upgraded to format v3, and no commit has given row ids to the rows of the file yet."""
    CLUSTERED = "CLUSTERED"
    """The file is in a clustered set, or in order already."""


UNREADABLE = {
    SkipReason.HAS_DELETES: "have deletes pending that icesize cannot read",
    SkipReason.NOT_PARQUET: "are not Parquet",
    SkipReason.ENCRYPTED: "are encrypted",
}
"""Reasons why icesize cannot read the files of an older version, in words that follow `files`."""


def cannot_merge(reasons: Container[str]) -> str:
    """Return the end of a sentence about small files that are ineligible for these reasons."""
    moved = ", but `icesize compact --into-current-spec` moves the rows of OLD_SPEC files"
    return f"icesize cannot merge them{moved if SkipReason.OLD_SPEC in reasons else ''}"


class NegativeZero(float):
    """-0.0 as a partition value. For Iceberg it is another partition than 0.0; for Python both are the same key."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, float) and other.hex() == "-0x0.0p+0"

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash("-0.0")


def distinct_zeros(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return partition values in which 0.0 and -0.0 are different."""
    if not any(value == 0 and isinstance(value, float) for value in values):
        return values
    return tuple(NegativeZero("-0.0") if isinstance(v, float) and v.hex() == "-0x0.0p+0" else v for v in values)


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """One partition: its spec, and its values in the order of the spec's fields (`()` if unpartitioned).

    Use `of` for floating-point values that were read or computed.
    """

    spec_id: int
    values: tuple[object, ...] = ()

    @classmethod
    def of(cls, spec_id: int, values: tuple[object, ...]) -> PartitionKey:
        """Return the key of these values. The keys of -0.0 and 0.0 are different."""
        return cls(spec_id, distinct_zeros(values))

    @property
    def rank(self) -> tuple[int, str]:
        """The key by which partitions are sorted. It is text, because None and values of mixed types do not compare."""
        return self.spec_id, repr(self.values)

    @property
    def label(self) -> str:
        """The values in one word, where the names of their fields are unknown."""
        return "/".join(map(str, self.values))


FileId: TypeAlias = str | tuple[str, int]
"""The identity of an entry of a manifest: the path of a file; for a deletion vector, path and offset."""


@dataclass(frozen=True, slots=True)
class DeleteFile:
    """One live delete file, or one deletion vector (format v3).

    An equality delete file has `equality_ids`: it deletes the rows whose columns with these field ids equal one of its
    rows. A position delete file has none: its rows name a data file and a position. `referenced_path` is the path of
    the data file if there is only one. Otherwise the paths lie between `lowest_path` and `highest_path`, if these are
    known. Long bounds are prefixes, and the upper one is then rounded up. `sequence_number` is that of the data.

    A deletion vector lies in a Puffin file, which several vectors may share: `content_size_bytes` bytes from
    `content_offset` on. It has the deleted positions of `referenced_path`. Its `rows` are the number of positions.
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
    content_offset: int | None = None
    content_size_bytes: int | None = None

    @property
    def is_vector(self) -> bool:
        """True for a deletion vector."""
        return self.content_offset is not None

    @property
    def id(self) -> FileId:
        """A value that no other live delete file has."""
        return self.path if self.content_offset is None else (self.path, self.content_offset)

    @property
    def content_bytes(self) -> int:
        """Bytes of the file, or of the vector in it: what Iceberg's summaries count."""
        return self.size_bytes if self.content_size_bytes is None else self.content_size_bytes


@dataclass(frozen=True, slots=True)
class FileFact:
    """One live data file.

    Attributes:
        path: Location of the file.
        size_bytes: Size of the file.
        rows: Number of rows, deleted ones included.
        partition: Partition of the file.
        sequence_number: Iceberg's *data* sequence number; 0 in format v1.
        obstacle: The reason why the file must not be merged; None if it may be.
        manifest_path: Location of the manifest with its entry.
        deletes: All delete files of the partition, if one of them may apply to the file. All files of a partition share
            this value.
        delete_files: Number of delete files that may apply to the file.
        deleted_rows: Rows in those delete files that name no other data file.
        avoidable_deletes: Number of delete files that would not apply to a new file in the place of this one.
        file_sequence_number: Sequence number of the commit that added the path to the table; 0 if it is unknown.
        first_row_id: The `_row_id` of the first row if the file does not store another one (format v3); None if the
            table has not given row ids to the file.
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
    first_row_id: int | None = None

    @property
    def delete_ids(self) -> frozenset[FileId]:
        """The values that distinguish `deletes`."""
        return frozenset(delete.id for delete in self.deletes)

    def inherited(self, position: int) -> tuple[int, int]:
        """Return the row id and the sequence number that the row at a position inherits."""
        return (self.first_row_id or 0) + position, self.sequence_number

    @property
    def live_bytes(self) -> int:
        """Approximate size of the file without the rows that are known to be deleted; at least 1."""
        if not self.deleted_rows:
            return self.size_bytes
        return max(1, self.size_bytes * max(0, self.rows - self.deleted_rows) // max(1, self.rows))


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The files of one partition.

    `files`, `size_bytes` and `rows` count all of them. `small` are the small files; `large` are those other files to
    which some delete may apply. `label` is the partition as people write it (`hour=h191`, `` if unpartitioned).
    `newest` stamps the commit of the newest rows. `Layout.commits_since` returns the age of a stamp: each commit
    changes all ages, and no stamp.
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
    def arrivals(self) -> tuple[int, int]:
        """Stamps of the newest rows, and of the newest ones before them in a small file.

        Both are `newest` if no small file has older rows with a sequence number (format v1 has none).
        """
        before = (file.sequence_number for file in self.small if 0 < file.sequence_number < self.newest)
        return self.newest, max(before, default=self.newest)

    @property
    def with_deletes(self) -> list[FileFact]:
        """Files of any size to which some delete may apply."""
        return [file for file in self.small + self.large if file.delete_files]

    def adding(self, file: FileFact, small_file_limit_bytes: int) -> PartitionFacts:
        """Return the partition with a new file in addition."""
        return replace(
            self,
            files=self.files + 1,
            size_bytes=self.size_bytes + file.size_bytes,
            rows=self.rows + file.rows,
            small=(*self.small, file) if is_small_file(file.size_bytes, small_file_limit_bytes) else self.small,
            newest=NEW_ROWS,
        )

    def without(self, files: Iterable[FileFact]) -> PartitionFacts:
        """Return the partition without these of its files."""
        gone = {file.path: file for file in files}
        return replace(
            self,
            files=self.files - len(gone),
            size_bytes=self.size_bytes - sum(file.size_bytes for file in gone.values()),
            rows=self.rows - sum(file.rows for file in gone.values()),
            small=tuple(file for file in self.small if file.path not in gone),
            large=tuple(file for file in self.large if file.path not in gone),
        )


NEW_ROWS = 1 << 62
"""The stamp of rows that are not committed yet: no commit came after them."""

MakeFacts: TypeAlias = Callable[[Collection["PartitionKey"] | None], Mapping["PartitionKey", PartitionFacts]]
"""Returns the facts of partitions, or of all partitions for None."""


class Partitions(Mapping[PartitionKey, PartitionFacts]):
    """The partitions of a layout. Their facts are made on first use: a batch uses few.

    Args:
        newest: For each partition, the stamp of its newest rows.
        make: Makes facts. Asked for many partitions, it takes less time than asked for each of them.
        made: Facts that are known.
    """

    __slots__ = ("_made", "_make", "newest")

    def __init__(
        self,
        newest: Overlay[PartitionKey, int],
        make: MakeFacts,
        made: Overlay[PartitionKey, PartitionFacts] | None = None,
    ) -> None:
        self.newest: Overlay[PartitionKey, int] = newest
        self._make: MakeFacts = make
        self._made: Overlay[PartitionKey, PartitionFacts] = made or Overlay()

    @classmethod
    def of(cls, facts: Mapping[PartitionKey, PartitionFacts]) -> Partitions:
        """Return these partitions."""
        return cls(Overlay({key: each.newest for key, each in facts.items()}), lambda keys: {}, Overlay(facts))

    def some(self, keys: Iterable[PartitionKey]) -> dict[PartitionKey, PartitionFacts]:
        """Return the facts of those of the partitions that exist."""
        wanted, made = [key for key in keys if key in self.newest], self._made
        if missing := [key for key in wanted if key not in made]:
            # another thread may put its own facts in place of these
            made = self._made = made.changed(self._make(missing))
        return {key: made[key] for key in wanted}

    def changed(self, changes: Mapping[PartitionKey, PartitionFacts | None]) -> Partitions:
        """Return the partitions with these facts in addition or instead; None removes a partition."""
        newest = self.newest.changed({key: facts.newest if facts else None for key, facts in changes.items()})
        return Partitions(newest, self._make, self._made.changed(changes))

    def _all(self) -> Mapping[PartitionKey, PartitionFacts]:
        made = self._made
        if len(made) < len(self.newest):
            known, every = made, self._make(None)
            made = self._made = Overlay({key: known.get(key) or every[key] for key in self.newest})
        return made

    def __getitem__(self, key: PartitionKey) -> PartitionFacts:
        return self.some([key])[key]

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self.newest)

    def __len__(self) -> int:
        return len(self.newest)

    def items(self) -> ItemsView[PartitionKey, PartitionFacts]:
        """Return all partitions with their facts, which are made together."""
        return self._all().items()

    def values(self) -> ValuesView[PartitionFacts]:
        """Return the facts of all partitions, which are made together."""
        return self._all().values()


def negative_age(stamp: int) -> int:
    """Return the age of a stamp that is a negative number of commits."""
    return max(0, -stamp)


MAIN = "main"
"""The branch of a table that is used if no other is named (Iceberg's `SnapshotRef.MAIN_BRANCH`)."""


@dataclass(frozen=True, slots=True)
class Head:
    """The snapshot that a branch points to, with its sequence number; None and 0 without a snapshot."""

    snapshot_id: int | None = None
    sequence_number: int = 0


class PartitionSummary(Protocol):
    """A summary of all partitions of a layout that is updated with the changed ones."""

    @property
    def policy(self) -> SizePolicy:
        """The policy that decides what is small and what is due."""

    @property
    def files(self) -> int:
        """Number of data files."""

    @property
    def due(self) -> Collection[PartitionKey]:
        """Partitions with files whose deletes are due, also where something forbids to rewrite them."""

    def changed(self, before: Iterable[PartitionFacts], after: Iterable[PartitionFacts]) -> PartitionSummary:
        """Return the summary with the partitions `after` in place of those in `before`."""


@dataclass(frozen=True)
class Layout:
    """The data files of one snapshot by partition. The snapshot is the planning base of every conflict check.

    Attributes:
        head: The snapshot.
        spec_id: The table's current partition spec. The layout also has files of other specs.
        small_file_limit_bytes: Files below this size are small.
        partitions: The partitions.
        complete: False if a filter ruled out manifests, which were not read.
        manifests: Number of manifests that were read, those of delete files included.
        commits_since: Returns the number of commits that added rows after the commit with a stamp.
        now: The stamp of the newest commit.
        standing: A summary of the partitions for plans that look at few of them; None if the reader keeps none.
    """

    head: Head
    spec_id: int
    small_file_limit_bytes: int
    partitions: Partitions = field(default_factory=lambda: Partitions.of({}))
    complete: bool = True
    manifests: int = 0
    commits_since: Callable[[int], int] = field(default=negative_age, compare=False)
    now: int = field(default=0, compare=False)
    standing: PartitionSummary | None = field(default=None, compare=False)

    def summary(self, policy: SizePolicy) -> PartitionSummary | None:
        """Return the summary of the partitions if it was made by this policy."""
        return self.standing if self.standing and self.standing.policy == policy else None

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
        before = self.partitions.some(changes).values()
        return replace(
            self,
            partitions=self.partitions.changed(changes),
            standing=self.standing and self.standing.changed(before, filter(None, changes.values())),
        )

    def recent(self, cold_after_commits: int) -> list[PartitionKey]:
        """Return the partitions that received rows in the last `cold_after_commits` commits that added rows."""
        return [
            key
            for newest, key in takewhile(
                lambda pair: self.commits_since(pair[0]) < cold_after_commits, self.partitions.newest.up_to(NEW_ROWS)
            )
        ]

    def growing(self, since_number: int, cold_after_commits: int) -> list[PartitionKey]:
        """Return the partitions that were merged before and received rows since the commit `since_number`.

        A merged file has the sequence number of its newest input, and a larger file sequence number, because its commit
        came later.
        """
        return [
            key
            for key, facts in self.partitions.some(self.recent(cold_after_commits)).items()
            if any(0 < file.sequence_number < file.file_sequence_number for file in facts.small)
            and max(file.sequence_number for file in facts.small) >= since_number
        ]
