"""Which files have deletes pending, as Iceberg's scan planning defines it."""

from __future__ import annotations

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.table.manifests.delete_index import DeleteIndex, delete_index
from icesize.table.manifests.manifest_lists import manifests_of
from icesize.table.manifests.store import ManifestStore
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import CountingIO, append, make_table, small_files

PART = PartitionKey(0, ("a",))
POSITION, EQUALITY = 1, 2


def delete(content: int, number: int, **paths: str | None) -> DeleteFile:
    ids = (1,) if content == EQUALITY else ()
    return DeleteFile("d", 1, 1, PART, number, equality_ids=ids, **paths)  # type: ignore[arg-type]


def index(*deletes: DeleteFile) -> DeleteIndex:
    return DeleteIndex({PART: list(deletes)})


def hits(deletes: DeleteIndex, data: FileFact) -> bool:
    """Whether some delete hits rows of a file, or may."""
    return deletes.noted(data).delete_files > 0


def file(number: int, path: str = "file:///t/a.parquet", partition: PartitionKey = PART) -> FileFact:
    return FileFact(path, 10, 1, partition, number)


@pytest.mark.parametrize(("content", "hit"), [(POSITION, [True, True, False]), (EQUALITY, [True, False, False])])
def test_sequence_numbers_decide(content: int, hit: list[bool]) -> None:
    """Position deletes hit files up to their own number, equality deletes only older ones."""
    deletes = index(delete(content, 5))
    assert [hits(deletes, file(n)) for n in (4, 5, 6)] == hit


def test_another_partition_is_not_hit() -> None:
    """A delete of one partition leaves files of another, and of another spec's, alone."""
    deletes = index(delete(POSITION, 5), delete(EQUALITY, 5))
    assert not hits(deletes, file(1, partition=PartitionKey(0, ("b",))))
    assert not hits(deletes, file(1, partition=PartitionKey(1, ("a",))))


@pytest.mark.parametrize(
    ("bounds", "hit"),
    [
        ({"referenced_path": "file:///t/a.parquet"}, True),
        ({"referenced_path": "file:///t/b.parquet"}, False),
        ({"referenced_path": "file:/t/a.parquet"}, True),
        ({"referenced_path": "/t/a.parquet"}, True),
        ({"lowest_path": "file:///t/a.parquet", "highest_path": "file:///t/a.parquet"}, True),
        ({"lowest_path": "file:///t/b", "highest_path": "file:///t/c"}, False),
        ({"lowest_path": "file:///t/a", "highest_path": "file:///t/b"}, True),
        ({"lowest_path": "file:///t/A", "highest_path": "file:///t/Z"}, False),
        ({"lowest_path": "file:/t/a", "highest_path": "file:/t/b"}, True),
        ({"lowest_path": "file:///u/x", "highest_path": "file:/s/y"}, True),
        ({"lowest_path": "file:///t/b"}, True),
        ({}, True),
    ],
)
def test_paths_narrow_a_position_delete(bounds: dict[str, str], hit: bool) -> None:
    """A named file or bounds of paths rule others out, however local paths are spelt; doubt counts as a hit."""
    assert hits(index(delete(POSITION, 5, **bounds)), file(1)) is hit


@pytest.mark.parametrize(("content", "hit"), [(EQUALITY, True), (POSITION, False)])
def test_equality_deletes_of_an_unpartitioned_spec_apply_everywhere(content: int, hit: bool) -> None:
    """Deletes written without a partition reach every partition when they are by equality."""
    deletes = DeleteIndex(
        {PartitionKey(1, ()): [delete(content, 5)]}, [delete(content, 5)] if content == EQUALITY else []
    )
    assert hits(deletes, file(1)) is hit


def test_deletes_are_read_from_a_table(lake: SqlCatalog) -> None:
    """Position and equality deletes of a real table mark exactly the files they are about."""
    make_table(lake)
    append(lake, [1])
    append(lake, [2])
    table = append(lake, [3], "b")
    first, second, other = small_files(table)
    table = delete_rows(lake, first)
    assert [(f.delete_files, f.deleted_rows) for f in small_files(table)] == [(1, 1), (0, 0), (0, 0)]
    table = delete_ids(lake, second, [99])
    assert [(f.delete_files, f.deleted_rows) for f in small_files(table)] == [(2, 1), (1, 0), (0, 0)]
    table = append(lake, [4])
    assert [f.delete_files for f in small_files(table)][2:] == [0, 0]
    head = table.metadata.current_snapshot()
    assert head is not None
    manifests = [m for m in head.manifests(table.io) if m.content == ManifestContent.DELETES]
    specs = table.metadata.specs()
    assert hits(DeleteIndex.of(ManifestStore(), table.io, manifests, specs, above=4), second)
    assert not hits(DeleteIndex.of(ManifestStore(), table.io, manifests, specs, above=5), second)
    assert not hits(DeleteIndex.of(ManifestStore(), table.io, manifests, specs), other)


def test_equality_deletes_without_partition_values_are_read_as_global(lake: SqlCatalog) -> None:
    """In a real unpartitioned table an equality delete reaches all files, also those of a later spec."""
    make_table(lake, {})
    table = append(lake, [1])
    (old,) = small_files(table)
    with table.update_spec() as update:
        update.add_identity("kind")
    append(lake, [2], "b")
    table = delete_ids(lake, old, [2])
    found = {f.partition.values: (f.delete_files, f.obstacle) for f in small_files(table)}
    assert found == {(): (1, None), ("b",): (1, None)}


def test_equality_deletes_of_the_partition_of_null_stay_there(lake: SqlCatalog) -> None:
    """A partition whose values are all NULL is one of many: only a spec without fields means the whole table."""
    make_table(lake)
    null = FileFact("", 0, 0, PartitionKey(0, (None,)))
    append(lake, [1])
    assert [f.delete_files for f in small_files(delete_ids(lake, null, [1]))] == [0]


def test_delete_manifests_are_read_once(lake: SqlCatalog) -> None:
    """As long as they are listed, and the index is made once of the same ones."""
    make_table(lake)
    first = small_files(append(lake, [1, 2]))[0]
    store, io = ManifestStore(), CountingIO()

    def read(table: Table) -> DeleteIndex:
        manifests = manifests_of(table.metadata.current_snapshot(), table.io, table.metadata.specs()).deletes
        return delete_index(store, io, manifests, table.metadata.specs())

    one = read(delete_rows(lake, first))
    assert read(lake.load_table("db.t")) is one
    two = read(delete_ids(lake, first, [9]))
    assert [len(index.of_partition(first.partition).files) for index in (one, two)] == [1, 2]
    assert len(io.manifests) == 2
    [*_, older, _] = lake.load_table("db.t").metadata.snapshots
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(older.snapshot_id).commit()
    assert len(read(lake.load_table("db.t")).of_partition(first.partition).files) == 1
    lake.load_table("db.t").manage_snapshots().set_current_snapshot(older.parent_snapshot_id).commit()
    assert not read(lake.load_table("db.t"))
    assert len(io.manifests) == 2
