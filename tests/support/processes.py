"""CPU seconds and memory of this process and of those below it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import NamedTuple

import psutil


def peak_bytes(pid: int | str = "self") -> int:
    """The most memory that a living process ever held.

    Not `ru_maxrss`: Linux carries that over from the parent, which is larger than what is measured here.
    """
    (line,) = (x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


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


def _is_worker(process: psutil.Process) -> bool:
    """PySpark's workers are forks of a daemon, with its command line."""
    parent = process.parent()
    return parent is not None and all("pyspark.daemon" in one.cmdline() for one in (process, parent))
