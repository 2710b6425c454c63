"""Partitions in one word, as people and the command line write them: `hour=h191/kind=3`.

NULL is written `null`. Double quotes, as in JSON, surround a text that would be read as something else: the text
`"null"`, an empty one, one with spaces at its ends, one that holds a `/` and later a `=`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress

_NULL = "null"
_QUOTED = r'"(?:[^"\\]|\\.)*"'


def label_of(values: Mapping[str, str | None]) -> str:
    """Return the label of a partition by its printed values, `` for that of an unpartitioned table."""
    return "/".join(f"{_written_name(name)}={_written(value)}" for name, value in values.items())


def read_label(label: str, names: Iterable[str]) -> list[tuple[str, str | None]]:
    """Return names and values of a label, in its order; a value extends to the next `/NAME=` of the `names`.

    A label with another name at its beginning is split at each `=` and `/`, for the message that names it. Raises
    ValueError for a field without a value.
    """
    # the longest first: a name may begin as another one is written
    forms = sorted({form for name in names for form in _forms(name)}, key=lambda form: (-len(form), form))
    known = "|".join(map(re.escape, forms))
    field = re.compile(rf"({known})=({_QUOTED}|.*?)(?=/(?:{known})=|\Z)", re.DOTALL)
    if not (known and field.match(label)):
        pieces = [piece.partition("=") for piece in filter(None, label.split("/"))]
        if not all(equals for _, equals, _ in pieces):
            raise ValueError("expected FIELD=VALUE, with / between fields")
        return [(name, value) for name, _, value in pieces]
    return [(_read(name) or name, _read(value)) for name, value in field.findall(label)]


def _forms(name: str) -> set[str]:
    """Return how a field's name may be written; without quotes, one with `/` could begin within another value."""
    return {_quoted(name)} if re.search(r"[=/]", name) else {_written_name(name), _quoted(name), name}


def _written_name(name: str) -> str:
    return _quoted(name) if re.search(r"[=/]", name) else _written(name)


def _written(value: str | None) -> str:
    if value is None:
        return _NULL
    is_plain = value.isprintable() and value == value.strip() and value not in ("", _NULL) and value[0] != '"'
    return value if is_plain and not re.search("/.*=", value) else _quoted(value)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _read(text: str) -> str | None:
    if text == _NULL:
        return None
    if re.fullmatch(_QUOTED, text, re.DOTALL):
        with suppress(ValueError):
            return str(json.loads(text))
    return text
