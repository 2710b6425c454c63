"""Adds the columns of a batch to its table, or refuses them: `schema_evolution`."""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame

from icesize.spark.engine import columns, session
from icesize.spark.stream.options import SinkOptions
from icesize.table.commit import batch_commit
from icesize.table.commit.batch_commit import Batch
from icesize.table.commit.metadata_change import add_columns
from icesize.table.state.handle import Current


def fold_of(df: DataFrame) -> Callable[[str], str]:
    """Return the function that maps all spellings of one column name to the same string."""
    return str if session.is_case_sensitive(df.sparkSession) else str.lower


def with_columns_of(
    df: DataFrame, batch: Batch, current: Current, options: SinkOptions, *, is_whole: bool = True,
    way_on: str = "drop them",
) -> Current:  # fmt: skip
    """Add the columns that the table lacks if the options allow it, and return the newest state of the table.

    `is_whole` is explained at `extra_columns`. Raises SchemaMismatch for columns that are neither known nor wanted;
    `way_on` is advice about them.
    """
    fold = fold_of(df)

    def extras() -> list[columns.Extra]:
        table = current.table.metadata.schema().as_struct()
        return columns.extra_columns(df.schema, table, fold, is_whole=is_whole)

    found = extras()
    if found and options.schema_evolution == "add":
        new = {extra.path: columns.iceberg_type(extra.kind) for extra in found}
        change = add_columns(new, fold is str, batch.environment.new_id())
        batch_commit.change(batch.handle, current, change, batch.environment)
        current = batch.handle.load(batch.environment)
        found = extras()
    columns.refuse(found, current.name, way_on)
    return current
