"""Which tables our Parquet files can serve; all others are refused by name before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

from pyiceberg import types
from pyiceberg.io.pyarrow import match_metrics_mode
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform, TruncateTransform, UnknownTransform, VoidTransform

from icesize.errors import UnsupportedTable

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
    for field_id, field in schema._lazy_id_to_field.items():
        if not isinstance(field.field_type, _COLUMN_TYPES):
            name = schema.find_column_name(field_id)
            raise UnsupportedTable(
                f"Cannot write column '{name}': type {field.field_type} is not supported, use Iceberg's own writer",
                column=name,
            )


def _check_partition_fields(schema: Schema, spec: PartitionSpec) -> None:
    for field in spec.fields:
        if isinstance(field.transform, UnknownTransform):
            raise UnsupportedTable(
                f"Cannot write partition field '{field.name}': transform {field.transform} is unknown", field=field.name
            )
        source = schema._lazy_id_to_field.get(field.source_id)
        if source is None and not isinstance(field.transform, VoidTransform):
            raise UnsupportedTable(
                f"Cannot write partition field '{field.name}': its source column was dropped, replace the field",
                field=field.name,
            )
        keeps_type = isinstance(field.transform, (IdentityTransform, TruncateTransform, VoidTransform))
        if source is not None and keeps_type and isinstance(source.field_type, types.FixedType):
            # PyIceberg writes fixed partition values so that Spark can no longer read the table, and the reverse
            raise UnsupportedTable(
                f"Cannot write partition field '{field.name}': values of type {source.field_type} in manifests are "
                "read differently by Iceberg's libraries, partition by bucket instead",
                field=field.name,
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
