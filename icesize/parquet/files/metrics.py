"""Iceberg column metrics of a finished Parquet file, from its footer and the rows written."""

from __future__ import annotations

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

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.settings import WriteSettings

_DEFAULT = "write.metadata.metrics.default"
_COLUMN = "write.metadata.metrics.column."
_MAX_INFERRED = "write.metadata.metrics.max-inferred-column-defaults"

Serialise = Callable[[Any], "bytes | None"]


@dataclass(frozen=True, slots=True)
class Leaf:
    """One Parquet column: `position` in the footer, `path` in the file, `name` as Iceberg writes it; it is the `nth`
    leaf of the table's column number `column`.

    `flat`: no list or map is above it, so it has one value per row, null where a struct above it is. `counts` and
    bounds (`lower`, `upper`) say what its metrics mode keeps. Only flat columns have bounds and NaN counts: what they
    mean below a list or map is not defined.
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
        """Key by which physical values are ordered, None for their own order."""
        return _unscaled if isinstance(self.type, types.DecimalType) else None

    @property
    def is_float(self) -> bool:
        """Whether values can be NaN."""
        return isinstance(self.type, (types.FloatType, types.DoubleType))


def leaves(settings: WriteSettings) -> tuple[Leaf, ...]:
    """The Parquet columns of the table's files, in file order."""
    return settings.derived(_leaves)


def describe(
    file: WrittenFile,
    settings: WriteSettings,
    footer: pq.FileMetaData,
    nulls: Mapping[int, int],
    nans: Mapping[int, int],
) -> WrittenFile:
    """A finished file with what a manifest entry needs to know of its contents; the others of its facts stay.

    `nans` and `nulls` are counted from the rows, by field id: `nans` for flat float columns, `nulls` for columns
    whose Parquet statistics were left out because they hold NaN. Such columns have no bounds.
    """
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    columns = [(leaf, [group.column(leaf.position) for group in groups]) for leaf in leaves(settings)]
    counted = [(leaf, chunks) for leaf, chunks in columns if leaf.counts]
    statistics = [(leaf, [chunk.statistics for chunk in chunks]) for leaf, chunks in counted]
    bounds = [(leaf.field_id, *_bounds_of(leaf, found)) for leaf, found in statistics]
    null_counts = [(leaf.field_id, nulls.get(leaf.field_id, _null_count(found))) for leaf, found in statistics]
    return replace(
        file,
        rows=footer.num_rows,
        column_sizes={leaf.field_id: sum(chunk.total_compressed_size for chunk in chunks) for leaf, chunks in columns},
        value_counts={leaf.field_id: sum(chunk.num_values for chunk in chunks) for leaf, chunks in counted},
        null_value_counts={field_id: count for field_id, count in null_counts if count is not None},
        nan_value_counts={
            leaf.field_id: nans.get(leaf.field_id, 0) for leaf, _ in counted if leaf.flat and leaf.is_float
        },
        lower_bounds={field_id: lower for field_id, lower, _ in bounds if lower is not None},
        upper_bounds={field_id: upper for field_id, _, upper in bounds if upper is not None},
        split_offsets=tuple(sorted(_start(group) for group in groups)),
    )


def _null_count(statistics: list[Any]) -> int | None:
    known = all(s is not None and s.has_null_count for s in statistics)
    return sum(s.null_count for s in statistics) if known else None


def _bounds_of(leaf: Leaf, statistics: list[Any]) -> tuple[bytes | None, bytes | None]:
    if leaf.lower is None or leaf.upper is None:
        return None, None
    # a chunk of only nulls has no bounds and needs none; any other without them makes the file's unknown
    if any(s is None or not (s.has_min_max or s.num_values == 0) for s in statistics):
        return None, None
    bounded = [s for s in statistics if s.has_min_max]
    if not bounded:
        return None, None
    lower, upper = min((s.min_raw for s in bounded), key=leaf.order), max((s.max_raw for s in bounded), key=leaf.order)
    return leaf.lower(lower), leaf.upper(upper)


def _start(group: Any) -> int:
    first = group.column(0)
    dictionary = first.dictionary_page_offset if first.has_dictionary_page else None
    start = first.data_page_offset if dictionary is None else min(dictionary, first.data_page_offset)
    return int(start)


def count_nans(column: pa.ChunkedArray) -> int:
    return pc.sum(pc.is_nan(column)).as_py() or 0


def _leaves(settings: WriteSettings) -> tuple[Leaf, ...]:
    schema = settings.schema
    modes = _modes(schema, settings.properties)
    found: list[Leaf] = []
    for column, field in enumerate(schema.fields):
        for nth, (path, field_id, kind, flat) in enumerate(_walk(field.name, field)):
            name = schema.find_column_name(field_id) or path
            mode = modes(name)
            lower, upper = _bounds(kind, mode) if flat else (None, None)
            counts = mode.type is not MetricModeTypes.NONE
            found.append(Leaf(len(found), column, nth, field_id, path, name, kind, flat, counts, lower, upper))
    return tuple(found)


def _walk(
    path: str, field: types.NestedField, flat: bool = True
) -> Iterator[tuple[str, int, types.PrimitiveType, bool]]:
    """Path, field id and type of each Parquet column of a field, and whether it is flat, in file order."""
    if isinstance(field.field_type, types.PrimitiveType):
        yield path, field.field_id, field.field_type, flat
    for name, below in _below(field.field_type):
        yield from _walk(f"{path}.{name}", below, flat and isinstance(field.field_type, types.StructType))


def _below(kind: types.IcebergType) -> list[tuple[str, types.NestedField]]:
    """The fields of a nested type under their names in Parquet."""
    if isinstance(kind, types.StructType):
        return [(field.name, field) for field in kind.fields]
    if isinstance(kind, types.ListType):
        return [("list.element", kind.element_field)]
    if isinstance(kind, types.MapType):
        return [("key_value.key", kind.key_field), ("key_value.value", kind.value_field)]
    return []


def _modes(schema: Schema, properties: Mapping[str, str]) -> Callable[[str], MetricsMode]:
    """Metrics mode by column name; without a default of its own a wide table has metrics for its first 100 columns."""
    own = {k.removeprefix(_COLUMN): match_metrics_mode(v) for k, v in properties.items() if k.startswith(_COLUMN)}
    default = match_metrics_mode(properties.get(_DEFAULT, "truncate(16)"))
    if _DEFAULT in properties:
        return lambda name: own.get(name, default)
    limit = int(properties.get(_MAX_INFERRED, "100"))
    inferred = {schema.find_column_name(field_id) for field_id in islice(_by_level(schema.fields), limit)}
    none = match_metrics_mode("none")
    return lambda name: own.get(name, default if name in inferred else none)


def _by_level(fields: Sequence[types.NestedField]) -> Iterator[int]:
    """Columns in the order in which Iceberg counts them for that limit: those of a struct before those further down."""
    yield from (field.field_id for field in fields if isinstance(field.field_type, types.PrimitiveType))
    for field in fields:
        yield from _by_level([below for _, below in _below(field.field_type)])


def _bounds(kind: types.PrimitiveType, mode: MetricsMode) -> tuple[Serialise | None, Serialise | None]:
    """Serialisers of a column's physical minimum and maximum."""
    if mode.type not in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL):
        return None, None
    serialise = to_bytes.dispatch(type(kind))
    if isinstance(kind, types.DecimalType):
        return _decimal(kind), _decimal(kind)
    if isinstance(kind, types.StringType):
        return _text(mode.length)
    if isinstance(kind, types.BinaryType):
        length = mode.length
        return lambda value: value[:length], lambda value: truncate_upper_bound_binary_string(value, length)

    def exact(value: Any) -> bytes:
        return bytes(serialise(kind, value))

    return lambda value: exact(widened(value, -0.0)), lambda value: exact(widened(value, 0.0))


def widened(bound: Any, zero: float) -> Any:
    """The bound, or `zero`, the one beyond which the other zero is not, where it is any zero of floating point.

    Iceberg orders -0.0 before 0.0. To Python they are equal, so the least of some values may be either.
    """
    return zero if isinstance(bound, float) and not bound else bound


def _text(length: int | None) -> tuple[Serialise, Serialise]:
    def lower(value: bytes) -> bytes | None:
        try:
            return value.decode()[:length].encode()
        except UnicodeDecodeError:
            return None  # Spark stores any bytes as text

    def upper(value: bytes) -> bytes | None:
        try:
            bound = truncate_upper_bound_text_string(value.decode(), length)
            return None if bound is None else bound.encode()
        except UnicodeError:
            return None  # also where what follows, after U+D7FF, is no character by itself

    return lower, upper


def _decimal(kind: types.DecimalType) -> Serialise:
    def serialise(value: int | bytes) -> bytes:
        return to_bytes(kind, unscaled_to_decimal(_unscaled(value), kind.scale))

    return serialise


def _unscaled(value: int | bytes) -> int:
    """A stored decimal as an integer: more than 18 digits are stored as big-endian bytes."""
    return int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value
