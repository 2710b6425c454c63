"""Columns whose dictionaries differ are encoded again, and every value is what it was."""

from __future__ import annotations

import contextlib
import io
import math
import random
import uuid
from collections.abc import Callable, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.pages.column_plan import ColumnPlan, Part, plan_columns
from icesize.parquet.verify.file import verify_file
from tests.support.copying import merge_files
from tests.support.examples import examples
from tests.support.footers import footer_of, make_file

_EPOCH = datetime(2026, 1, 1, tzinfo=timezone.utc)
VALUES: dict[str, tuple[pa.DataType, Callable[[int], Any]]] = {
    "int": (pa.int32(), lambda n: 7 * n - 90),
    "long": (pa.int64(), lambda n: 2**40 * n - 5),
    "float": (pa.float32(), lambda n: (math.nan, -0.0, 0.0, math.inf)[n] if n < 4 else n / 2),
    "double": (pa.float64(), lambda n: (math.nan, -0.0, 0.0, -math.inf)[n] if n < 4 else n / 3),
    "text": (pa.string(), lambda n: "é" * (n % 5) + f"{n}" * (n % 3)),
    "binary": (pa.binary(), lambda n: bytes([n % 256]) * (n % 7)),
    "decimal": (pa.decimal128(9, 2), lambda n: Decimal(n) / 100 - 3),
    "long decimal": (pa.decimal128(30, 4), lambda n: Decimal(10) ** 20 + Decimal(n) / 10),
    "date": (pa.date32(), lambda n: date(1960, 1, 1) + timedelta(days=31 * n)),
    "timestamp": (pa.timestamp("us", "UTC"), lambda n: _EPOCH + timedelta(minutes=n)),
    "uuid": (pa.binary(16), lambda n: uuid.UUID(int=n).bytes),
    "list": (pa.list_(pa.int32()), lambda n: None if n % 5 == 0 else [n + i if i % 2 else None for i in range(n % 4)]),
    "struct": (
        pa.struct([("a", pa.string()), ("b", pa.int64())]),
        lambda n: None if n % 6 == 0 else {"a": None if n % 3 == 0 else f"{n % 11}", "b": n},
    ),
    "map": (pa.map_(pa.string(), pa.int32()), lambda n: [(f"{n % 9}-{i}", i) for i in range(n % 3)]),
}


def file_of(kind: str, numbers: Sequence[int | None], **how: object) -> bytes:
    """A file of the column `a`, whose dictionary has only the values that these numbers stand for."""
    type_, value = VALUES[kind]
    values = [None if n is None else value(n) for n in numbers]
    arguments = {"use_dictionary": True, "row_group_size": 10**6, "write_page_index": True, "max_rows_per_page": 50}
    return make_file(pa.table({"a": pa.array(values, type_)}), **{**arguments, **how})


def plan_of(*files: bytes) -> ColumnPlan:
    """The plan for one row group of all of them."""
    parts = [Part(BytesSource(f), footer_of(f), group) for f in files for group in footer_of(f).row_groups]
    return plan_columns(parts)


def merged(*files: bytes) -> bytes:
    """One file that says nothing wrong about itself."""
    data = merged_unchecked(*files)
    assert verify_file(BytesSource(data), "merged").problems == ()
    return data


def merged_unchecked(*files: bytes) -> bytes:
    """One file of all of them."""
    out, sources = io.BytesIO(), [BytesSource(file) for file in files]
    merge_files(sources, [footer_of(file) for file in files], out)
    return out.getvalue()


def spelt(*files: bytes) -> list[str]:
    """All values, spelt, so that NaN equals itself and -0.0 is not 0.0."""
    return [repr(value) for file in files for value in pq.read_table(io.BytesIO(file)).column("a").to_pylist()]


def numbers(seed: int, rows: int, most: int, nulls: float = 0.2) -> list[int | None]:
    """Values at random, with runs of equal ones among them."""
    chance, found = random.Random(seed), list[int | None]()
    while len(found) < rows:
        value = None if chance.random() < nulls else chance.randrange(most)
        found += [value] * chance.choice([1, 1, 1, 3, 30])
    return found[:rows]


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize(
    "how", [{}, {"data_page_version": "2.0"}, {"write_page_checksum": True, "compression": "gzip"}]
)
def test_values_of_every_type_stay(kind: str, how: dict[str, object]) -> None:
    """The column is encoded again, every value is what it was, and what the file says of itself is true."""
    files = [file_of(kind, numbers(seed, 300, 30 + 40 * seed), **how) for seed in range(4)]
    assert plan_of(*files).reencode == {"a": "dictionaries"}
    data = merged(*files)
    assert spelt(data) == spelt(*files)
    assert all(group.chunks[0].offset_index is not None for group in footer_of(data).row_groups)
    assert spelt(merged(data, *files)) == spelt(*files, *files)


@examples(60)
@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(0, 260), st.sampled_from([1, 2, 3, 17, 300, 70_000])),
        min_size=2,
        max_size=5,
    ),
    st.sampled_from(["1.0", "2.0"]),
    st.sampled_from(["none", "snappy", "gzip", "brotli", "zstd", "lz4"]),
    st.sampled_from(["text", "long", "list"]),
    st.booleans(),
)
def test_rows_stay_for_any_number_of_values(
    files: list[tuple[int, int, int]], version: str, codec: str, kind: str, start_alike: bool
) -> None:
    """One value or many, nulls only or none, dictionaries that begin alike or not: rows are those of all files."""
    made = [
        file_of(kind, numbers(seed, rows, most, 0.5 * (seed % 3)), data_page_version=version, compression=codec)
        for seed, rows, most in files
    ]
    if start_alike:
        made.insert(0, made[-1])
    assert spelt(merged(*made)) == spelt(*made)


@examples(150)
@given(st.integers(0, 10**9), st.sampled_from(["1.0", "2.0"]), st.sampled_from(["text", "long", "list"]))
def test_damaged_pages_are_refused_or_still_read(seed: int, version: str, kind: str) -> None:
    """With one other byte in a page the merge is refused, or reads as the damaged file does, or not at all.

    Readers take some bytes for another number of rows, a repetition level for instance; a copy keeps that.
    """
    chance = random.Random(seed)
    how = {"data_page_version": version, "compression": "none"}
    sound, damaged = (file_of(kind, numbers(n, 120, 40), **how) for n in (seed, seed + 1))
    chunk = footer_of(damaged).row_groups[0].chunks[0]
    at = chance.randrange(chunk.start, chunk.end)
    damaged = damaged[:at] + bytes([chance.randrange(256)]) + damaged[at + 1 :]
    with contextlib.suppress(CopyRefused):
        data = merged_unchecked(sound, damaged)
        with contextlib.suppress(OSError, pa.ArrowException):
            rows = pq.read_table(io.BytesIO(data)).num_rows
            assert rows == 120 + pq.read_table(io.BytesIO(damaged)).num_rows


def test_an_index_beyond_its_dictionary_is_not_encoded_again() -> None:
    """pyarrow would write what lies behind the dictionary in memory."""
    entries = [n for n in range(40) for _ in range(5)] + [7] * 300
    file, other = (file_of("text", [n + first for n in entries], compression="none") for first in (0, 1))
    end = footer_of(file).row_groups[0].chunks[0].end
    assert file[end - 1] == 7  # a run of one value ends with it
    damaged = file[: end - 1] + bytes([200]) + file[end:]
    assert spelt(merged_unchecked(other, file)) == spelt(other, file)
    with pytest.raises(CopyRefused, match="an index is larger than its dictionary"):
        merged_unchecked(other, damaged)
