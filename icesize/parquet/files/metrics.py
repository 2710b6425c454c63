"""Iceberg column metrics of a finished Parquet file.

`describe` reads them from the footer and the rows written. `carry_over` derives them for copied bytes, from the metrics
of the older files, which hold for the new file as well.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg import types
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, MetricsMode, match_metrics_mode
from pyiceberg.schema import Schema
from pyiceberg.utils.decimal import unscaled_to_decimal
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from icesize.parquet.files.data_file import CopiedFile, FileMetrics, NewDataFile
from icesize.parquet.files.properties import ARROW_VERSION, MAX_INFERRED, METRICS_DEFAULT, METRICS_OF_COLUMN
from icesize.parquet.files.settings import WriteSettings, derived
from icesize.parquet.format.schema import LINEAGE_IDS
from icesize.policy import property_number

_COUNTS_LISTS = 26
"""The first version of pyarrow that counts all NULLs of structs in lists."""

Serialise = Callable[[Any], "bytes | None"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One Parquet column: `position` in the footer, `path` in the file, `name` as Iceberg writes it.

    It is the `nth` leaf of the table's column number `column`.

    A `flat` column has no list or map above it, so it has one value per row, null if a struct above it is null.
    `counts` and the serializers of bounds (`lower`, `upper`) follow the column's metrics mode. Only flat columns have
    bounds and NaN counts: their meaning below a list or map is not defined.
    """

    position: int
    column: int
    nth: int
    field_id: int
    path: str
    name: str
    type: types.PrimitiveType
    flat: bool
    counts: bool
    lower: Serialise | None
    upper: Serialise | None

    @property
    def order(self) -> Callable[[Any], Any] | None:
        """The key that orders physical values, None for their own order."""
        return _unscaled if isinstance(self.type, types.DecimalType) else None

    @property
    def is_float(self) -> bool:
        """True if values can be NaN."""
        return isinstance(self.type, (types.FloatType, types.DoubleType))


@derived
def leaves(settings: WriteSettings) -> tuple[Leaf, ...]:
    """Return the Parquet columns of the table's files, in file order."""
    schema = settings.schema
    modes = _modes(schema, settings.properties)
    found: list[Leaf] = []
    for column, top in enumerate(schema.fields):
        for nth, (path, field_id, kind, flat) in enumerate(_walk(top.name, top)):
            name = schema.find_column_name(field_id) or path
            mode = modes(name)
            lower, upper = bounds_as_bytes(kind, mode) if flat else (None, None)
            counts = mode.type is not MetricModeTypes.NONE
            found.append(Leaf(len(found), column, nth, field_id, path, name, kind, flat, counts, lower, upper))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class FloatFacts:
    """The values of a float column that are not NULL, those that are NaN, and the bounds of the others."""

    values: int = 0
    nans: int = 0
    lowest: float = math.inf
    highest: float = -math.inf

    @staticmethod
    def of(column: pa.ChunkedArray) -> FloatFacts:
        """Return the facts of these values."""
        values, nans = len(column) - column.null_count, count_nans(column)
        if nans == values:
            return FloatFacts(values, nans)
        ends = pc.min_max(column).as_py()  # those of the values that are not NaN
        return FloatFacts(values, nans, ends["min"], ends["max"])

    def __add__(self, other: FloatFacts) -> FloatFacts:
        ends = min(self.lowest, other.lowest), max(self.highest, other.highest)
        return FloatFacts(self.values + other.values, self.nans + other.nans, *ends)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """The least and the greatest value, NaN left out; None without such values."""
        return (self.lowest, self.highest) if self.nans < self.values else None


def describe(
    file: NewDataFile, settings: WriteSettings, footer: pq.FileMetaData, floats: Mapping[int, FloatFacts]
) -> NewDataFile:
    """Return a finished file with the facts of its contents that a manifest entry needs; its other facts stay.

    `floats` has the columns that hold NaN, by field id. They have no Parquet statistics, or statistics that
    depend on the writer, so their counts and bounds are those of the rows.
    """
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    columns = [(leaf, [group.column(leaf.position) for group in groups]) for leaf in leaves(settings)]
    statistics = {leaf.field_id: [chunk.statistics for chunk in chunks] for leaf, chunks in columns}
    entries = {leaf.field_id: sum(chunk.num_values for chunk in chunks) for leaf, chunks in columns}
    null_counts = {
        leaf.field_id: _null_count(statistics[leaf.field_id]) if leaf.flat or ARROW_VERSION >= _COUNTS_LISTS else None
        for leaf, _ in columns
    }
    null_counts |= {field_id: entries[field_id] - facts.values for field_id, facts in floats.items()}
    counted = [leaf for leaf, _ in columns if leaf.counts]
    bounds = [(leaf.field_id, *_bounds_of(leaf, statistics, floats)) for leaf in counted]
    return replace(
        file,
        rows=footer.num_rows,
        column_sizes={leaf.field_id: sum(chunk.total_compressed_size for chunk in chunks) for leaf, chunks in columns},
        value_counts={leaf.field_id: entries[leaf.field_id] for leaf in counted},
        null_value_counts={
            leaf.field_id: missing for leaf in counted if (missing := null_counts[leaf.field_id]) is not None
        },
        nan_value_counts={
            leaf.field_id: floats.get(leaf.field_id, FloatFacts()).nans
            for leaf in counted
            if leaf.flat and leaf.is_float
        },
        lower_bounds={field_id: lower for field_id, lower, _ in bounds if lower is not None},
        upper_bounds={field_id: upper for field_id, _, upper in bounds if upper is not None},
        split_offsets=tuple(sorted(_start(group) for group in groups)),
        counts={field_id: (number, null_counts[field_id]) for field_id, number in entries.items()},
    )


def _null_count(statistics: list[Any]) -> int | None:
    known = all(s is not None and s.has_null_count for s in statistics)
    return sum(s.null_count for s in statistics) if known else None


def _bounds_of(
    leaf: Leaf, statistics: Mapping[int, list[Any]], floats: Mapping[int, FloatFacts]
) -> tuple[bytes | None, bytes | None]:
    if leaf.lower is None or leaf.upper is None:
        return None, None
    facts = floats.get(leaf.field_id)
    ends = _ends(leaf, statistics[leaf.field_id]) if facts is None else facts.bounds
    return (None, None) if ends is None else (leaf.lower(ends[0]), leaf.upper(ends[1]))


def _ends(leaf: Leaf, statistics: list[Any]) -> tuple[Any, Any] | None:
    # a chunk of only nulls needs no bounds; any other chunk without bounds makes the file's bounds unknown
    if any(s is None or not (s.has_min_max or s.num_values == 0) for s in statistics):
        return None
    bounded = [s for s in statistics if s.has_min_max]
    if not bounded:
        return None
    return min((s.min_raw for s in bounded), key=leaf.order), max((s.max_raw for s in bounded), key=leaf.order)


def _start(group: Any) -> int:
    first = group.column(0)
    dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
    start = first.data_page_offset if dictionary is None else min(dictionary, first.data_page_offset)
    return int(start)


def count_nans(column: pa.ChunkedArray) -> int:
    return pc.sum(pc.is_nan(column)).as_py() or 0


def _walk(
    path: str, field: types.NestedField, flat: bool = True
) -> Iterator[tuple[str, int, types.PrimitiveType, bool]]:
    """Yield path, field id and type of each Parquet column of a field, and whether it is flat, in file order."""
    if isinstance(field.field_type, types.PrimitiveType):
        yield path, field.field_id, field.field_type, flat
    for name, below in fields_below(field.field_type):
        yield from _walk(f"{path}.{name}", below, flat and isinstance(field.field_type, types.StructType))


def fields_below(kind: types.IcebergType) -> list[tuple[str, types.NestedField]]:
    """Return the fields of a nested type under their names in Parquet."""
    if isinstance(kind, types.StructType):
        return [(field.name, field) for field in kind.fields]
    if isinstance(kind, types.ListType):
        return [("list.element", kind.element_field)]
    if isinstance(kind, types.MapType):
        return [("key_value.key", kind.key_field), ("key_value.value", kind.value_field)]
    return []


def _modes(schema: Schema, properties: Mapping[str, str]) -> Callable[[str], MetricsMode]:
    """Return a function from column name to metrics mode.

    Without a default of its own, a wide table has metrics for its first 100 columns.
    """
    prefix = METRICS_OF_COLUMN
    own = {k.removeprefix(prefix): match_metrics_mode(v) for k, v in properties.items() if k.startswith(prefix)}
    of_table = [field for field in schema.fields if field.field_id not in LINEAGE_IDS]
    # a filter by the lineage of rows would only read more files
    own |= {field.name: match_metrics_mode("none") for field in schema.fields if field.field_id in LINEAGE_IDS}
    default = match_metrics_mode(properties.get(METRICS_DEFAULT, "truncate(16)"))
    if METRICS_DEFAULT in properties:
        return lambda name: own.get(name, default)
    limit = property_number(properties, *MAX_INFERRED)
    inferred = {schema.find_column_name(field_id) for field_id in islice(_by_level(of_table), limit)}
    none = match_metrics_mode("none")
    return lambda name: own.get(name, default if name in inferred else none)


def _by_level(fields: Sequence[types.NestedField]) -> Iterator[int]:
    """Yield columns in Iceberg's order for that limit: columns of a struct precede columns of structs in it."""
    yield from (each.field_id for each in fields if isinstance(each.field_type, types.PrimitiveType))
    for each in fields:
        yield from _by_level([below for _, below in fields_below(each.field_type)])


def bounds_as_bytes(kind: types.PrimitiveType, mode: MetricsMode) -> tuple[Serialise | None, Serialise | None]:
    """Return serializers of a column's physical minimum and maximum."""
    if mode.type not in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL):
        return None, None
    serialise, length = to_bytes.dispatch(type(kind)), mode.length
    if isinstance(kind, types.DecimalType):
        scale = kind.scale
        # pages without checksums may hold more digits than their type allows
        unscaled = _or_none(lambda value: bytes(serialise(kind, unscaled_to_decimal(_unscaled(value), scale))))
        return unscaled, unscaled
    if isinstance(kind, types.StringType):
        # Spark stores any bytes as text, and the code point after U+D7FF is a surrogate, which has no UTF-8 encoding
        lower = _or_none(lambda value: value.decode()[:length].encode())
        return lower, _or_none(lambda value: _encoded(truncate_upper_bound_text_string(value.decode(), length)))
    if isinstance(kind, types.BinaryType):
        return lambda value: value[:length], lambda value: truncate_upper_bound_binary_string(value, length)

    def exact(value: Any) -> bytes:
        return bytes(serialise(kind, value))

    return lambda value: exact(widened(value, -0.0)), lambda value: exact(widened(value, 0.0))


def _or_none(serialise: Serialise) -> Serialise:
    """Return a serializer that returns None for a value without a serialized form."""

    def bound(value: Any) -> bytes | None:
        try:
            return serialise(value)
        except ValueError:
            return None

    return bound


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def widened(bound: Any, zero: float) -> Any:
    """Return the bound, or `zero` for any floating-point zero; `zero` is the outermost of the two zeros.

    Iceberg orders -0.0 before 0.0. Python considers them equal, so the minimum of some values may be either.
    """
    return zero if isinstance(bound, float) and not bound else bound


def _unscaled(value: int | bytes) -> int:
    """Return a stored decimal as an integer; decimals of more than 18 digits are stored as big-endian bytes."""
    return int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value


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
    types.TimestampNanoType: {8: "<q"},
    types.TimestamptzNanoType: {8: "<q"},
}
"""Iceberg's single-value serialisation by type and length: a bound may be older than the column's promotion."""


_UUID_BYTES = 16


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows of the new file: rows of an older file, or decoded rows.

    If `whole` is False, it is unknown which rows of the older file they are.
    """

    metrics: FileMetrics
    whole: bool


def carry_over(file: CopiedFile, settings: WriteSettings, inputs: Mapping[str, FileMetrics]) -> NewDataFile:
    """Complete the metrics of a file under the table's current schema and metrics modes.

    `inputs` are the metrics of copied files by path. If the file `has_bounds`, its bounds stay. Otherwise, bounds
    enclose the bounds of all inputs and of the decoded rows. A bound is left out if an input lacks it and may hold
    values, or is not in `inputs`. This applies to each bound of each column separately.

    Value and null counts of the file's footer stay. Missing null counts are the sums of the inputs' null counts.
    """
    counted = {leaf.field_id: leaf for leaf in leaves(settings) if leaf.counts}
    parts = _parts(file, inputs)
    known = [leaf for leaf in counted.values() if leaf.flat] if parts else []
    nulls = {i: count for i, count in file.null_value_counts.items() if i in counted}
    # icesize's files omit the footer statistics of columns that hold NaN, and so their null counts
    uncounted = [leaf for leaf in known if leaf.field_id not in nulls]
    bounds = [(leaf.field_id, *_enclosing_bounds(leaf, parts)) for leaf in known]
    if file.has_bounds:
        bounds = [(i, file.lower_bounds.get(i), file.upper_bounds.get(i)) for i in counted]
    return file.become(
        NewDataFile,
        value_counts={i: count for i, count in file.value_counts.items() if i in counted},
        null_value_counts=nulls | _totals(uncounted, parts, FileMetrics.nulls),
        nan_value_counts=_totals([leaf for leaf in known if leaf.is_float], parts, FileMetrics.nans),
        lower_bounds={i: lower for i, lower, _ in bounds if lower is not None},
        upper_bounds={i: upper for i, _, upper in bounds if upper is not None},
    )


def _parts(file: CopiedFile, inputs: Mapping[str, FileMetrics]) -> list[_Part]:
    """Return all rows of the file as parts; return no parts if the metrics of one are unknown."""
    if any(copied.path not in inputs for copied in file.copied_from):
        return []
    decoded = (_Part(metrics, whole=True) for metrics in file.decoded)
    return [*(_Part(inputs[copied.path], copied.whole) for copied in file.copied_from), *decoded]


def _totals(
    columns: Sequence[Leaf], parts: Sequence[_Part], count: Callable[[FileMetrics, int], int | None]
) -> dict[int, int]:
    """Return the sums of the counts that every part has; a part that is not whole counts only if its count is zero."""
    totals = {}
    for leaf in columns:
        found = [(count(part.metrics, leaf.field_id), part.whole) for part in parts]
        known = [number for number, whole in found if number is not None and (whole or number == 0)]
        if len(known) == len(parts):
            totals[leaf.field_id] = sum(known)
    return totals


def _enclosing_bounds(leaf: Leaf, parts: Sequence[_Part]) -> tuple[bytes | None, bytes | None]:
    bounded = [part.metrics for part in parts if _may_hold(part.metrics, leaf)]
    lower = _outermost(leaf, [metrics.lower_bounds for metrics in bounded], min, leaf.lower)
    return lower, _outermost(leaf, [metrics.upper_bounds for metrics in bounded], max, leaf.upper)


def _may_hold(metrics: FileMetrics, leaf: Leaf) -> bool:
    """Return whether there may be a value that is neither null nor NaN.

    Bounds prove that there is one, even if the counts contradict them.
    """
    bounds = (each.get(leaf.field_id) for each in (metrics.lower_bounds, metrics.upper_bounds))
    if any(bound_value(leaf.type, bound) is not None for bound in bounds):
        return True
    missing = metrics.outside(leaf.field_id) + metrics.null_value_counts.get(leaf.field_id, 0)
    if leaf.is_float:
        missing += metrics.nan_value_counts.get(leaf.field_id, 0)
    return missing < metrics.rows


def _outermost(
    leaf: Leaf, bounds: Sequence[Mapping[int, bytes]], outermost: Callable[[Any], Any], serialise: Serialise | None
) -> bytes | None:
    """Return the bound that encloses all bounds; None if one is missing."""
    values = [bound_value(leaf.type, each.get(leaf.field_id)) for each in bounds]
    return None if serialise is None or not values or None in values else serialise(outermost(values))


def bound_value(kind: types.PrimitiveType, bound: bytes | None) -> Any | None:
    """Return a bound as a physical value in the order of its column type; None for a bound without information.

    Parquet orders text by its bytes. Java truncates bounds of fixed columns.
    """
    if bound is None or isinstance(kind, types.BinaryType):
        return bound
    if isinstance(kind, types.StringType):
        return bound if bound.decode(errors="ignore").encode() == bound else None
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
