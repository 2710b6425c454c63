"""New rows -> the table's own Arrow schema, or a sentence saying which column does not fit."""

from __future__ import annotations

import pyarrow as pa

from icesize.errors import SchemaMismatch
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.reading.casting import CastingError, Convert, Rules, compile_convert, nulls


class ColumnAligner:
    """Casts batches to `settings.arrow_schema`, matching columns and nested fields by their exact names.

    A missing optional column is NULL. Raises `SchemaMismatch`, naming the column, for an extra column, a missing
    required one, null in a required one, a type of another kind or a value out of range.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self._target = settings.arrow_schema
        self._source: pa.Schema | None = None
        self._steps: list[tuple[int, Convert] | None] = []  # None for a column that is missing

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        if self._source is None or not rows.schema.equals(self._source):
            self._steps = self._compile(rows.schema)
            self._source = rows.schema
        columns = []
        for field, step in zip(self._target, self._steps, strict=True):
            if step is None:
                columns.append(pa.chunked_array([nulls(rows.num_rows, field.type)]))
            else:
                columns.append(_convert(field, rows.column(step[0]), step[1]))
        return pa.Table.from_arrays(columns, schema=self._target)

    def _compile(self, source: pa.Schema) -> list[tuple[int, Convert] | None]:
        extra = [name for name in source.names if self._target.get_field_index(name) < 0]
        if extra:
            raise SchemaMismatch(
                f"Cannot write column '{extra[0]}': the table has no such column, add it to the table or drop it",
                column=extra[0],
            )
        return [self._step(field, source) for field in self._target]

    def _step(self, field: pa.Field, source: pa.Schema) -> tuple[int, Convert] | None:
        position = source.get_field_index(field.name)
        if position >= 0:
            try:
                return position, compile_convert(source.field(position).type, field.type, _BY_NAME)
            except CastingError as error:
                raise _mismatch(field.name, error) from error
        if source.names.count(field.name) > 1:
            raise SchemaMismatch(f"Cannot write column '{field.name}': there are two of that name", column=field.name)
        if not field.nullable:
            raise SchemaMismatch(
                f"Cannot write without column '{field.name}': the table requires it", column=field.name
            )
        return None


_BY_NAME = Rules(
    lambda wanted, at_hand: next((i for i, field in enumerate(at_hand) if field.name == wanted.name), None),
    zones_matter=True,
)


def _convert(field: pa.Field, column: pa.Array | pa.ChunkedArray, convert: Convert) -> pa.ChunkedArray:
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    try:
        result = pa.chunked_array([convert(chunk) for chunk in chunks], type=field.type)
    except CastingError as error:
        raise _mismatch(field.name, error) from error
    if not field.nullable and result.null_count:
        raise SchemaMismatch(
            f"Cannot write null into column '{field.name}': the table requires a value", column=field.name
        )
    return result


def _mismatch(name: str, error: CastingError) -> SchemaMismatch:
    return SchemaMismatch(f"Cannot write column '{name}': it {error}", column=name)
