"""Cost of a command as a whole process with its children: wall and CPU seconds, memory, bytes read from the disk.

    python -I -S benchmarks/measured.py COMMAND...

runs it and prints one JSON line after the lines of the command, unless that fails. On Linux, the peak memory of a
process begins with that of its parent, so this small program starts the command instead of the benchmark. It also
adopts processes that the command leaves running, such as Spark's JVM, and waits for them, so that their CPU seconds
count.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time

_PR_SET_CHILD_SUBREAPER = 36
_BLOCK_BYTES = 512
"""Bytes of the blocks in which Linux counts input."""


def main(command: list[str]) -> int:
    """Run the command; return its exit code."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.perf_counter()
    program = os.posix_spawnp(command[0], command, os.environ)
    _, status, usage = os.wait4(program, 0)
    seconds = time.perf_counter() - began
    usages = [usage]
    while True:
        try:
            usages.append(os.wait4(-1, 0)[2])
        except ChildProcessError:
            break
    if status != 0:
        return abs(os.waitstatus_to_exitcode(status))
    cost = {
        "seconds": seconds,
        "cpu_seconds": sum(used.ru_utime + used.ru_stime for used in usages),
        "peak_bytes": max(used.ru_maxrss for used in usages) * 1024,
        "disk_read_bytes": sum(used.ru_inblock for used in usages) * _BLOCK_BYTES,
    }
    print("\n" + json.dumps(cost))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
