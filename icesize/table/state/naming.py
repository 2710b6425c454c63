"""Names that users write for partitions, points in time and snapshots, resolved to the table's, and back."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta, timezone
from typing import Any

from pyiceberg.partitioning import PartitionField
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from icesize.errors import ArgumentError, TableError
from icesize.planning.files import PartitionKey
from icesize.planning.partition_labels import label_of, read_label
from icesize.table.catalog.history import NO_HISTORY, age_of, hides_history
from icesize.table.state.partition_values import NamedField, text_of_value

_SPEC = "@spec"
"""Key for the id of the partition spec, beside partition fields."""
_UNNAMED = "{}"
"""Name of the partition of an unpartitioned table."""
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def find_partition(
    metadata: TableMetadata, keys: Iterable[PartitionKey], wanted: Mapping[str, Any] | str
) -> PartitionKey:
    """Return the one of `keys` that `wanted` names with all of its fields: partition field to value, or a label.

    A value is None (NULL), a typed value, or a string: the value itself for a text field, otherwise the value as
    `inspect` prints it. In a label, `p=null` is NULL and `p="null"` is the string. `@spec` may name the partition spec.

    Raises ArgumentError for unknown field names, for a partition that never had files, and if several partitions have
    the same name.
    """
    labels = Labels(metadata)
    named = _named(labels, wanted)
    spec_id = named.pop(_SPEC, None)
    tests = {
        i: [field.test(named[field.name]) for field in fields]
        for i, fields in labels.fields.items()
        if str(i) == str(i if spec_id is None else spec_id) and named.keys() == {field.name for field in fields}
    }
    known = list(keys)
    found = [
        k
        for k in known
        if k.spec_id in tests and all(test(value) for test, value in zip(tests[k.spec_id], k.values, strict=False))
    ]
    if len(found) == 1:
        return found[0]
    texts = {name: None if value is None else text_of_value(value) for name, value in named.items()}
    label = label_of(texts)
    name = label or _UNNAMED
    if not tests:
        message = f"Cannot find partition {name}: the table is {_partitioned_by(metadata)}"
    elif not found:
        message = f"Cannot find partition {name}: it never had files{_hint(labels, known, label)}"
    else:
        message = f"Cannot find partition {name}: {len(found)} partitions have this name{_ways(labels, found)}"
    raise ArgumentError(message, partition=texts)


def _partitioned_by(metadata: TableMetadata) -> str:
    fields = ", ".join(field.name for field in metadata.spec().fields)
    return f"partitioned by {fields}: name each of them" if fields else "not partitioned: name no field"


def _hint(labels: Labels, known: Iterable[PartitionKey], label: str) -> str:
    close = difflib.get_close_matches(label, {labels.of(key) for key in known}, n=1)
    return f"; did you mean '{close[0]}'?" if close else ", or the snapshots that had them have expired"


def _ways(labels: Labels, found: Collection[PartitionKey]) -> str:
    """Return a hint with a unique name for each of several partitions that have the same name."""
    ways = sorted({"/".join(filter(None, (labels.of(key), f"{_SPEC}={key.spec_id}"))) for key in found})
    if len(ways) < len(found):
        return "; partitions with NaN cannot be named"
    return f". Name one of {', '.join(map(repr, ways))}"


def _named(labels: Labels, wanted: Mapping[str, Any] | str) -> dict[str, Any]:
    if not isinstance(wanted, str):
        return dict(wanted)
    names = {field.name for fields in labels.fields.values() for field in fields}
    try:
        pairs = read_label(wanted, {*names, _SPEC})
    except ValueError as error:
        raise ArgumentError(f"Cannot find partition {wanted}: {error}") from None
    if len(dict(pairs)) < len(pairs):
        raise ArgumentError(
            f"Cannot find partition {wanted}: a field is named twice. If the second name is part of a value, put "
            "that value in double quotes"
        )
    return dict(pairs)


def known_snapshot(metadata: TableMetadata, snapshot_id: int | str) -> Snapshot:
    """Return the snapshot with this id, a number or, as in JSON, a string.

    Raises TableError if it has expired or belongs to another table.
    """
    snapshots = metadata.snapshots
    found = next((s for s in snapshots if str(s.snapshot_id) == str(snapshot_id)), None)
    if found is not None:
        return found
    why = "the table has no snapshots"
    if hides_history(metadata):
        why = NO_HISTORY
    elif snapshots:
        by_time = sorted(snapshots, key=lambda s: s.timestamp_ms)
        why = (
            f"it has expired or is of another table; the table has {len(snapshots)} snapshots, "
            f"the oldest {_described(by_time[0])}, the newest {_described(by_time[-1])}"
        )
    raise TableError(f"Cannot find snapshot {snapshot_id}: {why}", snapshot_id=snapshot_id)


def snapshot_as_of(metadata: TableMetadata, as_of: datetime | int) -> int:
    """Return the id of the snapshot that readers of `main` saw at a time.

    The time is in milliseconds since 1970, or a datetime (naive: UTC). A time after the newest snapshot, even in the
    future, returns the newest. Raises TableError for a time before the oldest known one, and if a snapshot that may
    have been current then has expired.
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
    """Raise TableError if a snapshot between two entries of the log may have expired.

    The time at which such a snapshot was current is unknown.
    """
    if age_of(after) <= age_of(found):
        return  # main was rolled back
    below = after
    while (parent := snapshots.get(below.parent_snapshot_id or 0)) is not None:
        below = parent
        if below.snapshot_id == found.snapshot_id:
            return
    # numbers without a gap prove that no parent is missing: the table was replaced
    if below.sequence_number != (found.sequence_number or 0) + 1:
        raise TableError(
            f"Cannot find the snapshot that was current at {_time(at_ms)}: some between {_described(found)} and "
            f"{_described(after)} have expired; name a snapshot instead",
            as_of=at_ms,
        )


def milliseconds(time: datetime) -> int:
    """Return a time as milliseconds since 1970. A naive time is UTC."""
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
    """Partitions as users write them: `hour=h191/kind=3`, with values as Iceberg prints them."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schemas = [metadata.schema(), *reversed(metadata.schemas)]
        self.fields: dict[int, list[NamedField]] = {
            i: [self._field(field) for field in spec.fields] for i, spec in metadata.specs().items()
        }

    def of(self, key: PartitionKey) -> str:
        """Return the label of a partition; an empty string for an unpartitioned table."""
        return label_of(self.values(key))

    def values(self, key: PartitionKey) -> dict[str, str | None]:
        """Return the partition's values: partition field name to printed value, None for NULL."""
        return {field.name: field.printed(v) for field, v in zip(self.fields[key.spec_id], key.values, strict=True)}

    def _field(self, field: PartitionField) -> NamedField:
        # the source column may have been dropped, so its type comes from the newest schema that has it
        having = (schema for schema in self._schemas if schema.find_column_name(field.source_id) is not None)
        return NamedField(field.name, field.transform, next((s.find_type(field.source_id) for s in having), None))
