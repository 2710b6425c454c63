"""Entries whose partition values were encoded before a column was promoted, brought to how they are encoded today.

A manifest's header says of which types its partition values are. Iceberg's promotions (int to long, float to double, a
decimal of more digits) change these types for new manifests alone, so values of today may not fit an older manifest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from icesize.table.manifests.avro_decode import AvroSchema, inlined, structure
from icesize.table.manifests.entries import DataFileSchema, Entry, with_other_value

PARTITION = 102
"""Iceberg's field id of the partition values in a data file."""
_PROMOTIONS = {("int", "long"), ("float", "double")}


@dataclass(frozen=True, slots=True)
class Fitted:
    """How entries of some encoding are written: under `schema`, whose partition record takes new values too where it
    `is_current`. `data` gives the encoded data file of an entry.
    """

    schema: DataFileSchema
    is_current: bool
    data: Callable[[Entry], bytes]


def fit(schema: DataFileSchema, own: DataFileSchema) -> Fitted:
    """How entries encoded by `schema` are written in a table that encodes new files by `own`.

    Each partition field takes its type of today where every older value has a place in it; all else is copied as bytes.
    A field keeps its type where it has none today, as when its column was dropped: its values stay what they are.
    """
    old, new = (each.avro["fields"][each.place(PARTITION)]["type"] for each in (schema, own))
    record = _promoted(old, new)
    whole = [{**f, "type": record} if f["field-id"] == PARTITION else f for f in schema.avro["fields"]]
    avro = inlined({**schema.avro, "fields": whole})
    fitted = DataFileSchema(structure(avro), avro)
    is_current = structure(record) == structure(new)
    if fitted == schema:
        return Fitted(fitted, is_current, lambda entry: entry.data)
    written = with_other_value(schema, PARTITION, record)
    return Fitted(fitted, is_current, lambda entry: written(entry.data, entry.values))


def _promoted(old: AvroSchema, new: AvroSchema) -> AvroSchema:
    if [f["field-id"] for f in old["fields"]] != [f["field-id"] for f in new["fields"]]:
        return old
    pairs = zip(old["fields"], new["fields"], strict=True)
    return {**new, "fields": [now if _takes(now["type"], before["type"]) else before for before, now in pairs]}


def _takes(new: AvroSchema, old: AvroSchema) -> bool:
    """Whether every value of one type is the same value of the other."""
    (old_type, old_null), (new_type, new_null) = _without_null(old), _without_null(new)
    if old_null and not new_null:
        return False
    if old_type is None or new_type is None:
        return old_type is None
    same = structure(old_type) == structure(new_type)
    return same or (_name(old_type), _name(new_type)) in _PROMOTIONS or _is_wider(new_type, old_type)


def _without_null(schema: AvroSchema) -> tuple[AvroSchema | None, bool]:
    """The type of values that are there, None when there are none, and whether null is allowed."""
    branches = schema if isinstance(schema, list) else [schema]
    there = [branch for branch in branches if branch != "null"]
    return (there[0] if there else None), len(there) < len(branches)


def _name(schema: AvroSchema) -> Any:
    return schema["type"] if isinstance(schema, dict) else schema


def _is_wider(new: AvroSchema, old: AvroSchema) -> bool:
    if any(_name(each) != "fixed" or each.get("logicalType") != "decimal" for each in (new, old)):
        return False
    return bool(new["size"] >= old["size"] and new.get("scale", 0) == old.get("scale", 0))
