"""What a Hive metastore refuses or cannot do is told in a sentence. A catalog of that name stands in for its client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hive_metastore.ttypes import LockState
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchPropertyException

import icesize
from icesize.errors import TableError, UnsupportedTable
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from tests.support.tables import (
    NOW_MS,
    FakeTime,
    append,
    commit_by,
    data_files_on_disk,
    live_paths,
    make_table,
    metadata_files_on_disk,
    referenced_metadata,
    request_on,
    sqlite_catalog,
    write,
)


class HiveCatalog(SqlCatalog):
    """A catalog that is told from others by its name; `answers` are raised by the next calls of a method.

    `holders` hold the lock of the table, each at one look at it; none is shown if they are used up.
    """

    answers: list[tuple[str, Exception]]
    holders: list[str]

    @contextmanager
    def client(self) -> Iterator[Any]:
        yield self

    _client = property(client)

    def show_locks(self, request: Any) -> Any:
        lock = {"lockid": 7, "state": LockState.ACQUIRED, "acquiredat": NOW_MS, "hostname": "host"}
        return SimpleNamespace(locks=[SimpleNamespace(**lock, user=self.holders.pop(0))] if self.holders else [])

    def commit_table(self, *arguments: Any) -> Any:
        self._answer("commit")
        return super().commit_table(*arguments)

    def load_table(self, identifier: Any) -> Any:
        self._answer("load")
        return super().load_table(identifier)

    def _answer(self, method: str) -> None:
        if self.answers and self.answers[0][0] == method:
            raise self.answers.pop(0)[1]


@pytest.fixture
def hive(tmp_path: Path) -> Iterator[HiveCatalog]:
    with_table = sqlite_catalog(tmp_path)
    catalog = HiveCatalog("lake", **with_table.properties)
    catalog.answers, catalog.holders = [], []
    make_table(catalog)
    append(catalog, [1])
    yield catalog
    catalog.close()
    with_table.close()


def test_a_table_without_the_lock_is_refused(hive: HiveCatalog) -> None:
    """Other writers would commit without the lock between PyIceberg's load and its write, and be overwritten."""
    with hive.load_table("db.t").transaction() as change:
        change.set_properties({"engine.hive.lock-enabled": "false"})
    with pytest.raises(UnsupportedTable, match=r"'engine\.hive\.lock-enabled' is false.*UNSET TBLPROPERTIES"):
        icesize.open(None, "lake.db.t", catalog=hive).compact()


def test_the_property_means_nothing_in_other_catalogs(lake: SqlCatalog) -> None:
    """Only Hive has that lock."""
    make_table(lake, properties={"engine.hive.lock-enabled": "false"})
    append(lake, [1])
    assert icesize.open(None, "lake.db.t", catalog=lake).compact().conflicts == ()


def no_lock() -> tuple[str, Exception]:
    return "commit", CommitFailedException("Failed to acquire lock for ('db', 't'), state: 2")


def test_a_lock_that_is_not_released_fails_the_commit(hive: HiveCatalog) -> None:
    """Two waits in vain are enough: nothing is visible, nothing is left on storage, and the outcome is known."""
    table = hive.load_table("db.t")
    hive.answers, hive.holders = [no_lock(), no_lock(), no_lock()], ["flink", "flink"]
    committer = PyIcebergCommitter(hive, table, lambda: NOW_MS)
    with pytest.raises(
        TableError, match=r"lock of the table \(lock 7, held by flink.*metastore\.txn\.timeout"
    ) as raised:
        commit_by(committer, request_on(table, [write(table, [2])]), table, FakeTime())
    assert type(raised.value) is TableError
    assert len(hive.answers) == 1
    table = hive.load_table("db.t")
    assert data_files_on_disk(table) == set(live_paths(table))
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("holders", [["flink"], ["flink", "spark", "flink"], []])
def test_a_lock_that_others_hold_for_a_moment_is_waited_for(hive: HiveCatalog, holders: list[str]) -> None:
    """While the holder changes or is not shown, no wait is a lost response, and a later attempt commits the rows."""
    table = hive.load_table("db.t")
    hive.answers, hive.holders = [no_lock()] * (len(holders) or 3), holders
    committer = PyIcebergCommitter(hive, table, lambda: NOW_MS)
    outcome = commit_by(committer, request_on(table, [write(table, [2])]), table, FakeTime())
    assert outcome.operations == ("append",)


class TApplicationException(Exception):
    """As Thrift raises it."""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (TApplicationException("Invalid method name: 'get_table'"), "the metastore is of Hive 4"),
        (NoSuchPropertyException("Property table_type missing"), "it is not an Iceberg table"),
    ],
)
def test_what_cannot_be_opened_is_told(hive: HiveCatalog, error: Exception, told: str) -> None:
    """Neither a server nor a table that PyIceberg cannot read ends in an error of its client."""
    hive.answers = [("load", error)]
    with pytest.raises(UnsupportedTable, match=rf"Cannot open 'lake\.db\.t': {told}"):
        icesize.open(None, "lake.db.t", catalog=hive).inspect()
