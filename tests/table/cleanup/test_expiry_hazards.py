"""Expiry where catalog, storage or other writers are not what they should be: nothing that is needed goes."""

from __future__ import annotations

import gzip
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.table.statistics import StatisticsFile
from pyiceberg.table.update import TableRequirement, TableUpdate
from pyiceberg.typedef import Identifier

import icesize
from icesize import SizedTable
from icesize.environment import Environment
from icesize.errors import CommitStateUnknown, PolicyError, TableError
from icesize.failpoints import armed
from icesize.maintenance.jobs.rewrite_manifests import rewrite_manifests
from icesize.maintenance.passes.maintain import STEPS, MaintenanceReport, Pass
from icesize.maintenance.rounds import Budget
from icesize.maintenance.table_context import TableContext
from icesize.table.cleanup.expiry import ExpiryReport, expire
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.state.handle import TableHandle
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.expiry import assert_clean, history, run_expiry
from tests.support.jobs import context_of
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import (
    append,
    arrow,
    check,
    compact,
    data_files_on_disk,
    ids_of,
    local,
    make_table,
    request_on,
    run,
    write,
)

ANOTHER_STATE = "the catalog shows another state than that of this expiry: the next one deletes what is left"


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """The same tests on both kinds of catalog, and in format v2 and v3."""
    return catalog_of(request)


class LaggingCatalog(SqlCatalog):
    """From its first commit on, landed or not, it shows `older`, as a replica that lags does; commits see the truth."""

    older: Table
    lags = False

    def load_table(self, identifier: str | Identifier) -> Table:
        return self.older if self.lags else super().load_table(identifier)

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        self.lags = False
        try:
            return super().commit_table(table, requirements, updates)
        finally:
            self.lags = True


class VendedIO(FsspecFileIO):
    """Storage that is deleted from by credentials that came with the table and that hold until the next ones come."""

    expired = False

    def delete(self, location: Any) -> None:
        if self.expired:
            raise PermissionError("the token has expired")
        super().delete(location)


class VendingCatalog(SqlCatalog):
    """Gives new credentials with each load of a table, which end the ones before."""

    issued: VendedIO | None = None

    def load_table(self, identifier: str | Identifier) -> Table:
        table = super().load_table(identifier)
        if self.issued is not None:
            self.issued.expired = True
        table.io = self.issued = VendedIO(dict(table.io.properties))
        return table


def again(lake: SqlCatalog, kind: type[SqlCatalog]) -> Any:
    """The same catalog seen by a client of another class."""
    return kind("lake", uri=lake.properties["uri"], warehouse=lake.properties["warehouse"])


def appended(catalog: Catalog, count: int = 4) -> Table:
    """A table of so many appends to partition `a`, rows 1 to `count`."""
    make_table(catalog)
    for number in range(1, count + 1):
        append(catalog, [number])
    return catalog.load_table("db.t")


def lagging(lake: SqlCatalog) -> LaggingCatalog:
    """Rows 1 to 5; the replica shows the first two, after an earlier expiry, and none of the snapshots due now."""
    table = appended(lake, 2)
    table.manage_snapshots().create_tag(table.metadata.snapshots[-1].snapshot_id, "daily").commit()
    run_expiry(lake, retain_last=1)
    catalog: LaggingCatalog = again(lake, LaggingCatalog)
    catalog.older = lake.load_table("db.t")
    for number in (3, 4, 5):
        append(lake, [number])
    return catalog


def once(action: Callable[[], object]) -> Callable[[], None]:
    """The action, the first time only."""
    left = [action]

    def act() -> None:
        if left:
            left.pop()()

    return act


def at(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """The action, from the given time on."""
    reached: list[int] = []

    def act() -> None:
        reached.append(1)
        if len(reached) >= number:
            action()

    return act


def killed(catalog: Catalog, point: str = "after-swap", number: int = 1, retain_last: int = 1) -> None:
    """An expiry that is stopped where it gets to this point for the given time."""

    def stop() -> None:
        raise KeyboardInterrupt

    with armed(point, at(number, stop)), pytest.raises(KeyboardInterrupt):
        run_expiry(catalog, retain_last=retain_last)


def journals(table: Table) -> list[Path]:
    return list(local(table.location()).rglob("icesize-expiry-*"))


def compress_old_metadata(table: Table) -> None:
    """As Java writes them where `write.metadata.compression-codec` is gzip, though their names do not say so."""
    for entry in table.metadata.metadata_log:
        path = local(entry.metadata_file)
        path.write_bytes(gzip.compress(path.read_bytes()))


def rename_owner(table: Table) -> None:
    """A change that leaves all snapshots and refs as they are."""
    with table.transaction() as transaction:
        transaction.set_properties(owner="somebody")


def test_a_damaged_metadata_file_stops_the_deleting(mini: MiniRest) -> None:
    """Nobody can tell whether a tag was lost: no file goes, and the message names the file."""
    catalog = mini.catalog("lake")
    table = history(catalog)
    files = data_files_on_disk(table)
    mini.before_swap = lambda: rename_owner(mini.catalog("lake").load_table("db.t"))
    killed(catalog)
    damaged = catalog.load_table("db.t").metadata.metadata_log[-1].metadata_file
    local(damaged).write_bytes(b"{")
    with pytest.raises(TableError, match=f"Cannot read the metadata file {damaged}"):
        run_expiry(catalog, retain_last=1)
    assert data_files_on_disk(table) == files


def hide(location: str) -> None:
    """Take a file away, as an expiry of somebody else's does; it is kept beside as `away`."""
    local(location).rename(local(location).with_name("away"))


def test_a_state_from_before_all_that_has_expired_deletes_nothing(lake: SqlCatalog) -> None:
    """It shows none of the expired snapshots, and not the live ones either: their files stay."""
    report = run_expiry(lagging(lake), retain_last=1)
    assert (len(report.snapshot_ids_expired), report.files_deleted) == (2, {})
    assert ANOTHER_STATE in report.notes
    assert ids_of(lake) == [1, 2, 3, 4, 5]
    run_expiry(lake, retain_last=1)
    assert ids_of(lake) == [1, 2, 3, 4, 5]
    assert_clean(lake.load_table("db.t"))


def test_a_state_from_before_does_not_turn_a_conflict_into_a_success(lake: SqlCatalog) -> None:
    """Another writer came first, and the replica shows none of the snapshots that were to go: nothing has landed."""
    catalog = lagging(lake)
    with armed("before-swap", once(lambda: append(lake, [6]))):
        report = run_expiry(catalog, retain_last=1)
    assert (report.snapshot_ids_expired, report.files_deleted) == ((), {})
    table = lake.load_table("db.t")
    check(table)
    assert len(table.metadata.snapshots) == 5
    assert ids_of(lake) == [1, 2, 3, 4, 5, 6]


def test_a_journal_that_a_later_expiry_took_over_is_left_to_it(lake: SqlCatalog) -> None:
    """An expiry that is overtaken while it deletes stops and says so; the other one has deleted all."""
    history(lake)

    def overtake() -> None:
        append(lake, [99])
        run_expiry(lake, retain_last=1)

    with armed("before-delete", once(overtake)):
        report = run_expiry(lake, retain_last=1)
    assert (report.files_deleted, report.notes[-1]) == ({}, ANOTHER_STATE)
    assert ids_of(lake) == [1, 2, 3, 4, 10, 99]
    assert_clean(lake.load_table("db.t"))


@pytest.mark.parametrize("rival_is", ["done", "killed"])
def test_of_two_expiries_at_a_time_one_has_nothing_to_do(
    catalog: Catalog, rival_is: str, request: pytest.FixtureRequest
) -> None:
    """Both decided the same; the one that comes second reports none of the other's work, and its journal goes.

    What a killed one has left is finished by the next, not by the one that lost to it. The server of the REST catalog
    answers with an internal error that snapshots to be removed are not there.
    """
    history(catalog)
    reports = []

    def come_first() -> None:
        if rival_is == "done":
            reports.append(run_expiry(catalog, retain_last=1))
        else:
            killed(catalog, "before-delete")

    with armed("before-swap", once(come_first)):
        late = run_expiry(catalog, retain_last=1)
    table = catalog.load_table("db.t")
    assert (late.snapshot_ids_expired, late.files_deleted) == ((), {})
    assert late.notes == ("another expiry came first: nothing was left to do",)
    assert len(journals(table)) == (0 if rival_is == "done" else 1)
    if rival_is == "done":
        assert len(reports[0].snapshot_ids_expired) == 5
    assert run_expiry(catalog, retain_last=1).notes == ()
    assert journals(table) == []
    if isinstance(catalog, RestCatalog):
        request.getfixturevalue("mini").errors.clear()
    assert ids_of(catalog) == [1, 2, 3, 4, 10]
    assert_clean(table)


@pytest.mark.parametrize("retain_last", [1, 4])
def test_a_catalog_that_accepts_a_second_removal(mini: MiniRest, retain_last: int) -> None:
    """Iceberg's REST server commits the later of two equal expiries, or rejects it as nonsense: it reports nothing."""
    mini.like_java = True
    catalog = mini.catalog()
    history(catalog)
    reports = []
    with armed("before-swap", once(lambda: reports.append(run_expiry(catalog, retain_last=retain_last)))):
        late = run_expiry(catalog, retain_last=retain_last)
    table = catalog.load_table("db.t")
    assert len(reports[0].snapshot_ids_expired) == 7 - len(table.metadata.snapshots) > 0
    assert (late.snapshot_ids_expired, late.files_deleted) == ((), {})
    assert late.notes == ("another expiry came first: nothing was left to do",)
    assert journals(table) == []
    assert ids_of(catalog) == [1, 2, 3, 4, 10]
    assert_clean(table)


@pytest.mark.parametrize(("first", "second"), [(4, 4), (3, 4)])
def test_a_second_removal_finishes_what_the_first_left(mini: MiniRest, first: int, second: int) -> None:
    """The table names the later journal, so that expiry deletes the files of both and removes both journals."""
    mini.like_java = True
    catalog = mini.catalog()
    history(catalog)
    with armed("before-swap", once(lambda: killed(catalog, retain_last=first))):
        late = run_expiry(catalog, retain_last=second)
    assert (late.snapshot_ids_expired, late.files_deleted["manifest_lists"]) == ((), 7 - first)
    assert late.notes == (
        "another expiry came first and removed 3 of these snapshots; this one deleted the files left",
    )
    table = catalog.load_table("db.t")
    assert journals(table) == []
    assert ids_of(catalog) == [1, 2, 3, 4, 10]
    assert_clean(table)


def test_an_expiry_that_loses_to_a_smaller_one_takes_it_over(lake: SqlCatalog) -> None:
    """What the other leaves it expires, and it deletes the files of both; one journal at a time, none in the end."""
    appended(lake)

    def come_first() -> None:
        killed(lake, retain_last=3)

    with armed("before-swap", once(come_first)):
        report = run_expiry(lake, retain_last=1)
    table = lake.load_table("db.t")
    assert len(table.metadata.snapshots) == 1
    assert report.files_deleted["manifest_lists"] == 3
    assert journals(table) == []
    assert_clean(table)


def test_what_hinders_the_deleting_is_told_after_the_commit(lake: SqlCatalog) -> None:
    """A manifest list that a kept snapshot needs cannot be read: expired, nothing deleted; the next run goes on."""
    table = appended(lake)
    needed = table.metadata.snapshots[-2].manifest_list
    with armed("after-swap", lambda: hide(needed)):
        report = run_expiry(lake, retain_last=2)
    assert (len(report.snapshot_ids_expired), report.files_deleted) == (2, {})
    assert report.notes[-1].startswith("not all files could be deleted (FileNotFoundError")
    local(needed).with_name("away").rename(local(needed))
    assert run_expiry(lake, retain_last=2).files_deleted == {"manifest_lists": 2}
    assert_clean(lake.load_table("db.t"))


@pytest.mark.parametrize(
    "call",
    [
        lambda table, version: table.versions(),
        lambda table, version: table.restore({"kind": "a"}, version),
        lambda table, version: table.expire_snapshots(keep_versions=1, older_than=timedelta(0)),
        lambda table, version: table.expire_snapshots(older_than=timedelta(0), retain_last=3, dry_run=True),
    ],
    ids=["versions", "restore", "expire", "dry-run"],
)
def test_history_that_cannot_be_read_is_an_error_of_the_table(
    lake: SqlCatalog, call: Callable[[SizedTable, int], object]
) -> None:
    """A manifest list went between the look at the table and the reading of it: no raw error of the storage."""
    version = appended(lake).metadata.snapshots[1]
    hide(version.manifest_list)
    with pytest.raises(TableError, match=r"Cannot read the history of 'lake\.db\.t': FileNotFoundError"):
        call(icesize.open(None, "db.t", catalog=lake), version.snapshot_id)
    assert len(lake.load_table("db.t").metadata.snapshots) == 4


def test_a_file_of_an_expired_parent_is_found_after_a_kill(lake: SqlCatalog) -> None:
    """Most catalogs keep the id of a parent that has expired: its manifests are gone, so they explain nothing."""
    appended(lake, 3)
    rewrite_manifests(context_of(TableHandle(lake, ("db", "t"))))
    table = lake.load_table("db.t")
    tagged = table.metadata.snapshots[-1]
    table.manage_snapshots().create_tag(tagged.snapshot_id, "x").commit()
    append(lake, [9], "b")
    # manifests are gone by then, their lists and the journal are not
    killed(lake, "before-delete", 2)
    set_parent(lake.load_table("db.t"), tagged.snapshot_id, tagged.parent_snapshot_id)
    compact(lake)
    append(lake, [10], "b")
    lake.load_table("db.t").manage_snapshots().remove_tag("x").commit()
    run_expiry(lake, retain_last=1)
    assert ids_of(lake) == [1, 2, 3, 9, 10]
    assert_clean(lake.load_table("db.t"))


def set_parent(table: Table, snapshot_id: int, parent_id: int | None) -> None:
    """Write a parent's id back into the metadata, from which PyIceberg drops it when the parent expires."""
    path = local(table.metadata_location)
    data = json.loads(path.read_text())
    (snapshot,) = (s for s in data["snapshots"] if s["snapshot-id"] == snapshot_id)
    assert parent_id is not None
    assert "parent-snapshot-id" not in snapshot
    snapshot["parent-snapshot-id"] = parent_id
    path.write_text(json.dumps(data))


def test_a_dry_run_counts_statistics(lake: SqlCatalog) -> None:
    """Statistics of snapshots that would go are told as they are deleted."""
    table = appended(lake, 3)
    path = local(table.location()) / "metadata" / "x.stats"
    path.write_bytes(b"x" * 10)
    with table.update_statistics() as change:
        change.set_statistics(
            StatisticsFile(
                snapshot_id=table.metadata.snapshots[0].snapshot_id, statistics_path=f"file://{path}",
                file_size_in_bytes=10, file_footer_size_in_bytes=4, blob_metadata=[],
            )
        )  # fmt: skip
    told = run_expiry(lake, retain_last=1, dry_run=True)
    done = run_expiry(lake, retain_last=1)
    assert told.files_deleted == done.files_deleted == {"manifest_lists": 2, "other_files": 1}
    assert not path.exists()


def test_a_file_that_comes_back_while_others_are_deleted_stays(lake: SqlCatalog) -> None:
    """Somebody registers a file of an expired snapshot anew, just ahead of its deletion: it is spared."""
    table = make_table(lake)
    old = write(table, [1])
    run(lake, request_on(table, [old]), table)
    append(lake, [2])
    compact(lake)
    append(lake, [3])

    def register() -> None:
        run(lake, request_on(lake.load_table("db.t"), [old]), lake.load_table("db.t"))

    with armed("before-delete", once(register)):
        report = run_expiry(lake, retain_last=1)
    assert report.files_deleted["data_files"] == 1
    assert local(old.path).exists()
    assert ids_of(lake) == [1, 1, 2, 3]


def test_an_expiry_of_refs_only_finishes_the_one_before(lake: SqlCatalog) -> None:
    """It expires no snapshot and writes no journal; what a killed run left is deleted all the same."""
    appended(lake, 3)
    killed(lake)
    table = lake.load_table("db.t")
    table.manage_snapshots().create_tag(table.metadata.snapshots[-1].snapshot_id, "old", max_ref_age_ms=1).commit()
    report = run_expiry(lake, retain_last=1)
    assert (report.refs_removed, report.files_deleted) == (("old",), {"manifest_lists": 2})
    assert_clean(lake.load_table("db.t"))


@pytest.mark.parametrize("compressed", [False, True])
def test_a_tag_that_was_lost_with_a_killed_run_keeps_its_files(mini: MiniRest, compressed: bool) -> None:
    """The server removed a tag that it was not asked about; the run that comes after the kill deletes nothing, also
    where metadata files are compressed."""
    catalog, rival = mini.catalog("lake"), mini.catalog("lake")
    table = history(catalog)
    files = data_files_on_disk(table)
    first = table.metadata.snapshots[0].snapshot_id
    mini.before_swap = lambda: rival.load_table("db.t").manage_snapshots().create_tag(first, "late").commit()
    killed(catalog)
    if compressed:
        compress_old_metadata(catalog.load_table("db.t"))
    report = run_expiry(catalog, retain_last=1)
    assert (report.files_deleted, data_files_on_disk(table)) == ({}, files)
    assert "another writer made late on an expiring snapshot" in "".join(report.notes)


def test_an_answer_that_is_lost_stays_unknown_whatever_comes_next(mini: MiniRest) -> None:
    """Storage fails in the attempt after it: the first may land still, so no file goes and a later run finishes."""
    catalog = mini.catalog("lake")
    table = history(catalog)
    files = data_files_on_disk(table)
    mini.fail_next_commit(Fault("reset", "before"))

    def disk_full() -> None:
        raise OSError("disk full")

    with (
        armed("before-swap", at(2, disk_full)),
        pytest.raises(CommitStateUnknown, match=r"OSError: disk full.*Run the expiry again"),
    ):
        run_expiry(catalog, retain_last=1)
    assert data_files_on_disk(table) == files
    assert len(journals(table)) == 1
    run_expiry(catalog, retain_last=1)
    assert ids_of(catalog) == [1, 2, 3, 4, 10]


def test_a_name_that_other_files_match_goes_alone(lake: SqlCatalog) -> None:
    """A `*` in a partition's folder, as Spark writes it."""
    table = make_table(lake, {})
    file = local(table.location()) / "data" / "kind=a*b" / "x.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(arrow([1], "a*b"), file)
    like_it = file.parent.with_name("kind=aXb") / "x.parquet"
    like_it.parent.mkdir()
    like_it.write_bytes(b"")
    table.add_files([f"file://{file}"])
    lake.load_table("db.t").overwrite(arrow([5]))
    append(lake, [6])
    append(lake, [7])
    report = run_expiry(lake, retain_last=1)
    assert (report.files_failed, report.notes) == (0, ())
    assert (file.exists(), like_it.exists()) == (False, True)
    assert run_expiry(lake, retain_last=1).notes == ()


def test_a_lost_race_does_not_hold_up_the_stream(lake: SqlCatalog) -> None:
    """Between two attempts the lock of the stream's batches is free; it is held at each swap and free at the end."""
    now_ms = appended(lake).metadata.last_updated_ms + 10 * 86_400_000
    lock = threading.Lock()
    waits: list[bool] = []
    swaps: list[bool] = []
    rival = once(lambda: append(lake, [5]))

    def before_swap() -> None:
        swaps.append(lock.locked())
        rival()

    environment = Environment(now_ms=lambda: now_ms, sleep=lambda seconds: waits.append(lock.locked()))
    with armed("before-swap", before_swap):
        report = expire(TableHandle(lake, ("db", "t"), commit_lock=lock), ExpireOptions(retain_last=1), environment)
    # the second swap is that of the rival's append
    assert (waits, swaps, lock.locked()) == ([False], [True, True, True], False)
    assert len(report.snapshot_ids_expired) == 4


def test_files_go_by_the_newest_credentials(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the table brings new ones, and the old may have ended by then."""
    history(lake)
    monkeypatch.setattr("icesize.table.storage.bulk_delete.FILES_BETWEEN_CHECKS", 1)
    report = run_expiry(again(lake, VendingCatalog), retain_last=1)
    assert (report.files_failed, report.files_deleted["data_files"]) == (0, 2)
    assert_clean(lake.load_table("db.t"))


def test_orphans_go_by_the_newest_credentials(lake: SqlCatalog) -> None:
    """The search looks at the table several times before it deletes."""
    table = appended(lake)
    orphan = local(table.location()) / "data" / "orphan.parquet"
    orphan.write_bytes(b"left")
    os.utime(orphan, (0, 0))
    opened = icesize.open(None, "db.t", catalog=again(lake, VendingCatalog))
    report = opened.remove_orphan_files(dry_run=False)
    assert (report.files_failed, report.files_deleted, orphan.exists()) == (0, 1, False)
    check(lake.load_table("db.t"))


@pytest.mark.parametrize("content", [b"", b'{"format-version": 2, "ta'])
def test_metadata_that_is_half_written_stops_nothing(lake: SqlCatalog, content: bytes) -> None:
    """Of a writer that is at it, or that crashed: the expiry deletes only what the table itself referred to."""
    table = appended(lake)
    file = local(table.location()) / "metadata" / "00099-x.metadata.json"
    file.write_bytes(content)
    assert len(run_expiry(lake, retain_last=1).snapshot_ids_expired) == 3
    assert file.read_bytes() == content
    file.unlink()
    assert_clean(lake.load_table("db.t"))


@pytest.mark.parametrize("value", ["-1", "1_000", "0", "9" * 30])
def test_properties_that_are_no_numbers_are_refused(lake: SqlCatalog, value: str) -> None:
    """Neither a negative number of snapshots nor what only Python takes for a number."""
    with appended(lake).transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": value})
    with pytest.raises(PolicyError, match=rf"to-keep' \('{value}'\) must be a whole number >= 1"):
        run_expiry(lake)
    assert len(lake.load_table("db.t").metadata.snapshots) == 4


def test_storage_that_fails_in_one_step_does_not_end_the_pass(lake: SqlCatalog) -> None:
    """An error that is not icesize's own is reported by class and first line; the steps after it run."""
    appended(lake)

    def fails(context: TableContext) -> None:
        raise OSError("connection reset\nwith a page of details")

    steps = [replace(step, run=(fails,)) if step.name == "manifests" else step for step in STEPS]
    report = Pass(context_of(TableHandle(lake, ("db", "t"))), Budget()).run(steps)
    assert report.failed == {"manifests": "OSError: connection reset"}
    assert (report.expiry is None, report.orphans is None, report.succeeded) == (False, False, False)


@pytest.mark.parametrize(
    ("properties", "why"),
    [
        ({"gc.enabled": "false"}, "so other tables may need them"),
        ({"gc.enabled": "true", "nessie.commit.id": "1"}, "Run nessie-gc, Nessie's own collector"),
    ],
)
def test_a_step_that_the_table_forbids_is_no_failure(lake: SqlCatalog, properties: dict[str, str], why: str) -> None:
    """Both steps that delete are left out with the reason, no file is deleted, and the pass is well."""
    table = appended(lake)
    with table.transaction() as change:
        change.set_properties(properties)
    before = data_files_on_disk(table)
    report = icesize.open(None, "db.t", catalog=lake).maintain()
    assert (report.failed, sorted(report.unsupported), report.succeeded) == ({}, ["expiry", "orphans"], True)
    assert {name: why in text for name, text in report.to_dict()["unsupported"].items()} == {
        "expiry": True, "orphans": True,
    }  # fmt: skip
    assert before <= data_files_on_disk(table)


def test_files_that_could_not_be_deleted_are_no_good_pass() -> None:
    """The expiry has landed, and single files of it are still there."""
    assert not MaintenanceReport(expiry=ExpiryReport(files_failed=1)).succeeded
    assert MaintenanceReport(expiry=ExpiryReport()).succeeded


@pytest.mark.parametrize("is_forbidden", [True, False])
def test_an_expiry_obeys_what_is_set_before_its_commit(lake: SqlCatalog, is_forbidden: bool) -> None:
    """If another program forbids it, or keeps versions from now on, after it has begun, it decides by that."""
    at_once = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}
    make_table(lake, properties=at_once)
    for number in range(4):
        append(lake, [number], "a")
    properties = {"gc.enabled": "false"} if is_forbidden else {"icesize.policy.keep-versions": "9"}

    def change() -> None:
        with lake.load_table("db.t").transaction() as change:
            change.set_properties(properties)

    with armed("expiry-decided", change):
        report = icesize.open(None, "lake.db.t", catalog=lake).maintain()
    assert ("expiry" in report.unsupported) == is_forbidden
    # a merge of the four batches comes first
    assert len(lake.load_table("db.t").metadata.snapshots) == 5
