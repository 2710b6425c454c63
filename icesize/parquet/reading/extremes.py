"""The least and the greatest value of each column by the footers of the files that are read: files that take the place
of all their rows have the same.

Footers of writers that readers do not trust say nothing here, nor do bounds that may be shortened values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.errors import RewriteFailed
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.metrics import Leaf, Serialise, bound_value, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.fields import Statistics
from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.schema import BOOLEAN, DOUBLE, FLOAT, INT32, INT64, Element
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import are_trusted, merge_statistics, order_of
from icesize.parquet.format.thrift import Fields, binary, boolean, integer

_NEVER_SHORTENED = frozenset({BOOLEAN, INT32, INT64, FLOAT, DOUBLE})
_LEAST_CHUNK_BYTES = 128 * 2**10
"""Least bytes of a column chunk, on average: reading its statistics takes 40 µs, 1 % of decoding so many bytes."""

Ends = tuple[Any, Any]
"""The least and the greatest value, or their beginnings, as `bound_value` has them; None for one that is not known."""
_UNKNOWN: Ends = (None, None)
_EXACT = {Statistics.MIN_VALUE: Statistics.IS_MIN_VALUE_EXACT, Statistics.MAX_VALUE: Statistics.IS_MAX_VALUE_EXACT}


@dataclass
class Extremes:
    """Collects the bounds of all files whose rows are read; `check` compares them with those of what was written."""

    settings: WriteSettings
    _seen: set[str] = field(default_factory=set)
    _found: dict[int, list[Ends]] | None = field(default_factory=dict)

    def add(self, path: str, footer: Footer | None) -> None:
        """Add a file, once; None for a footer that was not read."""
        if self._found is None or path in self._seen:
            return
        self._seen.add(path)
        if footer is None or not _pays(footer) or not are_trusted(footer):
            self._found = None
            return
        places = {column.element.field_id: at for at, column in enumerate(footer.columns)}
        elements = self.settings.derived(_elements)
        for leaf in leaves(self.settings):
            if leaf.flat and leaf.lower is not None:
                at = places.get(leaf.field_id)
                known = at is not None and _kind(footer.columns[at].element) == elements.get(leaf.field_id)
                ends = _ends(footer, at, leaf) if known and at is not None else _UNKNOWN
                if ends is not None:
                    self._found.setdefault(leaf.field_id, []).append(ends)

    def check(self, files: Sequence[WrittenFile]) -> None:
        """Raise `RewriteFailed` with the attribute `column` for the first column whose exact bounds changed."""
        for leaf in leaves(self.settings):
            found = (self._found or {}).get(leaf.field_id, [])
            written = [ends for file in files if (ends := _written(leaf, file)) is not None]
            if found and written and _differ(_outermost(found), _outermost(written)):
                raise RewriteFailed(
                    f"Cannot rewrite rows: column '{leaf.name}' has another least or greatest value in the files that "
                    "were written than by the footers of the input files; they are removed. Check the input files with "
                    "python -m icesize.parquet.verify, and report this if they have no problem",
                    path=None,
                    column=leaf.name,
                )


def _pays(footer: Footer) -> bool:
    chunks = len(footer.columns) * len(footer.row_groups)
    return sum(group.size_bytes for group in footer.row_groups) >= _LEAST_CHUNK_BYTES * chunks


def _kind(element: Element) -> tuple[object, ...]:
    return element.type, element.length, element.logical, element.unknown


def _elements(settings: WriteSettings) -> dict[int | None, tuple[object, ...]]:
    """Return the elements of the table's columns in its own files, by field id."""
    out = pa.BufferOutputStream()
    pq.ParquetWriter(out, settings.arrow_schema, **settings.parquet.writer_arguments()).close()
    columns = read_footer(BytesSource(memoryview(out.getvalue()))).columns
    return {column.element.field_id: _kind(column.element) for column in columns}


def _ends(footer: Footer, at: int, leaf: Leaf) -> Ends | None:
    """The bounds of a column in one file; None where it has no values."""
    element, chunks = footer.columns[at].element, [group.chunks[at] for group in footer.row_groups]
    try:
        merged = merge_statistics(element, [(chunk.statistics, chunk.values) for chunk in chunks]) or {}
    except CopyRefused:
        return _UNKNOWN
    if integer(merged, Statistics.NULL_COUNT) == sum(chunk.values for chunk in chunks):
        return None
    lower = _exact(element, merged, Statistics.MIN_VALUE, leaf.lower)
    upper = _exact(element, merged, Statistics.MAX_VALUE, leaf.upper)
    return bound_value(leaf.type, lower), bound_value(leaf.type, upper)


def _exact(element: Element, merged: Fields, field_id: int, serialise: Serialise | None) -> bytes | None:
    """A bound as manifests have it, if it is that of a value."""
    order, raw, exact = order_of(element), binary(merged, field_id), boolean(merged, _EXACT[field_id])
    sure = exact or (exact is None and element.type in _NEVER_SHORTENED)
    return serialise(order(raw)) if sure and order is not None and raw is not None and serialise is not None else None


def _written(leaf: Leaf, file: WrittenFile) -> Ends | None:
    """The bounds of a column in a new file; None where it has no values."""
    i = leaf.field_id
    if file.null_value_counts.get(i) == file.value_counts.get(i, -1):
        return None
    return bound_value(leaf.type, file.lower_bounds.get(i)), bound_value(leaf.type, file.upper_bounds.get(i))


def _outermost(found: Iterable[Ends]) -> Ends:
    lower, upper = zip(*found, strict=True)
    return None if None in lower else min(lower), None if None in upper else max(upper)


def _differ(one: Ends, other: Ends) -> bool:
    return any(a is not None and b is not None and a != b for a, b in zip(one, other, strict=True))
