"""How many bytes rows take when encoded."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, sample
from icesize.planning.files import PartitionKey
from icesize.planning.routing.row_sizes import RowSize
from icesize.planning.sizing import ROUND_DOWN_RATIO, least_output_bytes, merged_files

LEARN_BYTES = 8 * 2**10
"""A footer of a dozen columns takes 2 KiB."""


def measure(rows: pa.Table, settings: WriteSettings, dictionary: tuple[str, ...] | None = None) -> int:
    """Bytes of one Parquet file of exactly these rows, encoded in memory as `write_rows` would encode them.

    `rows` has the table's Arrow schema (`ColumnAligner`). `dictionary` are the columns with a dictionary, if decided.
    """
    paths = dictionary_columns(settings, rows) if dictionary is None else dictionary
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, use_dictionary=list(paths) or False, **settings.parquet.writer_arguments())
    return int(sink.getvalue().size)


def row_size(rows: pa.Table, settings: WriteSettings) -> RowSize:
    """What a file of such rows holds besides them, and bytes per row: from all of them in one file, and one alone.

    `rows` has the table's Arrow schema and at least one row.
    """
    alone = measure(rows.slice(0, 1), settings)
    if rows.num_rows == 1:
        return RowSize(alone / 2, alone / 2)
    per_row = (measure(rows, settings) - alone) / (rows.num_rows - 1)
    # equal rows compress to almost nothing, which is not what later ones will do
    per_row = max(per_row, 1.0)
    return RowSize(max(0.0, alone - per_row), per_row)


class Density:
    """Encoded bytes per Arrow byte of the rows of one task.

    First from `settings.bytes_per_row`, or from a sample encoded in memory; corrected by each row group written. Where
    rows of the same partition were written those count, else the last ones of any.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self._settings = settings
        self._ratio: float | None = None
        self._ratios: dict[PartitionKey, float] = {}

    def expected_bytes(self, partition: PartitionKey, arrow_bytes: int, like: pa.Table, encoding: Encoding) -> float:
        """Encoded size of rows of `arrow_bytes` that look `like` these. Rows that fit a file even when nothing
        compresses are not looked at closer.
        """
        if partition in self._ratios:
            return self._ratios[partition] * arrow_bytes
        if self._ratio is None:
            if arrow_bytes <= self._settings.target_file_size_bytes:
                return arrow_bytes
            self._ratio = self._first(like, encoding)
        return self._ratio * arrow_bytes

    def learn(self, partition: PartitionKey, arrow_bytes: int, encoded_bytes: int) -> None:
        """Rows of `arrow_bytes` took `encoded_bytes` in one file; tiny files, mostly footer, teach nothing."""
        if encoded_bytes >= LEARN_BYTES:
            self._ratio = self._ratios[partition] = encoded_bytes / max(1, arrow_bytes)

    def _first(self, rows: pa.Table, encoding: Encoding) -> float:
        if self._settings.bytes_per_row:
            return self._settings.bytes_per_row * int(rows.num_rows) / max(1, int(rows.nbytes))
        some = sample(rows)
        return measure(some, self._settings, encoding.dictionary) / max(1, int(some.nbytes))


def bytes_for_file(open_bytes: float, more_bytes: float, settings: WriteSettings, *, last: bool) -> float:
    """How much of `more_bytes` goes into a file that holds `open_bytes`: all, or less and the file is then complete.

    `last`: nothing comes after, so that files are of equal size and none is cut off that would be small
    (`merged_files`). Otherwise the file is filled up to the target.
    """
    target, limit = settings.target_file_size_bytes, settings.small_file_limit_bytes
    total = open_bytes + more_bytes
    files = merged_files(int(total), target, limit)
    if total <= ROUND_DOWN_RATIO * target or (last and files == 1):
        return more_bytes
    part = min(max(0.0, (total / files if last else target) - open_bytes), more_bytes)
    return more_bytes if last and more_bytes - part < least_output_bytes(limit) else part
