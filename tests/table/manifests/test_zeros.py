"""0.0 and -0.0 are two partitions to Iceberg and one key to Python; icesize keeps them apart, and within bounds."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import from_bytes
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, FloatType, NestedField

import icesize
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import PartitionKey
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.writer import ManifestWriter
from tests.support import tables
from tests.support.examples import examples


def test_keys_of_the_two_zeros_differ() -> None:
    """As keys of a dictionary they are two, each equal to itself, and other floats are as they were."""
    keys = {PartitionKey.of(0, (0.0,)): "plus", PartitionKey.of(0, (-0.0,)): "minus"}
    assert (keys[PartitionKey.of(0, (0.0,))], keys[PartitionKey.of(0, (-0.0,))]) == ("plus", "minus")
    assert PartitionKey.of(0, (1.5, None)) == PartitionKey.of(0, (1.5, None))


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


@pytest.mark.parametrize("kind", [FloatType(), DoubleType()])
@examples(50)
@given(
    values=st.lists(st.sampled_from([0.0, -0.0, 7.0, -7.0, math.nan, None]), min_size=1, max_size=6),
    kept=st.integers(0, 6),
)
def test_both_zeros_lie_within_the_bounds_of_a_manifest(
    tmp_path: Path, kind: FloatType | DoubleType, values: list[float | None], kept: int
) -> None:
    """Of partitions with any zero, new or kept, no bound of their manifest shuts out the other one."""
    numbers, io = itertools.count(), PyArrowFileIO()
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "x"))
    metadata = new_table_metadata(Schema(NestedField(1, "x", kind)), spec, UNSORTED_SORT_ORDER, "file:///w")
    files = [NewDataFile(f"file:///w/{next(numbers)}", 1, 1, PartitionKey.of(0, (value,))) for value in values]

    def put(data: bytes) -> str:
        path = f"file://{tmp_path}/{next(numbers)}.avro"
        with io.new_output(path).create(overwrite=True) as stream:
            stream.write(data)
        return path

    first = ManifestWriter(put, metadata, 77).write(added=files[:kept])
    old = [replace(e, sequence_number=1) for m in first for e in read_entries(io, m)]
    (manifest,) = ManifestWriter(put, metadata, 78).write(added=files[kept:], existing=old)
    (summary,) = manifest.partitions or []
    bounds = summary.lower_bound, summary.upper_bound
    present = [value for value in values if value is not None and not math.isnan(value)]
    if not present:
        assert bounds == (None, None)
        return
    lower, upper = (from_bytes(kind, bound or b"") for bound in bounds)
    assert (lower, upper) == (min(present), max(present))
    assert math.copysign(1, lower) == (-1 if lower <= 0 else 1)
    assert math.copysign(1, upper) == (-1 if upper < 0 else 1)
    assert (summary.contains_null, summary.contains_nan) == (None in values, any(v != v for v in values))
