"""Levels are decoded and counted run by run."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.hybrid import (
    MOST_BITS_READ,
    decode,
    histogram,
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


@examples(300)
@given(st.data(), st.integers(0, MOST_BITS_READ))
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
