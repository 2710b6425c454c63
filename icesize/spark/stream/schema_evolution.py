"""Adds columns that a batch brings and the table lacks."""

from __future__ import annotations

from pyiceberg.exceptions import CommitFailedException
from tenacity import Retrying, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from icesize.spark.engine.columns import Extra, iceberg_type
from icesize.table.state.handle import TableHandle


def add_columns(handle: TableHandle, extras: list[Extra], case_sensitive: bool) -> None:
    """Add optional columns, nested ones too; a column that somebody else has added meanwhile is left as it is."""
    for attempt in Retrying(
        retry=retry_if_exception_type(CommitFailedException),
        stop=stop_after_attempt(5),
        wait=wait_random_exponential(multiplier=0.1, max=5),
        reraise=True,
    ):
        with attempt:
            table = handle.load().table
            fold = str if case_sensitive else str.lower
            known = {fold(name) for name in table.schema().column_names}
            with table.update_schema(case_sensitive=case_sensitive) as update:
                for extra in extras:
                    if fold(".".join(extra.path)) not in known:
                        update.add_column(extra.path, iceberg_type(extra.kind))
