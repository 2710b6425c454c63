"""Table properties with values that mean nothing: each command names the property, and none fails in another way."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.errors import IcesizeError
from icesize.sized_table import SizedTable
from tests.support.tables import arrow, make_table

NUMBERS = (
    "write.metadata.metrics.max-inferred-column-defaults", "commit.manifest.target-size-bytes",
    "commit.manifest.min-count-to-merge", "history.expire.min-snapshots-to-keep", "history.expire.max-ref-age-ms",
    "history.expire.max-snapshot-age-ms", "write.target-file-size-bytes", "write.parquet.row-group-size-bytes",
    "write.parquet.compression-level",
)  # fmt: skip
COMMANDS: tuple[Callable[[SizedTable], Any], ...] = (
    SizedTable.inspect, SizedTable.compact, SizedTable.rewrite_manifests, SizedTable.expire_snapshots,
)  # fmt: skip


@pytest.mark.parametrize("value", ["x", "-1", "9" * 30])
@pytest.mark.parametrize("key", NUMBERS)
def test_a_property_that_is_no_number_is_named(
    lake: SqlCatalog, caplog: pytest.LogCaptureFixture, key: str, value: str
) -> None:
    """A command that reads it ends with one line that has the property and its value, before it changes the table."""
    table = make_table(lake)
    for number in range(2):
        table.append(arrow([number]))
    with table.transaction() as change:
        change.set_properties({key: value})
    told = list[str]()
    for command in COMMANDS:
        before = lake.load_table("db.t").metadata
        try:
            command(icesize.open(None, "lake.db.t", catalog=lake, policy={"max-small-files": 1}))
        except IcesizeError as error:
            told.append(str(error))
            assert lake.load_table("db.t").metadata == before
    assert [each for each in told if key.removeprefix("write.") not in each or value not in each or "\n" in each] == []
    assert told or key.startswith("write.parquet.") or key == "commit.manifest.min-count-to-merge"
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
