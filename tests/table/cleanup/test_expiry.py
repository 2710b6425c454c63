"""Expiry on real tables: what goes, what stays, what is deleted, and what happens when it is disturbed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from pyiceberg.table.update import RemoveSnapshotRefUpdate

import icesize
from icesize.environment import Environment
from icesize.errors import CommitStateUnknown, PolicyError, TableError, UnsupportedTable
from icesize.failpoints import FailpointReached, armed
from icesize.planning.retention.ancestry import VERSION_TAG
from icesize.table.cleanup.expired_files import ExpiryCleanup
from icesize.table.cleanup.expiry import expire
from icesize.table.cleanup.journal import JOURNAL, Journal
from icesize.table.cleanup.may_delete import CatalogOwners, Others
from icesize.table.cleanup.retention_inputs import ExpireOptions
from icesize.table.commit.attempts import UNKNOWN_ATTEMPTS
from icesize.table.state.handle import TableHandle
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.expiry import HOUR_MS, assert_clean, history, needed_files, run_expiry
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import (
    append,
    arrow,
    check,
    compact,
    data_files_on_disk,
    ids_of,
    live_paths,
    local,
    make_table,
    make_visible,
    merged,
    request_on,
    run,
    small_files,
    theirs,
    write,
)
from tests.support.v3_tables import with_document


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """The same tests on both kinds of catalog, and in format v2 and v3."""
    return catalog_of(request)


def fail(point: str) -> Callable[[], None]:
    """An action that stops the program as an exception would."""

    def action() -> None:
        raise FailpointReached(point)

    return action


def test_what_no_rule_keeps_goes_with_its_files(catalog: Catalog) -> None:
    """The newest append and its merge stay; files that only older snapshots needed are gone from disk."""
    before = history(catalog)
    report = run_expiry(catalog, retain_last=1)
    table = catalog.load_table("db.t")
    assert [s.snapshot_id for s in table.metadata.snapshots] == [s.snapshot_id for s in before.metadata.snapshots[-2:]]
    assert len(report.snapshot_ids_expired) == 5
    # 1 and 2 were merged; that file, 3 and 4 were merged again, but the newest append still shows them
    assert report.files_deleted["data_files"] == 2
    assert report.files_deleted["manifest_lists"] == 5
    assert ids_of(catalog) == [1, 2, 3, 4, 10]
    assert_clean(table)


def test_thousands_of_snapshots_go_in_one_commit(lake: Catalog) -> None:
    """More than one update removes them; those that a branch keeps in between stay, without a parent that is gone."""
    make_table(lake)
    table = append(lake, [1])
    snapshots = [table.metadata.snapshots[0]]
    for number in range(2_499):
        before = snapshots[-1]
        changes = {
            "snapshot_id": 10 + number, "parent_snapshot_id": before.snapshot_id,
            "sequence_number": (before.sequence_number or 0) + 1, "timestamp_ms": before.timestamp_ms + 1,
        }  # fmt: skip
        snapshots.append(before.model_copy(update=changes))
    make_visible(lake, table, snapshots[1:])
    with lake.load_table("db.t").manage_snapshots() as change:
        change.create_branch(1_200, "kept")
    report = run_expiry(lake, retain_last=1)
    kept = {s.snapshot_id: s.parent_snapshot_id for s in lake.load_table("db.t").metadata.snapshots}
    assert kept == {1_200: None, 2_508: None}
    assert len(report.snapshot_ids_expired) == 2_498
    assert ids_of(lake) == [1]


def test_without_arguments_the_properties_of_the_table_hold(lake: Catalog) -> None:
    """`history.expire.*`: age and number of snapshots."""
    table = history(lake)
    with table.transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "4"})
    report = run_expiry(lake)
    assert (len(report.snapshot_ids_expired), len(lake.load_table("db.t").metadata.snapshots)) == (3, 4)
    with lake.load_table("db.t").transaction() as change:
        change.set_properties({"history.expire.max-snapshot-age-ms": str(30 * 24 * HOUR_MS)})
    assert run_expiry(lake).snapshot_ids_expired == ()


def test_versions_do_not_cost_young_snapshots(lake: Catalog) -> None:
    """What the table keeps for its age stays whatever is asked besides; only an explicit age goes below."""
    before = history(lake)
    for days, options in ((0, {"keep_versions": 1}), (0, {"retain_last": 1}), (4, {"keep_versions": 1})):
        report = run_expiry(lake, days=days, older_than=None, **options)
        assert report.snapshot_ids_expired == ()
    assert len(lake.load_table("db.t").metadata.snapshots) == len(before.metadata.snapshots)
    told = run_expiry(lake, days=6, keep_versions=1, older_than=None, dry_run=True).snapshot_ids_expired
    assert run_expiry(lake, days=0, keep_versions=1, older_than=timedelta(0)).snapshot_ids_expired == told != ()


def test_an_empty_table_has_no_versions_to_keep(lake: Catalog) -> None:
    """Neither before its first snapshot nor after `CREATE OR REPLACE TABLE`, which leaves main without one."""
    table = make_table(lake)
    assert run_expiry(lake, keep_versions=2).snapshot_ids_expired == ()
    table = append(lake, [1])
    lake.commit_table(table, (), (RemoveSnapshotRefUpdate(ref_name="main"),))
    assert run_expiry(lake, keep_versions=2).snapshot_ids_expired == (table.metadata.current_snapshot_id,)


def test_nothing_to_expire_commits_nothing(catalog: Catalog) -> None:
    """A second expiry by the same rules leaves the metadata file as it is."""
    history(catalog)
    run_expiry(catalog, retain_last=1)
    before = catalog.load_table("db.t").metadata_location
    again = run_expiry(catalog, retain_last=1)
    assert (again.snapshot_ids_expired, again.files_deleted) == ((), {})
    assert catalog.load_table("db.t").metadata_location == before


def test_where_nothing_expires_a_dry_run_tells_of_no_file(lake: Catalog) -> None:
    """Old metadata files that the table no longer lists go when snapshots do, and not before."""
    history(lake)
    with lake.load_table("db.t").transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1"})
    table = append(lake, [11])
    assert len(table.metadata.metadata_log) == 1
    told, done = (run_expiry(lake, retain_last=100, dry_run=dry_run) for dry_run in (True, False))
    assert (told.files_deleted, done.files_deleted) == ({}, {})
    assert str(told).splitlines()[0] == "lake.db.t: would expire 0 of 8 snapshots"
    assert str(told).splitlines()[-1] == "0 files would be deleted, 0 B"


def test_a_dry_run_tells_what_would_go(catalog: Catalog) -> None:
    """It counts the same files as the expiry that follows, and changes nothing."""
    before = history(catalog)
    files = data_files_on_disk(before)
    told = run_expiry(catalog, retain_last=1, dry_run=True)
    assert catalog.load_table("db.t").metadata_location == before.metadata_location
    assert data_files_on_disk(before) == files
    done = run_expiry(catalog, retain_last=1)
    assert told.snapshot_ids_expired == done.snapshot_ids_expired
    assert {k: n for k, n in told.files_deleted.items() if k != "metadata_files"} == {
        k: n for k, n in done.files_deleted.items() if k != "metadata_files"
    }
    assert told.bytes_deleted == done.bytes_deleted > 0


def test_versions_stay_readable(catalog: Catalog) -> None:
    """The newest four versions of each partition can be read after everything else went; tags hold the old ones."""
    before = history(catalog)
    ids = [s.snapshot_id for s in before.metadata.snapshots]
    run_expiry(catalog, days=6, keep_versions=4)
    table = catalog.load_table("db.t")
    # versions of `a`: after the second merge, before it, {1,2,3} (as of the batch into `b`), after the first merge
    assert {s.snapshot_id for s in table.metadata.snapshots} == {ids[2], ids[4], ids[5], ids[6]}
    assert {n: r.snapshot_id for n, r in table.metadata.refs.items()} == {
        "main": ids[6],
        f"{VERSION_TAG}{ids[2]}": ids[2],
        f"{VERSION_TAG}{ids[4]}": ids[4],
    }
    for snapshot_id, rows in ((ids[2], [1, 2]), (ids[4], [1, 2, 3])):
        scan = table.scan(snapshot_id=snapshot_id, row_filter="kind = 'a'", selected_fields=("id",))
        assert sorted(scan.to_arrow()["id"].to_pylist()) == rows
    assert_clean(table)
    again = run_expiry(catalog, days=6, keep_versions=4)
    assert (again.snapshot_ids_expired, again.refs_removed) == ((), ())


def test_rows_that_were_taken_along_and_merged_are_one_version(lake: Catalog) -> None:
    """A commit of an overwrite (`absorb`) and a replace counts once: as many versions stay as were asked for."""
    make_table(lake)
    for number in range(6):
        append(lake, [number])
    for number in range(6, 9):
        table = lake.load_table("db.t")
        taken, *others = small_files(table)
        together = write(table, [*pq.read_table(local(taken.path))["id"].to_pylist(), number])
        run(lake, request_on(table, [together], [merged(table, others[:2])], absorbed=(taken,)), table)
    append(lake, [9], "b")  # snapshots that are newer than the newest append all stay
    before = icesize.open(None, "db.t", catalog=lake).versions({"kind": "a"})
    assert [version.operation for version in before[:4]] == ["overwrite+replace"] * 3 + ["append"]
    run_expiry(lake, days=6, keep_versions=3)
    after = icesize.open(None, "db.t", catalog=lake).versions({"kind": "a"})
    assert [(v.files, v.rows, v.size_bytes) for v in after[:3]] == [(v.files, v.rows, v.size_bytes) for v in before[:3]]


def test_tags_that_no_version_needs_any_more_go(catalog: Catalog) -> None:
    """Later commits make a version old; the tag that held it is removed with its snapshot."""
    history(catalog)
    run_expiry(catalog, days=6, keep_versions=4)
    old = {n for n in catalog.load_table("db.t").metadata.refs if n.startswith(VERSION_TAG)}
    for number in (5, 6, 7):
        append(catalog, [number])
    report = run_expiry(catalog, days=6, keep_versions=1)
    assert set(report.refs_removed) == old != set()
    assert set(catalog.load_table("db.t").metadata.refs) == {"main"}
    assert_clean(catalog.load_table("db.t"))


def test_branches_and_tags_keep_their_files(lake: Catalog) -> None:
    """A snapshot with a tag of the user's stays, with every file that it needs."""
    table = history(lake)
    first = table.metadata.snapshots[0].snapshot_id
    table.manage_snapshots().create_tag(first, "before").commit()
    run_expiry(lake, retain_last=1)
    table = lake.load_table("db.t")
    assert first in {s.snapshot_id for s in table.metadata.snapshots}
    assert table.scan(snapshot_id=first, selected_fields=("id",)).to_arrow()["id"].to_pylist() == [1]
    assert_clean(table)


def test_a_reader_keeps_what_it_has_not_read(lake: Catalog, tmp_path: Path) -> None:
    """From the snapshot that a checkpoint stands on, everything newer stays."""
    table = history(lake)
    ids = [s.snapshot_id for s in table.metadata.snapshots]
    reader = checkpoint(tmp_path / "reader", ids[3])
    report = run_expiry(lake, retain_last=1, readers=(reader,))
    assert list(report.snapshot_ids_expired) == ids[:3]


def checkpoint(folder: Path, snapshot_id: int) -> str:
    """A checkpoint of a query that has read up to the end of a snapshot."""
    offset = json.dumps({"version": 1, "snapshot_id": snapshot_id, "position": 1, "scan_all_files": False})
    for name, lines in (("offsets", ["v1", "{}", offset]), ("commits", ["v1", "{}"])):
        (folder / name).mkdir(parents=True)
        (folder / name / "0").write_text("\n".join(lines))
    return str(folder)


def test_a_reader_that_cannot_be_kept_stops_the_expiry(lake: Catalog, tmp_path: Path) -> None:
    """A position that the table does not have is refused; `force` goes on without it and says so."""
    history(lake)
    reader = checkpoint(tmp_path / "reader", 12345)
    with pytest.raises(TableError, match="is at 12345, which is not in this table"):
        run_expiry(lake, retain_last=1, readers=(reader,))
    assert len(lake.load_table("db.t").metadata.snapshots) == 7
    report = run_expiry(lake, retain_last=1, readers=(reader,), force=True)
    assert len(report.snapshot_ids_expired) == 5
    assert f"the reader {reader} was given up by force: the table does not have its position" in report.notes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_versions": 0}, "'keep-versions' \\(0\\) must be >= 1"),
        ({"keep_versions": -3}, "'keep-versions' \\(-3\\) must be >= 1"),
        ({"retain_last": 0}, "'retain-last' \\(0\\) must be >= 1"),
        ({"older_than": timedelta(hours=-1)}, "must not lie in the future"),
        ({"older_than": datetime(2100, 1, 1, tzinfo=timezone.utc)}, "must not lie in the future"),
    ],
)
def test_senseless_rules_are_refused(lake: Catalog, options: dict[str, Any], message: str) -> None:
    """Nothing is expired by values that cannot be meant."""
    history(lake)
    with pytest.raises(PolicyError, match=message):
        run_expiry(lake, **options)
    assert len(lake.load_table("db.t").metadata.snapshots) == 7


def test_huge_values_keep_everything(lake: Catalog) -> None:
    """More versions than there are is no mistake."""
    history(lake)
    assert run_expiry(lake, keep_versions=10**12, retain_last=10**12).snapshot_ids_expired == ()


def test_a_table_that_shares_its_files_is_refused(lake: Catalog) -> None:
    """`gc.enabled=false` says that files are not the table's own."""
    table = history(lake)
    with table.transaction() as change:
        change.set_properties({"gc.enabled": "false"})
    with pytest.raises(UnsupportedTable, match="so other tables may need them"):
        run_expiry(lake, retain_last=1)
    assert len(lake.load_table("db.t").metadata.snapshots) == 7


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_location_shared_with_another_table_is_refused(lake: Catalog, dry_run: bool) -> None:
    """A second table of the catalog in the same folder: nobody can tell whose files are whose."""
    table = history(lake)
    location = table.location()
    lake.create_table("db.other", table.schema(), location=location)
    with pytest.raises(TableError, match=r"'lake\.db\.t': 'db\.other' has the same location"):
        run_expiry(lake, retain_last=1, dry_run=dry_run)
    assert len(lake.load_table("db.t").metadata.snapshots) == 7


def test_a_table_with_two_names_does_not_expire(lake: Catalog) -> None:
    """The other name needs the older state: nothing expires, and no journal is left."""
    table = history(lake)
    lake.register_table("db.copy", table.metadata_location)
    append(lake, [11])
    compact(lake)
    before = set(local(table.location()).rglob("*"))
    with pytest.raises(TableError, match=r"'db\.copy' in the same catalog is another name of this table"):
        run_expiry(lake, retain_last=1)
    assert set(local(table.location()).rglob("*")) == before
    assert lake.load_table("db.copy").scan().to_arrow().num_rows == 5
    lake.drop_table("db.copy")
    assert run_expiry(lake, retain_last=1).snapshot_ids_expired


def test_other_tables_are_loaded_only_if_something_expires(lake: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """None if nothing expires, each once if something does, and none again if a pass has loaded them."""
    table = history(lake)
    lake.create_table("db.other", table.schema())
    loaded: list[Any] = []
    real = lake.load_table

    def counted(name: Any) -> Table:
        loaded.append(name)
        return real(name)

    monkeypatch.setattr(lake, "load_table", counted)
    run_expiry(lake, days=0)
    assert ("db", "other") not in loaded
    owners, now_ms = CatalogOwners(lake), table.metadata.last_updated_ms + 10 * 24 * HOUR_MS
    for dry_run in (True, False):
        handle, options = TableHandle(lake, ("db", "t")), ExpireOptions(retain_last=1)
        expire(handle, options, Environment(now_ms=lambda: now_ms), dry_run=dry_run, others=owners)
    assert (loaded.count(("db", "other")), len(real("db.t").metadata.snapshots)) == (1, 2)


def test_data_files_that_another_table_lists_stay(lake: Catalog) -> None:
    """It added them from this table's folder: they stay when they expire here, and the table is named."""
    table = history(lake)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    other = lake.create_table("db.other", table.schema(), partition_spec=table.spec())
    other.add_files(paths)
    with lake.load_table("db.t").transaction() as change:
        change.delete("id < 100")
    append(lake, [5])
    report = run_expiry(lake, retain_last=1)
    assert report.notes[-1] == "2 files left alone: needed by other tables (db.other)"
    assert lake.load_table("db.other").scan().to_arrow().num_rows == 5


@pytest.mark.parametrize("kind", ["branch", "tag"])
def test_a_ref_to_a_missing_snapshot_is_removed(lake: Catalog, kind: str) -> None:
    """PyIceberg alone refuses that; everything else expires, and no journal is left."""
    history(lake)

    def with_ref(document: dict[str, Any]) -> None:
        document["refs"]["old"] = {"type": kind, "snapshot-id": 12345}

    with_document(lake, with_ref)
    report = run_expiry(lake, retain_last=1)
    assert (report.refs_removed, len(report.snapshot_ids_expired)) == (("old",), 5)
    assert sorted(lake.load_table("db.t").metadata.refs) == ["main"]
    assert list(local(lake.load_table("db.t").location()).rglob("icesize-expiry-*")) == []
    check(lake.load_table("db.t"))


def test_the_progress_of_other_writers_stays(lake: Catalog) -> None:
    """The newest of each is kept and named, as each walks back from the head to it; a property limits its age."""
    table = make_table(lake, {})
    summaries: list[dict[str, str]] = [
        {"flink.job-id": "j", "flink.max-committed-checkpoint-id": "16"},
        {"flink.job-id": "j", "flink.max-committed-checkpoint-id": "17"},
        {"kafka.connect.offsets.control.group": '{"0":1234}'},
        {"spark.sql.streaming.queryId": "q", "spark.sql.streaming.epochId": "41"},
        {},
    ]
    for number, summary in enumerate(summaries):
        table.append(arrow([number]), snapshot_properties=summary)
    report = run_expiry(lake, retain_last=1, days=6)
    assert len(report.snapshot_ids_expired) == 1
    named = [why for whys in report.kept.values() for why in whys if "the newest progress of" in why]
    names = ("Flink job j", "Kafka Connect control.group", "Spark query q")
    assert named == [f"the newest progress of {name}" for name in names]
    with lake.load_table("db.t").transaction() as change:
        change.set_properties({"icesize.policy.progress-max-age-ms": "5 days"})
    assert len(run_expiry(lake, retain_last=1, days=6).snapshot_ids_expired) == 3
    assert ids_of(lake) == [0, 1, 2, 3, 4]


def test_a_table_that_was_dropped_and_created_again_expires(lake: Catalog) -> None:
    """The old table's metadata files and what they lead to are left alone and named; the new table's files go."""
    old = history(lake)
    needed = needed_files(old)
    lake.drop_table("db.t")
    history(lake)
    report = run_expiry(lake, retain_last=1)
    assert (len(report.snapshot_ids_expired), report.files_deleted["data_files"]) == (5, 2)
    assert report.notes[-1].startswith(f"8 metadata files of another table ({old.metadata.table_uuid}) and its files")
    assert {path for path in needed if local(path).exists()} == needed
    check(lake.load_table("db.t"))


@pytest.mark.parametrize("point", ["after-swap", "before-delete"])
def test_a_run_that_dies_is_finished_by_the_next(catalog: Catalog, point: str) -> None:
    """After the commit the journal knows the files, wherever the first run ended."""
    history(catalog)
    reached = []

    def die() -> None:
        reached.append(point)
        if point == "after-swap" or len(reached) == 3:
            raise KeyboardInterrupt

    with armed(point, die), pytest.raises(KeyboardInterrupt):
        run_expiry(catalog, retain_last=1)
    assert len(catalog.load_table("db.t").metadata.snapshots) == 2
    run_expiry(catalog, retain_last=1)
    assert_clean(catalog.load_table("db.t"))


def test_an_expiry_that_did_not_land_leaves_nothing(lake: Catalog) -> None:
    """Stopped before the swap: no snapshot is gone, no file is deleted, no journal stays."""
    before = history(lake)
    files = data_files_on_disk(before)
    with armed("before-swap", fail("before-swap")), pytest.raises(FailpointReached):
        run_expiry(lake, retain_last=1)
    assert data_files_on_disk(before) == files
    assert list(local(before.location()).rglob("icesize-expiry-*")) == []


def test_what_cannot_be_deleted_is_tried_again(lake: Catalog) -> None:
    """One file that the storage refuses to delete is reported, the others go; the next run gets it."""
    table = history(lake)
    input_file = local(table.scan(snapshot_id=table.metadata.snapshots[0].snapshot_id).plan_files()[0].file.file_path)  # type: ignore[index]
    input_file.unlink()
    input_file.mkdir()
    report = run_expiry(lake, retain_last=1)
    assert (report.files_failed, report.files_deleted["data_files"]) == (1, 1)
    assert str(input_file) in "".join(report.notes)
    input_file.rmdir()
    input_file.write_bytes(b"deletable again")
    again = run_expiry(lake, retain_last=1)
    assert (again.files_failed, again.files_deleted) == (0, {"other_files": 1})
    assert not input_file.exists()
    assert_clean(lake.load_table("db.t"))


def test_files_outside_of_the_table_are_left_alone(lake: Catalog, tmp_path: Path) -> None:
    """A file that lies elsewhere may be somebody else's: counted, not deleted."""
    table = make_table(lake, properties={"write.data.path": f"file://{tmp_path}/elsewhere"})
    append(lake, [1])
    append(lake, [2])
    with lake.load_table("db.t").transaction() as change:
        change.remove_properties("write.data.path")
    compact(lake)
    append(lake, [3])
    report = run_expiry(lake, retain_last=1)
    assert report.files_outside == 2
    assert "2 files left alone: they lie outside of the table's folders" in report.notes
    assert len(list((tmp_path / "elsewhere").rglob("*.parquet"))) == 2
    check(lake.load_table("db.t"))
    assert table.location() == lake.load_table("db.t").location()


def test_a_tag_that_comes_in_between_is_respected(catalog: Catalog) -> None:
    """A tag made while the expiry runs keeps its snapshot: the commit asserts, the expiry decides anew."""
    table = history(catalog)
    first = table.metadata.snapshots[0].snapshot_id
    tagged: list[int] = []

    def tag() -> None:
        if not tagged:
            tagged.append(first)
            theirs(catalog.load_table("db.t")).manage_snapshots().create_tag(first, "late").commit()

    files = data_files_on_disk(table)
    with armed("before-swap", tag):
        report = run_expiry(catalog, retain_last=1)
    table = catalog.load_table("db.t")
    if "late" in table.metadata.refs:
        assert first not in report.snapshot_ids_expired
        assert table.scan(snapshot_id=first, selected_fields=("id",)).to_arrow()["id"].to_pylist() == [1]
        assert_clean(table)
    else:
        # a server that only looks at what is asserted removes the tag with its snapshot: no file goes, now or later
        assert isinstance(catalog, RestCatalog)
        assert "another writer made late on an expiring snapshot" in "".join(report.notes)
        run_expiry(catalog, retain_last=1)
        assert data_files_on_disk(table) == files


def test_a_batch_in_between_is_kept_whole(catalog: Catalog) -> None:
    """An append during the expiry moves a ref: it is decided anew, and the new rows stay."""
    _expire_beside_an_append(catalog, "before-swap")
    assert ids_of(catalog) == [1, 2, 3, 4, 10, 99]
    assert_clean(catalog.load_table("db.t"))


def _expire_beside_an_append(catalog: Catalog, point: str) -> None:
    history(catalog)
    done: list[int] = []

    def rival() -> None:
        if not done:
            done.append(1)
            append(catalog, [99])

    with armed(point, rival):
        run_expiry(catalog, retain_last=1)


def test_a_snapshot_that_comes_while_files_are_deleted_is_safe(catalog: Catalog) -> None:
    """Before each batch of deletions the table is looked at again."""
    _expire_beside_an_append(catalog, "before-delete")
    assert ids_of(catalog) == [1, 2, 3, 4, 10, 99]
    check(catalog.load_table("db.t"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lost_answer_is_looked_up(mini: MiniRest, when: Any) -> None:
    """Whether the commit landed is found out before anything is deleted."""
    catalog = mini.catalog("lake")
    history(catalog)
    mini.fail_next_commit(Fault(kind="reset", when=when))
    report = run_expiry(catalog, retain_last=1)
    assert len(report.snapshot_ids_expired) == 5
    assert_clean(catalog.load_table("db.t"))


def test_an_unknown_outcome_deletes_nothing(mini: MiniRest) -> None:
    """While nobody can tell whether the commit landed every file stays; a later run finishes."""
    catalog = mini.catalog("lake")
    before = history(catalog)
    files = data_files_on_disk(before)
    mini.fail_next_commit(*(Fault(kind=500, when="before") for _ in range(UNKNOWN_ATTEMPTS)))
    with pytest.raises(CommitStateUnknown, match="Run the expiry again"):
        run_expiry(catalog, retain_last=1)
    assert data_files_on_disk(before) == files
    run_expiry(catalog, retain_last=1)
    assert ids_of(catalog) == [1, 2, 3, 4, 10]
    assert set(live_paths(catalog.load_table("db.t"))) <= data_files_on_disk(before)


def test_a_catalog_that_lags_deletes_nothing_yet(lake: Catalog) -> None:
    """An answer from before the commit shows the expired snapshots: the journal stays for the next run."""
    stale = history(lake)
    with armed("after-swap", fail("after-swap")), pytest.raises(FailpointReached):
        run_expiry(lake, retain_last=1)
    location = lake.load_table("db.t").metadata.properties[JOURNAL]
    journal = Journal.read(stale.io, location)
    assert journal is not None
    cleanup = ExpiryCleanup(lambda: stale, lambda table: Others(), Environment(), 1)
    swept = cleanup.run(journal, location, ())
    assert swept.stopped.startswith("the catalog shows another state than that of this expiry")
    assert swept.deleted == {}
    run_expiry(lake, retain_last=1)
    assert_clean(lake.load_table("db.t"))


def test_format_v1_is_expired_the_same_way(lake: Catalog) -> None:
    """Without sequence numbers the manifests tell as much."""
    make_table(lake, properties={"format-version": "1"})
    append(lake, [1])
    append(lake, [2])
    compact(lake)
    append(lake, [3])
    report = run_expiry(lake, retain_last=1)
    assert (len(report.snapshot_ids_expired), report.files_deleted["data_files"]) == (3, 2)
    assert ids_of(lake) == [1, 2, 3]
    assert_clean(lake.load_table("db.t"))


def test_a_foreign_journal_is_nobodys_business(lake: Catalog) -> None:
    """A journal that cannot be read, or that is another table's, is left out."""
    table = history(lake)
    path = local(table.location()) / "metadata" / "icesize-expiry-x.json"
    for text in (
        "{",
        '{"version": 1}',
        '{"version": 1, "table-uuid": "other", "snapshots": [], "files": ["/etc/x"], "refs": [], "base-metadata": ""}',
    ):
        path.write_text(text)
        with lake.load_table("db.t").transaction() as change:
            change.set_properties({JOURNAL: f"file://{path}"})
        assert run_expiry(lake, retain_last=100, dry_run=True).files_deleted.get("other_files", 0) == 0


@pytest.mark.parametrize("compressed", [False, True])
def test_old_metadata_files_go(lake: Catalog, compressed: bool) -> None:
    """Metadata files that have dropped out of the log are deleted, those in it stay."""
    make_table(lake, properties={"write.metadata.previous-versions-max": "3"})
    for number in range(12):
        append(lake, [number])
    table = lake.load_table("db.t")
    assert len(list(local(table.location()).rglob("*.metadata.json"))) == 13
    for entry in table.metadata.metadata_log if compressed else ():
        local(entry.metadata_file).write_bytes(gzip.compress(local(entry.metadata_file).read_bytes()))
    report = run_expiry(lake, retain_last=1)
    assert report.files_deleted["metadata_files"] == 10
    assert_clean(lake.load_table("db.t"))


def test_an_uncommitted_file_is_not_expiry_s_business(lake: Catalog) -> None:
    """Files that no snapshot ever had are left to orphan cleanup."""
    table = history(lake)
    orphan = write(table, [50])
    run_expiry(lake, retain_last=1)
    assert local(orphan.path).exists()
