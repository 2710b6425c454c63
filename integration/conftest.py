"""Real servers for the integration tests: Iceberg's REST catalog, and Spark with Iceberg's runtime on two catalogs.

Catalog `rest` is the REST server, seen by Spark through its default catalog cache. Catalog `lake` is one SQLite file
that Spark's JDBC catalog (no cache) and PyIceberg's `SqlCatalog` share. All of it lives in pytest's temporary folder.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import uuid
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark import SparkContext
from pyspark.sql import SparkSession
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from integration.jars import rest_server_jar, spark_jars

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 10
_LOG_LINES_SHOWN = 60
_SERVER_LOG = pytest.StashKey[Path]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests here that use Spark may leave sockets open: `collect()` leaves its own for the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failed test shows the end of the REST server's log."""
    report = yield
    log = item.config.stash.get(_SERVER_LOG, None)
    if report.failed and log is not None:
        report.sections.append((f"REST server ({log})", _tail(log)))
    return report


@pytest.fixture(scope="session")
def servers_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the catalogs keep their databases and warehouses."""
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(scope="session")
def rest_catalog_uri(servers_dir: Path, pytestconfig: pytest.Config) -> Iterator[str]:
    """A running Iceberg REST catalog server on a free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    uri, log = f"http://127.0.0.1:{port}", servers_dir / "rest.log"
    pytestconfig.stash[_SERVER_LOG] = log
    command = ["java", "-Xmx512m", "-cp", str(rest_server_jar()), "org.apache.iceberg.rest.RESTCatalogServer"]
    environment = os.environ | _server_settings(servers_dir, port)
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        _wait_until_ready(server, uri, log)
        yield uri
    finally:
        _end(server)


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
    jars = ",".join(str(jar) for jar in spark_jars())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("icesize integration").config("spark.jars", jars)
    for key, value in (_session_settings(servers_dir) | _catalog_settings(rest_catalog_uri, servers_dir)).items():
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


def _server_settings(folder: Path, port: int) -> dict[str, str]:
    # A database in memory would be one per pooled connection, and without WAL concurrent commits answer 500.
    return {
        "CATALOG_REST_PORT": str(port),
        "CATALOG_WAREHOUSE": f"file://{folder}/rest",
        "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
        "CATALOG_URI": _sqlite_url(folder / "rest.db"),
        "CATALOG_JDBC_SCHEMA__VERSION": "V1",
        "CATALOG_IO__IMPL": "org.apache.iceberg.hadoop.HadoopFileIO",
    }


def _session_settings(folder: Path) -> dict[str, str]:
    return {
        "spark.driver.memory": "2g",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": str(folder / "spark-warehouse"),
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    }


def _catalog_settings(rest_uri: str, folder: Path) -> dict[str, str]:
    return {
        "spark.sql.catalog.rest": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.rest.type": "rest",
        "spark.sql.catalog.rest.uri": rest_uri,
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.type": "jdbc",
        "spark.sql.catalog.lake.uri": _sqlite_url(folder / "lake.db"),
        "spark.sql.catalog.lake.warehouse": f"file://{folder}/lake",
        "spark.sql.catalog.lake.jdbc.schema-version": "V1",
        "spark.sql.catalog.lake.cache-enabled": "false",
    }


def _sqlite_url(path: Path) -> str:
    return f"jdbc:sqlite:file:{path}?journal_mode=WAL&busy_timeout=30000"


def _wait_until_ready(server: subprocess.Popen[bytes], uri: str, log: Path) -> None:
    attempts = Retrying(
        stop=stop_after_delay(_START_TIMEOUT_S),
        wait=wait_fixed(0.1),
        retry=retry_if_exception_type(requests.RequestException),
        reraise=True,
    )
    try:
        attempts(_ask_config, server, uri)
    except (requests.RequestException, ChildProcessError) as error:
        raise RuntimeError(f"Cannot start the REST server: {error}\n{_tail(log)}") from error


def _ask_config(server: subprocess.Popen[bytes], uri: str) -> None:
    if server.poll() is not None:
        raise ChildProcessError(f"it ended with exit code {server.returncode}")
    requests.get(f"{uri}/v1/config", timeout=5).raise_for_status()


def _end(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(_STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


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
    gateway.proc.wait(_STOP_TIMEOUT_S)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])
