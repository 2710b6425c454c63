"""Files that a table lists more than once: icesize removes none of them while another listing stays.

Iceberg's Spark procedure `add_files` lists a file again if its duplicate check is off, also under a newer partition
spec. After the expiry of a snapshot that removed one of the listings, Iceberg's Java library deletes the file without
checking for another listing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

from pyiceberg.table import Table

from icesize.errors import UnsupportedTable
from icesize.table.catalog.history import head_snapshot
from icesize.table.catalog.locations import normalised
from icesize.table.manifests.listing import Listing, repeated_numbers
from icesize.table.manifests.lists import manifests_of
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
