"""Each test here tells a faulted on a table of its own; after its last line every invariant is asserted."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.faults.faulted_table import FaultedTable
from tests.support.rest_server import MiniRest
from tests.support.spark_lake import lake_catalog
from tests.support.v3_tables import as_v3


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """What has to hold after a fault is asserted as a part of the test, so no test can leave it out."""
    result = yield
    faulted = pyfuncitem.funcargs.get("faulted") or pyfuncitem.funcargs.get("rest_faulted")
    if isinstance(faulted, FaultedTable):
        faulted.holds()
    return result


def begin(table: FaultedTable, request: pytest.FixtureRequest) -> None:
    """Make the table, one in four in format v3 where all writers of the test write that; PyIceberg does not.

    Nor does a stream that absorbs safely: such a sink refuses format v3.
    """
    table.begin()
    node = request.node
    absorbs_safely = node.name.endswith(("[absorb]", "-absorb]"))
    if node.get_closest_marker("any_format") and not absorbs_safely and zlib.crc32(node.name.encode()) % 4 == 0:
        as_v3(table.catalog, "db.events")


@pytest.fixture
def faulted(spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FaultedTable]:
    """A table in a SQLite catalog (`lake.db` in the test's folder), which child processes can open as well."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    begun = FaultedTable(catalog, tmp_path, spark=spark)
    begin(begun, request)
    yield begun
    catalog.close()


@pytest.fixture
def mini(tmp_path: Path) -> Iterator[MiniRest]:
    """A REST catalog in this process whose answers can be spoiled."""
    with MiniRest(tmp_path / "lake") as server:
        server.create_namespace(("db",), {})
        yield server


@pytest.fixture
def rest_faulted(spark: SparkSession, tmp_path: Path, mini: MiniRest, request: pytest.FixtureRequest) -> FaultedTable:
    """A table in that REST catalog."""
    begun = FaultedTable(mini.catalog("lake"), tmp_path, spark=spark)  # type: ignore[arg-type]
    begin(begun, request)
    return begun
