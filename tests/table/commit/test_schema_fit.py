"""Files of one schema in a table of another: what Iceberg's own evolution makes fits, what replaces it may not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
)

from icesize.table.commit.schema_fit import misfit, misfit_spec

KINDS: list[IcebergType] = [
    IntegerType(), LongType(), FloatType(), DoubleType(), StringType(), DateType(), TimestampType(),
    DecimalType(9, 2), DecimalType(20, 2), DecimalType(20, 3),
]  # fmt: skip
WIDER = {
    ("int", "long"), ("float", "double"), ("decimal(9, 2)", "decimal(20, 2)"), *((str(k), str(k)) for k in KINDS)
}  # fmt: skip
kinds = st.sampled_from(KINDS)
leaves = st.lists(st.tuples(kinds, st.booleans()), min_size=1, max_size=4)


def wrapped(fields: list[NestedField], how: str) -> Schema:
    """Some columns at the top, or as a struct inside of another column."""
    inner = StructType(*fields)
    outer: dict[str, IcebergType] = {
        "struct": inner,
        "list": ListType(101, inner, element_required=False),
        "map": MapType(101, StringType(), 102, inner, value_required=False),
    }
    return Schema(*fields) if how == "top" else Schema(NestedField(100, "outer", outer[how]))


wraps = st.sampled_from(["top", "struct", "list", "map"])


def columns(given: list[tuple[IcebergType, bool]]) -> list[NestedField]:
    return [NestedField(i, f"c{i}", kind, required=needed) for i, (kind, needed) in enumerate(given, 1)]


@given(leaves, wraps, st.randoms())
def test_what_alter_table_does_fits(given: list[tuple[IcebergType, bool]], how: str, dice: object) -> None:
    """Renamed, reordered, made optional, added as optional: files of before stay readable."""
    old = columns(given)
    new = [NestedField(f.field_id, f"{f.name}x", f.field_type, required=False) for f in old]
    new.append(NestedField(50, "later", StringType(), required=False))
    dice.shuffle(new)  # type: ignore[attr-defined]
    assert misfit(wrapped(old, how), wrapped(old, how)) is None
    assert misfit(wrapped(old, how), wrapped(new, how)) is None


@given(kinds, kinds, wraps)
def test_types_fit_where_iceberg_promotes_them(old: IcebergType, new: IcebergType, how: str) -> None:
    """int to long, float to double, a decimal to more digits; nothing else, and never back."""
    why = misfit(wrapped(columns([(old, False)]), how), wrapped(columns([(new, False)]), how))
    assert (why is None) is ((str(old), str(new)) in WIDER)
    assert why is None or f"c1' is of type {new} now, no longer {old}" in why


@given(leaves, wraps, st.integers(0, 3))
def test_a_column_that_is_gone_does_not_fit(given: list[tuple[IcebergType, bool]], how: str, which: int) -> None:
    """Also where another has its name: ids tell columns apart."""
    old = columns(given)
    gone = old[which % len(old)]
    again = NestedField(60, gone.name, gone.field_type, required=False)
    new = [again if f is gone else f for f in old]
    assert (misfit(wrapped(old, how), wrapped(new, how)) or "").endswith(f"{gone.name}' was dropped")


@given(leaves, wraps, st.booleans())
def test_what_is_required_has_to_be_written(given: list[tuple[IcebergType, bool]], how: str, is_new: bool) -> None:
    """A new required column is in no older file, and one that was optional may hold NULLs."""
    old = [*columns(given), *([] if is_new else [NestedField(70, "w", StringType(), required=False)])]
    new = [*columns(given), NestedField(70, "w", StringType(), required=True)]
    assert (misfit(wrapped(old, how), wrapped(new, how)) or "").endswith("w' now")


@given(leaves, wraps)
def test_a_new_required_column_has_its_initial_default_in_older_files(
    given: list[tuple[IcebergType, bool]], how: str
) -> None:
    """One that was optional may still hold NULLs, and a write default is only for new rows."""
    old, optional = columns(given), NestedField(70, "w", StringType(), required=False)
    new = NestedField(70, "w", StringType(), required=True, initial_default="x")
    only_written = NestedField(70, "w", StringType(), required=True, write_default="x")
    assert misfit(wrapped(old, how), wrapped([*old, new], how)) is None
    assert (misfit(wrapped([*old, optional], how), wrapped([*old, new], how)) or "").endswith("w' now")
    assert (misfit(wrapped(old, how), wrapped([*old, only_written], how)) or "").endswith("w' now")


def test_a_column_becomes_no_struct() -> None:
    """Nor the other way round; the message does not print what is nested in it."""
    plain, nested = (wrapped([NestedField(1, "c", StringType())], how) for how in ("top", "struct"))
    other = Schema(NestedField(100, "outer", StringType()))
    assert misfit(nested, other) == "column 'outer' is of type string now, no longer struct"
    assert misfit(other, nested) == "column 'outer' is of type struct now, no longer string"
    assert misfit(plain, nested) == "column 'c' was dropped"


@pytest.mark.parametrize(("field", "fits"), [("kind", True), ("other", False)])
def test_a_spec_is_known_by_what_it_says(field: str, fits: bool) -> None:
    """The number alone does not do: one that was removed may be given again."""
    written = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "kind"), spec_id=1)
    now = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), field), spec_id=1)
    assert (misfit_spec(written, {1: now}) is None) is fits
    assert "no partition spec 1" in (misfit_spec(written, {0: now}) or "")
