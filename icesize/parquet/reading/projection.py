"""Rows -> the table's current schema: rows of older files by field id, new rows by name.

An error names the column that does not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from pyarrow import types
from pyiceberg.table.name_mapping import MappedField, parse_mapping_from_json
from pyiceberg.transforms import IdentityTransform

from icesize.errors import SchemaMismatch
from icesize.parquet.files.defaults import initial_defaults, scalar_of, write_defaults
from icesize.parquet.files.lineage_fields import FIELD_ID, is_lineage
from icesize.parquet.files.properties import NANOSECONDS
from icesize.parquet.files.settings import NAME_MAPPING, WriteSettings, derived
from icesize.parquet.reading.casting import (
    CastingError,
    Convert,
    Rules,
    casting_of,
    compile_convert,
    constant,
    is_list,
    may_become,
)
from icesize.planning.files import PartitionKey


class Projection:
    """Turns tables read from files into `settings.arrow_schema`.

    Columns are found by field id, so renamed, moved, widened and nested columns keep their values. Dropped columns are
    not read. Added columns have their initial default, or are NULL without one. The exception is the source of an
    identity partition field, which files imported from Hive do not store: it has the partition's value. Files without
    any field id are read through the table's name mapping.
    """

    def __init__(self, settings: WriteSettings, partition: PartitionKey) -> None:
        self._target = settings.arrow_schema
        self._mapping = settings.properties.get(NAME_MAPPING)
        self._defaults = initial_defaults(settings)
        self._identities = _identity_values(settings, partition)
        self._last: tuple[pa.Schema, BoundProjection] | None = None
        self.has_nanoseconds = _has_nanoseconds(settings)

    def fit(self, source: pa.Schema) -> BoundProjection:
        """Return the function that turns rows of files with this Arrow schema into rows of the table.

        May be called in any thread. Raises `CastingError` if the files cannot be read as the table's schema.
        """
        last = self._last  # most files have the same schema
        if last is not None and source.equals(last[0], check_metadata=True):
            return last[1]
        fields = with_ids(source, self._mapping)
        rules = replace(_BY_ID if _has_ids(source) else _BY_MAPPING, default=self._default)
        ids = set(map(field_id, fields))
        added = [field for field in self._target if is_lineage(field) and field_id(field) not in ids]
        fields += added
        found = {field_id(field): i for i, field in enumerate(fields)}
        positions = [found.get(field_id(field)) for field in self._target]
        for field, position in zip(self._target, positions, strict=True):
            missing = position is None and field_id(field) not in self._identities
            if missing and (problem := rules.doubt(field, fields)):
                raise CastingError(f"column {problem}")
        # read in file order, so that a column's position is its rank; pyarrow also reads "a.b" as field b of column a
        wanted = sorted(position for position in positions if position is not None)
        names = [field.name for field in fields]
        ambiguous = len(set(names)) < len(names) or any("." in name for name in names)
        if ambiguous:
            wanted = list(range(len(fields)))
        stored = pa.schema([source.field(i) for i in wanted if i < len(source)], source.metadata)
        columns = [
            _Constant(field, self._default(field))
            if at is None
            else _from_file(fields[at], field, wanted.index(at), rules)
            for field, at in zip(self._target, positions, strict=True)
        ]
        read = None if len(wanted) == len(fields) else [names[i] for i in wanted]
        whole = pa.schema([*source, *added], source.metadata)
        fitted = BoundProjection(whole, stored, read, self._target, columns)
        self._last = source, fitted
        return fitted

    def _default(self, field: pa.Field) -> pa.Scalar | None:
        """Return the value of a column or nested field in files that lack it; None for NULL."""
        return _constant_of(field, self._constants)

    @cached_property
    def _constants(self) -> Mapping[int, pa.Scalar | None]:
        return {**self._defaults, **self._identities}

    @property
    def constants(self) -> frozenset[int]:
        """Field ids of the columns and nested fields that have a value in files that lack them."""
        return frozenset(i for i, value in self._constants.items() if value is not None)


@derived
def _has_nanoseconds(settings: WriteSettings) -> bool:
    return any(isinstance(settings.schema.find_type(field_id), NANOSECONDS) for field_id in settings.schema.field_ids)


@dataclass(frozen=True)
class BoundProjection:
    """A projection of files with the schema `source`.

    `stored` is the schema of the columns `names`, which are read; None means all. `source` and `names` end with the
    columns of the row lineage that the files lack; `with_lineage` adds them to the rows read.
    """

    source: pa.Schema
    stored: pa.Schema
    names: list[str] | None
    target: pa.Schema
    columns: Sequence[Callable[[pa.Table], pa.ChunkedArray]]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Project rows read with these columns; raises `CastingError`, naming the column."""
        columns = [column(rows) for column in self.columns]
        return pa.Table.from_arrays(columns, schema=self.target)


@dataclass(frozen=True)
class _FromFile:
    """The values of the column at position `place` of the columns read."""

    field: pa.Field
    place: int
    convert: Convert

    def __call__(self, rows: pa.Table) -> pa.ChunkedArray:
        with casting_of(f"column '{self.field.name}'"):
            values = pa.chunked_array(map(self.convert, rows.column(self.place).chunks), type=self.field.type)
        if not self.field.nullable and values.null_count:  # the writer would name no file
            raise CastingError(f"column '{self.field.name}' is required and has null")
        return values


def _from_file(stored: pa.Field, wanted: pa.Field, place: int, rules: Rules) -> _FromFile:
    with casting_of(f"column '{wanted.name}'"):
        return _FromFile(wanted, place, compile_convert(stored.type, wanted.type, rules))


@dataclass(frozen=True)
class _Constant:
    """A column that files do not have: one value, or NULL."""

    field: pa.Field
    value: pa.Scalar | None

    def __call__(self, rows: pa.Table) -> pa.ChunkedArray:
        if self.value is None and not self.field.nullable:
            raise CastingError(f"column '{self.field.name}' is required and not in the file")
        return pa.chunked_array([constant(rows.num_rows, self.field.type, self.value)], type=self.field.type)


def field_id(field: pa.Field) -> int | None:
    """Return Iceberg's id of a field that was read from a file."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _constant_of(field: pa.Field, constants: Mapping[int, pa.Scalar | None]) -> pa.Scalar | None:
    number = field_id(field)
    return None if number is None else constants.get(number)


def _by_id(wanted: pa.Field, at_hand: list[pa.Field]) -> int | None:
    wanted_id = field_id(wanted)
    return next((i for i, field in enumerate(at_hand) if field_id(field) == wanted_id), None)


def _same_name_without_id(wanted: pa.Field, at_hand: list[pa.Field]) -> str | None:
    """Return a reason if a field that the name mapping does not find may be a field that the mapping lacks."""
    return _any_without_id(wanted, [field for field in at_hand if field.name == wanted.name])


def _any_without_id(wanted: pa.Field, at_hand: list[pa.Field]) -> str | None:
    """Return a reason if a field that a file with ids lacks may be a field without an id.

    That field may have any name, because fields can be renamed.
    """
    possible = (f.name for f in at_hand if field_id(f) is None and may_become(f.type, wanted.type))
    name = next(possible, None)
    if name is None:
        return None
    return (
        f"'{wanted.name}' may be '{name}' of the file, for which there is no field id; write the file with the ids of "
        f"all fields, or of none and with a '{NAME_MAPPING}' of all"
    )


_BY_ID = Rules(_by_id, zones_matter=False, doubt=_any_without_id)
_BY_MAPPING = Rules(_by_id, zones_matter=False, doubt=_same_name_without_id)


def _identity_values(settings: WriteSettings, partition: PartitionKey) -> Mapping[int, pa.Scalar | None]:
    """Return the partition's value for each source column of an identity field, by field id; None for NULL.

    This is Iceberg's column projection, which prefers the partition's value to the initial default, also if it is NULL.
    """
    types_by_id = {field_id(column): column.type for column in settings.arrow_schema}
    return {
        field.source_id: None if value is None else _scalar(value, types_by_id[field.source_id])
        for field, value in zip(settings.spec.fields, partition.values, strict=True)
        if isinstance(field.transform, IdentityTransform) and field.source_id in types_by_id
    }


def _scalar(value: object, kind: pa.DataType) -> pa.Scalar:
    if types.is_date(kind):
        return pa.scalar(value, pa.int32()).cast(kind)
    if types.is_timestamp(kind) or types.is_time(kind):
        return pa.array([value], pa.int64()).view(kind)[0]
    return scalar_of(value, kind)


def with_ids(source: pa.Schema, mapping: str | None) -> list[pa.Field]:
    """Return the file's fields; if no field has an id, with the ids of the table's name mapping.

    Raises `CastingError` if there is no name mapping either.
    """
    fields = list(source)
    if _has_ids(fields):
        return fields
    if mapping is None:
        raise CastingError(f"has no field ids and the table has no '{NAME_MAPPING}'")
    return _mapped(fields, list(parse_mapping_from_json(mapping)))


def _has_ids(fields: Iterable[pa.Field]) -> bool:
    return any(field_id(field) is not None or _has_ids(_children(field.type)) for field in fields)


def _children(kind: pa.DataType) -> list[pa.Field]:
    """Return the fields of a nested type; for a map, the field of its entries."""
    return [kind.field(i) for i in range(kind.num_fields)]


def _mapped(fields: list[pa.Field], mapping: list[MappedField]) -> list[pa.Field]:
    by_name = {name: entry for entry in mapping for name in entry.names}
    return [_mapped_field(field, by_name.get(field.name)) for field in fields]


def _mapped_field(field: pa.Field, entry: MappedField | None) -> pa.Field:
    if entry is None:
        return field
    below, kind = list(entry.fields), field.type
    if types.is_struct(kind):
        kind = pa.struct(_mapped(_children(kind), below))
    elif types.is_map(kind):
        named = {name: e for e in below for name in e.names}
        key = _mapped_field(kind.key_field, named.get("key"))
        kind = pa.map_(key, _mapped_field(kind.item_field, named.get("value")))
    elif is_list(kind):
        # for every kind of list: rows keep the kind of the file, while the table's columns have only one kind
        kind = pa.large_list(_mapped_field(kind.value_field, next(iter(below), None)))
    ids = {} if entry.field_id is None else {FIELD_ID: str(entry.field_id)}
    return field.with_type(kind).with_metadata(ids)


class ColumnAligner:
    """Casts batches to `settings.arrow_schema`, matching columns and nested fields by their exact names.

    A missing column has its write default; an optional one without a default is NULL. Raises `SchemaMismatch`, naming
    the column, for an extra column and a missing required column. The same applies to null in a required column, a type
    of another kind and a value out of range.
    """

    def __init__(self, settings: WriteSettings) -> None:
        self._target = settings.arrow_schema
        self._defaults = write_defaults(settings)
        self._rules = replace(_BY_NAME, default=self._default)
        self._source: pa.Schema | None = None
        self._steps: list[tuple[int, Convert] | pa.Scalar | None] = []  # a missing column has its value in all rows

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        if self._source is None or not rows.schema.equals(self._source):
            self._steps = self._compile(rows.schema)
            self._source = rows.schema
        columns = []
        for field, step in zip(self._target, self._steps, strict=True):
            if isinstance(step, tuple):
                columns.append(_convert(field, rows.column(step[0]), step[1]))
            else:
                columns.append(pa.chunked_array([constant(rows.num_rows, field.type, step)]))
        return pa.Table.from_arrays(columns, schema=self._target)

    def _default(self, field: pa.Field) -> pa.Scalar | None:
        return _constant_of(field, self._defaults)

    def _compile(self, source: pa.Schema) -> list[tuple[int, Convert] | pa.Scalar | None]:
        extra = [name for name in source.names if self._target.get_field_index(name) < 0]
        if extra:
            raise SchemaMismatch(
                f"Cannot write column '{extra[0]}': the table has no such column, add it to the table or drop it",
                column=extra[0],
            )
        return [self._step(field, source) for field in self._target]

    def _step(self, field: pa.Field, source: pa.Schema) -> tuple[int, Convert] | pa.Scalar | None:
        position = source.get_field_index(field.name)
        if position >= 0:
            try:
                return position, compile_convert(source.field(position).type, field.type, self._rules)
            except CastingError as error:
                raise _mismatch(field.name, error) from error
        if source.names.count(field.name) > 1:
            raise SchemaMismatch(f"Cannot write column '{field.name}': there are two of that name", column=field.name)
        value = self._default(field)
        if value is None and not field.nullable:
            raise SchemaMismatch(
                f"Cannot write without column '{field.name}': the table requires it", column=field.name
            )
        return value


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
