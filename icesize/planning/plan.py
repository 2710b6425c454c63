"""What will be merged and what stays, as plain values: the outcome of `icesize.planning.merging.planner`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Protocol, TypeVar

from icesize.planning.cluster_by import ClusterBy
from icesize.planning.files import FileFact, Head, PartitionKey, SkipReason
from icesize.results import Keys, Result, keys


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
        """The input files that some delete may hit."""
        return [file for file in self.inputs if file.delete_files]

    @property
    def live_bytes(self) -> int:
        """About what will be written: without the rows that are known to be deleted."""
        return self.size_bytes - sum(file.size_bytes - file.live_bytes for file in self.with_deletes)

    @property
    def deleted_rows(self) -> int:
        """Rows of the input files that are known to be deleted."""
        return sum(file.deleted_rows for file in self.with_deletes)

    @property
    def avoidable_deletes(self) -> int:
        """Delete files that a scan of the input files opens, once for each of them, and one of the outputs does not."""
        return sum(file.avoidable_deletes for file in self.with_deletes)

    @property
    def rows(self) -> int:
        """Rows of the input files, as their manifest entries say."""
        return sum(file.rows for file in self.inputs)


@dataclass(frozen=True)
class MergeTask(FileGroup):
    """Files of one partition that become `outputs` files. In a merge these are always fewer than `inputs`, but for a
    file that is written again alone, without its deleted rows.

    Its writer must make exactly `outputs` files of about `output_size_bytes`: rolling at the target size instead
    would leave a remainder file. `label` is how people write the partition. `cold` says that the partition gets no rows
    any more and is being finished. The number of a group is its place in the plan, or among the groups of a run.
    """

    outputs: int = 1
    label: str = ""
    cold: bool = False

    KEYS: ClassVar[Keys] = keys(
        "size_bytes", "rows", "deleted_rows", "output_size_bytes", partition="label", label=None, inputs=None,
        files=lambda group: len(group.inputs), input_files=lambda group: [file.path for file in group.inputs],
    )  # fmt: skip

    @property
    def output_size_bytes(self) -> int:
        """Expected size of each output, rounded up."""
        return -(-self.live_bytes // self.outputs)


@dataclass(frozen=True, slots=True)
class Skipped:
    """Files that stay as they are: one `file`, or None and the count of a partition's well-sized files."""

    file: FileFact | None
    partition: PartitionKey
    reason: SkipReason
    files: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class PartitionOutcome:
    """Small files that one partition will hold after the plan and the batch that it was made for.

    `small_files` are mergeable ones, new files of the batch included; `ineligible` counts the others by reason.
    `delete_files` are the most that will have to be read with one file that stays, of any size, and could be rewritten.
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
    files in one of these partitions.
    """

    files: Mapping[SkipReason, int] = field(default_factory=dict)
    small_files_max: int = 0


def ineligible_partitions(outcomes: Iterable[PartitionOutcome]) -> tuple[PartitionOutcome, ...]:
    """Those with ineligible files, as people tell them apart."""

    def add(one: PartitionOutcome, other: PartitionOutcome) -> PartitionOutcome:
        ineligible = dict(Counter(one.ineligible) + Counter(other.ineligible))
        return replace(one, small_files=one.small_files + other.small_files, ineligible=ineligible)

    return tuple(alike((outcome for outcome in outcomes if outcome.ineligible), add))


class Labelled(Protocol):
    """Something about a partition, which has a `label` as people write it."""

    @property
    def label(self) -> str: ...


L = TypeVar("L", bound=Labelled)


def alike(items: Iterable[L], add: Callable[[L, L], L]) -> list[L]:
    """The items, those of partitions that are written alike (NaN) as one."""
    together: dict[str, L] = {}
    for item in items:
        together[item.label] = add(together[item.label], item) if item.label in together else item
    return list(together.values())


@dataclass(frozen=True, slots=True)
class Forecast:
    """How the bytes of a plan's input files are expected to move: `bytes_copied` as they are, of them `pages_copied`
    pages one by one where there is another file to join them with, `bytes_decoded` not.

    `decode_reasons` counts files by the reason for which they are decoded, among the `files_examined` and those that
    are too small to be looked at.
    """

    bytes_copied: int
    bytes_decoded: int
    pages_copied: int = 0
    decode_reasons: Mapping[str, int] = field(default_factory=dict)
    files_examined: int = 0


@dataclass(frozen=True)
class Plan(Result):
    """What will be merged; every file of the layout is an input file of one group or counted in one `Skipped`, or in
    `untouched`.

    `head` is the planning base: a delete committed after it forbids a merge that it applies to. `groups` come in the
    order in which they are worth their bytes. `incoming` are the small files that a batch was expected to add to each
    partition. `delete_files_freed` hit no other files than the inputs, as far as the layout shows. `notes` are
    sentences for people. `forecast` is there if it was asked for, `clustering` if rows are put in order.
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
    KEYS: ClassVar[Keys] = keys(
        "files_after", "files_removed", "files_added", "bytes_to_write", "small_files_max", "rows_freed",
        "delete_files_max", snapshot_id="head.snapshot_id", skipped="skipped_by_reason",
        ineligible=lambda plan: {o.label: o.ineligible for o in plan.ineligible},
        partitions_over_limit=lambda plan: {o.label: o.small_files for o in plan.partitions_over_limit},
        partitions_over_delete_limit=lambda plan: {o.label: o.delete_files for o in plan.partitions_over_delete_limit},
        head=None, outcomes=None, incoming=None, untouched=None,
    )  # fmt: skip

    @cached_property
    def bytes_to_write(self) -> int:
        """Bytes of all input files."""
        return sum(g.size_bytes for g in self.groups)

    @property
    def is_due(self) -> bool:
        """Whether there is something to do, if only a budget allowed it."""
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
        """Partitions with small files that must not be merged."""
        return ineligible_partitions(self.outcomes)

    @property
    def partitions_over_limit(self) -> tuple[PartitionOutcome, ...]:
        """Partitions that will still hold more than `max_small_files` mergeable small files."""
        return tuple(o for o in self.outcomes if o.small_files > self.max_small_files)

    @property
    def rows_freed(self) -> int:
        """Rows of input files that are known to be deleted; more may be by equality deletes and others."""
        return sum(g.deleted_rows for g in self.groups)

    @property
    def partitions_over_delete_limit(self) -> tuple[PartitionOutcome, ...]:
        """Partitions in which more than `max_delete_files` will still have to be read with some file."""
        return tuple(o for o in self.outcomes if o.delete_files > self.max_delete_files)

    @property
    def delete_files_max(self) -> int:
        """Most delete files that will have to be read with one file that could be rewritten."""
        return max((o.delete_files for o in self.outcomes), default=0)

    @property
    def small_files_max(self) -> int:
        """Most mergeable small files that a partition will hold."""
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
    """What queries on one column open: means of files and bytes, and the most files that one value needs.

    What lies between bounds is not known, so a *point* query asks for the middle of a file by the order of all bounds:
    of eight files over the same values a value is in eight, though few are open at the end points. Files with the same
    middle count once: queries ask for values, however many rows these have. A *range* query asks for a tenth of these
    places, wherever it begins. `most_files` are those of the worst value. A sum over partitions is what queries open
    that name no partition; its `most_files` then is an upper bound, as partitions may be deepest at different values.
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
    """What makes a plan one of clustering.

    `full` says for each group of the plan whether its outputs are a sealed set, which is never written again. `before`
    is what queries on each column open now, `expected_point_files` what point queries are expected to open after the
    plan. `new_bytes` are those of input files that were in no set, among the `bytes_to_write`.
    """

    by: ClusterBy
    full: tuple[bool, ...]
    before: Mapping[str, FilesScanned]
    expected_point_files: Mapping[str, float]
    new_bytes: int
    bytes_to_write: int

    KEYS: ClassVar[Keys] = keys(
        "amplification", strategy="by.strategy", columns="by.columns", by=None, bytes_to_write=None
    )

    @property
    def amplification(self) -> float | None:
        """Bytes to write per byte that is clustered for the first time; None where sets alone are joined."""
        return self.bytes_to_write / self.new_bytes if self.new_bytes else None
