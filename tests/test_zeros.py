"""0.0 and -0.0 are two partitions to Iceberg and one key to Python; icesize keeps them apart."""

from __future__ import annotations

import math

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, NestedField

import icesize
from icesize.parquet.names import FileNames
from icesize.parquet.settings import WriteSettings
from icesize.parquet.write import write_rows
from icesize.planning.layout import PartitionKey
from tests import tables


def test_keys_of_the_two_zeros_differ() -> None:
    """As keys of a dictionary they are two, each equal to itself, and other floats are as they were."""
    keys = {PartitionKey(0, (0.0,)): "plus", PartitionKey(0, (-0.0,)): "minus"}
    assert (keys[PartitionKey(0, (0.0,))], keys[PartitionKey(0, (-0.0,))]) == ("plus", "minus")
    assert PartitionKey(0, (1.5, None)) == PartitionKey(0, (1.5, None))


def test_merging_keeps_the_sign_of_zero(lake: SqlCatalog) -> None:
    """Files of the partitions 0.0 and -0.0 are merged each with its own, and the signs stay."""
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    table = lake.create_table("db.t", Schema(NestedField(1, "x", DoubleType())), partition_spec=spec)
    for number in range(3):
        table = lake.load_table("db.t")
        settings = WriteSettings.of(table.metadata, table.io.properties, 10_000_000)
        files = write_rows([pa.table({"x": [0.0, -0.0, -0.0]})], settings, FileNames("zero", number, 0))
        tables.run(lake, tables.request_on(table, files), table)
    report = icesize.open(None, "db.t", catalog=lake).compact()
    assert (report.files_removed, report.files_added) == (6, 2)
    signs = [math.copysign(1, x) for x in lake.load_table("db.t").scan().to_arrow()["x"].to_pylist()]
    assert (signs.count(1.0), signs.count(-1.0)) == (3, 6)
