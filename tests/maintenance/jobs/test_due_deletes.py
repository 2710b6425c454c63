"""Deletes that are due: what `compact`, `after_batch` and `maintain` rewrite for them, and what they say of others."""

from __future__ import annotations

import json

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

import icesize
from icesize.environment import Environment
from icesize.sized_table import SizedTable
from tests.support.delete_files import delete_equal, live_deletes
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import append, check, ids_of, layout_of, make_table, small_files

WELL_SIZED = {"target_file_size_bytes": 1, "small_file_limit_bytes": 1}
"""A policy for which every file is well sized."""


def opened(lake: SqlCatalog, **policy: object) -> SizedTable:
    """An hour after the newest commit: no partition is being changed by others."""
    environment = Environment(now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + 3_600_000)
    return icesize.open(None, "db.t", catalog=lake, policy={**WELL_SIZED, **policy}, environment=environment)


def outdated(lake: SqlCatalog, kinds: str = "a", times: int = 7) -> Table:
    """A file of ten rows in each partition, and so many equality deletes of nothing in each."""
    for n, kind in enumerate(kinds):
        append(lake, range(10 * n, 10 * n + 10), kind)
    for kind in kinds:
        [file] = small_files(lake.load_table("db.t"), kind)
        for number in range(times):
            delete_ids(lake, file, [1_000 + number])
    return lake.load_table("db.t")


def files(table: Table) -> int:
    return layout_of(table).files


def test_a_well_sized_file_is_rewritten_without_its_deleted_rows(lake: SqlCatalog) -> None:
    """Three of ten rows are enough by default; the second plan is empty, and the delete file is gone."""
    make_table(lake)
    [file] = small_files(append(lake, range(10)))
    delete_rows(lake, file, [0, 1])
    table = opened(lake)
    assert table.plan().groups == ()
    assert table.compact().snapshot_ids == ()
    delete_rows(lake, file, [2])
    plan = table.plan()
    assert (plan.rows_freed, plan.delete_files_freed) == (3, 2)
    assert str(plan).splitlines()[0].endswith(", 3 deleted rows and 2 delete files to remove")
    report = table.compact()
    assert (report.files_removed, report.files_added) == (1, 1)
    after = lake.load_table("db.t")
    check(after)
    assert ids_of(lake) == list(range(3, 10))
    assert live_deletes(after) == []
    assert table.plan().groups == ()


def test_what_is_left_of_large_files_is_merged(lake: SqlCatalog) -> None:
    """Two files that are nearly empty by their deletes become one, though each is larger than the limit."""
    make_table(lake)
    append(lake, range(5_000))
    table = append(lake, range(5_000, 10_000))
    size = min(file.size_bytes for file in small_files(table))
    for file in small_files(table):
        table = delete_rows(lake, file, range(4_900))
    report = icesize.open(None, "db.t", catalog=lake, policy={"target_file_size_bytes": size}).compact()
    assert (report.files_removed, report.files_added) == (2, 1)
    assert ids_of(lake) == [*range(4_900, 5_000), *range(9_900, 10_000)]


@pytest.mark.parametrize("call", ["compact", "after_batch", "maintain"])
def test_files_with_many_delete_files_are_rewritten(lake: SqlCatalog, call: str) -> None:
    """More than `max-delete-files` to be read with a file are too many, in every call that merges; after it no file of
    the partition has any."""
    make_table(lake)
    outdated(lake, times=6)
    table = opened(lake)
    assert table.plan().groups == ()
    delete_ids(lake, small_files(lake.load_table("db.t"))[0], [3])
    done = getattr(table, call)()
    report = done.merges[0] if call == "maintain" else done
    assert (report.files_removed, report.files_added, report.delete_files_max) == (1, 1, 0)
    after = lake.load_table("db.t")
    check(after)
    assert ids_of(lake) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [facts.with_deletes for facts in layout_of(after).partitions.values()] == [[]]


def test_an_inline_merge_names_what_it_has_to_leave(lake: SqlCatalog) -> None:
    """A budget that pays for one of two partitions leaves the other one, which the report names; the next call has
    it."""
    make_table(lake)
    outdated(lake, "ab")
    most_bytes = max(file.size_bytes for file in small_files(lake.load_table("db.t")))
    too_small = opened(lake, merge_budget_bytes=most_bytes // 2).after_batch()
    assert (too_small.snapshot_ids, too_small.skipped) == ((), {"OVER_BUDGET": 2})
    assert any("2 merges cannot be done as a whole within" in note for note in too_small.notes)
    table = opened(lake, merge_budget_bytes=most_bytes)
    first = table.after_batch()
    assert (first.files_removed, first.skipped) == (1, {"OVER_BUDGET": 1})
    [note] = [note for note in first.notes if "max-delete-files" in note]
    assert note.startswith(
        "1 partition with files that are read with more than 'max-delete-files' (6) delete files: 7 in"
    )
    assert first.delete_files_max == 0, "of the partition that was touched"
    second = table.after_batch()
    assert (second.files_removed, second.skipped) == (1, {"WELL_SIZED": 1})
    assert table.after_batch().snapshot_ids == ()


def test_deletes_of_every_partition_are_seen(lake: SqlCatalog) -> None:
    """Equality deletes of an unpartitioned table hit all of its files that are older, whatever their size."""
    make_table(lake, {})
    append(lake, [1, 2])
    append(lake, [3])
    for n in range(7):
        delete_equal(lake.load_table("db.t"), ["id"], [[100 + n]])
    append(lake, [4])
    table = opened(lake)
    [one, other] = table.plan().groups
    assert {len(group.inputs) for group in (one, other)} == {1}
    table.compact()
    assert ids_of(lake) == [1, 2, 3, 4]
    assert table.plan().groups == ()


def test_an_inspection_tells_of_deletes(lake: SqlCatalog) -> None:
    """As text, as JSON and as advice, of files of any size."""
    make_table(lake)
    outdated(lake)
    append(lake, [100], "b")
    seen = opened(lake).inspect()
    assert (seen.deletes.files, seen.deletes.files_due, seen.deletes.delete_files_max) == (1, 1, 7)
    assert seen.deletes.delete_files_per_file == 3.5
    told = json.loads(json.dumps(seen.to_dict()))["deletes"]
    assert (told["worst"], told["worst_per_file"]) == ({"kind": "a"}, 7.0)
    assert told["histogram"] == [{"at_least": 4, "files": 1}]
    assert any("run `icesize compact`" in advice.sentence for advice in seen.advice)
    assert opened(lake, apply_deletes=False).inspect().deletes.files_due == 0


def test_deletes_that_must_not_be_applied_make_nothing_due(lake: SqlCatalog) -> None:
    """With `apply-deletes` false well-sized files stay as they are, and nobody is told of them."""
    make_table(lake)
    outdated(lake)
    report = opened(lake, apply_deletes=False).compact()
    assert (report.snapshot_ids, report.skipped, report.notes) == ((), {"WELL_SIZED": 1}, ())
