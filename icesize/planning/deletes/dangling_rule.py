"""The delete files that are dangling after a commit, because they apply to no data file. Pure.

The same commit removes them, on the state that it is staged on. A position delete file is dangling if no data file that
it names is live; a deletion vector names one. If the names are unknown, it is dangling if its number is below that of
each live data file of its partition. An equality delete is dangling if its number is not above the number of any live
data file in its scope. Later files have greater numbers, or no deleted rows.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from icesize.planning.deletes.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, FileId, PartitionKey


@dataclass(frozen=True)
class DanglingCandidates:
    """Delete files that may be dangling.

    `equality` are equality deletes of one partition, `everywhere` those that apply to all partitions. `named` are
    position deletes with the data files that they name, `unnamed` those whose names are unknown.
    """

    equality: tuple[DeleteFile, ...]
    everywhere: tuple[DeleteFile, ...]
    named: Mapping[DeleteFile, frozenset[str]]
    unnamed: tuple[DeleteFile, ...] = ()

    @classmethod
    def of(
        cls,
        by_partition: Mapping[PartitionKey, Sequence[DeleteFile]],
        everywhere: Sequence[DeleteFile],
        partitions: Collection[PartitionKey],
        named: Mapping[str, frozenset[str]],
    ) -> DanglingCandidates:
        """Return the delete files that may apply to files of these partitions.

        `by_partition` are the table's delete files, except the equality deletes that apply `everywhere`.

        `named` maps position deletes that name several files to these files. Deletes with NaN among their partition
        values are left out where these decide, because NaN equals no other value.
        """
        files = [delete for key in partitions for delete in by_partition.get(key, ())]
        known = {d: names for d in files if not d.equality_ids and (names := _names(d, named)) is not None}
        others = [d for d in files if d not in known and all(value == value for value in d.partition.values)]
        equality = tuple(d for d in others if d.equality_ids)
        return cls(
            equality, tuple(everywhere), known, tuple(d for d in others if not d.equality_ids and not d.is_vector)
        )

    def __bool__(self) -> bool:
        return bool(self.equality or self.everywhere or self.named or self.unnamed)

    def may_depend_on(self, spec_id: int, least_number: int) -> bool:
        """Return True if files of this spec, with these numbers or greater ones, may need one of the candidates."""
        own = any(d.partition.spec_id == spec_id and d.sequence_number > least_number for d in self.equality)
        own |= any(d.partition.spec_id == spec_id and d.sequence_number >= least_number for d in self.unnamed)
        of_all = any(d.sequence_number > least_number for d in self.everywhere)
        return own or of_all or any(d.partition.spec_id == spec_id for d in self.named)

    @property
    def asked(self) -> frozenset[str]:
        """Data files that candidates name, as `plain_path` spells them."""
        return frozenset[str]().union(*self.named.values())

    def dangling(self, least: Mapping[PartitionKey, int], live: Collection[str]) -> set[FileId]:
        """Return the ids of the candidates that no live data file needs.

        Args:
            least: For each partition with files that may need a candidate, the least data sequence number of its files.
            live: Paths of live files in any spelling; of the `asked` files, all that are live.
        """
        found = set(map(plain_path, live))
        oldest = min(least.values(), default=math.inf)
        spent = [d.id for d in self.equality if d.sequence_number <= least.get(d.partition, math.inf)]
        spent += [d.id for d in self.everywhere if d.sequence_number <= oldest]
        spent += [d.id for d in self.unnamed if d.sequence_number < least.get(d.partition, math.inf)]
        return {*spent, *(delete.id for delete, names in self.named.items() if not names & found)}


def _names(delete: DeleteFile, named: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    if (only := only_path(delete)) is not None:
        return frozenset({plain_path(only)})
    names = named.get(delete.path)
    return None if names is None else frozenset(map(plain_path, names))
