"""Files are copied if their footers are trusted, and together if all of them mean the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from icesize.parquet.format.footer import Footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.statistics import is_trusted
from icesize.parquet.format.thrift import (
    BOOLEAN_TRUE,
    BYTE,
    STRUCT,
    Fields,
    bytes_field,
    i32,
    read_struct,
    struct_field,
    structs_field,
    write_struct,
)
from icesize.parquet.row_groups.compatibility import check_file, check_together
from tests.support.footers import Tree, edited, footer_of, inject, make_file, sample

_FILE = make_file()


_SCHEMA = pa.schema([("a", pa.int32()), ("b", pa.string()), pa.field("c", pa.decimal128(9, 2))])


def _file(schema: pa.Schema = _SCHEMA, rows: int = 1, **options: object) -> Footer:
    return footer_of(make_file(pa.table([pa.array([None] * rows, f.type) for f in schema], schema=schema), **options))


def _keys(**pairs: bytes | None) -> Callable[[Tree], None]:
    """Metadata with dots written as underscores."""
    structs: list[Fields] = []
    for key, value in pairs.items():
        structs.append({1: bytes_field(key.replace("_", ".").encode())})
        if value is not None:
            structs[-1][2] = bytes_field(value)
    return lambda tree: tree.file.update({5: structs_field(structs)})


def _by(name: str) -> Callable[[Tree], None]:
    return lambda tree: tree.file.update({6: bytes_field(name.encode())})


def _orders(tree: Tree) -> None:
    inject(tree.file, below=7)


def _refusal(function: Callable[[], None]) -> Refusal | None:
    try:
        function()
    except CopyRefused as refused:
        return refused.code
    return None


def test_files_of_pyarrow_are_copied() -> None:
    """Nothing is wrong with a file of any column type that Iceberg has."""
    assert _refusal(lambda: check_file(footer_of(_FILE))) is None


def test_int96_is_refused() -> None:
    """Timestamps of 96 bits have no order and no meaning in Iceberg."""
    footer = footer_of(make_file(sample().select(["at"]), use_deprecated_int96_timestamps=True))
    assert _refusal(lambda: check_file(footer)) == Refusal.INT96


@pytest.mark.parametrize("field_id", [2147483540, 2147483539])
def test_row_lineage_is_refused(field_id: int) -> None:
    """Ids of rows that stand in columns are those of the file that they are in."""
    footer = footer_of(edited(_FILE, lambda tree: tree.schema[1].update({9: i32(field_id)})))
    assert _refusal(lambda: check_file(footer)) == Refusal.ROW_LINEAGE


@pytest.mark.parametrize(
    ("edit", "code"),
    [
        (_keys(org_apache_spark_legacyDateTime=b""), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_legacyINT96=None), Refusal.LEGACY_VALUES),
        (_keys(**{"delete-type": b"position"}), Refusal.LEGACY_VALUES),
        (_keys(**{"delete-field-ids": b"1"}), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"2.4.8"), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"other"), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"9" * 5_000), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=None), Refusal.LEGACY_VALUES),
        (_keys(org_apache_spark_version=b"3.0.0"), None),
        (_keys(org_apache_spark_version=b"4.1.1"), None),
        (_keys(org_apache_spark_version=b"10.0"), None),
        (_keys(org_apache_spark_sql_parquet_row_metadata=b"{}", iceberg_schema=b"{}"), None),
    ],
)
def test_keys_that_change_what_values_mean_are_refused(edit: Callable[[Tree], None], code: Refusal | None) -> None:
    """Old calendars and files of deletes; other metadata are no obstacle."""
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, edit)))) == code


@pytest.mark.parametrize(
    "created_by",
    [
        "parquet-mr version 1.10.0 (build 031a6654009e3b82020012a18434c582bd74c73a)",
        "parquet-mr version 1.17.1 (build 0)",
        "parquet-cpp-arrow version 4.0.0",
        "parquet-cpp-arrow version 26.0.1-SNAPSHOT",
        "parquet-rs version 4.0.0",
        "DuckDB version v1.0.0 (build 1f98600c2c)",
        "DuckDB version 2.0",
        "icesize version 0.1.0 (build copy)",
    ],
)
def test_known_writers_are_trusted(created_by: str) -> None:
    """The writers of Spark, Iceberg, pyarrow and DuckDB, from the first version with right statistics on."""
    assert is_trusted(created_by)


@pytest.mark.parametrize(
    "created_by",
    [
        "",
        "parquet-mr",
        "parquet-mr version 1.9.9",
        "parquet-mr version 1",
        "parquet-cpp-arrow version 3.9.9",
        "parquet-cpp version 26.0.0",
        "parquet-rs version 3.0.0",
        "DuckDB version v0.10.3",
        "Polars (python) version 2.1.0",
        "impala version 4.0.0",
        "not parquet-mr version 1.17.1",
        " parquet-mr version 1.17.1",
        "parquet-mr version 1.17".replace("1", "\N{ARABIC-INDIC DIGIT ONE}"),
        "parquet-mr version " + "9" * 5_000 + ".0.0",
        "parquet-mr " + " " * 10**6,
        "x" * 10**6,
    ],
    ids=lambda name: name[:30],
)
def test_unknown_and_old_writers_are_not_trusted(created_by: str) -> None:
    """A file that gets another name would have its statistics believed; names of any length are looked at at once."""
    assert not is_trusted(created_by)
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, _by(created_by))))) == Refusal.CREATED_BY


def test_a_file_without_writer_is_not_trusted() -> None:
    """`created_by` is optional in the format, not here."""
    footer = footer_of(edited(_FILE, lambda tree: tree.file.pop(6)))
    assert _refusal(lambda: check_file(footer)) == Refusal.CREATED_BY


def test_orders_of_columns_are_those_of_their_types_or_unsaid() -> None:
    """An order that this version does not know is refused; so are files that say it and files that do not together."""
    known, without = footer_of(_FILE), footer_of(edited(_FILE, lambda tree: tree.file.pop(7)))
    assert _refusal(lambda: check_file(footer_of(edited(_FILE, _orders)))) == Refusal.COLUMN_ORDERS
    assert [_refusal(partial(check_file, f)) for f in (known, without)] == [None, None]
    assert _refusal(lambda: check_together([without, without])) is None
    assert _refusal(lambda: check_together([known, without])) == Refusal.COLUMN_ORDERS


def _changed(number: int, field: pa.Field) -> pa.Schema:
    return _SCHEMA.set(number, field)


_ID = {"PARQUET:field_id": "7"}


@pytest.mark.parametrize(
    "other",
    [
        pa.schema([_SCHEMA.field(1), _SCHEMA.field(0), _SCHEMA.field(2)]),
        _SCHEMA.remove(2),
        _SCHEMA.append(pa.field("d", pa.int32())),
        _changed(0, pa.field("a", pa.int64())),
        _changed(0, pa.field("a", pa.uint32())),
        _changed(0, pa.field("a", pa.date32())),
        _changed(0, pa.field("A", pa.int32())),
        _changed(0, pa.field("a", pa.int32(), metadata=_ID)),
        _changed(0, pa.field("a", pa.list_(pa.int32()))),
        _changed(1, pa.field("b", pa.binary())),
        _changed(2, pa.field("c", pa.decimal128(9, 3))),
        _changed(2, pa.field("c", pa.decimal128(8, 2))),
        _changed(2, pa.field("c", pa.binary(4))),
    ],
    ids=[
        "order", "missing", "more", "long", "unsigned", "date", "renamed", "field id", "list", "binary", "scale",
        "precision", "fixed",
    ],
)  # fmt: skip
def test_files_of_other_schemas_are_not_put_together(other: pa.Schema) -> None:
    """Whatever pages of one file would mean otherwise in another one, or not at all."""
    footers = [_file(), _file(other)]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS
    assert _refusal(lambda: check_together(footers[::-1])) == Refusal.SCHEMA_DIFFERS


def test_required_and_optional_columns_are_not_put_together() -> None:
    """Pages of an optional column have levels that those of a required one lack."""
    types = [pa.schema([pa.field("a", pa.int32(), nullable=nullable)]) for nullable in (True, False)]
    optional, required = (footer_of(make_file(pa.table([pa.array([1], pa.int32())], schema=each))) for each in types)
    assert _refusal(lambda: check_together([optional, required])) == Refusal.SCHEMA_DIFFERS


def test_decimals_as_bytes_and_as_integers_are_not_put_together() -> None:
    """pyarrow's decimals are bytes, Iceberg's are integers."""
    footers = [_file(), _file(store_decimal_as_integer=True)]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS


def test_a_field_of_an_element_that_nobody_knows_makes_a_difference() -> None:
    """Who knows what it means: files that have it equally may be together."""
    changed = footer_of(edited(_FILE, lambda tree: inject(tree.schema[1])))
    assert _refusal(lambda: check_together([changed, footer_of(_FILE)])) == Refusal.SCHEMA_DIFFERS
    assert _refusal(lambda: check_together([changed, changed])) is None


@pytest.mark.parametrize(
    "options",
    [
        {"version": "1.0"},
        {"version": "2.4"},
        {"compression": "zstd"},
        {"data_page_version": "2.0"},
        {"use_dictionary": False},
        {"write_statistics": False},
        {"write_page_index": True},
        {"store_schema": False},
    ],
    ids=str,
)
def test_how_a_file_was_written_makes_no_difference(options: dict[str, object]) -> None:
    """Versions, codecs, pages and indexes may differ from file to file."""
    assert _refusal(lambda: check_together([footer_of(_FILE), footer_of(make_file(**options))])) is None


def test_empty_files_and_other_roots_make_no_difference() -> None:
    """A file without rows is like others, and the name of the schema is of no meaning."""
    renamed = footer_of(edited(_FILE, lambda tree: tree.schema[0].update({4: bytes_field(b"spark_schema")})))
    empty = footer_of(make_file(sample().slice(0, 0)))
    assert _refusal(lambda: check_together([footer_of(_FILE), renamed, empty])) is None


def test_files_of_duckdb_and_pyarrow_are_put_together(tmp_path: Path) -> None:
    """Two writers spell the same types in different ways."""
    duckdb = pytest.importorskip("duckdb")
    rows = sample().drop(["money"])  # decimals of DuckDB are integers
    duckdb.connect().from_arrow(rows).write_parquet(str(tmp_path / "duckdb"))
    files = (tmp_path / "duckdb").read_bytes(), make_file(rows)
    converted = [[element.get(6) for element in Tree.of(file).schema[1:]] for file in files]
    theirs, ours = map(footer_of, files)
    assert converted[0] != converted[1]
    assert [_refusal(partial(check_file, f)) for f in (theirs, ours)] == [None, None]
    assert _refusal(lambda: check_together([theirs, ours])) is None


def _only_converted(tree: Tree) -> None:
    """As writers before logical types did it."""
    for element in tree.schema:
        element.pop(10, None)


def _only_logical(tree: Tree) -> None:
    """As writers that have forgotten converted types do it; INT_32 and INT_64 are the default."""
    for element in tree.schema:
        for field_id in (6, 7, 8):
            element.pop(field_id, None)


def test_logical_and_converted_types_are_the_same() -> None:
    """Files that say it in the old way, the new way and both ways may be together."""
    rows = sample()
    for kind in (pa.timestamp("ms", "UTC"), pa.time32("ms"), pa.time64("us")):
        rows = rows.append_column(str(kind), pa.array([1] * len(rows), kind))
    both = make_file(rows, write_time_adjusted_to_utc=True)
    old, new = (footer_of(edited(both, edit)) for edit in (_only_converted, _only_logical))
    assert old.fields[2] != new.fields[2]
    assert _refusal(lambda: check_together([footer_of(both), old, new])) is None


def test_local_times_are_not_those_of_utc() -> None:
    """Converted types say that times are in UTC; logical types can say otherwise."""
    utc, local = (
        footer_of(make_file(pa.table({"t": pa.array([1], pa.timestamp("us", zone))}))) for zone in ("UTC", None)
    )
    assert _refusal(lambda: check_together([utc, local])) == Refusal.SCHEMA_DIFFERS


def _annotated(number: int, logical: Fields) -> Callable[[Tree], None]:
    return lambda tree: tree.schema[number].update({10: struct_field(logical)})


def test_a_signed_integer_of_its_width_is_no_annotation() -> None:
    """DuckDB and others annotate plain integers; parameters nobody knows, other widths and signs are no plain ones."""
    signed = {1: (BYTE, b"\x40"), 2: (BOOLEAN_TRUE, b"")}
    plain, others = footer_of(_FILE), [{**signed, 2: (2, b"")}, {**signed, 1: (BYTE, b"\x10")}, {**signed, 3: i32(1)}]
    annotated = footer_of(edited(_FILE, _annotated(1, {10: struct_field(signed)})))
    assert _refusal(lambda: check_together([plain, annotated])) is None
    for other in others:
        footer = footer_of(edited(_FILE, _annotated(1, {10: struct_field(other)})))
        assert _refusal(partial(check_together, [plain, footer])) == Refusal.SCHEMA_DIFFERS


def test_parameters_that_nobody_knows_make_a_difference() -> None:
    """A decimal with more than scale and precision may be another one."""

    def edit(tree: Tree) -> None:
        (decimal,) = (element for element in tree.schema if read_struct(element.get(10, (0, b"\0"))[1])[0].get(5))
        union, _ = read_struct(decimal[10][1])
        parameters, _ = read_struct(union[5][1])
        decimal[10] = (STRUCT, write_struct({5: struct_field({**parameters, 3: i32(1)})}))

    footers = [footer_of(_FILE), footer_of(edited(_FILE, edit))]
    assert _refusal(lambda: check_together(footers)) == Refusal.SCHEMA_DIFFERS
