"""Checks that files written for one state of a table can be read in another.

Most schema changes keep older files readable, so rows written during such a change are committed unchanged. `CREATE OR
REPLACE TABLE` keeps the table's UUID and the ids of columns with the same names, whatever their types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StructType,
)

_WIDER: dict[type[IcebergType], type[IcebergType]] = {IntegerType: LongType, FloatType: DoubleType}
_WORDS: dict[type[IcebergType], str] = {StructType: "struct", ListType: "list", MapType: "map"}


def misfit(written: Schema, now: Schema) -> str | None:
    """Return the reason that files of one schema cannot stay in a table of another; None if they can.

    Each written field must exist, with its type or one that the type may be promoted to. No field may be required if
    the files lack it without an initial default, or hold NULLs for it.
    """
    return next(_misfits(written.fields, now.fields, ""), None)


def misfit_spec(written: PartitionSpec, now: dict[int, PartitionSpec]) -> str | None:
    """Return the reason that files of a partition spec cannot stay; None if the table has that spec.

    Files keep their spec as long as the table's metadata contains it.
    """
    if now.get(written.spec_id) == written:
        return None
    return f"the table has no partition spec {written.spec_id} as the files were written under any more"


def _misfits(written: Iterable[NestedField], now: Iterable[NestedField], path: str) -> Iterator[str]:
    fields = {field.field_id: field for field in now}
    for field in written:
        if field.field_id in fields:
            yield from _changes(field, fields.pop(field.field_id), path)
        else:
            yield f"column '{path}{field.name}' was dropped"
    for field in fields.values():
        if field.required and field.initial_default is None:
            yield f"the table requires column '{path}{field.name}' now"


def _changes(written: NestedField, now: NestedField, path: str) -> Iterator[str]:
    name = f"{path}{now.name}"
    if now.required and not written.required:
        yield f"the table requires column '{name}' now"
    old, new = written.field_type, now.field_type
    if type(old) in _WORDS and type(old) is type(new):
        yield from _misfits(_fields(old), _fields(new), f"{name}.")
    elif not _may_become(old, new):
        yield f"column '{name}' is of type {_word(new)} now, no longer {_word(old)}"


def _may_become(old: IcebergType, new: IcebergType) -> bool:
    if isinstance(old, DecimalType) and isinstance(new, DecimalType):
        return new.scale == old.scale and new.precision >= old.precision
    return old == new or _WIDER.get(type(old)) is type(new)


def _word(kind: IcebergType) -> str:
    """Return the type in one word: full names of nested types can fill pages."""
    return _WORDS.get(type(kind), str(kind))


def _fields(kind: IcebergType) -> tuple[NestedField, ...]:
    """Return the fields of a nested type."""
    if isinstance(kind, ListType):
        return (kind.element_field,)
    if isinstance(kind, MapType):
        return kind.key_field, kind.value_field
    return kind.fields if isinstance(kind, StructType) else ()
