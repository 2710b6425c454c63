"""Values below NULL, which no reader sees, do not matter to a cast."""

from __future__ import annotations

import pyarrow as pa
import pytest

from icesize.parquet.reading.casting import CastingError, Rules, compile_convert

RULES = Rules(lambda wanted, at_hand: None, True)
OFFSETS, MASK = pa.array([0, 1, 3], pa.int32()), pa.array([True, False])


@pytest.mark.parametrize("hidden", [None, 2**40])
@pytest.mark.parametrize("skipped", [0, 1])
def test_values_below_null_do_not_matter(hidden: int | None, skipped: int) -> None:
    """They may be NULL under a required element, or not fit the type; the same value in a row is refused."""
    items, keys = pa.array([hidden, 1, 2], pa.int64()), pa.array(["a", "b", "c"])
    element, value = (pa.field(name, pa.int32(), nullable=False) for name in ("element", "value"))
    pairs = [
        (lambda mask: pa.ListArray.from_arrays(OFFSETS, items, mask=mask), pa.list_(element), [1, 2]),
        (lambda mask: pa.MapArray.from_arrays(OFFSETS, keys, items, mask=mask), pa.map_(pa.string(), value), None),
    ]
    for make, target, expected in pairs:
        array = make(MASK).slice(skipped)
        converted = compile_convert(array.type, target, RULES)(array)
        converted.validate(full=True)
        assert converted.to_pylist() == [None, expected or [("b", 1), ("c", 2)]][skipped:]
        with pytest.raises(CastingError):
            compile_convert(array.type, target, RULES)(make(None))
