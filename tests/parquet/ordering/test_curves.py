"""Curves through a grid: every cell has one place, and places that follow each other are near."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.ordering.curves import Words, hilbert, zorder

GRIDS = [(1, 6), (2, 1), (2, 5), (3, 3), (4, 2)]


def grid(columns: int, bits: int) -> list[Words]:
    """All cells of a grid, as one array for each column."""
    cells = np.array(list(itertools.product(range(1 << bits), repeat=columns)), np.uint64)
    return [cells[:, column].copy() for column in range(columns)]


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
@pytest.mark.parametrize("curve", [zorder, hilbert])
def test_every_cell_has_a_place_of_its_own(columns: int, bits: int, curve: object) -> None:
    """Places of a grid are the numbers from 0 on, each once."""
    places = (zorder if curve is zorder else hilbert)(grid(columns, bits), bits)
    assert sorted(places.tolist()) == list(range(1 << (bits * columns)))


@pytest.mark.parametrize(("columns", "bits"), GRIDS)
def test_neighbours_on_hilbert_s_curve_are_neighbours_in_the_grid(columns: int, bits: int) -> None:
    """From one place to the next a single column changes, by one."""
    cells = np.array(grid(columns, bits), np.int64)
    along = cells[:, np.argsort(hilbert(grid(columns, bits), bits))]
    assert (np.abs(np.diff(along)).sum(axis=0) == 1).all()


@pytest.mark.parametrize("curve", [zorder, hilbert])
def test_one_column_is_its_own_curve(curve: object) -> None:
    """In one dimension a place is the rank."""
    (ranks,) = grid(1, 7)
    assert (zorder if curve is zorder else hilbert)([ranks], 7).tolist() == ranks.tolist()


def interleaved(ranks: tuple[int, ...], bits: int) -> int:
    """Z-order, one bit after the other."""
    place = 0
    for bit in reversed(range(bits)):
        for rank in ranks:
            place = place << 1 | rank >> bit & 1
    return place


@given(st.integers(1, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, 64 // n))), st.data())
def test_z_order_is_the_bits_in_turn(shape: tuple[int, int], data: st.DataObject) -> None:
    """For any number of columns and bits, also all 64, places are what a loop over the bits finds."""
    columns, bits = shape
    rank = st.integers(0, (1 << bits) - 1)
    rows = data.draw(st.lists(st.tuples(*[rank] * columns), min_size=1, max_size=5))
    ranks = [np.array(column, np.uint64) for column in zip(*rows, strict=True)]
    assert zorder(ranks, bits).tolist() == [interleaved(row, bits) for row in rows]


@given(st.lists(st.tuples(*[st.integers(0, 4_095)] * 3), min_size=1, max_size=20))
def test_small_ranks_have_the_same_places(rows: list[tuple[int, ...]]) -> None:
    """Ranks of 16 bits are ordered as the same ranks of 64 bits are, and are left as they were."""
    wide = [np.array(column, np.uint64) for column in zip(*rows, strict=True)]
    narrow = [ranks.astype(np.uint16) for ranks in wide]
    for curve in (zorder, hilbert):
        assert curve(narrow, 12).tolist() == curve(wide, 12).tolist()
    assert [tuple(row) for row in zip(*(ranks.tolist() for ranks in narrow), strict=True)] == rows
