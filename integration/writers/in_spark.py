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
from integration.writers.pool import ALIKE, Made, all_ids
from integration.writers.rows import FLAT, NESTED, arrow_types, make_rows, spelt

WRITERS = {"spark-v1": "PARQUET_1_0", "spark-v2": "PARQUET_2_0"}
_FAILS = "fails: "
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
        name, form = f"{writer}-{seed}-{number}", number // ALIKE
        chance = random.Random(f"{writer}-{seed}-{form}")
        encoding = ("plain", "dictionary", "fallback")[form % 3]
        # elements of lists get no field id
        ids = "nowhere" if form // 3 % 3 == 1 else "everywhere"
        named = (*FLAT, *NESTED) if ids == "nowhere" and chance.random() < 0.7 else FLAT
        columns = tuple(c for c in named if c != "money")
        nulls, few, codec = chance.choice((0.0, 0.1)), chance.choice((1, 4, 60)), chance.choice(_CODECS)
        count, out = random.Random(name).choice((1, 30, 120, 300)), folder / name
        rows = make_rows(name, count, columns, nulls, few, _TYPES)
        options = {"compression": codec, "parquet.writer.version": WRITERS[writer]}
        options["parquet.enable.dictionary"] = str(encoding != "plain").lower()
        if encoding == "fallback":
            options["parquet.dictionary.page.size"] = "256"
        frame = self.spark.createDataFrame(rows).coalesce(1)
        if ids == "everywhere":
            found = all_ids()
            frame = frame.select(*(frame[c].alias(c, metadata={"parquet.field.id": found[c]}) for c in columns))
        # timestamps of 96 bits, as by default, are never copied
        kind = "INT96" if chance.random() < 0.2 else "TIMESTAMP_MICROS"
        self.spark.conf.set("spark.sql.parquet.outputTimestampType", kind)
        frame.write.options(**options).parquet(str(out))
        (path,) = out.glob("*.parquet")
        pages = WRITERS[writer][8:].replace("_", ".")
        return Made(name, str(path), writer, encoding, codec, pages, ids, columns, pq.read_metadata(path).num_rows)

    def read(self, lake: Lake) -> tuple[list[tuple[Case, str]], Counter[str]]:
        """Read the kept tables with and without vectors; returns the cases that fail with why, and what Spark refuses.

        A merged table may fail in a mode that fails for one of its input files, too; other rows are never right.
        """
        failures, refused = list[tuple[Case, str]](), Counter[str]()
        for (case, table, live), vectorized in itertools.product(lake.kept, ("true", "false")):
            if not (wrong := self._wrong(table, live, vectorized)):
                continue
            if inputs := self._failing_inputs(lake, case, vectorized) if wrong.startswith(_FAILS) else []:
                refused[f"vectorized {vectorized}: {inputs[0]}"] += 1
            else:
                failures.append((case, f"Spark (vectorized {vectorized}) {wrong}"))
        return failures, refused

    def _failing_inputs(self, lake: Lake, case: Case, vectorized: str) -> list[str]:
        """Return for which input files Spark fails, too, and why."""
        found = ((file, self._wrong_input(lake, file, vectorized)) for file in case.files)
        return [f"{file.writer}/{file.encoding}/{file.codec} {why}" for file, why in found if why.startswith(_FAILS)]

    def _wrong(self, table: str, wanted: list[str], vectorized: str) -> str:
        """What is wrong with the rows that Spark reads, empty if nothing is."""
        try:
            found = spelt(self.spark.read.option("vectorization-enabled", vectorized).table(f"lake.{table}").toArrow())
        except Exception as error:
            return f"{_FAILS}{_cause(error)}"
        return f"reads other rows: {difference(wanted, found)}" if found != wanted else ""

    def _wrong_input(self, lake: Lake, file: Made, vectorized: str) -> str:
        if (file.path, vectorized) not in self.inputs:
            table = lake.table_of(file)
            self.inputs[file.path, vectorized] = self._wrong(table, sorted(input_rows(file)), vectorized)
        return self.inputs[file.path, vectorized]

    def stop(self) -> None:
        """End the session."""
        self.spark.stop()


_TYPES: dict[str, pa.DataType] = arrow_types(fixed=False, category=False)


def _cause(error: Exception) -> str:
    """The innermost cause of an error of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if "Caused by: " in line]
    return (lines or [f"{type(error).__name__}: {error}"])[-1][:400]
