"""Maintain the tables of a catalog in one pass: whose turn it is, what is left alone, two maintainers, kills."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from requests.exceptions import ConnectionError as NoConnection

import icesize
from icesize.concurrency import TABLES_AT_ONCE
from icesize.environment import Environment
from icesize.errors import ArgumentError, CommitStateUnknown, TableError, TableNotFound
from icesize.events import Progress
from icesize.failpoints import armed, for_child
from icesize.maintenance.passes.many_tables import STEP, ManyTables, ManyTablesReport, watch
from icesize.maintenance.passes.survey import CatalogTables
from icesize.maintenance.rounds import Budget
from icesize.planning.shared_budget import order_of
from icesize.table.catalog.tables import TablePattern
from tests.support.armed import failing_at
from tests.support.command_line import catalog_uri
from tests.support.tables import (
    CountingIO,
    FakeTime,
    arrow,
    check,
    commit_built,
    live_paths,
    local,
    make_table,
    merged,
    replaced,
    small_files,
)

ALL = TablePattern.of("lake.db.*")


def table_of(catalog: Catalog, name: str, files: int, **properties: str) -> Table:
    """A table of small files in one partition."""
    table = make_table(catalog, name=f"db.{name}", properties=properties)
    for number in range(files):
        table.append(arrow(range(10 * number, 10 * number + 10)))
    return table


def files_of(catalog: Catalog) -> dict[str, int]:
    """Live data files of each table."""
    names = sorted(catalog.list_tables("db"))
    return {name: len(live_paths(catalog.load_table(("db", name)))) for _, name in names}


def run(
    catalog: Catalog, budget: Budget | None = None, threads: int = TABLES_AT_ONCE, take_over: bool = False,
    **options: object,
) -> ManyTablesReport:  # fmt: skip
    tables = CatalogTables(catalog, ALL, **options)  # type: ignore[arg-type]
    return ManyTables(tables, threads, take_over).run(budget or Budget())


def ids_after(first: str) -> Callable[[], str]:
    """Ids of which the first is known: a pass orders its tables by it."""
    left = [first]
    return lambda: left.pop() if left else uuid.uuid4().hex


@pytest.mark.parametrize("threads", [1, 3])
def test_every_table_has_its_turn(catalog: Catalog, threads: int) -> None:
    """Small files are merged in each table, a table that needs nothing is counted, and a second pass finds no work."""
    for name, files in (("a", 5), ("b", 3), ("c", 1)):
        table_of(catalog, name, files)
    events = list[object]()
    report = run(catalog, threads=threads, environment=Environment(observe=events.append))
    assert files_of(catalog) == {"a": 1, "b": 1, "c": 1}
    assert ({one.table for one in report.tables}, report.idle) == ({"lake.db.a", "lake.db.b"}, 1)
    assert (report.succeeded, report.not_started, report.plan.files_saved) == (True, (), 6)
    done = [(event.done, event.total) for event in events if isinstance(event, Progress) and event.step == "tables"]
    assert done == [(1, 3), (2, 3), (3, 3)]
    for name in "abc":
        check(catalog.load_table(f"db.{name}"))
    second = run(catalog, threads=threads)
    assert (second.tables, second.idle, second.plan.tables) == ((), 3, ())


@pytest.mark.parametrize("is_due", [True, False])
def test_a_table_with_two_names_loses_no_file(lake: SqlCatalog, is_due: bool) -> None:
    """A pass over both names deletes nothing of either, names them, and does not succeed; others expire."""
    expiring = {"history.expire.max-snapshot-age-ms": "1"} if is_due else {}
    table_of(lake, "other", 3, **expiring)
    table = table_of(lake, "a", 3, **expiring)
    lake.register_table("db.b", table.metadata_location)
    lake.load_table("db.a").overwrite(arrow([100]))
    lake.load_table("db.a").append(arrow([101]))
    before = {name: lake.load_table(f"db.{name}").scan().to_arrow().num_rows for name in "ab"}
    files = set(local(table.location()).rglob("*"))
    report = run(lake)
    assert {name: lake.load_table(f"db.{name}").scan().to_arrow().num_rows for name in "ab"} == before
    assert files <= set(local(table.location()).rglob("*"))
    assert (report.succeeded, sorted(report.failed)) == (False, ["lake.db.a", "lake.db.b"])
    assert "'lake.db.b' in the same catalog is another name of this table" in report.plan.failed["lake.db.a"]
    left = [len(lake.load_table(f"db.{name}").metadata.snapshots) for name in ("a", "b")]
    assert (left[0] >= 5, left[1] >= 3) == (True, True)
    assert any(each.expiry and each.expiry.snapshot_ids_expired for each in report.tables) is is_due


class NotingIO(CountingIO):
    """Storage of a catalog that notes which manifests are opened."""

    noted: ClassVar[list[CountingIO]] = []

    def __init__(self, properties: object) -> None:
        super().__init__()
        self.noted.append(self)


def test_a_pass_reads_a_manifest_once_for_all_steps(lake: SqlCatalog) -> None:
    """What was read to rank the tables is not read again to maintain them, except to count orphan files."""
    table_of(lake, "a", 1)
    lake.properties["py-io-impl"] = f"{__name__}.NotingIO"
    NotingIO.noted.clear()
    assert run(lake).idle == 1
    assert len([path for io in NotingIO.noted for path in io.manifests]) == 2


class HiveCatalog(SqlCatalog):
    """A catalog that does not respond any more after so many loads of tables; by its name, one thread uses it."""

    loads_left = 0

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """Load a table, or fail as a client whose server is gone."""
        self.loads_left -= 1
        if self.loads_left < 0:
            raise NoConnection("refused")
        return super().load_table(identifier)

    def list_namespaces(self, namespace: str | tuple[str, ...] = ()) -> list[tuple[str, ...]]:
        """List namespaces, or fail in the same way."""
        if self.loads_left < 0:
            raise NoConnection("refused")
        return super().list_namespaces(namespace)


@pytest.mark.parametrize(("loads", "not_surveyed", "not_started"), [(2, 3, 1), (9, 0, 5)])
def test_a_catalog_that_ceases_to_respond_ends_the_pass(
    lake: SqlCatalog, loads: int, not_surveyed: int, not_started: int
) -> None:
    """One table waits for it, and the others do not, while tables are surveyed and while they are maintained."""
    for number in range(6):
        table_of(lake, f"t{number}", 2)
    leaving, time = HiveCatalog("lake", **lake.properties), FakeTime()
    leaving.loads_left = loads
    report = run(leaving, environment=time.environment)
    others = [why for why in report.failed.values() if why == "the catalog did not respond before"]
    waited = [why for why in report.failed.values() if "ConnectionError: refused" in why]
    assert (len(others), len(report.not_started)) == (not_surveyed, not_started)
    assert len(waited) == 6 - not_surveyed - not_started
    # two minutes for the survey, ten for the pass
    assert 600 <= round(time.seconds) < 800
    leaving.close()


def test_a_plan_shows_the_work_and_changes_nothing(lake: SqlCatalog) -> None:
    """Tables with most benefit per byte come first; without a budget, all due merges are planned."""
    for name, files in (("few", 2), ("many", 6), ("none", 1)):
        table_of(lake, name, files)
    plan = ManyTables(CatalogTables(lake, ALL)).plan(Budget())
    shares = [(share.survey.table, share.merges, share.files_saved) for share in plan.tables]
    assert shares == [("lake.db.many", 1, 5), ("lake.db.few", 1, 1)]
    assert (plan.idle, plan.bytes_left, plan.usd) == (1, 0, None)
    assert files_of(lake) == {"few": 2, "many": 6, "none": 1}


def test_python_has_the_pass_of_the_command(lake: SqlCatalog) -> None:
    """A dry run is a plan, a pass takes its budget as text, and a pattern that selects nothing is an error."""
    for name, files in (("few", 2), ("many", 6)):
        table_of(lake, name, files)
    plan = icesize.maintain("lake.db", catalog=lake, dry_run=True, is_chosen=lambda name: "few" not in name)
    assert [share.survey.table for share in plan.tables] == ["lake.db.many"]
    assert icesize.maintain("lake.db.*", "0", catalog=lake).plan.bytes_left > 0
    assert files_of(lake) == {"few": 2, "many": 6}
    report = icesize.maintain("lake.db.*", "1GiB", "10m", catalog=lake, policy={"max-small-files": 2}, concurrency=1)
    assert files_of(lake) == {"few": 1, "many": 1}
    assert {table.table for table in report.tables} == {"lake.db.many", "lake.db.few"}
    with pytest.raises(TableNotFound, match=r"Cannot maintain 'lake\.other\.\*': it selects no table"):
        icesize.maintain("lake.other.*", catalog=lake)
    with pytest.raises(ValueError, match=r"'budget-seconds' \('soon'\) must be a duration"):
        icesize.maintain("lake", budget_seconds="soon", catalog=lake)
    for wrong in (0, 2.5, "4"):
        with pytest.raises(ValueError, match=rf"'concurrency' \({wrong!r}\) must be a whole number >= 1"):
            icesize.maintain("lake", catalog=lake, concurrency=wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("call", [icesize.maintain, icesize.scan])
def test_a_name_of_another_catalog_is_refused(lake: SqlCatalog, call: Callable[..., object]) -> None:
    """With a given catalog, the rest of the name would select other tables than its author means, or all."""
    refused = (
        r"Cannot select 'db' in catalog 'lake': the name begins with another catalog, 'db'\. Write 'lake\.db', or pass "
        "that catalog"
    )
    with pytest.raises(ArgumentError, match=refused):
        call("db", catalog=lake)


class Held(SqlCatalog):
    """A catalog in which the second load of one table, which is that of its pass, waits until it may go on."""

    held = ""
    loads = 0
    may_go_on = threading.Event()

    def load_table(self, identifier: str | tuple[str, ...]) -> Table:
        """Load a table."""
        if identifier == ("db", self.held):
            self.loads += 1
            assert self.loads != 2 or self.may_go_on.wait(60)
        return super().load_table(identifier)


def test_an_interrupt_stops_the_passes_of_all_threads(lake: SqlCatalog) -> None:
    """Ctrl-C reaches the thread of the caller only; the tables that other threads work on begin no further step."""
    for name in ("a", "b"):
        table_of(lake, name, 3)
    worth = {
        share.survey.table: share.survey.seconds_saved_per_gib
        for share in ManyTables(CatalogTables(lake, ALL)).plan(Budget()).tables
    }
    first, second = order_of(worth, "m")
    catalog = Held("lake", **lake.properties)
    catalog.held = second.rpartition(".")[2]

    def observe(event: object) -> None:
        if isinstance(event, Progress) and (event.step, event.done) == (STEP, 1):
            catalog.may_go_on.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(catalog, environment=Environment(observe=observe, new_id=ids_after("m")))
    assert files_of(lake) == {first.rpartition(".")[2]: 1, catalog.held: 3}
    catalog.close()


def test_a_budget_of_bytes_goes_where_it_saves_most(lake: SqlCatalog) -> None:
    """What it does not pay for stays as it is, is counted, and is merged by the next pass."""
    for name, files in (("few", 2), ("many", 9)):
        table_of(lake, name, files)
    size_bytes = next(
        s.bytes_to_write for s in ManyTables(CatalogTables(lake, ALL)).plan(Budget()).tables if "many" in s.survey.table
    )
    report = run(lake, Budget(size_bytes))
    assert files_of(lake) == {"few": 2, "many": 1}
    assert (report.plan.files_saved, report.plan.bytes_left > 0) == (8, True)
    run(lake, Budget(size_bytes))
    assert files_of(lake) == {"few": 1, "many": 1}


def test_a_merge_larger_than_the_budget_is_done_in_parts(lake: SqlCatalog) -> None:
    """Each pass merges what fits. If no two files fit, the table is named with the budget that it needs, and is not
    counted as one without work."""
    table_of(lake, "t", 9, **{"icesize.policy.max-small-files": "1"})
    size_bytes = max(file.size_bytes for file in small_files(lake.load_table("db.t")))
    none = run(lake, Budget(size_bytes))
    assert (none.idle, none.bytes_rewritten) == (0, 0)
    assert any(note.startswith("lake.db.t: 1 merge cannot be done as a whole") for note in none.plan.notes)
    reports = [run(lake, Budget(4 * size_bytes)) for _ in range(3)]
    assert all(0 < report.bytes_rewritten <= 4 * size_bytes for report in reports[:2])
    assert files_of(lake)["t"] <= 3


def test_only_partitions_that_the_budget_pays_for_are_merged(lake: SqlCatalog) -> None:
    """A partition of the same table whose merge saves less per byte waits for the next pass."""
    table = make_table(lake, name="db.t")
    for number in range(12):
        table.append(arrow([number], "many" if number < 9 else "few"))
    due = ManyTables(CatalogTables(lake, ALL)).plan(Budget()).tables[0]
    report = run(lake, Budget(due.bytes_to_write * 10 // 12))
    assert (report.plan.tables[0].merges, report.plan.files_saved) == (1, 8)
    assert files_of(lake) == {"t": 4}


def test_tables_of_another_service_are_left_alone(lake: SqlCatalog) -> None:
    """They are named with the sign that shows the service; `take_over` maintains them, too."""
    table_of(lake, "amoro", 3, **{"self-optimizing.enabled": "true"})
    table_of(lake, "uniform", 3, **{"delta-version": "7"})
    table_of(lake, "off", 3, **{"self-optimizing.enabled": "false"})
    report = run(lake)
    assert files_of(lake) == {"amoro": 3, "off": 1, "uniform": 3}
    assert report.plan.left_alone == {
        "lake.db.amoro": "Amoro (self-optimizing.enabled)",
        "lake.db.uniform": "Delta Lake (delta-version)",
    }
    assert report.succeeded
    assert run(lake, take_over=True).plan.left_alone == {}
    assert files_of(lake) == {"amoro": 1, "off": 1, "uniform": 1}


def test_another_compactor_is_named_and_its_table_maintained(lake: SqlCatalog) -> None:
    """A REPLACE of another writer is a note, and no reason to leave the table alone."""
    table = make_table(lake)
    for number in range(8):
        table.append(arrow([number], "ab"[number % 2]))
    table = lake.load_table("db.t")
    theirs = merged(table, small_files(table, "a"))
    commit_built(lake, lambda builder: replaced(builder, theirs.inputs, theirs.files))
    report = run(lake)
    assert len(report.plan.notes) == 1
    assert report.plan.notes[0].startswith("another compactor works on 'lake.db.t': turn one off")
    assert (report.succeeded, files_of(lake)) == (True, {"t": 2})


def test_a_failing_table_does_not_end_the_pass(lake: SqlCatalog) -> None:
    """A table without its data files and one without its manifests are named with the reason; the others are merged."""
    for name in ("broken", "unreadable", "well"):
        table_of(lake, name, 3)
    local(live_paths(lake.load_table("db.broken"))[0]).unlink()
    head = lake.load_table("db.unreadable").current_snapshot()
    assert head is not None
    local(head.manifest_list).unlink()
    report = run(lake)
    assert report.failed.keys() == {"lake.db.broken", "lake.db.unreadable"}
    assert report.failed["lake.db.broken"].startswith("merges: Cannot compact 'lake.db.broken': every merge failed")
    assert "FileNotFoundError" in report.failed["lake.db.unreadable"]
    assert len(live_paths(lake.load_table("db.well"))) == 1
    assert not report.succeeded


def test_an_unknown_outcome_keeps_what_was_committed_before(lake: SqlCatalog) -> None:
    """The report has the visible commits of the table, and no other table may write the bytes of the budget again."""
    properties = {"icesize.cluster.by": "id", "history.expire.max-snapshot-age-ms": "1"}
    for name in ("one", "two"):
        table = make_table(lake, name=f"db.{name}", properties=properties)
        for number in range(8):
            table.append(arrow(range(number, 8_000, 8)))
    policy = {"target-file-size-bytes": 20_000, "small-file-limit-bytes": 1_000}
    planned = icesize.open(None, "db.one", catalog=lake, policy=policy).plan_clustering()
    assert planned is not None
    with failing_at(1, "expiry-decided", CommitStateUnknown("lost")):
        report = run(lake, Budget(planned.bytes_to_write), policy=policy, threads=1)
    first, second = report.tables
    assert report.failed == {first.table: "expiry: lost"}
    assert (len(first.clusterings), second.not_started) == (1, ("clustering",))
    assert first.bytes_rewritten > 0
    assert report.bytes_rewritten <= planned.bytes_to_write


def test_names_that_are_no_tables_to_maintain_are_skipped(lake: SqlCatalog) -> None:
    """A table whose format icesize does not write is no failure; excluded names do not appear at all."""
    table_of(lake, "secret", 3, **{"encryption.key-id": "k"})
    table_of(lake, "temporary", 3)
    table_of(lake, "well", 3)
    report = run(lake, is_chosen=lambda name: not name.startswith("lake.db.temp"))
    assert report.plan.skipped.keys() == {"lake.db.secret"}
    assert (report.succeeded, files_of(lake)) == (True, {"secret": 3, "temporary": 3, "well": 1})


def test_a_catalog_that_cannot_list_its_tables_is_an_error(lake: SqlCatalog) -> None:
    """There is nothing to work on, and the pass must not look as if it had been done."""
    lake.destroy_tables()
    seconds = [0.0]
    environment = Environment(monotonic=lambda: seconds[0], sleep=lambda pause: seconds.append(seconds.pop() + pause))
    with pytest.raises(TableError, match=r"Cannot list the tables of 'lake\.db\.\*'"):
        run(lake, environment=environment)


def test_tables_without_time_are_named(lake: SqlCatalog) -> None:
    """No table begins after the seconds are over, and no single one may use most of them while others wait."""
    for name in "abcd":
        table_of(lake, name, 2)
    seconds = [0.0]

    def observe(event: object) -> None:
        seconds[0] += 40.0 if isinstance(event, Progress) and event.step == "tables" else 0.0

    environment = Environment(monotonic=lambda: seconds[0], observe=observe)
    report = run(lake, Budget(seconds=100), threads=1, environment=environment)
    assert (len(report.tables), len(report.not_started)) == (3, 1)
    assert sorted(files_of(lake).values()) == [1, 1, 1, 2]


def test_a_stopped_pass_ends_between_tables(lake: SqlCatalog) -> None:
    """Once `is_stopped` is true, no table and no step begins."""
    for name in "abc":
        table_of(lake, name, 2)
    done = list[object]()
    environment = Environment(observe=lambda event: done.append(event) if getattr(event, "step", "") == "tables" else 0)
    report = run(lake, Budget(is_stopped=lambda: bool(done)), threads=1, environment=environment)
    assert (len(report.tables), len(report.not_started)) == (1, 2)


@pytest.mark.engine
def test_two_maintainers_at_once_do_the_work_of_one(lake: SqlCatalog) -> None:
    """Both wait for each other before each commit of a merge, so that what both can merge, both do merge. Of 30 tables
    of the same size they merge at most 15 % twice, and every table is well afterwards."""
    for number in range(30):
        table_of(lake, f"t{number}", 2)
    both, merges = threading.Barrier(2), list[int]()

    def wait() -> None:
        merges.append(1)
        with suppress(threading.BrokenBarrierError):
            both.wait(60)

    def maintain(maintainer: str) -> None:
        try:
            environment = Environment(new_id=ids_after(maintainer))
            run(SqlCatalog("lake", **lake.properties), threads=1, environment=environment)
        finally:
            both.abort()

    with armed("files-written", wait):
        threads = [threading.Thread(target=maintain, args=(name,)) for name in ("one", "two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(files_of(lake).values()) == {1}
    assert 30 <= len(merges) <= 1.15 * 30
    for number in range(30):
        check(lake.load_table(f"db.t{number}"))


def test_a_service_begins_passes_at_a_fixed_interval() -> None:
    """After a pass that took longer than the interval, the next begins at once; a stop ends the waiting."""
    time = FakeTime()
    began = list[float]()

    def run_pass() -> None:
        began.append(round(time.seconds, 1))
        time.seconds += 100.0 if len(began) == 2 else 1.0

    watch(run_pass, 60, time.environment, lambda: len(began) == 4 and time.seconds > 230)
    assert began == [0.0, 60.0, 160.0, 220.0]
    assert max(time.sleeps) <= 0.5
    assert time.seconds < 232


@pytest.mark.engine
@pytest.mark.parametrize("point", ["files-written@2", "before-swap@3", "after-swap@2"])
def test_a_killed_pass_goes_on(lake: SqlCatalog, tmp_path: Path, point: str) -> None:
    """Whatever moment kills a pass, the next one finishes its work without a repair, and no row is lost."""
    for name in "abc":
        table_of(lake, name, 3)
    command = [sys.executable, "-m", "icesize", "maintain", "lake.db.*", "--catalog-uri", catalog_uri(tmp_path)]
    killed = subprocess.run(command, env=os.environ | for_child(f"{point}=kill"), capture_output=True, check=False)
    assert killed.returncode == -9
    report = run(SqlCatalog("lake", **lake.properties))
    assert (report.succeeded, files_of(lake)) == (True, {"a": 1, "b": 1, "c": 1})
    for name in "abc":
        table = lake.load_table(f"db.{name}")
        check(table)
        assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(30))
