"""What clustering reads of a table's files: all of them, with bounds that compare, obstacles and sets."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import replace
from datetime import date, datetime, time, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.avro.decoder import new_decoder
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.errors import TableError
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.names import FileNames, set_prefix
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.files import PartitionKey, SkipReason
from icesize.table.manifests.avro_values import fields_reader
from icesize.table.state.cluster_reader import ClusterReader, cluster_file_of
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.where import partition_filter
from tests.support.parquet_files import append as append_files
from tests.support.parquet_files import data_file, schema_of
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    SCHEMA,
    CountingIO,
    append,
    compact,
    live_paths,
    local,
    make_table,
    request_on,
    run,
    small_files,
    write,
)

BY_ID = ClusterBy(("id", "ts"), (1, 3), "sort", 2**35)
UNLIMITED = 2**60
UTC = timezone.utc

VALUES: dict[str, tuple[PrimitiveType, list[Any], tuple[Any, Any]]] = {
    "flag": (BooleanType(), [True, False], (False, True)),
    "int": (IntegerType(), [7, -3, 5], (-3, 7)),
    "long": (LongType(), [2**40, -1], (-1, 2**40)),
    "float": (FloatType(), [0.5, -2.25], (-2.25, 0.5)),
    "double": (DoubleType(), [1e300, -math.inf], (-math.inf, 1e300)),
    "money": (DecimalType(9, 2), [Decimal("1.25"), Decimal("-10.50")], (Decimal("-10.50"), Decimal("1.25"))),
    "big": (DecimalType(38, 0), [Decimal(10**37), Decimal(2)], (Decimal(2), Decimal(10**37))),
    "text": (StringType(), ["b", "ä"], ("b", "ä")),
    "long_text": (StringType(), ["a" * 40, "b" * 40], ("a" * 16, "b" * 15 + "c")),
    "bytes": (BinaryType(), [b"\xff", b"\x00" * 20], (b"\x00" * 16, b"\xff")),
    "fixed": (FixedType(3), [b"abc", b"abd"], (b"abc", b"abd")),
    "uuid": (UUIDType(), [UUID(int=9).bytes, UUID(int=2).bytes], (UUID(int=2).bytes, UUID(int=9).bytes)),
    "day": (DateType(), [date(1970, 1, 3), date(1969, 12, 31)], (-1, 2)),
    "clock": (TimeType(), [time(0, 0, 1), time(0)], (0, 1_000_000)),
    "at": (TimestampType(), [datetime(1970, 1, 2), datetime(1970, 1, 1)], (0, 86_400_000_000)),
    "moment": (TimestamptzType(), [datetime(1970, 1, 1, 0, 1, tzinfo=UTC)], (60_000_000, 60_000_000)),
}
"""Column -> its type, values in no order, and the bounds that they have."""


def by_all(schema: Schema) -> ClusterBy:
    return ClusterBy(tuple(f.name for f in schema.fields), tuple(f.field_id for f in schema.fields), "sort", 2**35)


def written(table: Table, rows: Sequence[dict[str, Any]], prefix: str = "test") -> NewDataFile:
    """Rows as one file of a table of any schema, not visible yet."""
    settings = WriteSettings.of(table.metadata, table.io.properties, UNLIMITED)
    (file,) = write_rows(
        [pa.Table.from_pylist(list(rows), settings.arrow_schema)], settings, FileNames(prefix, 0, 0)
    )  # fmt: skip
    return file


def add(catalog: SqlCatalog, rows: Sequence[dict[str, Any]]) -> Table:
    """The same rows, visible; returns the table with them."""
    table = catalog.load_table("db.t")
    append_files(table, [written(table, rows)])
    return catalog.load_table("db.t")


def files_of(table: Table, by: ClusterBy = BY_ID) -> list[ClusterFile]:
    """Every file, those that came first in front."""
    found = ClusterReader(by).read(table.metadata, table.io)
    files = [file for each in found.values() for file in each]
    return sorted(files, key=lambda file: (file.fact.sequence_number, file.fact.path))


def test_bounds_of_every_type_compare_as_its_values(lake: SqlCatalog) -> None:
    """Numbers since 1970 for times, text and bytes as far as manifests keep them, from manifests and from new files."""
    schema = schema_of(*((name, kind) for name, (kind, _, _) in VALUES.items()))
    table = lake.create_table("db.t", schema)
    rows = [{name: values[i % len(values)] for name, (_, values, _) in VALUES.items()} for i in range(3)]
    file = written(table, rows)
    append_files(table, [file])
    by, expected = by_all(table.schema()), tuple(bounds for _, _, bounds in VALUES.values())
    (read,) = files_of(lake.load_table("db.t"), by)
    assert read.bounds == expected
    assert [type(lower) for lower, _ in read.bounds] == [type(lower) for lower, _ in expected]  # type: ignore[misc]
    assert cluster_file_of(file, by, table.schema()).bounds == expected


_PLAIN: list[tuple[PrimitiveType, st.SearchStrategy[Any]]] = [
    (IntegerType(), st.integers(-(2**31), 2**31 - 1)),
    (LongType(), st.integers(-(2**63), 2**63 - 1)),
    (DoubleType(), st.floats(allow_nan=False)),
    (DecimalType(20, 3), st.decimals(-(10**16), 10**16, places=3)),
    (StringType(), st.text()),
    (BinaryType(), st.binary()),
    (DateType(), st.integers(-(2**31), 2**31 - 1)),
    (TimestampType(), st.integers(-(2**63), 2**63 - 1)),
]


@given(st.data(), st.sampled_from(_PLAIN))
def test_any_bounds_come_back_as_they_were(data: st.DataObject, kind: tuple[PrimitiveType, Any]) -> None:
    """What Iceberg's serialisation took is what is compared, and the lower one is not above the upper one."""
    lower, upper = sorted(data.draw(st.tuples(kind[1], kind[1])))
    file = unwritten(lower_bounds={1: to_bytes(kind[0], lower)}, upper_bounds={1: to_bytes(kind[0], upper)})
    assert bounds_of(file, kind[0]) == (lower, upper)


def unwritten(**facts: Any) -> NewDataFile:
    """A file of ten rows in which column 1 has no nulls."""
    return NewDataFile(**{"path": "p", "size_bytes": 1, "rows": 10, "partition": PartitionKey(0), **facts})


def bounds_of(file: NewDataFile, kind: PrimitiveType) -> Bounds:
    schema = schema_of(("x", kind))
    (bounds,) = cluster_file_of(file, by_all(schema), schema).bounds
    return bounds


ONE, TWO = struct.pack("<d", 1.0), struct.pack("<d", 2.0)
BOTH = {"lower_bounds": {1: ONE}, "upper_bounds": {1: TWO}}
NAN = struct.pack("<d", math.nan)


@pytest.mark.parametrize(
    ("facts", "bounds"),
    [
        ({**BOTH, "nan_value_counts": {1: 0}}, (1.0, 2.0)),
        (BOTH, (1.0, 2.0)),
        ({**BOTH, "null_value_counts": {1: 9}}, (1.0, 2.0)),
        ({**BOTH, "nan_value_counts": {1: 1}}, None),
        ({**BOTH, "nan_value_counts": {2: 1}, "null_value_counts": {2: 10}}, (1.0, 2.0)),
        ({"lower_bounds": {1: ONE}}, None),
        ({"upper_bounds": {1: TWO}}, None),
        ({"lower_bounds": {1: NAN}, "upper_bounds": {1: TWO}}, None),
        ({"lower_bounds": {1: ONE}, "upper_bounds": {1: NAN}}, None),
        ({"lower_bounds": {1: TWO}, "upper_bounds": {1: ONE}}, None),
        ({"lower_bounds": {1: ONE}, "upper_bounds": {1: b"short"}}, None),
        ({"null_value_counts": {1: 10}}, ()),
        ({"null_value_counts": {1: 9}}, None),
        ({"nan_value_counts": {1: 10}}, None),
        ({"rows": 0, "null_value_counts": {1: 0}}, ()),
        ({}, None),
    ],
)
def test_bounds_are_known_when_both_are_and_nothing_is_outside_of_them(facts: dict[str, Any], bounds: Bounds) -> None:
    """NaN lies outside of any bounds; nulls are found by no comparison."""
    assert bounds_of(unwritten(**facts), DoubleType()) == bounds


def test_nulls_and_nan_of_real_files(lake: SqlCatalog) -> None:
    """Only nulls: no value to find. Some nulls: bounds of the others. NaN: nobody knows."""
    lake.create_table("db.t", schema_of(("x", DoubleType()), ("s", StringType())))
    add(lake, [{"x": None, "s": None}, {"x": None, "s": None}])
    add(lake, [{"x": 3.0, "s": None}, {"x": None, "s": "b"}, {"x": -1.0, "s": "a"}])
    table = add(lake, [{"x": 1.0, "s": "c"}, {"x": math.nan, "s": "c"}])
    bounds = [file.bounds for file in files_of(table, by_all(table.schema()))]
    assert bounds == [((), ()), ((-1.0, 3.0), ("a", "b")), (None, ("c", "c"))]


def test_files_without_metrics_of_the_column_are_always_opened(lake: SqlCatalog) -> None:
    """Those that were written before the column was added, and those that keep counts only."""
    lake.create_table("db.t", schema_of(("x", LongType())))
    table = add(lake, [{"x": 1}])
    table.update_schema().add_column("y", LongType()).commit()
    add(lake, [{"x": 2, "y": 7}])
    with lake.load_table("db.t").transaction() as change:
        change.set_properties({"write.metadata.metrics.column.y": "counts"})
    table = add(lake, [{"x": 3, "y": 8}])
    bounds = [file.bounds for file in files_of(table, by_all(table.schema()))]
    assert bounds == [((1, 1), None), ((2, 2), (7, 7)), ((3, 3), None)]


def test_bounds_of_before_a_promotion_are_read_by_their_length(lake: SqlCatalog) -> None:
    """Old and new files compare with each other, and a reader that knew the narrow type agrees with a new one."""
    types = {"i": IntegerType(), "f": FloatType(), "d": DecimalType(9, 2)}
    lake.create_table("db.t", schema_of(*types.items()))
    table = add(lake, [{"i": -5, "f": 0.1, "d": Decimal("1.50")}])
    by = by_all(table.schema())
    reader = ClusterReader(by)
    assert len(reader.read(table.metadata, table.io)) == 1
    with table.update_schema() as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(20, 2))
    table = add(lake, [{"i": 2**40, "f": 1e200, "d": Decimal("1e15")}])
    single = struct.unpack("<f", struct.pack("<f", 0.1))[0]
    old, new = files_of(table, by)
    assert old.bounds == ((-5, -5), (single, single), (Decimal("1.50"), Decimal("1.50")))
    assert new.bounds == ((2**40, 2**40), (1e200, 1e200), (Decimal("1e15"), Decimal("1e15")))
    assert reader.read(table.metadata, table.io) == ClusterReader(by).read(table.metadata, table.io)


def test_an_empty_table_has_no_files(lake: SqlCatalog) -> None:
    """No snapshot, nothing to read."""
    table = make_table(lake)
    assert ClusterReader(BY_ID).read(table.metadata, table.io) == {}


def same_facts_as_a_layout(table: Table) -> dict[SkipReason | None, int]:
    """Every file as the layout reader has it when all are small; gives how often each obstacle is met."""
    layout = LayoutReader(UNLIMITED).read(table.metadata, table.io)
    found = ClusterReader(BY_ID).read(table.metadata, table.io)
    assert {key: tuple(f.fact for f in files) for key, files in found.items()} == {
        key: partition.small for key, partition in layout.partitions.items()
    }
    assert {f.fact.path for files in found.values() for f in files} == set(live_paths(table))
    reasons = [f.fact.obstacle for files in found.values() for f in files]
    return {reason: reasons.count(reason) for reason in set(reasons)}


@pytest.mark.parametrize("version", ["1", "2"])
def test_all_live_files_are_read_as_a_layout_has_them(lake: SqlCatalog, version: str) -> None:
    """Of any size, with partition, numbers and the manifest that lists them; merged ones are gone."""
    make_table(lake, properties={"format-version": version})
    append(lake, [1, 2], "a")
    append(lake, [3], "a")
    append(lake, [4], "a")
    append(lake, range(5000), "b")
    assert same_facts_as_a_layout(lake.load_table("db.t")) == {None: 4}
    table = compact(lake, "a")
    assert same_facts_as_a_layout(table) == {None: 2}
    bounds = sorted(file.bounds for file in files_of(table))
    hour = 3_600_000_000
    assert bounds == [((0, 4999), (0, 4999 * hour)), ((1, 4), (hour, 4 * hour))]


def test_files_with_deletes_say_so(lake: SqlCatalog) -> None:
    """Position and equality deletes that came after a file was remembered reach it too."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2])
    table = append(lake, [3], "b")
    reader = ClusterReader(BY_ID)
    reader.read(table.metadata, table.io)
    first, second, _ = small_files(table)
    delete_rows(lake, first)
    table = append(lake, [4])
    assert same_facts_as_a_layout(table) == {None: 4}
    assert [f.delete_files for f in small_files(table)] == [1, 0, 0, 0]
    table = delete_ids(lake, second, [99])
    assert same_facts_as_a_layout(table) == {None: 4}
    assert [f.delete_files for f in small_files(table)] == [2, 1, 0, 1]
    assert reader.read(table.metadata, table.io) == ClusterReader(BY_ID).read(table.metadata, table.io)


def test_files_of_an_old_spec_say_so(lake: SqlCatalog) -> None:
    """They stay where they are without its source column."""
    make_table(lake)
    table = append(lake, [1])
    with table.update_spec() as update:
        update.remove_field("kind").add_field("id", "bucket[2]", "id_bucket")
    table = append(lake, [2])
    with table.update_schema() as change:
        change.delete_column("kind")
    assert same_facts_as_a_layout(table) == {SkipReason.OLD_SPEC: 1, None: 1}
    assert {f.fact.partition.spec_id: f.fact.obstacle for f in files_of(table)} == {0: SkipReason.OLD_SPEC, 1: None}


def test_orc_and_encrypted_files_say_so(lake: SqlCatalog) -> None:
    """They cannot be rewritten, whatever their names are."""
    table = make_table(lake, {})
    orc, encrypted = (data_file(write(table, [i])) for i in range(2))
    orc[2], encrypted[12] = FileFormat.ORC, b"key"
    with table.transaction() as change, change.update_snapshot().fast_append() as producer:
        producer.append_data_file(orc)
        producer.append_data_file(encrypted)
    table = lake.load_table("db.t")
    assert same_facts_as_a_layout(table) == {SkipReason.NOT_PARQUET: 1, SkipReason.ENCRYPTED: 1}


def test_names_tell_the_set(lake: SqlCatalog) -> None:
    """The set and whether it is full, for files that were clustered by these columns; others have none."""
    table = lake.create_table("db.t", SCHEMA)
    other = replace(BY_ID, strategy="zorder")
    prefixes = [
        set_prefix(BY_ID.key, "abc1", 1, True), set_prefix(BY_ID.key, "abc1", 2, False),
        set_prefix(other.key, "abc2", 1, True), "s1-7",
    ]  # fmt: skip
    files = [written(table, [{"id": i}], prefix) for i, prefix in enumerate(prefixes)]
    append_files(table, files)
    table = lake.load_table("db.t")
    by_id = sorted(files_of(table), key=lambda file: file.bounds)
    assert [(file.set_id, file.full) for file in by_id] == [
        ("abc10001", True), ("abc10002", False), (None, False), (None, False),
    ]  # fmt: skip
    assert [cluster_file_of(f, BY_ID, table.schema()).set_id for f in files] == ["abc10001", "abc10002", None, None]
    assert [cluster_file_of(f, other, table.schema()).full for f in files] == [False, False, True, False]


def test_a_new_file_is_what_its_manifest_will_say(lake: SqlCatalog) -> None:
    """Numbers that only the commit gives are missing before it, and the manifest."""
    table = make_table(lake)
    file = write(table, [1, 5], "a")
    before = cluster_file_of(file, BY_ID, table.schema())
    run(lake, request_on(table, [file]), table)
    (after,) = files_of(lake.load_table("db.t"))
    assert (before.fact.sequence_number, before.fact.manifest_path) == (0, "")
    assert after.fact.sequence_number == 1
    assert after == replace(before, fact=after.fact)
    assert before.fact == replace(after.fact, sequence_number=0, manifest_path="")
    merged = replace(file, sequence_number=7)
    assert cluster_file_of(merged, BY_ID, table.schema()).fact.sequence_number == 7


def test_manifests_are_read_once_and_forgotten_when_they_are_gone(lake: SqlCatalog) -> None:
    """What was known is not read again; a merge makes a new manifest, and the old one would be read anew."""
    make_table(lake, properties={"commit.manifest-merge.enabled": "false"})
    reader, io = ClusterReader(BY_ID), CountingIO()

    def opened(table: Table) -> int:
        before = len(io.manifests)
        found = reader.read(table.metadata, io)
        count = len(io.manifests) - before
        assert found == ClusterReader(BY_ID).read(table.metadata, table.io)
        return count

    first = append(lake, [1])
    assert (opened(first), opened(first)) == (1, 0)
    assert opened(append(lake, [2])) == 1
    merged = compact(lake)
    assert (opened(merged), opened(merged)) == (1, 0)
    assert opened(first) == 1


def test_files_that_callers_get_are_theirs(lake: SqlCatalog) -> None:
    """Whatever is done to a result, the next one is whole."""
    make_table(lake)
    table = append(lake, [1])
    reader = ClusterReader(BY_ID)
    for files in reader.read(table.metadata, table.io).values():
        files.clear()
    assert [len(files) for files in reader.read(table.metadata, table.io).values()] == [1]


def test_manifests_that_are_ruled_out_are_not_read(lake: SqlCatalog) -> None:
    """A filter over partitions prunes; what is known of the others is kept meanwhile."""
    make_table(lake, properties={"commit.manifest-merge.enabled": "false"})
    append(lake, [1], "a")
    table = append(lake, [2], "b")
    keep = partition_filter(table.metadata, "kind = 'a'").may_hold
    reader, io = ClusterReader(BY_ID), CountingIO()
    assert set(reader.read(table.metadata, io, keep)) == {PartitionKey(0, ("a",))}
    assert len(io.manifests) == 1
    assert len(reader.read(table.metadata, io)) == 2
    reader.read(table.metadata, io, keep)
    reader.read(table.metadata, io)
    assert len(io.manifests) == 2


def test_a_dropped_column_is_named(lake: SqlCatalog) -> None:
    """Nobody can look how files are clustered by what is not there."""
    make_table(lake, {})
    table = append(lake, [1])
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("ts")
    table = lake.load_table("db.t")
    with pytest.raises(TableError) as refused:
        ClusterReader(BY_ID).read(table.metadata, table.io)
    assert str(refused.value) == "Cannot read the clustering by 'ts': the column was dropped"


def test_a_missing_manifest_is_an_error_of_the_table(lake: SqlCatalog) -> None:
    """Somebody's expiry took it: the message says what to do."""
    make_table(lake)
    table = append(lake, [1])
    head = table.metadata.current_snapshot()
    assert head is not None
    local(head.manifests(table.io)[0].manifest_path).unlink()
    with pytest.raises(TableError, match=r"Cannot read the history of .*; if snapshots expired during this call, run"):
        ClusterReader(BY_ID).read(table.metadata, table.io)


def number(value: int) -> bytes:
    """An integer as Avro writes it."""
    zigzag, out = (value << 1) ^ (value >> 63), b""
    while zigzag > 0x7F:
        out, zigzag = out + bytes([zigzag & 0x7F | 0x80]), zigzag >> 7
    return out + bytes([zigzag])


def metric(field_id: int, value: str, *, optional: bool) -> dict[str, Any]:
    """A map by field id as Iceberg declares it."""
    fields = [{"name": "key", "type": "int"}, {"name": "value", "type": value}]
    pairs = {"type": "array", "logicalType": "map", "items": {"type": "record", "name": "kv", "fields": fields}}
    return {"name": f"m{field_id}", "field-id": field_id, "type": ["null", pairs] if optional else pairs}


@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("sized", [True, False])
def test_maps_in_any_blocks_are_read(optional: bool, sized: bool) -> None:
    """Several blocks, with or without their size in front: Avro allows both, and writers do both."""
    pairs = [number(1) + number(10), number(2) + number(-(2**40)), number(3) + number(0)]
    texts = [number(1) + number(2) + b"ab", number(300) + number(0)]

    def block(items: list[bytes]) -> bytes:
        body = b"".join(items)
        return number(-len(items)) + number(len(body)) + body if sized else number(len(items)) + body

    there = number(1) if optional else b""
    fields = [{"name": "rows", "field-id": 103, "type": "long"}]
    fields += [metric(110, "long", optional=optional), metric(125, "bytes", optional=optional)]
    data = number(3) + there + block(pairs[:2]) + block(pairs[2:]) + number(0) + there + block(texts) + number(0)
    row: list[Any] = [None] * 3
    fields_reader(fields, {103: 0, 110: 1, 125: 2})(new_decoder(data), row)
    assert row == [3, {1: 10, 2: -(2**40), 3: 0}, {1: b"ab", 300: b""}]
