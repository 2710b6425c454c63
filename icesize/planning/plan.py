"""The files to merge and the files to keep, as plain values: the outcome of `icesize.planning.merging.planner`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TypeVar

from icesize.planning.cluster_by import ClusterBy
from icesize.planning.files import FileFact, Head, Layout, PartitionKey, SkipReason
from icesize.policy import SizePolicy
from icesize.results import Result, keys


@dataclass(frozen=True)
class FileGroup:
    """Files of one partition that are read together."""

    inputs: tuple[FileFact, ...]
    partition: PartitionKey

    # asked for many times while groups are ordered and budgeted
    @cached_property
    def size_bytes(self) -> int:
        """Bytes of the input files, which are read."""
        return sum(file.size_bytes for file in self.inputs)

    @cached_property
    def with_deletes(self) -> list[FileFact]:
        """The input files to which some delete may apply."""
        return [file for file in self.inputs if file.delete_files]

    @property
    def live_bytes(self) -> int:
        """Approximate bytes to write: without the rows that are known to be deleted."""
        return self.size_bytes - sum(file.size_bytes - file.live_bytes for file in self.with_deletes)

    @property
    def deleted_rows(self) -> int:
        """Rows of the input files that are known to be deleted."""
        return sum(file.deleted_rows for file in self.with_deletes)

    @property
    def avoidable_deletes(self) -> int:
        """Delete files that a scan of the inputs opens, counted once per input, and a scan of the outputs does not."""
        return sum(file.avoidable_deletes for file in self.with_deletes)

    @property
    def rows(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(file.rows for file in self.inputs)


@dataclass(frozen=True)
class MergeTask(FileGroup):
    """Files of one partition that become `outputs` files.

    A merge has fewer outputs than inputs. One file alone is rewritten only to remove its deleted rows. The writer makes
    exactly `outputs` files of about `output_size_bytes`, because rolling at the target size would leave a small
    remainder. `label` is the partition as people write it. `cold` is True if the partition receives no rows any more.
    If `moves` is True, the rows go from a partition of an old spec into those of the current one, and `outputs` is the
    least number of files. The number of a group is its index in the plan, or among the groups of a run.
    """

    outputs: int = 1
    label: str = ""
    cold: bool = False
    moves: bool = False

    KEYS = keys(
        "size_bytes", "rows", "deleted_rows", "output_size_bytes", partition="label", label=None, inputs=None,
        moves=None, files=lambda group: len(group.inputs),
        input_files=lambda group: [file.path for file in group.inputs],
    )  # fmt: skip

    @property
    def output_size_bytes(self) -> int:
        """Expected size of each output, rounded up."""
        return -(-self.live_bytes // self.outputs)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Files that are not rewritten: one `file`, or None and the number of a partition's well-sized files."""

    file: FileFact | None
    partition: PartitionKey
    reason: SkipReason
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """The small files of one partition after the plan and the batch for which it was made.

    `small_files` is the number of mergeable ones, new files of the batch included. `ineligible` counts the others by
    reason. `delete_files` is the most delete files that apply to one remaining file that could be rewritten.
    """

    partition: PartitionKey
    label: str
    small_files: int
    ineligible: Mapping[SkipReason, int]
    delete_files: int = 0


@dataclass(frozen=True)
class Untouched:
    """Files of partitions that a plan did not look at because nothing in them is due.

    `files` counts them by the reason for which they stay. `small_files_max` is the largest number of mergeable small
    files in one of these partitions. `delete_files_max` is the most delete files that apply to one of their files.
    """

    files: Mapping[SkipReason, int] = field(default_factory=dict)
    small_files_max: int = 0
    delete_files_max: int = 0


def ineligible_partitions(outcomes: Iterable[PartitionOutcome]) -> tuple[PartitionOutcome, ...]:
    """Return the outcomes with ineligible files; partitions with the same label (NaN) are one outcome."""

    def add(one: PartitionOutcome, other: PartitionOutcome) -> PartitionOutcome:
        ineligible = dict(Counter(one.ineligible) + Counter(other.ineligible))
        return replace(one, small_files=one.small_files + other.small_files, ineligible=ineligible)

    return tuple(alike((outcome for outcome in outcomes if outcome.ineligible), lambda outcome: outcome.label, add))


L = TypeVar("L")


def alike(items: Iterable[L], key: Callable[[L], Hashable], add: Callable[[L, L], L]) -> list[L]:
    """Return the items, with those of the same key as one, in the order of the first ones."""
    together: dict[Hashable, L] = {}
    for item in items:
        same = key(item)
        together[same] = add(together[same], item) if same in together else item
    return list(together.values())


def distinct(items: Iterable[L], key: Callable[[L], Hashable]) -> list[tuple[L, int]]:
    """Return the first item of each key, with the number of items that have it, in the order of the first ones."""
    return alike(((item, 1) for item in items), lambda one: key(one[0]), lambda one, other: (one[0], one[1] + other[1]))


@dataclass(frozen=True, slots=True)
class Forecast:
    """The expected work of a plan.

    `bytes_copied` are copied without decoding, `pages_copied` of them page by page; `bytes_decoded` are decoded and
    encoded. `decode_reasons` counts files by the reason why they are decoded. It covers the files that were examined,
    and files that are too small to examine.
    """

    bytes_copied: int
    bytes_decoded: int
    pages_copied: int = 0
    decode_reasons: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan(Result):
    """The files to merge, and the reasons why the other files stay.

    Every file of the layout is counted once: in `groups`, `skipped` or `untouched`.

    Attributes:
        head: The snapshot that the plan is based on. If a later delete applies to an input file, its merge is dropped.
        spec_id: The table's current partition spec.
        groups: The merges, those that save most per byte first.
        skipped: Files that stay, with reasons.
        outcomes: Small files and delete files of partitions after the plan.
        max_small_files: The policy key `max-small-files`.
        files_before: Number of live data files.
        notes: Sentences for people.
        incoming: Small files that the batch is expected to add, by partition.
        max_delete_files: The policy key `max-delete-files`.
        delete_files_freed: Number of delete files that apply to no file after the plan, as far as the layout shows.
        forecast: Expected copying and decoding, if it was computed.
        clustering: The clustering, if the plan orders rows.
        untouched: Files of partitions that the plan did not examine, because nothing in them is due.
    """

    head: Head
    spec_id: int
    groups: tuple[MergeTask, ...]
    skipped: tuple[Skipped, ...]
    outcomes: tuple[PartitionOutcome, ...]
    max_small_files: int
    files_before: int
    notes: tuple[str, ...] = ()
    incoming: Mapping[PartitionKey, int] = field(default_factory=dict)
    max_delete_files: int = 0
    delete_files_freed: int = 0
    forecast: Forecast | None = None
    clustering: Clustering | None = None
    untouched: Untouched = Untouched()

    # totals, each group with the paths of its input files, and what stays by reason or partition
    KEYS = keys(
        "files_after", "files_removed", "files_added", "bytes_to_write", "small_files_max", "rows_freed",
        "delete_files_max", snapshot_id="head.snapshot_id", skipped="skipped_by_reason",
        ineligible=lambda plan: {o.label: o.ineligible for o in plan.ineligible},
        partitions_over_limit=lambda plan: {o.label: o.small_files for o in plan.partitions_over_limit},
        partitions_over_delete_limit=lambda plan: {o.label: o.delete_files for o in plan.partitions_over_delete_limit},
        head=None, outcomes=None, incoming=None, untouched=None,
    )  # fmt: skip

    @classmethod
    def empty(cls, layout: Layout, policy: SizePolicy) -> Plan:
        """Return a plan that rewrites nothing."""
        return cls(
            layout.head, layout.spec_id, groups=(), skipped=(), outcomes=(), max_small_files=policy.max_small_files,
            files_before=layout.files, max_delete_files=policy.max_delete_files,
        )  # fmt: skip

    @cached_property
    def bytes_to_write(self) -> int:
        """Bytes of all input files."""
        return sum(g.size_bytes for g in self.groups)

    @property
    def is_due(self) -> bool:
        """True if files are due, even if a budget excludes all of them."""
        return bool(self.groups) or any(skip.reason is SkipReason.OVER_BUDGET for skip in self.skipped)

    @property
    def files_removed(self) -> int:
        """Number of input files."""
        return sum(len(g.inputs) for g in self.groups)

    @property
    def files_added(self) -> int:
        """Number of expected outputs."""
        return sum(g.outputs for g in self.groups)

    @property
    def files_after(self) -> int:
        """Expected number of live data files, new files of a batch not counted."""
        return self.files_before - self.files_removed + self.files_added

    @property
    def ineligible(self) -> tuple[PartitionOutcome, ...]:
        """Partitions with small files that cannot be merged."""
        return ineligible_partitions(self.outcomes)

    @property
    def partitions_over_limit(self) -> tuple[PartitionOutcome, ...]:
        """Partitions that will still hold more than `max_small_files` mergeable small files."""
        return tuple(o for o in self.outcomes if o.small_files > self.max_small_files)

    @property
    def rows_freed(self) -> int:
        """Rows of input files that are known to be deleted. Equality deletes may remove more."""
        return sum(g.deleted_rows for g in self.groups)

    @property
    def partitions_over_delete_limit(self) -> tuple[PartitionOutcome, ...]:
        """Partitions in which more than `max_delete_files` delete files will still apply to one data file."""
        return tuple(o for o in self.outcomes if o.delete_files > self.max_delete_files)

    @property
    def delete_files_max(self) -> int:
        """The largest number of delete files that will apply to one data file."""
        return max(self.untouched.delete_files_max, *(outcome.delete_files for outcome in self.outcomes), 0)

    @property
    def small_files_max(self) -> int:
        """The largest number of mergeable small files in one partition after the plan."""
        return max((self.untouched.small_files_max, *(o.small_files for o in self.outcomes)))

    @property
    def skipped_by_reason(self) -> dict[str, int]:
        """Number of files that stay, by `SkipReason` value."""
        counts = Counter({reason.value: files for reason, files in self.untouched.files.items()})
        for skip in self.skipped:
            counts[skip.reason.value] += skip.files
        return dict(counts)


@dataclass(frozen=True, slots=True)
class FilesScanned(Result):
    """Files and bytes that queries on one column open, on average, and the most files for one value.

    Bounds do not show the values between them. A *point* query therefore selects the middle of a file, in the order of
    all bounds: of eight files with the same bounds, it opens eight. Files with the same middle count once, because
    queries select values, whatever their number of rows. A *range* query selects a tenth of these middles, from any
    start. `most_files` are the files of the worst value. The sum over partitions describes queries without a filter on
    the partition. Its `most_files` is an upper bound, because the worst values of partitions can differ.
    """

    point_files: float
    point_bytes: float
    most_files: int
    range_files: float
    range_bytes: float

    def __add__(self, other: FilesScanned) -> FilesScanned:
        return FilesScanned(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


NOTHING = FilesScanned(0.0, 0.0, 0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Clustering(Result):
    """The part of a plan that only clusterings have.

    Attributes:
        by: Columns and strategy.
        full: For each group, True if its outputs are a sealed set, which is never rewritten.
        before: Column -> files and bytes that queries open now.
        expected_point_files: Column -> files that a point query is expected to open after the plan.
        new_bytes: Bytes of input files that were in no set.
        bytes_to_write: Bytes of all input files.
    """

    by: ClusterBy
    full: tuple[bool, ...]
    before: Mapping[str, FilesScanned]
    expected_point_files: Mapping[str, float]
    new_bytes: int
    bytes_to_write: int

    KEYS = keys("amplification", strategy="by.strategy", columns="by.columns", by=None, bytes_to_write=None)

    @property
    def amplification(self) -> float | None:
        """Bytes to write per byte that is clustered for the first time; None if the plan only joins sets."""
        return self.bytes_to_write / self.new_bytes if self.new_bytes else None
