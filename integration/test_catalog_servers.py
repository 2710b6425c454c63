"""Commits on real catalog servers: lost responses, conflicts, and the lock of a Hive metastore."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyiceberg.catalog import Catalog, load_catalog

import icesize
from icesize.errors import TableError, UnsupportedTable
from icesize.table.records.recent_commits import KEY
from integration import catalog_servers
from integration.catalog_servers import Properties, ServerUnavailableError
from integration.go_tools import GoToolUnavailableError
from tests.support.tables import append, compact, ids_of, merged, request_on, run, small_files, two_files, write

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

PACKAGES = {"postgresql": ["psycopg2"], "mariadb": ["pymysql"], "hive": ["psycopg2", "thrift"], "nessie": []}


@pytest.fixture(scope="module", params=[*PACKAGES])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Properties]:
    """The properties of a catalog of each server; the test is skipped without the server or its Python client."""
    for package in PACKAGES[request.param]:
        pytest.importorskip(package)
    start = getattr(catalog_servers, request.param)
    try:
        with start(tmp_path_factory.mktemp(request.param)) as properties:
            yield properties
    except (ServerUnavailableError, GoToolUnavailableError) as error:
        pytest.skip(str(error))


@pytest.fixture
def catalogs(server: Properties) -> Iterator[tuple[Catalog, Catalog]]:
    """Two clients of a server without a table `db.t`."""
    first, second = (load_catalog("lake", **server) for _ in range(2))
    location = {"location": f"{server['warehouse']}/db.db"} if server["type"] == "hive" else {}
    first.create_namespace_if_not_exists("db", location)
    yield first, second
    if first.table_exists("db.t"):
        first.drop_table("db.t")
    for catalog in (first, second):
        catalog.close()


def once(catalog: Catalog, before: Callable[[], object] = int, after: Callable[[], object] = int) -> None:
    """Call these functions around the next commit, which is sent to the server between them."""
    commit: Any = catalog.commit_table

    def commit_table(*arguments: Any) -> Any:
        catalog.commit_table = commit  # type: ignore[method-assign]
        before()
        answer = commit(*arguments)
        after()
        return answer

    catalog.commit_table = commit_table  # type: ignore[method-assign]


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
    assert (KEY in append(catalogs[0], [3]).properties) == (server["type"] == "rest")


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
