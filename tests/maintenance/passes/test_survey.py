"""Surveys of catalogs: which tables are ranked, which names are skipped, and that nothing is written."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.environment import Environment
from icesize.errors import ArgumentError, PolicyError, TableError, TableNotFound
from icesize.events import Progress
from icesize.maintenance.passes.survey import CatalogSurvey, scan
from icesize.planning.insight.health import TableSurvey
from icesize.planning.insight.scan_cost import WorkCost
from icesize.table.catalog import opening
from tests.support.delete_files import delete_positions
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import FakeTime, arrow, live_paths, local, make_table, rewrite_manifests

EXPIRING = {"history.expire.max-snapshot-age-ms": "0", "history.expire.min-snapshots-to-keep": "2"}


def filled(catalog: Catalog, name: str, appends: int, **properties: str) -> None:
    """Make a table of so many files, each of its own snapshot."""
    table = make_table(catalog, name=name, properties=properties)
    for number in range(appends):
        table.append(arrow([number]))


def the_only(found: CatalogSurvey) -> TableSurvey:
    """Return the survey of the one table."""
    (table,) = found.tables
    assert (found.skipped, found.doubts) == ((), ())
    return table


def test_tables_are_ranked_by_what_maintenance_would_bring(catalog: Catalog) -> None:
    """The table with most files to merge comes first; a table without files needs nothing."""
    for name, appends in (("db.few", 2), ("db.many", 6), ("db.none", 0)):
        filled(catalog, name, appends)
    found = icesize.scan("lake", catalog=catalog)
    assert [(table.table, table.files, table.files_saved) for table in found.tables] == [
        ("lake.db.many", 6, 5), ("lake.db.few", 2, 1), ("lake.db.none", 0, 0),
    ]  # fmt: skip
    assert (found.files_saved, found.bytes_to_write) == (6, sum(table.size_bytes for table in found.tables))
    assert (found.skipped, found.doubts) == ((), ())
    empty = found.tables[-1]
    assert (empty.health, empty.work, empty.snapshot_id) == (100, WorkCost(), None)


def test_a_maintained_table_has_nothing_to_save(lake: SqlCatalog) -> None:
    """What the survey counts is what `maintain` does: after a pass, the score is 100."""
    filled(lake, "db.t", 12, **EXPIRING)
    table = lake.load_table("db.t")
    delete_positions(table, {path: [0] for path in live_paths(table)[:3]}, granularity="file")
    later = Environment(now_ms=lambda: table.metadata.last_updated_ms + 86_400_000)
    before = the_only(scan("lake.db", catalog=lake, environment=later))
    assert (before.files_saved, before.snapshots_due > 0, before.delete_files) == (12 - 1 + 3, True, 3)
    sized = icesize.open(None, "lake.db.t", catalog=lake, environment=later)
    planned = sized.plan_maintenance()
    assert planned.merges
    assert (planned.merges.files_removed, planned.merges.bytes_to_write) == (
        before.files_to_merge, before.bytes_to_write,
    )  # fmt: skip
    sized.maintain()
    after = the_only(scan("lake.db", catalog=lake, environment=later))
    assert (after.health, after.files_saved, after.snapshots_due, after.work) == (100, 0, 0, WorkCost())


def test_snapshots_due_are_those_of_an_expiry(lake: SqlCatalog) -> None:
    """The survey counts the snapshots that a dry run of the expiry names, without reading their manifests."""
    filled(lake, "db.t", 7, **EXPIRING)
    first = lake.load_table("db.t").snapshots()[0]
    lake.load_table("db.t").manage_snapshots().create_tag(first.snapshot_id, "kept").commit()
    for snapshot in lake.load_table("db.t").snapshots()[:-1]:
        local(snapshot.manifest_list).rename(f"{local(snapshot.manifest_list)}.away")
    found = the_only(scan("lake.db.t", catalog=lake))
    for snapshot in lake.load_table("db.t").snapshots()[:-1]:
        Path(f"{local(snapshot.manifest_list)}.away").rename(local(snapshot.manifest_list))
    due = icesize.open(None, "lake.db.t", catalog=lake).expire_snapshots(dry_run=True).snapshot_ids_expired
    assert found.snapshots == 7
    assert found.snapshots_due == len(due) == 4


def test_snapshots_that_must_not_expire_are_not_due(lake: SqlCatalog) -> None:
    """With `gc.enabled` false none is due; versions may keep some, which a note says."""
    filled(lake, "db.shared", 5, **EXPIRING, **{"gc.enabled": "false"})
    filled(lake, "db.versions", 5, **EXPIRING, **{"icesize.policy.keep-versions": "2"})
    shared, versions = sorted(scan("lake", catalog=lake).tables, key=lambda table: table.table)
    assert (shared.snapshots_due, versions.snapshots_due) == (0, 3)
    assert "'gc.enabled' is false" in " ".join(shared.notes)
    assert versions.notes == ("'keep-versions' may keep some of 3 snapshots that are due",)


def test_manifests_are_counted_as_their_merge_leaves_them(lake: SqlCatalog) -> None:
    """Five small manifests become one, in the survey as in `rewrite-manifests`."""
    filled(lake, "db.t", 5, **{"icesize.policy.small-file-limit-bytes": "0"})
    before = {part.name: (part.now, part.then) for part in the_only(scan("lake.db.t", catalog=lake)).parts}
    assert (before["manifests"], before["data files"]) == ((5, 1), (5, 5))
    rewrite_manifests(lake)
    after = {part.name: (part.now, part.then) for part in the_only(scan("lake.db.t", catalog=lake)).parts}
    assert after["manifests"] == (1, 1)


def test_pages_and_nested_namespaces_are_followed(mini: MiniRest) -> None:
    """Listings that come in pages are whole, in every namespace below the one that is asked for."""
    for namespace in (("db", "a"), ("db", "b"), ("db", "a", "deep"), ("other",)):
        mini.create_namespace(namespace, {})
    catalog = mini.catalog("lake", **{"rest-page-size": "2"})
    names = [f"db.{name}" for name in ("t1", "t2", "t3", "a.t1", "a.deep.t1", "a.deep.t2", "a.deep.t3")]
    for name in (*names, "other.t"):
        filled(catalog, name, 1)
    found = scan("lake.db", catalog=catalog)
    assert sorted(table.table for table in found.tables) == sorted(f"lake.{name}" for name in names)
    assert [table.table for table in scan("lake.db.*deep.t[12]", catalog=catalog).tables] == [
        "lake.db.a.deep.t1", "lake.db.a.deep.t2",
    ]  # fmt: skip
    assert any("pageToken=2" in request for request in mini.requests)


def test_a_catalog_that_is_busy_is_asked_again(mini: MiniRest) -> None:
    """Answers 429 and 503 to listings and loads are waited for, with growing pauses."""
    catalog, time = mini.catalog("lake"), FakeTime()
    for name in ("db.t1", "db.t2", "db.t3"):
        filled(catalog, name, 1)
    mini.fail_next_list(Fault(429), Fault(503), Fault(429))
    mini.fail_next_load(*[Fault(429)] * 4, Fault(503))
    found = scan("lake", catalog=catalog, environment=time.environment)
    assert [len(found.tables), found.skipped, found.doubts] == [3, (), ()]
    assert len(time.sleeps) == 8


def test_a_catalog_that_stays_busy_ends_one_table(mini: MiniRest) -> None:
    """A table whose load is refused for minutes is named, and a catalog that cannot be listed is an error."""
    catalog, time = mini.catalog("lake"), FakeTime()
    filled(catalog, "db.t", 1)
    mini.fail_next_load(*[Fault(429)] * 500)
    (skipped,) = scan("lake", catalog=catalog, environment=time.environment).skipped
    assert (skipped.kind, skipped.why.partition(":")[0]) == ("unreadable", "TooManyRequestsError")
    assert sum(time.sleeps) >= 120
    mini.fail_next_list(*[Fault(503)] * 500)
    with pytest.raises(TableError, match=r"Cannot list the tables of 'lake': ServiceUnavailableError"):
        scan("lake", catalog=catalog, environment=FakeTime().environment)


def test_names_without_a_survey_are_named(mini: MiniRest) -> None:
    """A view, a forbidden table, one that icesize does not support, and one with a missing manifest do not stop it."""
    catalog = mini.catalog("lake")
    for name in ("db.good", "db.hidden", "db.damaged"):
        filled(catalog, name, 2)
    filled(catalog, "db.secret", 1, **{"encryption.key-id": "k"})
    filled(catalog, "db.wrong", 1, **{"icesize.policy.max-small-files": "many"})
    mini.views.add(("db", "view"))
    mini.forbidden.add(("db", "hidden"))
    for manifest in catalog.load_table("db.damaged").current_snapshot().manifests(catalog.load_table("db.damaged").io):
        local(manifest.manifest_path).unlink()
    found = scan("lake", catalog=catalog)
    assert [table.table for table in found.tables] == ["lake.db.good"]
    kinds = {".".join(skipped.name): skipped.kind for skipped in found.skipped}
    assert kinds == {
        "db.damaged": "unreadable", "db.hidden": "unreadable", "db.secret": "unsupported",
        "db.view": "view", "db.wrong": "unreadable",
    }  # fmt: skip
    why = {skipped.name[-1]: skipped.why for skipped in found.skipped}
    assert why["hidden"].startswith(
        "ForbiddenError: ForbiddenException: Principal may not read db.hidden; the principal"
    )
    assert "the table is encrypted" in why["secret"]
    assert "max-small-files" in why["wrong"]


def test_a_namespace_that_is_hidden_is_a_doubt(mini: MiniRest) -> None:
    """The tables of the other namespaces are ranked; only a pattern that names the hidden one fails."""
    mini.create_namespace(("secret",), {})
    catalog = mini.catalog("lake")
    filled(catalog, "db.t", 1)
    mini.forbidden.add(("secret",))
    found = scan("lake", catalog=catalog)
    assert [table.table for table in found.tables] == ["lake.db.t"]
    assert found.doubts == (
        "the namespace 'secret' cannot be listed (ForbiddenError: ForbiddenException: Principal may not read secret; "
        "the principal needs the right to list namespaces and tables (in Polaris NAMESPACE_LIST and TABLE_LIST))",
    )
    with pytest.raises(TableError, match=r"Cannot list the tables of 'lake.secret': ForbiddenError"):
        scan("lake.secret", catalog=catalog)


def test_a_survey_only_reads(mini: MiniRest, tmp_path: Path) -> None:
    """No request but GET and HEAD reaches the catalog, and no file appears, changes or goes."""
    catalog = mini.catalog("lake")
    filled(catalog, "db.t", 4, **EXPIRING)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    done = len(mini.requests)
    assert the_only(scan("lake", catalog=catalog)).files_saved == 3
    assert {request.partition(" ")[0] for request in mini.requests[done:]} <= {"GET", "HEAD"}
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_work_in_an_object_store_has_a_price(
    tmp_path: Path, bucket: str, properties: dict[str, str], lake: SqlCatalog
) -> None:
    """Requests and seconds of a core cost money there; on a local disk nothing does."""
    remote = SqlCatalog("remote", uri=f"sqlite:///{tmp_path}/remote.db", warehouse=f"s3://{bucket}/wh", **properties)
    remote.create_namespace("db")
    for catalog in (remote, lake):
        filled(catalog, "db.t", 3)
    priced, free = the_only(scan("remote", catalog=remote)), the_only(scan("lake", catalog=lake))
    assert (priced.usd, free.usd) == (priced.work.usd, None)
    assert (priced.files_saved, priced.health, priced.work.gets) == (free.files_saved, free.health, free.work.gets)
    remote.close()


def test_partitions_that_others_change_now_count(lake: SqlCatalog) -> None:
    """Maintenance leaves a contested partition for some minutes, which says nothing about the table."""
    filled(lake, "db.t", 4)
    for _ in range(3):
        table = lake.load_table("db.t")
        delete_positions(table, {live_paths(table)[0]: [0]})
    assert the_only(scan("lake", catalog=lake)).files_to_merge == 4


def test_a_table_of_another_service_is_noted(lake: SqlCatalog) -> None:
    """It is ranked like others, and the note names the service."""
    filled(lake, "db.t", 3, **{"self-optimizing.enabled": "true"})
    found = the_only(scan("lake", catalog=lake))
    assert found.files_saved == 2
    assert [note for note in found.notes if note.startswith("Amoro")] == [
        "Amoro (self-optimizing.enabled) maintains the table"
    ]


def test_progress_counts_tables(lake: SqlCatalog) -> None:
    """The observer gets the number of tables, and then each one that is done."""
    for name in ("db.a", "db.b"):
        filled(lake, name, 1)
    seen = list[object]()
    scan("lake", catalog=lake, environment=Environment(observe=seen.append))
    assert seen == [Progress("surveying", done, 2, "table") for done in range(3)]


def test_a_policy_holds_for_every_table(lake: SqlCatalog) -> None:
    """Its keys replace the properties of the tables, and a wrong one is an error of the call."""
    filled(lake, "db.t", 3)
    assert the_only(scan("lake", catalog=lake, policy={"small-file-limit-bytes": 0})).files_saved == 0
    with pytest.raises(PolicyError):
        scan("lake", catalog=lake, policy={"max-small-files": 0.5})


def test_what_is_not_there(lake: SqlCatalog) -> None:
    """An empty catalog has no tables; a table or a catalog that is missing, and a wrong pattern, are told."""
    assert scan("lake", catalog=lake) == CatalogSurvey("lake", ())
    (skipped,) = scan("lake.db.gone", catalog=lake).skipped
    assert skipped.why == "it is not found"
    assert scan("lake.gone.*", catalog=lake).doubts == ("the namespace 'gone' is not found",)
    with pytest.raises(TableNotFound, match="Cannot open catalog 'nowhere'"):
        scan("nowhere")
    with pytest.raises(ArgumentError):
        scan("", catalog=lake)


def test_a_catalog_that_a_scan_opens_is_closed(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that scans again and again keeps no connection; a catalog of the caller stays open."""
    closed = list[str]()

    class Closing(SqlCatalog):
        def close(self) -> None:
            closed.append(self.name)
            super().close()

    monkeypatch.setattr(opening, "open_catalog", lambda name, properties=None: Closing(name, **lake.properties))
    assert scan("lake").tables == ()
    assert closed == ["lake"]
    with closing(Closing("lake", **lake.properties)) as own:
        assert scan("lake", catalog=own).tables == ()
        assert closed == ["lake"]
