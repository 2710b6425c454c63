"""Everything a worker needs to write files of a table, as plain values that pickle."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
from pyiceberg.io.pyarrow import schema_to_pyarrow
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider, load_location_provider
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, SortOrder

from icesize.concurrency import requests_at_once
from icesize.errors import UnsupportedTable
from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE, LINEAGE_FIELDS, check_column_names
from icesize.parquet.files.properties import METRICS_OF_COLUMN, ParquetOptions, check_schema_supported
from icesize.redaction import is_secret
from icesize.storage.table_storage import Storage

T = TypeVar("T")

NAME_MAPPING = "schema.name-mapping.default"

_FILE_IO_PREFIXES = ("s3.", "gcs.", "adls.", "hdfs.", "hf.", "client.")
_FILE_IO_KEYS = ("py-io-impl", "buffer-size", "DEFAULT_SCHEME", "DEFAULT_NETLOC")
"""Properties that PyIceberg's FileIOs read (`pyiceberg.io`), and no others: a REST catalog gives each table's FileIO
all of its own ones, with the token, the headers and the object that signs its requests."""
_CATALOG_PREFIXES = ("token", "credential", "oauth2-", "auth", "header.", "rest.", "uri", "warehouse", "prefix")
_PYICEBERGS = "pyiceberg.io."
_CLIENT_KEYS = ("client.access-key-id", "client.secret-access-key", "client.session-token")


@dataclass(frozen=True, slots=True)
class Limits:
    """Sizes at which the handling of files changes.

    A wrong limit costs speed or memory, never rows. The defaults were measured.
    """

    good_group_bytes: int = 8 * 2**20
    """Row groups from this size on are copied whole: smaller ones cost readers more than merging their pages does."""
    good_group_rows: int = 100_000
    """Row groups from this number of rows on are also copied whole, unless their chunks are below `least_chunk_bytes`:
    hundreds of those in a file cost more in its footer than they hold, so their pages are joined."""
    least_chunk_bytes: int = 16 * 2**10
    """Mean size of a column chunk from which on pages are copied: below it, decoding is no slower. If some columns are
    encoded again, the pages of the others must have as much for each chunk of the row group."""
    least_page_rows: int = 2_000
    least_page_bytes: int = 32 * 2**10
    """Pages that are copied have as many rows, or as many bytes, on average: smaller ones make scans slower (1,000 rows
    per page cost Spark 12 %)."""
    least_copied_bytes: int = 256 * 2**10
    """A merge that could copy less than this is decoded as a whole: looking at footers costs 1-3 ms, as decoding this
    does (three files of 211 KiB take 7 ms when they are copied, 15 ms when they are decoded)."""

    whole_file_bytes: int = 64 * 2**20
    """A file that decodes to no more is read at once, a larger one in batches; no table has more, unless of one
    row."""
    batch_bytes: int = 16 * 2**20
    """Arrow memory of a batch: about 100,000 rows of 16 columns of numbers, or 16 of a mebibyte each."""
    decoded_bytes: int = 256 * 2**20
    """Arrow memory of the rows that become one row group when files are merged, or are sorted together then."""

    requests: int = field(default_factory=requests_at_once)
    """Requests for remote files of one merge that are in flight at once."""
    requested_bytes: int = 128 * 2**20
    """Most bytes of the files that they fetch, in flight or before their use."""
    fetched_in_memory_bytes: int = 32 * 2**20
    """Remote files of one merge that are kept in memory; further ones wait on the local disk."""
    fetched_whole_bytes: int = 64 * 2**20
    """Larger remote files are not held in memory, but go to the disk piece by piece."""
    fetched_piece_bytes: int = 16 * 2**20
    """Bytes of one request then; object stores recommend 8-16 MiB."""

    compared_chunk_bytes: int = 128 * 2**10
    """Mean size of a column chunk from which on the least and greatest values of decoded rows are compared with those
    in the footer: reading its statistics takes 40 µs, 1 % of decoding these bytes."""

    open_files: int = 32
    """Files that one writer has open at a time."""

    sorted_bytes: int = 256 * 2**20
    """Arrow memory of the rows that clustering orders together."""
    sorted_rows: int = 4 * 2**20
    """Rows that are ordered together: ordering takes up to 60 bytes for each."""
    parts_of_one_task: int = 5
    """Most parts that one Spark task orders one after the other: more are divided among tasks."""
    scattered_bytes: int = 64 * 2**20
    """Arrow bytes of the rows that one task sends to others at once: with 300 shuffle partitions, what goes to each
    still has 0.2 MB."""
    delete_keys_bytes: int = 24 * 2**20
    """Arrow memory of the keys of equality deletes that rows are compared with at once (1.5 million numbers, which
    take 150 MB while they are looked up); when there are more, the key columns of the rows are read once more for each
    part. It is also the size of the slices in which rows are compared."""
    blob_bytes: int = 16 * 2**20
    """Most Arrow bytes of the rows that are sent as one value."""

    def of_worker(self) -> Limits:
        """Return the limits of one of the processes that share a machine: one for each core."""
        requests = max(1, requests_at_once() // (os.cpu_count() or 1))
        return replace(
            self, requests=min(self.requests, requests), requested_bytes=min(self.requested_bytes, 64 * 2**20)
        )


@dataclass(frozen=True)
class WriteSettings:
    """Settings for the files of one table, under its current schema and partition spec.

    The fields are only strings, numbers and dictionaries, because a plan or schema object pickled to another process
    does not work there. Objects built from them (schema, FileIO, ...) are built on first use in each process and never
    pickled.

    `properties` are the table's `write.*` properties and its name mapping. `io_properties` are the properties of
    storage only. They hold the table's credentials, which are never printed, and never the catalog's credentials.

    `bytes_per_row` is the mean number of bytes per row in this table's files so far, None if unknown. No partition is
    cut into files below `small_file_limit_bytes`. `sort_order_json` is the table's sort order, empty without one.
    `merge_by_copying` is the policy's. From `format_version` 3 on, merged files store the row lineage of their rows.
    `specs_json` are all partition specs of the table by id.
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
    merge_by_copying: bool = True
    format_version: int = 2
    limits: Limits = field(default_factory=Limits)
    specs_json: Mapping[int, str] = field(default_factory=dict)

    @staticmethod
    def of(
        metadata: TableMetadata,
        io_properties: Mapping[str, str],
        target_file_size_bytes: int,
        *,
        small_file_limit_bytes: int = 0,
        merge_by_copying: bool = True,
        vended: Mapping[str, str] = MappingProxyType({}),
        whole_bounds: Collection[str] = (),
    ) -> WriteSettings:
        """Return the settings for the table's current schema, spec and sort order.

        Only the storage properties of `io_properties` are kept. `vended` has the properties that the catalog vended for
        this table alone. Manifests get bounds of the columns `whole_bounds` that are not shortened.

        Raises `UnsupportedTable` for a format version, column type, partition field or property that icesize's files
        cannot honor.
        """
        if metadata.format_version > 3:
            raise UnsupportedTable(f"Cannot write format version {metadata.format_version}: only 1 to 3 are supported")
        schema, spec, order = metadata.schema(), metadata.spec(), metadata.sort_order()
        check_schema_supported(schema, spec, metadata.properties, metadata.format_version)
        if metadata.format_version >= FIRST_WITH_LINEAGE:
            check_column_names(field.name for field in schema.fields)
        kept = {k: v for k, v in metadata.properties.items() if k.startswith("write.") or k == NAME_MAPPING}
        kept |= {f"{METRICS_OF_COLUMN}{name}": "full" for name in whole_bounds}
        ParquetOptions.of(kept)
        return WriteSettings(
            schema_json=schema.model_dump_json(),
            schema_id=schema.schema_id,
            spec_json=spec.model_dump_json(),
            spec_id=spec.spec_id,
            table_location=metadata.location,
            target_file_size_bytes=target_file_size_bytes,
            properties=kept,
            io_properties=storage_properties(io_properties, vended),
            small_file_limit_bytes=small_file_limit_bytes,
            sort_order_json="" if order.is_unsorted else order.model_dump_json(),
            merge_by_copying=merge_by_copying,
            format_version=metadata.format_version,
            specs_json={spec_id: each.model_dump_json() for spec_id, each in metadata.specs().items()},
        )

    def of_spec(self, spec_id: int) -> WriteSettings:
        """Return these settings for files of a partition spec of the table."""
        if spec_id == self.spec_id:
            return self
        if spec_id not in self._of_specs:
            self._of_specs[spec_id] = self.changed(spec_json=self.specs_json[spec_id], spec_id=spec_id)
        return self._of_specs[spec_id]

    @cached_property
    def _of_specs(self) -> dict[int, WriteSettings]:
        return {}

    @property
    def has_lineage(self) -> bool:
        """True if each row of the table has a `_row_id` and the number of the commit that last changed it."""
        return self.format_version >= FIRST_WITH_LINEAGE

    @cached_property
    def with_lineage(self) -> WriteSettings:
        """The settings for files with rows that were in the table before, which keep their lineage.

        In format v3, such a file stores the lineage in two columns behind the table's. Before, they are these settings.
        """
        if not self.has_lineage or self.stores_lineage:
            return self
        return self.with_schema(Schema(*self.schema.fields, *LINEAGE_FIELDS, schema_id=self.schema.schema_id))

    @cached_property
    def stores_lineage(self) -> bool:
        """True if the schema has the columns of the row lineage."""
        return self.schema.fields[-1:] == LINEAGE_FIELDS[-1:]

    def with_schema(self, schema: Schema) -> WriteSettings:
        """Return the same settings with another schema, and the same connections to storage."""
        return self.changed(schema_json=schema.model_dump_json())

    def changed(self, **fields: Any) -> WriteSettings:
        """Return these settings with other values of some fields, and the same connections to storage."""
        other = replace(self, **fields)
        other.__dict__["storage"] = self.storage
        return other

    @cached_property
    def derived(self) -> dict[Callable[[WriteSettings], Any], Any]:
        """Results of functions of these settings, in this process."""
        return {}

    @cached_property
    def schema(self) -> Schema:
        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def spec(self) -> PartitionSpec:
        return PartitionSpec.model_validate_json(self.spec_json)

    @cached_property
    def sort_order(self) -> SortOrder:
        return SortOrder.model_validate_json(self.sort_order_json) if self.sort_order_json else UNSORTED_SORT_ORDER

    @cached_property
    def arrow_schema(self) -> pa.Schema:
        """The Arrow schema of files, with Iceberg's field ids."""
        return schema_to_pyarrow(self.schema, include_field_ids=True)

    @cached_property
    def storage(self) -> Storage:
        """The storage of the table's files."""
        return Storage(self.io_properties, self.table_location)

    @cached_property
    def locations(self) -> LocationProvider:
        """The provider of locations of new files."""
        return load_location_provider(self.table_location, dict(self.properties))

    @cached_property
    def parquet(self) -> ParquetOptions:
        """The encoding options of files."""
        return ParquetOptions.of(self.properties)

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the settings over in a worker process, which is one of several on its machine."""
        self.__dict__.update(state, limits=state["limits"].of_worker())


def derived(build: Callable[[WriteSettings], T]) -> Callable[[WriteSettings], T]:
    """Return the function with its results cached in the settings."""

    @wraps(build)
    def cached(settings: WriteSettings) -> T:
        if build not in settings.derived:
            settings.derived[build] = build(settings)
        built: T = settings.derived[build]
        return built

    return cached


def pruned(settings: WriteSettings, columns: Sequence[str]) -> WriteSettings:
    """Return the same settings for rows with only some of the top-level columns."""
    schema = settings.schema
    kept = Schema(*(field for field in schema.fields if field.name in columns), schema_id=schema.schema_id)
    return settings.with_schema(kept)


def storage_properties(
    properties: Mapping[str, Any], vended: Mapping[str, str] = MappingProxyType({})
) -> dict[str, str]:
    """Return the properties that a process needs to reach a table's files, from the properties of its FileIO here.

    Keys for S3 replace `client.*` keys, which may be the keys that sign requests to the catalog. A FileIO whose
    requests the catalog signs (`s3.signer`) needs the catalog's URI and a token that was vended for the table. The
    catalog's own token is removed.

    A FileIO that is not PyIceberg's receives the vended properties as well, and all other properties that neither open
    the catalog nor are secret.
    """
    kept = {k: v for k, v in properties.items() if k.startswith(_FILE_IO_PREFIXES) or k in _FILE_IO_KEYS}
    if "s3.access-key-id" in kept and ("s3.session-token" in kept or "client.session-token" not in kept):
        kept = {k: v for k, v in kept.items() if k not in _CLIENT_KEYS}
    if "s3.signer" in kept:
        kept |= {k: source[k] for k, source in (("uri", properties), ("token", vended)) if k in source}
        kept |= {k: v for k, v in properties.items() if k.startswith("header.") and not is_secret(k)}
    if not kept.get("py-io-impl", _PYICEBERGS).startswith(_PYICEBERGS):
        # a FileIO of another make may read any property, so all stay except secrets and those that open the catalog
        others = (*_CATALOG_PREFIXES, "icesize.")
        own = (k for k, v in properties.items() if isinstance(v, str) and not k.startswith(others))
        kept |= {k: properties[k] for k in own if not is_secret(k)}
    return kept | {k: properties[k] for k in vended if not k.startswith(_CATALOG_PREFIXES) and k in properties}
