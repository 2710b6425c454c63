"""Merging by decoding and encoding every row: what can always be done."""

from __future__ import annotations

import math

import pyarrow as pa

from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import NewFiles
from icesize.parquet.ordering.sort_order import sorter_of
from icesize.parquet.reading.inputs import Stream, read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.writing.file_writer import FileEncoder, LateNanError
from icesize.planning.files import FileFact
from icesize.planning.plan import MergeGroup


def decode_merge(group: MergeGroup, settings: WriteSettings, names: FileNames, fetched: Fetched) -> list[WrittenFile]:
    """Write the rows of all input files, in their order, into `group.outputs` files of about equal size.

    At most about one row group is held decoded; where the table has a sort order `Limits.decoded_bytes` of rows, which
    are sorted: an output of no more than that is in the table's order and says so. On any error what was written is
    removed, and it is raised: `RewriteFailed` for an input file, pyarrow's errors or `OSError` for an output.
    """
    nan: frozenset[int] = frozenset()
    while True:
        try:
            return _Decoding(group, settings, names, fetched, nan).files()
        except LateNanError as late:
            nan |= late.nan  # once more: the statistics of these columns must be left out from the start


class _Decoding:
    """One attempt to merge by decoding and encoding everything."""

    def __init__(
        self, group: MergeGroup, settings: WriteSettings, names: FileNames, fetched: Fetched, nan: frozenset[int]
    ) -> None:
        self._fetched = fetched
        self._group = group
        self._settings = settings
        self._nan = nan
        self._new_files = NewFiles(settings, names)
        self._sorter = sorter_of(settings)
        self._current: FileEncoder | None = None
        self._done: list[WrittenFile] = []

    def files(self) -> list[WrittenFile]:
        """Do it; on any error no file is left."""
        with self._new_files.all_or_none():
            return self._write()

    def _write(self) -> list[WrittenFile]:
        tables = Stream(read_inputs(self._group, self._settings, self._fetched), self._settings.limits.decoded_bytes)
        for rows in output_rows(self._group.inputs, self._group.outputs):
            written = runs = 0
            group_rows = self._group_rows(rows)
            step = group_rows if self._sorter is None else rows
            while written < rows:
                run = tables.take(min(step, rows - written))
                self._append(run if self._sorter is None else self._sorter(run), group_rows, rows)
                written, runs = written + run.num_rows, runs + 1
            if self._current is not None:
                if self._sorter is not None and runs == 1:
                    self._current.sort_order_id = self._sorter.order_id
                self._done.append(self._current.finish())
                self._current = None
        for _ in tables.rest():  # a file with more rows than its manifest says is noticed at its end
            continue
        return self._done

    def _append(self, rows: pa.Table, group_rows: int, expected_rows: int) -> None:
        nan = nan_columns(self._settings, rows)
        if self._current is None:
            encoding = Encoding(dictionary_columns(self._settings, rows), nan | self._nan)
            partition = self._group.partition
            self._current = FileEncoder(self._new_files, partition, encoding, expected_rows=expected_rows)
        groups = math.ceil(rows.num_rows / group_rows)
        step = math.ceil(rows.num_rows / groups)
        for start in range(0, rows.num_rows, step):
            self._current.append(rows.slice(start, step), nan)

    def _group_rows(self, rows: int) -> int:
        """Rows per row group of an output of `rows` rows, so that its groups are equal and none is too large."""
        size = self._group.size_bytes / max(1, self._group.rows) * rows
        limits = self._settings.parquet
        groups = max(1, math.ceil(size / limits.row_group_bytes), math.ceil(rows / limits.row_group_rows))
        return max(1, math.ceil(rows / groups))


def output_rows(inputs: tuple[FileFact, ...], outputs: int) -> list[int]:
    """Rows of each output so that outputs are of about equal size: cut where the input files' bytes, in order, reach
    each n-th part of their sum.
    """
    total = sum(input_file.size_bytes for input_file in inputs)
    rows, done_bytes, done_rows = [0], 0, 0
    for input_file in inputs:
        while len(rows) < outputs and total * len(rows) < (done_bytes + input_file.size_bytes) * outputs:
            share = (total * len(rows) / outputs - done_bytes) / input_file.size_bytes
            rows.append(done_rows + round(input_file.rows * share))
        done_bytes += input_file.size_bytes
        done_rows += input_file.rows
    ends = [*rows[1:], done_rows]
    return [end - start for start, end in zip(rows, ends, strict=True)]
