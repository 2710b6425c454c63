"""Inputs of `planning/retention/planner.py` from a table's metadata: snapshots, refs, rules."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import zip_longest

from pyiceberg.io import FileIO
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import PolicyError
from icesize.planning.files import PartitionKey
from icesize.planning.retention.planner import Retention, RetentionRules, plan_retention
from icesize.policy import SizePolicy, property_number
from icesize.table.catalog.history import fact_of, known_history, refs_of
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.naming import Labels, milliseconds
from icesize.table.state.partition_changes import differing, state_at, touched

MAX_SNAPSHOT_AGE = ("history.expire.max-snapshot-age-ms", 5 * 86_400_000)
MIN_SNAPSHOTS_TO_KEEP = ("history.expire.min-snapshots-to-keep", 1, 1)
MAX_REF_AGE = ("history.expire.max-ref-age-ms", None)
"""Iceberg's table properties of expiry with Iceberg's defaults and least values; refs never expire by default."""


@dataclass(frozen=True)
class ExpireOptions:
    """Options of an expiry; without any, the table's own rules apply.

    `older_than` is a point in time (naive: UTC) or an age; snapshots at or after it stay. `retain_last` counts
    snapshots per branch. `keep_versions` counts versions of each partition. A snapshot stays if any rule keeps it. The
    table's rules apply for omitted options (`keep_versions` only if all three are omitted): unless `older_than` is set,
    nothing younger than `history.expire.max-snapshot-age-ms` expires. `readers` are checkpoint directories of streaming
    queries that read this table. `force` continues even if a reader's position cannot be kept.
    """

    keep_versions: int | None = None
    older_than: datetime | timedelta | None = None
    retain_last: int | None = None
    readers: tuple[str, ...] = ()
    force: bool = False

    def rules(self, properties: Mapping[str, str], policy: SizePolicy, now_ms: int) -> RetentionRules:
        """Return the rules in effect. Raises PolicyError for invalid values."""
        keep_versions = self.keep_versions
        if keep_versions is None and self.older_than is None and self.retain_last is None:
            keep_versions = policy.keep_versions
        if self.older_than is None:
            older_than_ms = now_ms - property_number(properties, *MAX_SNAPSHOT_AGE)
        else:
            older_than_ms = point_in_time_ms(self.older_than, now_ms)
        own_last = property_number(properties, *MIN_SNAPSHOTS_TO_KEEP)
        return RetentionRules(
            older_than_ms=older_than_ms,
            retain_last=own_last if self.retain_last is None else self.retain_last,
            max_ref_age_ms=property_number(properties, *MAX_REF_AGE),
            keep_versions=keep_versions,
            version_max_age_ms=policy.version_max_age_ms,
            max_snapshots=policy.max_snapshots,
            progress_max_age_ms=policy.progress_max_age_ms,
        )


def point_in_time_ms(value: datetime | timedelta, now_ms: int) -> int:
    """Return milliseconds since 1970 of a point in time, or of an age before now.

    Raises PolicyError for a time in the future.
    """
    point = now_ms - value // timedelta(milliseconds=1) if isinstance(value, timedelta) else milliseconds(value)
    if point > now_ms:
        raise PolicyError(
            f"'older-than' ({value}) must not lie in the future: everything that is written by then would go",
            key="older-than",
            value=value,
        )
    return point


def retention_of(
    metadata: TableMetadata,
    io: FileIO,
    rules: RetentionRules,
    now_ms: int,
    *,
    positions: Collection[int],
    store: ManifestStore,
) -> Retention:
    """Return the snapshots that stay, with reasons. Reads manifests only if versions are kept."""
    partitions = touched_in_history(metadata, io, store) if rules.keep_versions is not None else {}
    snapshots = [replace(fact_of(s), touched=partitions.get(s.snapshot_id, frozenset())) for s in metadata.snapshots]
    return plan_retention(snapshots, refs_of(metadata), rules, now_ms, readers=positions, label=Labels(metadata).of)


def touched_in_history(metadata: TableMetadata, io: FileIO, store: ManifestStore) -> dict[int, frozenset[PartitionKey]]:
    """Return the partitions that each snapshot of main's history touched.

    If snapshots before one have expired, its partitions are those that differ from the state before the gap.
    """
    found: dict[int, frozenset[PartitionKey]] = {}
    newest_first = known_history(metadata)
    for snapshot, older in zip_longest(newest_first, newest_first[1:]):
        if older is None or snapshot.parent_snapshot_id == older.snapshot_id:
            found[snapshot.snapshot_id] = frozenset(touched(store, io, snapshot, metadata.specs()))
        else:
            states = (state_at(store, io, each, metadata.specs(), None) for each in (snapshot, older))
            found[snapshot.snapshot_id] = frozenset(differing(*states))
    return found
