"""Everything a worker needs to write files of a table, as plain values that pickle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.io import load_file_io
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata

from icesize.errors import UnsupportedTable
from icesize.parquet.options import ParquetOptions
from icesize.parquet.storage import Storage
from icesize.parquet.support import check_supported

T = TypeVar("T")

NAME_MAPPING = "schema.name-mapping.default"


@dataclass(frozen=True)
class WriteSettings:
    """How files of one table are written under its current schema and partition spec.

    Strings, numbers and dictionaries only: a plan or schema object pickled to another process does not work there.
    What is built from them (schema, FileIO, ...) is built on first use in each process and never pickled.
    `properties` are the table's `write.*` and its name mapping; `io_properties` hold credentials and are not printed.
    `bytes_per_row` is what a row has needed in this table's files so far, None when unknown. No partition is cut into
    files below `small_file_limit_bytes`. `sort_order_json` is the table's sort order, empty when it has none.
    """

    schema_json: str
    schema_id: int
    spec_json: str
    spec_id: int
    table_location: str
    target_file_size_bytes: int
    properties: Mapping[str, str] = field(default_factory=dict)
    io_properties: Mapping[str, str] = field(default_factory=dict, repr=False)
    bytes_per_row: float | None = None
    small_file_limit_bytes: int = 0
    sort_order_json: str = ""

    @staticmethod
    def of(
        metadata: TableMetadata,
        io_properties: Mapping[str, str],
        target_file_size_bytes: int,
        bytes_per_row: float | None = None,
        *,
        small_file_limit_bytes: int = 0,
    ) -> WriteSettings:
        """Settings for the table's current schema, spec and sort order.

        Raises `UnsupportedTable` for a format version, column type, partition field or property that our files
        cannot honour.
        """
        if metadata.format_version > 2:
            raise UnsupportedTable(f"Cannot write format version {metadata.format_version}: only 1 and 2 are supported")
        schema, spec, order = metadata.schema(), metadata.spec(), metadata.sort_order()
        check_supported(schema, spec, metadata.properties)
        kept = {k: v for k, v in metadata.properties.items() if k.startswith("write.") or k == NAME_MAPPING}
        ParquetOptions.of(kept)
        return WriteSettings(
            schema_json=schema.model_dump_json(),
            schema_id=schema.schema_id,
            spec_json=spec.model_dump_json(),
            spec_id=spec.spec_id,
            table_location=metadata.location,
            target_file_size_bytes=target_file_size_bytes,
            properties=kept,
            io_properties=dict(io_properties),
            bytes_per_row=bytes_per_row,
            small_file_limit_bytes=small_file_limit_bytes,
            sort_order_json="" if order.is_unsorted else order.model_dump_json(),
        )

    def with_bytes_per_row(self, bytes_per_row: float | None) -> WriteSettings:
        """The same settings with another density."""
        return replace(self, bytes_per_row=bytes_per_row)

    def derived(self, build: Callable[[WriteSettings], T]) -> T:
        """`build(self)`, remembered in this process."""
        cache: dict[Any, Any] = self.__dict__.setdefault("_derived", {})
        if build not in cache:
            cache[build] = build(self)
        built: T = cache[build]
        return built

    @property
    def schema(self) -> Schema:
        """The Iceberg schema."""
        return self.derived(_schema)

    @property
    def spec(self) -> PartitionSpec:
        """The partition spec."""
        return self.derived(_spec)

    @property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of files, with Iceberg's field ids."""
        return self.derived(_arrow_schema)

    @property
    def storage(self) -> Storage:
        """Where the table's files are."""
        return self.derived(_storage)

    @property
    def locations(self) -> LocationProvider:
        """Where new files go."""
        return self.derived(_locations)

    @property
    def parquet(self) -> ParquetOptions:
        """How files are encoded."""
        return self.derived(_parquet)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def _schema(settings: WriteSettings) -> Schema:
    return Schema.model_validate_json(settings.schema_json)


def _spec(settings: WriteSettings) -> PartitionSpec:
    return PartitionSpec.model_validate_json(settings.spec_json)


def _arrow_schema(settings: WriteSettings) -> pa.Schema:
    return schema_to_pyarrow(settings.schema, include_field_ids=True)


def _storage(settings: WriteSettings) -> Storage:
    return Storage(load_file_io(dict(settings.io_properties), settings.table_location))


def _locations(settings: WriteSettings) -> LocationProvider:
    return load_location_provider(settings.table_location, dict(settings.properties))


def _parquet(settings: WriteSettings) -> ParquetOptions:
    return ParquetOptions.of(settings.properties)
