"""The Java archives that the integration tests and the benchmarks run against, fetched once by Maven.

`pom.xml` beside this module names them. They are kept under `target/jars`, with the digest of the pom that fetched
them, so a changed version is fetched anew and an unchanged one costs nothing.
"""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_POM = _HERE / "pom.xml"
_JARS = _HERE / "target" / "jars"
_FETCH_TIMEOUT_S = 900


class JarsUnavailableError(RuntimeError):
    """The jars are neither kept here nor to be had; the message says why in one sentence."""


def spark_jars(line: str = "4.1") -> list[Path]:
    """Iceberg's runtime for a line of Spark (3.5, 4.0, 4.1) and the SQLite JDBC driver, as absolute paths.

    Raises `JarsUnavailableError`, as all of these do, when they have to be fetched and cannot be.
    """
    return _jars("spark" if line == "4.1" else f"spark-{line}", 2)


def rest_server_jar() -> Path:
    """Iceberg's REST catalog server as one runnable jar; main class `org.apache.iceberg.rest.RESTCatalogServer`."""
    return _jars("rest-server", 1)[0]


def s3_jar() -> Path:
    """What `org.apache.iceberg.aws.s3.S3FileIO` needs, beside Spark's jars or those of the REST server."""
    return _jars("s3", 1)[0]


def kafka_broker_jars() -> list[Path]:
    """A Kafka broker: `kafka.tools.StorageTool` formats its folder, `kafka.Kafka` is its main class."""
    return _jars("kafka-broker")


def kafka_source_jars() -> list[Path]:
    """Spark's `kafka` source."""
    return _jars("kafka-source", 4)


def flink_jars() -> list[Path]:
    """A Flink cluster for one JVM, with Iceberg's sinks."""
    return _jars("flink")


def _jars(profile: str, count: int | None = None) -> list[Path]:
    jars = sorted(_jars_of(profile).glob("*.jar"))
    if not jars or count not in (None, len(jars)):
        raise JarsUnavailableError(
            f"Cannot use the jars of '{profile}': expected {count or 'some'}, found {_names(jars)}"
        )
    return jars


def _names(jars: list[Path]) -> str:
    return ", ".join(jar.name for jar in jars) or "none"


def _jars_of(profile: str) -> Path:
    """The folder with the jars of one profile of the pom, fetched when missing or fetched by another pom."""
    folder, digest = _JARS / profile, hashlib.sha256(_POM.read_bytes()).hexdigest()
    marker = folder / "pom.sha256"
    with _only_one(profile):
        if not marker.is_file() or marker.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            _fetch(profile, folder)
            # Written last: a fetch that was interrupted leaves no marker and is repeated.
            marker.write_text(digest)
    return folder


@contextmanager
def _only_one(profile: str) -> Iterator[None]:
    """Tests run in several processes, each of which wants the jars first."""
    _JARS.mkdir(parents=True, exist_ok=True)
    with (_JARS / f"{profile}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(profile: str, folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise JarsUnavailableError("Cannot fetch the Java archives: 'mvn' (Apache Maven) is not on PATH.")
    command = [maven, "-q", "-B", "-f", str(_POM), "-P", profile]
    command += ["dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired as slow:
        raise JarsUnavailableError(f"Cannot fetch the Java archives: Maven took over {_FETCH_TIMEOUT_S} s.") from slow
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if "[ERROR]" in line]
        reason = lines[0].split("[ERROR]", 1)[1].strip() if lines else f"exit code {done.returncode}"
        raise JarsUnavailableError(f"Cannot fetch the Java archives: Maven failed: {reason}")
