"""What a program costs besides time: CPU seconds, memory of Python workers, and files that it makes and reads.

The program itself asks `Processes` and counts `objects`; who started it counts reads of metadata (`MetadataReads`),
between two marks that the program sets.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

import psutil
from watchdog.events import FileClosedNoWriteEvent, FileCreatedEvent, FileDeletedEvent, FileSystemEvent
from watchdog.events import FileSystemEventHandler as Handler
from watchdog.observers import Observer

from benchmarks.merge_child import peak_bytes

_BEGAN, _ENDED = ".began", ".ended"
_MARK_TIMEOUT_SECONDS = 60.0


class CpuSeconds(NamedTuple):
    """`total` contains `of_jvm_children`: what Java has started and what has ended, such as a `chmod` per file.

    Hadoop's local file system starts those where its native library is missing, as it is beside PySpark; no object
    store has them.
    """

    total: float
    of_jvm_children: float


class Processes:
    """This process and all below it."""

    def __init__(self) -> None:
        self._root = psutil.Process()
        self._workers: dict[tuple[int, float], float] = {}

    def cpu(self) -> CpuSeconds:
        """User and system time until now, also of processes that have ended.

        Linux adds the time of an ended child to its parent, but PySpark's daemon ignores its children's end: what
        its workers took is remembered here from call to call.
        """
        total = of_jvm_children = 0.0
        for process in [self._root, *self._root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                ended = times.children_user + times.children_system
                seconds = times.user + times.system + ended
                if _is_worker(process):
                    self._workers[process.pid, process.create_time()] = seconds
                    continue
                total += seconds
                of_jvm_children += ended if process.name() == "java" else 0.0
        return CpuSeconds(total + sum(self._workers.values()), of_jvm_children)

    def worker_peak_bytes(self) -> int:
        """The most memory that any of the living Python workers ever held; 0 when there is none."""
        peaks = [0]
        for process in self._root.children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError, ValueError):
                if _is_worker(process):
                    peaks.append(peak_bytes(process.pid))
        return max(peaks)


def objects(warehouse: Path) -> int:
    """Files of a warehouse's tables, data and metadata, without the checksums that a local file system gets."""
    return sum(path.is_file() and not path.name.startswith(".") for path in (warehouse / "wh").rglob("*.*"))


def metadata_folder(warehouse: Path) -> Path:
    """Where the metadata of the table `c.db.t` lies."""
    return warehouse / "wh" / "db" / "t" / "metadata"


@contextlib.contextmanager
def counted(warehouse: Path) -> Iterator[None]:
    """Marks the part of a program whose reads count."""
    (metadata_folder(warehouse) / _BEGAN).touch()
    yield
    (metadata_folder(warehouse) / _ENDED).touch()


class MetadataReads:
    """Counts files in a table's metadata folder that are opened and closed without writing, and deleted ones.

    The folder must exist, and stay, before the program starts. Two readers that close the same file at once count as
    one: the kernel and the observer both drop an event that equals the one before.
    """

    def __init__(self, warehouse: Path) -> None:
        self._folder = metadata_folder(warehouse)
        self._observer = Observer()
        self._events = _Events()

    def __enter__(self) -> MetadataReads:
        self._observer.schedule(self._events, str(self._folder))
        self._observer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # events come late, but in order: when the second mark is here, so is all before it
        if kind is None and not self._events.ended.wait(_MARK_TIMEOUT_SECONDS):
            raise RuntimeError(f"Cannot count reads in {self._folder}: the program has not marked its end there")
        self._observer.stop()
        self._observer.join()

    def figures(self) -> dict[str, int]:
        """`metadata_reads` and `metadata_deleted` between the marks."""
        counts = self._events.counts
        return {"metadata_reads": counts[FileClosedNoWriteEvent], "metadata_deleted": counts[FileDeletedEvent]}


class _Events(Handler):
    def __init__(self) -> None:
        self.counts: Counter[type[FileSystemEvent]] = Counter()
        self.ended = threading.Event()
        self._began = False

    def on_any_event(self, event: FileSystemEvent) -> None:
        name = Path(str(event.src_path)).name
        if isinstance(event, FileCreatedEvent) and name == _BEGAN:
            self._began = True
        elif isinstance(event, FileCreatedEvent) and name == _ENDED:
            self.ended.set()
        elif self._began and not self.ended.is_set() and not name.startswith("."):
            self.counts[type(event)] += 1


def _is_worker(process: psutil.Process) -> bool:
    """PySpark's workers are forks of a daemon, with its command line."""
    parent = process.parent()
    return parent is not None and all("pyspark.daemon" in one.cmdline() for one in (process, parent))
