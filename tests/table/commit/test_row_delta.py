"""The step `RowDelta`: what a batch of upserts leaves when other writers commit between its plan and its commit."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import RewriteFailed
from icesize.planning.files import FileFact
from icesize.report import Report
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from icesize.table.upserts.batch import merge_here
from icesize.table.upserts.settings import WantedRule
from tests.support.machine import Reader
from tests.support.puffin import exchange_vectors
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_rows
from tests.support.row_lineage import lineage_of
from tests.support.tables import (
    FakeTime,
    append,
    check,
    compact,
    expire,
    live_paths,
    make_table,
    rewrite_manifests,
    small_files,
    sqlite_catalog,
)
from tests.support.upserts import Event, Row, live_rows, live_rows_of, sliced, upsert
from tests.support.v3_tables import as_v3

RULE = WantedRule(key="id", order_by="ts")
HOUR = 3_600_000_000
LATER = 100 * HOUR
"""After all rows that other writers append: these have as many hours as their id says."""
FOUR: list[Row] = [(key, 10, "a") for key in (1, 2, 3, 4)]


@pytest.fixture(params=[2, 3])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    """A catalog with the table `db.t`, which has four rows in one file of partition `a`."""
    catalog = sqlite_catalog(tmp_path)
    make_table(catalog)
    if request.param == 3:
        as_v3(catalog)
    commit(catalog, list(FOUR), 0)
    return catalog


def commit(
    catalog: Catalog,
    events: Sequence[Event | Row],
    batch: int,
    *,
    stream: str = "s",
    has_merges: bool = False,
    slices: int = 1,
    environment: Environment | None = None,
) -> Report:
    """One batch of a stream."""
    return upsert(
        TableHandle(catalog, ("db", "t")), RULE, lambda current, rule: sliced(events, slices),
        LedgerEntry(stream, "q", batch), environment or FakeTime().environment,
        merges=merge_here if has_merges else None,
    )  # fmt: skip


def others_first(*acts: Callable[[], object]) -> AbstractContextManager[None]:
    """Let another writer act before the first compare-and-swap of the batch, and before each of its next ones."""
    waiting, acting = list(acts), list[Callable[[], object]]()

    def act() -> None:
        if waiting and not acting:
            acting.append(waiting.pop(0))
            acting[0]()
            acting.clear()

    return failpoints.armed("before-swap", act)


def delete_key(catalog: Catalog, key: int) -> None:
    """A position delete by another writer of the live row of a key; in format v3, the vector of its file grows."""
    table = catalog.load_table("db.t")
    head, reader = table.metadata.current_snapshot(), Reader()
    assert head is not None
    [(data, position)] = [(data, at) for data, at, row in reader.live(head, table.io) if row[0] == key]
    [file] = [file for file in small_files(table) if file.path == data.path]
    if table.metadata.format_version == 2 or not file.deletes:
        delete_rows(catalog, file, [position])
        return
    live = {at for data, at, _ in reader.live(head, table.io) if data.path == file.path}
    gone = set(range(file.rows)) - live | {position}
    exchange_vectors(catalog, {file: sorted(gone)}, [delete.id for delete in file.deletes])


def landed(catalog: Catalog, rows: Sequence[Row]) -> Table:
    """The table, in good order, with these rows."""
    table = catalog.load_table("db.t")
    check(table)
    assert live_rows(catalog) == sorted(rows)
    return table


def files_of_keys(table: Table) -> dict[int, FileFact]:
    """The file of the live row of each key."""
    return {row[0]: file for file, row in live_rows_of(table)}


OTHERS: dict[str, tuple[Callable[[Catalog], object], Sequence[Row]]] = {
    "append": (lambda catalog: append(catalog, [9]), [(9, 9 * HOUR, "a")]),
    "append of the key": (lambda catalog: append(catalog, [1]), []),
    "delete of the row": (lambda catalog: delete_key(catalog, 1), []),
    "merge": (lambda catalog: (append(catalog, [9]), compact(catalog)), [(9, 9 * HOUR, "a")]),
    "upsert of the key": (lambda catalog: commit(catalog, [(1, 11, "b")], 0, stream="other"), []),
    "upsert of another": (lambda catalog: commit(catalog, [(7, 11, "a")], 0, stream="other"), [(7, 11, "a")]),
    "manifests": (rewrite_manifests, []),
    "expiry": (lambda catalog: expire(append(catalog, [9])), [(9, 9 * HOUR, "a")]),
}  # fmt: skip
"""What other writers do first, and the rows that they add besides that of key 1."""


@pytest.mark.parametrize("name", OTHERS)
def test_an_update_follows_other_writers(catalog: Catalog, name: str) -> None:
    """Whatever comes first, the key has one row after the batch, in the same attempt's snapshot."""
    act, added = OTHERS[name]
    with others_first(lambda: act(catalog)):
        report = commit(catalog, [(1, LATER, "b"), (2, LATER, None)], 1)

    landed(catalog, [(1, LATER, "b"), *FOUR[2:], *added])
    assert report.operations == ("overwrite",)
    assert report.upsert is not None
    assert report.upsert["late"] == 0


def test_an_update_keeps_one_data_file_over_conflicts(catalog: Catalog) -> None:
    """A file with rows that still fit is committed again, and is not written again."""
    with others_first(lambda: append(catalog, [9])):
        commit(catalog, [(1, LATER, "b")], 1)

    assert len(live_paths(catalog.load_table("db.t"))) == 3


@pytest.mark.parametrize("catalog", [3], indirect=True)
def test_a_row_has_the_row_id_of_the_state_that_it_is_committed_on(catalog: Catalog) -> None:
    """A row whose older version another writer deletes or moves to another key first is a new row (format v3)."""
    [old] = small_files(catalog.load_table("db.t"))
    with others_first(lambda: delete_key(catalog, 1)):
        commit(catalog, [(1, LATER, "a"), (2, LATER, "a")], 1)

    files = files_of_keys(landed(catalog, [(1, LATER, "a"), (2, LATER, "a"), *FOUR[2:]]))
    assert lineage_of(files[1])[1][0] == files[1].first_row_id
    assert lineage_of(files[2])[2][0] == lineage_of(old)[2][0]


@pytest.mark.parametrize("catalog", [3], indirect=True)
def test_a_new_file_without_a_live_row_is_not_committed(catalog: Catalog) -> None:
    """A batch of one row, which another writer deletes, adds and deletes, adds one file and no delete file."""
    with others_first(lambda: delete_key(catalog, 1), lambda: append(catalog, [1]), lambda: delete_key(catalog, 1)):
        report = commit(catalog, [(1, LATER, "a")], 1)

    table = landed(catalog, [(1, LATER, "a"), *FOUR[1:]])
    summary = table.metadata.snapshots[-1].summary
    assert summary is not None
    assert (summary["added-data-files"], summary["added-records"], summary["added-delete-files"]) == ("1", "1", None)
    assert (report.files_added, report.operations) == (1, ("append",))


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("catalog", [3], indirect=True)
def test_a_row_that_got_two_other_row_ids_is_in_the_table_once(catalog: Catalog, slices: int) -> None:
    """Its earlier versions are deleted in the commit, in each file that the batch wrote them to (format v3)."""
    with others_first(lambda: delete_key(catalog, 1), lambda: append(catalog, [1])):
        commit(catalog, [(1, LATER, "a"), (2, LATER, "a")], 1, slices=slices)

    table = landed(catalog, [(1, LATER, "a"), (2, LATER, "a"), *FOUR[2:]])
    [theirs] = [file for file in small_files(table) if file.rows == 1 and lineage_of(file)[1][1] == 3]
    assert lineage_of(files_of_keys(table)[1])[1][0] == theirs.first_row_id


@pytest.mark.parametrize("catalog", [3], indirect=True)
def test_a_row_that_got_another_row_id_and_is_late_then_is_in_no_file(catalog: Catalog) -> None:
    """If another stream brings a newer row after another writer deleted the old one, no version of the batch stays."""
    newer = partial(commit, catalog, [(1, LATER + 1, "c")], 0, stream="other")
    with others_first(lambda: delete_key(catalog, 1), newer):
        commit(catalog, [(1, LATER, "a"), (2, LATER, "a")], 1)

    landed(catalog, [(1, LATER + 1, "c"), (2, LATER, "a"), *FOUR[2:]])


def test_a_written_row_that_became_late_is_deleted_in_its_commit(catalog: Catalog) -> None:
    """If another stream brings a newer row of the key first, that row stays, and no reader sees the older one."""
    with others_first(lambda: commit(catalog, [(1, LATER, "c")], 0, stream="other")):
        report = commit(catalog, [(1, 11, "b"), (8, 11, "b")], 1)

    landed(catalog, [(1, LATER, "c"), *FOUR[1:], (8, 11, "b")])
    assert report.upsert is not None
    assert (report.upsert["late"], report.operations) == (1, ("overwrite",))


def test_a_late_event_becomes_valid_if_the_newer_row_is_deleted(catalog: Catalog) -> None:
    """An event that was dropped as late is written to another file when its key has no row any more."""
    with others_first(lambda: delete_key(catalog, 1)):
        report = commit(catalog, [(1, 9, "b"), (8, 11, "b")], 1)

    landed(catalog, [(1, 9, "b"), *FOUR[1:], (8, 11, "b")])
    assert report.upsert is not None
    assert report.upsert["late"] == 0


def test_a_batch_that_only_was_late_commits_when_it_becomes_valid(catalog: Catalog) -> None:
    """A batch that would write nothing in the state of its plan still looks at the state of its commit."""
    commit(catalog, [(1, LATER, "a")], 1)
    with failpoints.armed("files-written", lambda: delete_key(catalog, 1)):
        commit(catalog, [(1, 11, "b")], 2)

    landed(catalog, [(1, 11, "b"), *FOUR[1:]])


def test_deletes_become_nothing_if_their_rows_go_first(catalog: Catalog) -> None:
    """A batch of deletes whose rows another writer deletes first commits nothing, and leaves no file."""
    with others_first(lambda: delete_key(catalog, 1)):
        report = commit(catalog, [(1, LATER, None)], 1)

    landed(catalog, FOUR[1:])
    assert report.operations == ()


@pytest.mark.parametrize("kind", [409, 502, "reset", "truncated"])
@pytest.mark.parametrize("added", [[], [(5, LATER, "b")]])
def test_files_survive_a_lost_answer(mini: MiniRest, kind: int | str, added: list[Row]) -> None:
    """If a commit landed and its answer was lost, its files stay: delete files are among them."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    as_v3(catalog)
    commit(catalog, list(FOUR), 0)
    mini.fail_next_commit(Fault(kind, "after"))
    report = commit(catalog, [*added, (1, LATER, None)], 1)

    landed(catalog, [*FOUR[1:], *added])
    assert len(report.operations) == 1
    assert commit(catalog, [(1, LATER, None)], 1).already_committed


@pytest.mark.parametrize("kind", [409, 502])
def test_a_batch_is_known_by_its_files_if_its_snapshot_expired(mini: MiniRest, kind: int) -> None:
    """If others commit and expire the snapshot before its outcome is known, the batch is not committed again."""
    catalog, rival = mini.catalog("lake"), mini.catalog("rival")
    make_table(catalog)
    as_v3(catalog)
    commit(catalog, list(FOUR), 0)

    def meanwhile() -> None:
        append(rival, [9], "b")
        expire(rival.load_table("db.t"))

    mini.fail_next_commit(Fault(kind, "after"))
    commit(catalog, [(1, LATER, "b"), (2, LATER, None)], 1, environment=FakeTime(meanwhile).environment)

    landed(catalog, [(1, LATER, "b"), *FOUR[2:], (9, 9 * HOUR, "b")])


@pytest.mark.parametrize("kind", [409, 502])
def test_deletes_of_a_later_attempt_survive_a_lost_answer_and_expiry(mini: MiniRest, kind: int) -> None:
    """The delete files of the attempt that landed stay, also if those of the plan were others, and all has expired."""
    catalog, rival = mini.catalog("lake"), mini.catalog("rival")
    make_table(catalog)
    as_v3(catalog)
    commit(catalog, list(FOUR), 0)
    swaps, sleeps = list[int](), list[int]()

    def before_swap() -> None:
        swaps.append(1)
        if len(swaps) == 1:
            # the deletes are those of another file then
            append(rival, [9])
            compact(rival)
        elif len(swaps) == 4:  # after those of the other writer
            mini.fail_next_commit(Fault(kind, "after"))

    def meanwhile() -> None:
        sleeps.append(1)
        if len(sleeps) == 2:
            append(rival, [8], "b")
            expire(rival.load_table("db.t"))

    with failpoints.armed("before-swap", before_swap):
        report = commit(catalog, [(1, LATER, None)], 1, environment=FakeTime(meanwhile).environment)

    assert len(sleeps) == 2
    assert not report.already_committed, "it was this run"
    landed(catalog, [*FOUR[1:], (9, 9 * HOUR, "a"), (8, 8 * HOUR, "b")])


MANY: list[Row] = [(key, 10, "a") for key in range(100)]
MOST: list[Row] = [(key, LATER, "a") for key in range(40)]


def test_a_merge_follows_other_deletes_of_its_batch(catalog: Catalog) -> None:
    """A merge applied the deletes of the plan: rows that the batch deletes beside them die in the merged file."""
    commit(catalog, MANY, 1)
    commit(catalog, [(50, 99 * HOUR, "a")], 2)
    with others_first(lambda: append(catalog, [99])):
        # key 99 has a newer row now, so that the row of the merged file dies, too
        report = commit(catalog, [*MOST, (99, 9, "a")], 3, has_merges=True)

    rows = {row[0]: row for row in [*FOUR, *MANY, (50, 99 * HOUR, "a"), *MOST, (99, 99 * HOUR, "a")]}
    landed(catalog, list(rows.values()))
    assert report.operations[-1] == "replace"


def test_a_merge_follows_deletes_of_others(catalog: Catalog) -> None:
    """Rows that another writer deletes do not come back by the merge of the batch."""
    commit(catalog, MANY, 1)
    with others_first(lambda: delete_key(catalog, 99)):
        report = commit(catalog, MOST, 2, has_merges=True)

    landed(catalog, [*MOST, *MANY[40:99]])
    assert (report.operations[-1], report.conflicts) == ("replace", ())


@pytest.mark.parametrize("catalog", [3], indirect=True)
def test_rows_whose_second_write_fails_are_not_left_out(catalog: Catalog) -> None:
    """A batch fails as a whole if its rows cannot be written for a newer state, also beside a merge."""
    commit(catalog, MANY, 1)
    errors = list[OSError]()

    def change() -> None:
        # the row of key 0 is a new row now, so that all rows are written again; the disk is full by then
        delete_key(catalog, 0)
        errors.append(OSError(errno.ENOSPC, "No space left on device"))

    def fill() -> None:
        if errors:
            raise errors.pop()

    with others_first(change), failpoints.armed("writing", fill), pytest.raises(RewriteFailed, match="No space left"):
        commit(catalog, MOST, 2, has_merges=True)
    landed(catalog, MANY[1:])

    commit(catalog, MOST, 2, has_merges=True)
    landed(catalog, [*MOST, *MANY[40:]])


def test_a_merge_survives_an_append_of_others(catalog: Catalog) -> None:
    """A merge whose input files have the deletes that it applied is committed with the batch."""
    commit(catalog, MANY, 1)
    with others_first(lambda: append(catalog, [200], "b")):
        report = commit(catalog, MOST, 2, has_merges=True)

    landed(catalog, [*MOST, *MANY[40:], (200, 200 * HOUR, "b")])
    assert report.operations == ("overwrite", "replace")
