"""What tests of benchmarks beside rivals have in place of lineitem and a catalog's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog


@contextmanager
def catalog_for_all(folder: Path) -> Iterator[str]:
    """Instead of a server, a catalog that every program in Python opens by its address alone."""
    uri = f"sqlite:///{folder}/runs.db"
    SqlCatalog("c", uri=uri).close()
    yield uri


def make_lineitem(warehouse: Path, files: int, rows: int, column: pa.Field, value: Callable[[int], object]) -> None:
    """A small `db.t` with the key of lineitem, the numbers of its rows, and one more column."""
    warehouse.mkdir()
    schema = pa.schema([pa.field("l_orderkey", pa.int64()), pa.field("l_linenumber", pa.int32()), column])
    with SqlCatalog("c", uri=f"sqlite:///{warehouse}/cat.db", warehouse=f"file://{warehouse}/wh") as catalog:
        catalog.create_namespace("db")
        table = catalog.create_table("db.t", schema)
        for first in range(0, files * rows, rows):
            made = [(n, n % 7, value(n)) for n in range(first, first + rows)]
            table.append(pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in made], schema))
