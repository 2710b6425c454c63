"""One call that compacts the table `db.t`, in a process of its own: rows of `benchmarks.compact_rivals`.

    python -m benchmarks.compact_call WAY URI TARGET_BYTES

Prints one JSON line with the cost of the call alone. Each way imports its own modules, because imports count. The
environment of `rust` starts this file by its path, and has nothing of the project.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable

TABLE = "db.t"


def _cpu_seconds() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def _called(action: Callable[[], object], cpu_seconds: Callable[[], float] = _cpu_seconds) -> dict[str, float]:
    began, cpu_began = time.perf_counter(), cpu_seconds()
    action()
    return {"seconds": time.perf_counter() - began, "cpu_seconds": cpu_seconds() - cpu_began}


def _icesize(uri: str, target_bytes: int) -> dict[str, float]:
    """Compact with icesize; the target is a property of the table."""
    from pyiceberg.catalog import load_catalog

    import icesize

    return _called(icesize.open(None, TABLE, catalog=load_catalog("c", uri=uri)).compact)


def _overwrite(uri: str, target_bytes: int) -> dict[str, float]:
    """Compact with PyIceberg's own methods: read all rows into memory, and write them again."""
    from pyiceberg.catalog import load_catalog

    table = load_catalog("c", uri=uri).load_table(TABLE)
    return _called(lambda: table.overwrite(table.scan().to_arrow()))


def _rewrite(uri: str, target_bytes: int) -> dict[str, float]:
    from benchmarks import peers
    from tests.support.processes import Processes

    spark, processes = peers.rest_session(uri), Processes()
    cost = _called(lambda: peers.call_rewrite(spark, TABLE, target_bytes), lambda: processes.cpu().total)
    spark.stop()
    return cost


def _rust(uri: str, target_bytes: int) -> dict[str, float]:
    """Compact with the wheel `iceberg-compaction`, with its own defaults except the target.

    The wheel is not one of the Iceberg project.
    """
    from iceberg_compaction import Compaction, CompactionConfig, RestCatalog  # type: ignore[import-not-found]

    config = CompactionConfig(target_file_size_bytes=target_bytes)
    return _called(Compaction(RestCatalog("c", uri=uri), TABLE, config).run)


WAYS = {"icesize": _icesize, "overwrite": _overwrite, "rewrite": _rewrite, "rust": _rust}


if __name__ == "__main__":
    print(json.dumps(WAYS[sys.argv[1]](sys.argv[2], int(sys.argv[3]))))
