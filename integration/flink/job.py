"""A Flink job that writes a changelog into a table of a REST catalog, and the rows that it leaves there."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField, StringType

from integration.jars import flink_jars
from integration.servers import end, tail

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "p", StringType(), required=True),
    NestedField(3, "n", LongType()),
    NestedField(4, "t", StringType()),
    identifier_field_ids=[1, 2],
)
_SPEC = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p"), spec_id=0)
_JVM = ["-Xmx1g", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"]
_OPEN = [f"--add-opens=java.base/java.{name}=ALL-UNNAMED" for name in ("lang", "util", "nio", "time")]
_MASK = 2**64 - 1

Row = tuple[int, str, int, str]


@dataclass(frozen=True)
class Changelog:
    """A job: `sink` is `FlinkSink` or `IcebergSink`, `mode` is `upsert` or `changelog`."""

    sink: str
    mode: str
    seconds: int
    failures: int
    seed: int = 1
    per_second: int = 400
    keys: int = 2_000

    @property
    def changes(self) -> int:
        return self.seconds * self.per_second

    def rows(self) -> list[Row]:
        """Return the rows that all changes leave, in the order of `integration.tools.spark_rows`."""
        last = dict[int, int]()
        for n in range(1, self.changes + 1):
            mixed = _mixed(self.seed, n)
            key = mixed % self.keys
            if key in last and (mixed >> 40) & 3 == 0:
                del last[key]
            else:
                last[key] = n
        return sorted(((key, f"p{key % 3}", n, f"text {n % 1000}") for key, n in last.items()), key=repr)


def _mixed(seed: int, n: int) -> int:
    """As `Changelog.java` does."""
    z = ((seed << 40 ^ n) + 0x9E3779B97F4A7C15) & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31


def make_table(catalog: Catalog, name: str) -> Table:
    """Create the empty table of a job."""
    return catalog.create_table(name, SCHEMA, partition_spec=_SPEC, properties={"format-version": "2"})


@contextmanager
def running(log: Changelog, uri: str, name: str, folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run the job; its output is `flink.log` in the folder.

    Raises RuntimeError with the end of that file if the job has failed at the end of the block.
    """
    namespace, table = name.split(".")
    options = [
        log.mode,
        log.seed,
        log.changes,
        log.per_second,
        log.keys,
        log.failures,
        folder / "checkpoints",
        log.sink,
    ]
    jars = ":".join(map(str, flink_jars()))
    _compile(folder / "classes", jars)
    command = ["java", *_JVM, *_OPEN, "-cp", f"{jars}:{folder / 'classes'}", "Changelog", uri, namespace, table]
    command += map(str, options)
    with (folder / "flink.log").open("wb") as output:
        job = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield job
        if job.wait() != 0:
            raise RuntimeError(f"Cannot run the Flink job: exit code {job.returncode}\n{tail(folder / 'flink.log')}")
    finally:
        end(job)


def starts(folder: Path) -> int:
    """Return how often the job of a folder was started."""
    [found] = re.findall(r"^starts (\d+)$", (folder / "flink.log").read_text(), re.MULTILINE)
    return int(found)


def has_compiler() -> bool:
    """Return whether there is a `javac`."""
    return shutil.which("javac") is not None


def _compile(classes: Path, jars: str) -> None:
    source = Path(__file__).with_name("Changelog.java")
    subprocess.run(["javac", "-d", classes, "-cp", jars, source], check=True)
