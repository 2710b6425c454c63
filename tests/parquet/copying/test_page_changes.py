"""Rows are left out of the pages that have them: all other pages stay as they are, and what a file says of itself is
true of the rows that are left."""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap

from icesize.parquet.copying.assembly import Assembly
from icesize.parquet.editing import page_changes
from icesize.parquet.editing.column_plan import ColumnPlan, Part, plan_columns
from icesize.parquet.format.fields import Statistics
from icesize.parquet.format.hybrid import encode
from icesize.parquet.format.page_index import PageCounts
from icesize.parquet.format.pages import walk
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import boolean
from icesize.parquet.verify.file import verify
from tests.support.copying import merge_pages
from tests.support.examples import examples, sampled
from tests.support.footers import footer_of, make_file

PAGE = 50
"""Rows of a page."""
VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "bool": (pa.bool_(), lambda n: n % 3 == 0),
    "int": (pa.int32(), lambda n: 7 * n - 90),
    "long": (pa.int64(), lambda n: 2**40 * n - 5),
    "unsigned": (pa.uint32(), lambda n: (2**32 - 5 + n) % 2**32),
    "double": (pa.float64(), lambda n: (-0.0, 0.0, math.inf)[n] if n < 3 else n / 3 - 9),
    "text": (pa.string(), lambda n: f"é{n}" * (n % 5)),
    "long text": (pa.string(), lambda n: f"{n}" * (n % 300)),
    "bytes": (pa.binary(), lambda n: bytes([n % 256, 0, 0, 0, 0]) * (n % 7)),
    "decimal": (pa.decimal128(9, 2), lambda n: Decimal(n) / 100 - 3),
    "long decimal": (pa.decimal128(30, 4), lambda n: Decimal(n - 40) * Decimal(10) ** (n % 20)),
    "date": (pa.date32(), lambda n: date(1960, 1, 1) + timedelta(days=31 * n)),
    "fixed": (pa.binary(16), lambda n: (n * 2**80).to_bytes(16, "big")),
    "struct": (pa.struct([("b", pa.int64())]), lambda n: None if n % 6 == 0 else {"b": None if n % 5 == 0 else n}),
}


def file_of(kind: str, numbers: Sequence[int | None], **how: object) -> bytes:
    """A file of the column `a`."""
    type_, value = VALUES[kind]
    rows = pa.table({"a": pa.array([None if n is None else value(n) for n in numbers], type_)})
    pages = {"row_group_size": 10**6, "write_page_index": True, "max_rows_per_page": PAGE, "write_batch_size": 10}
    return make_file(rows, **{"use_dictionary": False, "write_page_checksum": True, **pages, **how})


def parts_of(files: Sequence[bytes], deleted: Sequence[set[int]]) -> list[Part]:
    """The row group of each file without these rows."""
    pairs = [(file, footer_of(file), BitMap(rows)) for file, rows in zip(files, deleted, strict=True)]
    return [Part(BytesSource(file), footer, footer.row_groups[0], rows) for file, footer, rows in pairs]


def plan_of(files: Sequence[bytes], deleted: Sequence[set[int]], cut_cost: float = 0.0) -> ColumnPlan:
    """How the row group of all of them is made."""
    return plan_columns(parts_of(files, deleted), cut_cost)


def cut(files: Sequence[bytes], deleted: Sequence[set[int]]) -> bytes:
    """One file that says nothing wrong about itself, and nothing is encoded again."""
    parts, plan, out = parts_of(files, deleted), plan_of(files, deleted), io.BytesIO()
    assert plan.reencode == {}
    assembly = Assembly(out, [part.footer for part in parts])
    merge_pages(parts, plan, assembly)
    assembly.finish()
    assert verify(BytesSource(out.getvalue()), "cut").problems == ()
    return out.getvalue()


def check(files: Sequence[bytes], deleted: Sequence[set[int]]) -> bytes:
    """Cut some files: the others of their rows are there, and bounds that there are are theirs."""
    data = cut(files, deleted)
    before = [pq.read_table(io.BytesIO(file)) for file in files]
    live = [
        rows.take([n for n in range(len(rows)) if n not in gone]) for rows, gone in zip(before, deleted, strict=True)
    ]
    expected, found = pa.concat_tables(live).column("a"), pq.read_table(io.BytesIO(data)).column("a")
    assert list(map(repr, found.to_pylist())) == list(map(repr, expected.to_pylist()))
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    statistics, values = chunk.statistics, [value for value in expected.to_pylist() if value == value]
    assert chunk.has_offset_index
    assert chunk.has_column_index
    if statistics is not None and statistics.has_min_max and not pa.types.is_struct(expected.type):
        some = [value for value in values if value is not None]
        assert (statistics.min, statistics.max) == (min(some), max(some))
    return data


def some_numbers(seed: int, rows: int, most: int, nulls: float) -> list[int | None]:
    """Values at random, with runs of equal ones among them."""
    chance, found = random.Random(seed), list[int | None]()
    while len(found) < rows:
        value = None if chance.random() < nulls else chance.randrange(most)
        found += [value] * chance.choice([1, 1, 1, 3, 90])
    return found[:rows]


DELETED = {
    "a run": set(range(60, 70)),
    "over two pages": set(range(90, 110)),
    "a page": set(range(50, 100)),
    "a page and a half": set(range(50, 125)),
    "the first": {0},
    "the last": {299},
    "every third": set(range(0, 300, 3)),
    "all but one": set(range(300)) - {77},
}


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("version", sampled(["2.0", "1.0"], 2))
def test_rows_of_every_type_go(kind: str, coded: bool, version: str) -> None:
    """Wherever they lie, in one file or in two, whose dictionaries differ."""
    if coded and kind == "bool":
        pytest.skip("booleans have no dictionaries")
    files = [
        file_of(kind, some_numbers(seed, 300, 30 + 40 * seed, 0.2), use_dictionary=coded, data_page_version=version)
        for seed in range(2)
    ]
    if kind == "bool" and version == "2.0":  # not PLAIN, which some readers refuse
        assert plan_of(files, [{1}, {2}]).reencode == {"a": "deleted-rows"}
        return
    for gone in DELETED.values():
        check(files[:1], [gone])
        check(files, [gone, {5}])


@examples(150)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(2, 260), st.sampled_from([1, 2, 3, 17, 300, 70_000])),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
    st.sampled_from(["text", "long", "double", "struct", "bytes"]),
    st.booleans(),
    st.sampled_from([0.0, 0.3, 1.0]),
    st.data(),
)
def test_any_rows_go(
    made: list[tuple[int, int, int]],
    version: str,
    codec: str,
    kind: str,
    coded: bool,
    nulls: float,
    data: st.DataObject,
) -> None:
    """One value or many, nulls or none, any rows but all."""
    how = {"data_page_version": version, "compression": codec, "use_dictionary": coded}
    files = [file_of(kind, some_numbers(seed, rows, most, nulls), **how) for seed, rows, most in made]
    gone = [
        set(
            data.draw(
                st.lists(st.integers(0, rows - 1), max_size=rows - 1) | st.builds(range, st.integers(1, rows - 1))
            )
        )
        | {rows // 2 - 1}
        for _, rows, _ in made
    ]
    check(files, [some if len(some) < rows else {0} for some, (_, rows, _) in zip(gone, made, strict=True)])


@pytest.mark.parametrize("gone", [set(range(900, 1_000)), {0}, {3_999}, set(range(0, 4_000, 50))])
def test_rows_of_columns_that_are_encoded_again_go(gone: set[int]) -> None:
    """In few runs or many, of which the others are found in different ways."""
    rows = pa.table({"a": [None if n % 9 == 0 else [n, n + 1] for n in range(4_000)]})
    parts, out = parts_of([make_file(rows, row_group_size=4_000)] * 2, [gone, {17}]), io.BytesIO()
    assembly = Assembly(out, [part.footer for part in parts])
    merge_pages(parts, plan_columns(parts), assembly)
    assembly.finish()
    live = [row for some in (gone, {17}) for n, row in enumerate(rows.to_pylist()) if n not in some]
    assert pq.read_table(io.BytesIO(out.getvalue())).to_pylist() == live


def test_pages_without_deleted_rows_stay_as_they_are() -> None:
    """Of six pages one is cut, in two files: the others are in the new file byte for byte."""
    files = [file_of("text", list(range(start, start + 300))) for start in (0, 300)]
    data = check(files, [{130, 131}, {299}])
    old, new = ([page for file in some for page in pages_of(file)] for some in (files, [data]))
    assert [page in new for page in old] == [True, True, False, True, True, True] + [True] * 5 + [False]
    assert len(new) == 12


def pages_of(file: bytes) -> list[bytes]:
    """The data pages of the column as they are stored."""
    chunk = footer_of(file).row_groups[0].chunks[0]
    stored = file[chunk.start : chunk.end]
    return [stored[page.at : page.at + page.size_bytes] for page in walk(stored, True, chunk.values).data]


@pytest.mark.parametrize("coded", [True, False])
def test_bounds_are_those_of_values_that_stay(coded: bool) -> None:
    """They move where the outermost value goes, and stay where it is in another row, too."""
    numbers = [5, *range(10, 200), 5, 300, 8, 250]

    def bounds(gone: set[int]) -> tuple[int, int]:
        data = check([file_of("int", numbers, use_dictionary=coded)], [gone])
        fields = footer_of(data).row_groups[0].chunks[0].statistics
        assert boolean(fields, Statistics.IS_MIN_VALUE_EXACT)
        assert boolean(fields, Statistics.IS_MAX_VALUE_EXACT)
        found = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0).statistics
        return (found.min + 90) // 7, (found.max + 90) // 7

    last = len(numbers) - 1
    assert bounds({0}) == (5, 300)
    assert bounds({0, last - 3}) == (8, 300)
    assert bounds({0, last - 3, last - 1, last - 2}) == (10, 250)
    assert bounds({40}) == (5, 300)


def test_a_page_that_is_cut_has_the_levels_of_the_rows_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another number of NULLs than the row mask leaves is noticed, in what is stored and in what is said of it."""
    file = file_of("long", [None if n % 3 == 0 else n for n in range(100)])
    check([file], [{3, 4}])

    class OneNullMore(PageCounts):
        def __new__(cls, values: int, nulls: int) -> OneNullMore:
            return super().__new__(cls, values, nulls + 1)

    for name, wrong in (
        ("encode", lambda levels, bits: encode(np.concatenate([1 - levels[:1], levels[1:]]), bits)),
        ("PageCounts", OneNullMore),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(page_changes, name, wrong)
            with pytest.raises(CopyRefused, match="counts"):
                cut([file], [{3, 4}])


def test_columns_are_cut_where_that_takes_less() -> None:
    """Not where most pages have deleted rows, where values are nested, nor where they cannot be taken apart."""
    numbers = list(range(1_000))
    file = file_of("long", numbers)
    assert plan_of([file], [{3, 999}], 1.4).reencode == {}
    assert plan_of([file], [set(range(0, 1_000, 20))], 1.4).reencode == {"a": "deleted-rows"}
    delta = file_of("long", numbers, column_encoding="DELTA_BINARY_PACKED")
    assert plan_of([delta], [{3}]).reencode == {"a": "deleted-rows"}
    nested = make_file(pa.table({"a": [[1], [2, 3], None]}))
    assert plan_of([nested], [{1}]).reencode == {"a": "deleted-rows"}
    many = file_of("long", list(range(70_000)), use_dictionary=True, dictionary_pagesize_limit=2**30)
    assert plan_of([many], [{3}]).reencode == {"a": "deleted-rows"}
