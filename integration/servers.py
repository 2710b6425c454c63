"""Server processes for tests and benchmarks, on free loopback ports, and a Spark session's settings for their catalogs.

What a server prints is kept in a log, whose end is part of the error when it does not start.
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import requests
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from integration.jars import rest_server_jar

_START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 20
_LOG_LINES_SHOWN = 60

FRUGAL = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""Few small batches never earn back what compiling them well costs."""


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now, each another."""
    with ExitStack() as open_together:
        probes = [open_together.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def tail(log: Path) -> str:
    """The end of a server's log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-_LOG_LINES_SHOWN:])


def end(server: subprocess.Popen[bytes]) -> None:
    """Ask a process to end; kill it when it does not."""
    server.terminate()
    try:
        server.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@contextmanager
def running(
    command: Sequence[str], log: Path, ask: Callable[[], object], environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process; the block begins when `ask` no longer raises `requests.RequestException` or ConnectionError.

    Raises RuntimeError with the end of the log when that takes over three minutes or the process ends before.
    """
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=os.environ | (environment or {}), stdout=output, stderr=subprocess.STDOUT
        )
    try:
        _wait(server, log, ask)
        yield server
    finally:
        end(server)


def _wait(server: subprocess.Popen[bytes], log: Path, ask: Callable[[], object]) -> None:
    def asked() -> None:
        if server.poll() is not None:
            raise ChildProcessError(f"it ended with exit code {server.returncode}")
        ask()

    refused = retry_if_exception_type((requests.RequestException, ConnectionError))
    attempts = Retrying(stop=stop_after_delay(_START_TIMEOUT_S), wait=wait_fixed(0.05), retry=refused, reraise=True)
    try:
        attempts(asked)
    except (requests.RequestException, ConnectionError, ChildProcessError) as error:
        raise RuntimeError(f"Cannot start {log.stem}: {error}\n{tail(log)}") from error


@contextmanager
def rest_catalog(database: Path, log: Path, settings: Mapping[str, str], memory: str = "512m") -> Iterator[str]:
    """Iceberg's REST catalog server over a SQLite file; `settings` are its catalog's. Gives its URL."""
    [port] = free_ports(1)
    every = {
        "rest.port": str(port),
        "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
        "uri": _sqlite_url(database),
        "jdbc.schema-version": "V1",
        # of two connections, one can keep an old snapshot of the file, and each commit on it is a server error
        "clients": "1",
        **settings,
    }
    command = ["java", f"-Xmx{memory}", "-cp", str(rest_server_jar()), "org.apache.iceberg.rest.RESTCatalogServer"]
    environment = {"CATALOG_" + k.replace("-", "__").replace(".", "_").upper(): value for k, value in every.items()}
    uri = f"http://127.0.0.1:{port}"

    def ask() -> None:
        requests.get(f"{uri}/v1/config", timeout=5).raise_for_status()

    with running(command, log, ask, environment):
        yield uri


@contextmanager
def local_rest_catalog(folder: Path, memory: str = "512m") -> Iterator[str]:
    """The same with its database, tables (`rest`) and log (`rest.log`) in a folder."""
    settings = {"warehouse": f"file://{folder}/rest", "io-impl": "org.apache.iceberg.hadoop.HadoopFileIO"}
    with rest_catalog(folder / "rest.db", folder / "rest.log", settings, memory) as uri:
        yield uri


def session_settings(folder: Path) -> dict[str, str]:
    """A quiet Spark session with Iceberg's extensions that keeps what it has to keep in a folder."""
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


def catalog_settings(rest_uri: str, folder: Path) -> dict[str, str]:
    """Spark's catalogs `rest`, cached as by default, and `lake`, a SQLite file of a folder, not cached."""
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
    # a database in memory would be one per pooled connection, and without WAL concurrent commits answer 500
    return f"jdbc:sqlite:file:{path}?journal_mode=WAL&busy_timeout=30000"
