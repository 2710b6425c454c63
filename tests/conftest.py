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
from tests.support.examples import divide, place_of
from tests.support.object_store import bucket, client, endpoint, properties  # noqa: F401 (fixtures)
from tests.support.rest_server import MiniRest
from tests.support.tables import sqlite_catalog

_HERE = Path(__file__).parent
_OF_FILES = {"cli", "maintenance", "parquet", "table"}
_LONG = {
    "maintenance/jobs/test_clustering_faults.py", "maintenance/jobs/test_restore_races.py",
    "maintenance/test_rival_deletes.py", "parquet/row_groups/test_copy_faults.py",
    "parquet/row_groups/test_whole_tables.py", "table/cleanup/test_expiry_hazards.py",
    "table/commit/test_concurrent_writers.py", "table/storage/test_object_store.py", "table/upserts/test_debezium.py",
    "table/upserts/test_suites.py", "test_table_machine.py",
}  # fmt: skip
"""Whole modules that are no quick tests: other modules have a quick test of what each of them tries in many ways."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Divide lists of cases that write files, and lists of Spark tests, among the tiers.

    Of up to five cases, one is a quick test and the others are marked `engine`. Of more, a fifth are quick tests, two
    fifths are marked `engine` and two fifths `slow`. Of a list of Spark tests, the first may be a smoke test, and three
    fifths of the others are slow.
    """
    lists = defaultdict[tuple[str, str], list[pytest.Item]](list)
    for item in items:
        if item.path.is_relative_to(_HERE):
            path = item.path.relative_to(_HERE)
            lists[path.parts[0], item.nodeid.partition("[")[0]].append(item)
            if path.as_posix() in _LONG:
                item.add_marker(pytest.mark.engine)
    for (room, _), cases in lists.items():
        if room == "spark":
            divide(cases[1:], quick=0, slow=0.65)
        elif room in _OF_FILES and len(cases) > 5:
            divide(cases, quick=0.2, slow=0.4)
        elif room in _OF_FILES:
            divide(sorted(cases, key=place_of)[1:], quick=0, slow=0)


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
