"""Manifest lists are read as PyIceberg reads them, and a damaged one is never a shorter one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from icesize.errors import TableError
from icesize.table.manifests.avro_container import ContainerWriter
from icesize.table.manifests.avro_values import write_bytes, write_long
from icesize.table.manifests.manifest_lists import manifests_in, read_list
from tests.support.row_deletes import delete_ids
from tests.support.tables import append, compact, local, small_files, two_files


def facts(manifests: list[ManifestFile]) -> list[tuple[Any, ...]]:
    rows = [[manifest[place] for place in range(15)] for manifest in manifests]
    return [(*row[:13], [[*map(each.__getitem__, range(4))] for each in row[13] or ()], row[14]) for row in rows]


def newest_list(table: Table) -> str:
    head = table.metadata.current_snapshot()
    assert head is not None
    return head.manifest_list


@pytest.mark.parametrize("version", ["1", "2"])
def test_the_same_as_pyiceberg(lake: SqlCatalog, version: str) -> None:
    """Every field is, with the summaries of partitions, in the lists of both format versions."""
    # manifests of several partitions have two bounds that differ
    table = two_files(lake, properties={"format-version": version, "commit.manifest.min-count-to-merge": "2"})
    if version == "2":
        delete_ids(lake, small_files(table)[1], [99])
    append(lake, [3], "b")
    append(lake, [4], "b")
    table = compact(lake, "b") if version == "2" else lake.load_table("db.t")
    assert table.metadata.format_version == int(version)
    contents = set()
    for snapshot in table.metadata.snapshots:
        found = list(read_list(table.io, snapshot.manifest_list, table.metadata.specs()))
        assert facts(found) == facts(snapshot.manifests(table.io))
        contents |= {manifest.content for manifest in found}
    assert contents == ({ManifestContent.DATA, ManifestContent.DELETES} if version == "2" else {ManifestContent.DATA})


def test_the_path_need_not_be_first(tmp_path: Path) -> None:
    """Fields are found by their ids, in any order, with unknown ones between them."""
    schema = {
        "type": "record",
        "name": "manifest_file",
        "fields": [
            {"name": "length", "type": "long", "field-id": 501},
            {"name": "odd", "type": ["null", "string"], "field-id": 9_999},
            {"name": "path", "type": "string", "field-id": 500},
            {"name": "new", "type": "bytes", "field-id": 10_000},
            {"name": "spec", "type": "int", "field-id": 502},
            {"name": "by", "type": ["null", "long"], "field-id": 503},
        ],
    }
    writer = ContainerWriter(schema, {})
    for number in range(3):
        record = bytearray()
        write_long(record, 70 + number)
        write_long(record, 0)
        write_bytes(record, f"m{number}".encode())
        write_bytes(record, b"xyz")
        write_long(record, 0)
        write_long(record, 1)
        write_long(record, 5 + number)
        writer.add(bytes(record))
    (tmp_path / "list.avro").write_bytes(writer.finish())
    found = list(read_list(PyArrowFileIO(), f"{tmp_path}/list.avro", {}))
    assert [(m.manifest_path, m.manifest_length, m.added_snapshot_id) for m in found] == [
        (f"m{number}", 70 + number, 5 + number) for number in range(3)
    ]
    assert [(m.content, m.sequence_number) for m in found] == [(ManifestContent.DATA, 0)] * 3


@pytest.mark.parametrize("keep", [0, 3, 50, -1, -20])
def test_a_damaged_list_is_said_to_be(lake: SqlCatalog, keep: int) -> None:
    """A list that is cut off names too few manifests: an error, never a shorter answer."""
    table = two_files(lake)
    location = newest_list(table)
    data = local(location).read_bytes()
    local(location).write_bytes(data[:keep])
    with pytest.raises(TableError, match=f"Cannot read {location}"):
        list(read_list(table.io, location, table.metadata.specs()))


def test_a_list_that_ends_early_is_never_a_shorter_one(lake: SqlCatalog) -> None:
    """A list that is cut off anywhere is refused: PyIceberg reads past its end, or returns fewer manifests."""
    two_files(lake)
    table = append(lake, [3], "b")
    whole = local(newest_list(table)).read_bytes()
    assert len(manifests_in(table.current_snapshot(), table.io, table.metadata.specs())) == 3
    head = whole.index(b"\x06", whole.rindex(b"avro.codec"))
    for cut in (*range(head + 24, len(whole), 7), len(whole) - 1):
        local(newest_list(table)).write_bytes(whole[:cut])
        with pytest.raises(TableError, match="cut off or damaged"):
            manifests_in(table.current_snapshot(), table.io, table.metadata.specs())


def test_a_missing_list_is_missing(lake: SqlCatalog) -> None:
    """What the FileIO raises is passed on: callers may know why it is gone."""
    table = two_files(lake)
    local(newest_list(table)).unlink()
    with pytest.raises(FileNotFoundError):
        list(read_list(table.io, newest_list(table), table.metadata.specs()))
