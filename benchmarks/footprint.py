"""What a program costs besides time: CPU seconds, memory of Python workers, and files that it makes and reads.

The program itself asks `Processes` (of `tests.support.processes`) and counts `objects`; who started it counts reads of
metadata (`MetadataReads`), between two marks that the program sets.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from watchdog.events import FileClosedNoWriteEvent, FileCreatedEvent, FileDeletedEvent, FileSystemEvent
from watchdog.events import FileSystemEventHandler as Handler
from watchdog.observers import Observer

_BEGAN, _ENDED = ".began", ".ended"
_MARK_TIMEOUT_SECONDS = 60.0


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
