"""Damage done on purpose to the kept table alone, each kind by its name: what the machine must see.

No program that is generated has one of these.
"""

from __future__ import annotations

import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.table.update import AddSnapshotUpdate

from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_ref
from icesize.table.commit.steps.rewrite_manifests import RewriteManifests
from icesize.table.records.summary import RUN_ID
from integration.evolution.pair import Pair
from integration.evolution.statements import statement
from integration.evolution.values import Draw, Skip


@statement("plant-lost-row")
def lost_row(pair: Pair, draw: Draw) -> str:
    table, file = _some_file(pair)
    table.newDelete().deleteFile(file).commit()
    return "planted: a file's rows are gone"


@statement("plant-resurrection")
def resurrection(pair: Pair, draw: Draw) -> str:
    """Needs delete files."""
    table, file = _some_file(pair, lambda task: list(task.deletes()))
    table.newRowDelta().removeDeletes(file).commit()
    return "planted: a delete file is gone"


@statement("plant-wrong-partition")
def wrong_partition(pair: Pair, draw: Draw) -> str:
    """Needs a table partitioned by one bucket of four."""

    def other(builder: Any, file: Any) -> Any:
        name, _, bucket = table.spec().partitionToPath(file.partition()).partition("=")
        return builder.withPartitionPath(f"{name}={(int(bucket) + 1) % 4}")

    table, file = _some_file(pair)
    _replace(pair, table, file, other)
    return "planted: a file has another partition"


@statement("plant-wrong-bounds")
def wrong_bounds(pair: Pair, draw: Draw) -> str:
    def narrow(builder: Any, file: Any) -> Any:
        jvm = pair.engine.spark._jvm
        low = jvm.java.util.HashMap()
        low.put(1, jvm.java.nio.ByteBuffer.wrap(struct.pack("<q", 1_000)))
        return builder.withMetrics(
            jvm.org.apache.iceberg.Metrics(file.recordCount(), None, None, None, None, low, None)
        )

    table, file = _some_file(pair)
    _replace(pair, table, file, narrow)
    return "planted: the smallest id of a file is said to be 1000"


@statement("plant-path-again")
def path_again(pair: Pair, draw: Draw) -> str:
    table, file = _some_file(pair)
    table.newDelete().deleteFile(file).commit()
    table.newAppend().appendFile(file).commit()
    return "planted: a file is deleted and added again"


@statement("plant-left-file")
def left_file(pair: Pair, draw: Draw) -> str:
    _, file = _some_file(pair)
    _copy(file.location(), "0123-4-0-0-11111111-1111-1111-1111-1111111111aa.parquet")
    return "planted: a data file that nobody refers to"


@statement("plant-wrong-total")
def wrong_total(pair: Pair, draw: Draw) -> str:
    """Needs two manifests."""
    table = pair.kept.table
    head = table.metadata.current_snapshot()
    snapshot = (
        RewriteManifests().stage(SnapshotBuilder(table, head.timestamp_ms + 1), {RUN_ID: "planted"}) if head else None
    )
    if snapshot is None or snapshot.summary is None:
        raise Skip("there is nothing to rewrite")
    snapshot.summary["total-records"] = str(int(snapshot.summary["total-records"] or 0) + 1)
    updates = AddSnapshotUpdate(snapshot=snapshot), move_ref(table.metadata, "main", snapshot.snapshot_id)
    pair.engine.catalog.commit_table(table, (), updates)
    return "planted: the summary says a row too much"


def _some_file(pair: Pair, of: Callable[[Any], list[Any]] = lambda task: [task.file()]) -> tuple[Any, Any]:
    table = pair.kept.java
    tasks = list(pair.engine.spark._jvm.org.apache.iceberg.relocated.com.google.common.collect.Lists.newArrayList(
        table.newScan().planFiles()
    ))  # fmt: skip
    files = [file for task in tasks for file in of(task)]
    if not files:
        raise Skip("there is no file")
    return table, files[0]


def _replace(pair: Pair, table: Any, file: Any, change: Callable[[Any, Any], Any]) -> None:
    """The same rows in a file of another name, listed otherwise."""
    location = _copy(file.location(), "planted-00001.parquet")
    builder = pair.engine.spark._jvm.org.apache.iceberg.DataFiles.builder(table.spec()).copy(file).withPath(location)
    table.newOverwrite().deleteFile(file).addFile(change(builder, file).build()).commit()


def _copy(location: str, name: str) -> str:
    source = Path("/" + location.removeprefix("file:").lstrip("/"))
    shutil.copy(source, source.parent / name)
    return f"{location.rsplit('/', 1)[0]}/{name}"
