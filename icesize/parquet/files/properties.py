"""Table properties for Parquet files, `write.parquet.*`, parsed once into the arguments of pyarrow's writer.

Tables that icesize's Parquet files cannot serve are refused by name before anything is written.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import match_metrics_mode
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform
from pyiceberg.types import FixedType, NestedField, TimestampNanoType, TimestamptzNanoType

from icesize.errors import UnsupportedTable
from icesize.parquet.files.lineage_fields import is_lineage
from icesize.policy import property_number

T = TypeVar("T", int, float)

_BLOOM = "write.parquet.bloom-filter-enabled.column."
_BLOOM_FPP = "write.parquet.bloom-filter-fpp.column."
_CODEC = "write.parquet.compression-codec"
_LEVEL = "write.parquet.compression-level"
METRICS_DEFAULT = "write.metadata.metrics.default"
METRICS_OF_COLUMN = "write.metadata.metrics.column."
MAX_INFERRED = ("write.metadata.metrics.max-inferred-column-defaults", 100)
"""The number of columns that have metrics if the table has no default of its own, with Iceberg's default."""
_CODECS = {**{n: n for n in ("zstd", "snappy", "gzip", "lz4", "none")}, "lz4_raw": "lz4", "uncompressed": "none"}
NANOSECONDS = (TimestampNanoType, TimestamptzNanoType)
_BEFORE_V3 = 2
"""The format version up to which all types are supported; of later types, only `NANOSECONDS`."""
_NUMBERS = {
    "row_group_bytes": "write.parquet.row-group-size-bytes",
    "row_group_rows": "write.parquet.row-group-limit",
    "page_bytes": "write.parquet.page-size-bytes",
    "page_rows": "write.parquet.page-row-limit",
    "dictionary_bytes": "write.parquet.dict-size-bytes",
    "bloom_bytes": "write.parquet.bloom-filter-max-bytes",
}
ARROW_VERSION = int(pa.__version__.partition(".")[0])
_WRITER_ARGUMENTS = frozenset(inspect.signature(pq.ParquetWriter.__init__).parameters)


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """Encoding options of files; sizes in bytes, limits in rows. Defaults are Iceberg's documented ones.

    `codec` is zstd if the table does not set one (Iceberg's default since 1.4). `level` None is the codec's own
    default. `bloom_fpp` maps a column's Iceberg name to the false positive rate of its filter (Iceberg's default is
    0.01).
    """

    codec: str = "zstd"
    level: int | None = None
    row_group_bytes: int = 128 * 2**20
    row_group_rows: int = 2**20
    page_bytes: int = 2**20
    page_rows: int = 20_000
    dictionary_bytes: int = 2 * 2**20
    bloom_bytes: int = 2**20
    bloom_fpp: Mapping[str, float] = field(default_factory=dict)

    @staticmethod
    def of(properties: Mapping[str, str]) -> ParquetOptions:
        """Parse table properties; raises `UnsupportedTable` naming the property that cannot be honored."""
        codec = _codec(properties)
        numbers = {name: _positive(properties, key) for name, key in _NUMBERS.items() if key in properties}
        return ParquetOptions(codec, _level(properties, codec), bloom_fpp=_bloom_columns(properties), **numbers)

    def writer(
        self,
        sink: Any,
        schema: pa.Schema,
        dictionary: Sequence[str] = (),
        statistics: Sequence[str] | bool = True,
        **others: Any,
    ) -> pq.ParquetWriter:
        """Begin a file on a stream.

        The columns at the paths of `dictionary` have a dictionary; the columns at the paths of `statistics` have
        bounds.

        Data pages are v1, because Iceberg's vectorized reader refuses booleans in v2 pages. The file has a page index,
        and stores decimals of up to 18 digits as integers. It has no Arrow schema, whose time zones and 256-bit
        decimals confuse other readers. Pages carry a checksum: without one, more than half of flipped bits decode to
        other values, which a merge would make permanent. The checksum costs 0.01 % of the bytes.
        """
        arguments: dict[str, Any] = {
            "compression": self.codec,
            "compression_level": self.level,
            "data_page_size": self.page_bytes,
            "dictionary_pagesize_limit": self.dictionary_bytes,
            "data_page_version": "1.0",
            "version": "2.6",
            "write_page_index": True,
            "write_page_checksum": True,
            "store_decimal_as_integer": True,
            "store_schema": False,
        }
        if "max_rows_per_page" in _WRITER_ARGUMENTS:
            arguments["max_rows_per_page"] = self.page_rows
        if packed := [column.name for column in schema if is_lineage(column)]:
            # runs and ramps: some bytes a page
            arguments["column_encoding"] = dict.fromkeys(packed, "DELTA_BINARY_PACKED")
        columns = {"use_dictionary": list(dictionary) or False, "write_statistics": statistics or False}
        return pq.ParquetWriter(sink, schema, **columns, **arguments | others)

    def in_memory(self, rows: pa.Table, *columns: Any, **others: Any) -> pa.Buffer:
        """Return a file of one row group; the arguments are those of `writer`."""
        sink = pa.BufferOutputStream()
        with self.writer(sink, rows.schema, *columns, **others) as writer:
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return sink.getvalue()

    def row_groups(self, size_bytes: float, rows: int) -> int:
        """Return the number of row groups of about equal size that these rows become, at least 1."""
        return max(1, math.ceil(size_bytes / self.row_group_bytes), math.ceil(rows / self.row_group_rows))

    def bloom_arguments(self, rows: int, paths: Mapping[str, str]) -> dict[str, Any]:
        """Return pyarrow's argument for the bloom filters of a file of `rows` rows.

        `paths` maps Iceberg names to Parquet paths. Each filter is sized for as many distinct values as rows, but is at
        most `write.parquet.bloom-filter-max-bytes` large.
        """
        filters = {}
        for name, fpp in self.bloom_fpp.items():
            if name in paths:
                bits_per_value = -8.0 / math.log(1.0 - fpp ** (1.0 / 8.0))  # split block filter, Parquet specification
                most = int(self.bloom_bytes * 8 / bits_per_value)
                filters[paths[name]] = {"ndv": max(1, min(rows, most)), "fpp": fpp}
        return {"bloom_filter_options": filters} if filters else {}


def _cannot_honour(key: str, value: object, why: str) -> UnsupportedTable:
    return UnsupportedTable(f"Cannot honour '{key}' ({value}): {why}", property=key)


def _codec(properties: Mapping[str, str]) -> str:
    name = properties.get(_CODEC, "zstd")
    codec = _CODECS.get(name.strip().lower())
    if codec is None:
        use = f"use one of {', '.join(sorted(_CODECS))}"
        raise _cannot_honour(_CODEC, name, f"Spark cannot read it or pyarrow cannot write it, {use}")
    return codec


def _level(properties: Mapping[str, str], codec: str) -> int | None:
    text = properties.get(_LEVEL)
    # Iceberg applies the level only to codecs that have levels, too
    if text is None or codec not in ("zstd", "gzip"):
        return None
    if (level := _parsed(int, text)) is None:
        raise _cannot_honour(_LEVEL, text, "it must be a whole number")
    low, high = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
    if not low <= level <= high:
        raise _cannot_honour(_LEVEL, text, f"{codec} has levels {low} to {high}")
    return level


def _positive(properties: Mapping[str, str], key: str) -> int:
    value = _parsed(int, properties[key]) or 0
    if value <= 0:
        raise _cannot_honour(key, properties[key], "it must be a whole number above 0")
    return value


def _bloom_columns(properties: Mapping[str, str]) -> dict[str, float]:
    columns: dict[str, float] = {}
    for key, enabled in properties.items():
        if not key.startswith(_BLOOM) or enabled.strip().lower() != "true":
            continue
        if "bloom_filter_options" not in _WRITER_ARGUMENTS:
            raise _cannot_honour(key, "true", f"pyarrow {pa.__version__} writes no bloom filters, upgrade pyarrow")
        name = key.removeprefix(_BLOOM)
        text = properties.get(_BLOOM_FPP + name, "0.01")
        columns[name] = _parsed(float, text) or 0.0
        if not 0.0 < columns[name] < 1.0:
            raise _cannot_honour(_BLOOM_FPP + name, text, "it must be between 0 and 1")
    return columns


def _parsed(kind: Callable[[str], T], text: str) -> T | None:
    """Return the number, or None for any other text."""
    try:
        return kind(text)
    except ValueError:
        return None


def check_schema_supported(
    schema: Schema, spec: PartitionSpec, properties: Mapping[str, str], format_version: int
) -> None:
    """Raise `UnsupportedTable`, one sentence, for a type, partition field or property that cannot be honored."""
    later = NANOSECONDS if format_version > _BEFORE_V3 else ()
    columns = index_by_id(schema)
    for field_id, column in columns.items():
        kind = column.field_type
        if kind.minimum_format_version() > _BEFORE_V3 and not isinstance(kind, later):
            name = schema.find_column_name(field_id)
            raise UnsupportedTable(
                f"Cannot write column '{name}': type {kind} is not supported, use Iceberg's own writer",
                column=name,
            )
    for each in spec.fields:
        if (why := _why_unfit(each, columns)) is not None:
            raise UnsupportedTable(f"Cannot write partition field '{each.name}': {why}", field=each.name)
    _check_properties(properties)


def fits_partitions(spec: PartitionSpec, schema: Schema) -> bool:
    """Return whether icesize can write files of a partition spec, an old one of the table or the current one."""
    columns = index_by_id(schema)
    return all(_why_unfit(each, columns) is None for each in spec.fields)


def _why_unfit(field: PartitionField, columns: Mapping[int, NestedField]) -> str | None:
    if isinstance(field.transform, UnknownTransform):
        return f"transform {field.transform} is unknown"
    source = columns.get(field.source_id)
    if source is None:
        is_void = isinstance(field.transform, VoidTransform)
        return None if is_void else "its source column was dropped, replace the field"
    keeps_type = isinstance(field.transform, (IdentityTransform, TruncateTransform, VoidTransform))
    if keeps_type and isinstance(source.field_type, FixedType):
        # Spark cannot read a table with fixed partition values from PyIceberg, nor PyIceberg one with Spark's
        return (
            f"values of type {source.field_type} in manifests are read differently by Iceberg's libraries, "
            "partition by bucket instead"
        )
    if keeps_type and isinstance(source.field_type, NANOSECONDS):
        return f"PyIceberg does not read values of type {source.field_type} in manifests, partition by hour instead"
    return None


def _check_properties(properties: Mapping[str, str]) -> None:
    file_format = properties.get("write.format.default", "parquet")
    if file_format.lower() != "parquet":
        raise UnsupportedTable(
            f"Cannot write 'write.format.default' ({file_format}): only parquet is supported, change the property"
        )
    property_number(properties, *MAX_INFERRED)
    for key, value in properties.items():
        if key.startswith("encryption."):
            raise UnsupportedTable(f"Cannot write an encrypted table: '{key}' is set and keys are not supported")
        if key == METRICS_DEFAULT or key.startswith(METRICS_OF_COLUMN):
            try:
                match_metrics_mode(value)
            except ValueError as error:
                raise _cannot_honour(key, value, str(error)) from error
