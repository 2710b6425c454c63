"""Rivals: whoever else changes the table between our plan and our commit, nobody's rows are lost, doubled or back."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import IntegerType, LongType

from icesize.errors import (
    BatchOutOfOrder,
    IcesizeError,
    SchemaMismatch,
    TableError,
    TableNotFound,
)
from icesize.failpoints import armed
from icesize.report import Report
from integration.faults.faulted_table import FaultedTable
from integration.faults.write_or_merge import (
    ALONE,
    BATCHES,
    HOWS,
    INLINE,
    OPERATIONS,
    RAISING,
    SINKS,
    WAIT_S,
    Iceberg,
    WriteOrMerge,
    at_the_same_time,
    each,
    meeting,
    rival_append,
)
from integration.tools import local_path
from tests.support.rest_server import MiniRest
from tests.support.spark_lake import Lake, events
from tests.support.tables import expire

POINTS = ("planned", "files-written", "before-swap")
EARLY = [pytest.param(point, marks=pytest.mark.slow) for point in POINTS[:2]]
"""Cases of `POINTS`: the last moment is tried for every change."""


@pytest.fixture
def another(faulted: FaultedTable) -> Iterator[FaultedTable]:
    """The table as another process has it."""
    catalog = SqlCatalog("lake", **faulted.catalog.properties)
    yield faulted.seen_by(catalog)
    catalog.close()


@pytest.fixture
def iceberg(rest_faulted: FaultedTable, mini: MiniRest) -> Iceberg:
    """Another engine that sees the same tables as {}.db.events and {}.db.neighbour."""
    return Iceberg(rest_faulted.spark, {".type": "rest", ".uri": mini.uri})


def dropped(report: Report, why: str) -> list[str]:
    """What the report says about merges that were given up for this reason, or rows written again for it."""
    return [sentence for sentence in report.conflicts if sentence.endswith(why)]


@pytest.mark.fault(18)
@pytest.mark.parametrize("how", BATCHES)
def test_two_drivers_commit_one_batch(faulted: FaultedTable, another: FaultedTable, how: str) -> None:
    """If two drivers commit one batch at the same time, one succeeds; the other finds the batch committed and leaves
    no file."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    operation.next_batch()
    with armed("before-swap", meeting()):
        reports = at_the_same_time(operation.again, operation.of(another).again)
    assert sorted(report.already_committed for report in reports) == [False, True]
    assert faulted.operations()[2:] == list(OPERATIONS[how])
    assert faulted.leftovers() == set()


@pytest.mark.fault(18)
@pytest.mark.parametrize("how", BATCHES)
def test_a_driver_wakes_up_batches_later(faulted: FaultedTable, another: FaultedTable, how: str) -> None:
    """icesize refuses a driver that resumes after newer batches were committed; orphan cleanup finds its files."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    operation.next_batch()
    successor = operation.of(another)

    def go_past() -> None:
        successor.again()
        successor.act()

    with armed("before-swap", operation.once(go_past)), pytest.raises(BatchOutOfOrder, match="Cannot commit batch 2"):
        operation.again()
    # its lost attempt was not looked up any more, so it deletes nothing
    assert 0 < len([path for path in faulted.leftovers() if path.endswith(".parquet")]) <= 4


@pytest.mark.fault(19)
@pytest.mark.parametrize("how", each("append", "absorb once", "async", slow=("absorb",)))
def test_two_streams_write_one_table(faulted: FaultedTable, how: str) -> None:
    """Two streams that write the same partitions at the same time both progress, and each batch is committed once."""
    table, numbers = faulted.hasty(max_small_files=1), range(4)
    sinks = [table.sink(name, listener=faulted.reports.append, **SINKS[how]) for name in "ab"]
    parts = [[events(range(first + 8 * n, first + 8 * n + 8), 2) for n in numbers] for first in (0, 1000)]
    for rows in parts:
        faulted.expect(*rows)

    def run(which: int) -> list[Report]:
        reports = [sinks[which].run(faulted.batch(parts[which][n]), n) for n in numbers]
        sinks[which].drain(WAIT_S)
        return reports

    begin, meet = threading.Barrier(2), meeting()
    # both begin each batch together, and the first ones ask the catalog together
    with (
        armed("batch-started", lambda: begin.wait(WAIT_S)),
        armed("before-swap", (lambda: None) if how == "async" else meet),
    ):
        both = at_the_same_time(lambda: run(0), lambda: run(1))
    assert all(report.snapshot_ids and not report.already_committed for reports in both for report in reports)
    assert [(entry.stream_id, entry.batch_id) for entry in table.streams()] == [("a", 3), ("b", 3)]


@pytest.mark.fault(20)
@pytest.mark.parametrize("how", HOWS)
def test_another_writer_appends(faulted: FaultedTable, another: FaultedTable, how: str) -> None:
    """Rows that another writer appends during a merge stay, and the merge is committed on top of them."""
    operation = WriteOrMerge(faulted, how)
    for number, point in enumerate(POINTS):
        operation.prepare()
        with armed(point, operation.once(lambda number=number: rival_append(another, 1000 + number))):  # type: ignore[misc]
            report = operation.act()
        assert report.operations == OPERATIONS[how], point
        assert report.conflicts == (), point


@pytest.mark.fault(21)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", [*EARLY, POINTS[2]])
def test_another_compaction_is_faster(faulted: FaultedTable, another: FaultedTable, how: str, point: str) -> None:
    """A merge whose files another compaction replaced is dropped; new rows are committed, and no row returns."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    with armed(point, operation.once(lambda: another.sized(max_small_files=1).compact())):
        report = operation.act()
    assert dropped(report, "another writer removed a file of it")
    assert report.operations == ALONE.get(how, ())
    assert faulted.leftovers() == set()


@pytest.mark.slow
@pytest.mark.fault(21)
@pytest.mark.parametrize("how", HOWS)
def test_icebergs_own_compaction_is_faster(rest_faulted: FaultedTable, iceberg: Iceberg, how: str) -> None:
    """If Iceberg's `rewrite_data_files` replaced the files, its files stay; the merge is dropped, new rows are
    committed."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    with armed("before-swap", operation.once(iceberg.compact)):
        report = operation.act()
    assert dropped(report, "another writer removed a file of it")
    # even what is written again leaves the partitions alone: another compactor is at work there
    assert report.operations == (("append",) if how in INLINE else ())


@pytest.mark.fault(22)
@pytest.mark.parametrize("how", each("append", "absorb once", slow=("absorb", "async", "compact", "maintain")))
@pytest.mark.parametrize("mode", ["merge-on-read", pytest.param("copy-on-write", marks=pytest.mark.slow)])
def test_rows_are_deleted_from_a_file_that_we_merge(
    rest_faulted: FaultedTable, iceberg: Iceberg, how: str, mode: str
) -> None:
    """Rows that another engine deletes during a merge stay deleted: the merge deletes them in its new files, or is
    dropped if the table had no deletes; new rows are committed."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    iceberg(f"ALTER TABLE {{}}.db.events SET TBLPROPERTIES ('write.delete.mode'='{mode}')")

    def delete() -> None:
        iceberg("DELETE FROM {}.db.events WHERE id IN (0, 12)")
        rest_faulted.forget(0, 12)

    with armed("files-written", operation.once(delete)):
        report = operation.act()
    wanted = 0 if mode == "merge-on-read" and how != "absorb once" else 1
    assert len(report.conflicts) == wanted
    # ids 0 and 12 are of hour h0: the merge of h1 is not concerned, but what was written at once is written again
    assert report.operations == OPERATIONS[how]
    # PyIceberg counts delete files otherwise than Iceberg does, and cannot apply all of them
    iceberg.compact()


@pytest.mark.fault(22)
@pytest.mark.parametrize("how", each("append", slow=("absorb", "absorb once", "compact", "maintain")))
def test_keys_are_deleted_from_a_partition_that_we_merge(
    rest_faulted: FaultedTable, iceberg: Iceberg, how: str
) -> None:
    """An equality delete during a merge (as from Flink) applies only to older rows; merges of older files are still
    committed."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()

    def delete() -> None:
        # the first row of the batch that is about to land is named as well: it is newer than the delete
        iceberg.delete_ids(Path(local_path(rest_faulted.table().location()), "data", "deletes.parquet"), [0, 12, 20])
        rest_faulted.forget(0, 12)

    with armed("files-written", operation.once(delete)):
        report = operation.act()
    assert bool(dropped(report, "another writer deleted rows of it")) == how.startswith("absorb")
    assert report.operations == OPERATIONS[how]
    # PyIceberg counts delete files otherwise than Iceberg does, and cannot apply all of them
    iceberg.compact()


@pytest.fixture
def apart(faulted: FaultedTable) -> Iterator[tuple[Lake, Iceberg]]:
    """A catalog of its own that both sides have: PyIceberg cannot keep tables of format v3, as `MiniRest` has to."""
    faulted.expect()
    database, warehouse = faulted.folder / "apart.db", f"file://{faulted.folder}/apart"
    settings = {".type": "jdbc", ".jdbc.schema-version": "V1", ".warehouse": warehouse}
    iceberg = Iceberg(faulted.spark, {".uri": f"jdbc:sqlite:file:{database}", **settings})
    catalog = SqlCatalog(iceberg.name, uri=f"sqlite:///{database}", warehouse=warehouse)
    catalog.create_namespace("db")
    yield Lake(catalog, faulted.folder), iceberg
    catalog.close()


@pytest.mark.fault(22)
@pytest.mark.parametrize("placement", ["append", pytest.param("absorb once", marks=pytest.mark.slow)])
def test_a_file_that_we_merge_gets_a_deletion_vector(
    faulted: FaultedTable, apart: tuple[Lake, Iceberg], placement: str
) -> None:
    """Rows that another engine deletes from a table of format v3 during a merge stay deleted."""
    lake, iceberg = apart
    lake.create()
    iceberg("ALTER TABLE {}.db.events SET TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')")
    sink = lake.open(faulted.spark, max_small_files=1).sink("s", **SINKS[placement])
    for number in range(3):
        sink(faulted.batch(events(range(10 * number, 10 * number + 10))), number)
    fired: list[int] = []

    def delete() -> None:
        if not fired:
            fired.append(1)
            iceberg("DELETE FROM {}.db.events WHERE id IN (0, 12)")

    with armed("files-written", delete):
        sink(faulted.batch(events(range(30, 40))), 3)
    assert bool(dropped(sink.last_report, "another writer deleted rows of it")) == (placement != "append")
    assert ids_in(faulted, lake) == Counter({*range(40)} - {0, 12})
    lake.open(faulted.spark).compact()
    assert ids_in(faulted, lake) == Counter({*range(40)} - {0, 12})
    assert lake.open(faulted.spark).verify().findings == ()


@pytest.mark.fault(22)
@pytest.mark.parametrize("placement", ["append", pytest.param("absorb once", marks=pytest.mark.slow)])
@pytest.mark.parametrize("point", ["files-written", "before-swap"])
def test_a_table_gets_row_ids_in_the_middle_of_a_batch(
    faulted: FaultedTable, apart: tuple[Lake, Iceberg], placement: str, point: str
) -> None:
    """If a table is upgraded to format version 3 during a batch, its rows are committed, and its merges are dropped."""
    lake, iceberg = apart
    lake.create()
    sink = lake.open(faulted.spark, max_small_files=1).sink("s", **SINKS[placement])
    for number in range(3):
        sink(faulted.batch(events(range(10 * number, 10 * number + 10))), number)
    upgrade = "ALTER TABLE {}.db.events SET TBLPROPERTIES ('format-version'='3')"
    with armed(point, lambda: iceberg(upgrade)):
        sink(faulted.batch(events(range(30, 40))), 3)
    assert ids_in(faulted, lake) == Counter(range(40))
    assert dropped(sink.last_report, "the table was upgraded to format v3 while the merge ran")
    assert lake.open(faulted.spark).compact().operations == ("replace",)
    assert ids_in(faulted, lake) == Counter(range(40))
    assert lake.open(faulted.spark).verify().findings == ()


def ids_in(faulted: FaultedTable, lake: Lake) -> Counter[int]:
    """The rows of a table, as Spark reads its newest metadata file."""
    location = local_path(lake.table().metadata_location)
    return Counter(row.id for row in faulted.spark.read.format("iceberg").load(location).collect())


def add(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("more", LongType())


def drop(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("text")


def rename(table: Table) -> None:
    with table.update_schema() as update:
        update.rename_column("text", "note")


def widen(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("n", LongType())


COLUMNS: dict[Callable[[Table], None], tuple[str, ...]] = {
    add: ("id", "hour", "text"), drop: ("id", "hour"), rename: ("id", "hour", "note"), widen: ("id", "hour", "text"),
}  # fmt: skip
OUTDATED = "schema or partition spec changed while the merge ran"


@pytest.mark.fault(23)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", [EARLY[1], POINTS[2]])
@pytest.mark.parametrize("change", [add, widen, drop, rename])
def test_the_schema_changes(
    faulted: FaultedTable, another: FaultedTable, how: str, point: str, change: Callable[[Table], None]
) -> None:
    """A schema change during a batch drops merges of the old schema; new rows are committed or refused."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    if change is widen:
        with faulted.table().update_schema() as update:
            update.add_column("n", IntegerType())
    # files of the old schema can stay under a new name of a column, not without it; rows with older ones are outdated
    fits = how not in INLINE or change in (add, widen) or (change is rename and how != "absorb once")
    with armed(point, operation.once(lambda: change(another.table()))):
        if fits:
            report = operation.act()
            assert dropped(report, OUTDATED)
            assert report.operations == ALONE.get(how, ())
        else:
            # what was to be written again has a column that the table lacks now
            with pytest.raises(SchemaMismatch, match=r"the table lacks: 'text' \(string\)"):
                operation.act()
            faulted.forget(*operation.rows()["id"].to_pylist())
    assert faulted.leftovers() == set()
    faulted.columns = COLUMNS[change]


@pytest.mark.fault(23)
@pytest.mark.parametrize("placement", ["append", pytest.param("absorb", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("columns", "why", "refused"),
    [
        ("id decimal(20, 0), text string, hour string", "'id' is of type decimal(20, 0) now, no longer long", None),
        ("text string, id bigint, hour string", None, None),
        ("id bigint, hour string, text string, w int NOT NULL", None, "without column 'w': the table requires it"),
        ("id bigint, hour string", None, r"the table lacks: 'text' \(string\)"),
    ],
)
def test_the_table_is_replaced(
    faulted: FaultedTable,
    apart: tuple[Lake, Iceberg],
    placement: str,
    columns: str,
    why: str | None,
    refused: str | None,
) -> None:
    """A table replaced during a batch receives rows in its new schema, or the batch is refused."""
    lake, iceberg = apart
    lake.create()
    sink = lake.open(faulted.spark).sink("s", placement=placement)
    sink(faulted.batch(events(range(10))), 0)
    folder, rows = Path(local_path(lake.table().location())), faulted.batch(events(range(10, 20)))
    before, left = data_files(folder / "data"), [f"CREATE OR REPLACE TABLE {{}}.db.events ({columns}) USING iceberg"]
    with armed("files-written", lambda: left and iceberg(left.pop())):
        if refused is None:
            assert [why] * (why is not None) == [c.partition("column ")[2] for c in sink.run(rows, 1).conflicts]
        else:
            with pytest.raises(SchemaMismatch, match=refused):
                sink.run(rows, 1)
    location = local_path(lake.table().metadata_location)
    ids = [int(row.id) for row in faulted.spark.read.format("iceberg").load(location).select("id").collect()]
    assert sorted(ids) == ([] if refused else [*range(10, 20)])
    assert len(data_files(folder / "data") - before) == len(list(lake.table().scan().plan_files()))
    faulted.expect()


def by_bucket(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("id", "bucket[4]", "id_bucket")


def by_nothing(table: Table) -> None:
    with table.update_spec() as update:
        update.remove_field("p0_hour")


@pytest.mark.fault(24)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", [EARLY[1], POINTS[2]])
@pytest.mark.parametrize("change", [by_bucket, by_nothing])
def test_the_partitioning_changes(
    faulted: FaultedTable, another: FaultedTable, how: str, point: str, change: Callable[[Table], None]
) -> None:
    """If the partition spec changes during a batch, merges are dropped; written files keep the spec they were planned
    for."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    old = {file.file_path for file in faulted.files()}
    with armed(point, operation.once(lambda: change(another.table()))):
        report = operation.act()
    assert dropped(report, OUTDATED)
    # in the new spec there is nothing that rows could be absorbed by
    assert report.operations == (("append",) if how in INLINE else ())
    assert faulted.table().metadata.default_spec_id == 1
    assert {file.spec_id for file in faulted.files() if file.file_path in old} == {0}
    assert {file.spec_id for file in faulted.files() if file.file_path not in old} <= {1 if how == "absorb once" else 0}
    hours = Counter(row[1] for row in faulted.rows())
    assert {hour: faulted.table().scan(f"hour = '{hour}'").count() for hour in hours} == hours
    assert faulted.leftovers() == set()


def data_files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*.*") if path.suffix in (".parquet", ".avro")}


NOT_FOUND = r"Cannot find table 'lake\.db\.events'"
FATES: dict[str, tuple[Callable[[FaultedTable], object], type[IcesizeError], str]] = {
    "dropped": (lambda s: s.catalog.drop_table("db.events"), TableNotFound, NOT_FOUND),
    "dropped and made again": (
        lambda s: (s.catalog.drop_table("db.events"), s.make_again()), TableError, "dropped and recreated",
    ),
    "renamed": (lambda s: s.catalog.rename_table("db.events", "db.renamed"), TableNotFound, NOT_FOUND),
}  # fmt: skip


@pytest.mark.fault(25)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("point", [*EARLY, POINTS[2]])
@pytest.mark.parametrize("fate", FATES)
def test_the_table_goes_away(faulted: FaultedTable, another: FaultedTable, how: str, point: str, fate: str) -> None:
    """If the table is dropped, recreated or renamed during a batch, the batch fails, and the new table gets no rows."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()
    folder = Path(local_path(faulted.table().location()))
    before = data_files(folder)
    act, error, message = FATES[fate]
    with armed(point, operation.once(lambda: act(another))), pytest.raises(error, match=message):
        operation.act()
    if point == "before-swap":
        # whether the catalog's "conflict" was true was not found out any more, so nothing is deleted
        assert data_files(folder) > before
    else:
        assert data_files(folder) == before
    if fate == "renamed":
        faulted.catalog.rename_table("db.renamed", "db.events")
        assert operation.again().operations == OPERATIONS[how]
        return
    if fate == "dropped":
        another.make_again()
    assert faulted.table().metadata.snapshots == []
    assert not [key for key in faulted.table().properties if key.startswith("icesize.")]


@pytest.mark.fault(25)
def test_the_table_goes_away_from_merges_beside_a_stream(faulted: FaultedTable, another: FaultedTable) -> None:
    """Background merges write nothing to a recreated table, and report it."""
    operation = WriteOrMerge(faulted, "async")
    operation.prepare()
    folder = Path(local_path(faulted.table().location()))
    known: list[set[Path]] = []

    def make_again() -> None:
        known.append(data_files(folder))
        FATES["dropped and made again"][0](another)

    with armed("background", operation.once(make_again)):
        report = operation.act()
    assert "dropped and recreated" in report.notes[0]
    assert data_files(folder) == known[0]
    assert faulted.table().metadata.snapshots == []


@pytest.mark.fault(26)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", [*EARLY, POINTS[2]])
def test_the_snapshot_that_we_read_expires(faulted: FaultedTable, another: FaultedTable, how: str, point: str) -> None:
    """A merge whose planning snapshot has expired is committed: its input files are compared, not the history."""
    operation = WriteOrMerge(faulted, how)
    operation.prepare()

    def expire_all() -> None:
        rival_append(another, 1000)
        expire(another.table())

    with armed(point, operation.once(expire_all)):
        report = operation.act()
    assert (report.conflicts, report.operations) == ((), OPERATIONS[how])


@pytest.mark.fault(36)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", [*EARLY, POINTS[2]])
def test_main_is_moved_beside_its_history(rest_faulted: FaultedTable, iceberg: Iceberg, how: str, point: str) -> None:
    """If `main` moves off the snapshot of a plan, rows deleted on the new history stay so."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    iceberg("ALTER TABLE {}.db.events SET TBLPROPERTIES ('write.delete.mode'='merge-on-read')")
    iceberg("ALTER TABLE {}.db.events CREATE BRANCH audit")
    iceberg("DELETE FROM {}.db.events.branch_audit WHERE id IN (0, 12)")
    # main gets the younger snapshot of the two, so that sequence numbers do not tell of the deletes
    rival_append(rest_faulted, 1000)

    def move() -> None:
        committed = range(20, 30) if how == "async" else ()
        beside = rest_faulted.table().metadata.refs["audit"].snapshot_id
        iceberg(f"CALL {{}}.system.set_current_snapshot('db.events', {beside})")
        rest_faulted.forget(0, 12, 1000, *committed)

    with armed(point, operation.once(move)):
        report = operation.act()
    # the rows of the batch before a merge in the background are not on the new history: too much of it is deleted
    assert report.operations == (() if how == "async" else OPERATIONS[how])
    # PyIceberg counts delete files otherwise than Iceberg does
    iceberg.compact()


@pytest.mark.fault(26)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("point", ["statistics", "planned"])
def test_a_file_that_we_merge_is_gone(faulted: FaultedTable, how: str, point: str) -> None:
    """If a small file is missing, its merge is dropped and reported; other changes are committed. `maintain` fails."""
    operation = WriteOrMerge(faulted, how, ends_well=False)
    operation.prepare()
    input_file = next(Path(local_path(f.file_path)) for f in faulted.files() if f.partition[0] == "h0")
    aside = faulted.folder / input_file.name
    # a merge without new rows does not look at rows: nothing is passed before it plans
    with armed(point if how in INLINE else "planned", operation.once(lambda: input_file.rename(aside))):
        report = operation.act()
    assert [note for note in report.notes if input_file.name in note]
    assert report.operations == OPERATIONS[how]
    assert faulted.leftovers() == set()
    # whoever took it away puts it back: no row of it is lost
    aside.rename(input_file)
