"""Commits in a catalog that shows only the newest snapshot, without parent and log, as Nessie does."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

import icesize
from icesize.errors import CommitStateUnknown, TableError
from icesize.planning.files import FileFact
from icesize.table.records.recent_commits import KEY, MOST_COMMITS, recent_commits
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    FakeTime,
    append,
    batch,
    compact,
    data_files_on_disk,
    expire,
    ids_of,
    live_paths,
    merged,
    request_on,
    run,
    small_files,
    theirs,
    two_files,
    write,
)


@pytest.fixture
def hidden(mini: MiniRest) -> MiniRest:
    """A server that hides the history of its tables."""
    mini.hides_history = True
    return mini


def landed(catalog: Catalog, rows: list[int]) -> Table:
    """The table, with exactly these rows in files that are on the disk."""
    table = catalog.load_table("db.t")
    assert ids_of(catalog) == rows
    assert set(live_paths(table)) <= data_files_on_disk(table)
    return table


@pytest.mark.parametrize("number", [None, 7])
def test_a_lost_answer_is_found_after_the_rows_were_merged_away(hidden: MiniRest, number: int | None) -> None:
    """The commit lands without an answer, and another process merges its files away: the rows are there once."""
    catalog, rival = hidden.catalog("lake"), hidden.catalog("rival")
    table = two_files(catalog)
    hidden.fail_next_commit(Fault("reset", "after"))
    outcome = run(
        catalog, request_on(table, [write(table, [3])], batch=number), table, FakeTime(lambda: compact(rival))
    )
    assert len(outcome.snapshot_ids) == 1
    assert not outcome.already_committed
    landed(catalog, [1, 2, 3])


def test_the_outcome_is_unknown_if_the_own_commit_may_have_been_pushed_out(hidden: MiniRest) -> None:
    """As many other commits as are recorded come before the look: nothing is written again, nothing is deleted."""
    catalog, rival = hidden.catalog("lake"), hidden.catalog("rival")
    table = two_files(catalog)
    wanted = request_on(table, [write(table, [3])])

    def push_out() -> None:
        compact(rival)
        pushed = {f"other-{n}": [n] for n in range(MOST_COMMITS)}
        with rival.load_table("db.t").transaction() as change:
            change.set_properties({KEY: str(pushed).replace("'", '"')})

    hidden.fail_next_commit(Fault("reset", "after"))
    with pytest.raises(CommitStateUnknown, match=wanted.run_id):
        run(catalog, wanted, table, FakeTime(push_out))
    assert wanted.paths() <= data_files_on_disk(landed(catalog, [1, 2, 3]))


def test_rows_whose_fate_expired_are_not_written_again(mini: MiniRest) -> None:
    """The commit lands without an answer, its files are merged away, and its snapshot expires before the look."""
    catalog, rival = mini.catalog("lake"), mini.catalog("rival")
    table = two_files(catalog)
    wanted = request_on(table, [write(table, [3])])
    mini.fail_next_commit(Fault("reset", "after"))
    with pytest.raises(CommitStateUnknown, match="does not show the first of them"):
        run(catalog, wanted, table, FakeTime(lambda: expire(compact(rival))))
    landed(catalog, [1, 2, 3])


def test_the_record_of_commits_is_bounded(hidden: MiniRest) -> None:
    """The property keeps the newest commits, and grows no further."""
    catalog = hidden.catalog("lake")
    table = two_files(catalog)
    many = {f"other-{n}": [n] for n in range(MOST_COMMITS)}
    with table.transaction() as change:
        change.set_properties({KEY: str(many).replace("'", '"')})
    recorded = recent_commits(append(catalog, [3]).properties)
    assert len(recorded) == MOST_COMMITS
    assert [*recorded][:-1] == [*many][1:]


def test_only_the_own_files_of_a_rejected_commit_are_deleted(hidden: MiniRest) -> None:
    """After a definite rejection they are gone. Files that a commit replaced stay: other branches may need them."""
    table = two_files(hidden.catalog("lake"))
    sized = icesize.open(None, "lake.db.t", catalog=hidden.catalog("lake"), policy={"max-small-files": 1})
    before = data_files_on_disk(table)
    hidden.fail_next_commit(Fault(403))
    with pytest.raises(TableError, match="nothing is visible"):
        sized.compact()
    assert data_files_on_disk(table) == before
    assert sized.compact().files_removed == 2
    assert before < data_files_on_disk(table)
    landed(hidden.catalog("lake"), [1, 2])


def test_a_catalog_with_history_gets_no_record(mini: MiniRest) -> None:
    """Where snapshots are shown, they are the proof, and no property is written."""
    assert KEY not in two_files(mini.catalog("lake")).properties


@pytest.mark.parametrize("commits", [1, 2, 3])
def test_a_merge_lands_beside_other_writers(hidden: MiniRest, commits: int, caplog: pytest.LogCaptureFixture) -> None:
    """The input files are as they were, so other commits in between do not matter, and a conflict is no lost answer."""
    catalog, rival = hidden.catalog("lake"), hidden.catalog("rival")
    table = two_files(catalog)
    wanted = request_on(table, groups=[merged(table, small_files(table, "a"))])
    hidden.before_swap = lambda: [append(rival, [10 + n]) for n in range(commits)]
    with caplog.at_level(logging.INFO):
        outcome = run(catalog, wanted, table)
    assert outcome.operations == ("replace",)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(live_paths(landed(catalog, [1, 2, *(10 + n for n in range(commits))]))) == 1 + commits


def _delete_row(catalog: Catalog, file: FileFact) -> None:
    delete_rows(catalog, file)


def _take_away(catalog: Catalog, file: FileFact) -> None:
    compact(catalog)


def _list_again(catalog: Catalog, file: FileFact) -> None:
    table = catalog.load_table("db.t")
    again = replace(write(table, [1]), path=file.path, size_bytes=file.size_bytes)
    run(catalog, request_on(table, [again]), table)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_delete_row, "another writer deleted rows of it, and the merge keeps no map of its rows"),
        (_take_away, "another writer removed a file of it"),
        (_list_again, "another writer listed a file of it again"),
    ],
)
def test_a_merge_of_files_that_changed_is_dropped(hidden: MiniRest, change: object, why: str) -> None:
    """Only files that are as they were planned are replaced."""
    catalog = hidden.catalog("lake")
    table = two_files(catalog)
    inputs = small_files(table, "a")
    wanted = request_on(table, [write(table, [3])], [merged(table, inputs)], batch=1)
    change(catalog, inputs[0])  # type: ignore[operator]
    expected = ids_of(catalog)
    outcome = run(catalog, wanted, table)
    assert outcome.conflicts == (f"merge of 2 files dropped: {why}",)
    assert ids_of(catalog) == sorted([*expected, 3])


def test_a_merge_is_dropped_if_main_was_moved_beside_its_history(hidden: MiniRest) -> None:
    """The input files are live there, too, but one has a delete, with a number that is not above the planned head's."""
    catalog = hidden.catalog("lake")
    table = two_files(catalog)
    common, hidden.hides_history = table.metadata.current_snapshot_id, False
    assert common is not None
    beside = delete_rows(catalog, small_files(table)[0]).metadata.current_snapshot_id
    assert beside is not None
    theirs(catalog.load_table("db.t")).manage_snapshots().create_branch(beside, "audit").commit()
    theirs(catalog.load_table("db.t")).manage_snapshots().set_current_snapshot(common).commit()
    append(catalog, [9], "b")
    hidden.hides_history = True
    before = catalog.load_table("db.t")
    wanted = request_on(before, [write(before, [3])], [merged(before, small_files(before, "a"))], batch=1)
    hidden.hides_history = False
    theirs(catalog.load_table("db.t")).manage_snapshots().set_current_snapshot(beside).commit()
    hidden.hides_history = True
    outcome = run(catalog, wanted, before)
    assert outcome.conflicts == (
        "merge of 2 files dropped: another writer deleted rows of it, and the merge keeps no map of its rows",
    )
    assert ids_of(catalog) == [2, 3]


def test_a_batch_with_its_merge_lands_beside_other_writers(hidden: MiniRest) -> None:
    """Rows and merge of a stream's batch are one commit there, too."""
    catalog, rival = hidden.catalog("lake"), hidden.catalog("rival")
    table = two_files(catalog)
    wanted = batch(catalog)
    hidden.before_swap = lambda: append(rival, [10])
    assert run(catalog, wanted, table).operations == ("append", "replace")
    landed(catalog, [1, 2, 3, 10])
