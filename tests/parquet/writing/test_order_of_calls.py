"""The drawing in the docstring of `icesize.parquet.writing` is the order of calls for rows of one partition."""

from __future__ import annotations

from functools import partial

import pyarrow as pa
from pyiceberg.catalog.sql import SqlCatalog

from icesize.parquet import writing
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from tests.support.drawings import calls_of, drawing_in
from tests.support.tables import make_table


def test_the_drawing_is_the_order_of_calls(lake: SqlCatalog) -> None:
    """Rows that are written to one file pass the functions of the drawing in its order."""
    table = make_table(lake)
    settings = WriteSettings.of(table.metadata, table.io.properties, 10**6)
    rows = pa.table({"id": pa.array([1, 2], pa.int64()), "kind": ["a", "a"]})
    drawn = drawing_in(writing)
    write = partial(write_rows, [rows], settings)
    write(FileNames("first", 1, 0))  # what is computed once for the settings of a table
    assert calls_of(drawn, lambda: write(FileNames("second", 1, 0))) == drawn
