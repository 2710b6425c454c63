"""Selection of small manifests that are worth merging, and their entries in the order of their partitions.

Readers skip a manifest by the bounds of its partition values, so entries of one partition belong next to each other.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any

from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestContent, ManifestFile

from icesize.table.manifests.entries import Entry, read_entries

SORTED_AT_ONCE = 100_000
"""Entries that are held in memory and sorted together, and at most one manifest more: some 100 MB."""


ENOUGH_ENTRIES = 1_000
"""Entries of a manifest that is left unchanged.

Readers open such a manifest in 20 ms (18 us per entry, measured), and a commit that touches it writes few entries
again. In larger manifests a commit for one partition would write the entries of ever more other partitions.
"""


def worth_packing(manifests: Iterable[ManifestFile], target_bytes: int) -> dict[int, list[ManifestFile]]:
    """Return the data manifests with few entries that take less than half of `target_bytes`, by partition spec.

    A spec with a single such manifest is left out, because there is no second one to merge it with.
    """
    small: dict[int, list[ManifestFile]] = defaultdict(list)
    for manifest in manifests:
        is_small = live_entries(manifest) < ENOUGH_ENTRIES and _live_bytes(manifest) < target_bytes // 2
        if manifest.content == ManifestContent.DATA and is_small:
            small[manifest.partition_spec_id].append(manifest)
    return {spec_id: several for spec_id, several in sorted(small.items()) if len(several) > 1}


def live_entries(manifest: ManifestFile) -> int:
    """Return the number of live entries; 0 if the manifest list does not have it, as in format v1."""
    return (manifest.added_files_count or 0) + (manifest.existing_files_count or 0)


def _live_bytes(manifest: ManifestFile) -> float:
    """Return the approximate bytes of a manifest's live entries; in format v1 the counts may be missing."""
    live = live_entries(manifest)
    deleted = manifest.deleted_files_count or 0
    return manifest.manifest_length * (live / (live + deleted) if deleted else 1.0)


def entries_by_partition(
    io: FileIO, manifests: Iterable[ManifestFile], at_once: int = SORTED_AT_ONCE
) -> Iterator[Entry]:
    """Yield the live entries of these manifests, sorted within runs of about `at_once` entries."""
    run: list[Entry] = []
    for manifest in manifests:
        run += read_entries(io, manifest)
        if len(run) >= at_once:
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
