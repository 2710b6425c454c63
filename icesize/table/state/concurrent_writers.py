"""Other writers and maintainers of a table.

These are row-level changes that merges avoid, other compactors, services that own the maintenance, and rollbacks.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.planning.merging import contention
from icesize.planning.merging.contention import CommittedChange
from icesize.table.catalog.access_errors import readable
from icesize.table.catalog.history import is_ours, known_ancestors, operation_of, summary_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry, parse
from icesize.table.records.summary import LEDGER
from icesize.table.state.partition_changes import touched

LOG = logging.getLogger("icesize")

MOST_SNAPSHOTS = 128
"""Newest snapshots that are examined: two minutes of a stream that appends and merges every two seconds.

Older changes are remembered for the lifetime of a process.
"""

_CHANGES_ROWS = (Operation.OVERWRITE, Operation.DELETE)


@dataclass
class ConcurrentWriters:
    """Examines the newest snapshots at each call. Without the object's memory, a cooldown may start again."""

    store: ManifestStore = field(default_factory=ManifestStore, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _since: dict[PartitionKey, int] = field(default_factory=dict, repr=False)

    def contested(self, metadata: TableMetadata, io: FileIO, now_ms: int) -> frozenset[PartitionKey]:
        """Return partitions that other writers keep changing and that therefore must not be merged now.

        An unreadable change counts as no change; mostly its snapshot has just expired.
        """
        with self._lock:
            newest = _newest(metadata)
            history = [s for s in newest if abs(now_ms - s.timestamp_ms) < contention.SIGHT_MS]
            others = [s for s in history if not is_ours(s) and (_changes_rows(s) or _compacts(s))]
            found = contention.contended(self._changes(metadata, io, others), now_ms)
            edge_ms = newest[-1].timestamp_ms if newest else now_ms
            since = {key: self._remembered(key, began_ms, edge_ms) for key, began_ms in found.items()}
            merges = [s for s in history if is_ours(s) and _removes_files(s)] if found else []
            self._since = contention.waiting_since(since, self._changes(metadata, io, merges))
            return contention.contested(self._since, now_ms)

    def _remembered(self, key: PartitionKey, began_ms: int, edge_ms: int) -> int:
        """Return the time since which a partition has not been quiet.

        The remembered time counts if the snapshots show no pause.
        """
        if began_ms - edge_ms >= contention.QUIET_MS:
            return began_ms
        return min(began_ms, self._since.get(key, began_ms))

    def _changes(self, metadata: TableMetadata, io: FileIO, snapshots: list[Snapshot]) -> Iterator[CommittedChange]:
        for snapshot in snapshots:
            try:
                with readable(str(metadata.table_uuid)):
                    partitions = frozenset(touched(self.store, io, snapshot, metadata.specs()))
            except TableError as error:
                LOG.info("what snapshot %s changed is not known: %s", snapshot.snapshot_id, error)
                continue
            yield CommittedChange(snapshot.timestamp_ms, partitions)


def other_compactors(metadata: TableMetadata, table: str) -> tuple[str, ...]:
    """Return a warning if another compactor merges files of this table; otherwise nothing."""
    found = [s for s in _newest(metadata) if not is_ours(s) and _compacts(s)]
    if not found:
        return ()
    by = sorted({name for s in found if (name := summary_of(s, "engine-name"))})
    who = f" ({', '.join(by)})" if by else ""
    return (
        f"another compactor{who} works on '{table}': turn one off; files that both want to merge are read and written "
        "for nothing",
    )


def optimizer_of(metadata: TableMetadata, catalog: Catalog) -> str | None:
    """Return the service that maintains a table, with the sign that shows it; None if no sign does.

    The signs are those that the services document: Amoro's property, the bucket names of S3 Tables, the directory of
    Unity Catalog's managed tables, the property that Delta's UniForm sets, and the host of Snowflake's catalogs. No
    property of a table shows that Snowflake or Glue compacts it.
    """
    properties, location = metadata.properties, urlsplit(metadata.location)
    signs = (
        ("Amoro", "self-optimizing.enabled", properties.get("self-optimizing.enabled", "").lower() == "true"),
        ("S3 Tables", "a bucket *--table-s3", location.netloc.endswith("--table-s3")),
        ("Databricks", "a location in __unitystorage", "/__unitystorage/" in location.path),
        ("Delta Lake", "delta-version", "delta-version" in properties),
        ("Snowflake", "a catalog at snowflakecomputing.com", _host(catalog).endswith(".snowflakecomputing.com")),
    )
    return next((f"{service} ({sign})" for service, sign, shows in signs if shows), None)


def _host(catalog: Catalog) -> str:
    return urlsplit(str(catalog.properties.get("uri", ""))).hostname or ""


def rolled_back(metadata: TableMetadata, entry: LedgerEntry) -> tuple[str, ...]:
    """Return a warning if the history of main does not contain the newest batch of the entry's stream.

    The warning stays as long as the table has the batch's snapshot, until the stream commits its next batch.
    """
    value = metadata.properties.get(entry.key)
    if value is None:
        return ()
    # newest first, because it is usually among the last few
    last = parse(value)
    ledger = last.alone.to_json()
    made = next((s for s in reversed(metadata.snapshots) if summary_of(s, LEDGER) == ledger), None)
    if made is None:
        return ()
    oldest = made
    for oldest in known_ancestors(metadata):
        if oldest.snapshot_id == made.snapshot_id:
            return ()
    if made.timestamp_ms <= oldest.timestamp_ms:
        # older than the known history of main: the snapshots between have expired, so a rollback cannot be proven
        return ()
    return (
        f"batch {last.batch_id} of stream '{entry.stream_id}' stays marked as committed, but its snapshot "
        f"{made.snapshot_id} is not in the history of 'main': the table was rolled back, its rows are gone and are not "
        "replayed",
    )


def _newest(metadata: TableMetadata) -> list[Snapshot]:
    """Return the newest snapshots of main, newest first."""
    return list(islice(known_ancestors(metadata), MOST_SNAPSHOTS))


def _changes_rows(snapshot: Snapshot) -> bool:
    """Return True if the writer changed rows and needs the files that hold them.

    A writer of equality deletes does not need them. Its position deletes name only files of its own commit. Merges
    never make it fail, and it never makes merges fail.
    """
    upserts = summary_of(snapshot, "added-equality-deletes") not in (None, "0") and not _removes_files(snapshot)
    return operation_of(snapshot) in _CHANGES_ROWS and not upserts


def _compacts(snapshot: Snapshot) -> bool:
    """Return True if files were replaced. A REPLACE that only rewrote manifests removes no file."""
    return operation_of(snapshot) == Operation.REPLACE and _removes_files(snapshot)


def _removes_files(snapshot: Snapshot) -> bool:
    return summary_of(snapshot, "deleted-data-files") not in (None, "0")
