"""The rows of an Arrow table as events of a batch of upserts."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
from pyarrow import types
from pyiceberg.expressions.visitors import bind
from pyiceberg.io.pyarrow import expression_to_pyarrow, pyarrow_to_schema
from pyiceberg.schema import Schema
from pyiceberg.types import NestedField

from icesize.errors import ArgumentError, SchemaMismatch
from icesize.parquet.keys.events import Mask
from icesize.planning.upsert_rule import UpsertRule
from icesize.table.catalog.access_errors import brief
from icesize.table.state.handle import Current
from icesize.table.state.where import parsed
from icesize.table.upserts.settings import columns_of, require_columns

_FIELD_ID = "PARQUET:field_id"


@dataclass(frozen=True)
class EventsOfRows:
    """The rows of an Arrow table, whose columns have the names of the table's. `except_columns` are not written."""

    rows: pa.Table
    except_columns: Sequence[str] = ()

    def fetch(self, current: Current, rule: UpsertRule) -> tuple[pa.Table, Mask]:
        """Return the events, and which of them are deletes.

        Raises SchemaMismatch for a column that the table lacks, or that the rule needs and the rows lack; ArgumentError
        for a condition that cannot be computed.
        """
        table, schema = current.name, current.table.metadata.schema()
        require_columns({"except_columns": self.except_columns}, self.rows.column_names, table)
        is_delete = self._is_delete(rule, table)
        rows = self.rows.drop_columns(list(dict.fromkeys(self.except_columns)))
        require_columns(columns_of(rule, schema), rows.column_names, table)
        names = {field.name for field in schema.fields}
        for name in rows.column_names:
            if name not in names:
                raise SchemaMismatch(
                    f"Cannot upsert into '{table}': the rows have the column '{name}', which the table lacks; leave it "
                    "out with 'except_columns', or add it to the table",
                    column=name,
                )
        return rows, is_delete

    def _is_delete(self, rule: UpsertRule, table: str) -> Mask:
        condition = rule.delete_when
        if condition is None:
            return np.zeros(self.rows.num_rows, np.bool_)
        if condition in self.rows.column_names:
            column = self.rows.column(condition)
            if not types.is_boolean(column.type):
                raise SchemaMismatch(
                    f"Cannot upsert into '{table}': 'delete_when' ({condition!r}) is a column of type {column.type}, "
                    "not a boolean",
                    column=condition,
                )
        else:
            column = self._computed(condition, table)
        is_delete: Mask = np.asarray(column.fill_null(False))
        return is_delete

    def _computed(self, condition: str, table: str) -> pa.ChunkedArray:
        try:
            schema = _schema_of(self.rows)
            expression = bind(schema, parsed(condition, schema), case_sensitive=True)
            computed = expression_to_pyarrow(expression, schema)
            return ds.dataset(self.rows).to_table({"is_delete": computed}).column("is_delete")
        except Exception as error:  # the errors of parser, binding and Arrow have no common base
            raise ArgumentError(
                f"Cannot upsert into '{table}': 'delete_when' ({condition!r}) cannot be computed on an Arrow table: "
                f"{error if isinstance(error, ArgumentError) else brief(error)}. Pass a DataFrame of Spark, or name a "
                "column of booleans",
                where=condition,
            ) from error


def _schema_of(rows: pa.Table) -> Schema:
    """Return Iceberg's schema of the columns to which a condition can refer: those that are not nested."""
    fields = list[NestedField]()
    for number, field in enumerate(rows.schema, 1):
        if not types.is_nested(field.type):
            with suppress(TypeError):  # Iceberg has no such type
                fields += pyarrow_to_schema(pa.schema([field.with_metadata({_FIELD_ID: str(number)})])).fields
    return Schema(*fields)
