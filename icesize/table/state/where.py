"""`where`: the partitions that a filter selects, by columns of the table or fields of the partition spec.

A filter over columns is projected *strictly*: it selects a partition only if every row in it matches. Partitions that
may hold some matching rows are left out and counted, because files are merged by partition.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import timezone
from typing import Any, TypeAlias

from pyiceberg.expressions import (
    AlwaysFalse,
    AlwaysTrue,
    And,
    BooleanExpression,
    LiteralPredicate,
    Not,
    Or,
    SetPredicate,
    parser,
)
from pyiceberg.expressions.visitors import (
    bind,
    expression_evaluator,
    inclusive_projection,
    manifest_evaluator,
    strict_projection,
)
from pyiceberg.manifest import ManifestFile
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import IcebergType, TimestampType, TimestamptzType

from icesize.errors import ArgumentError
from icesize.planning.files import Layout, PartitionKey, Partitions
from icesize.table.catalog.access_errors import brief
from icesize.table.state.live_files import every_manifest
from icesize.units import time_of

_SPACE = re.compile(r"\s")

Where: TypeAlias = str | BooleanExpression | None


NO_MATCH = "no partition matches the filter as a whole"
"""Message for a filter that selects no partition: a typing error would otherwise look like finished work."""


@dataclass(frozen=True)
class PartitionFilter:
    """Tests per partition spec: `covers` for wholly matching partitions, `touches` for some matches.

    `may_hold` is True for manifests that may list files of such partitions.
    """

    covers: Callable[[PartitionKey], bool]
    touches: Callable[[PartitionKey], bool]
    may_hold: Callable[[ManifestFile], bool]

    def select(self, layout: Layout) -> tuple[Layout, int]:
        """Return the layout of the covered partitions, and the number of omitted, partly matching ones."""
        if self.may_hold is every_manifest:
            return layout, 0
        covered = dict.fromkeys(key for key in layout.partitions if self.covers(key))
        partly = sum(1 for key in layout.partitions if key not in covered and self.touches(key))
        chosen = Partitions.of(layout.partitions.some(covered))
        return replace(layout, partitions=chosen, standing=None), partly


def partition_filter(metadata: TableMetadata, where: Where) -> PartitionFilter:
    """Return the filter for a table. Raises ArgumentError for invalid filters and for unknown columns."""
    expression = parsed(where, metadata.schema())
    if isinstance(expression, AlwaysTrue):
        return PartitionFilter(lambda key: True, lambda key: True, every_manifest)
    projections = _projections(metadata, expression)
    strict = {i: _evaluator(metadata, i, s) for i, (s, _) in projections.items()}
    inclusive = {i: _evaluator(metadata, i, e) for i, (_, e) in projections.items()}
    manifests = {i: manifest_evaluator(metadata.specs()[i], metadata.schema(), e) for i, (_, e) in projections.items()}
    return PartitionFilter(
        lambda key: strict[key.spec_id](Record(*key.values)),
        lambda key: inclusive[key.spec_id](Record(*key.values)),
        lambda manifest: manifests[manifest.partition_spec_id](manifest),
    )


def parsed(where: Where, schema: Schema) -> BooleanExpression:
    """Return the expression of a filter over columns of this schema. Raises ArgumentError for an invalid filter."""
    if where is None:
        return AlwaysTrue()
    if isinstance(where, BooleanExpression):
        return where
    try:
        return _with_times(parser.parse(where), schema)
    except Exception as error:  # the parser's errors have no common base
        raise ArgumentError(f"Cannot read the filter {why_unread(where, error)}", where=where) from None


def _with_times(expression: BooleanExpression, schema: Schema) -> BooleanExpression:
    """Return the expression with points in time as PyIceberg reads them: users write a date, or omit the zone."""
    if isinstance(expression, And | Or):
        return type(expression)(_with_times(expression.left, schema), _with_times(expression.right, schema))
    if isinstance(expression, Not):
        return Not(_with_times(expression.child, schema))
    if isinstance(expression, LiteralPredicate):
        return type(expression)(expression.term, with_zone(expression.literal.value, _type_of(expression.term, schema)))
    if isinstance(expression, SetPredicate):
        kind = _type_of(expression.term, schema)
        return type(expression)(expression.term, {with_zone(each.value, kind) for each in expression.literals})
    return expression


def _type_of(term: Any, schema: Schema) -> IcebergType | None:
    """Return the type of a column; None for a partition field and for a column that does not exist."""
    with suppress(ValueError):
        return schema.find_type(term.name)
    return None


def with_zone(value: Any, kind: IcebergType | None) -> Any:
    """Return a time string as PyIceberg reads it.

    A date becomes its midnight. A time without a zone is UTC if the column has zones. Values of other columns are
    unchanged.
    """
    if not (isinstance(value, str) and isinstance(kind, TimestampType | TimestamptzType)):
        return value
    with suppress(ValueError):
        time = time_of(value)
        is_naive = time.tzinfo is None and isinstance(kind, TimestamptzType)
        return (time.replace(tzinfo=timezone.utc) if is_naive else time).isoformat()
    return value


def why_unread(where: str, error: Exception) -> str:
    """Return the reason why the parser cannot read a condition, with a mark at the place."""
    place = getattr(error, "loc", None)
    if place is None:
        return f"{where!r}: {brief(error)}"
    # omit the parser's own message, because it is the whole grammar
    return (
        "from the mark on; conditions are like kind = 'a', joined by and, or, not\n"
        f"  {_SPACE.sub(' ', where)}\n  {' ' * _broken_at(where, place)}^"
    )


def _broken_at(where: str, place: int) -> int:
    """Return the position of a syntax error.

    The parser reports the start of the condition that it cannot read. Parsed alone, the condition fails at the error
    itself.
    """
    with suppress(Exception):  # the parser's errors have no common base
        parser.parse(where[:place])
        return place  # no condition starts there: only `and` or `or` can follow a complete filter
    try:
        parser.predicate.parse_string(where[place:])
    except Exception as error:
        return place + int(getattr(error, "loc", 0))
    return place


def _projections(
    metadata: TableMetadata, expression: BooleanExpression
) -> dict[int, tuple[BooleanExpression, BooleanExpression]]:
    """Return (strict, inclusive) expressions over the fields of each spec.

    A filter over partition fields is both for a spec that has these fields. Partitions of any other spec may match, but
    none of them is selected as a whole.
    """
    schema = metadata.schema()
    unbound = _why_unbound(schema, expression)
    if unbound is None:
        return {
            i: (strict_projection(schema, spec)(expression), inclusive_projection(schema, spec)(expression))
            for i, spec in metadata.specs().items()
        }
    named = {i for i in metadata.specs() if _why_unbound(_partition_schema(metadata, i), expression) is None}
    if not named:
        fields = ", ".join(f.name for f in metadata.spec().fields) or "none"
        raise ArgumentError(
            f"Cannot filter: {unbound}; columns are {', '.join(schema.column_names)}, partition fields are {fields}"
        )
    return {i: (expression, expression) if i in named else (AlwaysFalse(), AlwaysTrue()) for i in metadata.specs()}


def _why_unbound(schema: Schema, expression: BooleanExpression) -> Exception | None:
    try:
        bind(schema, expression, case_sensitive=True)
    except (TypeError, ValueError) as error:  # a TypeError for types of which PyIceberg has no literals
        return error
    return None


def _evaluator(metadata: TableMetadata, spec_id: int, expression: BooleanExpression) -> Callable[[Record], bool]:
    return expression_evaluator(_partition_schema(metadata, spec_id), expression, case_sensitive=True)


def _partition_schema(metadata: TableMetadata, spec_id: int) -> Schema:
    return Schema(*metadata.specs()[spec_id].partition_type(metadata.schema()).fields)
