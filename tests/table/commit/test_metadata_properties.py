"""The table's properties for metadata files are obeyed in catalogs in which icesize's side writes these files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from tests.support.row_deletes import delete_rows
from tests.support.tables import append, landed, local, make_table, small_files
from tests.support.v3_tables import as_v3

DELETED = {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "3"}


def metadata_files(folder: str) -> list[Path]:
    return sorted(local(folder).glob("metadata/*.metadata.json"))


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("properties", "most"), [(DELETED, 4), ({**DELETED, next(iter(DELETED)): "false"}, 100)])
def test_older_metadata_files_go_if_the_table_wants_that(
    lake: SqlCatalog, version: int, properties: dict[str, str], most: int
) -> None:
    """As many earlier files stay as the table keeps in its log, and the rows stay as they are."""
    table = make_table(lake, properties=properties)
    if version == 3:
        as_v3(lake)
    for number in range(8):
        table = append(lake, [number])
    assert len(table.metadata.metadata_log) == 3
    assert (len(metadata_files(table.location())) > 8) == (most == 100)
    landed(lake, list(range(8)))


@pytest.mark.parametrize("version", [2, 3])
def test_metadata_files_are_compressed_if_the_table_wants_that(lake: SqlCatalog, version: int) -> None:
    """The file has Java's name for it, and later commits of any writer read it."""
    make_table(lake, properties={"write.metadata.compression-codec": "gzip"})
    if version == 3:
        as_v3(lake)
    append(lake, [1])
    table = append(lake, [2, 3])
    assert table.metadata_location.endswith(".gz.metadata.json")
    document = json.loads(gzip.decompress(local(table.metadata_location).read_bytes()))
    assert document["current-snapshot-id"] == table.metadata.current_snapshot_id
    delete_rows(lake, small_files(table)[0])
    landed(lake, [2, 3])
