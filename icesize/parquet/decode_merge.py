"""Merging by decoding and encoding every row: what can always be done."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from icesize.errors import RewriteFailed
from icesize.parquet.decode import read_file
from icesize.parquet.encoder import FileEncoder, LateNanError, remove_files
from icesize.parquet.encoding import Encoding, dictionary_columns, nan_columns
from icesize.parquet.fetched import Fetched
from icesize.parquet.merge_task import MergeTask
from icesize.parquet.names import FileNames
from icesize.parquet.projection import Projection
from icesize.parquet.settings import WriteSettings
from icesize.parquet.sorting import sorter_of
from icesize.parquet.stream import Stream
from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact

MAX_DECODED_BYTES = 256 * 2**20
"""Arrow memory of the rows that become one row group, or are sorted together."""


def decode_merge(task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched) -> list[WrittenFile]:
    """Write the rows of all victims, in their order, into `task.outputs` files of about equal size.

    At most about one row group is held decoded; where the table has a sort order `MAX_DECODED_BYTES` of rows, which
    are sorted: an output of no more than that is in the table's order and says so. On any error what was written is
    removed, and it is raised: `RewriteFailed` for a victim, pyarrow's errors or `OSError` for an output.
    """
    nan: frozenset[int] = frozenset()
    while True:
        run = _Decoding(task, settings, names, fetched, nan)
        try:
            return run.files()
        except LateNanError as late:
            nan |= late.nan  # once more: the statistics of these columns must be left out from the start
            run.remove()
        except BaseException:
            run.remove()
            raise


class _Decoding:
    """One attempt to merge by decoding and encoding everything."""

    def __init__(
        self, task: MergeTask, settings: WriteSettings, names: FileNames, fetched: Fetched, nan: frozenset[int]
    ) -> None:
        self._fetched = fetched
        self._task = task
        self._settings = settings
        self._names = names
        self._nan = nan
        self._sorter = sorter_of(settings)
        self._current: FileEncoder | None = None
        self._done: list[WrittenFile] = []

    def files(self) -> list[WrittenFile]:
        """Do it."""
        tables = Stream(read_victims(self._task, self._settings, self._fetched), MAX_DECODED_BYTES)
        for rows in output_rows(self._task.victims, self._task.outputs):
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

    def remove(self) -> None:
        """Delete what was written, best effort."""
        if self._current is not None:
            self._current.discard()
        remove_files(self._settings.storage, self._done)

    def _append(self, rows: pa.Table, group_rows: int, expected_rows: int) -> None:
        nan = nan_columns(self._settings, rows)
        if self._current is None:
            encoding = Encoding(dictionary_columns(self._settings, rows), nan | self._nan)
            self._current = FileEncoder(self._settings, self._names, self._task.partition, encoding, expected_rows)
        groups = math.ceil(rows.num_rows / group_rows)
        step = math.ceil(rows.num_rows / groups)
        for start in range(0, rows.num_rows, step):
            self._current.append(rows.slice(start, step), nan)

    def _group_rows(self, rows: int) -> int:
        """Rows per row group of an output of `rows` rows, so that its groups are equal and none is too large."""
        size = self._task.size_bytes / max(1, self._task.rows) * rows
        limits = self._settings.parquet
        groups = max(1, math.ceil(size / limits.row_group_bytes), math.ceil(rows / limits.row_group_rows))
        return max(1, math.ceil(rows / groups))


def read_victims(task: MergeTask, settings: WriteSettings, fetched: Fetched | None = None) -> Iterator[pa.Table]:
    """The rows of all victims, in their order, as tables of `settings.arrow_schema`.

    Raises `RewriteFailed` with the attribute `path` of one that is missing, damaged or does not have the rows that its
    manifest entry says, after some of its rows.
    """
    projection = Projection(settings, task.partition)
    for victim in task.victims:
        rows = 0
        source = fetched.get(victim.path) if fetched is not None else None
        for table in read_file(settings, victim.path, victim.size_bytes, projection, source):
            rows += table.num_rows
            yield table
        if rows != victim.rows:
            raise RewriteFailed(
                f"Cannot merge {victim.path}: it has {rows} rows, its manifest says {victim.rows}, "
                "check the table's metadata",
                path=victim.path,
            )


def output_rows(victims: tuple[FileFact, ...], outputs: int) -> list[int]:
    """Rows of each output so that outputs are of about equal size: cut where the victims' bytes, in order, reach each
    n-th part of their sum.
    """
    total = sum(victim.size_bytes for victim in victims)
    rows, done_bytes, done_rows = [0], 0, 0
    for victim in victims:
        while len(rows) < outputs and total * len(rows) < (done_bytes + victim.size_bytes) * outputs:
            share = (total * len(rows) / outputs - done_bytes) / victim.size_bytes
            rows.append(done_rows + round(victim.rows * share))
        done_bytes += victim.size_bytes
        done_rows += victim.rows
    ends = [*rows[1:], done_rows]
    return [end - start for start, end in zip(rows, ends, strict=True)]
