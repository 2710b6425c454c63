"""Columns are added through the door: others may come first, answers may be lost, and each is added once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.types import IcebergType, IntegerType, ListType, LongType, NestedField, StringType, StructType

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitConflict, SchemaMismatch, TableError, UnsupportedTable
from icesize.table.commit import batch_commit
from icesize.table.commit.metadata_change import add_columns
from icesize.table.state.handle import TableHandle
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import FakeTime, append, make_table, sqlite_catalog
from tests.support.v3_tables import as_v3

EXTRAS = {("few",): IntegerType(), ("many",): IntegerType()}


@pytest.fixture(params=["sqlite", "rest"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """Both kinds of catalog, without Spark."""
    if request.param == "rest":
        yield request.getfixturevalue("mini").catalog("lake")
        return
    lake = sqlite_catalog(tmp_path)
    yield lake
    lake.close()


def add(catalog: Catalog, environment: Environment | None = None, *, case_sensitive: bool = False) -> list[str]:
    """The names that the call says it has added."""
    handle = TableHandle(catalog, ("db", "t"))
    change = add_columns(EXTRAS, case_sensitive, "run")
    return batch_commit.change(handle, handle.load(), change, environment or FakeTime().environment)


def names(catalog: Catalog) -> list[str]:
    return list(catalog.load_table("db.t").schema().column_names)


def once(action):  # type: ignore[no-untyped-def]
    """Before the first commit only."""
    left = iter([action])
    return lambda: next(left, lambda: None)()


def test_a_column_of_somebody_else_stays_as_it_is(catalog: Catalog) -> None:
    """It came between loading and committing, of another type: only the other one is added."""
    make_table(catalog)
    before = names(catalog)

    def rival() -> None:
        catalog.load_table("db.t").update_schema().add_column("FEW", LongType()).commit()

    with failpoints.armed("before-swap", once(rival)):
        assert add(catalog) == ["many"]
    assert names(catalog) == [*before, "FEW", "many"]
    assert catalog.load_table("db.t").schema().find_type("FEW") == LongType()


def test_names_are_compared_as_spark_compares_them(catalog: Catalog) -> None:
    """Where case matters a column that differs in it is another one."""
    make_table(catalog)
    catalog.load_table("db.t").update_schema().add_column("FEW", LongType()).commit()
    assert add(catalog, case_sensitive=True) == ["few", "many"]


def test_nothing_is_committed_where_all_are_there(catalog: Catalog) -> None:
    """The table keeps its metadata file."""
    make_table(catalog)
    add(catalog)
    before = catalog.load_table("db.t").metadata_location
    assert add(catalog) == []
    assert catalog.load_table("db.t").metadata_location == before


def test_a_commit_of_rows_meanwhile_does_not_hinder(catalog: Catalog) -> None:
    """Columns are the same still: nothing has to be tried again, and the rows stay."""
    make_table(catalog)
    before = names(catalog)
    with failpoints.armed("before-swap", once(lambda: append(catalog, [1]))):
        assert add(catalog) == ["few", "many"]
    assert names(catalog) == [*before, "few", "many"]
    assert catalog.load_table("db.t").scan().to_arrow().num_rows == 1


def test_a_lost_answer_is_looked_up(mini: MiniRest) -> None:
    """They were added, only nobody said so: found, and not added again."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    before = names(catalog)
    mini.fail_next_commit(Fault(500, "after"))
    assert add(catalog) == ["few", "many"]
    assert names(catalog) == [*before, "few", "many"]


def test_others_until_the_deadline_are_a_conflict(catalog: Catalog) -> None:
    """Somebody changes columns before each attempt: nothing is added, and that is said as for any commit."""
    make_table(catalog)
    count = iter(range(10_000))
    time = FakeTime()

    def rival() -> None:
        time.seconds += 100
        catalog.load_table("db.t").update_schema().add_column(f"c{next(count)}", StringType()).commit()

    with failpoints.armed("before-swap", rival), pytest.raises(CommitConflict, match="other writers committed first"):
        add(catalog, time.environment)
    assert not {"few", "many"} & set(names(catalog))


def test_a_table_that_was_created_again_gets_no_columns(catalog: Catalog) -> None:
    """The batch was compared with another one."""
    make_table(catalog)
    handle = TableHandle(catalog, ("db", "t"))
    current = handle.load()
    catalog.drop_table("db.t")
    make_table(catalog)
    before = names(catalog)
    with pytest.raises(TableError, match="dropped and recreated"):
        batch_commit.change(handle, current, add_columns(EXTRAS, False, "run"), FakeTime().environment)
    assert names(catalog) == before


def test_names_that_format_v3_reserves_are_not_added(tmp_path: Path) -> None:
    """A batch was read with the lineage of its rows: with such a column, nobody could write the table any more."""
    lake = sqlite_catalog(tmp_path)
    make_table(lake)
    as_v3(lake)
    before, handle = names(lake), TableHandle(lake, ("db", "t"))
    change = add_columns({("few",): IntegerType(), ("_row_id",): LongType()}, False, "run")
    with pytest.raises(UnsupportedTable, match="reserves the name"):
        batch_commit.change(handle, handle.load(), change, FakeTime().environment)
    assert names(lake) == before
    lake.close()


EMPTY = StructType()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (("extra",), EMPTY),
        (("extra",), ListType(element_id=1, element_type=EMPTY, element_required=False)),
        (("extra",), StructType(NestedField(1, "inside", EMPTY))),
        (("few", "extra"), StringType()),
    ],
)
def test_no_column_is_added_that_cannot_be_written(tmp_path: Path, path: tuple[str, ...], kind: IcebergType) -> None:
    """Its type is checked before the schema changes, also below other types; the rest of the batch is not added."""
    lake = sqlite_catalog(tmp_path)
    make_table(lake).update_schema().add_column("few", LongType()).commit()
    before, handle = names(lake), TableHandle(lake, ("db", "t"))
    change = add_columns({("other",): LongType(), path: kind}, False, "run")
    with pytest.raises(SchemaMismatch, match=f"Cannot add column '{'.'.join(path)}': .*Drop it from the batch"):
        batch_commit.change(handle, handle.load(), change, FakeTime().environment)
    assert names(lake) == before
