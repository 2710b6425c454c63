"""Compares the manifest entry of a Parquet file with the values in the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import gt, lt

from pyiceberg import types
from pyiceberg.io.pyarrow import match_metrics_mode

from icesize.parquet.files.data_file import FileMetrics
from icesize.parquet.files.metrics import bound_value, bounds_as_bytes
from icesize.parquet.format.fields import LogicalType, TimeType, TimeUnit
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.schema import Element
from icesize.parquet.format.thrift import read_struct, struct_of
from icesize.parquet.verify.file import ColumnFacts, FileVerification
from icesize.parquet.verify.values import Extremes

ROWS, COUNTS, BOUNDS = "row counts", "column counts", "bounds"
Types = Mapping[int, types.IcebergType]
"""The newest type of each column that a table has or had, by field id."""

_MICROS = (types.TimeType, types.TimestampType, types.TimestamptzType)
_NANOS = (types.TimestampNanoType, types.TimestamptzNanoType)
_CHECKED = (
    types.StringType, types.DecimalType, types.UUIDType, types.BooleanType, types.IntegerType, types.LongType,
    types.DateType, *_MICROS, *_NANOS,
)  # fmt: skip
"""Types of which each bound is a value. NaN as a bound is of no use to readers."""
_TRUNCATE = match_metrics_mode("truncate(16)")
"""Iceberg's default of `write.metadata.metrics.default`."""
_TIMES = (LogicalType.TIME, LogicalType.TIMESTAMP)


def by_field_id(verification: FileVerification, ids: Mapping[str, int]) -> dict[int, ColumnFacts]:
    """Return the flat columns of a file by field id; those of a file without field ids by the names in `ids`."""
    columns = verification.columns
    if all(facts.column.element.field_id is None for facts in columns):
        return {ids[name]: facts for facts in columns if (name := ".".join(facts.column.path)) in ids}
    return {facts.column.element.field_id: facts for facts in columns if facts.column.element.field_id is not None}


def compared(
    verification: FileVerification, metrics: FileMetrics, known: Types, ids: Mapping[str, int]
) -> tuple[list[tuple[str, str]], FileMetrics]:
    """Return the rule and the detail of each number in a manifest entry that the file contradicts, and true metrics.

    Counts are compared for columns of the top level only, because writers count the rows differently in which a struct
    is null. Wider bounds are no contradiction: they only open more files.

    The true metrics have the true numbers in place of those that the file contradicts. A number that the entry does not
    have stays out. So does a wrong bound without a true one.
    """
    counts = [dict(metrics.value_counts), dict(metrics.null_value_counts), dict(metrics.nan_value_counts)]
    bounds = [dict(metrics.lower_bounds), dict(metrics.upper_bounds)]
    wrong = list[tuple[str, str]]()
    if metrics.rows != verification.rows:
        wrong.append((ROWS, f"it has {verification.rows:,} rows, by the manifest {metrics.rows:,}"))
    for field_id, facts in by_field_id(verification, ids).items():
        kind, name = known.get(field_id), ".".join(facts.column.path)
        if not isinstance(kind, types.PrimitiveType):
            continue
        if len(facts.column.path) == 1:
            numbers = (("values", facts.values), ("nulls", facts.nulls), ("NaN", facts.nans))
            for listed, (what, number) in zip(counts, numbers, strict=True):
                if (claimed := listed.get(field_id)) is not None and claimed != number:
                    wrong.append((COUNTS, f"column '{name}': it has {number:,} {what}, by the manifest {claimed:,}"))
                    listed[field_id] = number
        if facts.is_ordered and has_unit(facts.column.element, kind):
            listed_bounds = [each.get(field_id) for each in bounds]
            problems = [*_bound_problems(kind, listed_bounds, facts.extremes)]
            wrong += ((BOUNDS, f"column '{name}': {problem}") for problem in problems)
            if problems:
                _correct(field_id, kind, bounds, facts.extremes)
    values, nulls, nans = counts
    return wrong, FileMetrics(verification.rows, nulls, nans, bounds[0], bounds[1], values)


def _bound_problems(
    kind: types.PrimitiveType, listed: Sequence[bytes | None], extremes: Extremes | None
) -> Iterator[str]:
    for end, (name, excludes) in enumerate((("lower", gt), ("upper", lt))):
        if (raw := listed[end]) is None:
            continue
        bound = bound_value(kind, raw)
        if bound is None:
            if isinstance(kind, _CHECKED):
                yield f"the {name} bound {raw!r} is no value of its type"
        elif extremes is not None and excludes(bound, value := extremes[end]):
            yield f"the {name} bound is {bound!r}, the {('least', 'greatest')[end]} value {value!r}"


def _correct(
    field_id: int, kind: types.PrimitiveType, bounds: Sequence[dict[int, bytes]], extremes: Extremes | None
) -> None:
    """Replace both bounds of a column."""
    for end, (listed, as_bytes) in enumerate(zip(bounds, bounds_as_bytes(kind, _TRUNCATE), strict=True)):
        true = None if extremes is None or as_bytes is None else as_bytes(extremes[end])
        if listed.pop(field_id, None) is not None and true is not None:
            listed[field_id] = true


def has_unit(element: Element, kind: types.PrimitiveType) -> bool:
    """Return False for times in another unit than those of Iceberg's type: other writers' files may have such."""
    if not isinstance(kind, (*_MICROS, *_NANOS)):
        return True
    if element.logical is None or element.logical[0] not in _TIMES:
        return False
    try:
        unit = struct_of(read_struct(element.logical[1])[0], TimeType.UNIT) or {}  # type: ignore[arg-type]
    except DamagedFile:
        return False
    return (TimeUnit.MICROS if isinstance(kind, _MICROS) else TimeUnit.NANOS) in unit
