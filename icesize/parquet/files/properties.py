"""What a table asks of its files: `write.parquet.*`, parsed once into what pyarrow's writer takes.

Tables that our Parquet files cannot serve are refused by name before anything is written.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg import types
from pyiceberg.io.pyarrow import match_metrics_mode
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform

from icesize.errors import UnsupportedTable

_PREFIX = "write.parquet."
_BLOOM = "write.parquet.bloom-filter-enabled.column."
_BLOOM_FPP = "write.parquet.bloom-filter-fpp.column."
_CODECS = {
    "zstd": "zstd",
    "snappy": "snappy",
    "gzip": "gzip",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "uncompressed": "none",
    "none": "none",
}
_NUMBERS = {
    "row_group_bytes": "row-group-size-bytes",
    "row_group_rows": "row-group-limit",
    "page_bytes": "page-size-bytes",
    "page_rows": "page-row-limit",
    "dictionary_bytes": "dict-size-bytes",
    "bloom_bytes": "bloom-filter-max-bytes",
}
_WRITER_ARGUMENTS = frozenset(inspect.signature(pq.ParquetWriter.__init__).parameters)


@dataclass(frozen=True, slots=True)
class ParquetOptions:
    """How files are encoded; sizes in bytes, limits in rows. Defaults are Iceberg's documented ones.

    `codec` is zstd when the table does not say (Iceberg's default since 1.4); `level` None is the codec's own default.
    `bloom_fpp` maps a column's Iceberg name to the false positive rate of its filter (Iceberg's default 0.01).
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
        """Parse table properties; raises `UnsupportedTable` naming the property that cannot be honoured."""
        codec = _codec(properties)
        numbers = {name: _positive(properties, key) for name, key in _NUMBERS.items() if _PREFIX + key in properties}
        return ParquetOptions(codec, _level(properties, codec), bloom_fpp=_bloom_columns(properties), **numbers)

    def writer(
        self,
        sink: Any,
        schema: pa.Schema,
        dictionary: Sequence[str] = (),
        statistics: Sequence[str] | bool = True,
        **others: Any,
    ) -> pq.ParquetWriter:
        """Begin a file on a stream: the columns at the paths of `dictionary` have one, those of `statistics` have
        bounds.

        v1 data pages, because Iceberg's vectorised reader refuses booleans in v2 pages; a page index, integers for
        decimals up to 18 digits, no Arrow schema (its time zones and 256-bit decimals confuse other readers). Pages
        carry a checksum: without one more than half of flipped bits decode to other values, and a merge would keep
        them for good; it costs 0.01 % of the bytes.
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
        columns = {"use_dictionary": list(dictionary) or False, "write_statistics": statistics or False}
        return pq.ParquetWriter(sink, schema, **columns, **arguments | others)

    def in_memory(self, rows: pa.Table, *columns: Any, **others: Any) -> pa.Buffer:
        """Return a file of one row group; the arguments are those of `writer`."""
        sink = pa.BufferOutputStream()
        with self.writer(sink, rows.schema, *columns, **others) as writer:
            writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        return sink.getvalue()

    def row_groups(self, size_bytes: float, rows: int) -> int:
        """How many row groups of about equal size these rows become, at least one."""
        return max(1, math.ceil(size_bytes / self.row_group_bytes), math.ceil(rows / self.row_group_rows))

    def bloom_arguments(self, rows: int, paths: Mapping[str, str]) -> dict[str, Any]:
        """The argument for bloom filters of a file of `rows` rows; `paths` maps Iceberg names to Parquet paths.

        Each filter is sized for as many distinct values as rows, but at most `write.parquet.bloom-filter-max-bytes`.
        """
        filters = {}
        for name, fpp in self.bloom_fpp.items():
            if name in paths:
                bits_per_value = -8.0 / math.log(1.0 - fpp ** (1.0 / 8.0))  # split block filter, Parquet specification
                most = int(self.bloom_bytes * 8 / bits_per_value)
                filters[paths[name]] = {"ndv": max(1, min(rows, most)), "fpp": fpp}
        return {"bloom_filter_options": filters} if filters else {}


def _codec(properties: Mapping[str, str]) -> str:
    key = _PREFIX + "compression-codec"
    name = properties.get(key, "zstd")
    codec = _CODECS.get(name.strip().lower())
    if codec is None:
        raise UnsupportedTable(
            f"Cannot honour '{key}' ({name}): Spark cannot read it or pyarrow cannot write it, "
            f"use one of {', '.join(sorted(_CODECS))}",
            property=key,
        )
    return codec


def _level(properties: Mapping[str, str], codec: str) -> int | None:
    key = _PREFIX + "compression-level"
    text = properties.get(key)
    # Iceberg, too, applies the level only to codecs that have one
    if text is None or codec not in ("zstd", "gzip"):
        return None
    try:
        level = int(text)
    except ValueError:
        raise UnsupportedTable(f"Cannot honour '{key}' ({text}): it must be a whole number", property=key) from None
    low, high = pa.Codec.minimum_compression_level(codec), pa.Codec.maximum_compression_level(codec)
    if not low <= level <= high:
        raise UnsupportedTable(f"Cannot honour '{key}' ({text}): {codec} has levels {low} to {high}", property=key)
    return level


def _positive(properties: Mapping[str, str], name: str) -> int:
    key, text = _PREFIX + name, properties[_PREFIX + name]
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise UnsupportedTable(f"Cannot honour '{key}' ({text}): it must be a whole number above 0", property=key)
    return value


def _bloom_columns(properties: Mapping[str, str]) -> dict[str, float]:
    columns: dict[str, float] = {}
    for key, enabled in properties.items():
        if not key.startswith(_BLOOM) or enabled.strip().lower() != "true":
            continue
        if "bloom_filter_options" not in _WRITER_ARGUMENTS:
            raise UnsupportedTable(
                f"Cannot honour '{key}' (true): pyarrow {pa.__version__} writes no bloom filters, upgrade pyarrow",
                property=key,
            )
        name = key.removeprefix(_BLOOM)
        text = properties.get(_BLOOM_FPP + name, "0.01")
        try:
            columns[name] = float(text)
        except ValueError:
            columns[name] = 0.0
        if not 0.0 < columns[name] < 1.0:
            raise UnsupportedTable(f"Cannot honour '{_BLOOM_FPP}{name}' ({text}): it must be between 0 and 1")
    return columns


_COLUMN_TYPES = (
    types.BinaryType,
    types.BooleanType,
    types.DateType,
    types.DecimalType,
    types.DoubleType,
    types.FixedType,
    types.FloatType,
    types.IntegerType,
    types.ListType,
    types.LongType,
    types.MapType,
    types.StringType,
    types.StructType,
    types.TimestampType,
    types.TimestamptzType,
    types.TimeType,
    types.UUIDType,
)


def check_supported(schema: Schema, spec: PartitionSpec, properties: Mapping[str, str]) -> None:
    """Raise `UnsupportedTable`, one sentence, for a type, partition field or property that cannot be honoured."""
    _check_types(schema)
    _check_partition_fields(schema, spec)
    _check_properties(properties)


def _check_types(schema: Schema) -> None:
    for field_id, column in schema._lazy_id_to_field.items():
        if not isinstance(column.field_type, _COLUMN_TYPES):
            name = schema.find_column_name(field_id)
            raise UnsupportedTable(
                f"Cannot write column '{name}': type {column.field_type} is not supported, use Iceberg's own writer",
                column=name,
            )


def _check_partition_fields(schema: Schema, spec: PartitionSpec) -> None:
    for each in spec.fields:
        if isinstance(each.transform, UnknownTransform):
            raise UnsupportedTable(
                f"Cannot write partition field '{each.name}': transform {each.transform} is unknown", field=each.name
            )
        source = schema._lazy_id_to_field.get(each.source_id)
        if source is None and not isinstance(each.transform, VoidTransform):
            raise UnsupportedTable(
                f"Cannot write partition field '{each.name}': its source column was dropped, replace the field",
                field=each.name,
            )
        keeps_type = isinstance(each.transform, (IdentityTransform, TruncateTransform, VoidTransform))
        if source is not None and keeps_type and isinstance(source.field_type, types.FixedType):
            # PyIceberg writes fixed partition values so that Spark can no longer read the table, and the reverse
            raise UnsupportedTable(
                f"Cannot write partition field '{each.name}': values of type {source.field_type} in manifests are "
                "read differently by Iceberg's libraries, partition by bucket instead",
                field=each.name,
            )


def _check_properties(properties: Mapping[str, str]) -> None:
    file_format = properties.get("write.format.default", "parquet")
    if file_format.lower() != "parquet":
        raise UnsupportedTable(
            f"Cannot write 'write.format.default' ({file_format}): only parquet is supported, change the property"
        )
    for key in properties:
        if key.startswith("encryption."):
            raise UnsupportedTable(f"Cannot write an encrypted table: '{key}' is set and keys are not supported")
    for key, mode in properties.items():
        if key == "write.metadata.metrics.default" or key.startswith("write.metadata.metrics.column."):
            try:
                match_metrics_mode(mode)
            except ValueError as error:
                raise UnsupportedTable(f"Cannot honour '{key}' ({mode}): {error}") from error
