"""The same deleted rows in other delete files. Each state that a commit is tried on decides which old ones may go.

Let S be the snapshot of the plan. For some data files, the rewrite read all deletes with numbers up to S and wrote the
deleted rows as position deletes; in format v3, as deletion vectors. These data files are *covered*. A delete file that
was read goes if every live data file that it may apply to is covered. The new files carry the greatest number of the
files that were read. That number is at least the number of each covered data file, and at most S. The table lists
changes of other writers between the plan and the commit:

| change | effect |
|---|---|
| a delete, by position or equality | it stays, beside the new files |
| a position delete of a file with a new vector | the partition is skipped: readers would ignore the delete |
| a data file with a number of its own | no delete file that was read applies to it |
| a data file with an older number, as rewrites have | delete files that were read and apply to it stay |
| a covered data file was removed | the delete file for its rows is left out |
| a covered data file was listed again, with another number | the partition is skipped |
| a delete file that was read was removed | the partition is skipped: the other writer may have brought rows back |
| main moved to a snapshot that does not follow S | the step is dropped |

A later replacement of a covered file may carry an older number. An equality delete also applies to that replacement; a
position delete does not. So a rewrite of a covered file that began before the equality delete must fail if it commits
after this step. icesize checks for position deletes above its planning base, in every snapshot. Iceberg's Java library
checks for them only in snapshots of the operations `overwrite` and `delete`, and ignores equality deletes.

So if equality deletes go, the snapshot gets the operation of the snapshot that added the newest of them. Stream readers
of the table are configured to skip that operation, or have failed before. If only position deletes go, the snapshot is
a `replace`, as in Iceberg's `rewrite_position_delete_files`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.data_file import NewDeleteFile, RewrittenDeletes
from icesize.planning.deletes.delete_reach import DataFiles, may_hit, only_path, plain_path
from icesize.planning.files import DeleteFile, FileFact, FileId, PartitionKey
from icesize.table.catalog.history import operation_of
from icesize.table.commit.compared_inputs import DELETED
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, Kept, Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.delete_index import is_unpartitioned, read_deletes
from icesize.table.records.summary import CommitKind

TAKEN = "another writer took delete files of it away"
LISTED_AGAIN = "another writer listed a data file of it again"
UPGRADED = "the table was upgraded to a format version that has deletion vectors instead"
NEEDED = "other data files need most of its delete files now"


BASE_EXPIRED = "the snapshot it was planned on has expired or is no longer part of the table's current history"
"""Reason to keep the deletes of a state that the history of the branch does not show."""


@dataclass(frozen=True)
class RewriteDeletes(Step):
    """Replace delete files with position delete files, partition by partition. Data files stay unchanged.

    `labels` are the partitions as users write them.
    """

    kind = CommitKind.DELETES
    rewritten: tuple[RewrittenDeletes, ...]
    labels: Mapping[PartitionKey, str] = field(default_factory=dict)

    @property
    def files(self) -> tuple[NewDeleteFile, ...]:
        return tuple(file for each in self.rewritten for file in each.files)

    @property
    def gone(self) -> tuple[DeleteFile, ...]:
        """Delete files that the new ones replace."""
        return tuple(delete for each in self.rewritten for delete in each.replaced)

    def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
        if state.has_left(base.head):
            return Kept(None, (self.dropped(BASE_EXPIRED),))
        if state.format_version >= 3 and any(file.content_offset is None for file in self.files):
            return Kept(None, (self.dropped(UPGRADED),))
        specs, manifests = state.table.metadata.specs(), state.manifests
        everywhere = {spec_id for spec_id, spec in specs.items() if is_unpartitioned(spec)}
        listed = [delete for m in manifests.deletes for delete in read_deletes(state.store, state.table.io, m)]
        kept, lost = replaceable(self.rewritten, everywhere, listed, self._may_be_hit(state, everywhere))
        conflicts = tuple(f"delete files of '{self.labels[key]}' stay as they are: {why}" for key, why in lost.items())
        return Kept(replace(self, rewritten=kept) if kept else None, conflicts)

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot:
        split = builder.split(sorted((delete.id for delete in self.gone), key=str), ManifestContent.DELETES)
        operation = self._operation(builder.metadata) if self.files else Operation.REPLACE
        return builder.exchange(operation, split, self.files, summary)

    def dropped(self, why: str) -> str:
        return f"delete files stay as they are: {why}"

    def visible(self, live: Collection[str]) -> RewriteDeletes | None:
        """Return the partitions with a live new delete file. A partition that got none leaves no trace to look for."""
        kept = tuple(each for each in self.rewritten if any(file.path in live for file in each.files))
        return replace(self, rewritten=kept) if kept else None

    def _may_be_hit(self, state: Loaded, everywhere: Collection[int]) -> Iterator[FileFact]:
        """Yield all live data files that delete files of the plan may apply to."""
        newest = max((delete.sequence_number for delete in self.gone), default=-1)
        specs = {each.partition.spec_id for each in self.rewritten}
        for manifest in state.manifests.data:
            spec_id = manifest.partition_spec_id
            concerned = spec_id in specs or specs & set(everywhere)
            if concerned and (manifest.min_sequence_number or 0) <= newest:
                facts = state.store.facts(state.table.io, manifest)
                yield from facts.files(facts.live)

    def _operation(self, metadata: TableMetadata) -> Operation:
        """Return the operation of the commit that added the newest replaced equality delete; REPLACE without one."""
        newest = max((delete.sequence_number for delete in self.gone if delete.equality_ids), default=None)
        if newest is None:
            return Operation.REPLACE
        brought = {operation_of(snapshot) for snapshot in metadata.snapshots if snapshot.sequence_number == newest}
        return Operation.DELETE if Operation.DELETE in brought else Operation.OVERWRITE


def replaceable(
    rewritten: Sequence[RewrittenDeletes],
    everywhere: Collection[int],
    listed: Collection[DeleteFile],
    live: Iterable[FileFact],
) -> tuple[tuple[RewrittenDeletes, ...], dict[PartitionKey, str]]:
    """Return the part of each partition that can be committed, and the reasons of the partitions that stay unchanged.

    Args:
        rewritten: The delete files that were written, by partition.
        everywhere: Specs whose equality deletes apply to files of every partition.
        listed: All delete files.
        live: All data files that delete files of the plan may apply to.
    """
    states = {each.partition: _State(each) for each in rewritten}
    vectors = {plain_path(d.referenced_path): d for d in listed if d.is_vector and d.referenced_path is not None}
    of_all = [state for key, state in states.items() if key.spec_id in everywhere]
    for file in live:
        own = states.get(file.partition)
        if own is not None and own.covers(file):
            continue
        if own is not None:
            own.keep_for(file, vectors.get(plain_path(file.path)))
        for state in of_all:
            if state is not own:
                state.keep_beyond(file)
    ids, beside = {delete.id for delete in listed}, defaultdict[PartitionKey, list[DeleteFile]](list)
    for delete in listed:
        if delete.partition in states and not delete.equality_ids:
            beside[delete.partition].append(delete)
    done = {key: state.outcome(ids, beside[key]) for key, state in states.items()}
    kept = tuple(each for each in done.values() if not isinstance(each, str))
    return kept, {key: why for key, why in done.items() if isinstance(why, str)}


class _State:
    """Rewritten deletes of one partition, and the facts about its live data files."""

    def __init__(self, rewritten: RewrittenDeletes) -> None:
        self._rewritten = rewritten
        self._covered = {plain_path(file.path): file for file in rewritten.covered}
        self._named = {path: frozenset(map(plain_path, names)) for path, names in rewritten.named.items()}
        # a delete of one data file is of a covered one, and hits no other
        self._shared = [
            delete for delete in rewritten.replaced if not delete.equality_ids and only_path(delete) is None
        ]
        self._alive = set[str]()
        self._listed_again = False
        self._least: int | None = None
        self._kept = set[FileId]()

    def covers(self, file: FileFact) -> bool:
        """Return True if a live file is covered. Record it as live, and a change of its sequence number."""
        path = plain_path(file.path)
        known = self._covered.get(path)
        if known is None:
            return False
        self._alive.add(path)
        self._listed_again |= known.sequence_number != file.sequence_number
        return True

    def keep_for(self, file: FileFact, vector: DeleteFile | None) -> None:
        """Keep the delete files that may apply to an uncovered file of the partition, which may have a vector.

        A position delete cannot name a path that was added after it, and is ignored beside a vector.
        """
        self.keep_beyond(file)
        if vector is not None and may_hit(vector, file):
            return
        self._kept.update(
            delete.id
            for delete in self._shared
            if delete.id not in self._kept
            and delete.sequence_number >= file.file_sequence_number
            and may_hit(delete, file)
            and plain_path(file.path) in self._named.get(delete.path, (plain_path(file.path),))
        )

    def keep_beyond(self, file: FileFact) -> None:
        """Keep the equality deletes with greater numbers than a file, which may be of any partition."""
        self._least = file.sequence_number if self._least is None else min(self._least, file.sequence_number)

    def outcome(self, listed: Collection[FileId], positions: Iterable[DeleteFile]) -> RewrittenDeletes | str:
        """Return the deletes that can be committed, or the reason that the partition stays unchanged.

        `listed` are all delete files, `positions` the position deletes of the partition.
        """
        if self._listed_again:
            return LISTED_AGAIN
        alive = [file for path, file in self._covered.items() if path in self._alive]
        there, away = list[DeleteFile](), list[DeleteFile]()
        for delete in self._rewritten.replaced:
            (there if delete.id in listed else away).append(delete)
        covered = DataFiles(alive)
        if any(covered.may_be_hit(delete) for delete in away):
            return TAKEN
        if self._would_hide(positions, alive):
            return DELETED
        gone = [delete for delete in there if not self._is_needed(delete)]
        if 2 * len(gone) <= len(there):
            return NEEDED
        files = tuple(file for file in self._rewritten.files if plain_path(file.deletes_of or "") in self._alive)
        return replace(self._rewritten, replaced=tuple(gone), files=files)

    def _would_hide(self, positions: Iterable[DeleteFile], alive: Iterable[FileFact]) -> bool:
        """Return whether a new vector is of a data file with position deletes that are not in the vector."""
        vectors = {file.deletes_of for file in self._rewritten.files if file.content_offset is not None}
        hidden = DataFiles([file for file in alive if file.path in vectors])
        known = {delete.id for delete in self._rewritten.replaced}
        return any(delete.id not in known and hidden.may_be_hit(delete) for delete in positions)

    def _is_needed(self, delete: DeleteFile) -> bool:
        if delete.equality_ids:
            return self._least is not None and delete.sequence_number > self._least
        return delete.id in self._kept
