"""Delete files that hit nothing any more once a commit has landed, decided on the state that it is staged on.

They are removed by the same commit. A position delete file is obsolete when no data file that it names is live, an
equality delete when its number is not above those of the live data files that it is about: all files to come have
greater ones.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from icesize.planning.delete_reach import only_path, plain_path
from icesize.planning.files import DeleteFile, PartitionKey
from icesize.table.manifests.delete_index import DeleteIndex


@dataclass(frozen=True)
class ObsoleteCandidates:
    """Delete files that may be obsolete: those by equality that are of one partition, those that hit `everywhere`, and
    the position deletes with the data files that they name."""

    equality: tuple[DeleteFile, ...]
    everywhere: tuple[DeleteFile, ...]
    named: Mapping[DeleteFile, frozenset[str]]

    @classmethod
    def of(
        cls, index: DeleteIndex, partitions: Collection[PartitionKey], named: Mapping[str, frozenset[str]]
    ) -> ObsoleteCandidates:
        """Those that could hit files of these partitions. `named` are data files of position deletes that name several;
        nothing is known of others that do, nor of equality deletes where NaN is among the partition values, which
        equals no other."""
        files = [delete for key in partitions for delete in index.by_partition.get(key, ())]
        known = {d: names for d in files if not d.equality_ids and (names := _names(d, named)) is not None}
        equality = (d for d in files if d.equality_ids and all(value == value for value in d.partition.values))
        return cls(tuple(equality), tuple(index.everywhere), known)

    def __bool__(self) -> bool:
        return bool(self.equality or self.everywhere or self.named)

    def may_depend_on(self, spec_id: int, least_number: int) -> bool:
        """Whether files of this spec, with these numbers or greater ones, could keep one of them."""
        own = any(d.partition.spec_id == spec_id and d.sequence_number > least_number for d in self.equality)
        of_all = any(d.sequence_number > least_number for d in self.everywhere)
        return own or of_all or any(d.partition.spec_id == spec_id for d in self.named)

    def obsolete(self, live: Iterable[tuple[PartitionKey, int, str]]) -> set[str]:
        """The paths of those that no live data file needs; `live` has partition, data sequence number and path of all
        files that they may depend on."""
        least: dict[PartitionKey, int] = {}
        asked = frozenset[str]().union(*self.named.values())
        found = set[str]()
        for key, number, path in live:
            least[key] = min(number, least.get(key, number))
            if asked and (plain := plain_path(path)) in asked:
                found.add(plain)
        oldest = min(least.values(), default=math.inf)
        spent = [d.path for d in self.equality if d.sequence_number <= least.get(d.partition, math.inf)]
        spent += [d.path for d in self.everywhere if d.sequence_number <= oldest]
        return {*spent, *(delete.path for delete, names in self.named.items() if not names & found)}


def _names(delete: DeleteFile, named: Mapping[str, frozenset[str]]) -> frozenset[str] | None:
    if (only := only_path(delete)) is not None:
        return frozenset({plain_path(only)})
    names = named.get(delete.path)
    return None if names is None else frozenset(map(plain_path, names))
