"""The data files that stay and get fewer delete files instead: pure.

A file with more than `max-delete-files` delete files is due (`delete_reach.is_due`). If only their number makes it due,
its deleted rows can be written by position to one delete file of its own. That reads key columns at most, and writes
few bytes. An equality delete can be removed only if all older files of its partition are covered in this way. These
files are taken along, even if they are not due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icesize.planning.deletes.delete_reach import (
    DataFiles,
    PartitionDeletes,
    is_due,
    is_due_at_any_cost,
)
from icesize.planning.files import DeleteFile, FileFact, Layout, PartitionFacts, PartitionKey, SkipReason
from icesize.policy import SizePolicy

_POSITION_BYTES = 4
"""Bytes of a deleted row in a position delete file, rather more than less: 1.1 to 2.2 bytes in one of some thousand
rows or more, measured."""


@dataclass(frozen=True, slots=True)
class DeleteRewrite:
    """Data files of one partition whose deleted rows are written by position to new delete files.

    These are the files that are `due`, and those to which other delete files of the due ones may apply. `label` is the
    partition as people write it.
    """

    partition: PartitionKey
    label: str
    files: tuple[FileFact, ...]
    due: tuple[FileFact, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the data files. At most their key columns are read."""
        return sum(file.size_bytes for file in self.files)

    @property
    def size_by_equality(self) -> int:
        """Bytes of the data files whose key columns are read."""
        newest = max((delete.sequence_number for delete in self.files[0].deletes if delete.equality_ids), default=-1)
        return sum(file.size_bytes for file in self.files if file.sequence_number < newest)


def plan_delete_rewrites(layout: Layout, policy: SizePolicy) -> tuple[DeleteRewrite, ...]:
    """Return the partitions where new delete files take fewer bytes than new data files, in a fixed order."""
    if not policy.merging or not policy.max_delete_files:  # with none allowed, one for each file is too many
        return ()
    summary = layout.summary(policy)
    with_due = layout.partitions.some(summary.due) if summary else layout.partitions
    in_order = sorted(with_due.values(), key=lambda facts: facts.key.rank)
    found = (_rewrite_of(facts, layout, policy) for facts in in_order)
    return tuple(rewrite for rewrite in found if rewrite is not None)


def _rewrite_of(facts: PartitionFacts, layout: Layout, policy: SizePolicy) -> DeleteRewrite | None:
    with_deletes = facts.with_deletes
    due = tuple(file for file in with_deletes if is_due(file, policy))
    if not due:
        return None
    known = PartitionDeletes(due[0].deletes)
    expected_rows = {file.path: _expected_rows(file, facts, known) for file in with_deletes}
    due = tuple(file for file in due if not _is_soon_due_at_any_cost(file, expected_rows[file.path], policy))
    if not due:
        return None
    with_due = DataFiles(due)
    deletes = PartitionDeletes(delete for delete in due[0].deletes if with_due.may_be_hit(delete))
    files = tuple(file for file in with_deletes if deletes.hitting(file).delete_files)
    # the data files stay, so that the ids of their rows are not needed
    if any(file.obstacle not in (None, SkipReason.NO_ROW_IDS) for file in files) or _reach_beyond(
        facts.key, deletes.files, layout
    ):
        return None  # what hits others stays, so that nothing would be gained
    rows = sum(expected_rows[file.path] for file in files)
    cost = len(files) * policy.close_file_cost_bytes + rows * _POSITION_BYTES
    return DeleteRewrite(facts.key, facts.label, files, due) if cost < sum(f.live_bytes for f in due) else None


def _is_soon_due_at_any_cost(file: FileFact, expected_rows: float, policy: SizePolicy) -> bool:
    """Return whether a file is due for more than the number of its delete files, or will be once its deleted rows are
    known.
    """
    is_full = expected_rows >= policy.delete_ratio_threshold * max(1, file.rows)
    return is_full or is_due_at_any_cost(file, policy)


def _expected_rows(file: FileFact, facts: PartitionFacts, deletes: PartitionDeletes) -> float:
    """Return the deleted rows of a file, if deletes without a known target are spread evenly over all files."""
    unknown = deletes.rows_without_target(file)
    return min(file.rows, file.deleted_rows + unknown * file.rows / max(1, facts.rows))


def _reach_beyond(key: PartitionKey, deletes: Sequence[DeleteFile], layout: Layout) -> bool:
    """Return whether some of these delete files also apply to files of other partitions."""
    if any(delete.partition != key for delete in deletes):
        return True
    of_all = any(delete.equality_ids for delete in deletes) and all(value is None for value in key.values)
    return of_all and any(other.spec_id != key.spec_id for other in layout.partitions)
