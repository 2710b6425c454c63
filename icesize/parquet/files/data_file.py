"""A data file that was written and is not yet visible: what an Iceberg manifest entry needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from icesize.planning.files import PartitionKey


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
    manifests say of the copied files is merged in (`icesize.parquet.files.carried_over_metrics`) before any commit.
    Value and null counts are the whole file's from the start.
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
    rows_decoded: int = 0
    nulls_decoded: dict[int, int] = field(default_factory=dict)
