"""Manifests and lists as other writers make them: fields are found by their ids, whatever their order and number."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

import icesize
from icesize.errors import TableError
from icesize.planning.files import PartitionKey
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.manifests.entries import read_entries
from icesize.table.manifests.file_columns import read_facts, read_metrics
from icesize.table.manifests.manifest_lists import manifests_in, manifests_of
from tests.support.delete_files import delete_equal
from tests.support.foreign_metadata import Shape, as_written_by
from tests.support.tables import NOW_MS, append, ids_of, make_table, make_visible, write

BY = {"kind": "identity", "id": "bucket[4]"}
SWAPPED = Shape(partition_order=lambda fields: [*reversed(fields)])
FEWER = Shape(lacks=frozenset({1001}))
MORE = Shape(more_partitions={1007: ("long", 7)}, partition_order=lambda fields: [*reversed(fields)])


def two_fields(lake: SqlCatalog, files: int = 3) -> Table:
    """Files of one partition, and an equality delete that hits the first row."""
    table = make_table(lake, BY)
    made = [replace(write(table, [number * 4]), partition=PartitionKey(0, ("a", 0))) for number in range(min(files, 3))]
    more = [replace(made[-1], path=f"{made[-1].path}-{number}") for number in range(files - 3)]
    make_visible(lake, table, [Append((*made, *more)).stage(SnapshotBuilder(table, NOW_MS), {})])
    return delete_equal(lake.load_table("db.t"), ["id"], [[0]], PartitionKey(0, ("a", 0)))


@pytest.mark.parametrize("files", [3, 600])
@pytest.mark.parametrize(
    ("shape", "values"), [(SWAPPED, ("a", 0)), (FEWER, ("a", None)), (MORE, ("a", 0))], ids=["swapped", "fewer", "more"]
)
def test_partition_values_have_the_order_of_the_spec(
    lake: SqlCatalog, shape: Shape, values: tuple[object, ...], files: int
) -> None:
    """Each value is that of its field, read one by one and at once; a field that is not stored is NULL."""
    two_fields(lake, files)
    table = as_written_by(lake, shape)
    listed = manifests_in(table.current_snapshot(), table.io, table.metadata.specs())
    assert {each.content for each in listed} == {ManifestContent.DATA, ManifestContent.DELETES}
    for manifest in listed:
        assert {entry.values for entry in read_entries(table.io, manifest)} == {values}
        assert read_facts(table.io, manifest).keys == (PartitionKey(0, values),)
        assert read_facts(table.io, manifest, changes_only=True).keys == (PartitionKey(0, values),)


@pytest.mark.parametrize("shape", [SWAPPED, MORE], ids=["swapped", "more"])
def test_entries_are_copied_in_the_order_of_the_spec(lake: SqlCatalog, shape: Shape) -> None:
    """Readers that take the values by position find the rows, too, once icesize has written the manifest."""
    two_fields(lake)
    as_written_by(lake, shape)
    sized = icesize.open(None, "lake.db.t", catalog=lake)
    assert sized.verify().findings == ()
    assert sized.compact(where="kind = 'a'").files_added == 1
    assert ids_of(lake) == [4, 8]
    (task,) = lake.load_table("db.t").scan("kind = 'a'").plan_files()
    assert [task.file.partition[place] for place in (0, 1)] == ["a", 0]
    assert sized.verify().findings == ()


def test_fields_without_ids_are_refused(lake: SqlCatalog) -> None:
    """The message names the file and what it lacks."""
    two_fields(lake)
    as_written_by(lake, Shape(has_field_ids=False))
    sized = icesize.open(None, "lake.db.t", catalog=lake)
    with pytest.raises(
        TableError, match=r"Cannot read .*foreign-1-m\.avro: the fields of its schema have no field ids"
    ):
        sized.compact()
    findings = sized.verify().findings
    assert {(each.rule, each.path.rpartition("-")[2]) for each in findings} == {("damaged metadata", "m.avro")}
    assert {each.advice.partition(",")[0] for each in findings} == {"The file is whole"}  # no backup has another one


def test_a_list_without_counts_is_read_and_gets_them(lake: SqlCatalog) -> None:
    """Lists of format v1 need no counts: after an upgrade, the next commit counts the files of kept manifests."""
    table = two_fields(lake)
    as_written_by(lake, Shape(), Shape(lacks=frozenset({504, 505, 506, 512, 513, 514})))
    append(lake, [20])
    table = lake.load_table("db.t")
    counts = [
        each.added_rows_count for each in manifests_in(table.current_snapshot(), table.io, table.metadata.specs())
    ]
    assert sorted(counts, key=str) == [1, 1, 3]
    assert icesize.open(None, "lake.db.t", catalog=lake).verify().findings == ()


def test_new_files_are_not_described_by_a_schema_that_does_not_fit_them(lake: SqlCatalog) -> None:
    """Statistics of a merged file are kept where other writers have none, and unknown fields get no null."""
    two_fields(lake)
    as_written_by(lake, Shape(lacks=frozenset({108, 109, 110, 137, 125, 128, 132, 140}), unknown=3))
    sized = icesize.open(None, "lake.db.t", catalog=lake)
    assert sized.compact().files_added == 1
    table = lake.load_table("db.t")
    data = manifests_of(table.current_snapshot(), table.io, table.metadata.specs()).data
    (metrics,) = (metrics for manifest in data for _, metrics in read_metrics(table.io, manifest.manifest_path))
    assert (metrics.value_counts[1], len(metrics.lower_bounds)) == (2, 3)


def test_a_parent_that_is_null_is_none(lake: SqlCatalog) -> None:
    """Some libraries write null for the parent of a first snapshot; Java's refuses it, and icesize reads it as none."""

    def change(document: dict[str, Any]) -> None:
        document["snapshots"][0]["parent-snapshot-id"] = None

    two_fields(lake)
    as_written_by(lake, Shape(), document=change)
    sized = icesize.open(None, "lake.db.t", catalog=lake)
    assert sized.compact().files_added == 1
    assert (ids_of(lake), sized.verify().findings) == ([4, 8], ())
