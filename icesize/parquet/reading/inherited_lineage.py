"""The lineage of the rows of a data file: the values that the file stores, and those that its rows inherit."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from icesize.errors import RewriteFailed
from icesize.parquet.files.lineage_fields import inherited_values
from icesize.parquet.reading.projection import field_id
from icesize.planning.files import FileFact


def check_row_ids(files: Iterable[FileFact]) -> None:
    """Raise `RewriteFailed` for a file whose rows have no row ids yet, because no commit has given it any.

    The next commit gives them ids. A rewrite that began before could only give them other ones.
    """
    for file in files:
        if file.first_row_id is None:
            raise RewriteFailed(
                f"Cannot rewrite {file.path}: its rows have no row ids yet, plan again after the next commit", path=None
            )


def with_lineage(rows: pa.Table, file: FileFact, first: int, target: pa.Schema) -> pa.Table:
    """Return rows as stored in `file`, with a `_row_id` and a `_last_updated_sequence_number` for each.

    A stored value stays; a row without one inherits it. `first` is the position in the file of the first row, before
    any delete. `target` is the Arrow schema of the table's rows, with both columns at its end. Here, columns that the
    file lacks come last. Raises `ArrowException` for a stored column that does not hold integers.
    """
    places = {field_id(field): place for place, field in enumerate(rows.schema)}
    for nth, field in enumerate(list(target)[-2:]):
        place = places.get(field_id(field))
        inherited = pa.array(inherited_values(nth, rows.num_rows, *file.inherited(first)))
        if place is None:
            rows = rows.append_column(field, inherited)
        elif (stored := rows.column(place)).null_count or stored.type != field.type:
            rows = rows.set_column(place, field, pc.coalesce(stored.cast(field.type), inherited))
    return rows
