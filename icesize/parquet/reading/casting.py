"""Arrays of one Arrow type -> arrays of another, level by level, without losing a NULL.

Both paths into a file use it (`projection`): new rows match the table's columns by name, old files by field id. Lists
and maps are rebuilt from their offsets together with their null mask: built from offsets alone, a NULL list becomes an
empty one.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

Convert = Callable[[pa.Array], pa.Array]
Match = Callable[[pa.Field, list[pa.Field]], "int | None"]
"""(wanted field, fields at hand) -> position, None when the field is missing."""
Default = Callable[[pa.Field], "pa.Scalar | None"]
"""(missing field) -> its value in all rows, None for NULL."""
Doubt = Callable[[pa.Field, list[pa.Field]], "str | None"]
"""(missing field, fields at hand) -> why it may be one of them, None when it is missing for sure."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules that match fields, give values to missing ones, and compare timestamps with and without a zone.

    With `zones_matter`, the two kinds of timestamps differ, as between a session's rows and a table. Between two files
    of a table, both are the same microseconds.
    """

    match: Match
    zones_matter: bool
    doubt: Doubt = lambda wanted, at_hand: None
    default: Default = lambda wanted: None


class CastingError(ValueError):
    """These values cannot become those; the message follows "column 'x'"."""


def compile_convert(source: pa.DataType, target: pa.DataType, rules: Rules) -> Convert:
    """Return a function from arrays of `source` to arrays of `target`.

    Raises `CastingError` now for types, and when the function runs for values.
    """
    if types.is_struct(target) and types.is_struct(source):
        return _struct(source, target, rules)
    if is_list(target) and is_list(source):
        return _list(source, target, rules)
    if types.is_map(target) and types.is_map(source):
        return _map(source, target, rules)
    if types.is_nested(target) or types.is_nested(source):
        raise CastingError(f"is {source}, the table has {target}")
    return _primitive(source, target, rules)


def may_become(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether `compile_convert` may convert these types, by any rules for timestamps and fields of structs."""
    if types.is_nested(source) or types.is_nested(target):
        return any(is_one(source) and is_one(target) for is_one in (types.is_struct, types.is_map, is_list))
    try:
        _primitive(source, target, Rules(lambda wanted, at_hand: None, zones_matter=False))
    except CastingError:
        return False
    return True


def _struct(source: pa.StructType, target: pa.StructType, rules: Rules) -> Convert:
    at_hand = [source.field(i) for i in range(source.num_fields)]
    wanted = [target.field(i) for i in range(target.num_fields)]
    steps: list[tuple[int, Convert] | pa.Scalar | None] = []
    for field in wanted:
        position = rules.match(field, at_hand)
        if position is not None:
            steps.append((position, _named(field.name, at_hand[position].type, field.type, rules)))
        elif problem := rules.doubt(field, at_hand):
            raise CastingError(f"field {problem}")
        elif (default := rules.default(field)) is None and not field.nullable:
            raise CastingError(f"lacks required field '{field.name}'")
        else:
            steps.append(default)

    def convert(array: pa.Array) -> pa.Array:
        mask = array.is_null() if array.null_count else None
        children = []
        for field, step in zip(wanted, steps, strict=True):
            if not isinstance(step, tuple):
                children.append(constant(len(array), field.type, step))
                continue
            position, change = step
            child = change(array.field(position))
            if not field.nullable and child.null_count:
                child = _required(field, child, mask)
            children.append(child)
        if not children:
            return pa.array([None if not v.is_valid else {} for v in array], target)
        return pa.StructArray.from_arrays(children, fields=wanted, mask=mask)

    return convert


def _required(field: pa.Field, child: pa.Array, parent_is_null: pa.Array | None) -> pa.Array:
    """Return a required field without a null mask; raises `CastingError` for NULLs, unless their parent is NULL."""
    missing = child.is_null()
    if parent_is_null is not None:
        missing = pc.and_not(missing, parent_is_null)
    if pc.any(missing).as_py():
        raise CastingError(f"has null in required field '{field.name}'")
    return _without_mask(child)


def _without_mask(array: pa.Array) -> pa.Array:
    """Return the same array with some value in place of each NULL.

    pyarrow refuses NULL in a required field, even below a NULL parent.
    """
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(kind, _without_mask(array.storage))
    if types.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays([array.field(i) for i in range(len(fields))], fields=fields)
    if types.is_map(kind):
        return pa.MapArray.from_arrays(array.offsets, array.keys, array.items, type=kind)
    if is_list(kind):
        return type(array).from_arrays(array.offsets, array.values, type=kind)
    return pa.Array.from_buffers(kind, len(array), [None, *array.buffers()[1:]], 0, array.offset)


def constant(rows: int, kind: pa.DataType, value: pa.Scalar | None) -> pa.Array:
    """Return the value of this type `rows` times, or NULL if it is None."""
    return nulls(rows, kind) if value is None else pa.repeat(value, rows)


def nulls(rows: int, kind: pa.DataType) -> pa.Array:
    """Return `rows` NULLs; below a NULL struct, required fields have values instead of NULLs."""
    if not types.is_struct(kind) or not kind.num_fields:
        return pa.nulls(rows, kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    children = [nulls(rows, field.type) for field in fields]
    filled = [c if f.nullable else _without_mask(c) for f, c in zip(fields, children, strict=True)]
    return pa.StructArray.from_arrays(filled, fields=fields, mask=pa.repeat(True, rows))


def _list(source: pa.DataType, target: pa.DataType, rules: Rules) -> Convert:
    step = _named("element", source.value_type, target.value_type, rules)
    large = types.is_large_list(target)
    kind = pa.LargeListArray if large else pa.ListArray
    required = not target.value_field.nullable

    def convert(array: pa.Array) -> pa.Array:
        has_offsets = types.is_list(array.type) or types.is_large_list(array.type)
        array = _without_hidden(array) if has_offsets else array
        offsets, values = _unsliced(array, array.values) if has_offsets else _in_a_row(array)
        values = step(values)
        if required and values.null_count:
            raise CastingError("has null in a list of required elements")
        offsets = offsets.cast(pa.int64() if large else pa.int32())
        mask = array.is_null() if array.null_count else None
        return kind.from_arrays(offsets, values, type=target, mask=mask)

    return convert


def _map(source: pa.MapType, target: pa.MapType, rules: Rules) -> Convert:
    keys = _named("key", source.key_type, target.key_type, rules)
    items = _named("value", source.item_type, target.item_type, rules)
    required = not target.item_field.nullable

    def convert(array: pa.Array) -> pa.Array:
        array = _without_hidden(array)
        offsets, entries = _unsliced(array, pa.StructArray.from_arrays([array.keys, array.items], ["k", "v"]))
        values = items(entries.field(1))
        if required and values.null_count:
            raise CastingError("has null in a map of required values")
        mask = array.is_null() if array.null_count else None
        return pa.MapArray.from_arrays(offsets, keys(entries.field(0)), values, type=target, mask=mask)

    return convert


def _without_hidden(array: pa.Array) -> pa.Array:
    """Return lists or maps without values below NULL: no reader sees them, and they may be anything."""
    if not array.null_count:
        return array
    lengths = pc.subtract(array.offsets[1:], array.offsets[:-1])
    has_hidden = (pc.max(lengths.filter(array.is_null())).as_py() or 0) > 0
    return array.take(pa.array(range(len(array)))) if has_hidden else array


def _unsliced(array: pa.Array, values: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return offsets as a new array from 0, which a mask requires, and only the values they cover."""
    offsets = array.offsets
    if len(array) == 0:
        # the one offset of an empty array may be missing: the JVM sends an empty buffer
        return pa.array([0], offsets.type), values.slice(0, 0)
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return pc.subtract(offsets, pa.scalar(first, offsets.type)), values.slice(first, last - first)


def _in_a_row(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """Return the same as `_unsliced` for lists of a fixed size and views.

    pyarrow's cast to lists drops the values that follow a NULL.
    """
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int64())
    return pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)]), array.flatten()


def _named(name: str, source: pa.DataType, target: pa.DataType, rules: Rules) -> Convert:
    with casting_of(f"field '{name}':"):
        step = compile_convert(source, target, rules)
    return step if step is _same else casting_of(f"field '{name}':")(step)


@contextmanager
def casting_of(what: str) -> Iterator[None]:
    """Prefix a `CastingError` of the block with `what` cannot be cast; also a decorator."""
    try:
        yield
    except CastingError as error:
        raise CastingError(f"{what} {error}") from error


def _same(array: pa.Array) -> pa.Array:
    return array


def _primitive(source: pa.DataType, target: pa.DataType, rules: Rules) -> Convert:
    if source.equals(target):
        return _same
    if types.is_dictionary(source):
        inner = _primitive(source.value_type, target, rules)
        return lambda array: inner(array.dictionary_decode())
    if isinstance(source, pa.BaseExtensionType) and not isinstance(target, pa.BaseExtensionType):
        inner = _primitive(source.storage_type, target, rules)
        return lambda array: inner(array.storage)
    if isinstance(target, pa.BaseExtensionType):
        return _to_uuid(source, target, rules)
    if types.is_timestamp(target) and types.is_timestamp(source) and (source.tz is None) != (target.tz is None):
        if rules.zones_matter:
            # a time without a zone is an instant only in the time zone of the session that wrote it
            raise CastingError(f"is {source}, the table has {target}")
        same_zone = pa.timestamp(source.unit, target.tz)
        return lambda array: _cast(array.view(same_zone), target)
    if not _fits(source, target):
        raise CastingError(f"is {source}, the table has {target}")
    return lambda array: _cast(array, target)


def _fits(source: pa.DataType, target: pa.DataType) -> bool:
    """Return whether values of these types mean the same; single values may still be out of range."""
    if types.is_null(source):
        return True
    if types.is_fixed_size_binary(source) and types.is_fixed_size_binary(target):
        return bool(source.byte_width == target.byte_width)  # pyarrow allocates all values before it reads any
    families = (_is_number, _is_text, types.is_boolean, types.is_date, types.is_time, types.is_timestamp)
    return any(family(source) and family(target) for family in families)


def _is_number(kind: pa.DataType) -> bool:
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind))


def _is_text(kind: pa.DataType) -> bool:
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    is_binary = types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind)
    return bool(is_text or is_binary or types.is_fixed_size_binary(kind))


def is_list(kind: pa.DataType) -> bool:
    """Return whether values are lists of any kind, maps excepted."""
    return types.is_nested(kind) and hasattr(kind, "value_field") and not types.is_map(kind)


def _cast(array: pa.Array, target: pa.DataType) -> pa.Array:
    try:
        result = array.cast(target, safe=True)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise CastingError(f"does not fit {target}: {error}") from error
    if types.is_floating(target) and types.is_floating(array.type) and target.bit_width < array.type.bit_width:
        lost = pc.and_(pc.is_inf(result), pc.is_finite(array))  # Arrow's safe cast accepts these
        if pc.any(lost).as_py():
            raise CastingError(f"does not fit {target}: a value is out of range")
    return result


def _to_uuid(source: pa.DataType, target: pa.BaseExtensionType, rules: Rules) -> Convert:
    storage = target.storage_type
    if types.is_string(source) or types.is_large_string(source):

        def parse(array: pa.Array) -> pa.Array:
            try:
                parsed = [None if v is None else uuid.UUID(v).bytes for v in array.to_pylist()]
            except ValueError as error:
                raise CastingError(f"does not fit {target}: {error}") from None
            return pa.ExtensionArray.from_storage(target, pa.array(parsed, storage))

        return parse
    inner = _primitive(source, storage, rules)
    return lambda array: pa.ExtensionArray.from_storage(target, inner(array))
