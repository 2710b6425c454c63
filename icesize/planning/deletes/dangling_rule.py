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

from icesize.planning.deletes.delete_reach import only_path, plain_path, reaches
from icesize.planning.files import DeleteFile, FileId, PartitionKey


@dataclass(frozen=True)
class DanglingCandidates:
    """Delete files that may be dangling.

    `numbered` are deletes of one partition of which the numbers of its data files decide: equality deletes, and
    position deletes whose names are unknown. `everywhere` are equality deletes that apply to all partitions. `named`
    are position deletes with the data files that they name.
    """

    numbered: tuple[DeleteFile, ...]
    everywhere: tuple[DeleteFile, ...]
    named: Mapping[DeleteFile, frozenset[str]]

    @classmethod
    def of(
        cls,
        by_partition: Mapping[PartitionKey, Sequence[DeleteFile]],
        everywhere: Sequence[DeleteFile],
        partitions: Collection[PartitionKey],
        named: Mapping[str, frozenset[str]],
        least: Mapping[PartitionKey, int],
    ) -> DanglingCandidates:
        """Return the delete files that may apply to files of these partitions.

        Args:
            by_partition: The table's delete files, except the equality deletes that apply `everywhere`.
            everywhere: These equality deletes.
            partitions: The partitions.
            named: Position deletes that name several files, with these files. Deletes with NaN among their partition
                values are left out where numbers decide, because NaN equals no other value.
            least: The least data sequence number of new files by partition. What applies to one of them is left out, so
                that older files are not looked for.
        """
        files = [delete for key in partitions for delete in by_partition.get(key, ())]
        known = {d: names for d in files if not d.equality_ids and (names := _names(d, named)) is not None}
        others = (d for d in files if d not in known and not d.is_vector and all(v == v for v in d.partition.values))
        numbered = tuple(d for d in others if not reaches(d, least.get(d.partition, math.inf)))
        return cls(numbered, tuple(everywhere), known)

    def __bool__(self) -> bool:
        return bool(self.numbered or self.everywhere or self.named)

    def may_depend_on(self, spec_id: int, least_number: int) -> bool:
        """Return True if files of this spec, with these numbers or greater ones, may need one of the candidates."""
        own = any(d.partition.spec_id == spec_id and reaches(d, least_number) for d in self.numbered)
        of_all = any(reaches(d, least_number) for d in self.everywhere)
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
        spent = [d.id for d in self.numbered if not reaches(d, least.get(d.partition, math.inf))]
        spent += [d.id for d in self.everywhere if not reaches(d, oldest)]
        return {*spent, *(delete.id for delete, names in self.named.items() if not names & found)}


def _names(delete: DeleteFile, named: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    if (only := only_path(delete)) is not None:
        return frozenset({plain_path(only)})
    names = named.get(delete.path)
    return None if names is None else frozenset(map(plain_path, names))
