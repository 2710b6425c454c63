"""Rows of columns in lists are counted where no checksum vouches for their pages."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from icesize.parquet.format.levels import check_levels, count_levels
from icesize.parquet.format.pages import walk
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import count_of
from tests.support.copying import copy_row_groups, merge_files
from tests.support.footers import footer_of, make_file

ROWS = 300


def lists(start: int = 0) -> pa.Table:
    """Lists of no to five values, some of them null; lists of those."""
    items = [None if i % 11 == 0 else list(range(i % 6)) for i in range(start, start + ROWS)]
    deep = [[item] * (i % 3) for i, item in enumerate(items)]
    return pa.table({"items": pa.array(items, pa.list_(pa.int32())), "deep": deep})


def file_of(data: pa.Table, **how: object) -> bytes:
    """One row group without checksums, in several pages."""
    arguments = {"row_group_size": 10**6, "max_rows_per_page": 70, "compression": "none", "use_dictionary": False}
    return make_file(data, **{**arguments, **how})


def check(file: bytes, rows: int) -> None:
    """Count the rows of all columns."""
    footer = footer_of(file)
    for chunk, column in zip(footer.row_groups[0].chunks, footer.columns, strict=True):
        stored = file[chunk.start : chunk.end]
        check_levels(walk(stored, column.flat, chunk.values).data, stored, column, chunk, rows)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "snappy", "zstd", "lz4"])
def test_rows_are_those_of_the_levels(version: str, codec: str) -> None:
    """Of pages of both versions, whatever they are compressed by."""
    file = file_of(lists(), data_page_version=version, compression=codec)
    check(file, ROWS)
    with pytest.raises(CopyRefused, match=f"{ROWS} rows of {ROWS + 1}"):
        check(file, ROWS + 1)


def test_pages_with_checksums_are_not_looked_into() -> None:
    """Their levels are what was written; those of others are held against the rows."""
    sound, plain = file_of(lists(), write_page_checksum=True), file_of(lists())
    refused = []
    for file in (sound, plain):
        try:
            check(file, ROWS + 1)
        except CopyRefused:
            refused.append(file)
    assert refused == [plain]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("whole", [False, True])
def test_a_damaged_level_moves_no_row_of_another_file(tmp_path: Path, version: str, whole: bool) -> None:
    """Whatever byte of the levels is another: the copy is refused, or the rows of the file behind it are its own."""
    sound, damaged = file_of(lists(ROWS), data_page_version=version), file_of(lists(), data_page_version=version)
    chunk, refused = footer_of(damaged).row_groups[0].chunks[0], 0
    page = walk(damaged[chunk.start : chunk.end], False, chunk.values).data[0]
    body = chunk.start + page.header_bytes
    for at in range(body, body + 40):
        bad = damaged[:at] + bytes([damaged[at] ^ 4]) + damaged[at + 1 :]
        files, out = [bad, sound], io.BytesIO()
        copy = copy_row_groups if whole else merge_files
        try:
            copy([BytesSource(file) for file in files], [footer_of(file) for file in files], out)
        except CopyRefused:
            refused += 1
            continue
        try:
            rows = pq.read_table(io.BytesIO(out.getvalue()))
        except (OSError, pa.ArrowException):
            continue  # the damaged file does not read either
        assert rows.slice(ROWS).equals(lists(ROWS))
    assert refused > 5


def test_entries_of_a_map_are_counted_too() -> None:
    """A key that a damaged level takes away would give all keys behind it the values of others."""
    pairs = pa.array([[(f"{i}-{n}", i) for n in range(i % 3)] for i in range(ROWS)], pa.map_(pa.string(), pa.int32()))
    file = file_of(pa.table({"pairs": pairs}))
    check(file, ROWS)
    footer, refused = footer_of(file), 0
    chunk, column = footer.row_groups[0].chunks[0], footer.columns[0]
    page = walk(file[chunk.start : chunk.end], False, chunk.values).data[0]
    levels = chunk.start + page.header_bytes
    levels += 4 + int.from_bytes(file[levels : levels + 4], "little") + 4
    for at in range(levels, levels + 10):
        stored = (file[:at] + bytes([file[at] ^ 1]) + file[at + 1 :])[chunk.start : chunk.end]
        try:
            check_levels(walk(stored, False, chunk.values).data, stored, column, chunk, ROWS)
        except CopyRefused:
            refused += 1
    assert refused == 10


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_entries_and_nulls_are_those_of_all_rows_or_of_some(version: str, codec: str) -> None:
    """Levels count them as the footer of a file of the same rows does."""
    rows = lists().append_column("n", pa.array([None if i % 7 == 0 else i for i in range(ROWS)], pa.int32()))
    rows = rows.append_column(pa.field("id", pa.int32(), nullable=False), pa.array(range(ROWS), pa.int32()))
    file = file_of(rows, data_page_version=version, compression=codec)
    for gone in (None, [0], [5, 69, 70, 71, 299], list(range(60, 150))):
        kept = rows if gone is None else rows.take([i for i in range(ROWS) if i not in gone])
        wanted = footer_of(file_of(kept))
        footer, deleted = footer_of(file), None if gone is None else np.array(gone)
        both = zip(footer.columns, footer.row_groups[0].chunks, wanted.row_groups[0].chunks, strict=True)
        for column, chunk, right in both:
            assert count_levels(BytesSource(file), chunk, column, deleted) == count_of(right, column)
