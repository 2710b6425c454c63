"""What is in a table, as plain values that cross every floor.

Nothing here reads anything: `table/state/live_files.py` fills these from manifests and `planning/merging/planner.py`
decides on them. Partition values are those that Iceberg stores (a `day` is the number of days since 1970-01-01), in the
order of the fields of the partition spec.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum


class SkipReason(str, Enum):
    """Why a file stays as it is; each file of a layout is planned or has one of these, once."""

    WELL_SIZED = "WELL_SIZED"
    """At or above the small file limit."""
    TOO_FEW = "TOO_FEW"
    """Merging now would not lower the number of files, or the slots of the partition are not used up."""
    OVER_BUDGET = "OVER_BUDGET"
    """Due, but the bytes that may be rewritten now are spent."""
    HAS_DELETES = "HAS_DELETES"
    """A position delete, equality delete or deletion vector applies to it."""
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
class FileFact:
    """One live data file below the small file limit.

    `sequence_number` is Iceberg's *data* sequence number (0 in format v1). `obstacle` says why the file must not be
    merged, None when it may. `manifest_path` is where its entry was found.
    """

    path: str
    size_bytes: int
    rows: int
    partition: PartitionKey
    sequence_number: int = 0
    obstacle: SkipReason | None = None
    manifest_path: str = ""


@dataclass(frozen=True, slots=True)
class PartitionFacts:
    """The files of one partition: all of them counted, only the small ones kept as values.

    `label` is how people write the partition (`hour=h191`, `` when unpartitioned). `commits_since_append` counts the
    commits that added rows to the table after this partition's newest rows.
    """

    key: PartitionKey
    label: str
    files: int
    size_bytes: int
    rows: int
    small: tuple[FileFact, ...] = ()
    commits_since_append: int = 0


@dataclass(frozen=True)
class Layout:
    """The data files of one snapshot; `snapshot_id` is None for a table without one.

    `sequence_number` is that snapshot's, the planning base of every conflict check. `spec_id` is the table's current
    partition spec; files of other specs are here too. `small_file_limit_bytes` is the limit that chose `small`. Not
    `complete`: manifests without partitions that matter were not read.
    """

    snapshot_id: int | None
    sequence_number: int
    spec_id: int
    small_file_limit_bytes: int
    partitions: Mapping[PartitionKey, PartitionFacts] = field(default_factory=dict)
    complete: bool = True

    @property
    def files(self) -> int:
        """Number of live data files."""
        return sum(p.files for p in self.partitions.values())

    @property
    def size_bytes(self) -> int:
        """Bytes of live data files."""
        return sum(p.size_bytes for p in self.partitions.values())

    @property
    def rows(self) -> int:
        """Records in live data files, deleted ones included."""
        return sum(p.rows for p in self.partitions.values())

    def recent(self, cold_after_commits: int) -> list[PartitionKey]:
        """Partitions that got rows within the last so many commits that added some."""
        return [key for key, facts in self.partitions.items() if facts.commits_since_append < cold_after_commits]
