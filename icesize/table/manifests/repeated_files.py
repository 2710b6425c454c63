"""Files that a table lists more than once: icesize removes none of them while another listing stays.

Iceberg's Spark procedure `add_files` lists a file again if its duplicate check is off, also under a newer partition
spec. After the expiry of a snapshot that removed one of the listings, Iceberg's Java library deletes the file without
checking for another listing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import NamedTuple, TypeAlias

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from icesize.errors import UnsupportedTable
from icesize.planning.files import PartitionKey
from icesize.storage.locations import names_one_file, normalised
from icesize.table.catalog.history import head_snapshot
from icesize.table.manifests.live_arrays import Listing, repeated_numbers
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore


def listed_twice(listings: Iterable[Listing]) -> frozenset[str]:
    """Return the `normalised` paths of files that occur more than once."""
    parts = list(listings)
    again = repeated_numbers(parts)
    if not again.size:
        return frozenset()
    # Different paths may have the same number, so the paths themselves are compared.
    times = Counter(normalised(path) for part in parts for path in part.paths_of(again))
    return frozenset(path for path, count in times.items() if count > 1)


FileKey: TypeAlias = "tuple[str, int | None]"
"""Normalised path of a file, and the offset of a deletion vector in it."""
Place: TypeAlias = "tuple[str, int]"
"""Path of a manifest, and the number of one of its live entries."""


class Again(NamedTuple):
    """One of several live entries of a file."""

    path: str
    age: tuple[int, int]
    place: Place
    partition: PartitionKey
    is_deletes: bool
    is_equality: bool


def repeated_entries(listings: Iterable[Listing]) -> dict[FileKey, list[Again]]:
    """Return the entries of each file that different manifests, or one manifest, list more than once."""
    parts = {each.facts.path: each for each in listings}.values()
    numbers, found = repeated_numbers(parts), defaultdict[FileKey, list[Again]](list)
    for part in parts if numbers.size else ():
        if part.lists(numbers):
            for key, entry in _entries(part):
                found[key].append(entry)
    return {key: entries for key, entries in found.items() if len(entries) > 1}


def _entries(part: Listing) -> Iterator[tuple[FileKey, Again]]:
    facts = part.facts
    is_deletes = facts.manifest.content == ManifestContent.DELETES
    deletes = facts.deletes() if is_deletes else ()
    for number, file in enumerate(facts.files(facts.live)):
        delete = deletes[number] if deletes else None
        key = normalised(file.path), delete.content_offset if delete else None
        age, place = (file.sequence_number, file.file_sequence_number or 0), (facts.path, number)
        yield key, Again(file.path, age, place, file.partition, is_deletes, bool(delete and delete.equality_ids))


def entry_kept(entries: Sequence[Again]) -> Place | str:
    """Return the entry that stays if a file is to be listed once; the reason if that needs a decision.

    The rows that are deleted stay so: of a data file, the oldest entry stays, and of a position delete file the newest
    one, which applies to all data files that the others apply to.
    """
    if len({entry.path for entry in entries}) > 1 and not all(names_one_file(entry.path) for entry in entries):
        return "Its entries have different names, which may be two files: remove the wrong entry"
    if len({entry.partition for entry in entries}) > len({entry.partition.spec_id for entry in entries}):
        return "Its entries have different partitions: remove the wrong one, or write the partitions again"
    if entries[0].is_equality and len({entry.age[0] for entry in entries}) > 1:
        return (
            "Its entries have different sequence numbers: with one of them, rows would come back that the other one "
            "deletes. Run `icesize compact`, which applies both"
        )
    chosen = max if entries[0].is_deletes else min
    return chosen(entries, key=lambda entry: (entry.age, entry.place)).place


def check_listed_once(store: ManifestStore, table: Table, paths: Collection[str]) -> None:
    """Raise UnsupportedTable if the table lists one of `paths` more than once, also outside a filter.

    Reads all data manifests of the newest snapshot.
    """
    metadata = table.metadata
    manifests = manifests_of(head_snapshot(metadata), table.io, metadata.specs()).data
    times = Counter(map(normalised, store.listed(table.io, manifests, paths)))
    if twice := next((path for path in paths if times[normalised(path)] > 1), None):
        raise UnsupportedTable(
            f"Cannot rewrite {twice}: the table lists this file more than once, and once outside the filter; run it "
            "without a filter, and icesize skips the file",
            path=twice,
        )
