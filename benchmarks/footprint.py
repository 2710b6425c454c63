"""Costs of a program besides time: CPU seconds, memory of Python workers, and files that it makes and reads.

The program itself reads `Processes` (of `tests.support.processes`) and counts `objects`. Its parent counts reads of
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
    """Return the number of data and metadata files of a warehouse's tables, without local checksum files."""
    return sum(path.is_file() and not path.name.startswith(".") for path in (warehouse / "wh").rglob("*.*"))


def metadata_folder(warehouse: Path) -> Path:
    """Return the metadata directory of the table `c.db.t`."""
    return warehouse / "wh" / "db" / "t" / "metadata"


@contextlib.contextmanager
def counted(warehouse: Path) -> Iterator[None]:
    """Mark the part of a program whose reads count."""
    (metadata_folder(warehouse) / _BEGAN).touch()
    yield
    (metadata_folder(warehouse) / _ENDED).touch()


class MetadataReads:
    """Counts files in a table's metadata directory that are opened and closed without writing, and deleted ones.

    The directory must exist before the program starts, and stay. If two readers close the same file at the same time,
    they count as one: the kernel and the observer both drop an event that equals the previous one.
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
        # Events arrive late but in order: after the second mark, all earlier ones have arrived.
        if kind is None and not self._events.ended.wait(_MARK_TIMEOUT_SECONDS):
            raise RuntimeError(f"Cannot count reads in {self._folder}: the program has not marked its end there")
        self._observer.stop()
        self._observer.join()

    def figures(self) -> dict[str, int]:
        """Return `metadata_reads` and `metadata_deleted` between the marks."""
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
