"""Spark in one session: parquet-mr as a writer, and a reader of many merged tables in both modes."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from integration.jars import spark_jars
from integration.servers import catalog_settings, session_settings
from integration.writers.cases import Case
from integration.writers.pool import Made
from integration.writers.rows import FLAT, NESTED, arrow_types, make_rows, spelt

WRITERS = {"spark-v1": "PARQUET_1_0", "spark-v2": "PARQUET_2_0"}
_CODECS = ("zstd", "snappy", "gzip", "none", "lz4_raw")


@dataclass
class Reader:
    """A session with the catalog `lake` of the run's folder."""

    spark: SparkSession

    @staticmethod
    def start(folder: Path) -> Reader:
        """Start the session in this process, which must not have one yet."""
        os.environ["PYSPARK_PYTHON"] = sys.executable
        settings = session_settings(folder) | catalog_settings("", folder)
        settings |= {"spark.jars": ",".join(map(str, spark_jars())), "spark.sql.shuffle.partitions": "1"}
        settings |= {"spark.sql.session.timeZone": "UTC", "spark.driver.memory": "1g"}
        builder = SparkSession.builder.master("local[1]").appName("icesize writers")
        for key, value in settings.items():
            if not key.startswith("spark.sql.catalog.rest"):
                builder = builder.config(key, value)
        spark = builder.getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        return Reader(spark)

    def write(self, folder: Path, seed: int, each: int) -> list[Made]:
        """Write `each` files with pages of version 1, and as many of version 2."""
        return [self._file(folder, writer, seed, n) for writer in WRITERS for n in range(each)]

    def _file(self, folder: Path, writer: str, seed: int, number: int) -> Made:
        name = f"{writer}-{seed}-{number}"
        chance = random.Random(name)
        columns = tuple(c for c in ((*FLAT, *NESTED) if chance.random() < 0.5 else FLAT) if c != "money")
        count, encoding = chance.choice((1, 30, 300)), ("plain", "dictionary", "fallback")[number % 3]
        rows = make_rows(name, count, columns, chance.choice((0.0, 0.1)), chance.choice((1, 4, 60)), _TYPES)
        codec, out = chance.choice(_CODECS), folder / name
        options = {"compression": codec, "parquet.writer.version": WRITERS[writer]}
        options["parquet.enable.dictionary"] = str(encoding != "plain").lower()
        if encoding == "fallback":
            options["parquet.dictionary.page.size"] = "256"
        frame = self.spark.createDataFrame(rows).coalesce(1)
        frame.write.options(**options).parquet(str(out))
        (path,) = out.glob("*.parquet")
        pages = WRITERS[writer][8:].replace("_", ".")
        rows_there = pq.read_metadata(path).num_rows
        return Made(name, str(path), writer, encoding, codec, pages, "nowhere", columns, rows_there)

    def read(self, kept: Sequence[tuple[Case, str, list[str]]]) -> Iterator[tuple[Case, str]]:
        """Read merged tables with and without vectors; yields the cases of which rows differ, and how."""
        for case, table, live in kept:
            for vectorized in ("true", "false"):
                try:
                    frame = self.spark.read.option("vectorization-enabled", vectorized).table(f"lake.{table}")
                    found = spelt(frame.toArrow())
                except Exception as error:
                    yield case, f"Spark (vectorized {vectorized}) fails: {str(error)[:400]}"
                    continue
                if found != live:
                    yield (
                        case,
                        f"Spark (vectorized {vectorized}) reads {len(found)} rows of {len(live)}, or other values",
                    )

    def stop(self) -> None:
        """End the session."""
        self.spark.stop()


_TYPES: dict[str, pa.DataType] = arrow_types(fixed=False, category=False)
