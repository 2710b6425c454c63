"""Levels and indices are decoded, encoded and counted run by run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.hybrid import (
    MOST_BITS,
    MOST_BITS_READ,
    decode,
    encode,
    histogram,
    pack,
    repeat,
    repeated,
    unpack,
)
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.thrift import varint
from tests.support.examples import examples

if TYPE_CHECKING:
    pass

Run = tuple[str, list[int]]
"""How it is stored, and its values."""


def numbers_of(bits: int) -> st.SearchStrategy[int]:
    """What fits into so many bits."""
    return st.integers(0, 2**bits - 1)


@st.composite
def runs(draw: st.DrawFn, bits: int) -> list[Run]:
    """Runs of one value, and groups of eight values."""
    single = st.tuples(st.just("single"), st.builds(lambda v, n: [v] * n, numbers_of(bits), st.integers(1, 200)))
    groups = st.integers(1, 6).flatmap(lambda n: st.lists(numbers_of(bits), min_size=8 * n, max_size=8 * n))
    return draw(st.lists(single | st.tuples(st.just("packed"), groups), max_size=6))


def stored(some: list[Run], bits: int) -> bytes:
    """The runs as the specification has them, bit by bit."""
    out = b""
    for kind, values in some:
        if kind == "single":
            out += varint(len(values) << 1) + values[0].to_bytes((bits + 7) // 8, "little")
        else:
            whole = sum(value << n * bits for n, value in enumerate(values))
            out += varint(len(values) // 8 << 1 | 1) + whole.to_bytes(len(values) * bits // 8, "little")
    return out


@examples(200)
@given(st.data(), st.integers(1, 31), st.integers(0, 7))
def test_levels_are_counted_up_to_the_last_one(data: st.DataObject, highest: int, padding: int) -> None:
    """What fills the last group of eight does not count, and neither does what would be missing."""
    bits = highest.bit_length()
    some = data.draw(runs(bits))
    levels = [level for _, part in some for level in part]
    wanted = levels[: max(0, len(levels) - padding)]
    if max(wanted, default=0) > highest:
        with pytest.raises(DamagedFile):
            histogram(stored(some, bits), highest, len(wanted))
    else:
        counts = histogram(stored(some, bits), highest, len(wanted)).tolist()
        assert counts == [wanted.count(level) for level in range(highest + 1)]
    with pytest.raises(DamagedFile):
        histogram(stored(some, bits), highest, len(levels) + 1)
    if some:
        with pytest.raises(DamagedFile):
            histogram(stored(some, bits)[:-1], highest, len(levels))


@examples(100)
@given(st.data(), st.integers(1, MOST_BITS_READ))
def test_packing_is_the_inverse_of_unpacking(data: st.DataObject, bits: int) -> None:
    """Values of any width come back, eight by eight."""
    values = data.draw(st.lists(numbers_of(bits), min_size=8, max_size=64).filter(lambda v: len(v) % 8 == 0))
    packed = np.frombuffer(pack(np.array(values, np.uint32), bits), np.uint8)
    assert len(packed) == len(values) // 8 * bits
    assert unpack(packed, bits, len(values) // 8).tolist() == values


@examples(300)
@given(st.data(), st.integers(0, MOST_BITS))
def test_values_are_decoded_from_any_runs(data: st.DataObject, bits: int) -> None:
    """As many as are asked for; what fills the last group of eight is none of them."""
    some = data.draw(runs(bits))
    values = [value for _, part in some for value in part]
    count = max(0, len(values) - data.draw(st.integers(0, 7)))
    assert decode(stored(some, bits), bits, count).tolist() == values[:count]
    with pytest.raises(DamagedFile):
        decode(stored(some, bits), bits, len(values) + 1)
    if some and bits:
        with pytest.raises(DamagedFile):
            decode(stored(some, bits)[:-1], bits, len(values))


@examples(300)
@given(st.data(), st.integers(0, MOST_BITS_READ))
def test_encoding_is_the_inverse_of_decoding(data: st.DataObject, bits: int) -> None:
    """Long runs take a few bytes, wherever they begin, and no values take none."""
    lengths = st.sampled_from([1, 1, 2, 7, 9, 63, 64, 65, 200])
    some = data.draw(st.lists(st.tuples(numbers_of(bits), lengths), max_size=30))
    values = [value for value, length in some for _ in range(length)]
    raw = encode(np.array(values, np.uint32), bits)
    assert decode(raw, bits, len(values)).tolist() == values
    assert (raw == b"") == (not values)
    assert len(encode(np.repeat(np.array([3, 1, 2], np.uint16), [5, 1_000, 2_000]), 2)) == 9


def test_one_run_is_known_as_such() -> None:
    """Levels of a page without nulls mostly are one."""
    assert repeated(encode(np.ones(20_000, np.uint16), 1), 20_000) == b"\1"
    assert repeated(repeat(b"\2", 7), 7) == b"\2"
    assert repeated(repeat(b"\2", 7), 6) is None
    assert repeated(encode(np.array([0, 1] * 50, np.uint16), 1), 100) is None
    assert repeated(b"", 0) is None


@pytest.mark.parametrize(
    ("data", "bits"),
    [
        (stored([("packed", [1] * 8)], 3)[:-1], 3),
        (stored([("single", [1])], 3)[:-1], 3),
        (stored([("single", [1])], 3), 3),
        (b"\x01", 3),
        (b"\x02\0\0\0\0", 26),
        (b"\xff" * 11, 3),
    ],
)
def test_runs_that_are_cut_off_are_malformed(data: bytes, bits: int) -> None:
    """Nothing is written of runs that end too early."""
    with pytest.raises(DamagedFile):
        decode(data, bits, 8)


@examples(300)
@given(st.binary(max_size=60), st.integers(0, 255))
def test_any_bytes_are_indices_or_malformed(data: bytes, bits: int) -> None:
    """Damaged pages raise nothing else."""
    with suppress(DamagedFile):
        assert len(decode(data, bits, 480)) == 480
