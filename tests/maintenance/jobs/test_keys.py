"""Keys of tables: rows of the same key go but the newest, and the rule changes only to a key that is unique."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog import Catalog
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType

import icesize
from icesize import failpoints
from icesize.errors import CommitConflict, TableError, UnsupportedTable
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.cluster_by import ClusterBy
from icesize.planning.files import PartitionKey
from icesize.planning.upsert_rule import PROPERTY, UpsertRule
from icesize.sized_table import SizedTable
from icesize.table.commit import batch_commit
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.duplicate_rows import Duplicates
from icesize.table.upserts.lookup import TableFiles
from icesize.table.upserts.settings import WantedRule
from tests.support.delete_files import delete_equal, delete_positions
from tests.support.examples import examples
from tests.support.restored import before_swap
from tests.support.tables import check, live_paths, make_table, operations, request_on, run, sqlite_catalog, theirs
from tests.support.upserts import catalog_with_table, live_rows, upsert_rows
from tests.support.v3_tables import as_v3

Row = tuple[int | None, int | None, str]


@pytest.fixture(params=[2, 3])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog with the empty table `db.t`, in format v2 and v3."""
    return catalog_with_table(tmp_path, request.param)


def opened(catalog: Catalog) -> SizedTable:
    return icesize.open(None, "db.t", catalog=catalog)


def rows_of(rows: Sequence[Row]) -> pa.Table:
    ids, times, kinds = (list(column) for column in zip(*rows, strict=True))
    columns = {"id": pa.array(ids, pa.int64()), "kind": kinds, "ts": pa.array(times, pa.timestamp("us"))}
    return pa.table(columns)


def add(catalog: Catalog, *rows: Row) -> None:
    """Rows that are appended in one commit, in format v2 and v3."""
    append(catalog, rows_of(rows))


def append(catalog: Catalog, rows: pa.Table) -> None:
    table = catalog.load_table("db.t")
    files = write_rows(
        [rows], WriteSettings.of(table.metadata, table.io.properties, 2**29), FileNames(uuid4().hex, 0, 0)
    )
    run(catalog, request_on(table, files), table)


def test_the_newest_row_of_a_key_stays(catalog: Catalog) -> None:
    """By order, in any partition; the commit only deletes, and a second run finds nothing."""
    add(catalog, (1, 3, "a"), (2, 1, "a"), (3, 1, "b"))
    add(catalog, (1, 2, "b"), (2, 2, "b"), (2, 2, "c"))
    report = opened(catalog).deduplicate("id", "ts")

    assert live_rows(catalog) == [(1, 3, "a"), (2, 2, "c"), (3, 1, "b")]
    assert (report.doubled_keys, report.rows_deleted, report.data_files) == (2, 3, 2)
    table = catalog.load_table("db.t")
    check(table)
    assert operations(table)[-1] == "delete"
    again = opened(catalog).deduplicate("id", "ts")
    assert (again.rows_deleted, again.snapshot_ids) == (0, ())
    assert str(again).startswith("nothing to do in lake.db.t: each key by (id) has one row")


def test_without_an_order_the_newest_commit_wins(catalog: Catalog) -> None:
    """The row of the commit with the greatest sequence number stays, whatever its values."""
    add(catalog, (1, 9, "z"))
    add(catalog, (1, 1, "a"))
    assert opened(catalog).deduplicate("id").rows_deleted == 1
    assert live_rows(catalog) == [(1, 1, "a")]


def test_a_dry_run_changes_nothing(catalog: Catalog) -> None:
    """It counts the same rows, and says so."""
    add(catalog, (1, 1, "a"), (1, 2, "a"))
    head = catalog.load_table("db.t").metadata.current_snapshot_id
    report = opened(catalog).deduplicate("id", "ts", dry_run=True)
    assert (report.rows_deleted, report.snapshot_ids, report.dry_run) == (1, (), True)
    assert str(report).startswith("1 key by (id) in lake.db.t had several rows: 1 row would be deleted")
    assert catalog.load_table("db.t").metadata.current_snapshot_id == head


def test_deleted_rows_do_not_count(tmp_path: Path) -> None:
    """Neither rows that a position delete deletes, nor those of an equality delete, as from Flink."""
    catalog = sqlite_catalog(tmp_path)
    table = make_table(catalog)
    add(catalog, (1, 9, "a"), (2, 9, "a"), (3, 9, "a"))
    delete_positions(catalog.load_table("db.t"), {live_paths(table.refresh())[0]: [0]}, PartitionKey(0, ("a",)))
    delete_equal(catalog.load_table("db.t"), ["id"], [(2,)], PartitionKey(0, ("a",)))
    add(catalog, (1, 1, "a"), (2, 1, "a"), (3, 1, "a"))
    report = opened(catalog).deduplicate("id", "ts")
    assert report.rows_deleted == 1
    assert live_rows(catalog) == [(1, 1, "a"), (2, 1, "a"), (3, 9, "a")]


@pytest.mark.parametrize("version", [2, 3])
def test_files_of_older_specs_and_without_the_order(tmp_path: Path, version: int) -> None:
    """Rows of an older partition spec count; a row older than the column of the order is older than any other."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    add(catalog, (1, 5, "a"), (2, 5, "a"))
    with catalog.load_table("db.t").update_schema() as update:
        update.add_column("version", IntegerType())
    with catalog.load_table("db.t").update_spec() as spec:
        spec.remove_field("kind")
    if version == 3:
        as_v3(catalog)
    rows = rows_of([(1, 1, "b"), (3, 1, "b")]).append_column("version", pa.array([0, None], pa.int32()))
    append(catalog, rows)
    assert opened(catalog).deduplicate("id", "version").rows_deleted == 1
    assert live_rows(catalog) == [(1, 1, "b"), (2, 5, "a"), (3, 1, "b")]


def test_rows_without_a_key_stay(catalog: Catalog) -> None:
    """NULL equals no key; the report counts such rows."""
    add(catalog, (None, 1, "a"), (None, 1, "a"), (1, 1, "a"))
    report = opened(catalog).deduplicate("id", "ts")
    assert report.rows_deleted == 0
    assert report.notes[-1] == "2 rows with a NULL in the key: no upsert replaces them"


def test_rows_that_come_in_between(catalog: Catalog) -> None:
    """The commit compares again what others added after the plan."""
    add(catalog, (1, 1, "a"), (1, 2, "a"))
    left = [(1, 3, "b"), (2, 1, "a"), (2, 2, "a")]

    def rival() -> None:
        rows, left[:] = list(left), []
        if rows:
            add(catalog, *rows)

    with failpoints.armed("before-swap", rival):
        report = opened(catalog).deduplicate("id", "ts")
    assert (report.doubled_keys, report.rows_deleted) == (2, 3)
    assert live_rows(catalog) == [(1, 3, "b"), (2, 2, "a")]
    check(catalog.load_table("db.t"))


def test_tables_of_format_v1_are_refused(tmp_path: Path) -> None:
    """They have no deletes."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog, properties={"format-version": "1"})
    with pytest.raises(UnsupportedTable, match="format version 1 has no deletes"):
        opened(catalog).deduplicate("id")


@examples(15)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3), st.sampled_from("ab")), min_size=1, max_size=8),
             min_size=1, max_size=3),
    st.integers(1, 5),
)  # fmt: skip
def test_slices_find_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, commits: list[list[tuple[int, int, str]]], most_rows: int
) -> None:
    """However few rows are compared at one time, the same rows go, and each key keeps one of its newest rows."""
    catalog = sqlite_catalog(tmp_path_factory.mktemp("lake"))
    make_table(catalog)
    for rows in commits:
        add(catalog, *rows)
    handle = TableHandle(catalog, ("db", "t"))
    current = handle.load()
    state = batch_commit.state_of(handle, current)

    def gone(most: int) -> dict[str, list[int]]:
        files = TableFiles(current.settings())
        reader = ClusterReader(ClusterBy(("id",), (1,), "keys", 0))
        doubled = Duplicates(UpsertRule((1,), (3,)), files, b"secret", reader, most).at(state)
        assert doubled.keys == sum(len(times) > 1 for times in by_key.values())
        return {each.file.path: list(each.rows) for each in doubled.dying}

    by_key: dict[int, list[int]] = {}
    for key, time, _ in (row for rows in commits for row in rows):
        by_key.setdefault(key, []).append(time)
    whole = gone(1_000)
    assert gone(most_rows) == whole
    assert sum(map(len, whole.values())) == sum(map(len, by_key.values())) - len(by_key)
    opened(catalog).deduplicate("id", "ts")
    assert [(key, time) for key, time, _ in live_rows(catalog)] == sorted((k, max(t)) for k, t in by_key.items())


def upserted(catalog: Catalog, **arguments: Any) -> SizedTable:
    """A table with two rows and a rule."""
    table = opened(catalog)
    table.upsert(rows_of([(1, 1, "a"), (2, 1, "a")]), "id", "ts", **arguments)
    return table


@pytest.mark.parametrize("job", ["deduplicate", "rekey"])
def test_a_partition_spec_that_came_meanwhile(catalog: Catalog, job: str) -> None:
    """If another writer first adds a spec and rows of it, the next attempt reads them, or says why it does not."""
    table = upserted(catalog)
    add(catalog, (1, 2, "a") if job == "deduplicate" else (3, 2, "a"))

    def others() -> None:
        theirs(catalog.load_table("db.t")).update_spec().add_field("id", BucketTransform(2), "bucket").commit()
        add(catalog, (2, 2, "a"))

    refused = CommitConflict if job == "deduplicate" else TableError
    with before_swap(1, others), pytest.raises(refused, match=f"Cannot {job} 'lake.db.t'"):
        table.deduplicate() if job == "deduplicate" else table.rekey(["id", "kind"])
    assert opened(catalog).deduplicate().rows_deleted == (2 if job == "deduplicate" else 1)


def test_a_new_key_must_be_unique(catalog: Catalog) -> None:
    """The message names the keys and the command that cleans them; afterwards the key changes."""
    table = upserted(catalog)
    message = r"1 key has more than one row by \(kind\): \(kind=a\)\. .*`icesize deduplicate lake.db.t --key kind`"
    with pytest.raises(TableError, match=message):
        table.rekey("kind")
    with pytest.raises(TableError, match="Cannot rekey"):
        table.rekey("kind", dry_run=True)
    table.deduplicate("kind")
    report = table.rekey("kind")
    assert report.changed == ("'key' is (id) in the table and (kind) here",)
    assert UpsertRule.of(catalog.load_table("db.t").properties) == UpsertRule((2,), (3,))
    with pytest.raises(TableError, match=r"'key' is \(kind\) in the table and \(id\) here"):
        table.upsert(rows_of([(1, 2, "a")]), "id")


def test_parts_of_the_rule_change_alone(catalog: Catalog) -> None:
    """What no argument names stays; an empty order or condition is none; the same rule is no change."""
    table = upserted(catalog, delete_when="kind = 'x'")
    assert table.rekey(ties="max_row").changed == ("'ties' is 'error' in the table and 'max_row' here",)
    assert table.rekey(order_by=(), delete_when="").key == ("id",)
    assert UpsertRule.of(catalog.load_table("db.t").properties) == UpsertRule((1,), ties="max_row")
    assert table.rekey(key="id").changed == ()
    assert str(table.rekey(order_by="ts", dry_run=True)).startswith("would change the rule of lake.db.t: 'order_by' is")
    with pytest.raises(ValueError, match="'ties'"):
        table.rekey(ties="first")


def test_a_table_begins_to_remember_deletes(catalog: Catalog) -> None:
    """The time that deletes are remembered is a part of the rule; an upsert with another one says how it changes."""
    table = upserted(catalog)
    with pytest.raises(TableError, match=r"'tombstones' is .* change the rule with `icesize rekey`"):
        table.upsert(rows_of([(1, 2, "a")]), tombstones="2 days")
    assert table.rekey(tombstones="2 days").changed == ("'tombstones' is off in the table and 172800 s here",)
    table.upsert(rows_of([(1, 2, "a")]), tombstones="2 days")
    assert table.rekey(tombstones="1 day", dry_run=True).changed == (
        "'tombstones' is 172800 s in the table and 86400 s here",
    )


def test_a_table_gets_its_key(catalog: Catalog) -> None:
    """A table without a rule gets one before its first upsert, if the key is unique; a key must be named."""
    add(catalog, (1, 1, "a"), (1, 2, "b"))
    table = opened(catalog)
    with pytest.raises(TableError, match="no key is given, and the table has no identifier fields"):
        table.rekey()
    with pytest.raises(TableError, match="1 key has more than one row"):
        table.rekey("id")
    table.deduplicate("id", "ts")
    assert table.rekey("id", "ts").changed == ("the table had no key",)
    assert PROPERTY in catalog.load_table("db.t").properties


def test_rows_that_come_during_the_check(catalog: Catalog) -> None:
    """A row that another writer adds after the check is checked, too."""
    table = upserted(catalog)
    table.deduplicate("kind")

    left = [(5, 5, "a")]

    def rival() -> None:
        if left:
            add(catalog, left.pop())

    with failpoints.armed("before-swap", rival), pytest.raises(TableError, match="more than one row by"):
        table.rekey("kind")


@pytest.mark.parametrize("point", ["files-written", "before-swap"])
def test_a_batch_planned_before_the_key_changed(catalog: Catalog, point: str) -> None:
    """A batch whose rule changes before its commit, up to the last moment, is planned again, under the new rule."""
    table, left = upserted(catalog), ["kind"]
    table.deduplicate("kind")

    def rival() -> None:
        if left:
            opened(catalog).rekey(left.pop())

    with failpoints.armed(point, rival):
        report = table.upsert(rows_of([(3, 2, "a")]))
    assert report.conflicts == (
        "the batch was written again: the key of the table was changed while the batch was written",
    )
    assert live_rows(catalog) == [(3, 2, "a")]


def test_two_first_batches_with_different_keys(catalog: Catalog) -> None:
    """A batch does not replace the rule that another first batch has stored and followed: it is refused."""
    left = ["kind"]

    def rival() -> None:
        if left:
            opened(catalog).upsert(rows_of([(1, 1, "a"), (1, 1, "b")]), left.pop(), "ts")

    with failpoints.armed("before-swap", rival), pytest.raises(TableError, match="has stored a different rule"):
        opened(catalog).upsert(rows_of([(1, 2, "a")]), "id", "ts")
    assert UpsertRule.of(catalog.load_table("db.t").properties) == UpsertRule((2,), (3,))
    assert live_rows(catalog) == [(1, 1, "a"), (1, 1, "b")]


def test_an_empty_table_gets_its_key(catalog: Catalog) -> None:
    """Its first snapshot lists nothing; batches, expiry and verification work on it."""
    table = opened(catalog)
    assert len(table.rekey("id", "ts").snapshot_ids) == 1
    assert table.verify(deep=True).findings == ()
    table.upsert(rows_of([(1, 1, "a"), (2, 1, "a")]))
    assert live_rows(catalog) == [(1, 1, "a"), (2, 1, "a")]
    assert len(table.expire_snapshots(older_than=timedelta(0), retain_last=1).snapshot_ids_expired) == 1
    check(catalog.load_table("db.t"))


def test_a_changed_rule_is_a_snapshot_of_the_same_files(catalog: Catalog) -> None:
    """Its kind is shown in the history, the report names it, and readers of a stream skip it; a dry run adds none."""
    table = upserted(catalog)
    before = catalog.load_table("db.t")
    assert table.rekey(ties="max_row", dry_run=True).snapshot_ids == ()
    report = table.rekey(ties="max_row")
    after = catalog.load_table("db.t")
    assert live_paths(after) == live_paths(before)
    assert [each.snapshot_id for each in after.metadata.snapshots[len(before.metadata.snapshots) :]] == [
        *report.snapshot_ids
    ]
    newest = table.history().commits[0]
    assert (newest.kind, newest.operation, newest.rows, newest.total_rows) == ("rule", "replace", 0, 2)


def test_no_restore_gives_a_key_two_rows(catalog: Catalog) -> None:
    """A key that moved to another partition is named, also by a dry run; without such a key, the restore is done."""
    rule = WantedRule("id", "ts")
    upsert_rows(catalog, rows_of([(1, 1, "a"), (2, 1, "a")]), [False] * 2, 0, rule)
    first = catalog.load_table("db.t").metadata.snapshots[-1].snapshot_id
    upsert_rows(catalog, rows_of([(1, 2, "b"), (2, 2, "a")]), [False] * 2, 1, rule)
    for dry_run in (True, False):
        with pytest.raises(TableError, match=r"1 key would have several rows, .* \(id=1\)"):
            opened(catalog).restore({"kind": "a"}, first, dry_run=dry_run)
    assert set(catalog.load_table("db.t").metadata.refs) == {"main"}

    upsert_rows(catalog, rows_of([(1, 3, "b")]), [True], 2, rule)
    opened(catalog).restore({"kind": "a"}, first)
    assert live_rows(catalog) == [(1, 1, "a"), (2, 1, "a")]


def test_a_key_that_moves_during_a_restore(catalog: Catalog) -> None:
    """The check is made again on the state that the restore is committed on."""
    rule = WantedRule("id", "ts")
    upsert_rows(catalog, rows_of([(1, 1, "a")]), [False], 0, rule)
    first = catalog.load_table("db.t").metadata.snapshots[-1].snapshot_id
    upsert_rows(catalog, rows_of([(1, 2, "a")]), [True], 1, rule)
    upsert_rows(catalog, rows_of([(2, 3, "a")]), [False], 2, rule)

    def move() -> None:
        upsert_rows(catalog, rows_of([(1, 3, "b")]), [False], 3, rule)

    with before_swap(2, move), pytest.raises(TableError, match="1 key would have several rows"):
        opened(catalog).restore({"kind": "a"}, first)
    assert live_rows(catalog) == [(1, 3, "b"), (2, 3, "a")]
    assert set(catalog.load_table("db.t").metadata.refs) == {"main"}


def test_a_restore_in_a_table_whose_key_decides_the_partition(tmp_path: Path) -> None:
    """No other partition has a row of its keys, so that no other file is read; rows that others doubled stay."""
    catalog, rule = sqlite_catalog(tmp_path), WantedRule("id", "ts")
    make_table(catalog, {"id": "identity"})
    upsert_rows(catalog, rows_of([(1, 1, "a"), (2, 1, "a")]), [False] * 2, 0, rule)
    first = catalog.load_table("db.t").metadata.snapshots[-1].snapshot_id
    upsert_rows(catalog, rows_of([(1, 2, "b")]), [False], 1, rule)
    add(catalog, (2, 5, "b"))
    opened(catalog).restore({"id": 1}, first)
    assert live_rows(catalog) == [(1, 1, "a"), (2, 1, "a"), (2, 5, "b")]
