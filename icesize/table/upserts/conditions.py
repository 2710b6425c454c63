"""The condition that makes an event a delete: one tree, with one meaning in Arrow and in Spark.

A condition has the grammar of `where`. The name of a boolean column is also a condition. It is computed by the rules of
SQL: a comparison with NULL is neither true nor false, and only what is true deletes a row. NaN is greater than any
number. Points in time without a zone are UTC.
"""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar

from pyiceberg import types
from pyiceberg.expressions import (
    And,
    BooleanExpression,
    EqualTo,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNaN,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    NotEqualTo,
    NotIn,
    NotNaN,
    NotNull,
    NotStartsWith,
    Or,
    SetPredicate,
    StartsWith,
    parser,
)
from pyiceberg.expressions.literals import Literal, literal

from icesize.errors import ArgumentError, SchemaMismatch
from icesize.table.state.where import why_unread, with_zone

Value: TypeAlias = Any
"""An expression of an engine, with the operators of Python."""
T = TypeVar("T")
_EPOCH = datetime(1970, 1, 1)
_COMPARE: dict[type[BooleanExpression], Callable[[Any, Any], Any]] = {
    EqualTo: operator.eq, NotEqualTo: operator.ne, LessThan: operator.lt, LessThanOrEqual: operator.le,
    GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge,
}  # fmt: skip
_NEGATED: dict[type[BooleanExpression], type[Any]] = {
    NotNull: IsNull, NotNaN: IsNaN, NotIn: In, NotStartsWith: StartsWith,
}  # fmt: skip


@dataclass(frozen=True)
class Operand:
    """A column of a batch: its value in an engine, the type of constants that it compares with, and how they are made.

    The type is None if values cannot be compared with constants, and `name` is that of the column's own type.
    """

    value: Value
    kind: types.PrimitiveType | None
    name: str
    constant: Callable[[Any], Value]


class ExpressionEngine(ABC):
    """An engine whose expressions have the operators of Python: `&`, `|`, `~` and comparisons, by the rules of SQL."""

    @abstractmethod
    def column(self, name: str) -> Operand:
        """Return a column of the batch, or a field of a struct. Raises LookupError if there is none of the name."""

    @abstractmethod
    def is_null(self, value: Value) -> Value:
        """Return whether values are NULL."""

    @abstractmethod
    def is_nan(self, value: Value) -> Value:
        """Return whether numbers are NaN; NULL for NULL."""

    @abstractmethod
    def starts_with(self, value: Value, prefix: str) -> Value:
        """Return whether strings start with a prefix; NULL for NULL."""


def parsed_condition(text: str) -> BooleanExpression:
    """Return the tree of a condition. Raises ArgumentError for what is no such condition."""
    try:
        tree: BooleanExpression = _grammar().parse_string(text, parse_all=True)[0]
    except Exception as error:  # the parser's errors have no common base
        raise ArgumentError(
            f"Cannot read 'delete_when' {why_unread(text, error)}\nA condition compares columns with literals: =, <, "
            "in, is null, like 'x%'. Compute any other one as a boolean column of the batch, and name that column in "
            "'delete_when'. `icesize rekey --delete-when` changes a stored condition",
            where=text,
        ) from None
    return tree


@lru_cache(maxsize=1)
def _grammar() -> Any:
    # takes long to import, and few batches have a condition
    from pyparsing import CaselessKeyword, Suppress, infix_notation, opAssoc

    words = parser.NOT | parser.AND | parser.OR | CaselessKeyword("true") | CaselessKeyword("false")
    flag = (~words + parser.column).add_parse_action(lambda found: EqualTo(term=found[0], value=True))
    others = parser.between | parser.comparison | parser.in_check | parser.null_check | parser.nan_check
    operators: list[Any] = [
        (Suppress(parser.NOT), 1, opAssoc.RIGHT, parser.handle_not),
        (Suppress(parser.AND), 2, opAssoc.LEFT, parser.handle_and),
        (Suppress(parser.OR), 2, opAssoc.LEFT, parser.handle_or),
    ]
    return infix_notation(others | parser.starts_check | flag, operators)  # type: ignore[no-untyped-call]


def deletes(text: str, table: str, engine: ExpressionEngine) -> Value:
    """Return which rows of a batch a condition deletes; NULL deletes none.

    Raises ArgumentError for what is no condition, SchemaMismatch for one that does not fit the batch.
    """
    tree = parsed_condition(text)
    try:
        return _computed(tree, engine)
    except (LookupError, ValueError) as error:
        raise SchemaMismatch(
            f"Cannot upsert into '{table}': 'delete_when' ({text!r}) cannot be computed: {error.args[0]}"
        ) from error


def _computed(tree: BooleanExpression, engine: ExpressionEngine) -> Value:
    if isinstance(tree, And):
        return _computed(tree.left, engine) & _computed(tree.right, engine)
    if isinstance(tree, Or):
        return _computed(tree.left, engine) | _computed(tree.right, engine)
    if isinstance(tree, Not):
        return ~_computed(tree.child, engine)
    result = _predicate(_NEGATED.get(type(tree), type(tree)), tree, engine)
    return ~result if type(tree) in _NEGATED else result


def _predicate(kind: type[BooleanExpression], tree: Any, engine: ExpressionEngine) -> Value:
    operand = engine.column(tree.term.name)
    if kind is IsNull:
        return engine.is_null(operand.value)
    is_float = isinstance(operand.kind, types.DoubleType)
    if kind is IsNaN:
        if not is_float:
            raise ValueError(f"column '{tree.term.name}' is a {operand.name}, which has no NaN")
        return engine.is_nan(operand.value)
    literals = list(tree.literals) if isinstance(tree, SetPredicate) else [tree.literal]
    constants = [_constant(each, operand, tree.term.name) for each in literals]
    if kind is StartsWith:
        return engine.starts_with(operand.value, constants[0])
    if kind is In:
        return _any([operand.value == operand.constant(each) for each in constants])
    compared = _COMPARE[kind](operand.value, operand.constant(constants[0]))
    is_upper = is_float and kind in (GreaterThan, GreaterThanOrEqual)
    return compared | engine.is_nan(operand.value) if is_upper else compared


def _any(conditions: Sequence[Value]) -> Value:
    """Return their disjunction as a balanced tree: engines walk trees by recursion."""
    if len(conditions) == 1:
        return conditions[0]
    half = len(conditions) // 2
    return _any(conditions[:half]) | _any(conditions[half:])


def _constant(given: Literal[Any], operand: Operand, name: str) -> Any:
    """Return a literal as a value of Python, by the column's type; a point in time is without its zone, in UTC."""
    value, kind = given.value, operand.kind
    with suppress(ValueError, InvalidOperation):
        if type(value) in _LITERALS.get(type(kind), ()):
            return _exact(value, kind)
    other = "not a boolean" if value is True else f"and {value!r} is no value of it"
    raise ValueError(f"column '{name}' is a {operand.name}, {other}")


_LITERALS: dict[type[Any], tuple[type, ...]] = {
    types.BooleanType: (bool,), types.StringType: (str,), types.LongType: (int,), types.DoubleType: (int, Decimal),
    types.DecimalType: (int, Decimal), types.DateType: (str,), types.TimestampType: (str,),
    types.TimestamptzType: (str,),
}  # fmt: skip
"""The types of literals that are values of a column's type."""


def _exact(value: Any, kind: Any) -> Any:
    """Return a literal as a value of a type. Raises ValueError if the type has no such value."""
    if isinstance(kind, types.DateType):
        return _EPOCH.date() + timedelta(days=literal(value).to(kind).value)
    if isinstance(kind, types.TimestampType | types.TimestamptzType):
        return _EPOCH + timedelta(microseconds=literal(with_zone(value, kind)).to(kind).value)
    if isinstance(kind, types.LongType) and not -(2**63) <= value < 2**63:
        raise ValueError("the number is too large")
    if isinstance(kind, types.DecimalType):
        context = Context(prec=kind.precision, traps=[Inexact, InvalidOperation])
        return Decimal(value).quantize(Decimal(1).scaleb(-kind.scale), context=context)
    return float(value) if isinstance(kind, types.DoubleType) else value


def located(name: str, top: T, fields: Callable[[T], Mapping[str, T]]) -> tuple[list[str], T]:
    """Return the path and the type of a column, or of a field of a struct: `a.b`. Raises LookupError.

    `fields` returns the types of a struct's fields by name.
    """
    path = [name] if name in fields(top) else name.split(".")
    for part in path:
        if part not in fields(top):
            raise LookupError(f"the batch has no column '{name}'")
        top = fields(top)[part]
    return path, top
