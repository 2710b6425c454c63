"""Which data files stay as they are and get their delete files put together instead: pure.

A file with more than `max-delete-files` delete files is due (`delete_reach.is_due`). Where nothing else
makes it due, its deleted rows can be named anew by their positions, in one delete file of its own, for which key
columns are read at most and few bytes written. A delete by equality can go only when all older files of its partition
are covered so: they are taken along, whether they are due or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from icesize.planning.delete_reach import (
    DataFiles,
    PartitionDeletes,
    is_due,
    is_due_at_any_cost,
    may_hit,
    only_path,
)
from icesize.planning.files import DeleteFile, FileFact, Layout, PartitionFacts, PartitionKey
from icesize.policy import SizePolicy

_POSITION_BYTES = 4
"""What a deleted row takes in a position delete file, rather more than less: 1.1 to 2.2 bytes in one of some thousand
rows or more, measured."""


@dataclass(frozen=True, slots=True)
class DeleteRewrite:
    """Data files of one partition whose deleted rows are to be named anew: those that are `due`, and those that other
    delete files of these may hit. `label` is how people write the partition.
    """

    partition: PartitionKey
    label: str
    files: tuple[FileFact, ...]
    due: tuple[FileFact, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of the data files, of which key columns are read at most."""
        return sum(file.size_bytes for file in self.files)

    @property
    def size_by_equality(self) -> int:
        """Bytes of those data files of which key columns are to be read."""
        newest = max((delete.sequence_number for delete in self.files[0].deletes if delete.equality_ids), default=-1)
        return sum(file.size_bytes for file in self.files if file.sequence_number < newest)


def plan_delete_rewrites(layout: Layout, policy: SizePolicy) -> tuple[DeleteRewrite, ...]:
    """The partitions in which that takes fewer bytes than writing the files again that are due, in a fixed order."""
    if not policy.merging or not policy.max_delete_files:  # with none allowed, one for each file is too many
        return ()
    in_order = sorted(layout.partitions.values(), key=lambda facts: facts.key.rank)
    found = (_rewrite_of(facts, layout, policy) for facts in in_order if facts.key.spec_id == layout.spec_id)
    return tuple(rewrite for rewrite in found if rewrite is not None)


def _rewrite_of(facts: PartitionFacts, layout: Layout, policy: SizePolicy) -> DeleteRewrite | None:
    with_deletes = facts.with_deletes
    due = tuple(f for f in with_deletes if is_due(f, policy) and not _is_soon_due_at_any_cost(f, facts, policy))
    if not due:
        return None
    with_due = DataFiles(due)
    deletes = PartitionDeletes(delete for delete in due[0].deletes if with_due.may_be_hit(delete))
    files = tuple(file for file in with_deletes if deletes.hitting(file).delete_files)
    if any(file.obstacle for file in files) or _reach_beyond(facts.key, deletes.files, layout):
        return None  # what hits others stays, so that nothing would be gained
    rows = sum(_expected_rows(file, facts) for file in files)
    cost = len(files) * policy.close_file_cost_bytes + rows * _POSITION_BYTES
    return DeleteRewrite(facts.key, facts.label, files, due) if cost < sum(f.live_bytes for f in due) else None


def _is_soon_due_at_any_cost(file: FileFact, facts: PartitionFacts, policy: SizePolicy) -> bool:
    """Whether more than the number of its delete files makes it due, or would as soon as its deleted rows are known."""
    is_full = _expected_rows(file, facts) >= policy.delete_ratio_threshold * max(1, file.rows)
    return is_full or is_due_at_any_cost(file, policy)


def _expected_rows(file: FileFact, facts: PartitionFacts) -> float:
    """The deleted rows of a file, if deletes that do not tell theirs hit rows of all files alike."""
    unknown = sum(d.rows for d in file.deletes if (d.equality_ids or only_path(d) is None) and may_hit(d, file))
    return min(file.rows, file.deleted_rows + unknown * file.rows / max(1, facts.rows))


def _reach_beyond(key: PartitionKey, deletes: Sequence[DeleteFile], layout: Layout) -> bool:
    """Whether some of these delete files are about files of other partitions, too."""
    if any(delete.partition != key for delete in deletes):
        return True
    of_all = any(delete.equality_ids for delete in deletes) and all(value is None for value in key.values)
    return of_all and any(other.spec_id != key.spec_id for other in layout.partitions)
