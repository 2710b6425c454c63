"""New rows that end up inside older small files: what one commit of them leaves, whatever others delete meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.update import AddSnapshotUpdate, AssertRefSnapshotId

from icesize.parquet.files.data_file import NewDataFile
from icesize.planning.files import FileFact
from icesize.table.commit.loaded import Staged
from icesize.table.commit.protocol import CommitRequest
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.commit.snapshot_builder import SnapshotBuilder, move_ref
from tests.support.parquet_files import fact
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    NOW_MS,
    age_of,
    append,
    check,
    data_files_on_disk,
    expire,
    ids_of,
    landed,
    layout_of,
    live_paths,
    make_table,
    merged,
    merges,
    metadata_files_on_disk,
    new_files,
    operations,
    overwritten,
    referenced_metadata,
    request_on,
    run,
    small_files,
    two_files,
    with_run_id,
    write,
)


def absorbing(table: Table, new: Iterable[NewDataFile], old: Sequence[FileFact] = (), batch: int = 1) -> CommitRequest:
    """New files, and one merge of them with older ones."""
    new = list(new)
    return request_on(table, new, [merged(table, [*old, *map(fact, new)])], batch=batch)


def absorb_all(table: Table, ids: Iterable[int]) -> CommitRequest:
    """New rows and everything small of partition `a` in one file."""
    return absorbing(table, [write(table, ids)], small_files(table, "a"))


def deletes_pending(catalog: Catalog) -> dict[int, bool]:
    """By rows of a live file, whether a delete applies to it; PyIceberg itself cannot read equality deletes."""
    return {f.rows: f.delete_files > 0 for f in small_files(catalog.load_table("db.t"))}


def test_one_file_is_left_and_rows_are_exact(catalog: Catalog) -> None:
    """Two older files and the new one become one, by an append and a replace of one commit."""
    before = two_files(catalog)
    wanted = absorb_all(before, [3])
    outcome = run(catalog, wanted, before)
    table = landed(catalog, [1, 2, 3])
    assert outcome.operations == ("append", "replace")
    assert live_paths(table) == [merges(wanted)[0].files[0].path]
    first, second = table.metadata.snapshots[-2:]
    assert first.summary is not None
    assert second.summary is not None
    assert first.summary["total-data-files"] == "3"
    facts = second.summary.additional_properties
    new, output = new_files(wanted)[0].size_bytes, merges(wanted)[0].files[0].size_bytes
    olds = sum(f.size_bytes for f in small_files(before))
    assert {k: v for k, v in facts.items() if "files" in k or "records" in k} == {
        "added-data-files": "1",
        "added-records": "3",
        "added-files-size": str(output),
        "deleted-data-files": "3",
        "deleted-records": "3",
        "removed-files-size": str(olds + new),
        "total-data-files": "1",
        "total-delete-files": "0",
        "total-records": "3",
        "total-files-size": str(output),
    }
    assert table.scan(snapshot_id=first.snapshot_id).to_arrow().num_rows == 3


@pytest.mark.parametrize("version", ["1", "2"])
def test_batch_after_batch_goes_into_one_file(lake: SqlCatalog, version: str) -> None:
    """Five batches with one slot: one file after each, from the first one on, in both format versions."""
    make_table(lake, properties={"format-version": version})
    for i in range(5):
        table = lake.load_table("db.t")
        outcome = run(lake, absorbing(table, [write(table, [i])], small_files(table), batch=i), table)
        assert outcome.operations == ("append", "replace")
        assert len(live_paths(landed(lake, list(range(i + 1))))) == 1
    assert operations(lake.load_table("db.t")) == ["append", "replace"] * 5


def test_the_merged_file_is_as_young_as_its_newest_rows(catalog: Catalog) -> None:
    """Its number is that of the append in the same commit: the partition that gets rows does not look cold."""
    two_files(catalog)
    for i in range(3):
        append(catalog, [10 + i], "b")
    before = catalog.load_table("db.t")
    run(catalog, absorb_all(before, [3]), before)
    table = landed(catalog, [1, 2, 3, 10, 11, 12])
    (file,) = small_files(table, "a")
    assert file.sequence_number == table.metadata.snapshots[-2].sequence_number == 6
    assert age_of(layout_of(table), file.partition) == 0


def test_other_merges_of_the_commit_keep_their_numbers(catalog: Catalog) -> None:
    """Only where new rows went: a merge of old files in another partition does not look new."""
    two_files(catalog)
    append(catalog, [5], "b")
    before = append(catalog, [6], "b")
    new = write(before, [3])
    groups = [merged(before, [*small_files(before, "a"), fact(new)]), merged(before, small_files(before, "b"))]
    run(catalog, request_on(before, [new], groups, batch=1), before)
    table = landed(catalog, [1, 2, 3, 5, 6])
    assert [f.sequence_number for f in small_files(table, "b")] == [4]
    assert [f.sequence_number for f in small_files(table, "a")] == [5]


def test_pending_equality_deletes_do_not_reach_new_rows(catalog: Catalog) -> None:
    """New files only are put together in a partition where a delete is pending: their rows stay."""
    before = two_files(catalog)
    table = delete_ids(catalog, small_files(before)[0], [1, 7])
    run(catalog, absorbing(table, [write(table, [7]), write(table, [8, 9])]), table)
    check(catalog.load_table("db.t"))
    assert [(f.rows, f.delete_files) for f in small_files(catalog.load_table("db.t"))] == [(1, 1), (1, 1), (3, 0)]


def test_an_equality_delete_landing_between_drops_the_merge_of_older_files(catalog: Catalog) -> None:
    """It hits the older input file, so both stay apart: the old rows are deleted, the new ones are not."""
    make_table(catalog)
    before = append(catalog, [1, 2])
    wanted = absorb_all(before, [1, 3, 4])
    delete_ids(catalog, small_files(before)[0], [1])
    outcome = run(catalog, wanted, before)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == ("merge of 2 files dropped: another writer deleted rows of it",)
    check(catalog.load_table("db.t"))
    assert deletes_pending(catalog) == {2: True, 3: False}
    assert not data_files_on_disk(before) & {f.path for f in merges(wanted)[0].files}


def test_an_equality_delete_landing_between_leaves_new_files_alone(catalog: Catalog) -> None:
    """Nobody can have deleted rows that were not visible: the merge of new files lands, out of the delete's reach."""
    make_table(catalog)
    before = append(catalog, [1, 2])
    wanted = absorbing(before, [write(before, [1]), write(before, [3, 4])])
    delete_ids(catalog, small_files(before)[0], [1])
    outcome = run(catalog, wanted, before)
    assert (outcome.operations, outcome.conflicts) == (("append", "replace"), ())
    check(catalog.load_table("db.t"))
    assert deletes_pending(catalog) == {2: True, 3: False}


def test_an_equality_delete_that_lands_later_reaches_all_rows(catalog: Catalog) -> None:
    """Old and new rows of the merged file are deletable by whoever comes after the commit."""
    before = two_files(catalog)
    run(catalog, absorb_all(before, [3]), before)
    delete_ids(catalog, small_files(before)[0], [1, 3])
    assert deletes_pending(catalog) == {3: True}


def test_a_position_delete_landing_between_drops_the_merge(catalog: Catalog) -> None:
    """Row 1 was deleted while it was being merged: it stays deleted, and the new row is there."""
    before = two_files(catalog)
    wanted = absorb_all(before, [3])
    delete_rows(catalog, small_files(before)[0])
    assert run(catalog, wanted, before).operations == ("append",)
    landed(catalog, [2, 3])


def test_a_rival_append_costs_an_attempt_and_moves_the_number(mini: MiniRest) -> None:
    """Staged again on the rival's head, the merged file gets the number of the append that lands."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = absorb_all(before, [3])

    def rival() -> None:
        append(mini.catalog("rival"), [9], "b")

    mini.before_swap = rival
    assert run(catalog, wanted, before).operations == ("append", "replace")
    table = landed(catalog, [1, 2, 3, 9])
    assert [f.sequence_number for f in small_files(table, "a")] == [4]
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_an_expired_planning_base_costs_no_merge(catalog: Catalog) -> None:
    """Older input files are as they were; what is new depends on no snapshot."""
    before = two_files(catalog)
    in_a, in_b = write(before, [3]), write(before, [4], "b")
    groups = [merged(before, [*small_files(before, "a"), fact(in_a)]), merged(before, [fact(in_b)])]
    wanted = request_on(before, [in_a, in_b], groups, batch=1)
    expire(append(catalog, [9], "c"))
    outcome = run(catalog, wanted, before)
    assert (outcome.merged, outcome.conflicts) == (tuple(groups), ())
    landed(catalog, [1, 2, 3, 4, 9])


def test_the_first_batch_of_an_empty_table_may_lose_to_another_writer(catalog: Catalog) -> None:
    """Planned on a table without snapshots: a rival's first commit costs neither rows nor the merge of new files."""
    table = make_table(catalog)
    wanted = absorbing(table, [write(table, [1]), write(table, [2])])
    append(catalog, [9], "b")
    assert run(catalog, wanted, table).operations == ("append", "replace")
    assert len(live_paths(landed(catalog, [1, 2, 9]))) == 2


def test_a_replayed_batch_is_absorbed_once(catalog: Catalog) -> None:
    """A twin of the batch finds it in the ledger, and its files go."""
    before = two_files(catalog)
    wanted, twin = absorb_all(before, [3]), with_run_id(absorb_all(before, [3]))
    run(catalog, wanted, before)
    assert run(catalog, twin, before).already_committed
    table = landed(catalog, [1, 2, 3])
    assert not data_files_on_disk(table) & twin.paths()


def commit_overwrite(catalog: Catalog, inputs: Sequence[str], added: Sequence[NewDataFile]) -> Table:
    """One OVERWRITE snapshot, swapped in without the protocol around it."""
    committer = PyIcebergCommitter(catalog, catalog.load_table("db.t"), lambda: NOW_MS)
    loaded = committer.load()
    builder = SnapshotBuilder(loaded.table, NOW_MS)
    snapshot = overwritten(builder, inputs, added, summary={"icesize.run-id": "one"})
    staged = Staged(
        requirements=(AssertRefSnapshotId(ref=MAIN_BRANCH, snapshot_id=loaded.head.snapshot_id),),
        updates=(AddSnapshotUpdate(snapshot=snapshot), move_ref(loaded.table.metadata, "main", snapshot.snapshot_id)),
        written=tuple(builder.written),
    )
    committer.commit(loaded, staged)
    return catalog.load_table("db.t")


def test_new_and_older_rows_in_one_overwrite(catalog: Catalog) -> None:
    """Rows written once: the older file goes and the file with its rows and new ones comes, in one snapshot."""
    before = two_files(catalog)
    inputs = small_files(before)
    rows = write(before, [1, 2, 3])
    table = commit_overwrite(catalog, [v.path for v in inputs], [rows])
    check(table)
    assert ids_of(catalog) == [1, 2, 3]
    assert live_paths(table) == [rows.path]
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert operations(table) == ["append", "append", "overwrite"]
    counted = {k: head.summary[k] for k in ("added-data-files", "added-records", "deleted-data-files", "total-records")}
    assert counted == {
        "added-data-files": "1",
        "added-records": "3",
        "deleted-data-files": "2",
        "total-records": "3",
    }
    assert [f.sequence_number for f in small_files(table)] == [3]


def test_an_overwrite_of_new_rows_only_is_out_of_reach_of_older_deletes(catalog: Catalog) -> None:
    """Whatever number a file came with, the rows that an overwrite adds are as new as its snapshot."""
    before = two_files(catalog)
    table = delete_ids(catalog, small_files(before)[0], [3])
    new = merged(table, [fact(write(table, [3, 4])), fact(write(table, [5]))]).files
    assert [f.sequence_number for f in new] == [0]
    commit_overwrite(catalog, [], new)
    assert deletes_pending(catalog) == {1: True, 3: False}
