"""The rows of the input files of a merge, one file after the other, in the table's current schema."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.reading.projection import Projection
from icesize.parquet.reading.reader import read_file
from icesize.planning.plan import MergeGroup


def read_inputs(task: MergeGroup, settings: WriteSettings, fetched: Fetched | None = None) -> Iterator[pa.Table]:
    """The rows of all input files, in their order, as tables of `settings.arrow_schema`.

    Raises `RewriteFailed` with the attribute `path` of one that is missing, damaged or does not have the rows that its
    manifest entry says, after some of its rows.
    """
    projection = Projection(settings, task.partition)
    for input_file in task.inputs:
        rows = 0
        source = fetched.get(input_file.path) if fetched is not None else None
        for table in read_file(settings, input_file.path, input_file.size_bytes, projection, source):
            rows += table.num_rows
            yield table
        if rows != input_file.rows:
            raise RewriteFailed(
                f"Cannot merge {input_file.path}: it has {rows} rows, its manifest says {input_file.rows}, "
                "check the table's metadata",
                path=input_file.path,
            )
