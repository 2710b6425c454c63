"""Parsers of footers, pages, levels, indices, dictionaries and page indexes given damaged bytes: they refuse them, or
read something, and raise nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.footer import Footer, RowGroup, read_footer
from icesize.parquet.format.levels import check_levels
from icesize.parquet.format.page_index import concatenate, read_offset_index, rebase
from icesize.parquet.format.pages import dictionary_page
from icesize.parquet.format.refusals import CopyRefused, DamagedFile
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import merge_statistics
from icesize.parquet.pages.column_plan import Piece
from icesize.parquet.pages.page_copy import read_indexes, read_piece
from icesize.parquet.row_groups.compatibility import check_file, check_row_group, index_fits
from tests.support.damaged_inputs import TABLES, parts_of
from tests.support.examples import examples
from tests.support.whole_tables import file_bytes, rows_of, settings_of_table

_MOST_ROWS = 10**6
"""Claimed by a footer: the callers compare them with a manifest before they read pages."""


@cache
def sound(number: int, folder: Path) -> bytes:
    """The first file of a table of `TABLES`."""
    table = TABLES[number]
    schema = settings_of_table(table, folder).arrow_schema
    return file_bytes(table, rows_of(table, schema, 0), table.files[0])


@st.composite
def damages(draw: st.DrawFn, data: bytes) -> bytes:
    """The file with bits flipped, cut off, or with parts of it changed, exchanged or copied over each other."""
    parts = [*parts_of(data).values()]
    for _ in range(draw(st.integers(1, 3))):
        one, other = (draw(st.sampled_from(draw(st.sampled_from(parts)))) for _ in range(2))
        at, to = (min(draw(st.integers(part.start, part.stop - 1)), len(data) - 1) for part in (one, other))
        low, high = min(at, to), max(at, to)
        length = draw(st.integers(0, min(high - low, 40)))
        kind = draw(st.sampled_from(["flip", "flip", "bytes", "exchange", "copy", "cut"]))
        if kind == "flip":
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        elif kind == "bytes":
            data = data[:at] + draw(st.binary(min_size=1, max_size=9)) + data[at + 1 :]
        elif kind == "exchange":
            first, last = data[low : low + length], data[high : high + length]
            data = data[:low] + last + data[low + length : high] + first + data[high + length :]
        elif kind == "copy":
            data = data[:at] + data[to : to + length] + data[at + length :]
        else:
            data = data[:low] + data[low + length :]
    return data


def read_all(data: bytes) -> Iterator[str]:
    """Each part of a file by whatever parser is for it, and its name."""
    source = BytesSource(data)
    try:
        footer = read_footer(source)
        check_file(footer)
    except CopyRefused:
        return
    yield "footer"
    for group in footer.row_groups:
        with suppress(CopyRefused):
            check_row_group(group, footer.columns)
            if group.rows < _MOST_ROWS:
                yield from _read_group(source, footer, group)


def _read_group(source: BytesSource, footer: Footer, group: RowGroup) -> Iterator[str]:
    for chunk, column in zip(group.chunks, footer.columns, strict=True):
        with suppress(CopyRefused):
            merge_statistics(column.element, [(chunk.statistics, chunk.values)] * 2)
            yield "statistics"
        with suppress(CopyRefused):
            page = dictionary_page(source, chunk)
            if page is not None and page.may_be_opened(chunk.codec) and page.entries(chunk.codec):
                yield "dictionary"
        with suppress(CopyRefused):
            room = memoryview(bytearray(chunk.size_bytes))
            indexes = read_indexes(source, [chunk])
            piece = read_piece(source, chunk, group.rows, column, indexes, room)
            yield from _read_pages(piece, footer, group, footer.columns.index(column))


def _read_pages(piece: Piece, footer: Footer, group: RowGroup, index: int) -> Iterator[str]:
    column, pages = footer.columns[index], piece.pages.data
    with suppress(CopyRefused):
        check_levels(pages, piece.data, column, piece.chunk, group.rows)
        yield "levels"
    with suppress(CopyRefused):
        if piece.offset_index is not None:
            read_offset_index(piece.offset_index)
            rebase(piece.offset_index, 7, range(piece.chunk.start, piece.chunk.end))
            yield "offset index"
    with suppress(CopyRefused):
        if piece.column_index is not None:
            concatenate([piece.column_index] * 2, [len(pages)] * 2)
            index_fits(piece.column_index, len(pages), column)
            yield "column index"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Locations of tables that are never written."""
    return tmp_path_factory.mktemp("tables")


def test_sound_files_are_read_by_every_parser(folder: Path) -> None:
    """None is left out: what is found of damaged files is not because nothing was read."""
    parts = {part for number in range(len(TABLES)) for part in read_all(sound(number, folder))}
    assert parts == {
        "footer", "statistics", "dictionary", "levels", "offset index", "column index",
    }  # fmt: skip


@examples(400)
@given(st.data(), st.integers(0, len(TABLES) - 1))
def test_damaged_bytes_are_refused_or_read(folder: Path, data: st.DataObject, number: int) -> None:
    """An IndexError or a ValueError is a bug of the parser, never a property of the bytes."""
    for part in read_all(data.draw(damages(sound(number, folder)))):
        assert part


@pytest.mark.slow
@examples(20_000)
@given(st.data(), st.integers(0, len(TABLES) - 1))
def test_thousands_of_damages_are_refused_or_read(folder: Path, data: st.DataObject, number: int) -> None:
    """The same with so many that a bound which one parser does not check is met."""
    for part in read_all(data.draw(damages(sound(number, folder)))):
        assert part


def test_damage_is_no_error_of_a_value() -> None:
    """Whoever catches a ValueError of Python does not take damage for one; it is one of the refusals."""
    assert not issubclass(DamagedFile, (ValueError, LookupError, OSError))
    assert issubclass(DamagedFile, CopyRefused)
