"""Rows -> the table's current schema: rows of older files by field id, new rows by name.

An error names the column that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

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
        self._identities = _identity_values(settings, partition)
        self._constants = {**initial_defaults(settings), **self._identities}
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
        default = partial(_constant_of, constants=self._constants)
        rules = replace(_BY_ID if _has_ids(source) else _BY_MAPPING, default=default)
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
        columns = []
        for field, at in zip(self._target, positions, strict=True):
            if at is None:
                columns.append(_Column(field, value=default(field)))
                continue
            with casting_of(f"column '{field.name}'"):
                convert = compile_convert(fields[at].type, field.type, rules)
            columns.append(_Column(field, wanted.index(at), convert))
        read = None if len(wanted) == len(fields) else [names[i] for i in wanted]
        whole = pa.schema([*source, *added], source.metadata)
        fitted = BoundProjection(whole, read, self._target, columns)
        self._last = source, fitted
        return fitted

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

    The columns `names` are read; None means all. `source` and `names` end with the columns of the row lineage that the
    files lack; `with_lineage` adds them to the rows read.
    """

    source: pa.Schema
    names: list[str] | None
    target: pa.Schema
    columns: Sequence[_Column]

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Project rows read with these columns; raises `CastingError`, naming the column."""
        columns = []
        for column in self.columns:
            with casting_of(f"column '{column.field.name}'"):
                if column.place is None and column.value is None and not column.field.nullable:
                    raise CastingError("is required and not in the file")
                columns.append(column(rows))
                if not column.field.nullable and columns[-1].null_count:  # the writer would name no file
                    raise CastingError("is required and has null")
        return pa.Table.from_arrays(columns, schema=self.target)


@dataclass(frozen=True)
class _Column:
    """A column of the table: the column at a position of the rows at hand, or one value, or NULL."""

    field: pa.Field
    place: int | None = None
    convert: Convert | None = None
    value: pa.Scalar | None = None

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.ChunkedArray:
        if self.place is None or self.convert is None:
            return pa.chunked_array([constant(rows.num_rows, self.field.type, self.value)], type=self.field.type)
        column = rows.column(self.place)
        chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
        return pa.chunked_array(map(self.convert, chunks), type=self.field.type)


def field_id(field: pa.Field) -> int | None:
    """Return Iceberg's id of a field that was read from a file."""
    text = (field.metadata or {}).get(FIELD_ID)
    return None if text is None else int(text)


def _constant_of(field: pa.Field, constants: Mapping[int, pa.Scalar | None]) -> pa.Scalar | None:
    """Return the value of a column or nested field in rows that lack it; None for NULL."""
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

    This is Iceberg's column projection, which prefers the partition's value to the initial default, even if it is NULL.
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
        self._default = partial(_constant_of, constants=write_defaults(settings))
        self._rules = replace(_BY_NAME, default=self._default)
        self._source: pa.Schema | None = None
        self._columns: list[_Column] = []

    def __call__(self, rows: pa.Table | pa.RecordBatch) -> pa.Table:
        if self._source is None or not rows.schema.equals(self._source):
            self._columns = self._compile(rows.schema)
            self._source = rows.schema
        columns = []
        for column in self._columns:
            name = column.field.name
            with _fitting(name):
                columns.append(column(rows))
            if not column.field.nullable and columns[-1].null_count:
                raise SchemaMismatch(f"Cannot write null into column '{name}': the table requires a value", column=name)
        return pa.Table.from_arrays(columns, schema=self._target)

    def _compile(self, source: pa.Schema) -> list[_Column]:
        extra = [name for name in source.names if self._target.get_field_index(name) < 0]
        if extra:
            raise SchemaMismatch(
                f"Cannot write column '{extra[0]}': the table has no such column, add it to the table or drop it",
                column=extra[0],
            )
        return [self._column(field, source) for field in self._target]

    def _column(self, field: pa.Field, source: pa.Schema) -> _Column:
        position = source.get_field_index(field.name)
        if position >= 0:
            with _fitting(field.name):
                return _Column(field, position, compile_convert(source.field(position).type, field.type, self._rules))
        if source.names.count(field.name) > 1:
            raise SchemaMismatch(f"Cannot write column '{field.name}': there are two of that name", column=field.name)
        value = self._default(field)
        if value is None and not field.nullable:
            raise SchemaMismatch(
                f"Cannot write without column '{field.name}': the table requires it", column=field.name
            )
        return _Column(field, value=value)


_BY_NAME = Rules(
    lambda wanted, at_hand: next((i for i, field in enumerate(at_hand) if field.name == wanted.name), None),
    zones_matter=True,
)


@contextmanager
def _fitting(name: str) -> Iterator[None]:
    """Raise `SchemaMismatch` for a column of new rows that cannot be cast."""
    try:
        yield
    except CastingError as error:
        raise SchemaMismatch(f"Cannot write column '{name}': it {error}", column=name) from error
