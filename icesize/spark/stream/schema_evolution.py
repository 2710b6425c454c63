"""Adds columns that a batch brings and the table lacks."""

from __future__ import annotations

from collections.abc import Sequence

from icesize.spark.engine.columns import Extra, iceberg_type
from icesize.table.commit.metadata_change import MetadataChange
from icesize.table.commit.pyiceberg_committer import PyIcebergLoaded, PyIcebergStaged


def add_columns(extras: Sequence[Extra], case_sensitive: bool, run_id: str) -> MetadataChange[list[str]]:
    """The change that adds optional columns, nested ones too; it gives the names of those that it has added.

    A column that somebody else has added meanwhile is left as it is.
    """

    def missing(loaded: PyIcebergLoaded) -> list[Extra]:
        fold = str if case_sensitive else str.lower
        known = {fold(name) for name in loaded.table.schema().column_names}
        return [extra for extra in extras if fold(".".join(extra.path)) not in known]

    def build(loaded: PyIcebergLoaded) -> tuple[PyIcebergStaged | None, list[str]]:
        new = missing(loaded)
        if not new:
            return None, []
        update = loaded.table.transaction().update_schema(case_sensitive=case_sensitive)
        for extra in new:
            update.add_column(extra.path, iceberg_type(extra.kind))
        updates, requirements = update._commit()
        return loaded.staged(updates, *requirements), [".".join(extra.path) for extra in new]

    advice = "Look whether the table has the batch's columns; running the same batch again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: not missing(loaded))
