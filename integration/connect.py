"""A Spark Connect server on this machine, a process of its own: started as `start-connect-server.sh` does.

PySpark 4 brings its jar; `python -m integration.connect_child` is a client.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from integration.jars import spark_jars
from integration.servers import free_ports, running, session_settings

_SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"
SPARK_HOME = Path(pyspark.__file__).parent


@dataclass(frozen=True)
class ConnectServer:
    """A running server."""

    url: str
    pid: int

    def kill(self) -> None:
        """End it and its Python workers like a machine that loses its power."""
        jvm = psutil.Process(self.pid)
        for process in (jvm, *jvm.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def connect_server(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None, cores: int = 2
) -> Iterator[ConnectServer]:
    """A server `local[cores]` with Iceberg's runtime and these settings of Spark. Its log is `connect.log` in the
    folder; its workers get `environment`."""
    [port] = free_ports(1)
    every = session_settings(folder) | {
        "spark.jars": ",".join(str(jar) for jar in spark_jars()),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        **settings,
    }
    conf = [word for key, value in every.items() for word in ("--conf", f"{key}={value}")]
    command = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", f"local[{cores}]", *conf]
    command += ["--class", _SERVER, "spark-internal"]
    python = {"SPARK_HOME": str(SPARK_HOME), "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
    with running(command, folder / "connect.log", lambda: _ask(port), python | dict(environment or {})) as server:
        yield ConnectServer(f"sc://127.0.0.1:{port}", server.pid)


def _ask(port: int) -> None:
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
