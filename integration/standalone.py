"""A standalone Spark cluster on this machine: a master and its workers, processes of their own without icesize.

Executors run the Python that this environment was made from, which has none of its packages; they get them from an
archive (`spark.archives`), as users ship an environment.
"""

from __future__ import annotations

import os
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import psutil
import pyspark
import requests

import icesize
from integration.servers import FRUGAL, free_ports, running

SPARK_HOME = Path(pyspark.__file__).parent
_OF_SPARK = ("pyspark", "py4j")
"""Packages that a cluster has; but PySpark asks for pandas wherever it hands over Arrow data."""
_FRUGAL = FRUGAL["spark.driver.extraJavaOptions"]
_NAME = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Cluster:
    """A running cluster."""

    master: str
    workers: tuple[int, ...]

    def kill_worker(self, number: int) -> None:
        """End a worker and its executors like a machine that loses its power."""
        worker = psutil.Process(self.workers[number])
        for process in (worker, *worker.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                process.kill()


@contextmanager
def standalone(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A master and so many workers of one core; logs and what executors print are in the folder."""
    with ExitStack() as stack:
        port, page, *pages = free_ports(2 + workers)
        home = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
        home |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _FRUGAL}
        url = f"spark://127.0.0.1:{port}"

        def alive(count: int) -> None:
            state = requests.get(f"http://127.0.0.1:{page}/json/", timeout=5).json()
            if state["aliveworkers"] < count:
                raise requests.ConnectionError("the master does not know of all workers yet")

        def start(kind: str, log: str, count: int, *options: str) -> int:
            command = [str(SPARK_HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{kind}", *options]
            return stack.enter_context(running(command, folder / log, lambda: alive(count), home)).pid

        start("master.Master", "master.log", 0, "--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page))
        pids = [
            start(
                "worker.Worker", f"worker{n}.log", n + 1, "--host", "127.0.0.1", "--cores", "1", "--memory", "1g",
                "--webui-port", str(page_of_worker), "--work-dir", str(folder / f"worker{n}"), url,
            )
            for n, page_of_worker in enumerate(pages)
        ]  # fmt: skip
        yield Cluster(url, tuple(pids))


def archive(path: Path) -> Path:
    """icesize, and all that it needs but Spark, in a tar file below `site`."""
    with tarfile.open(path, "w") as packed:
        packed.add(Path(icesize.__file__).parent, "site/icesize", filter=_without_caches)
        for each in _needed("icesize", _needed("pandas", {"pandas": distribution("pandas")})).values():
            for file in each.files or ():
                if ".." not in file.parts and (real := Path(str(each.locate_file(file))).resolve()).exists():
                    packed.add(real, f"site/{file}", filter=_without_caches)
    return path


def executor_settings(packed: Path) -> dict[str, str]:
    """Settings of Spark that give executors the archive."""
    return {
        "spark.archives": f"{packed}#environment",
        "spark.executorEnv.PYTHONPATH": "./environment/site",
        **frugal_settings(),
    }


def frugal_settings() -> dict[str, str]:
    """Settings of Spark for a few small jobs."""
    return FRUGAL | {"spark.executor.extraJavaOptions": _FRUGAL}


def bare_python() -> str:
    """The Python that this environment was made from."""
    return os.path.realpath(sys.executable)


def _needed(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """What a package requires without extras, and what that requires."""
    for required in _requirements(distribution(name)):
        if required not in found and required not in _OF_SPARK:
            with suppress(PackageNotFoundError):
                found[required] = distribution(required)
                _needed(required, found)
    return found


def _requirements(package: Distribution) -> Iterable[str]:
    for line in package.requires or ():
        requirement, _, marker = line.partition(";")
        if "extra" not in marker and (name := _NAME.match(requirement)):
            yield name[0].lower()


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
