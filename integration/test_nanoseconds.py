"""Columns with nanoseconds: Iceberg's Java library reads what icesize writes and merges; Spark has no such type."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField
from pyspark.sql import SparkSession

import icesize
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from tests.support.tables import request_on, run
from tests.support.v3_tables import with_document

NANOS = [0, 1, -1, 1_700_000_000_123_456_789]
TEXTS = [
    "1970-01-01T00:00", "1970-01-01T00:00:00.000000001", "1969-12-31T23:59:59.999999999",
    "2023-11-14T22:13:20.123456789",
]  # fmt: skip


def upgraded(document: dict[str, Any]) -> None:
    """Format v3, with a column of each type, partitioned by day."""
    document["format-version"], document["next-row-id"] = 3, 0
    document["schemas"][0]["fields"] += [
        {"id": 2, "name": "local", "type": "timestamp_ns", "required": False},
        {"id": 3, "name": "at", "type": "timestamptz_ns", "required": False},
    ]
    document["last-column-id"], document["last-partition-id"] = 3, 1000
    day = {"source-id": 3, "field-id": 1000, "name": "day", "transform": "day"}
    document["partition-specs"][0]["fields"] = [day]


def read_by_java(spark: SparkSession, metadata_location: str) -> set[tuple[Any, ...]]:
    """All rows of a table, times as Java prints them."""
    jvm: Any = spark._jvm  # type: ignore[union-attr]
    iceberg = jvm.org.apache.iceberg
    io = iceberg.hadoop.HadoopFileIO(spark._jsc.hadoopConfiguration())  # type: ignore[union-attr]
    table = iceberg.BaseTable(iceberg.StaticTableOperations(metadata_location, io), "t")
    records = iceberg.data.IcebergGenerics.read(table).build().iterator()
    rows = set()
    while records.hasNext():
        record = records.next()
        rows.add((record.get(0), record.get(1).toString(), record.get(2).toString()))
    return rows


def test_java_reads_nanoseconds(spark: SparkSession, lake: SqlCatalog, namespace: str) -> None:
    """Each row before and after a merge, through bounds and partitions, too."""
    name = f"{namespace}.t"
    lake.create_table(name, Schema(NestedField(1, "id", LongType())))
    table = with_document(lake, upgraded, name)
    for i, value in enumerate([*NANOS, *NANOS]):
        settings = WriteSettings.of(table.metadata, table.io.properties, 2**20)
        times = pa.array([value])
        columns = {"local": times.cast(pa.timestamp("ns")), "at": times.cast(pa.timestamp("ns", "UTC"))}
        files = write_rows([pa.table({"id": [i], **columns})], settings, FileNames("test", i, 0))
        run(lake, request_on(table, files), table)
        table = lake.load_table(name)
    expected = {(i, text, f"{text}Z") for i, text in enumerate([*TEXTS, *TEXTS])}
    assert read_by_java(spark, table.metadata_location) == expected
    report = icesize.open(None, name, catalog=lake).compact()
    assert (report.files_removed, report.files_added) == (8, 3)
    assert read_by_java(spark, lake.load_table(name).metadata_location) == expected
