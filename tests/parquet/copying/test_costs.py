"""Which of two ways of merging takes less work, by what footers say."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icesize.parquet.editing.column_plan import Part, costs_less_than_decoding, plan_columns
from icesize.parquet.files.settings import Limits
from icesize.parquet.format.sources import BytesSource
from tests.support.copying import foreign_bytes
from tests.support.footers import footer_of


def parts_of(columns: int, rows: int, plain: int) -> list[Part]:
    """Two files with different dictionaries, besides `plain` columns without any."""
    files = []
    for seed in (1, 2):
        few = {f"d{n}": pa.array([(i * seed) % 7 + 10 * seed for i in range(rows)]) for n in range(columns)}
        many = {f"p{n}": pa.array(range(rows)) for n in range(plain)}
        files.append(foreign_bytes(pa.table({**few, **many}), use_dictionary=list(few) or False))
    footers = [footer_of(file) for file in files]
    return [Part(BytesSource(file), f, f.row_groups[0]) for file, f in zip(files, footers, strict=True)]


@pytest.mark.parametrize(
    ("columns", "rows", "plain", "better"),
    [(1, 30_000, 1, True), (15, 30_000, 1, True), (15, 500, 1, False), (15, 30_000, 0, False), (1, 500, 1, True)],
)
def test_columns_are_encoded_again_where_the_others_pay_for_it(
    columns: int, rows: int, plain: int, better: bool
) -> None:
    """Bytes that need not be decoded are worth it, however few columns they are; opening files again and again not."""
    parts = parts_of(columns, rows, plain)
    plan = plan_columns(parts)
    assert list(plan.reencode) == [f"d{n}" for n in range(columns)]
    assert costs_less_than_decoding(plan, parts, Limits().open_ns) is better
