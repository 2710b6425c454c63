"""WriteSettings: what is honoured, what is refused, what travels."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    DoubleType,
    FixedType,
    GeographyType,
    GeometryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampNanoType,
    TimestamptzNanoType,
    TimeType,
    UnknownType,
)

from icesize.errors import UnsupportedTable
from icesize.parquet.files.settings import WriteSettings
from tests.support.parquet_files import local, metadata_of, schema_of, settings_of, spec_of, write_one

LONG = schema_of(("id", LongType()), ("name", StringType()))
ROWS = pa.table({"id": [1, 2], "name": ["a", "b"]})


def test_settings_travel_by_pickle_without_what_was_built_from_them(tmp_path: Path) -> None:
    """A pickled copy is equal, writes files, and carries no FileIO or schema object."""
    settings = settings_of(tmp_path, LONG, spec_of(LONG, name="identity"))
    size = len(pickle.dumps(settings))
    assert settings.schema.find_field("id").field_id == 1
    assert settings.storage is settings.storage
    copy = pickle.loads(pickle.dumps(settings))
    assert replace(copy, limits=settings.limits) == settings
    assert (copy.limits.requests, copy.limits.requested_bytes) == (64 // (os.cpu_count() or 1), 64 * 2**20)
    assert len(pickle.dumps(settings)) == size
    assert write_one(copy, ROWS.slice(0, 1)).rows == 1


def test_settings_do_not_print_credentials(tmp_path: Path) -> None:
    """The io properties, which hold secrets, are not part of the representation."""
    settings = WriteSettings.of(metadata_of(tmp_path, LONG), {"s3.secret-access-key": "hunter2"}, 1)
    assert "hunter2" not in repr(settings)


@pytest.mark.parametrize(
    ("properties", "named"),
    [
        ({"write.parquet.compression-codec": "brotli"}, "write.parquet.compression-codec"),
        ({"write.parquet.compression-codec": "lzo"}, "write.parquet.compression-codec"),
        ({"write.parquet.compression-level": "99"}, "write.parquet.compression-level"),
        ({"write.parquet.compression-level": "high"}, "write.parquet.compression-level"),
        ({"write.parquet.row-group-size-bytes": "0"}, "write.parquet.row-group-size-bytes"),
        ({"write.parquet.page-row-limit": "many"}, "write.parquet.page-row-limit"),
        ({"write.format.default": "orc"}, "write.format.default"),
        ({"encryption.key-id": "k1"}, "encryption.key-id"),
        ({"write.metadata.metrics.default": "some"}, "write.metadata.metrics.default"),
        ({"write.metadata.metrics.column.id": "truncate(0)"}, "write.metadata.metrics.column.id"),
    ],
)
def test_a_property_that_cannot_be_honoured_is_refused_by_name(
    tmp_path: Path, properties: dict[str, str], named: str
) -> None:
    """The refusal is one sentence that names the property."""
    with pytest.raises(UnsupportedTable) as caught:
        settings_of(tmp_path, LONG, properties=properties)
    assert named in str(caught.value)
    assert str(caught.value).startswith("Cannot ")


def with_column(folder: Path, kind: IcebergType, format_version: int) -> TableMetadata:
    """Metadata of a table with the column `when`."""
    metadata = metadata_of(folder, schema_of(("when", LongType())))
    column = schema_of(("when", kind)).model_copy(update={"schema_id": 0})
    return metadata.model_copy(update={"schemas": [column], "format_version": format_version})


@pytest.mark.parametrize("format_version", [2, 3])
@pytest.mark.parametrize(
    "kind",
    [
        UnknownType(),
        GeometryType(),
        GeographyType(),
        ListType(9, UnknownType()),
        StructType(NestedField(9, "x", GeometryType())),
    ],
)
def test_column_types_without_a_place_in_files_are_refused(
    tmp_path: Path, kind: IcebergType, format_version: int
) -> None:
    """Unknown types and places are refused, nested ones too, naming the column."""
    with pytest.raises(UnsupportedTable, match=r"Cannot write column .when.*is not supported") as caught:
        WriteSettings.of(with_column(tmp_path, kind, format_version), {}, 1)
    assert str(caught.value.column).startswith("when")


@pytest.mark.parametrize("kind", [TimestampNanoType(), ListType(9, TimestamptzNanoType())])
def test_nanoseconds_need_format_v3(tmp_path: Path, kind: IcebergType) -> None:
    """Other libraries refuse them in tables of earlier formats."""
    assert WriteSettings.of(with_column(tmp_path, kind, 3), {}, 1).schema.find_type("when") == kind
    with pytest.raises(UnsupportedTable, match=r"Cannot write column .when.*timestamp.*_ns is not supported"):
        WriteSettings.of(with_column(tmp_path, kind, 2), {}, 1)


def test_time_columns_are_written(tmp_path: Path) -> None:
    """Spark cannot read time columns, but PyIceberg can: they are allowed."""
    settings = settings_of(tmp_path, schema_of(("at", TimeType())))
    file = write_one(settings, pa.table({"at": pa.array([1, None], pa.time64("us"))}))
    assert pq.read_table(local(file.path)).column("at").type == pa.time64("us")


def test_partition_values_of_type_fixed_are_refused(tmp_path: Path) -> None:
    """Iceberg's libraries disagree on fixed values in manifests; a bucket of a fixed column is an integer and fine."""
    schema = schema_of(("key", FixedType(3)))
    with pytest.raises(UnsupportedTable, match="partition field 'key'"):
        settings_of(tmp_path, schema, spec_of(schema, key="identity"))
    assert settings_of(tmp_path, schema, spec_of(schema, key="bucket[4]")).spec_id == 0


def test_later_format_versions_are_refused(tmp_path: Path) -> None:
    """A version that does not exist yet may demand anything of files."""
    metadata = metadata_of(tmp_path, LONG).model_copy(update={"format_version": 4})
    with pytest.raises(UnsupportedTable, match="Cannot write format version 4: only 1 to 3 are supported"):
        WriteSettings.of(metadata, {}, 1)


@pytest.mark.parametrize(
    ("codec", "stored"),
    [(None, "ZSTD"), ("zstd", "ZSTD"), ("gzip", "GZIP"), ("snappy", "SNAPPY"), ("uncompressed", "UNCOMPRESSED")],
)
def test_the_codec_of_the_table_is_used(tmp_path: Path, codec: str | None, stored: str) -> None:
    """`write.parquet.compression-codec`, zstd when the table does not say."""
    properties = {} if codec is None else {"write.parquet.compression-codec": codec}
    file = write_one(settings_of(tmp_path, LONG, properties=properties), ROWS)
    assert pq.read_metadata(local(file.path)).row_group(0).column(1).compression == stored


def test_the_compression_level_of_the_table_is_used(tmp_path: Path) -> None:
    """The same rows take another size at another `write.parquet.compression-level`."""
    rows = pa.table({"id": list(range(20_000)), "name": [f"{i * i:x}" for i in range(20_000)]})
    sizes = [
        write_one(settings_of(tmp_path, LONG, properties={"write.parquet.compression-level": level}), rows).size_bytes
        for level in ("1", "19")
    ]
    assert sizes[0] != sizes[1]


def test_pages_obey_the_row_limit(tmp_path: Path) -> None:
    """`write.parquet.page-row-limit` bounds rows per page: more pages make a longer offset index."""
    schema = schema_of(("id", LongType()), ("x", DoubleType()), ("n", IntegerType()))
    rows = pa.table({"id": list(range(10_000)), "x": [0.5] * 10_000, "n": [1] * 10_000})
    sizes = {
        limit: write_one(settings_of(tmp_path, schema, properties={"write.parquet.page-row-limit": limit}), rows)
        for limit in ("1024", "20000")
    }
    assert sizes["1024"].size_bytes > sizes["20000"].size_bytes + 9 * 3 * 10


def test_bloom_filters_are_written_where_the_table_asks(tmp_path: Path) -> None:
    """A file with a bloom filter is larger by about the filter, which is sized by rows and capped by the table."""
    on = {"write.parquet.bloom-filter-enabled.column.name": "true"}
    rows = pa.table({"id": list(range(20_000)), "name": [f"{i}" for i in range(20_000)]})
    plain = write_one(settings_of(tmp_path, LONG), rows).size_bytes
    full = write_one(settings_of(tmp_path, LONG, properties=on), rows).size_bytes
    capped = settings_of(tmp_path, LONG, properties={**on, "write.parquet.bloom-filter-max-bytes": "1024"})
    assert full - plain > 20_000
    assert 0 < write_one(capped, rows).size_bytes - plain < 3_000
