"""The column that keeps PyIceberg from reading a table's metadata: its errors name neither the column nor the table.

Examples are columns of type `variant`, and default values with nanoseconds. PyIceberg returns no table for such
metadata, so the document is taken from the frames of the error.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from pyiceberg.types import NestedField

_DEFAULTS = ("initial-default", "write-default")


@dataclass(frozen=True)
class UnreadableColumn:
    """A column by its full name, and what PyIceberg cannot read of it."""

    name: str
    why: str


def unreadable_column(error: BaseException) -> UnreadableColumn | None:
    """Return the first column that PyIceberg cannot read, the current schema first; None if it can read all."""
    for document in _documents(error):
        current = document.get("current-schema-id")
        schemas = sorted(document.get("schemas", ()), key=lambda schema: schema.get("schema-id") != current)
        for field in (field for schema in schemas for field in schema["fields"]):
            if (column := _unreadable(field, "")) is not None:
                return column
    return None


def _documents(error: BaseException | None) -> Iterator[Any]:
    """Yield the metadata documents that PyIceberg had at hand when it failed: the text of a file, or a response."""
    while error is not None:
        for frame, _ in traceback.walk_tb(error.__traceback__):
            for name, value in frame.f_locals.items():
                text = getattr(value, "text", None) if name == "response" else value
                if isinstance(text, str) and '"format-version"' in text:
                    with suppress(ValueError, AttributeError):
                        document = json.loads(text)
                        yield document.get("metadata", document)
        error = error.__cause__ or error.__context__


def _unreadable(field: dict[str, Any], path: str) -> UnreadableColumn | None:
    if _is_readable(field):
        return None
    name, kind = f"{path}{field['name']}", field["type"]
    if isinstance(kind, dict):
        inner = (_unreadable(below, f"{name}.") for below in _fields_below(kind))
        if (column := next(filter(None, inner), None)) is not None:
            return column
        kind = kind["type"]
    bare = {key: value for key, value in field.items() if key not in _DEFAULTS}
    return UnreadableColumn(name, f"a default value of type '{kind}'" if _is_readable(bare) else f"type '{kind}'")


def _is_readable(field: dict[str, Any]) -> bool:
    try:
        NestedField.model_validate(field)
    except Exception:  # the errors of PyIceberg's parsers have no common base
        return False
    return True


def _fields_below(kind: dict[str, Any]) -> list[dict[str, Any]]:
    fields: list[dict[str, Any]] = list(kind.get("fields", ()))
    return fields + [
        {"id": 1, "name": name, "type": kind[name], "required": False}
        for name in ("element", "key", "value")
        if name in kind
    ]
