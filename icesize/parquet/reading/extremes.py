"""The least and the greatest value of each column, from footers.

They are those of the files that are read, and of the files that replace their rows. The footer of a writer that readers
do not trust counts as unknown, and so do bounds that may be truncated values.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from icesize.parquet.files.data_file import NewDataFile
from icesize.parquet.files.metrics import Leaf, Serialise, bound_value, leaves
from icesize.parquet.files.settings import Limits, WriteSettings, derived
from icesize.parquet.format.fields import Statistics
from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.schema import BOOLEAN, DOUBLE, FLOAT, INT32, INT64, Element
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import are_trusted, bound_order, merge_statistics
from icesize.parquet.format.thrift import Fields, binary, boolean, integer

_NEVER_SHORTENED = frozenset({BOOLEAN, INT32, INT64, FLOAT, DOUBLE})
_EXACT = {Statistics.MIN_VALUE: Statistics.IS_MIN_VALUE_EXACT, Statistics.MAX_VALUE: Statistics.IS_MAX_VALUE_EXACT}
_LARGEST_FLOATS = frozenset({float(np.finfo(kind).max) for kind in (np.float32, np.float64)})
"""Arrow C++ to version 21 and DuckDB 1.1 begin there to look for the least value, and it stays if all are infinite."""


class Ends(NamedTuple):
    """The least and the greatest value of a column, or their prefixes, as `bound_value` returns them; None if unknown.

    `is_open` means that other rows may have values beyond them.
    """

    lower: Any = None
    upper: Any = None
    is_open: bool = False

    def plus(self, other: Ends) -> Ends:
        """Return the outermost ends of both."""
        if other is NO_ENDS or other is self:
            return self
        lower = [end for end in (self.lower, other.lower) if end is not None]
        upper = [end for end in (self.upper, other.upper) if end is not None]
        return Ends(min(lower, default=None), max(upper, default=None), self.is_open or other.is_open)

    def agrees(self, other: Ends) -> bool:
        """Return whether both may be the ends of one column."""
        return (other.is_open or not self._exceeds(other)) and (self.is_open or not other._exceeds(self))

    def _exceeds(self, other: Ends) -> bool:
        below = self.lower is not None and other.lower is not None and self.lower < other.lower
        return below or (self.upper is not None and other.upper is not None and self.upper > other.upper)


NO_ENDS = Ends()
"""No row was read, or none that has a value."""
OPEN = Ends(is_open=True)


def stored_ends(footer: Footer | None, settings: WriteSettings) -> Mapping[int, Ends] | None:
    """Return the ends of flat columns from the footer of a file, by field id.

    Returns None if the footer was not read or is not to be trusted, or if its chunks are too small to be worth the
    comparison.
    """
    if footer is None or not _is_worth_it(footer, settings.limits) or not are_trusted(footer):
        return None
    places = _places(footer)
    elements = _elements(settings)
    found = dict[int, Ends]()
    for leaf in leaves(settings):
        if leaf.flat and leaf.lower is not None:
            at = places.get(leaf.field_id)
            is_alike = at is not None and _kind(footer.columns[at].element) == elements.get(leaf.field_id)
            found[leaf.field_id] = _ends(footer, at, leaf) if is_alike and at is not None else OPEN
    return found


def written_ends(leaf: Leaf, file: NewDataFile) -> Ends:
    """Return the ends of a column in a new file."""
    i = leaf.field_id
    if file.null_value_counts.get(i) == file.value_counts.get(i, -1):
        return NO_ENDS
    return _known(bound_value(leaf.type, file.lower_bounds.get(i)), bound_value(leaf.type, file.upper_bounds.get(i)))


def _places(footer: Footer) -> dict[int | None, int]:
    """Return the position of each flat column by its field id.

    Fields within lists and maps match by position, not by id.
    """
    # reversed, because the reader takes the first of two columns with one id
    return {column.element.field_id: at for at, column in [*enumerate(footer.columns)][::-1] if column.flat}


def _is_worth_it(footer: Footer, limits: Limits) -> bool:
    chunks = len(footer.columns) * len(footer.row_groups)
    return sum(group.size_bytes for group in footer.row_groups) >= limits.compared_chunk_bytes * chunks


def _kind(element: Element) -> tuple[object, ...]:
    return element.type, element.length, element.logical, element.unknown


@derived
def _elements(settings: WriteSettings) -> dict[int | None, tuple[object, ...]]:
    """Return the elements of the table's columns in its own files, by field id."""
    return {column.element.field_id: _kind(column.element) for column in own_footer(settings).columns}


def own_footer(settings: WriteSettings) -> Footer:
    """Return the footer that icesize's own writer gives to a file without rows."""
    return read_footer(BytesSource(settings.parquet.in_memory(without_rows(settings.arrow_schema))))


def without_rows(schema: pa.Schema) -> pa.Table:
    """Return a table without rows; pyarrow's own `empty_table` fails for a UUID in a struct."""
    return pa.Table.from_batches([], schema)


def _ends(footer: Footer, at: int, leaf: Leaf) -> Ends:
    """Return the ends of a column in one file."""
    element, chunks = footer.columns[at].element, [group.chunks[at] for group in footer.row_groups]
    try:
        merged = merge_statistics(element, [(chunk.statistics, chunk.values) for chunk in chunks]) or {}
    except CopyRefused:
        return OPEN
    if integer(merged, Statistics.NULL_COUNT) == sum(chunk.values for chunk in chunks):
        return NO_ENDS
    lower = _serialised(leaf.lower, _exact(element, merged, Statistics.MIN_VALUE))
    upper = _serialised(leaf.upper, _exact(element, merged, Statistics.MAX_VALUE))
    return _known(bound_value(leaf.type, lower), bound_value(leaf.type, upper))


def _known(lower: Any, upper: Any) -> Ends:
    lower, upper = _value(lower), _value(upper)
    return Ends(lower, upper, lower is None or upper is None)


def _value(bound: Any) -> Any:
    """Return a bound; None for a bound that may be no value."""
    return None if isinstance(bound, float) and abs(bound) in _LARGEST_FLOATS else bound


def _serialised(serialise: Serialise | None, value: Any) -> bytes | None:
    return None if serialise is None or value is None else serialise(value)


def _exact(element: Element, statistics: Fields, field_id: int) -> Any:
    """Return a bound if it is exactly a value; None if it may be truncated."""
    order, raw, exact = bound_order(element), binary(statistics, field_id), boolean(statistics, _EXACT[field_id])
    sure = exact or (exact is None and element.type in _NEVER_SHORTENED)
    return _value(order(raw)) if sure and order is not None and raw is not None else None
