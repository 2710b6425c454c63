"""Keeps the files of Apache Iceberg tables well sized while Spark writes them.

    import icesize
    table = icesize.open(spark, "lake.db.events")
    stream.writeStream.foreachBatch(table.sink(stream_id="clicks")).option("checkpointLocation", path).start()

    table = icesize.open(None, "lake.db.events")  # without Spark
    print(table.inspect())
    table.compact()

`open` gives a SizedTable, which has everything that can be done to a table. What was done is a Report, how large files
are to be a SizePolicy, and what went wrong an IcesizeError.

Importing this package imports neither pyspark nor pyarrow nor pyiceberg; they load with the first `open`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from icesize.errors import (
    ArgumentError,
    BatchError,
    BatchInterrupted,
    BatchOutOfOrder,
    ClusteringOff,
    CommitConflict,
    CommitStateUnknown,
    EngineUnavailable,
    IcesizeError,
    PolicyError,
    RewriteFailed,
    SchemaMismatch,
    StreamMismatch,
    TableError,
    TableNotFound,
    UnsupportedTable,
)
from icesize.policy import SizePolicy
from icesize.report import Report

if TYPE_CHECKING:
    from icesize.sized_table import SizedTable, open
    from icesize.spark.stream.sink import Sink

__all__ = [
    "ArgumentError",
    "BatchError",
    "BatchInterrupted",
    "BatchOutOfOrder",
    "ClusteringOff",
    "CommitConflict",
    "CommitStateUnknown",
    "EngineUnavailable",
    "IcesizeError",
    "PolicyError",
    "Report",
    "RewriteFailed",
    "SchemaMismatch",
    "Sink",
    "SizePolicy",
    "SizedTable",
    "StreamMismatch",
    "TableError",
    "TableNotFound",
    "UnsupportedTable",
    "open",
]

__version__ = "0.1.0"

_LAZY = {"SizedTable": "icesize.sized_table", "open": "icesize.sized_table", "Sink": "icesize.spark.stream.sink"}


def __getattr__(name: str) -> object:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'icesize' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Also what is not loaded yet, for `help(icesize)` and for shells that complete names."""
    return list(__all__)
