"""The mini REST catalog behaves as a catalog, and each injected fault reaches PyIceberg's client as in real life."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import requests
from pydantic import ValidationError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    NamespaceNotEmptyError,
    NoSuchTableError,
    RESTError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    TooManyRequestsError,
    UnauthorizedError,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update import AssertRefSnapshotId

from icesize.table.commit.snapshot_builder import SnapshotBuilder
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.tables import NOW_MS, append, make_table
from tests.support.v3_tables import as_v3

SCHEMA = pa.schema([pa.field("id", pa.int64())])


def rows(*ids: int) -> pa.Table:
    return pa.table({"id": list(ids)}, schema=SCHEMA)


def ids(mini: MiniRest) -> list[int]:
    scanned = mini.catalog().load_table("db.t").scan().to_arrow()
    return sorted(scanned["id"].to_pylist())


@pytest.fixture
def mini(tmp_path: Path) -> Iterator[MiniRest]:
    with MiniRest(tmp_path) as server:
        yield server


@pytest.fixture
def table(mini: MiniRest) -> Table:
    catalog = mini.catalog()
    catalog.create_namespace("db")
    created: Table = catalog.create_table("db.t", SCHEMA)
    return created


def test_namespaces_and_tables_come_and_go(mini: MiniRest) -> None:
    """Namespaces and tables can be made, listed, asked for and dropped, and double or missing ones are refused."""
    catalog = mini.catalog()
    catalog.create_namespace("db", {"owner": "me"})
    catalog.create_namespace(("db", "inner"))
    catalog.create_table("db.t", SCHEMA)
    assert catalog.list_namespaces() == [("db",)]
    assert catalog.list_namespaces("db") == [("db", "inner")]
    assert catalog.load_namespace_properties("db") == {"owner": "me"}
    assert catalog.list_tables("db") == [("db", "t")]
    assert catalog.table_exists("db.t")
    assert catalog.namespace_exists("db")
    assert not catalog.table_exists("db.nothing")
    assert not catalog.namespace_exists("nothing")
    with pytest.raises(TableAlreadyExistsError, match=r"Table exists: db\.t"):
        catalog.create_table("db.t", SCHEMA)
    with pytest.raises(NamespaceNotEmptyError, match="Namespace is not empty: db"):
        catalog.drop_namespace("db")
    catalog.drop_table("db.t")
    with pytest.raises(NoSuchTableError, match=r"Table does not exist: db\.t"):
        catalog.load_table("db.t")
    catalog.drop_namespace(("db", "inner"))
    catalog.drop_namespace("db")
    assert catalog.list_namespaces() == []


@pytest.mark.parametrize("version", ["1", "2"])
def test_rows_appended_through_it_are_read_back(mini: MiniRest, version: str) -> None:
    """Format v1 and v2 tables take appends of one client that another client then reads."""
    catalog = mini.catalog()
    catalog.create_namespace("db")
    created = catalog.create_table("db.t", SCHEMA, properties={"format-version": version})
    created.append(rows(1, 2))
    created.append(rows(3))
    loaded = mini.catalog().load_table("db.t")
    assert ids(mini) == [1, 2, 3]
    assert loaded.format_version == int(version)
    assert len(loaded.snapshots()) == len(mini.posts) == 2
    assert Path(loaded.metadata_location.removeprefix("file://")).is_file()
    assert "POST /v1/namespaces/db/tables/t 200" in mini.requests


def test_tables_of_format_v3(mini: MiniRest) -> None:
    """They are created, or upgraded with all that they have, and take no commit that another has overtaken."""
    catalog = mini.catalog()
    catalog.create_namespace("db")
    make_table(catalog, properties={"format-version": "3"}, name="db.new")
    assert catalog.load_table("db.new").metadata.next_row_id == 0
    make_table(catalog, properties={"format-version": "1"})
    append(catalog, [1, 2])
    upgraded = as_v3(catalog)
    assert (upgraded.format_version, upgraded.metadata.next_row_id) == (3, 0)
    late = SnapshotBuilder(upgraded, NOW_MS)
    late.finish(Operation.REPLACE, late.manifests, {})
    after = append(catalog, [3])
    assert after.metadata.next_row_id == 3
    assert ids(mini) == [1, 2, 3]
    by_then = AssertRefSnapshotId(ref="main", snapshot_id=after.metadata.current_snapshot_id)
    with pytest.raises(CommitFailedException, match="Sequence number 1 was taken by another commit"):
        catalog.commit_table(after, (by_then,), tuple(late.made_visible()))


def test_an_unmet_requirement_is_a_conflict_and_changes_nothing(mini: MiniRest, table: Table) -> None:
    """A commit staged against an older head is refused with 409 once the library's own retry is off."""
    late = mini.catalog().load_table("db.t")
    late.metadata.properties["commit.retry.num-retries"] = "0"
    table.append(rows(1))
    with pytest.raises(CommitFailedException, match="branch main was created concurrently"):
        late.append(rows(2))
    assert ids(mini) == [1]


def test_concurrent_appends_lose_no_rows(mini: MiniRest, table: Table) -> None:
    """Two clients that append at the same time both land, through conflicts and retries."""
    barrier = threading.Barrier(2)

    def append(first: int) -> None:
        mine = mini.catalog().load_table("db.t")
        mine.metadata.properties["commit.retry.num-retries"] = "50"
        barrier.wait(30)
        for i in range(3):
            mine.append(rows(first + i))

    threads = [threading.Thread(target=append, args=(first,)) for first in (0, 10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ids(mini) == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (400, BadRequestError),
        (403, ForbiddenError),
        (404, RESTError),
        (429, TooManyRequestsError),
        (500, CommitStateUnknownException),
        (502, CommitStateUnknownException),
        (503, ServiceUnavailableError),
        (504, CommitStateUnknownException),
        ("reset", requests.ConnectionError),
        ("truncated", requests.exceptions.ChunkedEncodingError),
        ("html", ValidationError),
    ],
)
def test_a_fault_reaches_the_client_and_lands_as_told(
    mini: MiniRest, table: Table, kind: int | str, expected: type[Exception], when: Moment
) -> None:
    """Each fault raises what PyIceberg raises for it, costs one request, and has landed only if it came after."""
    mini.fail_next_commit(Fault(kind, when))
    with pytest.raises(expected) as raised:
        table.append(rows(1))
    assert raised.type is expected
    assert len(mini.posts) == 1
    assert ids(mini) == ([1] if when == "after" else [])


@pytest.mark.parametrize(("when", "posts"), [("before", 2), ("after", 1)])
def test_a_false_conflict_is_retried_by_the_client(mini: MiniRest, table: Table, when: Moment, posts: int) -> None:
    """After a 409 PyIceberg looks for its own snapshot, and commits again only when it is not there."""
    mini.fail_next_commit(Fault(409, when))
    table.append(rows(1))
    assert len(mini.posts) == posts
    assert ids(mini) == [1]


@pytest.mark.parametrize("kind", [401, 419])
def test_an_expired_token_is_refreshed_by_the_client(mini: MiniRest, table: Table, kind: int) -> None:
    """401 and 419 before the commit cost a second request and nothing else."""
    mini.fail_next_commit(Fault(kind))
    table.append(rows(1))
    assert len(mini.posts) == 2
    assert ids(mini) == [1]


def test_faults_are_spent_in_order(mini: MiniRest, table: Table) -> None:
    """Queued faults hit one commit each; the commit after the last one goes through."""
    mini.fail_next_commit(Fault(503), Fault("reset", "after"))
    with pytest.raises(ServiceUnavailableError):
        table.append(rows(1))
    with pytest.raises(requests.ConnectionError):
        table.append(rows(2))
    table.refresh().append(rows(3))
    assert ids(mini) == [2, 3]


@pytest.mark.parametrize(("when", "while_held"), [("before", []), ("after", [1])])
def test_a_held_answer_comes_when_released(mini: MiniRest, table: Table, when: Moment, while_held: list[int]) -> None:
    """A hang before the commit lands late, one after it has landed already; the client is answered in the end."""
    mini.fail_next_commit(Fault("hang", when))
    client = threading.Thread(target=table.append, args=(rows(1),))
    client.start()
    mini.wait_until_held()
    assert ids(mini) == while_held
    assert client.is_alive()
    mini.release()
    client.join(30)
    assert not client.is_alive()
    assert ids(mini) == [1]


def test_a_rival_can_commit_before_the_swap(mini: MiniRest, table: Table) -> None:
    """The hook runs once, inside the request, so the commit that was under way meets a newer head."""
    table.metadata.properties["commit.retry.num-retries"] = "0"
    rival = mini.catalog().load_table("db.t")
    mini.before_swap = lambda: rival.append(rows(7))
    with pytest.raises(CommitFailedException):
        table.append(rows(1))
    assert ids(mini) == [7]
    assert len(mini.posts) == 2


def test_a_stale_load_shows_the_version_before(mini: MiniRest, table: Table) -> None:
    """As many loads as asked for answer without the latest commit, as a lagging replica would."""
    table.append(rows(1))
    table.append(rows(2))
    mini.stale_loads = 1
    assert ids(mini) == [1]
    assert ids(mini) == [1, 2]


def test_property_changes_can_be_forbidden(mini: MiniRest, table: Table) -> None:
    """With the right to properties refused a commit that sets one is answered 403; a plain append still lands."""
    mini.refuse_properties = True
    transaction = table.transaction()
    transaction.append(rows(1))
    transaction.set_properties({"a": "b"})
    with pytest.raises(ForbiddenError, match="may not change table properties"):
        transaction.commit_transaction()
    table.refresh().append(rows(2))
    assert ids(mini) == [2]


def test_a_recreated_table_refuses_old_handles(mini: MiniRest, table: Table) -> None:
    """Nothing of a handle to a dropped table reaches the table that now has its name."""
    catalog = mini.catalog()
    catalog.drop_table("db.t")
    catalog.create_table("db.t", SCHEMA)
    with pytest.raises(ValueError, match="Table UUID does not match"):
        table.append(rows(1))
    assert ids(mini) == []


def test_a_failing_hook_is_not_taken_for_a_fault(tmp_path: Path) -> None:
    """An exception inside the server is raised again at the end of the block."""

    def broken() -> None:
        raise LookupError("the hook is wrong")

    def commit_with_broken_hook() -> None:
        with MiniRest(tmp_path) as mini:
            catalog = mini.catalog()
            catalog.create_namespace("db")
            table = catalog.create_table("db.t", SCHEMA)
            mini.before_swap = broken
            with pytest.raises(CommitStateUnknownException):
                table.append(rows(1))

    with pytest.raises(LookupError, match="the hook is wrong"):
        commit_with_broken_hook()


def test_loads_can_fail_as_well(mini: MiniRest, table: Table) -> None:
    """Faults queued for loads hit one load each and no commit; a load cannot be held."""
    mini.fail_next_load(Fault(503), Fault("reset"))
    with pytest.raises(ServiceUnavailableError):
        table.refresh()
    table.append(rows(1))
    with pytest.raises(requests.ConnectionError):
        table.refresh()
    assert ids(mini) == [1]
    with pytest.raises(ValueError, match="only commits can hang"):
        mini.fail_next_load(Fault("hang"))


def test_a_token_expires(mini: MiniRest) -> None:
    """A client with a credential fetches another token when its own is refused; one with a token alone is shut out."""
    mini.token = "first"
    login = {"credential": "client:secret", "oauth2-server-uri": f"{mini.uri}/v1/oauth/tokens"}
    renewing, fixed = mini.catalog(**login), mini.catalog(token="first")
    renewing.create_namespace("db")
    table = renewing.create_table("db.t", SCHEMA)
    mini.token = "second"
    table.append(rows(1))
    assert [line for line in mini.requests if line.endswith(" 401")] == ["POST /v1/namespaces/db/tables/t 401"]
    with pytest.raises(UnauthorizedError, match="The access token has expired"):
        fixed.load_table("db.t")
    mini.token = None
    assert ids(mini) == [1]


def test_unknown_faults_are_refused() -> None:
    """A fault with a misspelt kind or moment never waits silently for a commit."""
    with pytest.raises(ValueError, match="Cannot inject 'rest'"):
        Fault("rest")
    with pytest.raises(ValueError, match="'before' or 'after'"):
        Fault(500, "during")  # type: ignore[arg-type]
