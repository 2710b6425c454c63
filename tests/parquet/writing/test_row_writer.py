"""write_rows and RowWriter: which files come out of rows, and what is left when something fails."""

from __future__ import annotations

import datetime as dt
import random
import uuid
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.schema import Schema
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from icesize.errors import RewriteFailed, SchemaMismatch
from icesize.parquet.files.names import writer_of
from icesize.parquet.writing.row_writer import RowWriter, write_rows
from icesize.storage.table_storage import Storage
from tests.support.examples import examples
from tests.support.parquet_files import (
    NAMES,
    REMOTE,
    append,
    catalog_in,
    files_below,
    local,
    schema_of,
    settings_of,
    spec_of,
)

EVENTS = schema_of(("id", LongType(), True), ("hour", StringType()), ("text", StringType()))


def events(rows: int, hours: int, start: int = 0) -> pa.Table:
    """Rows dealt round over `hours` partitions, with text that hardly compresses."""
    chance = random.Random(start)
    return pa.table(
        {
            "id": list(range(start, start + rows)),
            "hour": [f"h{i % hours}" for i in range(start, start + rows)],
            "text": [chance.randbytes(20).hex() for _ in range(rows)],
        }
    )


def ids(path: str) -> list[int]:
    """The ids in a file."""
    found: list[int] = pq.read_table(local(path), columns=["id"]).column("id").to_pylist()
    return found


def test_a_batch_becomes_one_file_per_partition(tmp_path: Path) -> None:
    """Each partition gets one file with all of its rows in their order, named by prefix, task and attempt."""
    options = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"))
    rows = events(1_000, 7)
    files = write_rows(rows.to_batches(max_chunksize=64), options, NAMES)
    assert len(files) == 7
    assert len(files_below(tmp_path)) == 7
    for file in files:
        found = ids(file.path)
        assert found == sorted(found)
        assert {f"h{i % 7}" for i in found} == {file.partition.values[0]}
        assert file.rows == len(found)
        assert file.size_bytes == Path(file.path).stat().st_size
        assert f"/data/hour={file.partition.values[0]}/s1-7-3-0-" in file.path
        assert (file.sequence_number, file.sort_order_id) == (None, None)


def test_an_empty_batch_writes_nothing(tmp_path: Path) -> None:
    """No rows, no files."""
    options = settings_of(tmp_path, EVENTS)
    assert write_rows([events(0, 1)], options, NAMES) == []
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("style", ["{}", "file:{}", "file://{}"])
def test_all_ways_to_write_a_local_location(tmp_path: Path, style: str) -> None:
    """Paths keep the style of the table's location, and a value with special characters is percent-encoded."""
    location = style.format(tmp_path / "lake")
    options = settings_of(location, EVENTS, spec_of(EVENTS, hour="identity"))
    (file,) = write_rows([pa.table({"id": [1], "hour": ["a/b ?#%"], "text": [None]})], options, NAMES)
    assert file.path.startswith(f"{location}/data/hour=a%2Fb+%3F%23%25/")
    assert ids(file.path) == [1]


def test_the_location_provider_of_the_table_is_used(tmp_path: Path) -> None:
    """`write.data.path` and `write.object-storage.enabled` decide where files go."""
    properties = {"write.data.path": f"{tmp_path}/elsewhere", "write.object-storage.enabled": "true"}
    options = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"), properties)
    (file,) = write_rows([events(3, 1)], options, NAMES)
    relative = Path(file.path).relative_to(tmp_path / "elsewhere").parts
    assert [set(part) <= {"0", "1"} for part in relative[:4]] == [True] * 4
    assert relative[4] == "hour=h0"


def test_a_large_partition_becomes_equal_files(tmp_path: Path) -> None:
    """4.4 files' worth of rows become files of about equal size near the target, not four full ones and a remainder."""
    options = settings_of(tmp_path, EVENTS, target=200_000)
    files = write_rows([events(40_000, 1)], options, NAMES)
    sizes = [file.size_bytes for file in files]
    assert sum(file.rows for file in files) == 40_000
    assert sorted(i for file in files for i in ids(file.path)) == list(range(40_000))
    assert max(sizes) <= 1.2 * 200_000
    assert max(sizes) <= 1.15 * min(sizes)


def test_a_wrong_hint_of_bytes_per_row_is_corrected(tmp_path: Path) -> None:
    """The first file shows the real density: a hint ten times too high does not make ten times the files."""
    honest = settings_of(tmp_path, EVENTS, target=200_000)
    wrong = replace(honest, bytes_per_row=400.0)
    count = len(write_rows([events(40_000, 1)], honest, NAMES))
    assert len(write_rows([events(40_000, 1)], wrong, NAMES)) <= count + 2


@pytest.mark.parametrize("hours", [1, 5, 400])
def test_more_rows_than_the_buffer_holds(tmp_path: Path, hours: int) -> None:
    """With a buffer of a few batches all rows still come out once, and partitions keep few files."""
    options = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"), target=400_000)
    writer = RowWriter(options, NAMES, max_buffer_bytes=300_000)
    for start in range(0, 20_000, 1_000):
        writer.write(events(1_000, hours, start))
    files = writer.close()
    assert sorted(i for file in files for i in ids(file.path)) == list(range(20_000))
    assert len(files) == {1: 2, 5: 5, 400: 400}[hours]
    for file in files:
        assert {i % hours for i in ids(file.path)} == {int(str(file.partition.values[0])[1:])}


def test_row_groups_of_the_size_that_the_table_asks_for(tmp_path: Path) -> None:
    """`write.parquet.row-group-size-bytes` bounds encoded row groups; offsets tell readers where to split."""
    options = settings_of(tmp_path, EVENTS, properties={"write.parquet.row-group-size-bytes": "50000"}, target=700_000)
    (file,) = write_rows([events(14_000, 1)], options, NAMES)
    footer = pq.read_metadata(file.path)
    groups = [footer.row_group(i) for i in range(footer.num_row_groups)]
    sizes = [sum(g.column(j).total_compressed_size for j in range(3)) for g in groups]
    assert len(groups) >= 6
    assert max(sizes) <= 65_000
    assert len(file.split_offsets) == len(groups)
    assert list(file.split_offsets) == sorted(file.split_offsets)
    assert file.split_offsets[0] == 4


def test_files_are_encoded_so_that_their_pages_can_be_copied(tmp_path: Path) -> None:
    """Dictionaries only where values repeat; field ids, page index, integer decimals; no Arrow schema, no v2 pages."""
    schema = schema_of(
        ("id", LongType()),
        ("hour", StringType()),
        ("price", DecimalType(9, 2)),
        ("ok", BooleanType()),
        ("u", UUIDType()),
    )
    options = settings_of(tmp_path, schema)
    rows = pa.table(
        {
            "id": range(30_000),
            "hour": ["h1"] * 30_000,
            "price": pa.array([Decimal(i % 500) / 4 for i in range(30_000)], pa.decimal128(9, 2)),
            "ok": [True, None] * 15_000,
            "u": ["00000000-0000-0000-0000-00000000000a"] * 30_000,
        }
    )
    (file,) = write_rows([rows], options, NAMES)
    parquet = pq.ParquetFile(file.path)
    group = parquet.metadata.row_group(0)
    columns = {group.column(i).path_in_schema: group.column(i) for i in range(5)}
    assert {name for name, column in columns.items() if column.has_dictionary_page} == {"hour", "price", "u"}
    assert columns["price"].physical_type == "INT32"
    assert all(column.has_offset_index and column.has_column_index for column in columns.values())
    assert [int(field.metadata[b"PARQUET:field_id"]) for field in parquet.schema_arrow] == [1, 2, 3, 4, 5]
    assert b"ARROW:schema" not in (parquet.metadata.metadata or {})
    assert "RLE" in columns["ok"].encodings
    assert columns["ok"].encodings[-1] == "PLAIN"


def test_incoming_types_become_the_table_s(tmp_path: Path) -> None:
    """Session time zones, small integers, nanoseconds without a rest and dictionaries fit; times are stored in us."""
    schema = schema_of(("at", TimestamptzType()), ("naive", TimestampType()), ("n", LongType()), ("s", StringType()))
    options = settings_of(tmp_path, schema)
    rows = pa.table(
        {
            "s": pa.array(["x", None]).dictionary_encode(),
            "at": pa.array([0, 1_000], pa.timestamp("ns", "Europe/Warsaw")),
            "naive": pa.array([1, None], pa.timestamp("ms")),
            "n": pa.array([1, -1], pa.int8()),
        }
    )
    (file,) = write_rows([rows], options, NAMES)
    stored = pq.read_table(file.path)
    assert stored.schema.field("at").type == pa.timestamp("us", "UTC")
    assert stored.schema.field("naive").type == pa.timestamp("us")
    assert stored.column("at").cast(pa.int64()).to_pylist() == [0, 1]
    assert stored.column("naive").cast(pa.int64()).to_pylist() == [1_000, None]
    assert (stored.column("n").to_pylist(), stored.column("s").to_pylist()) == ([1, -1], ["x", None])


REQUIRED = Schema(
    NestedField(1, "id", LongType(), True),
    NestedField(2, "s", StructType(NestedField(3, "x", IntegerType(), True)), False),
    NestedField(4, "l", ListType(5, LongType(), True), False),
    NestedField(6, "m", MapType(7, StringType(), 8, FloatType(), True), False),
    NestedField(9, "at", TimestamptzType(), False),
    NestedField(10, "u", UUIDType(), False),
    NestedField(11, "f", FloatType(), False),
)
XS = pa.list_(pa.int64())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"id": [1, None]}, "null into column 'id'"),
        ({"f": [1.0]}, "without column 'id'"),
        ({"id": [1], "extra": [1]}, "column 'extra': the table has no such column"),
        ({"id": ["1"]}, "column 'id': it is string, the table has int64"),
        ({"id": pa.array([2**63], pa.uint64())}, "column 'id': it does not fit int64"),
        ({"id": [1.5]}, "column 'id': it does not fit int64"),
        ({"id": [1], "s": [{"x": None}]}, "column 's': it has null in required field 'x'"),
        ({"id": [1], "s": [{"x": 2**31}]}, "column 's': it field 'x': does not fit int32"),
        ({"id": [1], "s": [{"y": 1}]}, "column 's': it lacks required field 'x'"),
        ({"id": [1], "s": [1]}, "column 's': it is int64, the table has struct"),
        ({"id": [1], "l": pa.array([[1, None]], XS)}, "column 'l': it has null in a list"),
        (
            {"id": [1], "m": pa.array([[("k", None)]], pa.map_(pa.string(), pa.float32()))},
            "column 'm': it has null in a map",
        ),
        ({"id": [1], "at": pa.array([1], pa.timestamp("us"))}, "column 'at': it is timestamp"),
        ({"id": [1], "at": pa.array([1], pa.timestamp("ns", "UTC"))}, "column 'at': it does not fit timestamp"),
        ({"id": [1], "u": ["not-a-uuid"]}, "column 'u': it does not fit extension<arrow.uuid>"),
        ({"id": [1], "f": [1e300]}, "column 'f': it does not fit float: a value is out of range"),
    ],
)
def test_rows_that_do_not_fit_are_refused_and_nothing_stays(tmp_path: Path, rows: dict[str, Any], message: str) -> None:
    """The error names the column and why; the files of earlier batches are removed."""
    options = settings_of(tmp_path, REQUIRED)
    good = pa.table({"id": list(range(2_000))})
    with pytest.raises(SchemaMismatch) as caught:
        write_into_small_buffer(options, [good, good, pa.table(rows)])
    assert message in str(caught.value)
    assert str(caught.value).startswith("Cannot write ")
    assert files_below(tmp_path) == []


def write_into_small_buffer(options: Any, tables: list[pa.Table]) -> None:
    """write_rows, spilling after each table."""
    writer = RowWriter(options, NAMES, max_buffer_bytes=1)
    with writer.all_or_none():
        try:
            for table in tables:
                writer.write(table)
            writer.close()
        finally:
            assert files_below(Path(options.table_location)) != []


def test_null_structs_with_required_fields_fit(tmp_path: Path) -> None:
    """A required field below a null struct is no null value."""
    options = settings_of(tmp_path, REQUIRED)
    rows = pa.table({"id": [1, 2], "s": [None, {"x": 1}]})
    (file,) = write_rows([rows], options, NAMES)
    assert pq.read_table(file.path).column("s").to_pylist() == [None, {"x": 1}]


def test_a_nested_list_without_any_offset_fits(tmp_path: Path) -> None:
    """The JVM sends no offsets of a list that no row has: what stands there is chance."""
    deep = ListType(2, ListType(3, IntegerType(), element_required=False), element_required=False)
    options = settings_of(tmp_path, schema_of(("id", LongType()), ("deep", deep)))
    inner = pa.list_(pa.int32())
    none = pa.Array.from_buffers(inner, 0, [None, pa.py_buffer(b"\xff" * 4)], children=[pa.array([], pa.int32())])
    outer = pa.ListArray.from_arrays(pa.array([None, None, 0], pa.int32()), none)
    (file,) = write_rows([pa.table({"id": [1, 2], "deep": outer})], options, NAMES)
    assert pq.read_table(file.path).column("deep").to_pylist() == [None, None]


def test_lists_of_structs_with_a_uuid_may_all_be_null(tmp_path: Path) -> None:
    """Arrow cannot flatten such a column; it is written all the same."""
    many = StructType(NestedField(3, "u", UUIDType()))
    schema = schema_of(("id", LongType()), ("many", ListType(4, many, element_required=False)))
    null = pa.nulls(2, pa.list_(pa.struct([("u", pa.uuid())])))
    (file,) = write_rows([pa.table({"id": [1, 2], "many": null})], settings_of(tmp_path, schema), NAMES)
    assert pq.read_table(local(file.path)).column("many").to_pylist() == [None, None]


def test_a_truncated_file_is_never_returned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When storage reports another size than was written the task fails and its files are removed."""
    options = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"))
    real = Storage.size
    monkeypatch.setattr(Storage, "size", lambda self, path: real(self, path) - ("hour=h2" in path))
    with pytest.raises(RewriteFailed, match=r"storage holds .* try again"):
        write_rows([events(100, 4)], options, NAMES)
    assert files_below(tmp_path) == []


def test_remote_storage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where files are finished by several threads the result is the same, and an error still removes all of them."""
    options = replace(settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity")), io_properties=REMOTE)
    rows = events(1_000, 50)
    files = write_rows([rows], options, NAMES)
    assert sorted(i for file in files for i in ids(file.path)) == list(range(1_000))
    assert [file.partition.values[0] for file in files] == [f"h{i}" for i in range(50)]
    before = files_below(tmp_path)
    assert len(before) == 50
    real = Storage.size
    monkeypatch.setattr(Storage, "size", lambda self, path: real(self, path) - ("hour=h20" in path))
    with pytest.raises(RewriteFailed, match="storage holds"):
        write_rows([rows], options, NAMES)
    assert files_below(tmp_path) == before


def test_an_error_of_the_source_removes_open_and_finished_files(tmp_path: Path) -> None:
    """An upstream failure between batches leaves no file behind and is raised as it is."""
    options = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"))

    def batches() -> Any:
        yield from events(4_000, 3).to_batches(max_chunksize=500)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_rows(batches(), options, NAMES)
    assert files_below(tmp_path) == []


def test_pyiceberg_reads_what_was_written(tmp_path: Path) -> None:
    """Committed files read back through PyIceberg's scan, with filters on bounds, as the rows that went in."""
    catalog = catalog_in(tmp_path)
    table = catalog.create_table("db.t", EVENTS, partition_spec=spec_of(EVENTS, hour="identity"))
    options = settings_of(table.location(), table.schema(), table.spec())
    rows = events(500, 5)
    append(table, write_rows([rows], options, NAMES))
    found = table.scan().to_arrow().sort_by("id")
    assert found.to_pylist() == rows.to_pylist()
    assert table.scan("id >= 498 and hour = 'h3'").to_arrow().column("id").to_pylist() == [498]
    assert len(list(table.scan("id = 499").plan_files())) == 1


NESTED = Schema(
    NestedField(1, "id", LongType(), False),
    NestedField(
        2, "s", StructType(NestedField(3, "x", DoubleType(), False), NestedField(4, "t", StringType(), False)), False
    ),
    NestedField(5, "l", ListType(6, StructType(NestedField(7, "y", FloatType(), False)), False), False),
    NestedField(
        8, "m", MapType(9, StringType(), 10, StructType(NestedField(11, "z", LongType(), False)), False), False
    ),
    NestedField(12, "ll", ListType(13, ListType(14, TimestamptzType(), False), False), False),
)
_FLOATS = st.none() | st.floats(width=32, allow_nan=False)
_ROW = st.fixed_dictionaries(
    {
        "id": st.none() | st.integers(-(2**63), 2**63 - 1),
        "s": st.none() | st.fixed_dictionaries({"x": _FLOATS, "t": st.none() | st.text(max_size=3)}),
        "l": st.none() | st.lists(st.none() | st.fixed_dictionaries({"y": _FLOATS}), max_size=3),
        "m": st.none()
        | st.dictionaries(
            st.text(max_size=2), st.none() | st.fixed_dictionaries({"z": st.none() | st.integers(0, 9)}), max_size=2
        ).map(lambda d: list(d.items())),
        "ll": st.none()
        | st.lists(
            st.none()
            | st.lists(st.none() | st.datetimes(dt.datetime(1, 1, 2), timezones=st.just(dt.timezone.utc)), max_size=2),
            max_size=2,
        ),
    }
)


@examples(40)
@given(rows=st.lists(_ROW, min_size=1, max_size=6), cut=st.integers(0, 5))
def test_nested_rows_survive_with_every_null(tmp_path: Path, rows: list[dict[str, Any]], cut: int) -> None:
    """NULL, empty and filled structs, lists and maps come back as they went in, also from sliced batches."""
    options = settings_of(tmp_path, NESTED)
    table = pa.Table.from_pylist(rows, schema=options.arrow_schema).slice(min(cut, len(rows) - 1))
    (file,) = write_rows([table], options, NAMES)
    stored = pq.read_table(file.path)
    assert stored.to_pylist() == table.to_pylist()


def test_dictionaries_are_judged_by_all_rows_and_not_by_a_sample(tmp_path: Path) -> None:
    """30,000 values drawn 200,000 times look unique in a few thousand rows, yet a dictionary pays; ids get none."""
    numbers = [i * 7_919 % 30_011 for i in range(200_000)]
    schema = schema_of(
        ("id", LongType()), ("user", LongType()), ("half", LongType()), ("l", ListType(9, StringType(), False))
    )
    rows = pa.table(
        {
            "id": range(200_000),
            "user": numbers,
            "half": [i // 2 for i in range(200_000)],
            "l": [["a", "b"], None] * 100_000,
        }
    )
    (file,) = write_rows([rows], settings_of(tmp_path, schema), NAMES)
    group = pq.read_metadata(file.path).row_group(0)
    columns = [group.column(i) for i in range(4)]
    assert {c.path_in_schema for c in columns if c.has_dictionary_page} == {"user", "l.list.element"}


def test_names_tell_their_writers() -> None:
    """The task is read from a file's name; a name that was given by somebody else tells none."""
    assert writer_of(f"s3://lake/events/data/hour=h-1/{NAMES.next()}") == 3
    assert [writer_of(p) for p in ("a/2024-01-x.parquet", f"{uuid.uuid4()}.parquet", "")] == [None] * 3
