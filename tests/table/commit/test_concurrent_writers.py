"""The PyIceberg committer against rivals: whoever else changes the table between plan and swap, nobody loses rows."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.table import Table
from pyiceberg.table.update import UpgradeFormatVersionUpdate
from pyiceberg.types import StringType

from icesize import failpoints
from icesize.errors import (
    CommitConflict,
    TableError,
    TableNotFound,
)
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.protocol import CommitLost, CommitRequest, ConcurrentChange, StepDone
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.machine import Reader
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    NOW_MS,
    FakeTime,
    append,
    batch,
    check,
    commit_by,
    compact,
    data_files_on_disk,
    expire,
    ids_of,
    landed,
    live_paths,
    local,
    make_table,
    merged,
    merges,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    request_on,
    run,
    small_files,
    sqlite_catalog,
    theirs,
    two_files,
    write,
)


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """The same tests on both kinds of catalog, and in format v2 and v3."""
    return catalog_of(request)


def test_a_rival_append_is_kept_and_ours_goes_on_top(mini: MiniRest) -> None:
    """A commit between staging and swap costs one more attempt; rows of both are there, no manifest is left over."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)

    def rival() -> None:
        append(mini.catalog("rival"), [9], "b")

    mini.before_swap = rival
    assert run(catalog, wanted, before).operations == ("append", "replace")
    table = landed(catalog, [1, 2, 3, 9])
    assert operations(table) == ["append", "append", "append", "append", "replace"]
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("is_empty", [True, False])
def test_a_table_that_is_upgraded_meanwhile_stays_readable(lake: SqlCatalog, is_empty: bool) -> None:
    """The catalog refuses what was staged for format v1, and it is staged anew; a first snapshot is right in both."""
    ids = [3] if is_empty else [1, 2, 3]
    table = (make_table if is_empty else two_files)(lake, properties={"format-version": "1"})
    groups = [] if is_empty else [merged(table, small_files(table))]
    once = iter([UpgradeFormatVersionUpdate(format_version=2)])

    def upgrade() -> None:
        for update in once:
            lake.commit_table(lake.load_table("db.t"), (), (update,))

    with failpoints.armed("before-swap", upgrade):
        run(lake, request_on(table, [write(table, [3])], groups, batch=1), table)
    after = landed(lake, ids)
    assert after.metadata.format_version == 2
    numbers = [s.sequence_number for s in after.metadata.snapshots]
    assert numbers == ([0] if is_empty else [0, 0, 1, 2])
    assert json.loads(local(after.metadata_location).read_text())["last-sequence-number"] == numbers[-1]
    assert metadata_files_on_disk(after) == referenced_metadata(after)


@pytest.mark.parametrize("moment", ["before the first attempt", "before the swap"])
def test_rows_deleted_by_position_stay_deleted(mini: MiniRest, moment: str) -> None:
    """Delete, then append, then our attempt: the merge that had read the row is dropped, the append lands."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    input_file = merges(wanted)[0].inputs[0]

    def rival() -> None:
        delete_rows(mini.catalog("rival"), input_file)
        append(mini.catalog("rival"), [9], "b")

    if moment == "before the swap":
        mini.before_swap = rival
    else:
        rival()
    outcome = run(catalog, wanted, before)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == (
        "merge of 2 files dropped: another writer deleted rows of it, and the merge keeps no map of its rows",
    )
    assert outcome.contested == (input_file.partition,)
    table = landed(catalog, [2, 3, 9])
    assert not data_files_on_disk(table) & {f.path for g in merges(wanted) for f in g.files}


def test_an_equality_delete_hits_the_merged_file_as_it_hit_its_inputs(catalog: Catalog) -> None:
    """It lands while files are merged, with a greater number than theirs: the merge lands, and its rows are deleted."""
    two_files(catalog)
    append(catalog, [5], "b")
    table = append(catalog, [6], "b")
    groups = [merged(table, small_files(table, kind)) for kind in ("a", "b")]
    wanted = request_on(table, [write(table, [3])], groups, batch=1)
    delete_ids(catalog, groups[0].inputs[0], [1])
    append(catalog, [9], "b")
    outcome = run(catalog, wanted, table)
    assert (outcome.merged, outcome.conflicts) == (tuple(groups), ())
    after = catalog.load_table("db.t")
    check(after)
    assert {f.rows: f.delete_files for f in small_files(after, "a")} == {2: 1, 1: 0}
    head = after.metadata.current_snapshot()
    assert head is not None
    assert Reader().rows(head, after.io).total() == 5


def test_a_merge_keeps_deletes_of_equality_off_its_rows(catalog: Catalog) -> None:
    """A merged file carries its newest input's number, not its own commit's: what was deleted later stays deletable."""
    table = two_files(catalog)
    run(catalog, request_on(table, groups=[merged(table, small_files(table))]), table)
    (file,) = small_files(catalog.load_table("db.t"))
    assert file.sequence_number == 2


def test_a_victim_taken_by_a_rival_drops_its_group_only(catalog: Catalog) -> None:
    """Another compaction was faster in one partition: that merge goes, the other one and the rows land."""
    two_files(catalog)
    append(catalog, [5], "b")
    table = append(catalog, [6], "b")
    groups = [merged(table, small_files(table, kind)) for kind in ("a", "b")]
    wanted = request_on(table, [write(table, [3])], groups, batch=1)
    compact(catalog, "a")
    outcome = run(catalog, wanted, table)
    assert outcome.operations == ("append", "replace")
    assert outcome.merged == (groups[1],)
    assert outcome.contested == (groups[0].inputs[0].partition,)
    assert outcome.conflicts == ("merge of 2 files dropped: another writer removed a file of it",)
    after = landed(catalog, [1, 2, 3, 5, 6])
    assert not data_files_on_disk(after) & {f.path for f in groups[0].files}


def test_inputs_are_found_in_rewritten_manifests(catalog: Catalog) -> None:
    """A rival's merge in another partition rewrites the manifest of our input files: they live on, and are merged."""
    table = make_table(catalog)
    run(catalog, request_on(table, [write(table, [i], kind) for i, kind in enumerate("aabb")]), table)
    table = catalog.load_table("db.t")
    wanted = request_on(table, groups=[merged(table, small_files(table, "a"))])
    compact(catalog, "b")
    outcome = run(catalog, wanted, table)
    assert outcome.operations == ("replace",)
    assert outcome.conflicts == ()
    assert len(live_paths(landed(catalog, [0, 1, 2, 3]))) == 2


def test_an_expired_planning_base_costs_no_merge(catalog: Catalog) -> None:
    """The snapshot that was planned on is gone: the files are as they were, so the merge is committed as well."""
    before = two_files(catalog)
    wanted = batch(catalog)
    expire(append(catalog, [9], "b"))
    outcome = run(catalog, wanted, before)
    assert (outcome.operations, outcome.conflicts) == (("append", "replace"), ())
    landed(catalog, [1, 2, 3, 9])


def test_a_base_that_expires_under_the_check_costs_no_merge(catalog: Catalog) -> None:
    """An expiry deletes the manifest list of the base after the table was loaded: all manifests are searched."""
    before = two_files(catalog)
    wanted = batch(catalog)
    base = before.metadata.current_snapshot()
    assert base is not None
    append(catalog, [9], "b")
    local(base.manifest_list).unlink()
    outcome = run(catalog, wanted, before)
    assert (outcome.operations, outcome.conflicts) == (("append", "replace"), ())
    expire(catalog.load_table("db.t"))
    landed(catalog, [1, 2, 3, 9])


@pytest.mark.parametrize("rows", [True, False])
def test_a_state_that_expires_under_the_check_is_loaded_again(catalog: Catalog, rows: bool) -> None:
    """Others commit twice and expire all but the newest snapshot while the loaded one is read: all is committed."""
    table = two_files(catalog)
    wanted = batch(catalog) if rows else request_on(table, groups=[merged(table, small_files(table, "a"))])

    class Outrun(PyIcebergCommitter):
        left = 1

        def load(self) -> Loaded:
            loaded = super().load()
            if self.left:
                self.left = 0
                lists = [s.manifest_list for s in append(catalog, [8], "b").metadata.snapshots]
                expire(append(catalog, [9], "b"))
                for each in lists:
                    local(each).unlink()
            return loaded

    append(catalog, [7], "b")
    outcome = commit_by(Outrun(catalog, table, lambda: NOW_MS), wanted, table)
    assert outcome.operations == (("append", "replace") if rows else ("replace",))
    assert outcome.conflicts == ()
    landed(catalog, [1, 2, *([3] if rows else []), 7, 8, 9])


def test_a_manifest_that_expired_before_it_was_staged_costs_no_merge(catalog: Catalog) -> None:
    """Others commit and expire while the request is staged: rows and merges are committed on the newest state."""
    table = two_files(catalog)
    wanted = batch(catalog)

    class Outrun(PyIcebergCommitter):
        left = 1

        def stage(
            self, loaded: Loaded, request: CommitRequest, *, dry_run: bool = False
        ) -> tuple[Staged, tuple[StepDone, ...]]:
            if self.left:
                self.left = 0
                append(catalog, [9], "b")
                local(loaded.table.metadata.current_snapshot().manifest_list).unlink()  # type: ignore[union-attr]
            return super().stage(loaded, request, dry_run=dry_run)

    append(catalog, [8], "b")
    outcome = commit_by(Outrun(catalog, table, lambda: NOW_MS), wanted, table)
    assert (outcome.operations, outcome.conflicts) == (("append", "replace"), ())
    expire(catalog.load_table("db.t"))
    landed(catalog, [1, 2, 3, 8, 9])


def set_main(catalog: Catalog, snapshot_id: int) -> None:
    theirs(catalog.load_table("db.t")).manage_snapshots().set_current_snapshot(snapshot_id).commit()


def delete_beside(catalog: Catalog) -> int:
    """A snapshot beside main, older than the newest of main, in which row 1 is deleted; returns its id."""
    table = two_files(catalog)
    common = table.metadata.current_snapshot_id
    assert common is not None
    beside = delete_rows(catalog, small_files(table)[0]).metadata.current_snapshot_id
    assert beside is not None
    theirs(catalog.load_table("db.t")).manage_snapshots().create_branch(beside, "audit").commit()
    set_main(catalog, common)
    append(catalog, [9], "b")
    return beside


@pytest.mark.parametrize("moment", ["before the first attempt", "before the swap"])
def test_main_that_was_moved_beside_its_history_drops_merges(mini: MiniRest, moment: str) -> None:
    """The input files live there, too, and no delete is newer than the base; but rows of theirs are deleted."""
    catalog = mini.catalog("lake")
    beside = delete_beside(catalog)
    before = catalog.load_table("db.t")
    wanted = request_on(before, [write(before, [3])], [merged(before, small_files(before, "a"))], batch=1)
    if moment == "before the swap":
        mini.before_swap = lambda: set_main(mini.catalog("rival"), beside)
    else:
        set_main(catalog, beside)
    outcome = run(catalog, wanted, before)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == (
        "merge of 2 files dropped: another writer deleted rows of it, and the merge keeps no map of its rows",
    )
    table = landed(catalog, [2, 3])
    assert not data_files_on_disk(table) & {f.path for g in merges(wanted) for f in g.files}
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_absorbed_files_are_lost_when_main_is_moved_beside_its_history(catalog: Catalog) -> None:
    """Rows that were written together with older ones have to be written again, and nothing is left of them."""
    beside = delete_beside(catalog)
    before = catalog.load_table("db.t")
    wanted = request_on(before, [write(before, [1, 2, 3])], absorbed=tuple(small_files(before, "a")), batch=1)
    set_main(catalog, beside)
    with pytest.raises(ConcurrentChange, match="another writer deleted rows of it"):
        run(catalog, wanted, before)
    assert not data_files_on_disk(landed(catalog, [2])) & wanted.paths()


@pytest.mark.parametrize("version", ["1", "2"])
def test_history_that_broke_after_the_base_costs_no_merge(lake: SqlCatalog, version: str) -> None:
    """The base is held by a tag, what came between it and the head has expired: the states of both are compared."""
    before = two_files(lake, properties={"format-version": version})
    base = before.metadata.current_snapshot_id
    assert base is not None
    wanted = batch(lake)
    before.manage_snapshots().create_tag(base, "audit").commit()
    between = append(lake, [8], "b").metadata.current_snapshot_id
    append(lake, [9], "b").maintenance.expire_snapshots().by_ids([between]).commit()
    outcome = run(lake, wanted, before)
    assert base in {s.snapshot_id for s in lake.load_table("db.t").metadata.snapshots}
    assert (outcome.operations, outcome.conflicts) == (("append", "replace"), ())
    landed(lake, [1, 2, 3, 8, 9])


def test_main_that_came_back_to_the_base_is_where_it_was(catalog: Catalog) -> None:
    """The head is the snapshot that was planned on, wherever main has been meanwhile: the merge lands."""
    beside = delete_beside(catalog)
    before = catalog.load_table("db.t")
    head = before.metadata.current_snapshot_id
    assert head is not None
    wanted = request_on(before, groups=[merged(before, small_files(before, "a"))])
    set_main(catalog, beside)
    set_main(catalog, head)
    assert run(catalog, wanted, before).operations == ("replace",)
    landed(catalog, [1, 2, 9])


def test_that_main_was_only_moved_is_no_proof_of_a_younger_answer(catalog: Catalog) -> None:
    """Main was fast-forwarded, then a catalog shows the state before: no snapshot is younger in either of the two."""
    beside = delete_beside(catalog)
    old = Loaded(catalog.load_table("db.t"))
    set_main(catalog, beside)
    new = Loaded(catalog.load_table("db.t"))
    assert new.later_than(old)
    assert not old.later_than(new)


def test_a_column_added_meanwhile_drops_the_merge(mini: MiniRest) -> None:
    """A schema change without any snapshot is noticed by the swap itself; the rows go on under the new schema."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)

    def evolve() -> None:
        with mini.catalog("rival").load_table("db.t").update_schema() as update:
            update.add_column("note", StringType())

    mini.before_swap = evolve
    outcome = run(catalog, wanted, before)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == ("merge of 2 files dropped: schema or partition spec changed while the merge ran",)
    table = landed(catalog, [1, 2, 3])
    assert table.scan().to_arrow()["note"].null_count == 3
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_files_with_a_dropped_column_do_not_land(mini: MiniRest) -> None:
    """The swap is refused as the schema has changed, and the files do not fit the new one: nothing of them is left."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)

    def drop() -> None:
        with mini.catalog("rival").load_table("db.t").update_schema() as update:
            update.delete_column("ts")

    mini.before_swap = drop
    with pytest.raises(ConcurrentChange, match="column 'ts' was dropped"):
        run(catalog, wanted, before)
    table = landed(catalog, [1, 2])
    assert not data_files_on_disk(table) & wanted.paths()
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_files_stay_in_the_spec_that_they_were_written_under(mini: MiniRest) -> None:
    """The partition spec changes under the batch: its rows land in manifests of the old spec, and are found there."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)

    def evolve() -> None:
        with mini.catalog("rival").load_table("db.t").update_spec() as update:
            update.add_field("id", "bucket[4]", "id_bucket")

    mini.before_swap = evolve
    assert run(catalog, wanted, before).operations == ("append",)
    table = landed(catalog, [1, 2, 3])
    assert {f.partition.spec_id for f in small_files(table)} == {0}
    assert table.metadata.default_spec_id == 1
    assert table.scan(row_filter="kind = 'a'").to_arrow().num_rows == 3
    assert table.scan(row_filter="kind = 'b'").to_arrow().num_rows == 0


def test_two_handles_with_one_batch_land_it_once(catalog: Catalog, tmp_path: Path) -> None:
    """Both staged on one head, a barrier before the swap: one lands, the other finds the batch and cleans up."""
    two_files(catalog)
    rest = isinstance(catalog, RestCatalog)
    handles = [RestCatalog("lake", uri=catalog.properties["uri"]) if rest else sqlite_catalog(tmp_path) for _ in "ab"]
    requests = [batch(handle) for handle in handles]
    barrier = threading.Barrier(2)
    outcomes: dict[int, CommitOutcome] = {}

    def work(i: int) -> None:
        outcomes[i] = run(handles[i], requests[i], handles[i].load_table("db.t"))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    with failpoints.armed("before-swap", lambda: barrier.wait(20)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    for handle in handles:
        handle.close()
    loser = 0 if outcomes[0].already_committed else 1
    assert [outcomes[loser].already_committed, outcomes[1 - loser].already_committed] == [True, False]
    assert outcomes[1 - loser].operations == ("append", "replace")
    table = landed(catalog, [1, 2, 3])
    assert operations(table) == ["append", "append", "append", "replace"]
    assert not data_files_on_disk(table) & requests[loser].paths()
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_a_dropped_table_is_an_error(catalog: Catalog) -> None:
    """Dropped before the commit: TableNotFound, our files removed."""
    before = two_files(catalog)
    wanted = batch(catalog)
    catalog.drop_table("db.t")
    with pytest.raises(TableNotFound, match=r"Cannot find table 'lake\.db\.t'"):
        run(catalog, wanted, before)
    assert not data_files_on_disk(before) & wanted.paths()


def test_a_table_dropped_under_the_swap_is_an_error(mini: MiniRest) -> None:
    """Dropped between staging and swap: the catalog's 404 is a definite no."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    mini.before_swap = lambda: mini.drop(("db", "t"))
    with pytest.raises(TableError, match="Table does not exist"):
        run(catalog, wanted, before)
    assert not data_files_on_disk(before) & wanted.paths()


@pytest.mark.parametrize("moment", ["before the first attempt", "before the swap"])
def test_a_recreated_table_gets_nothing(mini: MiniRest, moment: str) -> None:
    """Another table under the same name: error, nothing written to it, whenever it happened."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)

    def recreate() -> None:
        rival = mini.catalog("rival")
        rival.drop_table("db.t")
        make_table(rival)

    if moment == "before the swap":
        mini.before_swap = recreate
    else:
        recreate()
    with pytest.raises(TableError, match="dropped and recreated"):
        run(catalog, wanted, before)
    table = catalog.load_table("db.t")
    assert table.metadata.snapshots == []
    assert not [k for k in table.properties if k.startswith("icesize.")]


def branch_at_head(table: Table) -> None:
    head = table.metadata.current_snapshot()
    assert head is not None
    table.manage_snapshots().create_branch(head.snapshot_id, "audit").commit()


def test_a_commit_to_another_branch_is_retried(lake: SqlCatalog, tmp_path: Path) -> None:
    """Branches share sequence numbers; the SQL catalog then refuses with a plain ValueError, which is a lost race."""
    branch_at_head(two_files(lake))
    before = lake.load_table("db.t")
    wanted = batch(lake)
    rival = sqlite_catalog(tmp_path)
    once = [True]

    def to_audit() -> None:
        if once.pop() if once else False:
            table = rival.load_table("db.t")
            table.append(table.scan().to_arrow().slice(0, 1), branch="audit")

    with failpoints.armed("before-swap", to_audit):
        assert run(lake, wanted, before).operations == ("append", "replace")
    rival.close()
    table = landed(lake, [1, 2, 3])
    assert set(table.metadata.refs) == {"main", "audit"}
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize(
    "text",
    [
        "Cannot add snapshot with sequence number 5 older than last sequence number 5",
        "Cannot add a snapshot, first-row-id is behind table next-row-id: 0 < 5",
        "Cannot add a snapshot: first-row-id is null",
    ],
)
def test_servers_tell_of_other_branches_and_of_an_upgrade_by_400(lake: SqlCatalog, text: str) -> None:
    """A bad request is a lost race, too, if another branch took the numbers, or the table was upgraded to format v3."""
    table = make_table(lake)

    class OldServer(SqlCatalog):
        def commit_table(self, *_: Any) -> Any:
            answer = type("Answer", (), {"status_code": 400})()
            http = OSError("400 Client Error")
            http.response = answer  # type: ignore[attr-defined]
            raise BadRequestError(f"ValidationException: {text}") from http

    old = OldServer("lake", **lake.properties)
    committer = PyIcebergCommitter(old, table, lambda: NOW_MS)
    loaded = committer.load()
    staged, _ = committer.stage(loaded, request_on(table, [write(table, [1])]))
    with pytest.raises(CommitLost, match=re.escape(text)):
        committer.commit(loaded, staged)
    old.close()


def test_rivals_until_the_deadline_end_in_a_conflict(mini: MiniRest) -> None:
    """Always too late: CommitConflict, the table as the rivals left it, none of our files on storage."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    rival = mini.catalog("rival")
    count = iter(range(100, 200))
    committer = PyIcebergCommitter(catalog, before, lambda: NOW_MS)
    compare_and_swap = committer.commit

    def commit_after_rival(loaded: Any, staged: Any) -> None:
        append(rival, [next(count)], "b")
        compare_and_swap(loaded, staged)

    committer.commit = commit_after_rival  # type: ignore[method-assign]
    with pytest.raises(CommitConflict, match=r"other writers committed first .* 1 s"):
        commit_by(committer, wanted, before, FakeTime(), 1.0)
    table = catalog.load_table("db.t")
    check(table)
    assert 3 not in ids_of(catalog)
    assert data_files_on_disk(table) == set(live_paths(table))
    assert metadata_files_on_disk(table) == referenced_metadata(table)
