"""Real servers for the integration tests: Iceberg's REST catalog, and Spark with Iceberg's runtime on two catalogs.

Catalog `rest` is the REST server, seen by Spark through its default catalog cache. Catalog `lake` is one SQLite file
that Spark's JDBC catalog (no cache) and PyIceberg's `SqlCatalog` share. All of it lives in pytest's temporary folder.
"""

from __future__ import annotations

import os
import sys
import uuid
from collections import defaultdict
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import SparkContext
from pyspark.sql import SparkSession

from integration.jars import s3_jar, spark_jars
from integration.s3_fixtures import (  # noqa: F401
    STORE_LOGS,
    _network,
    far_away,
    in_store,
    network,
    s3_rest_uri,
    s3_spark,
    store,
    toxiproxy,
)
from integration.servers import STOP_TIMEOUT_S, catalog_settings, local_rest_catalog, session_settings, tail
from tests.support.examples import divide

_SERVER_LOG = pytest.StashKey[Path]()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import nothing of this folder for a run that leaves all of it out."""
    return True if "not engine" in config.option.markexpr else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here are marked `engine`: they need servers, or jars from the network. Most cases of lists are slow.

    Those that use Spark may leave sockets open: `collect()` leaves its own for the garbage collector.
    """
    here, lists = Path(__file__).parent, defaultdict[str, list[pytest.Item]](list)
    for item in [item for item in items if here in item.path.parents]:
        item.add_marker(pytest.mark.engine)
        lists[item.nodeid.partition("[")[0]].append(item)
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))
    for cases in lists.values():
        divide(cases[1:], quick=0, slow=0.75)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the ends of the servers' logs."""
    report = yield
    log = item.config.stash.get(_SERVER_LOG, None)
    if report.failed and log is not None:
        report.sections.append((f"REST server ({log})", tail(log)))
    if report.failed and "store" in getattr(item, "fixturenames", ()):
        for log in item.config.stash.get(STORE_LOGS, []):
            report.sections.append((str(log), tail(log)))
    return report


@pytest.fixture(scope="session")
def servers_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the catalogs keep their databases and warehouses."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def rest_catalog_uri(servers_dir: Path, pytestconfig: pytest.Config) -> Iterator[str]:
    """A running Iceberg REST catalog server on a free port."""
    pytestconfig.stash[_SERVER_LOG] = servers_dir / "rest.log"
    with local_rest_catalog(servers_dir) as uri:
        yield uri


@pytest.fixture(scope="session")
def rest(rest_catalog_uri: str) -> Iterator[RestCatalog]:
    """PyIceberg's client of the REST server."""
    catalog = RestCatalog("rest", uri=rest_catalog_uri)
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def lake(servers_dir: Path) -> Iterator[SqlCatalog]:
    """PyIceberg's side of the SQLite catalog; its name is part of the rows that both sides share."""
    catalog = SqlCatalog("lake", uri=f"sqlite:///{servers_dir}/lake.db", warehouse=f"file://{servers_dir}/lake")
    yield catalog
    catalog.close()


@pytest.fixture(scope="session")
def spark(rest_catalog_uri: str, servers_dir: Path) -> Iterator[SparkSession]:
    """Spark in a JVM of its own, `local[2]`, with Iceberg's extensions and the catalogs `rest` and `lake`."""
    jars = ",".join(str(jar) for jar in (*spark_jars(), s3_jar()))
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("icesize integration").config("spark.jars", jars)
    for key, value in (session_settings(servers_dir) | catalog_settings(rest_catalog_uri, servers_dir)).items():
        builder = builder.config(key, value)
    with _another_jvm():
        session = builder.getOrCreate()
        session.sparkContext.setLogLevel("ERROR")
        yield session
        session.stop()


@pytest.fixture
def namespace(rest: RestCatalog, lake: SqlCatalog) -> str:
    """Name of a namespace of this test's own, empty, that exists in `rest` and in `lake`."""
    name = f"n{uuid.uuid4().hex[:10]}"
    rest.create_namespace(name)
    lake.create_namespace(name)
    return name


@contextmanager
def _another_jvm() -> Iterator[None]:
    """Let PySpark start a second JVM, end it afterwards, and put back the one that other tests of this run use.

    Jars come on the class path only when a JVM starts, so a session that is there already cannot be given them.
    """
    places: list[tuple[type, str]] = [(SparkContext, name) for name in ("_gateway", "_jvm", "_active_spark_context")]
    places.append((SparkSession, "_instantiatedSession"))
    kept = [getattr(holder, name) for holder, name in places]
    for holder, name in places:
        setattr(holder, name, None)
    try:
        yield
    finally:
        _end_jvm(SparkContext._gateway)
        for (holder, name), value in zip(places, kept, strict=True):
            setattr(holder, name, value)


def _end_jvm(gateway: Any) -> None:
    if gateway is None:
        return
    gateway.shutdown()
    # The JVM ends when its standard input does.
    gateway.proc.stdin.close()
    gateway.proc.wait(STOP_TIMEOUT_S)
