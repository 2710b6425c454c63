"""Spark in one session: parquet-mr as a writer, and a reader of many merged tables in both modes."""

from __future__ import annotations

import itertools
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from integration.jars import spark_jars
from integration.servers import catalog_settings, session_settings
from integration.writers.cases import Case
from integration.writers.merging import Lake, difference, input_rows
from integration.writers.pool import Made
from integration.writers.rows import FLAT, NESTED, arrow_types, make_rows, spelt

WRITERS = {"spark-v1": "PARQUET_1_0", "spark-v2": "PARQUET_2_0"}
_CODECS = ("zstd", "snappy", "gzip", "none", "lz4_raw")


@dataclass
class Reader:
    """A session with the catalog `lake` of the run's folder."""

    spark: SparkSession
    inputs: dict[tuple[str, str], str] = field(default_factory=dict)

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

    def read(self, lake: Lake) -> tuple[list[tuple[Case, str]], Counter[str]]:
        """Read the kept tables with and without vectors; returns the cases that fail with why, and what Spark refuses.

        A merged table may be refused in a mode that refuses one of its input files, too.
        """
        failures, refused = list[tuple[Case, str]](), Counter[str]()
        for (case, table, live), vectorized in itertools.product(lake.kept, ("true", "false")):
            if not (wrong := self._wrong(table, live, vectorized)):
                continue
            inputs = [found for file in case.files if (found := self._wrong_input(lake, file, vectorized))]
            if inputs:
                refused[f"vectorized {vectorized}: {inputs[0]}"] += 1
            else:
                failures.append((case, f"Spark (vectorized {vectorized}) {wrong}"))
        return failures, refused

    def _wrong(self, table: str, wanted: list[str], vectorized: str) -> str:
        """What is wrong with the rows that Spark reads, empty if nothing is."""
        try:
            found = spelt(self.spark.read.option("vectorization-enabled", vectorized).table(f"lake.{table}").toArrow())
        except Exception as error:
            return f"fails: {_cause(error)}"
        return f"reads other rows: {difference(wanted, found)}" if found != wanted else ""

    def _wrong_input(self, lake: Lake, file: Made, vectorized: str) -> str:
        if (file.name, vectorized) not in self.inputs:
            table = lake.table_of(file)
            why = self._wrong(table, sorted(input_rows(file)), vectorized)
            self.inputs[file.name, vectorized] = why and f"{file.writer}/{file.encoding}/{file.codec} {why}"
        return self.inputs[file.name, vectorized]

    def stop(self) -> None:
        """End the session."""
        self.spark.stop()


_TYPES: dict[str, pa.DataType] = arrow_types(fixed=False, category=False)


def _cause(error: Exception) -> str:
    """The innermost cause of an error of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if "Caused by: " in line]
    return (lines or [f"{type(error).__name__}: {error}"])[-1][:400]
