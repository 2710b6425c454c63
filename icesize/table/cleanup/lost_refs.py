"""Branches and tags that came between an expiry's look at a table and its commit, and were lost with their snapshot.

A catalog that only checks what it is asked to assert knows no "no other ref": the REST protocol cannot say it. Such a
catalog removes a new tag together with the snapshot it stands on. It cannot be put back, but its files can be spared.
"""

from __future__ import annotations

from pyiceberg.table import Table

from icesize.table.catalog.metadata_files import read_metadata_file
from icesize.table.cleanup.journal import JOURNAL, Journal

LOST_REFS = (
    "while snapshots were being expired somebody made {} on one of them, and the catalog removed both: no file was "
    "deleted, so an older metadata file still leads to the snapshot; orphan cleanup removes what nobody wants back"
)


def lost_refs(now: Table, journal: Journal, journal_location: str) -> list[str]:
    """Names of refs that another writer made on a snapshot while it was being expired, as the table's log tells.

    Reads the metadata files between the one that was decided on and that of the expiry: usually none. Empty also where
    the log does not go back that far. Raises TableError for one that cannot be understood.
    """
    log = [*(entry.metadata_file for entry in now.metadata.metadata_log), now.metadata_location]
    if journal.base_metadata not in log:
        return []
    expired = {each.snapshot_id for each in journal.expired}
    found: set[str] = set()
    for path in log[log.index(journal.base_metadata) + 1 :]:
        if path == now.metadata_location:
            break
        metadata = read_metadata_file(now.io, path) or {}
        if metadata.get("properties", {}).get(JOURNAL) == journal_location:
            break
        refs = metadata.get("refs", {})
        found |= {name for name, ref in refs.items() if ref.get("snapshot-id") in expired}
    return sorted(found - now.metadata.refs.keys() - set(journal.refs))
