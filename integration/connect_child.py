"""A client of a Spark Connect server: `python -m integration.connect_child URL FOLDER STEP [STEP ...]`.

FOLDER holds `lake.db` (catalog `lake`, table `db.events`, which the server knows as `lake.db.events`) and the files of
a stream in `in`. The steps run one after the other in one session; what they came to is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tenacity import retry, retry_if_exception_message, stop_after_attempt

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.sized_table import SizedTable
from icesize.spark.engine import session
from icesize.spark.stream.sink import Sink
from tests.support.spark_child import POLICY
from tests.support.spark_lake import SCHEMA, events, lake_catalog, with_options


@dataclass(frozen=True)
class Client:
    """One session, and the table opened by a catalog object and by name."""

    spark: SparkSession
    folder: Path
    given: SizedTable
    named: SizedTable

    def cores(self) -> int:
        """Tasks that run at one time, as icesize sees it."""
        return session.parallelism(self.spark)

    def stream(self) -> None:
        """Every file of the stream through the sink of a catalog object."""
        self._stream(self.given.sink("s", query_id="q"))

    def named_stream(self) -> None:
        """The same, the server opening the catalog by its own settings."""
        self._stream(self.named.sink("s", query_id="q", cluster="inline"))

    def _stream(self, sink: Sink) -> None:
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{self.folder}/in")
        writer = source.writeStream.foreachBatch(sink).option("checkpointLocation", f"{self.folder}/checkpoint")
        _started(writer.trigger(availableNow=True)).awaitTermination()

    def unnamed(self) -> str:
        """The error of a sink without the id of its query, when it is made, and when it runs by hand."""
        errors = list[str]()
        unnamed = with_options(self.given.sink("s", query_id="q"), query_id=None)
        for use in (lambda: self.given.sink("s"), lambda: unnamed(self._rows(0, 1), 0)):
            try:
                use()
            except icesize.BatchError as error:
                errors.append(str(error))
        first, second = errors
        assert first == second
        return first

    def append(self) -> dict[str, Any]:
        """600 rows more, told apart by a batch id: the second call finds them."""
        done = [self.given.append(self._rows(1000, 1600), "by hand", 0).to_dict() for _ in range(2)]
        assert done[1]["already_committed"]
        return done[0]

    def compact(self) -> dict[str, Any]:
        """All small files."""
        return self.named.compact().to_dict()

    def cluster(self) -> dict[str, Any]:
        """By a column, by Spark tasks."""
        return self.named.cluster(by=["id"]).to_dict()

    def maintain(self) -> dict[str, Any]:
        """Everything."""
        return self.named.maintain().to_dict()

    def maintain_all(self) -> dict[str, Any]:
        """All tables of the server's catalog, large or small, by Spark tasks."""
        environment = Environment(limits=WorkLimits(driver_merge_bytes=-1))
        return icesize.maintain("lake.db.*", spark=self.spark, environment=environment).to_dict()

    def _rows(self, first: int, last: int) -> DataFrame:
        return self.spark.createDataFrame(events(range(first, last), hours=3))


@retry(retry=retry_if_exception_message(match="Python worker failed to connect back"), stop=stop_after_attempt(3))
def _started(writer: DataStreamWriter) -> StreamingQuery:
    """A busy machine does not always start Python in the ten seconds that the server gives it."""
    return writer.start()


def main(url: str, folder: Path, steps: list[str]) -> None:
    """Runs the steps and prints what they return."""
    spark = SparkSession.builder.remote(url).getOrCreate()
    catalog = lake_catalog(folder)
    given = icesize.open(spark, "db.events", catalog=catalog, policy=POLICY)
    named = icesize.open(spark, "lake.db.events", policy=POLICY)
    client = Client(spark, folder, given, named)
    calls: dict[str, Callable[[], object]] = {step: getattr(client, step) for step in steps}
    print(json.dumps({step: call() for step, call in calls.items()}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3:])
