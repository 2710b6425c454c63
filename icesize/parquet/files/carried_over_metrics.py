"""Iceberg metrics of a file that was made by copying bytes: what is known of the older files holds for it as well."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pyiceberg import types

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.metrics import Leaf, Serialise, leaves
from icesize.parquet.files.settings import WriteSettings

_NUMBERS: dict[type[types.PrimitiveType], dict[int, str]] = {
    types.BooleanType: {1: "<?"},
    types.IntegerType: {4: "<i"},
    types.LongType: {4: "<i", 8: "<q"},
    types.FloatType: {4: "<f"},
    types.DoubleType: {4: "<f", 8: "<d"},
    types.DateType: {4: "<i"},
    types.TimeType: {8: "<q"},
    types.TimestampType: {8: "<q"},
    types.TimestamptzType: {8: "<q"},
}
"""Iceberg's single-value serialisation by type and length: a bound may be older than the column's promotion."""
_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class FileMetrics:
    """What is known of the columns of one file, or of some of its rows: maps by field id, as in a manifest.

    Only columns without a list or map above them count here. They have a value in each of the `rows`, but Iceberg's
    Java leaves out of the counts of some columns the rows in which a struct above them is null.
    """

    rows: int
    null_value_counts: Mapping[int, int] = field(default_factory=dict)
    nan_value_counts: Mapping[int, int] = field(default_factory=dict)
    lower_bounds: Mapping[int, bytes] = field(default_factory=dict)
    upper_bounds: Mapping[int, bytes] = field(default_factory=dict)
    value_counts: Mapping[int, int] = field(default_factory=dict)

    def nulls(self, field_id: int) -> int | None:
        """In how many rows a column is null, the struct above it or itself; None where that is not known."""
        counted = self.null_value_counts.get(field_id)
        return None if counted is None else self._outside(field_id) + counted

    def nans(self, field_id: int) -> int | None:
        """In how many rows a column is NaN; None where that is not known."""
        return self.nan_value_counts.get(field_id)

    def may_hold(self, leaf: Leaf) -> bool:
        """Whether there may be a value that is neither null nor NaN."""
        missing = self._outside(leaf.field_id) + self.null_value_counts.get(leaf.field_id, 0)
        if leaf.is_float:
            missing += self.nan_value_counts.get(leaf.field_id, 0)
        return missing < self.rows

    def _outside(self, field_id: int) -> int:
        return max(0, self.rows - self.value_counts.get(field_id, self.rows))

    @staticmethod
    def of(file: WrittenFile) -> FileMetrics:
        """Metrics of a file without `copied_from`."""
        return FileMetrics(
            file.rows, file.null_value_counts, file.nan_value_counts, file.lower_bounds, file.upper_bounds,
            file.value_counts,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of the new file: those of an older one, all of them or (not `whole`) nobody knows which, or decoded ones."""

    metrics: FileMetrics
    whole: bool


def carry_over(file: WrittenFile, settings: WriteSettings, inputs: Mapping[str, FileMetrics]) -> WrittenFile:
    """The file with complete metrics under the table's current schema and metrics modes, and no `copied_from`.

    `inputs` are the metrics of copied files by path. Bounds enclose those of all inputs and of the decoded rows; where
    one has none and may hold values, or is not in `inputs`, they are left out: each bound of each column for itself.
    Value and null counts of the file's footer stay; null counts that it lacks are the sum of the inputs'.
    """
    if not file.copied_from:
        return file
    counted = {leaf.field_id: leaf for leaf in leaves(settings) if leaf.counts}
    parts = _parts(file, inputs)
    known = [leaf for leaf in counted.values() if leaf.flat] if parts else []
    nulls = {i: count for i, count in file.null_value_counts.items() if i in counted}
    # our files have no statistics in the footer, and so no null count, where a column holds NaN
    uncounted = [leaf for leaf in known if leaf.field_id not in nulls]
    bounds = [(leaf.field_id, *_bounds_of(leaf, parts)) for leaf in known]
    return replace(
        file,
        value_counts={i: count for i, count in file.value_counts.items() if i in counted},
        null_value_counts=nulls | _totals(uncounted, parts, FileMetrics.nulls),
        nan_value_counts=_totals([leaf for leaf in known if leaf.is_float], parts, FileMetrics.nans),
        lower_bounds={i: lower for i, lower, _ in bounds if lower is not None},
        upper_bounds={i: upper for i, _, upper in bounds if upper is not None},
        copied_from=(),
        rows_decoded=0,
        nulls_decoded={},
    )


def _parts(file: WrittenFile, inputs: Mapping[str, FileMetrics]) -> list[_Part]:
    """All rows of the file; none when of some nothing is known."""
    if any(copied.path not in inputs for copied in file.copied_from):
        return []
    parts = [_Part(inputs[copied.path], copied.whole) for copied in file.copied_from]
    if file.rows_decoded:
        own = FileMetrics.of(file)
        own = replace(own, rows=file.rows_decoded, null_value_counts=file.nulls_decoded, value_counts={})
        parts.append(_Part(own, whole=True))
    return parts


def _totals(
    columns: Sequence[Leaf], parts: Sequence[_Part], count: Callable[[FileMetrics, int], int | None]
) -> dict[int, int]:
    """The counts of the columns of which every part has one; of a file that is not whole only zero is known."""
    totals = {}
    for leaf in columns:
        found = [(count(part.metrics, leaf.field_id), part.whole) for part in parts]
        known = [number for number, whole in found if number is not None and (whole or number == 0)]
        if len(known) == len(parts):
            totals[leaf.field_id] = sum(known)
    return totals


def _bounds_of(leaf: Leaf, parts: Sequence[_Part]) -> tuple[bytes | None, bytes | None]:
    bounded = [part.metrics for part in parts if part.metrics.may_hold(leaf)]
    if leaf.lower is None or leaf.upper is None or not bounded:
        return None, None
    lower = _outermost(leaf, [metrics.lower_bounds for metrics in bounded], min, leaf.lower)
    return lower, _outermost(leaf, [metrics.upper_bounds for metrics in bounded], max, leaf.upper)


def _outermost(
    leaf: Leaf,
    bounds: Sequence[Mapping[int, bytes]],
    outermost: Callable[[list[Any]], Any],
    serialise: Serialise,
) -> bytes | None:
    """The bound that encloses all."""
    values = [bound_value(leaf.type, each.get(leaf.field_id)) for each in bounds]
    if any(value is None for value in values):
        return None
    return serialise(outermost(values))


def bound_value(kind: types.PrimitiveType, bound: bytes | None) -> Any | None:
    """A bound as the physical value that columns of this type are ordered by, None for one that says nothing.

    Text is ordered by its bytes, as Parquet does. Java truncates bounds of fixed columns.
    """
    if bound is None or isinstance(kind, types.BinaryType):
        return bound
    if isinstance(kind, types.StringType):
        return bound if _is_text(bound) else None
    if isinstance(kind, types.DecimalType):
        unscaled = int.from_bytes(bound, "big", signed=True)
        return unscaled if bound and abs(unscaled) < 10**kind.precision else None
    if isinstance(kind, types.FixedType):
        return bound if len(bound) <= len(kind) else None
    if isinstance(kind, types.UUIDType):
        return bound if len(bound) == _UUID_BYTES else None
    layout = _NUMBERS.get(type(kind), {}).get(len(bound))
    value = None if layout is None else struct.unpack(layout, bound)[0]
    return None if value != value else value


def _is_text(bound: bytes) -> bool:
    try:
        bound.decode()
    except UnicodeDecodeError:
        return False
    return True
