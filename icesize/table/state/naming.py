"""What people call partitions, points in time and snapshots -> what the table calls them, and back."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.typedef import Record

from icesize.errors import ArgumentError, TableError
from icesize.planning.files import PartitionKey

_UNNAMED = "{}"
"""How the partition of an unpartitioned table is named."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def find_partition(metadata: TableMetadata, keys: Iterable[PartitionKey], wanted: Mapping[str, Any]) -> PartitionKey:
    """The one of `keys` that `wanted` names: partition field -> value as `inspect` prints it, all fields, no others.

    Values that are not text are compared as they print (a date, a number; None is `null`). Where several partition
    specs have such a partition, the table's current one wins, then the newest. Raises ArgumentError for field names
    that no spec has, and for a partition that never had files.
    """
    printed = {name: _printed(value) for name, value in wanted.items()}
    label = "/".join(f"{name}={value}" for name, value in printed.items())
    if printed.keys() not in [{f.name for f in spec.fields} for spec in metadata.specs().values()]:
        fields = [f.name for f in metadata.spec().fields]
        by = f"partitioned by {', '.join(fields)}: name each of them" if fields else "not partitioned: name no field"
        raise ArgumentError(f"Cannot find partition {label or _UNNAMED}: the table is {by}", partition=printed)
    labels = Labels(metadata)
    known = list(keys)
    found = [key for key in known if labels.values(key) == printed]
    if not found:
        close = difflib.get_close_matches(label, {labels.of(key) for key in known}, n=1)
        hint = f"; did you mean '{close[0]}'?" if close else ", or the snapshots that had them have expired"
        raise ArgumentError(f"Cannot find partition {label or _UNNAMED}: it never had files{hint}", partition=printed)
    return max(found, key=lambda key: (key.spec_id == metadata.default_spec_id, key.spec_id))


def _printed(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def known_snapshot(metadata: TableMetadata, snapshot_id: int | str) -> Snapshot:
    """The snapshot of this id, a number or, as JSON has it, a text.

    Raises TableError for one that has expired or is of another table.
    """
    snapshots = metadata.snapshots
    found = next((s for s in snapshots if str(s.snapshot_id) == str(snapshot_id)), None)
    if found is not None:
        return found
    why = "the table has no snapshots"
    if snapshots:
        by_time = sorted(snapshots, key=lambda s: s.timestamp_ms)
        why = (
            f"it has expired or is of another table; the table has {len(snapshots)} snapshots, "
            f"the oldest {_described(by_time[0])}, the newest {_described(by_time[-1])}"
        )
    raise TableError(f"Cannot find snapshot {snapshot_id}: {why}", snapshot_id=snapshot_id)


def snapshot_as_of(metadata: TableMetadata, as_of: datetime | int) -> int:
    """The snapshot that readers of `main` saw at a time: milliseconds since 1970, or a datetime (naive: UTC).

    A time after the newest snapshot, the future too, gives the newest. Raises TableError for a time before the oldest
    known one, and where snapshots that may have been current then have expired.
    """
    at_ms = as_of if isinstance(as_of, int) else milliseconds(as_of)
    snapshots = {s.snapshot_id: s for s in metadata.snapshots}
    log = [(e.timestamp_ms, snapshots[e.snapshot_id]) for e in metadata.snapshot_log if e.snapshot_id in snapshots]
    position = max((i for i, (timestamp_ms, _) in enumerate(log) if timestamp_ms <= at_ms), default=-1)
    if position < 0:
        oldest = f"the oldest known is {log[0][1].snapshot_id} of {_time(log[0][0])}" if log else "there are none"
        raise TableError(f"Cannot find the snapshot of {_time(at_ms)}: {oldest}", as_of=at_ms)
    began_ms, found = log[position]
    if began_ms < at_ms and position + 1 < len(log):
        _check_unbroken(snapshots, found, log[position + 1][1], at_ms)
    return found.snapshot_id


def _check_unbroken(snapshots: Mapping[int, Snapshot], found: Snapshot, after: Snapshot, at_ms: int) -> None:
    """Between two snapshots of the log others may have been current that expired: then nobody knows which was when."""
    if _age(after) <= _age(found):
        return  # main was rolled back
    below = after
    while (parent := snapshots.get(below.parent_snapshot_id or 0)) is not None:
        below = parent
        if below.snapshot_id == found.snapshot_id:
            return
    # numbers without a gap tell that a parent is not missing: the table was replaced
    if below.sequence_number != (found.sequence_number or 0) + 1:
        raise TableError(
            f"Cannot tell which snapshot was current at {_time(at_ms)}: some between {_described(found)} and "
            f"{_described(after)} have expired; name a snapshot instead",
            as_of=at_ms,
        )


def _age(snapshot: Snapshot) -> tuple[int, int]:
    return snapshot.sequence_number or 0, snapshot.timestamp_ms


def milliseconds(time: datetime) -> int:
    """Since 1970; a naive time is UTC."""
    aware = time if time.tzinfo else time.replace(tzinfo=timezone.utc)
    return (aware - _EPOCH) // timedelta(milliseconds=1)


def _time(milliseconds: int) -> str:
    try:
        return (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat(timespec="milliseconds")
    except OverflowError:
        return f"{milliseconds} ms"


def _described(snapshot: Snapshot) -> str:
    return f"{snapshot.snapshot_id} of {_time(snapshot.timestamp_ms)}"


class Labels:
    """Partitions as people write them: `hour=h191/kind=3`, values as Iceberg prints them."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schemas = [metadata.schema(), *reversed(metadata.schemas)]
        self._specs = metadata.specs()

    def of(self, key: PartitionKey) -> str:
        """The label of a partition, `` for an unpartitioned one."""
        return "/".join(f"{name}={value}" for name, value in self.values(key).items())

    def values(self, key: PartitionKey) -> dict[str, str]:
        """Partition field name -> printed value."""
        spec = self._specs[key.spec_id]
        named = {}
        for field_, value in zip(spec.fields, Record(*key.values)._data, strict=True):
            # of the newest schema that has the source column
            having = (schema for schema in self._schemas if schema.find_column_name(field_.source_id) is not None)
            source = next((schema.find_type(field_.source_id) for schema in having), None)
            named[field_.name] = str(value) if source is None else field_.transform.to_human_string(source, value)
        return named
