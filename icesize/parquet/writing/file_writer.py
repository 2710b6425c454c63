"""One Parquet file while it is being written."""

from __future__ import annotations

import contextlib
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize import failpoints
from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.metrics import FloatFacts, describe, leaves
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.encoding import Encoding, leaf_values, nan_columns
from icesize.planning.files import PartitionKey
from icesize.storage.stores import abandon


class LateNanError(Exception):
    """Later rows of a file hold NaN in float columns (`nan`, field ids) whose statistics have already begun."""

    def __init__(self, nan: frozenset[int]) -> None:
        super().__init__(f"NaN in columns {sorted(nan)}")
        self.nan = nan


class FileEncoder:
    """Writes one file of one partition, row group by row group, straight to storage.

    `expected_rows` sizes bloom filters. `settings` are the table's unless the file has other columns than the table.
    `schema` is that of the settings unless a column arrives as a dictionary. `sort_order_id` may be set until `finish`.
    `arrow_bytes` is the Arrow memory of the rows so far.

    Callers see the file only as the `NewDataFile` that `finish` returns; until then, a failure removes it with the
    other files of `new_files`.
    """

    def __init__(
        self,
        new_files: NewFiles,
        partition: PartitionKey,
        encoding: Encoding,
        *,
        expected_rows: int,
        schema: pa.Schema | None = None,
        settings: WriteSettings | None = None,
    ) -> None:
        settings = settings or new_files.settings
        self.path: str = new_files.location(partition)
        self.partition = partition
        self.sort_order_id: int | None = None
        self.arrow_bytes = 0
        self._settings = settings
        self._encoding = encoding
        self._with_nan = [leaf for leaf in leaves(settings) if leaf.field_id in encoding.nan]
        self._floats = {leaf.field_id: FloatFacts() for leaf in self._with_nan}
        self._new_files = new_files
        self._sink = new_files.create(self.path)
        self._writer = parquet_writer(settings, self._sink, encoding, expected_rows, schema or settings.arrow_schema)
        new_files.close_by(self.path, self.close)

    @property
    def size_bytes(self) -> int:
        """Encoded bytes of the row groups so far."""
        return int(self._sink.tell())

    def append(self, rows: pa.Table, nan: frozenset[int] | None = None) -> None:
        """Write rows as row groups of about equal size, none above the table's limit in rows.

        `nan` are the columns in which these rows hold NaN, if known. Before it writes anything, it raises
        `LateNanError` if the encoding does not announce one of these columns.
        """
        nan = nan_columns(self._settings, rows) if nan is None else nan
        if nan - self._encoding.nan:
            raise LateNanError(nan | self._encoding.nan)
        for leaf, values in leaf_values(self._with_nan, rows):
            self._floats[leaf.field_id] += FloatFacts.of(values)
        groups = -(-rows.num_rows // self._settings.parquet.row_group_rows)
        self._writer.write_table(rows, row_group_size=-(-rows.num_rows // max(1, groups)) or 1)
        self.arrow_bytes += rows.nbytes
        failpoints.reach("writing")

    def finish(self) -> NewDataFile:
        """Close the file, check that storage holds all of it, and describe it."""
        self._writer.close()
        written = self.size_bytes
        self._sink.close()
        self._new_files.finished(self.path, written)
        file = NewDataFile(self.path, written, 0, self.partition, sort_order_id=self.sort_order_id)
        return describe(file, self._settings, self._writer.writer.metadata, self._floats)

    def close(self) -> None:
        """Close an abandoned file, best effort: its footer is not written, so that an object store stores nothing."""
        with contextlib.suppress(Exception):
            abandon(self._sink)
        with contextlib.suppress(Exception):
            self._writer.close()


def parquet_writer(
    settings: WriteSettings, sink: Any, encoding: Encoding, expected_rows: int, schema: pa.Schema
) -> pq.ParquetWriter:
    """Return pyarrow's writer with the table's options.

    `schema` is the table's, except for nullability and for columns that arrive as dictionaries.
    """
    options = settings.parquet
    columns = leaves(settings)
    statistics = [leaf.path for leaf in columns if leaf.field_id not in encoding.nan] if encoding.nan else True
    paths = {leaf.name: leaf.path for leaf in columns} if options.bloom_fpp else {}
    filters = options.bloom_arguments(min(expected_rows, options.row_group_rows), paths)
    return options.writer(sink, schema, encoding.dictionary, statistics, **filters)
