"""Catalogs; an object store for those who ask."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import event
from sqlalchemy.engine import Engine

from tests.support.catalogs import OF_BOTH_KINDS, catalog_of
from tests.support.object_store import bucket, client, endpoint, properties  # noqa: F401 (fixtures)
from tests.support.rest_server import MiniRest
from tests.support.tables import sqlite_catalog

_HERE = Path(__file__).parent
_ONE_IN = {"cli": 4, "maintenance": 4, "parquet": 4, "table": 4, "spark": 1000}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave a share of each long list of cases that write files to the quick tests; mark the others `engine`.

    Of the cases of a smoke test of Spark, it is the first.
    """
    lists = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        if item.path.is_relative_to(_HERE):
            room = item.path.relative_to(_HERE).parts[0]
            lists[room, item.nodeid.partition("[")[0]].append(item)
    for (room, _), cases in lists.items():
        one_in = _ONE_IN.get(room, 1)
        for number, item in enumerate(cases):
            if number % one_in and (len(cases) > one_in or room == "spark"):
                item.add_marker(pytest.mark.engine)


@event.listens_for(Engine, "connect")
def do_not_wait_for_the_disk(connection: Any, record: object) -> None:
    """Let SQLite not wait for the disk, which takes ten times as long as a commit: no test cuts the power off."""
    if isinstance(connection, sqlite3.Connection):
        connection.execute("PRAGMA synchronous = OFF")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the smoke tests of Spark to one worker, so that the quick tests start Spark once."""
    from xdist.scheduler import LoadFileScheduling

    class OneSpark(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "tests/spark" if nodeid.startswith("tests/spark/") else super()._split_scope(nodeid)

    quick = "not engine" in config.option.markexpr and config.option.dist == "loadfile"
    return OneSpark(config, log) if quick else None


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[SqlCatalog]:
    """A catalog in a SQLite file, namespace `db`, no tables."""
    catalog = sqlite_catalog(tmp_path)
    yield catalog
    catalog.close()


@pytest.fixture
def mini(tmp_path: Path) -> Iterator[MiniRest]:
    """A REST catalog in this process, namespace `db`, no tables."""
    with MiniRest(tmp_path) as server:
        server.create_namespace(("db",), {})
        yield server


@pytest.fixture(params=OF_BOTH_KINDS)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """The same tests on both kinds of catalog."""
    return catalog_of(request)
