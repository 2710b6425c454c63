"""The entries of each leaf column as pyarrow reads them: what no rewrite may change, in whatever order rows are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Entry = tuple[str, int, int, str]
"""The path of a leaf, the repetition and definition level of one entry, all fields taken as optional, and its value."""


def entries_of(paths: Iterable[str | Path]) -> Counter[Entry]:
    """All entries of all files."""
    return Counter(entry for path in paths for entry in _of_rows(pq.read_table(path, partitioning=None)))


def _of_rows(rows: pa.Table) -> Iterator[Entry]:
    for field in rows.schema:
        for value in rows.column(field.name).to_pylist():
            yield from _entries(value, field.type, field.name, (0, 0, 0))


def _entries(value: Any, kind: pa.DataType, path: str, at: tuple[int, int, int]) -> Iterator[Entry]:
    """The entries of one value; `at` are its repetition level, its definition level, and how many lists are around."""
    repetition, definition, lists = at
    if value is None or not pa.types.is_nested(kind):
        leaves = _leaves(kind, path)
        yield from ((leaf, repetition, definition + (value is not None), repr(value)) for leaf in leaves)
    elif pa.types.is_struct(kind):
        for child in kind:
            yield from _entries(
                value[child.name], child.type, f"{path}.{child.name}", (repetition, definition + 1, lists)
            )
    elif not value:
        yield from ((leaf, repetition, definition + 1, "empty") for leaf in _leaves(kind, path))
    else:
        fields = [("key", kind.key_type), ("value", kind.item_type)] if pa.types.is_map(kind) else []
        for number, item in enumerate(value):
            below = lists + 1 if number else repetition, definition + 2, lists + 1
            if not fields:
                yield from _entries(item, kind.value_type, f"{path}.element", below)
            for (name, inner), part in zip(fields, item if fields else (), strict=True):
                yield from _entries(part, inner, f"{path}.{name}", below)


def _leaves(kind: pa.DataType, path: str) -> list[str]:
    if pa.types.is_struct(kind):
        return [leaf for child in kind for leaf in _leaves(child.type, f"{path}.{child.name}")]
    if pa.types.is_map(kind):
        return [*_leaves(kind.key_type, f"{path}.key"), *_leaves(kind.item_type, f"{path}.value")]
    return _leaves(kind.value_type, f"{path}.element") if pa.types.is_nested(kind) else [path]
