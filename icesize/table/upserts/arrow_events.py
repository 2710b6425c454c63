"""The rows of an Arrow table as events of a batch of upserts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow import types
from pyiceberg import types as iceberg

from icesize.errors import SchemaMismatch
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.state.handle import Current
from icesize.table.upserts.conditions import ExpressionEngine, Operand, deletes, located
from icesize.table.upserts.newest_events import Mask
from icesize.table.upserts.settings import require_columns, rule_columns


@dataclass(frozen=True)
class EventsOfRows:
    """The rows of an Arrow table, whose columns have the names of the table's. `except_columns` are not written."""

    rows: pa.Table
    except_columns: Sequence[str] = ()

    def fetch(self, current: Current, rule: UpsertRule) -> list[Callable[[], tuple[pa.Table, Mask]]]:
        """Return the only slice of the batch: the function that returns the events, and which of them are deletes.

        Raises SchemaMismatch for a column that the table lacks, or that the rule needs and the rows lack; ArgumentError
        for a condition that cannot be read.
        """
        table, schema = current.name, current.table.metadata.schema()
        require_columns({"except_columns": self.except_columns}, self.rows.column_names, table)
        is_delete = rows_deleted_by(rule.delete_when, self.rows, table)
        rows = self.rows.drop_columns(list(dict.fromkeys(self.except_columns)))
        require_columns(rule_columns(rule, schema), rows.column_names, table)
        names = {field.name for field in schema.fields}
        for name in rows.column_names:
            if name not in names:
                raise SchemaMismatch(
                    f"Cannot upsert into '{table}': the rows have the column '{name}', which the table lacks; leave it "
                    "out with 'except_columns', or add it to the table",
                    column=name,
                )
        return [lambda: (rows, is_delete)]


def rows_deleted_by(condition: str | None, rows: pa.Table, table: str) -> Mask:
    """Return the rows that a condition deletes; None deletes none.

    Raises ArgumentError for text that is no condition, SchemaMismatch for one that does not fit the rows.
    """
    if condition is None:
        return np.zeros(rows.num_rows, np.bool_)
    computed = ds.dataset(rows).to_table({"is_delete": deletes(condition, table, _Arrow(rows.schema))})
    is_delete: Mask = np.asarray(computed.column("is_delete").fill_null(False))
    return is_delete


@dataclass(frozen=True)
class _Arrow(ExpressionEngine):
    """Arrow's expressions on rows with this schema."""

    schema: pa.Schema

    def column(self, name: str) -> Operand:
        path, own = located(name, pa.struct(self.schema), _fields)
        target, kind = _compared(own.value_type if types.is_dictionary(own) else own)
        value = pc.field(*path) if target == own else pc.field(*path).cast(target)
        return Operand(value, kind, str(own), lambda constant: pc.scalar(pa.scalar(constant, _constant_type(target))))

    def is_null(self, value: pc.Expression) -> pc.Expression:
        return value.is_null()

    def is_nan(self, value: pc.Expression) -> pc.Expression:
        return value.is_nan()

    def starts_with(self, value: pc.Expression, prefix: str) -> pc.Expression:
        return pc.starts_with(value, prefix)


def _fields(kind: pa.DataType) -> dict[str, pa.DataType]:
    return {field.name: field.type for field in kind} if types.is_struct(kind) else {}


def _compared(kind: pa.DataType) -> tuple[pa.DataType, iceberg.PrimitiveType | None]:
    """Return the types in which values of a type are compared with constants: Arrow's and Iceberg's."""
    if types.is_string(kind) or types.is_large_string(kind):
        return kind, iceberg.StringType()
    if types.is_boolean(kind):
        return kind, iceberg.BooleanType()
    if types.is_integer(kind) and kind != pa.uint64():
        return pa.int64(), iceberg.LongType()
    if types.is_floating(kind):
        return pa.float64(), iceberg.DoubleType()
    if types.is_decimal128(kind):
        return kind, iceberg.DecimalType(kind.precision, kind.scale)
    if types.is_date(kind):
        return pa.date32(), iceberg.DateType()
    if types.is_timestamp(kind):
        return kind, iceberg.TimestamptzType() if kind.tz else iceberg.TimestampType()
    return kind, None


def _constant_type(kind: pa.DataType) -> pa.DataType:
    """Return the type of constants for a column: points in time have microseconds, also beside seconds."""
    return pa.timestamp("us", kind.tz) if types.is_timestamp(kind) else kind
