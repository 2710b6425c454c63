"""Pages of evenly rising integers: what is written without the values reads as the values."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.parquet.copying.assembly import Assembly, GroupPart
from icesize.parquet.editing.page_copy import CopiedColumn
from icesize.parquet.editing.ramps import Ramp, ramp_piece
from icesize.parquet.format.fields import RowGroup
from icesize.parquet.format.footer import read_footer
from icesize.parquet.format.pages import CODEC_NAMES
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import i64
from icesize.parquet.verify.file import verify
from tests.support.copying import foreign_bytes, with_ids
from tests.support.examples import examples

ramps = st.builds(
    Ramp,
    first=st.one_of(st.integers(0, 300), st.integers(0, 2**62)),
    step=st.integers(0, 1),
    rows=st.sampled_from([1, 2, 127, 128, 129, 130, 257, 20_000, 2**17, 2**17 + 1, 300_000]),
)


def file_of(found: list[Ramp], codec: int) -> bytes:
    """A file with one column of these numbers, in one row group."""
    model = read_footer(BytesSource(foreign_bytes(with_ids(pa.table({"n": pa.array([0], pa.int64())})))))
    out = io.BytesIO()
    assembly = Assembly(out, [model])
    (column,), start = assembly.columns, assembly.position
    copied = CopiedColumn(column, None, assembly)
    copied.add(ramp_piece(found, column, codec, None))
    fields, rows = {RowGroup.TOTAL_BYTE_SIZE: i64(copied.raw_size_bytes)}, sum(ramp.rows for ramp in found)
    assembly.add(GroupPart(fields, [copied.part()], rows, start, assembly.position - start))
    assembly.finish()
    return out.getvalue()


def numbers(ramp: Ramp) -> np.ndarray:
    return ramp.first + ramp.step * np.arange(ramp.rows, dtype=np.int64)


@examples(50)
@given(st.lists(ramps, min_size=1, max_size=4), st.sampled_from([*CODEC_NAMES]))
def test_ramps_read_as_their_numbers(found: list[Ramp], codec: int) -> None:
    """Values, bounds, counts and page indexes are those of the numbers, with every codec."""
    data = file_of(found, codec)
    expected = np.concatenate([numbers(ramp) for ramp in found])
    assert np.array_equal(pq.read_table(io.BytesIO(data)).column("n").to_numpy(), expected)
    assert verify(BytesSource(data), "ramps").problems == ()
    chunk = pq.read_metadata(io.BytesIO(data)).row_group(0).column(0)
    assert (chunk.statistics.min, chunk.statistics.max) == (expected.min(), expected.max())
    assert (chunk.statistics.null_count, chunk.has_offset_index, chunk.has_column_index) == (0, True, True)
    assert len(data) < 1_000 + 0.05 * len(expected)


@pytest.mark.parametrize(
    ("one", "other", "joined"),
    [
        (Ramp(5, 1, 3), Ramp(8, 1, 2), Ramp(5, 1, 5)),
        (Ramp(5, 1, 3), Ramp(9, 1, 2), None),
        (Ramp(5, 0, 3), Ramp(5, 0, 2), Ramp(5, 0, 5)),
        (Ramp(5, 0, 3), Ramp(6, 0, 2), None),
        (Ramp(5, 0, 1), Ramp(5, 1, 2), None),
    ],
)
def test_ramps_that_go_on_are_joined(one: Ramp, other: Ramp, joined: Ramp | None) -> None:
    """Two ramps are one if the second begins where the first goes on."""
    assert one.then(other) == joined
