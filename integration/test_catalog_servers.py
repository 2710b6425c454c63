"""Commits on real catalogs: lost responses, conflicts, replays, upserts, expiry, orphans, restores, and locks."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

import icesize
from icesize.errors import TableError, UnsupportedTable
from icesize.storage.table_storage import Storage
from icesize.table.records.recent_commits import KEY
from integration import catalog_servers
from integration.catalog_servers import Properties, ServerUnavailableError
from integration.go_tools import GoToolUnavailableError
from integration.servers import local_rest_catalog
from tests.support.tables import (
    NEW_TABLES,
    append,
    arrow,
    batch,
    compact,
    ids_of,
    live_paths,
    local,
    merged,
    request_on,
    run,
    small_files,
    two_files,
    write,
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore")

PACKAGES = {"postgresql": ["psycopg2"], "mariadb": ["pymysql"], "hive": ["psycopg2", "thrift"], "nessie": []}
SLOW = [pytest.param(kind, marks=pytest.mark.slow) for kind in ("mariadb", "hive", "nessie")]
V3 = pytest.mark.parametrize("version", ["", "v3"], ids=["v2", "v3"])


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "rest", *SLOW])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Properties]:
    """The properties of a catalog of each server; the test is skipped without the server or its Python client."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "sqlite":
        yield {"type": "sql", "uri": f"sqlite:///{folder}/lake.db", "warehouse": folder.as_uri()}
        return
    if request.param == "rest":
        with local_rest_catalog(folder) as uri:
            yield {"type": "rest", "uri": uri}
        return
    for package in PACKAGES[request.param]:
        pytest.importorskip(package)
    start = getattr(catalog_servers, request.param)
    try:
        with start(folder) as properties:
            yield properties
    except (ServerUnavailableError, GoToolUnavailableError) as error:
        pytest.skip(str(error))


def is_nessie(server: Properties) -> bool:
    return server["uri"].endswith("/iceberg")


@pytest.fixture
def catalogs(server: Properties) -> Iterator[tuple[Catalog, Catalog]]:
    """Two clients of a server without a table `db.t`."""
    first, second = (load_catalog("lake", **server) for _ in range(2))
    location = {"location": f"{server['warehouse']}/db.db"} if server["type"] == "hive" else {}
    first.create_namespace_if_not_exists("db", location)
    yield first, second
    if first.table_exists("db.t"):
        location = first.load_table("db.t").location()
        first.drop_table("db.t")
        if location.startswith("file:"):  # another table comes to this location
            shutil.rmtree(local(location))
    for catalog in (first, second):
        catalog.close()


def once(catalog: Catalog, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
    """Call these functions around the next commit, which is sent to the server between them."""
    kind: Any = type(catalog)

    class Once(kind):  # type: ignore[misc]
        def commit_table(self, *arguments: Any) -> Any:
            catalog.__class__ = self.__class__ = kind
            before()
            answer = kind.commit_table(self, *arguments)
            after()
            return answer

    catalog.__class__ = Once


def two_files_of(catalog: Catalog, version: str) -> None:
    """Make the table in a format; Nessie upgrades none, and PyIceberg creates none of format v3 there."""
    if version and "nessie.is-nessie-catalog" in catalog.properties:
        pytest.skip("only other engines make tables of format v3 in Nessie")
    catalog.properties[NEW_TABLES] = version
    two_files(catalog)


def verified(catalog: Catalog) -> bool:
    return icesize.open(None, "lake.db.t", catalog=catalog).verify(deep=True).findings == ()


def lose_answer() -> None:
    raise ConnectionError("the response was lost")


def test_a_lost_answer_is_found_after_the_rows_were_merged_away(catalogs: tuple[Catalog, Catalog]) -> None:
    """The commit lands without an answer, and another process merges its files away: the rows are there once."""
    catalog, rival = catalogs
    table = two_files(catalog)
    once(catalog, after=lambda: (compact(rival), lose_answer()))
    outcome = run(catalog, request_on(table, [write(table, [3])]), table)
    assert len(outcome.snapshot_ids) == 1
    assert ids_of(rival) == [1, 2, 3]


@pytest.mark.parametrize("commits", [1, 3])
def test_a_merge_lands_beside_other_writers(catalogs: tuple[Catalog, Catalog], commits: int) -> None:
    """Other commits come first, and the merge is committed on top of them."""
    catalog, rival = catalogs
    table = two_files(catalog)
    wanted = request_on(table, groups=[merged(table, small_files(table))])
    once(catalog, before=lambda: [append(rival, [10 + number]) for number in range(commits)])
    outcome = run(catalog, wanted, table)
    assert (outcome.operations, outcome.conflicts) == (("replace",), ())
    assert ids_of(rival) == [1, 2, *range(10, 10 + commits)]


def test_commits_are_recorded_where_no_history_is_shown(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """Nessie alone gets the property."""
    two_files(catalogs[0])
    assert (KEY in append(catalogs[0], [3]).properties) == is_nessie(server)


def test_a_dead_writers_lock_fails_a_commit_by_name(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """A writer ends while it has the metastore's lock: the next commit names the lock, and nothing of it is visible."""
    if server["type"] != "hive":
        pytest.skip("only a Hive metastore has locks")
    from hive_metastore.ttypes import LockComponent, LockLevel, LockRequest, LockType, UnlockRequest

    catalog, _ = catalogs
    table = two_files(catalog)
    part = LockComponent(LockType.EXCLUSIVE, LockLevel.TABLE, "db", "t", isTransactional=True)
    client: Any = catalog._client  # type: ignore[attr-defined]
    with client as metastore:
        held = metastore.lock(LockRequest([part], user="gone", hostname="nowhere")).lockid
    with pytest.raises(TableError, match=rf"lock {held}, held by gone@nowhere since .* UTC"):
        run(catalog, request_on(table, [write(table, [3])]), table)
    with client as metastore:
        metastore.unlock(UnlockRequest(held))
    assert ids_of(catalog) == [1, 2]
    assert append(catalog, [3]).metadata.current_snapshot_id is not None


def test_a_table_without_the_lock_is_refused(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """Commits of Java would not wait for the lock of icesize's commits."""
    if server["type"] != "hive":
        pytest.skip("only a Hive metastore has locks")
    with two_files(catalogs[0]).transaction() as change:
        change.set_properties({"engine.hive.lock-enabled": "false"})
    with pytest.raises(UnsupportedTable, match="lock-enabled"):
        icesize.open(None, "lake.db.t", catalog=catalogs[0]).compact()


@V3
@pytest.mark.parametrize("arrives", [True, False])
def test_an_unknown_outcome_is_settled(catalogs: tuple[Catalog, Catalog], version: str, arrives: bool) -> None:
    """Rows and a merge whose commit has no answer are there once, whether the commit arrived or not."""
    catalog, rival = catalogs
    two_files_of(catalog, version)
    wanted = batch(catalog)
    around = {"after": lose_answer} if arrives else {"before": lose_answer}
    once(catalog, **around)
    outcome = run(catalog, wanted, catalog.load_table("db.t"))
    assert (outcome.already_committed, ids_of(rival)) == (False, [1, 2, 3])
    assert verified(rival)


def test_a_replay_is_skipped(catalogs: tuple[Catalog, Catalog]) -> None:
    """A batch that is committed is recognized after other commits, and its new files are removed."""
    catalog, rival = catalogs
    two_files(catalog)
    run(catalog, batch(catalog), catalog.load_table("db.t"))
    again = batch(rival)
    append(catalog, [9], "b")
    outcome = run(rival, again, rival.load_table("db.t"))
    assert (outcome.already_committed, outcome.snapshot_ids, ids_of(rival)) == (True, (), [1, 2, 3, 9])
    io = Storage.of(rival.load_table("db.t").io)
    assert io.missing(sorted(again.paths())) == sorted(again.paths())


@V3
def test_upserts_beside_another_writer(catalogs: tuple[Catalog, Catalog], version: str) -> None:
    """Each key has its newest row, although another writer commits first, and a replay changes nothing."""
    catalog, rival = catalogs
    two_files_of(catalog, version)
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    once(catalog, before=lambda: append(rival, [5], "b"))
    sized.upsert(arrow([2, 7]), key="id", order_by="ts", stream_id="s", batch_id=1)
    assert sized.upsert(arrow([2, 8]), stream_id="s", batch_id=1).already_committed
    sized.upsert(arrow([1, 9]), stream_id="s", batch_id=2)
    sized.compact()
    assert ids_of(rival) == [1, 2, 5, 7, 9]
    assert verified(rival)


def test_expiry(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """Replaced files go with their snapshots. Nessie's stay, because its branches may need them."""
    catalog, rival = catalogs
    table = two_files(catalog)
    before = live_paths(table)
    compact(catalog)
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    if is_nessie(server):
        with pytest.raises(UnsupportedTable, match="Nessie, has branches of its own"):
            sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
        assert Storage.of(table.io).missing(before) == []
        return
    report = sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert (report.files_failed, ids_of(rival)) == (0, [1, 2])
    append(rival, [3])
    sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert ids_of(rival) == [1, 2, 3]
    assert sized.verify().findings == ()


def test_orphans(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """A file that nobody committed is found, and deleted when old. Nessie's stay."""
    catalog, rival = catalogs
    left = write(two_files(catalog), [9]).path
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    if is_nessie(server):
        with pytest.raises(UnsupportedTable, match="Nessie, has branches of its own"):
            sized.remove_orphan_files(dry_run=False)
        return
    for path in local(rival.load_table("db.t").location()).rglob("*.*"):
        os.utime(path, (0, 0))
    report = sized.remove_orphan_files(dry_run=False)
    assert (report.files_deleted, report.examples, local(left).exists()) == (1, (left,), False)
    assert ids_of(rival) == [1, 2]


def test_restore(catalogs: tuple[Catalog, Catalog], server: Properties) -> None:
    """A partition gets its rows of an older snapshot back, unless the catalog hides its history; doctor says so."""
    catalog, rival = catalogs
    before = two_files(catalog).metadata.current_snapshot_id or 0
    append(rival, [3])
    sized = icesize.open(None, "lake.db.t", catalog=catalog)
    checks = {check.name: check for check in sized.doctor()}
    if is_nessie(server):
        with pytest.raises(TableError, match=r"shows the newest snapshot only; .* its own branches and tags"):
            sized.restore({"kind": "a"}, before)
        assert (checks["deleting"].state, checks["history"].state) == ("failed", "missing")
        assert "Nessie" in checks["deleting"].detail
        return
    sized.restore({"kind": "a"}, before)
    assert ids_of(rival) == [1, 2]
    assert {check.state for check in checks.values()} == {"ok"}
