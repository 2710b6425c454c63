"""Reading data files as the table's current schema, a bounded number of rows at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.errors import RewriteFailed
from icesize.parquet.files.limits import Limits
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.sources import Source
from icesize.parquet.reading.casting import CastingError
from icesize.parquet.reading.projection import Projection


def read_file(
    settings: WriteSettings, path: str, size_bytes: int, projection: Projection, source: Source | None = None
) -> Iterator[pa.Table]:
    """The rows of one Parquet file as tables of `settings.arrow_schema`, in file order, without extra threads.

    `source` has the bytes of the file where they were fetched already. A file that decodes to little is read at once, a
    larger one in batches (`Limits.whole_file_bytes`, `Limits.batch_rows`). Raises `RewriteFailed` with the attribute
    `path` when the file is missing, damaged or cannot be projected.
    """
    try:
        opened = settings.storage.open(path, size_bytes) if source is None else source.stream()
        with opened as stream, _open(stream) as file:
            names = projection.fit(file.schema_arrow)
            for rows in _tables(file, names, settings.limits):
                yield projection(rows)
    except CastingError as error:
        raise RewriteFailed(f"Cannot read {path}: {error}", path=path) from error
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise RewriteFailed(f"Cannot read {path}: {why}, check that the file exists and is whole", path=path) from error


def _open(stream: Any) -> pq.ParquetFile:
    # INT96 would become nanoseconds, which do not reach the year 2263
    return pq.ParquetFile(stream, coerce_int96_timestamp_unit="us", page_checksum_verification=True)


def _tables(file: pq.ParquetFile, names: list[str] | None, limits: Limits) -> Iterator[pa.Table]:
    footer = file.metadata
    decoded = sum(footer.row_group(i).total_byte_size for i in range(footer.num_row_groups))
    # a dictionary can hide any number of bytes behind few, so rows count as well
    if decoded <= limits.whole_file_bytes and footer.num_rows <= 4 * limits.batch_rows:
        yield file.read(columns=names, use_threads=False)
        return
    for batch in file.iter_batches(batch_size=limits.batch_rows, columns=names, use_threads=False):
        yield pa.Table.from_batches([batch])
