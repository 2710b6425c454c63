"""A folder of the local disk of which the n-th call fails, or finds no room from there on.

icesize opens, lists and deletes local files without PyIceberg. Python's audit events are these calls. A full disk is a
limit of the kernel on what the process may write, which PyArrow and SQLite meet as well.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.failing_storage import AWAY, CUT, DAY_SECONDS, ERROR, FULL, Call, Faults, Store, Stored

DISK_KINDS = (ERROR, CUT, FULL, AWAY)
CUT_BYTES = range(50, 4_000, 200)
"""Bytes after which the files of a small table are cut short: manifests, lists of them, data files, metadata."""
_EVENTS = ("open", "os.listdir", "os.mkdir", "os.remove", "os.scandir")
_watched: list[Disk] = []


class DiskFaults(Faults):
    """Faults of the operating system."""

    def numbers(self, calls: Sequence[Call], kind: str) -> Sequence[int]:
        """Numbers of the calls; if files are cut short, their bytes."""
        return CUT_BYTES if kind == CUT else range(1, len(calls) + 1)

    def begin(self, number: int, kind: str) -> None:
        """Let the call of this number fail, or let no file grow beyond so many bytes."""
        super().begin(number, kind)
        if kind == CUT:
            _limit(number)

    def reach(self, what: str, path: str) -> bool:
        """Count a call. Raises OSError when it is to fail; when the disk is to be full, writes do that from now on."""
        if self.kind not in (FULL, CUT):
            return super().reach(what, path)
        self.calls.append(Call(what, path))
        if self.kind == FULL and len(self.calls) == self.number:
            self.struck.append(self.calls[-1])
            _limit(0)
        return False

    def heal(self) -> None:
        """Nothing fails from here on; calls are counted from 1."""
        super().heal()
        _limit(None)


def _limit(size_bytes: int | None) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most if size_bytes is None else size_bytes, most))


class Disk(Store):
    """The files below a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "warehouse"
        self.warehouse = f"file://{self.folder}"
        self.faults = DiskFaults()
        if not _watched:
            sys.addaudithook(_on_event)
        _watched.append(self)

    def properties(self) -> dict[str, str]:
        """None: PyIceberg's own FileIO for local files."""
        return {}

    @property
    def files(self) -> Mapping[str, Stored]:  # type: ignore[override]
        """The files by path."""
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return {str(p): Stored(p.read_bytes(), round((time.time() - p.stat().st_mtime) / DAY_SECONDS)) for p in found}

    @files.setter
    def files(self, files: Mapping[str, Stored]) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        for path, file in files.items():
            self.put(path, file)

    def put(self, path: str, file: Stored) -> None:
        """Add a file, or write it again."""
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(file.data)
        then = time.time() - file.age_days * DAY_SECONDS
        os.utime(path, (then, then))

    def remove(self, path: str) -> None:
        """Remove a file that may be there."""
        Path(path).unlink(missing_ok=True)


def _on_event(event: str, args: tuple[Any, ...]) -> None:
    """An audit hook, which nothing can remove."""
    if event in _EVENTS:
        for disk in _watched:
            if str(args[0]).startswith(f"{disk.folder}/"):
                disk.faults.reach(event, str(args[0]))
