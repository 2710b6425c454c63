"""A driver that ends while its stream is clustered: `python -m tests.support.cluster_child FOLDER`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`, which says by what it is clustered and has enough files). The
files of the pass are written when the interpreter ends; it goes on when it has been told to stop.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import icesize
from icesize import failpoints
from icesize.spark.stream import process_state
from tests.support.spark_child import session
from tests.support.spark_lake import events, lake_catalog

WAIT_S = 60


def main(folder: Path) -> None:
    """One batch, after which a pass is due."""
    catalog = lake_catalog(folder)
    spark = session("local[1]")
    policy = {"target-file-size-bytes": 12_000}
    sink = icesize.open(spark, "db.events", catalog=catalog, policy=policy).sink("s", merge="off", cluster="async")
    background = process_state.stream_state(sink.source, "s").background
    written = threading.Event()

    def hold() -> None:
        if threading.current_thread().name == "icesize-background":
            written.set()
            background._cancelled.wait()

    with failpoints.armed("files-written", hold):
        sink(spark.createDataFrame(events([1_000_000])), 0)
        assert written.wait(WAIT_S)
    print(sum(path.name.startswith("k") for path in (folder / "lake").rglob("*.parquet")), "clustered")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
