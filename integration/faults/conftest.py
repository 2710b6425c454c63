"""Each test here tells a story on a table of its own; after its last line every invariant is asserted."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration.faults.story import Story
from tests.support.rest_server import MiniRest
from tests.support.spark_lake import lake_catalog


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
    """What has to hold after a fault is asserted as a part of the test, so no test can leave it out."""
    result = yield
    story = pyfuncitem.funcargs.get("story") or pyfuncitem.funcargs.get("rest_story")
    if isinstance(story, Story):
        story.holds()
    return result


@pytest.fixture
def story(spark: SparkSession, tmp_path: Path) -> Iterator[Story]:
    """A table in a SQLite catalog (`lake.db` in the test's folder), which child processes can open as well."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    begun = Story(catalog, tmp_path, spark=spark)
    begun.begin()
    yield begun
    catalog.close()


@pytest.fixture
def mini(tmp_path: Path) -> Iterator[MiniRest]:
    """A REST catalog in this process whose answers can be spoiled."""
    with MiniRest(tmp_path / "lake") as server:
        server.create_namespace(("db",), {})
        yield server


@pytest.fixture
def rest_story(spark: SparkSession, tmp_path: Path, mini: MiniRest) -> Story:
    """A table in that REST catalog."""
    begun = Story(mini.catalog("lake"), tmp_path, spark=spark)  # type: ignore[arg-type]
    begun.begin()
    return begun
