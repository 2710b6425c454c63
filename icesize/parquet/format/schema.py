"""The schema in a Parquet footer: elements that compare equal when they mean the same, and the columns they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from icesize.parquet.format.fields import binary, boolean, integer
from icesize.parquet.format.thrift import BOOLEAN_TRUE, STRUCT, Fields, MalformedError, read_struct, write_struct

BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY = range(8)
"""Physical types (parquet.thrift, Type)."""
REQUIRED, OPTIONAL, REPEATED = range(3)
"""Repetition (parquet.thrift, FieldRepetitionType)."""
_MOST_NESTING = 64
DECIMAL_LOGICAL, TIME_LOGICAL, TIMESTAMP_LOGICAL, INTEGER_LOGICAL = 5, 7, 8, 10
"""Fields of the union LogicalType."""
CONVERTED = -1
"""Stands for a converted type that has no logical type: its number follows."""

_PLAIN_LOGICAL = {0: 1, 1: 2, 3: 3, 4: 4, 6: 6, 19: 12, 20: 13}
"""Converted type -> logical type without parameters: UTF8, MAP, LIST, ENUM, DATE, JSON, BSON."""
_TIMES = {7: (TIME_LOGICAL, 1), 8: (TIME_LOGICAL, 2), 9: (TIMESTAMP_LOGICAL, 1), 10: (TIMESTAMP_LOGICAL, 2)}
"""Converted type -> (logical type, unit): TIME_MILLIS, TIME_MICROS, TIMESTAMP_MILLIS, TIMESTAMP_MICROS."""
_INT_32, _INT_64 = 17, 18
_EMPTY_STRUCT = b"\0"


class Element(NamedTuple):
    """One schema element in one spelling; converted types are folded into logical ones.

    `length` is that of fixed-length values only. `logical` is (field of the union LogicalType, its parameters), or
    (`CONVERTED`, number). `unknown` holds fields that this version does not know.
    """

    name: bytes
    type: int | None
    length: int | None
    repetition: int | None
    field_id: int | None
    children: int
    logical: tuple[object, ...] | None
    converted: int | None
    unknown: tuple[object, ...]

    @property
    def meaning(self) -> tuple[object, ...]:
        """What has to be equal for pages of two files to lie in one column chunk."""
        return (*self[:7], *self[8:])


@dataclass(frozen=True, slots=True)
class Column:
    """One leaf column: `top` is the name of its top-level column; `flat` columns have one value for each row.

    `levels` are the highest repetition level and the highest definition level.
    """

    path: tuple[str, ...]
    element: Element
    flat: bool
    levels: tuple[int, int]

    @property
    def top(self) -> str:
        """Name of the top-level column that it is part of."""
        return self.path[0]


def element_of(fields: Fields) -> Element:
    """Parse a SchemaElement; raises `MalformedError`."""
    kind = integer(fields, 1)
    children = integer(fields, 5) or 0
    name = binary(fields, 4)
    if name is None or children < 0:
        raise MalformedError("a schema element without name, or with a negative number of children")
    return Element(
        name=name,
        type=kind,
        length=integer(fields, 2) if kind == FIXED_LEN_BYTE_ARRAY else None,
        repetition=integer(fields, 3),
        field_id=integer(fields, 9),
        children=children,
        logical=_logical(fields),
        converted=integer(fields, 6),
        unknown=tuple((k, fields[k][0], bytes(fields[k][1])) for k in sorted(fields) if k > 10),
    )


def columns_of(elements: Sequence[Element]) -> list[Column]:
    """The leaf columns in file order; raises `MalformedError` when the tree is not one."""
    columns: list[Column] = []
    if not elements or _walk_children(elements, 0, (), (0, 0), columns) != len(elements):
        raise MalformedError("the schema is no tree")
    return columns


def top_level_trees(elements: Sequence[Element]) -> dict[str, tuple[tuple[object, ...], ...]]:
    """The elements below each top-level column, without field ids: equal ones have levels of equal meaning."""
    trees: dict[str, tuple[tuple[object, ...], ...]] = {}
    at = 1
    while at < len(elements):
        end = _walk(elements, at, (), (0, 0), [])
        trees[elements[at].name.decode()] = tuple(_without_id(e) for e in elements[at:end])
        at = end
    return trees


def _without_id(element: Element) -> tuple[object, ...]:
    return element._replace(field_id=None).meaning


def _walk(
    elements: Sequence[Element], at: int, path: tuple[str, ...], levels: tuple[int, int], found: list[Column]
) -> int:
    """Position after an element and all below it, whose leaf columns are added to `found`."""
    element = elements[at]
    if element.repetition not in (REQUIRED, OPTIONAL, REPEATED) or len(path) > _MOST_NESTING:
        raise MalformedError("a schema element without repetition, or nested too deeply")
    try:
        path = (*path, element.name.decode())
    except UnicodeDecodeError as error:
        raise MalformedError("a name is no UTF-8") from error
    levels = (levels[0] + (element.repetition == REPEATED), levels[1] + (element.repetition != REQUIRED))
    if (element.type is None) == (element.children == 0):
        raise MalformedError("a schema element is neither a value nor a group")
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
            raise MalformedError("the schema is no tree, or has two columns of one name")
        names.add(elements[at].name)
        at = _walk(elements, at, path, levels, found)
    return at


def _logical(fields: Fields) -> tuple[object, ...] | None:
    converted = integer(fields, 6)
    if 10 in fields:
        return _of_union(fields[10])
    if converted is None or converted in (_INT_32, _INT_64):
        return None
    if converted == DECIMAL_LOGICAL:  # the numbers happen to agree
        return DECIMAL_LOGICAL, integer(fields, 7) or 0, integer(fields, 8)
    if converted in _TIMES:
        return _time(*_TIMES[converted])
    if converted in _PLAIN_LOGICAL:
        return _PLAIN_LOGICAL[converted], _EMPTY_STRUCT
    return CONVERTED, converted


def _time(logical: int, unit: int) -> tuple[object, ...]:
    """What writers before logical types meant: adjusted to UTC."""
    in_unit = write_struct({unit: (STRUCT, _EMPTY_STRUCT)})
    return logical, write_struct({1: (BOOLEAN_TRUE, b""), 2: (STRUCT, in_unit)})


def _of_union(value: tuple[int, bytes]) -> tuple[object, ...] | None:
    if value[0] != STRUCT:
        raise MalformedError("the logical type is no struct")
    union, _ = read_struct(value[1])
    if len(union) != 1:
        raise MalformedError("the logical type is not one")
    ((logical, (kind, raw)),) = union.items()
    if kind != STRUCT:
        raise MalformedError("the logical type has no parameters")
    parameters, _ = read_struct(raw)
    if logical == INTEGER_LOGICAL and _is_plain_integer(parameters):
        return None
    if logical == DECIMAL_LOGICAL and parameters.keys() <= {1, 2}:
        return DECIMAL_LOGICAL, integer(parameters, 1) or 0, integer(parameters, 2)
    return logical, bytes(raw)


def _is_plain_integer(parameters: Fields) -> bool:
    """A signed integer of 32 or 64 bits, which is what no annotation means."""
    return (
        parameters.keys() == {1, 2}
        and bytes(parameters.get(1, (0, b""))[1]) in (b"\x20", b"\x40")
        and boolean(parameters, 2) is True
    )
