"""The rows of the benchmark of upserts: the first rows of a table, batches of updates, and what they leave.

A row is (id, n, value, status, note): the key, the order, a number that depends on both, one of five words, and 38
random digits, which do not compress. The first rows have order 0; the events of the batches have 1, 2, 3 and so on.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Shape = Literal["uniform", "zipf"]
ZIPF = 0.99
"""The exponent of YCSB's zipfian workloads."""
COLUMNS = "id bigint, n bigint, value bigint, status string, note string"
SEED = 7
_STATUSES = ("new", "paid", "sent", "done", "void")
_FILE_ROWS = 1_000_000
_SCATTER = 2_654_435_761
"""A prime: popular keys do not lie together."""
_VALUES = 1_000_003


@dataclass(frozen=True)
class Workload:
    """What is upserted.

    Attributes:
        keys: Rows of the table.
        rows: Events of a batch.
        batches: Number of batches.
        shape: "uniform": the keys of a batch are drawn evenly, each once. "zipf": by the zipfian distribution, and a
            popular key comes several times.
    """

    keys: int
    rows: int
    batches: int
    shape: Shape

    def write(self, folder: Path) -> None:
        """Write the files of `first_files` and `batch_files`."""
        rng = np.random.default_rng(SEED)
        (folder / "first").mkdir(parents=True)
        for number, start in enumerate(range(0, self.keys, _FILE_ROWS)):
            ids = np.arange(start, min(self.keys, start + _FILE_ROWS))
            rows = rows_of(ids, np.zeros(len(ids), np.int64), rng)
            pq.write_table(rows, folder / "first" / f"rows_{number:04}.parquet", compression="zstd")
        (folder / "batches").mkdir()
        for number, ids in enumerate(self._drawn(rng)):
            orders = np.arange(1, len(ids) + 1) + number * self.rows
            path = folder / "batches" / f"batch_{number:05}.parquet"
            pq.write_table(rows_of(ids, orders, rng), path, compression="zstd")

    def _drawn(self, rng: np.random.Generator) -> Iterator[NDArray[np.int64]]:
        if self.shape == "uniform":
            for _ in range(self.batches):
                yield rng.choice(self.keys, min(self.rows, self.keys), replace=False)
            return
        shares = np.cumsum(1.0 / np.arange(1, self.keys + 1) ** ZIPF)
        for _ in range(self.batches):
            ranks = np.searchsorted(shares, rng.random(self.rows) * shares[-1])
            yield ranks * _SCATTER % self.keys


def rows_of(ids: NDArray[np.int64], orders: NDArray[np.int64], rng: np.random.Generator) -> pa.Table:
    """Return rows with these keys and orders."""
    digits = [pa.array(rng.integers(10**18, 9 * 10**18, len(ids))).cast(pa.string()) for _ in range(2)]
    statuses = pa.array(_STATUSES).take(pa.array(rng.integers(0, len(_STATUSES), len(ids))))
    return pa.table(
        {
            "id": ids, "n": orders, "value": values_of(ids, orders), "status": statuses,
            "note": pc.binary_join_element_wise(*digits, ""),
        }
    )  # fmt: skip


def values_of(ids: NDArray[np.int64], orders: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the values of rows."""
    return (ids * 31 + orders * 17) % _VALUES


def first_files(folder: Path) -> list[Path]:
    """Return the files with the first rows."""
    return sorted((folder / "first").iterdir())


def batch_files(folder: Path, batches: int | None = None) -> list[Path]:
    """Return the files of the first batches."""
    return sorted((folder / "batches").iterdir())[:batches]


def sums(folder: Path, keys: int, batches: Sequence[Path]) -> tuple[int, int, int]:
    """Return the number of rows, the sum of `n` and the sum of `value` after batches."""
    newest = np.zeros(keys, np.int64)
    for path in batches:
        rows = pq.read_table(path, columns=["id", "n"])
        newest[rows["id"].to_numpy()] = rows["n"].to_numpy()  # the last one of equal keys stays
    return keys, int(newest.sum()), int(values_of(np.arange(keys), newest).sum())


def create_table(
    spark: SparkSession,
    name: str,
    args: argparse.Namespace,
    columns: str = COLUMNS,
    partitioned: str = "",
    *,
    distribution: str = "none",
) -> None:
    """Create an empty table of the format version and with the target size in `args`; `MERGE` adds deletes to it."""
    properties = {
        "format-version": args.version, "write.target-file-size-bytes": args.target_bytes,
        "write.distribution-mode": distribution, "write.merge.mode": "merge-on-read",
    }  # fmt: skip
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in properties.items())
    spark.sql("CREATE NAMESPACE IF NOT EXISTS c.db")
    spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg {partitioned} TBLPROPERTIES ({listed})")
