"""Reading older files as the current schema: by field id, by name mapping, with every NULL."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
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

from icesize.errors import RewriteFailed
from icesize.parquet.files.properties import ARROW_VERSION
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.thrift import i32
from icesize.parquet.reading.inputs import read_inputs
from icesize.parquet.reading.projection import ColumnAligner
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.examples import examples
from tests.support.footers import edited
from tests.support.parquet_files import (
    NAMES,
    catalog_in,
    foreign_file,
    local,
    schema_of,
    settings_of,
    spec_of,
    with_limits,
    write_one,
)

UNPARTITIONED = PartitionKey(0)


def read(options: WriteSettings, path: Path | str, partition: PartitionKey = UNPARTITIONED) -> pa.Table:
    """All rows of a file as the table's current schema."""
    tables = tables_of(options, Path(path), partition)
    assert all(table.schema.equals(options.arrow_schema, check_metadata=True) for table in tables)
    return pa.concat_tables(tables)


def tables_of(options: WriteSettings, path: Path, partition: PartitionKey = UNPARTITIONED) -> list[pa.Table]:
    """The tables as which a file is read, whose footer is whole if anything of it is."""
    try:
        rows = pq.read_metadata(path).num_rows
    except (pa.ArrowException, OSError):
        rows = 0
    file = FileFact(str(path), path.stat().st_size, rows, partition)
    return list(read_inputs(MergeTask((file,), partition), options))


def settings_for(table: Table) -> WriteSettings:
    """Settings for a table's state now."""
    return WriteSettings.of(table.metadata, {}, 2**29)


EVOLVING = Schema(
    NestedField(1, "i", IntegerType(), False),
    NestedField(2, "f", FloatType(), False),
    NestedField(3, "d", DecimalType(9, 2), False),
    NestedField(4, "old", StringType(), False),
    NestedField(5, "gone", StringType(), False),
    NestedField(
        6, "s", StructType(NestedField(7, "x", IntegerType(), False), NestedField(8, "y", StringType(), False)), False
    ),
    NestedField(9, "l", ListType(10, StructType(NestedField(11, "p", IntegerType(), False)), False), False),
    NestedField(
        12, "m", MapType(13, StringType(), 14, StructType(NestedField(15, "q", FloatType(), False)), False), False
    ),
)


def test_an_evolved_table_reads_its_first_file(tmp_path: Path) -> None:
    """Widened, renamed, added, dropped, re-added and moved fields, at the top and in structs, lists and maps."""
    table = catalog_in(tmp_path).create_table("db.t", EVOLVING)
    before = settings_for(table)
    rows = pa.Table.from_pylist(
        [
            {"i": 1, "f": 0.5, "d": Decimal("1.25"), "old": "o", "gone": "g", "s": {"x": 7, "y": "y"}},
            {"i": -1, "l": [{"p": 1}, None], "m": [("k", {"q": 0.25}), ("n", None)], "s": {"x": None, "y": None}},
            {"l": [], "m": []},
        ],
        schema=before.arrow_schema,
    )
    file = write_one(before, rows)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.update_column("i", LongType())
        update.update_column("f", DoubleType())
        update.update_column("d", DecimalType(12, 2))
        update.rename_column("old", "new")
        update.delete_column("gone")
        update.add_column("added", DateType())
        update.update_column(("s", "x"), LongType())
        update.rename_column(("s", "y"), "z")
        update.add_column(("s", "w"), StringType())
        update.update_column(("l", "element", "p"), LongType())
        update.add_column(("l", "element", "p2"), StringType())
        update.rename_column(("m", "value", "q"), "r")
        update.update_column(("m", "value", "q"), DoubleType())
    with table.update_schema() as update:
        update.add_column("gone", LongType())
        update.move_first("new")

    found = read(settings_for(table), local(file.path))

    assert found.column_names[0] == "new"
    assert found.to_pylist() == [
        {
            "new": "o", "i": 1, "f": 0.5, "d": Decimal("1.25"), "s": {"x": 7, "z": "y", "w": None},
            "l": None, "m": None, "added": None, "gone": None,
        },
        {
            "new": None, "i": -1, "f": None, "d": None, "s": {"x": None, "z": None, "w": None},
            "l": [{"p": 1, "p2": None}, None], "m": [("k", {"r": 0.25}), ("n", None)], "added": None, "gone": None,
        },
        {
            "new": None, "i": None, "f": None, "d": None, "s": None, "l": [], "m": [], "added": None, "gone": None,
        },
    ]  # fmt: skip


_STRUCT = st.none() | st.fixed_dictionaries({"x": st.none() | st.integers(-9, 9)})
_ROWS = st.lists(
    st.fixed_dictionaries(
        {
            "l": st.none() | st.lists(_STRUCT, max_size=3),
            "m": st.none() | st.dictionaries(st.text(max_size=2), _STRUCT, max_size=2).map(lambda d: list(d.items())),
            "s": st.none() | st.fixed_dictionaries({"in": st.none() | st.lists(_STRUCT, max_size=2)}),
        }
    ),
    max_size=8,
)


def _nested(kind: Any, *more: NestedField) -> Schema:
    def inner(field_id: int) -> StructType:
        return StructType(NestedField(field_id, "x", kind, False))

    return Schema(
        NestedField(1, "l", ListType(4, inner(8), False), False),
        NestedField(2, "m", MapType(5, StringType(), 6, inner(9), False), False),
        NestedField(3, "s", StructType(NestedField(7, "in", ListType(10, inner(11), False), False)), False),
        *more,
    )


@examples(60)
@given(rows=_ROWS, evolve=st.booleans())
def test_null_lists_and_maps_of_structs_stay_null(tmp_path: Path, rows: list[dict[str, Any]], evolve: bool) -> None:
    """NULL never becomes empty nor the reverse, with and without a cast inside (PyIceberg's own reader loses these)."""
    before = settings_of(tmp_path, _nested(IntegerType()))
    after = settings_of(tmp_path, _nested(LongType() if evolve else IntegerType()))
    table = pa.Table.from_pylist(rows, schema=before.arrow_schema)
    path = foreign_file(tmp_path, table)
    assert read(after, path).to_pylist() == rows


MAPPING = """[{"field-id": 1, "names": ["id", "ident"]},
 {"field-id": 2, "names": ["s"], "fields": [{"field-id": 3, "names": ["x"]}]}]"""


def test_files_without_ids_are_read_through_the_name_mapping(tmp_path: Path) -> None:
    """Aliases count, unmapped columns are not read, nested names are mapped too."""
    schema = Schema(
        NestedField(1, "id", LongType(), False),
        NestedField(2, "s", StructType(NestedField(3, "renamed", LongType(), False)), False),
    )
    options = settings_of(tmp_path, schema, properties={"schema.name-mapping.default": MAPPING})
    path = foreign_file(
        tmp_path, pa.table({"other": ["o"], "s": [{"x": 4, "z": 1}], "ident": pa.array([3], pa.int32())})
    )
    assert read(options, path).to_pylist() == [{"id": 3, "s": {"renamed": 4}}]


def test_files_without_ids_or_mapping_are_refused(tmp_path: Path) -> None:
    """Without ids and mapping every column would silently be NULL."""
    options = settings_of(tmp_path, schema_of(("id", LongType())))
    path = foreign_file(tmp_path, pa.table({"id": [1]}))
    with pytest.raises(
        RewriteFailed, match=r"no field ids and the table has no 'schema\.name-mapping\.default'"
    ) as caught:
        read(options, path)
    assert caught.value.path == str(path)


_POINT = pa.struct([("x", pa.float64()), ("y", pa.string())])
_LISTS = {
    "list": pa.list_,
    "large list": pa.large_list,
    "of a fixed size": lambda kind: pa.list_(kind, 2),
    "view": pa.list_view,
    "large view": pa.large_list_view,
}


def _mapped(folder: Path, schema: Schema) -> WriteSettings:
    """Settings of a table whose name mapping has all of its columns."""
    mapping = assign_fresh_schema_ids(schema).name_mapping.model_dump_json()
    return settings_of(folder, schema, properties={"schema.name-mapping.default": mapping})


def _point(first_id: int) -> StructType:
    return StructType(
        NestedField(first_id, "x", DoubleType(), False), NestedField(first_id + 1, "y", StringType(), False)
    )


@pytest.mark.parametrize("lists", _LISTS)
@pytest.mark.parametrize("batch", [{}, {"whole_file_bytes": 0, "batch_bytes": 1}])
def test_lists_of_all_kinds_keep_the_values_below_them(tmp_path: Path, lists: str, batch: dict[str, int]) -> None:
    """Structs in any list that an Arrow schema in a file asks for, in a map, too, with ids and without, batch by
    batch, and behind a NULL."""
    schema = Schema(
        NestedField(1, "line", ListType(2, _point(3), False), False),
        NestedField(5, "lines", MapType(6, StringType(), 7, ListType(8, _point(9), False), False), False),
    )
    options = with_limits(_mapped(tmp_path, schema), **batch)
    kind = _LISTS[lists](_POINT)
    line = [[{"x": 1.0, "y": "a"}, None], None, [{"x": 3.0, "y": None}, {"x": 4.0, "y": "d"}]]
    lines = pa.array([[("k", some)] for some in line], pa.map_(pa.string(), kind))
    rows = pa.table({"line": pa.array(line, kind), "lines": lines})
    assert pq.read_schema(foreign_file(tmp_path, rows)).field("line").type.id == kind.id
    assert read(options, foreign_file(tmp_path, rows)).to_pylist() == rows.to_pylist()


@pytest.mark.parametrize("lists", ["of a fixed size", "view", "large view"])
def test_lists_of_new_rows_keep_what_follows_a_null(tmp_path: Path, lists: str) -> None:
    """pyarrow's own cast of views loses it; slices are right, too."""
    options = settings_of(tmp_path, Schema(NestedField(1, "line", ListType(2, _point(3), False), False)))
    line = [None, [{"x": 1.0, "y": "a"}, {"x": 2.0, "y": "b"}], None, [{"x": 3.0, "y": None}, {"x": 4.0, "y": "d"}]]
    rows = pa.table({"line": pa.array(line, _LISTS[lists](_POINT))})
    assert ColumnAligner(options)(rows).column("line").to_pylist() == line
    assert ColumnAligner(options)(rows.slice(2)).column("line").to_pylist() == line[2:]
    assert ColumnAligner(options)(rows.slice(4)).num_rows == 0


@pytest.mark.parametrize(
    ("stored", "wanted", "why"),
    [
        ([("id", 1, pa.int64()), ("v", 2, _POINT)], "x", "column 'v' field 'x' may be 'x' of the file"),
        ([("id", 1, pa.int64()), ("v", None, _POINT)], "x", "column 'v' may be 'v' of the file"),
        ([("id", 1, pa.int64()), ("old", None, _POINT)], "x", "column 'v' may be 'old' of the file"),
        ([("id", 1, pa.int64()), ("v", 2, pa.list_(_POINT, 1))], "l", "column 'v' field 'element': field 'x' may be"),
        ([("id", 1, pa.int64()), ("v", 2, pa.map_(pa.string(), _POINT))], "m", "column 'v' field 'value': field 'x'"),
    ],
)
def test_files_with_ids_on_some_fields_only_are_refused(
    tmp_path: Path, stored: list[tuple[str, int | None, pa.DataType]], wanted: str, why: str
) -> None:
    """A field without an id may be any that the file seems to lack, so no value of it becomes NULL silently."""
    point = _point(3)
    kinds = {"x": point, "l": ListType(5, point, False), "m": MapType(5, StringType(), 6, point, False)}
    schema = Schema(NestedField(1, "id", LongType(), False), NestedField(2, "v", kinds[wanted], False))
    options = _mapped(tmp_path, schema)
    fields = [
        pa.field(name, kind, metadata={} if field_id is None else {"PARQUET:field_id": str(field_id)})
        for name, field_id, kind in stored
    ]
    path = foreign_file(tmp_path, pa.table([pa.nulls(2, f.type) for f in fields], schema=pa.schema(fields)))
    with pytest.raises(RewriteFailed, match=why) as caught:
        read(options, path)
    assert caught.value.path == str(path)


def test_a_column_without_an_id_that_the_table_has_not_is_not_read(tmp_path: Path) -> None:
    """It cannot be any of the table's columns when the file has all of them."""
    options = settings_of(tmp_path, schema_of(("id", LongType())))
    schema = pa.schema([pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}), pa.field("more", pa.int64())])
    assert read(options, foreign_file(tmp_path, pa.table([[1], [2]], schema=schema))).to_pylist() == [{"id": 1}]


@pytest.mark.parametrize(
    ("kind", "extra"),
    [(StringType(), pa.int64()), (LongType(), _POINT), (_point(3), pa.list_(pa.int64())), (UUIDType(), pa.int64())],
)
def test_a_column_without_an_id_is_no_missing_column_of_another_kind(
    tmp_path: Path, kind: IcebergType, extra: pa.DataType
) -> None:
    """The table's newer column is NULL although the file has a column without an id, such as a pandas index."""
    options = settings_of(tmp_path, schema_of(("id", LongType()), ("new", kind)))
    fields = [pa.field("id", pa.int64(), metadata={"PARQUET:field_id": "1"}), pa.field("__index_level_0__", extra)]
    path = foreign_file(tmp_path, pa.table([pa.array([1]), pa.nulls(1, extra)], schema=pa.schema(fields)))
    assert read(options, path).to_pylist() == [{"id": 1, "new": None}]


@pytest.mark.parametrize("mapped", [True, False])
def test_a_column_without_an_id_is_no_source_of_the_partition(tmp_path: Path, mapped: bool) -> None:
    """The partition has the value of the column that the file lacks, so no value of the file can be meant."""
    schema = schema_of(("id", LongType()), ("kind", LongType()))
    options = settings_of(
        tmp_path,
        schema,
        spec_of(schema, kind="identity"),
        {"schema.name-mapping.default": '[{"field-id": 1, "names": ["id"]}]'},
    )
    ids = {} if mapped else {"PARQUET:field_id": "1"}
    stored = pa.schema([pa.field("id", pa.int64(), metadata=ids), pa.field("kind", pa.int64())])
    path = foreign_file(tmp_path, pa.table([[1], [2]], schema=stored))
    assert read(options, path, PartitionKey(0, (7,))).to_pylist() == [{"id": 1, "kind": 7}]
    with pytest.raises(RewriteFailed, match="column 'kind' may be 'kind' of the file"):
        read(settings_of(tmp_path, schema, properties=options.properties), path)


def test_a_column_that_the_name_mapping_lacks_is_not_null(tmp_path: Path) -> None:
    """The file has a column of that name, which the mapping does not give to the table's."""
    mapping = '[{"field-id": 1, "names": ["id"]}]'
    options = settings_of(
        tmp_path,
        schema_of(("id", LongType()), ("text", StringType())),
        properties={"schema.name-mapping.default": mapping},
    )
    assert read(options, foreign_file(tmp_path, pa.table({"id": [1], "note": ["n"]}))).to_pylist() == [
        {"id": 1, "text": None}
    ]
    with pytest.raises(RewriteFailed, match="column 'text' may be 'text' of the file, for which there is no field id"):
        read(options, foreign_file(tmp_path, pa.table({"id": [1], "text": ["t"]})))


def test_lists_behind_an_extension_type_are_refused(tmp_path: Path) -> None:
    """Such a type may mean more than the lists that it is stored as."""
    schema = Schema(NestedField(1, "t", ListType(2, FloatType(), False), False))
    options = _mapped(tmp_path, schema)
    tensors = pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2))
    kind = pa.fixed_shape_tensor(pa.float32(), (2,))
    path = foreign_file(tmp_path, pa.table({"t": pa.ExtensionArray.from_storage(kind, tensors)}))
    with pytest.raises(RewriteFailed, match=r"column 't' is extension<arrow\.fixed_shape_tensor"):
        read(options, path)


def test_identity_sources_missing_in_imported_files_come_from_the_partition(tmp_path: Path) -> None:
    """Files imported from Hive do not store partition columns: their rows have the partition's values, not NULL."""
    schema = schema_of(("id", LongType()), ("day", DateType()), ("at", TimestamptzType()), ("u", UUIDType()))
    spec = spec_of(schema, day="identity", at="identity", u="identity")
    mapping = '[{"field-id": 1, "names": ["id"]}]'
    options = settings_of(tmp_path, schema, spec, {"schema.name-mapping.default": mapping})
    path = foreign_file(tmp_path, pa.table({"id": [1, 2]}))
    ((partition, _),) = [(f.partition, f) for f in write_rows([_one_row()], options, NAMES)]
    found = read(options, path, partition)
    assert found.column("day").to_pylist() == [dt.date(1969, 12, 31)] * 2
    assert found.column("at").cast(pa.int64()).to_pylist() == [-1] * 2
    assert [v.hex for v in found.column("u").to_pylist()] == ["0" * 31 + "7"] * 2


def _one_row() -> pa.Table:
    return pa.table(
        {
            "id": [1],
            "day": [dt.date(1969, 12, 31)],
            "at": pa.array([-1], pa.timestamp("us", "UTC")),
            "u": ["00000000-0000-0000-0000-000000000007"],
        }
    )


def _with_id(name: str, kind: pa.DataType, field_id: int = 1) -> pa.Schema:
    return pa.schema([pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})])


@pytest.mark.parametrize("column", [TimestampType(), TimestamptzType()])
@pytest.mark.parametrize(
    ("stored", "options"),
    [
        (pa.timestamp("us"), {}),
        (pa.timestamp("us", "Europe/Warsaw"), {}),
        (pa.timestamp("us"), {"use_deprecated_int96_timestamps": True}),
        (pa.timestamp("us", "UTC"), {"use_deprecated_int96_timestamps": True}),
    ],
)
def test_timestamps_of_other_writers_keep_their_instant(
    tmp_path: Path, column: Any, stored: pa.DataType, options: dict[str, Any]
) -> None:
    """INT96, other zones and zone flags change nothing about the stored microseconds, far years included."""
    settings_ = settings_of(tmp_path, schema_of(("t", column)))
    micros = [-1, 1_767_225_600_123_456, 64_000_000_000_000_000]
    table = pa.table([pa.array(micros, pa.int64()).view(stored)], schema=_with_id("t", stored))
    path = foreign_file(tmp_path, table, **options)
    if options and ARROW_VERSION < 23:  # it reads the first one as 2554
        with pytest.raises(RewriteFailed, match="misreads such times before 1970"):
            read(settings_, path)
        return
    assert read(settings_, path).column("t").cast(pa.int64()).to_pylist() == micros


@pytest.mark.parametrize(
    ("column", "stored", "value", "expected"),
    [
        (LongType(), pa.int16(), 5, 5),
        (DecimalType(20, 3), pa.decimal256(9, 2), Decimal("1.25"), Decimal("1.250")),
        (StringType(), pa.binary(), b"text", "text"),
        (StringType(), pa.dictionary(pa.int32(), pa.string()), "text", "text"),
        (TimestampType(), pa.timestamp("ns"), 1_000, dt.datetime(1970, 1, 1, 0, 0, 0, 1)),
    ],
)
def test_stored_types_of_other_writers(
    tmp_path: Path, column: Any, stored: pa.DataType, value: Any, expected: Any
) -> None:
    """Narrow integers, wide decimals, unannotated text, dictionaries and nanoseconds become the column's type."""
    options = settings_of(tmp_path, schema_of(("v", column)))
    table = pa.table([pa.array([value, None], stored)], schema=_with_id("v", stored))
    assert read(options, foreign_file(tmp_path, table)).column("v").to_pylist() == [expected, None]


def test_values_that_do_not_fit_fail_the_file(tmp_path: Path) -> None:
    """A file whose type cannot become the column's is named, with column and reason."""
    options = settings_of(tmp_path, schema_of(("v", LongType())))
    path = foreign_file(tmp_path, pa.table([pa.array(["x"])], schema=_with_id("v", pa.string())))
    with pytest.raises(RewriteFailed, match="column 'v' is string, the table has int64") as caught:
        read(options, path)
    assert caught.value.path == str(path)


def test_fixed_values_of_another_length_fail_the_file_before_they_are_read(tmp_path: Path) -> None:
    """A damaged length of 2 GiB would be taken from the system once for each row."""
    options = settings_of(tmp_path, schema_of(("v", FixedType(4))))
    path = foreign_file(tmp_path, pa.table([pa.array([b"abcd"] * 9, pa.binary(4))], schema=_with_id("v", pa.binary(4))))
    assert read(options, path).num_rows == 9
    path.write_bytes(edited(path.read_bytes(), lambda tree: tree.schema[1].update({2: i32(2**31 - 1)})))
    with pytest.raises(RewriteFailed, match=r"column 'v' is fixed_size_binary\[2147483647\]") as caught:
        read(options, path)
    assert caught.value.path == str(path)


def test_a_required_column_that_is_not_in_the_file_fails_it(tmp_path: Path) -> None:
    """There is no value to give to its rows."""
    schema = Schema(NestedField(1, "a", LongType(), False), NestedField(2, "b", LongType(), True))
    options = settings_of(tmp_path, schema)
    path = foreign_file(tmp_path, pa.table([pa.array([1])], schema=_with_id("a", pa.int64())))
    with pytest.raises(RewriteFailed, match="column 'b' is required and not in the file"):
        read(options, path)


@pytest.mark.parametrize(("gone", "kept"), [(pa.int64(), "a"), (pa.struct([("b", pa.int64())]), "a.b")])
def test_a_dropped_column_is_not_read_for_one_that_is_called_like_it(
    tmp_path: Path, gone: pa.DataType, kept: str
) -> None:
    """Columns that stay have their own values, also where pyarrow reads the other one along with them."""
    options = settings_of(tmp_path, schema_of((kept, LongType()), ("c", LongType())))
    ids = {"PARQUET:field_id": "3"}, {"PARQUET:field_id": "1"}, {"PARQUET:field_id": "2"}
    fields = [pa.field("a", gone), pa.field(kept, pa.int64()), pa.field("c", pa.int64())]
    schema = pa.schema([field.with_metadata(each) for field, each in zip(fields, ids, strict=True)])
    path = foreign_file(tmp_path, pa.Table.from_arrays([pa.nulls(1, gone), [1], [2]], schema=schema))
    assert read(options, path).to_pylist() == [{kept: 1, "c": 2}]


def test_null_in_a_required_column_fails_the_file(tmp_path: Path) -> None:
    """It is named before anything of it is written."""
    options = settings_of(tmp_path, schema_of(("a", LongType(), True)))
    path = foreign_file(tmp_path, pa.table([pa.array([1, None])], schema=_with_id("a", pa.int64())))
    with pytest.raises(RewriteFailed, match="column 'a' is required and has null") as caught:
        read(options, path)
    assert caught.value.path == str(path)


def test_large_files_are_read_in_batches(tmp_path: Path) -> None:
    """Above the size that is read at once no table has more rows than a batch, whatever the row groups are."""
    options = settings_of(tmp_path, schema_of(("id", LongType()), ("gone", StringType())))
    ids = list(range(2_000))
    path = foreign_file(
        tmp_path, pa.table({"id": ids, "gone": ["g"] * 2_000}).cast(options.arrow_schema), row_group_size=1_000
    )
    later = with_limits(
        settings_of(tmp_path, schema_of(("id", LongType()))), whole_file_bytes=1_000, batch_bytes=2_400, decoded_bytes=1
    )
    tables = tables_of(later, path)
    assert max(table.num_rows for table in tables) <= 300
    assert [i for table in tables for i in table.column("id").to_pylist()] == ids


@pytest.mark.parametrize("limits", [{}, {"whole_file_bytes": 1}, {"whole_file_bytes": 1, "batch_bytes": 1}])
def test_only_current_columns_are_read(tmp_path: Path, limits: dict[str, int]) -> None:
    """A dropped column may even be damaged: its bytes are not touched, whether files are read at once or in batches."""
    both = schema_of(("id", LongType()), ("gone", StringType()))
    options = settings_of(tmp_path, both, properties={"write.parquet.compression-codec": "zstd"})
    file = write_one(options, pa.table({"id": [1, 2], "gone": ["abc" * 50, "abd" * 50]}))
    chunk = pq.read_metadata(file.path).row_group(0).column(1)
    damaged = bytearray(Path(file.path).read_bytes())
    start = chunk.data_page_offset
    damaged[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    Path(file.path).write_bytes(damaged)
    later = with_limits(settings_of(tmp_path, schema_of(("id", LongType()))), **limits)
    options = with_limits(options, **limits)
    assert read(later, file.path).column("id").to_pylist() == [1, 2]
    with pytest.raises(RewriteFailed, match=r"Cannot read .*check that the file exists and is whole"):
        read(options, file.path)


def test_a_void_or_transformed_partition_gives_no_constants(tmp_path: Path) -> None:
    """Only identity fields hold their source's value; a bucket number must not become a column value."""
    schema = schema_of(("id", LongType()), ("k", LongType()))
    spec = PartitionSpec(
        PartitionField(2, 1000, spec_of(schema, k="bucket[4]").fields[0].transform, "b"),
        PartitionField(1, 1001, IdentityTransform(), "id"),
        spec_id=0,
    )
    mapping = '[{"field-id": 9, "names": ["other"]}]'
    options = settings_of(tmp_path, schema, spec, {"schema.name-mapping.default": mapping})
    path = foreign_file(tmp_path, pa.table({"other": [1]}))
    assert read(options, path, PartitionKey(0, (3, 77))).to_pylist() == [{"id": 77, "k": None}]
