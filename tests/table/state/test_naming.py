"""Names of partitions, points in time and snapshot ids find what they mean, or say what there is instead."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestampNanoType,
    TimestampType,
    TimestamptzNanoType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from icesize.errors import TableError
from icesize.planning.files import NegativeZero, PartitionKey, SkipReason
from icesize.table.state.live_files import files_at
from icesize.table.state.naming import Labels, find_partition, known_snapshot, snapshot_as_of
from tests.support.partition_values import CASES
from tests.support.row_deletes import delete_rows
from tests.support.tables import append, expire, layout_of, make_table, request_on, run, small_files, write

A = PartitionKey(0, ("a",))


def snapshot_ids(table: Table) -> list[int]:
    return [s.snapshot_id for s in table.metadata.snapshots]


def test_a_partition_is_found_by_its_printed_values(lake: SqlCatalog) -> None:
    """All fields are named, each as `inspect` prints it."""
    make_table(lake, {"kind": "identity", "id": "truncate[10]"})
    append(lake, [1], "a")
    append(lake, [11], "a")
    table = append(lake, [11], "b")
    keys = layout_of(table).partitions
    assert find_partition(table.metadata, keys, {"kind": "a", "id_truncate": "10"}) == PartitionKey(0, ("a", 10))
    assert find_partition(table.metadata, keys, {"id_truncate": 0, "kind": "a"}) == PartitionKey(0, ("a", 0))


@pytest.mark.parametrize(
    ("transforms", "wanted"),
    [
        ({"ts": "day"}, {"ts_day": date(1970, 1, 1)}),
        ({"ts": "hour"}, {"ts_hour": "1970-01-01-05"}),
        ({"ts": "identity"}, {"ts": "1970-01-01T05:00:00"}),
        ({"kind": "void"}, {"kind_void": None}),
        ({}, {}),
    ],
)
def test_values_that_are_not_text_are_compared_as_they_print(
    lake: SqlCatalog, transforms: dict[str, str], wanted: dict[str, Any]
) -> None:
    """Dates and null are taken; the only partition of an unpartitioned table has no name."""
    make_table(lake, transforms)
    table = append(lake, [5])
    (key,) = layout_of(table).partitions
    assert find_partition(table.metadata, [key], wanted) == key


def test_a_partition_that_never_was_is_named_with_the_nearest(lake: SqlCatalog) -> None:
    """A misspelt value is told with the partition that may be meant."""
    make_table(lake)
    table = append(lake, [1], "hour-8")
    keys = layout_of(table).partitions
    with pytest.raises(TableError) as raised:
        find_partition(table.metadata, keys, {"kind": "hour-9"})
    assert str(raised.value) == ("Cannot find partition kind=hour-9: it never had files; did you mean 'kind=hour-8'?")
    assert raised.value.facts == {"partition": {"kind": "hour-9"}}
    with pytest.raises(TableError) as raised:
        find_partition(table.metadata, keys, {"kind": "/////////////"})
    assert str(raised.value) == (
        "Cannot find partition kind=/////////////: it never had files, or the snapshots that had them have expired"
    )


def test_wrong_field_names_are_told_with_the_right_ones(lake: SqlCatalog) -> None:
    """Unknown, missing and superfluous fields; and any field where there is none."""
    make_table(lake, {"kind": "identity", "ts": "day"})
    table = append(lake, [1])
    keys = layout_of(table).partitions
    for wanted in ({"hour": "h1"}, {"kind": "a"}, {}, {"kind": "a", "ts_day": "1970-01-01", "x": "1"}):
        with pytest.raises(TableError, match="the table is partitioned by kind, ts_day: name each of them"):
            find_partition(table.metadata, keys, wanted)
    make_table(lake, {}, name="db.whole")
    whole = lake.load_table("db.whole")
    with pytest.raises(TableError) as raised:
        find_partition(whole.metadata, [], {"kind": "a"})
    assert str(raised.value) == "Cannot find partition kind=a: the table is not partitioned: name no field"
    with pytest.raises(TableError, match=r"Cannot find partition \{\}: it never had files"):
        find_partition(whole.metadata, [], {})


def test_partitions_of_an_old_spec_are_found(lake: SqlCatalog) -> None:
    """After the spec changed, partitions are named by the fields of their own."""
    make_table(lake)
    table = append(lake, [1])
    with table.update_spec() as update:
        update.add_field("id", "bucket[2]", "id_bucket")
    table = append(lake, [2])
    old, new = sorted(layout_of(table).partitions, key=lambda key: key.spec_id)
    assert find_partition(table.metadata, [new, old], {"kind": "a"}) == old
    bucket = str(new.values[1])
    assert find_partition(table.metadata, [old, new], {"kind": "a", "id_bucket": bucket}) == new


def test_where_two_specs_print_the_same_each_is_named(lake: SqlCatalog) -> None:
    """Fields of one name by other transforms: the message names both partitions, in a form that is accepted."""
    make_table(lake, {"kind": "truncate[5]"})
    table = append(lake, [1])
    with table.update_spec() as update:
        update.remove_field("kind_truncate")
    with lake.load_table("db.t").update_spec() as update:
        update.add_field("kind", "truncate[6]", "kind_truncate")
    table = append(lake, [3])
    first, last = sorted(layout_of(table).partitions, key=lambda key: key.spec_id)
    assert last.spec_id == table.metadata.default_spec_id
    names = {key: f"kind_truncate=a/@spec={key.spec_id}" for key in (first, last)}
    for keys in ([first, last], [last, first]):
        with pytest.raises(TableError) as raised:
            find_partition(table.metadata, keys, {"kind_truncate": "a"})
        both = ", ".join(map(repr, names.values()))
        assert str(raised.value) == (
            f"Cannot find partition kind_truncate=a: 2 partitions have this name. Name one of {both}"
        )
        for key, name in names.items():
            assert find_partition(table.metadata, keys, name) == key
            assert find_partition(table.metadata, keys, {"kind_truncate": "a", "@spec": key.spec_id}) == key
    assert find_partition(table.metadata, [first], {"kind_truncate": "a"}) == first


def metadata_of(fields: list[tuple[IcebergType, str]]) -> TableMetadata:
    """A table with these columns, each in a partition field of its own."""
    columns = [NestedField(i, f"c{i}", kind) for i, (kind, _) in enumerate(fields, 1)]
    spec = PartitionSpec(
        *(PartitionField(i, 999 + i, parse_transform(t), f"f{i}") for i, (_, t) in enumerate(fields, 1))
    )
    kinds = [column.model_copy(update={"field_type": LongType()}) for column in columns]
    metadata = new_table_metadata(Schema(*kinds), spec, UNSORTED_SORT_ORDER, "file:///t")
    # PyIceberg makes no table of format v3, which some types need
    return metadata.model_copy(update={"schemas": [Schema(*columns, schema_id=0)]})


@st.composite
def partitions(draw: st.DrawFn) -> tuple[TableMetadata, list[PartitionKey]]:
    """A table by one or two transforms of any type, and some of its partitions."""
    texts = (StringType(), st.sampled_from(["null", "", '"', "a/f2=b", " ", "a,b"]), ("identity", "truncate[3]"))
    some = [(kind, transform, values) for kind, values, transforms in [*CASES, texts] for transform in transforms]
    chosen = draw(st.lists(st.sampled_from(some), min_size=1, max_size=2))
    columns = [st.none() | values.map(parse_transform(transform).transform(kind)) for kind, transform, values in chosen]
    keys = draw(st.lists(st.tuples(*columns).map(lambda values: PartitionKey.of(0, values)), min_size=1, unique=True))
    return metadata_of([(kind, transform) for kind, transform, _ in chosen]), keys


@given(partitions())
def test_each_partition_is_found_by_what_is_printed_of_it(found: tuple[TableMetadata, list[PartitionKey]]) -> None:
    """Values and labels of all types and transforms come back, among others of the table, NULL included."""
    metadata, keys = found
    labels = Labels(metadata)
    for key in keys:
        assert find_partition(metadata, keys, labels.values(key)) == key
        assert find_partition(metadata, keys, labels.of(key)) == key


ZONE = timezone(timedelta(hours=2))
WHOLE = datetime(2024, 7, 1, 5)


@pytest.mark.parametrize(
    ("kind", "transform", "wanted", "stored"),
    [
        (StringType(), "identity", "null", "null"),
        (StringType(), "identity", None, None),
        (StringType(), "identity", 5, "5"),
        (StringType(), "void", "null", None),
        (LongType(), "identity", "null", None),
        (LongType(), "identity", 7, 7),
        (LongType(), "bucket[4]", "3", 3),
        (BooleanType(), "identity", True, True),
        (BooleanType(), "identity", "false", False),
        (FloatType(), "identity", 0.1, 0.10000000149011612),
        (FloatType(), "identity", "0.1", 0.10000000149011612),
        (DoubleType(), "identity", -0.0, NegativeZero("-0.0")),
        (DoubleType(), "identity", 0, 0.0),
        (DoubleType(), "identity", "0", 0.0),
        (DecimalType(9, 2), "identity", Decimal("1.5"), Decimal("1.50")),
        (DecimalType(9, 2), "identity", "1.5", Decimal("1.50")),
        (DecimalType(9, 2), "identity", 1.1, Decimal("1.10")),
        (BinaryType(), "identity", b"\x9e\xe9e", b"\x9e\xe9e"),
        (BinaryType(), "identity", "null", b"\x9e\xe9e"),
        (UUIDType(), "identity", UUID(int=5), UUID(int=5)),
        (DateType(), "identity", date(1970, 1, 3), 2),
        (TimeType(), "identity", time_of_day(0, 0, 1), 1_000_000),
        (TimestampType(), "identity", datetime(1970, 1, 1, 0, 0, 1), 1_000_000),
        (TimestamptzType(), "identity", datetime(1970, 1, 1, 2, tzinfo=ZONE), 0),
        (DateType(), "identity", "3000000 since 1970", 3_000_000),
        (TimestampType(), "hour", "-20000000 since 1970", -20_000_000),
        (TimestampType(), "year", 2024, 54),
        (TimestampType(), "month", WHOLE, 654),
        (DateType(), "month", date(2024, 7, 1), 654),
        (TimestampType(), "day", date(2024, 7, 1), 19_905),
        (TimestamptzType(), "hour", WHOLE, 477_725),
        (TimestampType(), "hour", "2024-07-01-05", 477_725),
        (TimestampNanoType(), "hour", "2024-07-01-05", 477_725),
        (TimestamptzNanoType(), "hour", WHOLE, 477_725),
        (TimestampNanoType(), "day", date(2024, 7, 1), 19_905),
        (TimestampNanoType(), "month", "2024-07", 654),
    ],
)
def test_typed_values_name_partitions(kind: IcebergType, transform: str, wanted: object, stored: object) -> None:
    """Python's own values, and text as it is printed; None alone is NULL where a value may be printed as `null`."""
    metadata = metadata_of([(kind, transform)])
    key, values = PartitionKey(0, (stored,)), (None, 0, 1, 0.0, "a", False, True)
    # to Python False is 0: values of one type, and NULL
    alike = (type(stored), type(None)) if not isinstance(stored, float) else (float, type(None))
    keys = [PartitionKey(0, (value,)) for value in values if type(value) in alike and repr(value) != repr(stored)]
    assert find_partition(metadata, [*keys, key], {"f1": wanted}) is key


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (LongType(), True),
        (LongType(), "x"),
        (BooleanType(), 1),
        (DateType(), "soon"),
        (BinaryType(), "?"),
        (UUIDType(), 5),
    ],
)
def test_values_of_another_type_name_no_partition(kind: IcebergType, wanted: object) -> None:
    """True is not 1, and text that prints no value is an error, not a partition."""
    stored = True if isinstance(kind, BooleanType) else 1
    with pytest.raises(TableError, match=r"Cannot find partition f1=.*: it never had files"):
        find_partition(metadata_of([(kind, "identity")]), [PartitionKey(0, (stored,))], {"f1": wanted})


@pytest.mark.parametrize("transform", ["void", "scramble"])
def test_a_date_names_no_partition_of_a_field_without_times(transform: str) -> None:
    """Neither NULL, the only value of a void field, nor a value of a transform that nobody knows."""
    keys = [PartitionKey(0, (None,)), PartitionKey(0, (19_905,))]
    with pytest.raises(TableError, match=r"Cannot find partition f1=2024-07-01: it never had files"):
        find_partition(metadata_of([(TimestampType(), transform)]), keys, {"f1": date(2024, 7, 1)})


def test_partitions_of_nan_have_one_name() -> None:
    """NaN is equal to nothing: the message says that no name chooses one of several; one alone is found."""
    metadata = metadata_of([(DoubleType(), "identity")])
    keys = [PartitionKey(0, (float("nan"),)) for _ in range(2)]
    with pytest.raises(TableError, match="f1=nan: 2 partitions have this name; partitions with NaN cannot be named"):
        find_partition(metadata, keys, {"f1": "nan"})
    assert find_partition(metadata, keys[:1], {"f1": float("nan")}) is keys[0]


def test_a_field_that_is_named_twice_is_refused() -> None:
    """A label that can be read in two ways says how to write it."""
    with pytest.raises(TableError, match="f1=a/f1=b: a field is named twice"):
        find_partition(metadata_of([(StringType(), "identity")]), [], "f1=a/f1=b")


def test_a_snapshot_that_is_not_there_is_told_with_those_that_are(lake: SqlCatalog) -> None:
    """Expired, of another table, or never there: the message names the oldest and the newest that can be had."""
    make_table(lake)
    make_table(lake, name="db.other")
    with pytest.raises(TableError, match="Cannot find snapshot 5: the table has no snapshots"):
        known_snapshot(lake.load_table("db.t").metadata, 5)
    append(lake, [1])
    append(lake, [2])
    first, second, third = snapshot_ids(append(lake, [3]))
    other = lake.load_table("db.other")
    run(lake, request_on(other, [write(other, [1])]), other)
    (foreign,) = snapshot_ids(lake.load_table("db.other"))
    expire(lake.load_table("db.t"), keep=2)
    metadata = lake.load_table("db.t").metadata
    assert known_snapshot(metadata, second).snapshot_id == second
    times = {s.snapshot_id: datetime.fromtimestamp(s.timestamp_ms / 1000, timezone.utc) for s in metadata.snapshots}
    for gone in (first, foreign, -1):
        with pytest.raises(TableError) as raised:
            known_snapshot(metadata, gone)
        assert str(raised.value) == (
            f"Cannot find snapshot {gone}: it has expired or is of another table; the table has 2 snapshots, the "
            f"oldest {second} of {times[second].isoformat(timespec='milliseconds')}, "
            f"the newest {third} of {times[third].isoformat(timespec='milliseconds')}"
        )
        assert raised.value.facts == {"snapshot_id": gone}


def at(catalog: SqlCatalog, now_ms: int, ids: list[int]) -> int:
    """Rows committed at a time; returns the snapshot."""
    table = catalog.load_table("db.t")
    run(catalog, request_on(table, [write(table, ids)]), table, now_ms=now_ms)
    return snapshot_ids(catalog.load_table("db.t"))[-1]


@pytest.fixture
def hourly(lake: SqlCatalog) -> tuple[SqlCatalog, list[int], int]:
    """A table with three snapshots an hour apart, their ids, and the time of the first."""
    make_table(lake)
    # PyIceberg makes tables now, and no snapshot can be older than its table
    start = lake.load_table("db.t").metadata.last_updated_ms + 3_600_000
    ids = [at(lake, start + i * 3_600_000, [i]) for i in range(3)]
    return lake, ids, start


def test_a_time_means_the_snapshot_that_was_current(hourly: tuple[SqlCatalog, list[int], int]) -> None:
    """Milliseconds and datetimes, with a zone and without (UTC); the future shows what is current."""
    lake, (first, second, third), start = hourly
    metadata = lake.load_table("db.t").metadata
    hour = 3_600_000
    expected = {start: first, start + hour - 1: first, start + hour: second, start + 2 * hour: third, 2**53: third}
    assert {ms: snapshot_as_of(metadata, ms) for ms in expected} == expected
    aware = datetime.fromtimestamp((start + hour) / 1000, timezone(timedelta(hours=5)))
    naive = aware.astimezone(timezone.utc).replace(tzinfo=None)
    for time in (aware, naive):
        assert snapshot_as_of(metadata, time) == second
        assert snapshot_as_of(metadata, time - timedelta(milliseconds=1)) == first


def test_a_time_before_the_first_known_snapshot_is_refused(hourly: tuple[SqlCatalog, list[int], int]) -> None:
    """The message says which snapshot is the oldest."""
    lake, (_, second, _), start = hourly
    expire(lake.load_table("db.t"), keep=2)
    metadata = lake.load_table("db.t").metadata
    with pytest.raises(TableError) as raised:
        snapshot_as_of(metadata, start)
    time = datetime.fromtimestamp(start / 1000, timezone.utc)
    told = [t.isoformat(timespec="milliseconds") for t in (time, time + timedelta(hours=1))]
    assert str(raised.value) == f"Cannot find the snapshot of {told[0]}: the oldest known is {second} of {told[1]}"
    make_table(lake, name="db.empty")
    with pytest.raises(TableError, match=r"Cannot find the snapshot of -9+ ms: there are none"):
        snapshot_as_of(lake.load_table("db.empty").metadata, -(10**18) + 1)


def test_a_time_whose_snapshot_may_have_expired_is_refused(hourly: tuple[SqlCatalog, list[int], int]) -> None:
    """With a snapshot in between gone nobody knows when the older one ceased to be current; at its start it was."""
    lake, (first, second, third), start = hourly
    table = lake.load_table("db.t")
    table.maintenance.expire_snapshots().by_id(second).commit()
    metadata = lake.load_table("db.t").metadata
    assert snapshot_as_of(metadata, start) == first
    assert snapshot_as_of(metadata, start + 2 * 3_600_000) == third
    with pytest.raises(TableError, match=f"some between {first} of .* and {third} of .* have expired; name a snapshot"):
        snapshot_as_of(metadata, start + 1)


def test_times_of_a_main_that_was_rolled_back(hourly: tuple[SqlCatalog, list[int], int]) -> None:
    """What was current before the rollback still is what that time means."""
    lake, (first, second, third), start = hourly
    with lake.load_table("db.t").manage_snapshots() as manage:
        manage.set_current_snapshot(first)
    newest = at(lake, start + 9 * 3_600_000, [9])
    metadata = lake.load_table("db.t").metadata
    *before, rolled_back, last = metadata.snapshot_log
    assert (rolled_back.snapshot_id, last.snapshot_id) == (first, newest)
    # the rollback is written down at the time of this test, before the times that its snapshots were given
    rolled_back = rolled_back.model_copy(update={"timestamp_ms": start + 3 * 3_600_000})
    metadata = metadata.model_copy(update={"snapshot_log": [*before, rolled_back, last]})
    expected = {1: second, 2: third, 3: first, 8: first, 9: newest}
    assert {hours: snapshot_as_of(metadata, start + hours * 3_600_000 + 1) for hours in expected} == expected


def test_files_of_a_partition_at_a_snapshot(lake: SqlCatalog) -> None:
    """Only those of the partition then; deletes that apply to them are noticed, and only there."""
    make_table(lake)
    append(lake, [1, 2], "a")
    before = small_files(append(lake, [3], "a"))
    append(lake, [4], "b")
    delete_rows(lake, before[0])
    table = lake.load_table("db.t")
    ids = snapshot_ids(table)

    def found(snapshot_id: int) -> dict[str, int]:
        files = files_at(table.metadata, table.io, known_snapshot(table.metadata, snapshot_id), A)
        return {f.path: f.delete_files for f in files}

    assert found(ids[0]) == {before[0].path: 0}
    assert found(ids[2]) == {f.path: 0 for f in before}
    assert found(ids[3]) == {before[0].path: 1, before[1].path: 0}
    assert [f.rows for f in files_at(table.metadata, table.io, known_snapshot(table.metadata, ids[1]), A)] == [1, 2]
    assert files_at(table.metadata, table.io, known_snapshot(table.metadata, ids[3]), PartitionKey(0, ("x",))) == []


@pytest.mark.parametrize(
    ("fact", "value", "obstacle"),
    [("file_format", FileFormat.ORC, SkipReason.NOT_PARQUET), ("key_metadata", b"k", SkipReason.ENCRYPTED)],
)
def test_files_that_are_not_plain_parquet_are_told(
    lake: SqlCatalog, fact: str, value: object, obstacle: SkipReason
) -> None:
    """Imported files of another format and encrypted ones say so."""
    table = make_table(lake)
    facts = {"file_format": FileFormat.PARQUET, "record_count": 1, "file_size_in_bytes": 9, fact: value}
    imported = DataFile.from_args(
        content=DataFileContent.DATA, file_path=f"{table.location()}/data/x", partition=Record("a"), **facts
    )
    imported.spec_id = 0
    with table.transaction() as change, change.update_snapshot().fast_append() as added:
        added.append_data_file(imported)
    table = lake.load_table("db.t")
    (file,) = files_at(table.metadata, table.io, known_snapshot(table.metadata, snapshot_ids(table)[0]), A)
    assert (file.obstacle, file.rows) == (obstacle, 1)


def test_a_negative_zero_is_itself_alone() -> None:
    """Both comparisons agree: a value that equals no 0.0 differs from each."""
    zero = NegativeZero("-0.0")
    assert zero == NegativeZero("-0.0")
    assert zero != 0.0
