"""How many bytes rows take when encoded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.encoding import Encoding, dictionary_columns, sample
from icesize.parquet.settings import WriteSettings

LEARN_BYTES = 8 * 2**10
"""A footer of a dozen columns takes 2 KiB."""


def measure(rows: pa.Table, settings: WriteSettings, dictionary: tuple[str, ...] | None = None) -> int:
    """Bytes of one Parquet file of exactly these rows, encoded in memory as `write_rows` would encode them.

    `rows` has the table's Arrow schema (`Conformer`). `dictionary` are the columns with a dictionary, if decided.
    """
    paths = dictionary_columns(settings, rows) if dictionary is None else dictionary
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink, rows.schema, use_dictionary=list(paths) or False, **settings.parquet.writer_arguments()
    ) as writer:
        writer.write_table(rows)
    return int(sink.getvalue().size)


class Density:
    """Encoded bytes per Arrow byte of the rows of one task.

    First from `settings.bytes_per_row`, or from a sample encoded in memory; corrected by each finished file.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._ratio: float | None = None

    def expected_bytes(self, rows: pa.Table, encoding: Encoding) -> float:
        """Encoded size of `rows`. Rows that fit a file even when nothing compresses are not looked at closer."""
        size: float = rows.nbytes
        if self._ratio is None:
            if size <= self._settings.target_file_size_bytes:
                return size
            self._ratio = self._first(rows, encoding)
        return self._ratio * size

    def learn(self, arrow_bytes: int, encoded_bytes: int) -> None:
        """A file of `encoded_bytes` was made of rows of `arrow_bytes`; tiny ones, mostly footer, teach nothing."""
        if encoded_bytes >= LEARN_BYTES:
            self._ratio = encoded_bytes / max(1, arrow_bytes)

    def _first(self, rows: pa.Table, encoding: Encoding) -> float:
        if self._settings.bytes_per_row:
            return self._settings.bytes_per_row * int(rows.num_rows) / max(1, int(rows.nbytes))
        some = sample(rows)
        return measure(some, self._settings, encoding.dictionary) / max(1, int(some.nbytes))
