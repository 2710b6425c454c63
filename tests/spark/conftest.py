"""Spark and an embedded catalog for the tests of the Spark floor: one JVM, `local[2]`, SQLite, a folder per test."""

from __future__ import annotations

import gc
import os
import shutil
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support.background import end_backgrounds
from tests.support.spark_lake import Lake, Make, counted, lake_catalog, uncounted

_JAVA = "Spark needs Java 17 or later: install it, or set JAVA_HOME"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs Java `engine`, except for smoke tests.

    Py4J and `collect()` leave sockets to the garbage collector; that is theirs to change.
    """
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            if "java" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("smoke"):
                item.add_marker(pytest.mark.engine)
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


def _has_java() -> bool:
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java or not os.path.exists(java):
        return False
    answer = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    words = answer.stderr.split('"')
    version = words[1].split(".")[0] if len(words) > 1 else "0"
    return answer.returncode == 0 and version.isdigit() and int(version) >= 17


@pytest.fixture(scope="session")
def java() -> None:
    """Skips what needs a JVM where there is none."""
    if not _has_java():
        pytest.skip(_JAVA)


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark without Iceberg's runtime: nothing here needs its jars."""
    folder = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["TZ"] = "UTC"
    time.tzset()
    settings = {
        "spark.driver.memory": "2g",
        # many small queries: what compiling them well costs is never earned back
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    builder = SparkSession.builder.master("local[2]").appName("icesize tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    with warnings.catch_warnings():
        # sockets that Py4J leaves to the garbage collector are collected before pytest looks for leaks
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """An empty SQLite catalog with the namespace `db`, and a warehouse, both of this test alone."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    yield Lake(catalog, tmp_path)
    catalog.close()


@pytest.fixture
def by_spark(lake: Lake) -> None:
    """No batch is so small that the driver writes it: Spark counts, places and writes."""
    lake.without_driver()


@pytest.fixture(params=["in hand", "counted", "uncounted"])
def make(request: pytest.FixtureRequest) -> Make:
    """Makes a batch of rows, for each way in which batches are written."""
    if request.param == "counted":
        request.getfixturevalue("by_spark")
    return uncounted if request.param == "uncounted" else counted


@pytest.fixture(autouse=True)
def no_merge_thread_left() -> Iterator[None]:
    """Whatever a test does, no thread of a merge outlives what started it: a batch, or a test with a stream."""
    yield
    end_backgrounds()
    assert [t.name for t in threading.enumerate() if t.name == "icesize-merges"] == []
