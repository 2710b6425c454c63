"""The schema in a Parquet footer: elements that compare equal if they mean the same, and the columns they form."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icesize.parquet.format.fields import DecimalType, IntType, LogicalType, SchemaElement, TimeType, TimeUnit
from icesize.parquet.format.refusals import DamagedFile
from icesize.parquet.format.thrift import (
    BOOLEAN_TRUE,
    STRUCT,
    Fields,
    binary,
    boolean,
    check_widths,
    integer,
    raw_of,
    read_struct,
    write_struct,
)

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)
"""Physical types (parquet.thrift, Type)."""
REQUIRED, OPTIONAL, REPEATED = range(3)
"""Repetition (parquet.thrift, FieldRepetitionType)."""
ROW_ID, LAST_UPDATED = 2147483540, 2147483539
"""Field ids of `_row_id` and `_last_updated_sequence_number` (Iceberg specification, reserved field ids)."""
LINEAGE_IDS = frozenset({ROW_ID, LAST_UPDATED})
_MOST_NESTING = 64
CONVERTED = -1
"""The mark of a converted type that has no logical type: its number follows."""

_DECIMAL, _INT_32, _INT_64 = 5, 17, 18
"""Converted types (parquet.thrift, ConvertedType) that have parameters, or mean nothing."""
_EMPTY_STRUCT = b"\0"


def _time(logical: int, unit: int) -> tuple[object, ...]:
    """Return the logical type for a converted type of writers before logical types: adjusted to UTC."""
    in_unit = write_struct({unit: (STRUCT, _EMPTY_STRUCT)})
    return logical, write_struct({TimeType.IS_ADJUSTED_TO_UTC: (BOOLEAN_TRUE, b""), TimeType.UNIT: (STRUCT, in_unit)})


_LOGICAL: dict[int, tuple[object, ...]] = {
    0: (LogicalType.STRING, _EMPTY_STRUCT),
    1: (LogicalType.MAP, _EMPTY_STRUCT),
    3: (LogicalType.LIST, _EMPTY_STRUCT),
    4: (LogicalType.ENUM, _EMPTY_STRUCT),
    6: (LogicalType.DATE, _EMPTY_STRUCT),
    7: _time(LogicalType.TIME, TimeUnit.MILLIS),
    8: _time(LogicalType.TIME, TimeUnit.MICROS),
    9: _time(LogicalType.TIMESTAMP, TimeUnit.MILLIS),
    10: _time(LogicalType.TIMESTAMP, TimeUnit.MICROS),
    19: (LogicalType.JSON, _EMPTY_STRUCT),
    20: (LogicalType.BSON, _EMPTY_STRUCT),
}
"""Converted type -> logical type of the same meaning."""


class Element(NamedTuple):
    """One schema element in a normalized form: converted types become logical types.

    Elements must be equal before pages of two files may lie in one column chunk.

    `length` is the length of fixed-length values only. `logical` is (field of the union LogicalType, its parameters),
    or (`CONVERTED`, number). `unknown` holds fields that this version does not know.
    """

    name: bytes
    type: int | None
    length: int | None
    repetition: int | None
    field_id: int | None
    children: int
    logical: tuple[object, ...] | None
    unknown: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf column; `flat` columns have one value for each row.

    `levels` are the highest repetition level and the highest definition level.
    """

    path: tuple[str, ...]
    element: Element
    flat: bool
    levels: tuple[int, int]

    @property
    def top(self) -> str:
        """Name of the top-level column that contains it."""
        return self.path[0]


def element_of(fields: Fields) -> Element:
    """Parse a SchemaElement; raises `DamagedFile`."""
    check_widths(fields)
    kind = integer(fields, SchemaElement.TYPE)
    children = integer(fields, SchemaElement.NUM_CHILDREN) or 0
    name = binary(fields, SchemaElement.NAME)
    if name is None or children < 0:
        raise DamagedFile("a schema element without name, or with a negative number of children")
    return Element(
        name=name,
        type=kind,
        length=integer(fields, SchemaElement.TYPE_LENGTH) if kind == FIXED_LEN_BYTE_ARRAY else None,
        repetition=integer(fields, SchemaElement.REPETITION_TYPE),
        field_id=integer(fields, SchemaElement.FIELD_ID),
        children=children,
        logical=_logical(fields),
        unknown=tuple((k, fields[k][0], bytes(fields[k][1])) for k in sorted(fields) if k > SchemaElement.LOGICAL_TYPE),
    )


def columns_of(elements: Sequence[Element]) -> list[Column]:
    """Return the leaf columns in file order; raises `DamagedFile` if the elements form no tree."""
    columns: list[Column] = []
    if not elements or _walk_children(elements, 0, (), (0, 0), columns) != len(elements):
        raise DamagedFile("the schema is no tree")
    return columns


def top_level_trees(elements: Sequence[Element]) -> dict[str, tuple[Element, ...]]:
    """Return the elements of each top-level column, without field ids: the levels of equal trees have equal meaning."""
    trees = [elements[at.start : at.stop] for at in top_level(elements)]
    return {tree[0].name.decode(): tuple(e._replace(field_id=None) for e in tree) for tree in trees}


def top_level(elements: Sequence[Element]) -> Iterator[range]:
    """Yield the positions of each top-level column and of all elements below it."""
    end = 1
    while end < len(elements):
        start, left = end, 1
        while left and end < len(elements):
            left += elements[end].children - 1
            end += 1
        yield range(start, end)


def _walk(
    elements: Sequence[Element], at: int, path: tuple[str, ...], levels: tuple[int, int], found: list[Column]
) -> int:
    """Add the leaf columns of an element to `found`, and return the position after the element and all below it."""
    element = elements[at]
    if element.repetition not in (REQUIRED, OPTIONAL, REPEATED) or len(path) > _MOST_NESTING:
        raise DamagedFile("a schema element without repetition, or nested too deeply")
    try:
        path = (*path, element.name.decode())
    except UnicodeDecodeError as error:
        raise DamagedFile("a name is no UTF-8") from error
    levels = (levels[0] + (element.repetition == REPEATED), levels[1] + (element.repetition != REQUIRED))
    if (element.type is None) == (element.children == 0):
        raise DamagedFile("a schema element is neither a value nor a group")
    if element.type is not None:
        found.append(Column(path, element, levels[0] == 0, levels))
    return _walk_children(elements, at, path, levels, found)


def _walk_children(
    elements: Sequence[Element], at: int, path: tuple[str, ...], levels: tuple[int, int], found: list[Column]
) -> int:
    names: set[bytes] = set()
    children, at = elements[at].children, at + 1
    for _ in range(children):
        if at >= len(elements) or elements[at].name in names:
            raise DamagedFile("the schema is no tree, or has two columns of one name")
        names.add(elements[at].name)
        at = _walk(elements, at, path, levels, found)
    return at


def _logical(fields: Fields) -> tuple[object, ...] | None:
    converted = integer(fields, SchemaElement.CONVERTED_TYPE)
    if SchemaElement.LOGICAL_TYPE in fields:
        return _of_union(raw_of(fields, SchemaElement.LOGICAL_TYPE, STRUCT))
    if converted is None or converted in (_INT_32, _INT_64):
        return None
    if converted == _DECIMAL:
        return LogicalType.DECIMAL, integer(fields, SchemaElement.SCALE) or 0, integer(fields, SchemaElement.PRECISION)
    return _LOGICAL.get(converted, (CONVERTED, converted))


def _of_union(value: bytes) -> tuple[object, ...] | None:
    union, _ = read_struct(value)
    if len(union) != 1:
        raise DamagedFile("the logical type is not one")
    (logical,) = union
    raw = raw_of(union, logical, STRUCT)
    parameters, _ = read_struct(raw)
    if logical == LogicalType.INTEGER and _is_plain_integer(parameters):
        return None
    if logical == LogicalType.DECIMAL and parameters.keys() <= {DecimalType.SCALE, DecimalType.PRECISION}:
        scale, precision = integer(parameters, DecimalType.SCALE), integer(parameters, DecimalType.PRECISION)
        return LogicalType.DECIMAL, scale or 0, precision
    return logical, bytes(raw)


def _is_plain_integer(parameters: Fields) -> bool:
    """Return whether this is a signed integer of 32 or 64 bits, which means the same as no annotation."""
    return (
        parameters.keys() == {IntType.BIT_WIDTH, IntType.IS_SIGNED}
        and bytes(parameters[IntType.BIT_WIDTH][1]) in (b"\x20", b"\x40")
        and boolean(parameters, IntType.IS_SIGNED) is True
    )
