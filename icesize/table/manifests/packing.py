"""Packing of entries into manifests: of those that a commit writes, and of those of small manifests.

Readers skip a manifest by the bounds of its partition values, so entries of one partition belong next to each other.
Entries that no merge is likely to take lie in manifests of their own, of few entries each and in the order of
partitions. Most commits touch other partitions, and one that touches an old partition writes few entries again, not all
of the table.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.parquet.files.data_file import NewDataFile, NewDeleteFile
from icesize.planning.file_sizes import is_small_file
from icesize.table.manifests.entries import Entry, read_entries

SORTED_AT_ONCE = 100_000
"""Entries that are held in memory and sorted together, and at most one manifest more: some 100 MB."""


ENOUGH_ENTRIES = 1_000
"""Entries of a manifest that is left unchanged.

Readers open such a manifest in 20 ms (18 us per entry, measured), and a commit that touches it writes few entries
again. In larger manifests a commit for one partition would write the entries of ever more other partitions.
"""


MOST_HOT_ENTRIES = 500
"""The most entries of small files, beyond those of changed partitions, that stay where the next commits look first.

50 batches into 10 partitions each. With fewer than `ENOUGH_ENTRIES` cold entries beside them, a commit writes at most
1,500 entries that it does not change. With 1,000 hot entries, tables of 2,000 files had commits of 1.6 times the bytes
of those of 1,000 files.
"""
MOST_COLD_ENTRIES = 2_000
"""The most entries in a manifest of cold entries: a commit reads and writes them in 0.1 s.

A manifest of Iceberg's default size, 8 MiB, has about 25,000 entries.
"""

MOST_FOLDED_ENTRIES = 10_000
"""The most entries that an append writes again to have fewer manifests: 0.1 s."""

ManifestKind = tuple[int, ManifestContent]
"""A manifest's partition spec and content type. One manifest can hold all entries of one kind."""


@dataclass(frozen=True)
class ManifestPart:
    """Entries for new manifests of one kind.

    `added` are new files, `copied` are entries of copied files. `existing` and `deleted` are the entries that stay and
    go from the manifests that are rewritten.
    """

    added: list[NewDataFile | NewDeleteFile] = field(default_factory=list)
    copied: list[Entry] = field(default_factory=list)
    existing: list[Entry] = field(default_factory=list)
    deleted: list[Entry] = field(default_factory=list)

    def by_temperature(self, small_bytes: int) -> Iterator[ManifestPart]:
        """Yield the changes with the entries that the next commits may touch, then the cold entries if they are many.

        Merges take files of less than `small_bytes`. Hot are those of partitions that this commit changes, and the
        newest of the others. The entries of larger files are cold, however new they are: a partition of a thousand
        large files would otherwise be written again with each merge of a small one.
        """
        changed = {file.partition.values for file in self.added}
        changed |= {entry.values for entry in (*self.copied, *self.deleted)}
        hot, other, cold = list[Entry](), list[Entry](), list[Entry]()
        for entry in self.existing:
            near = hot if entry.values in changed else other
            (near if is_small_file(entry.size_bytes, small_bytes) else cold).append(entry)
        other.sort(key=lambda entry: entry.sequence_number or 0, reverse=True)
        hot += other[:MOST_HOT_ENTRIES]
        cold += other[MOST_HOT_ENTRIES:]
        if len(cold) < ENOUGH_ENTRIES:
            yield self
            return
        yield replace(self, existing=hot)
        in_order = sorted_by_partition(cold)
        manifests = -(-len(cold) // MOST_COLD_ENTRIES)
        ends = [len(cold) * number // manifests for number in range(manifests + 1)]
        yield from (ManifestPart(existing=in_order[start:end]) for start, end in pairwise(ends))


@dataclass(frozen=True)
class Split:
    """Paths of manifests to rewrite, and their entries by kind."""

    touched: set[str] = field(default_factory=set)
    parts: defaultdict[ManifestKind, ManifestPart] = field(default_factory=lambda: defaultdict(ManifestPart))


def worth_packing(manifests: Iterable[ManifestFile], target_bytes: int) -> dict[int, list[ManifestFile]]:
    """Return the data manifests with few entries that take less than half of `target_bytes`, by partition spec.

    A spec with a single such manifest is left out, because there is no second one to merge it with.
    """
    small: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in _small(manifests, target_bytes):
        small[manifest.partition_spec_id].append(manifest)
    return {spec_id: several for spec_id, several in sorted(small.items()) if len(several) > 1}


def worth_folding(manifests: Iterable[ManifestFile], target_bytes: int, least: int) -> list[ManifestFile]:
    """Return the small data manifests that an append merges; none if there are fewer than `least` of them.

    The smallest come first, and what exceeds `MOST_FOLDED_ENTRIES` is left to the next appends.
    """
    small = sorted(_small(manifests, target_bytes), key=live_entries)
    totals = accumulate(map(live_entries, small))
    folded = [m for m, total in zip(small, totals, strict=True) if total <= MOST_FOLDED_ENTRIES]
    return folded if len(small) >= max(2, least) else []


def _small(manifests: Iterable[ManifestFile], target_bytes: int) -> Iterator[ManifestFile]:
    for manifest in manifests:
        is_small = live_entries(manifest) < ENOUGH_ENTRIES and _live_bytes(manifest) < target_bytes // 2
        if manifest.content == ManifestContent.DATA and is_small:
            yield manifest


def live_entries(manifest: ManifestFile) -> int:
    """Return the number of live entries; 0 if the manifest list does not have it, as in format v1."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _live_bytes(manifest: ManifestFile) -> float:
    """Return the approximate bytes of a manifest's live entries; in format v1 the counts may be missing."""
    live = live_entries(manifest)
    deleted = manifest.deleted_files_count or 0
    return manifest.manifest_length * (live / (live + deleted) if deleted else 1.0)


def entries_by_partition(io: FileIO, manifests: Iterable[ManifestFile]) -> Iterator[Entry]:
    """Yield the live entries of these manifests, sorted within runs of about `SORTED_AT_ONCE` entries."""
    run: list[Entry] = []
    for manifest in manifests:
        run += read_entries(io, manifest)
        if len(run) >= SORTED_AT_ONCE:
            yield from sorted_by_partition(run)
            run = []
    yield from sorted_by_partition(run)


def sorted_by_partition(entries: Sequence[Entry]) -> list[Entry]:
    """Return the entries sorted by partition values, field by field; entries of one partition keep their order."""
    ranked = sorted({entry.values for entry in entries}, key=partition_order)
    ranks = {values: rank for rank, values in enumerate(ranked)}
    return sorted(entries, key=lambda entry: ranks[entry.values])


def partition_order(values: tuple[Any, ...]) -> tuple[tuple[str, Any], ...]:
    """Return a key that orders partition values of any types: NULL first, then numbers, NaN, and the rest by type."""
    return tuple(_place(value) for value in values)


def _place(value: Any) -> tuple[str, Any]:
    if value is None:
        return "", 0
    if isinstance(value, float) and math.isnan(value):
        return "1", 0
    if isinstance(value, (int, float, Decimal)):
        return "0", value
    return type(value).__name__, value
