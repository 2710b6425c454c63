"""A driver that ends during a merge in the background: `python -m tests.support.background_child FOLDER END`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`). END is `exit` (the interpreter ends, Spark runs) or `spark`
(Spark is stopped first). Files of the merge are written by then; it goes on when it has been told to stop.
"""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import icesize
from icesize import failpoints
from icesize.spark.stream import process_state
from tests.support.spark_child import POLICY, session
from tests.support.spark_lake import events, lake_catalog

WAIT_S = 60


def main(folder: Path, end: str) -> None:
    """Four batches into one partition, the fourth of which makes a merge due."""
    catalog = lake_catalog(folder)
    spark = session("local[1]")
    sink = icesize.open(spark, "db.events", catalog=catalog, policy=POLICY).sink("s", merge="async")
    background = process_state.stream_state(sink.source, "s").background
    written, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        if threading.current_thread().name == "icesize-background":
            written.set()
            (background._cancelled if end == "exit" else go_on).wait()

    with failpoints.armed("files-written", hold):
        for batch in range(4):
            sink(spark.createDataFrame(events([batch])), batch)
        assert written.wait(WAIT_S)
    print(len(list((folder / "lake").rglob("*.parquet"))), "files")
    if end == "spark":
        spark.stop()
        go_on.set()
        sink.drain()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
