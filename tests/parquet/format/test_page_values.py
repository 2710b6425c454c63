"""Values are taken out of pages, whatever they hold, and damaged pages are noticed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.format.hybrid import decode, encode
from icesize.parquet.format.page_values import coded_values, plain_values
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.schema import BOOLEAN, BYTE_ARRAY, INT64, Element
from tests.support.examples import examples


def element(kind: int) -> Element:
    """A column of this physical type."""
    return Element(b"a", kind, None, 0, 1, 0, None, None, ())


@pytest.mark.parametrize(
    ("kind", "raw", "count"),
    [
        (INT64, b"\0" * 15, 2),
        (INT64, b"\0" * 16, 3),
        (BOOLEAN, b"\0", 9),
        (BOOLEAN, b"\0\0", 8),
        (BYTE_ARRAY, b"\1\0\0\0a", 2),
        (BYTE_ARRAY, b"\1\0\0\0a\0", 1),
        (BYTE_ARRAY, b"\2\0\0\0a", 1),
        (BYTE_ARRAY, b"\xff\xff\xff\xffa", 1),
        (BYTE_ARRAY, b"a", 0),
    ],
)
def test_values_that_do_not_fill_a_page_are_malformed(kind: int, raw: bytes, count: int) -> None:
    """Fewer bytes than values need, or more."""
    with pytest.raises(DamagedFile):
        plain_values(raw, count, element(kind))


def test_indices_beyond_the_dictionary_are_malformed() -> None:
    """They stand for no value."""
    entries = plain_values(b"\0" * 16, 2, element(INT64))
    for raw in (b"\2\x04\x02", b"\2\x02\x01", b""):
        with pytest.raises(DamagedFile):
            coded_values(raw, 2, entries, 2)
    assert b"".join(coded_values(b"\2\x04\x01", 2, entries, 2).without(np.array([1]))) == b"\2\x03\x01\0"


def test_indices_of_more_bits_than_they_need_are_cut() -> None:
    """A page may give an index up to 25 bits, whatever its dictionary has."""
    entries = plain_values(b"\0" * 16, 2, element(INT64))
    indices = np.array([0, 1, 1, 0, 1], np.uint32)
    page = b"\x14" + encode(indices, 20)
    kept = b"".join(coded_values(page, 5, entries, 2).without(np.array([1])))
    assert (kept[0], decode(kept[1:], kept[0], 4).tolist()) == (20, [0, 1, 0, 1])


@examples(100)
@given(st.lists(st.binary(max_size=300) | st.text("\0ab", max_size=12).map(str.encode), max_size=30), st.data())
def test_byte_arrays_are_found_whatever_they_hold(values: list[bytes], data: st.DataObject) -> None:
    """Zeros within values, empty ones and long ones: what is kept is what was meant."""
    page = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    gone = data.draw(st.sets(st.integers(0, len(values) - 1))) if values else set()
    live = [place for place in range(len(values)) if place not in gone]
    some = [values[place] for place in live]
    found = plain_values(page, len(values), element(BYTE_ARRAY))
    kept = found.without(np.array(sorted(gone), np.int64))
    assert b"".join(kept) == b"".join(len(value).to_bytes(4, "little") + value for value in some)
    assert found.ends(np.array(live, np.int64)) == ([min(some), max(some)] if some else [])


def test_byte_arrays_of_a_long_page_are_found() -> None:
    """It is longer than what is looked at together."""
    values = [f"{n:06}".encode() * (n % 37) for n in range(4_000)]
    page = b"".join(len(value).to_bytes(4, "little") + value for value in values)
    found = plain_values(page, len(values), element(BYTE_ARRAY))
    for place in (0, 1_234, 3_999):
        gone = np.arange(4_000) != place
        length = len(values[place]).to_bytes(4, "little")
        assert b"".join(found.without(np.flatnonzero(gone))) == length + values[place]
        assert found.ends(np.flatnonzero(~gone)) == [values[place]] * 2
