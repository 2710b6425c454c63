"""Levels are decoded run by run."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.levels import decode
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.thrift import varint
from tests.support.examples import examples

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


@examples(300)
@given(st.data(), st.integers(1, 255))
def test_levels_are_decoded_from_any_runs(data: st.DataObject, highest: int) -> None:
    """Levels that fill the last group of eight do not count, and missing or higher ones are damage."""
    bits = highest.bit_length()
    some = data.draw(runs(bits))
    levels = [level for _, part in some for level in part]
    wanted = levels[: max(0, len(levels) - data.draw(st.integers(0, 7)))]
    if max(wanted, default=0) > highest:
        with pytest.raises(DamagedFile):
            decode(stored(some, bits), highest, len(wanted))
    else:
        assert decode(stored(some, bits), highest, len(wanted)).tolist() == wanted
    with pytest.raises(DamagedFile):
        decode(stored(some, bits), highest, len(levels) + 1)
    if some:
        with pytest.raises(DamagedFile):
            decode(stored(some, bits)[:-1], highest, len(levels))


@pytest.mark.parametrize(
    ("data", "highest"),
    [
        (stored([("packed", [1] * 8)], 3)[:-1], 7),
        (stored([("single", [1])], 3)[:-1], 7),
        (stored([("single", [1])], 3), 7),
        (b"\x01", 7),
        (b"\xff" * 11, 7),
    ],
)
def test_runs_that_are_cut_off_are_malformed(data: bytes, highest: int) -> None:
    """Nothing is written of runs that end too early."""
    with pytest.raises(DamagedFile):
        decode(data, highest, 8)


@examples(300)
@given(st.binary(max_size=60), st.integers(0, 255))
def test_any_bytes_are_levels_or_malformed(data: bytes, highest: int) -> None:
    """Damaged pages raise nothing else."""
    with suppress(DamagedFile):
        assert len(decode(data, highest, 480)) == 480
