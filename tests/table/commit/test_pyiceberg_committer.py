"""The PyIceberg committer on real catalogs: what lands, what is refused, what stays on storage."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table.refs import SnapshotRefType
from pyiceberg.table.update import SetSnapshotRefUpdate

from icesize import failpoints
from icesize.errors import (
    BatchOutOfOrder,
    CommitStateUnknown,
    StreamMismatch,
    TableError,
)
from icesize.table.catalog.opening import with_timeout
from icesize.table.commit.pyiceberg_committer import PyIcebergCommitter
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry, parse
from icesize.table.records.summary import BASE_ID, RUN_ID
from icesize.table.state.handle import TableHandle
from icesize.table.state.layouts import LayoutReader
from tests.support.catalogs import OF_EACH_FORMAT, catalog_of
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.tables import (
    LIMIT,
    NOW_MS,
    CountingIO,
    FakeTime,
    append,
    batch,
    check,
    commit_by,
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
    referenced_metadata,
    removed_and_live,
    request_on,
    run,
    small_files,
    theirs,
    two_files,
    with_merges,
    with_run_id,
    write,
)


@pytest.fixture(params=OF_EACH_FORMAT)
def catalog(request: pytest.FixtureRequest) -> Catalog:
    """The same tests on both kinds of catalog, and in format v2 and v3."""
    return catalog_of(request)


def test_one_swap_makes_an_append_and_a_replace(catalog: Catalog) -> None:
    """Rows and merge are two snapshots of one metadata update, with totals, run id, ledger and planning base."""
    before = two_files(catalog)
    wanted = batch(catalog)
    outcome = run(catalog, wanted, before)
    table = landed(catalog, [1, 2, 3])
    first, second = table.metadata.snapshots[-2:]
    assert outcome.snapshot_ids == (first.snapshot_id, second.snapshot_id)
    assert outcome.operations == ("append", "replace")
    assert second.parent_snapshot_id == first.snapshot_id
    assert first.parent_snapshot_id == wanted.base.head.snapshot_id
    assert first.summary is not None
    assert second.summary is not None
    assert second.summary[BASE_ID] == str(wanted.base.head.snapshot_id)
    assert first.summary[RUN_ID] == second.summary[RUN_ID] == wanted.run_id
    assert second.summary["deleted-data-files"] == "2"
    assert second.summary["added-data-files"] == "1"
    assert second.summary["total-records"] == "3"
    assert wanted.ledger is not None
    assert first.summary["icesize.ledger"] == second.summary["icesize.ledger"] == wanted.ledger.to_json()
    carried = first.snapshot_id, first.sequence_number or 0
    assert parse(table.properties[wanted.ledger.key]) == replace(wanted.ledger, carried=carried)
    assert len(live_paths(table)) == 2


@pytest.mark.parametrize("version", ["1", "2"])
def test_both_format_versions_can_be_written(lake: SqlCatalog, version: str) -> None:
    """Tables of format v1 and v2 take appends and merges, from their first snapshot on."""
    two_files(lake, properties={"format-version": version})
    run(lake, batch(lake), lake.load_table("db.t"))
    table = landed(lake, [1, 2, 3])
    assert table.format_version == int(version)
    assert operations(table) == ["append", "append", "append", "replace"]
    numbers = [f.sequence_number for f in small_files(table)]
    assert numbers == ([0, 0] if version == "1" else [2, 3])


def test_unpartitioned_tables_can_be_written(lake: SqlCatalog) -> None:
    """A table without partition fields is one partition."""
    make_table(lake, {})
    append(lake, [1])
    table = append(lake, [2])
    run(lake, request_on(table, [write(table, [3])], [merged(table, small_files(table))]), table)
    assert len(live_paths(landed(lake, [1, 2, 3]))) == 2


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("kind", [409, 500, 502, 503, 504, "reset", "truncated", "html"])
def test_a_spoiled_answer_lands_the_batch_once(mini: MiniRest, kind: int | str, when: Moment) -> None:
    """Whatever the catalog answers, and whether it landed or not: one append, one replace, rows exact."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    posts = len(mini.posts)
    mini.fail_next_commit(Fault(kind, when))
    outcome = run(catalog, wanted, before)
    table = landed(catalog, [1, 2, 3])
    assert outcome.operations == ("append", "replace")
    assert operations(table) == ["append", "append", "append", "replace"]
    assert outcome.merged == merges(wanted)
    assert len(mini.posts) - posts == (1 if when == "after" else 2)
    assert data_files_on_disk(table) >= set(live_paths(table))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_hanging_catalog_is_bounded_by_the_timeout(mini: MiniRest, when: Moment) -> None:
    """An answer that never comes fails the call after the timeout; the commit then lands once."""
    catalog = with_timeout(mini.catalog("lake"), 0.2)
    before = two_files(catalog)
    wanted = batch(catalog)
    mini.fail_next_commit(Fault("hang", when))
    assert run(catalog, wanted, before).operations == ("append", "replace")
    mini.release()
    table = landed(catalog, [1, 2, 3])
    assert operations(table) == ["append", "append", "append", "replace"]


def test_a_late_landing_is_recognised(mini: MiniRest) -> None:
    """An attempt given up lands just before the next swap, which then loses to it: success, one pair of snapshots."""
    catalog = with_timeout(mini.catalog("lake"), 0.2)
    before = two_files(catalog)
    wanted = batch(catalog)
    snapshots = len(before.metadata.snapshots)

    def land() -> None:
        mini.release()
        other = mini.catalog("other")
        while len(other.load_table("db.t").metadata.snapshots) == snapshots:
            continue

    def arm_after_first() -> None:
        mini.before_swap = land

    mini.fail_next_commit(Fault("hang", "before"))
    outcome = run(catalog, wanted, before, FakeTime(arm_after_first))
    table = landed(catalog, [1, 2, 3])
    assert operations(table) == ["append", "append", "append", "replace"]
    assert outcome.snapshot_ids == tuple(s.snapshot_id for s in table.metadata.snapshots[-2:])
    assert {f.path for f in new_files(wanted)} <= data_files_on_disk(table)


def test_a_missing_right_is_told_in_one_sentence(mini: MiniRest) -> None:
    """403 on properties names the right; nothing is visible and nothing of ours is left."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    metadata_files = metadata_files_on_disk(before)
    mini.refuse_properties = True
    with pytest.raises(TableError, match=r"refused it \(403\).*right.*set its properties.*nothing is visible"):
        run(catalog, wanted, before)
    table = landed(catalog, [1, 2])
    assert data_files_on_disk(table) == set(live_paths(table))
    assert metadata_files_on_disk(table) == metadata_files


@pytest.mark.parametrize("kind", [400, 404])
def test_a_definite_no_fails_the_batch_at_once(mini: MiniRest, kind: int) -> None:
    """400 and 404 are not asked again, and our files go."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    posts = len(mini.posts)
    mini.fail_next_commit(Fault(kind))
    with pytest.raises(TableError, match=r"Cannot commit to 'db\.t': the catalog refused it"):
        run(catalog, wanted, before)
    assert len(mini.posts) == posts + 1
    table = landed(catalog, [1, 2])
    assert data_files_on_disk(table) == set(live_paths(table))


@pytest.mark.parametrize("kind", [401, 419])
def test_an_expired_token_is_refreshed(mini: MiniRest, kind: int) -> None:
    """401 and 419 cost PyIceberg a second request, and us nothing."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    mini.fail_next_commit(Fault(kind))
    assert run(catalog, batch(catalog), before).operations == ("append", "replace")
    landed(catalog, [1, 2, 3])


def test_a_busy_catalog_is_asked_again(mini: MiniRest) -> None:
    """429 twice, then it lands; the manifests of the first two attempts are removed."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = with_merges(batch(catalog))
    mini.fail_next_commit(Fault(429), Fault(429))
    assert run(catalog, wanted, before).operations == ("append",)
    table = landed(catalog, [1, 2, 3])
    assert metadata_files_on_disk(table) == referenced_metadata(table)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asked", "least", "most"), [("7", 7, 9), ("86400", 60, 62), ("tomorrow", 0, 2)])
def test_a_catalog_gets_the_pause_that_it_asks_for(
    mini: MiniRest, status: int, asked: str, least: int, most: int
) -> None:
    """`Retry-After` is obeyed by commits and loads, up to a minute; what cannot be read is no reason to fail."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    mini.fail_next_commit(Fault(status, retry_after=asked))
    time = FakeTime()
    run(catalog, batch(catalog), before, time)
    assert least <= time.sleeps[0] <= most
    mini.fail_next_load(Fault(status, retry_after=asked))
    handle, loading = TableHandle(catalog, ("db", "t")), FakeTime()
    handle.load(loading.environment)
    assert least <= loading.sleeps[0] <= most


@pytest.mark.parametrize("catalog_is", ["fresh", "stale"])
def test_a_catalog_that_lags_cannot_hide_a_commit(mini: MiniRest, catalog_is: str) -> None:
    """409 although landed with the next load stale: found in the end, no file of it deleted."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    mini.fail_next_commit(Fault(409, "after"))
    time = FakeTime(lambda: setattr(mini, "stale_loads", 1 if len(time.sleeps) == 1 and catalog_is == "stale" else 0))
    outcome = run(catalog, wanted, before, time)
    assert outcome.operations == ("append", "replace")
    assert operations(landed(catalog, [1, 2, 3])) == ["append", "append", "append", "replace"]


def test_a_stale_first_load_is_caught_by_the_swap(mini: MiniRest) -> None:
    """Staged on metadata that a replica served late, the swap fails and the next attempt lands."""
    catalog = mini.catalog("lake")
    two_files(catalog)
    table = append(catalog, [4], "b")
    wanted = request_on(table, [write(table, [3])], batch=1)
    mini.stale_loads = 1
    assert run(catalog, wanted, table).operations == ("append",)
    landed(catalog, [1, 2, 3, 4])


def test_a_replayed_batch_is_skipped_also_after_expiry(catalog: Catalog) -> None:
    """The ledger is a property: it outlives every snapshot that carried it."""
    two_files(catalog)
    wanted = batch(catalog)
    run(catalog, wanted, catalog.load_table("db.t"))
    again = batch(catalog)
    expire(append(catalog, [9], "b"))
    outcome = run(catalog, again, catalog.load_table("db.t"))
    assert outcome.already_committed
    assert outcome.snapshot_ids == ()
    table = landed(catalog, [1, 2, 3, 9])
    assert not data_files_on_disk(table) & again.paths()


def test_gaps_are_normal_and_going_back_is_refused(lake: SqlCatalog) -> None:
    """Empty batches leave gaps; a smaller id means a lost checkpoint, and its files are removed."""
    make_table(lake)
    append(lake, [1], batch=3)
    table = append(lake, [2], batch=7)
    wanted = request_on(table, [write(table, [3])], batch=5)
    with pytest.raises(BatchOutOfOrder, match="Cannot commit batch 5 of stream 's': batch 7 is committed"):
        run(lake, wanted, table)
    assert data_files_on_disk(landed(lake, [1, 2])) == set(live_paths(table))


def test_another_query_is_refused_until_it_is_accepted(lake: SqlCatalog) -> None:
    """A new checkpoint under a known stream id is refused; accepted, it starts its own count."""
    make_table(lake)
    table = append(lake, [1], batch=7)
    fresh = LedgerEntry("s", "another", 0)
    with pytest.raises(StreamMismatch, match="accept_new_checkpoint=True"):
        run(lake, request_on(table, [write(table, [2])], batch=fresh), table)
    run(lake, request_on(table, [write(table, [2])], batch=fresh, accept_new_checkpoint=True), table)
    table = landed(lake, [1, 2])
    head = table.metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert parse(table.properties[fresh.key]).alone == fresh
    assert head.summary["icesize.ledger"] == fresh.to_json()
    back = request_on(table, [write(table, [3])], batch=8, accept_new_checkpoint=True)
    with pytest.raises(StreamMismatch, match=r"query another replaced this query \(q\); .*--forget s"):
        run(lake, back, table)
    assert data_files_on_disk(landed(lake, [1, 2])) == set(live_paths(table))


def test_two_streams_do_not_see_each_other(lake: SqlCatalog) -> None:
    """Each stream id has its own entry and its own count."""
    make_table(lake)
    append(lake, [1], batch=7)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [2])], batch=LedgerEntry("other", "q", 0)), table)
    assert len([k for k in lake.load_table("db.t").properties if k.startswith("icesize.stream.")]) == 2
    landed(lake, [1, 2])


def test_retention_settings_of_main_survive(catalog: Catalog) -> None:
    """Moving main keeps how long its snapshots are to be kept."""
    table = two_files(catalog)
    head = table.metadata.current_snapshot()
    assert head is not None
    kept = {"max-snapshot-age-ms": 86_400_000, "min-snapshots-to-keep": 7, "max-ref-age-ms": 10**12}
    main = {"ref-name": "main", "type": SnapshotRefType.BRANCH, "snapshot-id": head.snapshot_id, **kept}
    theirs(table).catalog.commit_table(table, (), (SetSnapshotRefUpdate(**main),))
    run(catalog, batch(catalog), catalog.load_table("db.t"))
    ref = catalog.load_table("db.t").metadata.refs["main"]
    assert (ref.max_snapshot_age_ms, ref.min_snapshots_to_keep, ref.max_ref_age_ms) == tuple(kept.values())
    landed(catalog, [1, 2, 3])


def test_staging_that_fails_removes_its_manifests(lake: SqlCatalog) -> None:
    """An input file that no manifest lists is found after manifests were written: these go again."""
    before = two_files(lake)
    on_storage = metadata_files_on_disk(before)
    wanted = batch(lake)
    ghost = replace(merges(wanted)[0].inputs[0], path="file:///no/such/file.parquet")
    wrong = with_merges(wanted, replace(merges(wanted)[0], inputs=(ghost,)))
    committer = PyIcebergCommitter(lake, before, lambda: NOW_MS)
    with pytest.raises(LookupError, match="no manifest of the current snapshot lists it"):
        committer.stage(committer.load(), wrong)
    assert metadata_files_on_disk(before) == on_storage


@pytest.mark.internal_error
def test_a_merge_that_cannot_be_staged_does_not_cost_the_rows(lake: SqlCatalog) -> None:
    """The same inside a commit: it is reported as an internal error, and the rows are committed."""
    before = two_files(lake)
    wanted = batch(lake)
    ghost = replace(merges(wanted)[0].inputs[0], path="file:///no/such/file.parquet")
    outcome = run(lake, with_merges(wanted, replace(merges(wanted)[0], inputs=(ghost,))), before)
    assert outcome.operations == ("append",)
    assert "no manifest of the current snapshot lists it" in outcome.internal_errors[0]
    table = landed(lake, [1, 2, 3])
    assert data_files_on_disk(table) == set(live_paths(table))


def test_an_interrupt_before_the_swap_leaves_nothing(lake: SqlCatalog) -> None:
    """Ctrl-C between staging and swap: manifests and data files of the batch are removed."""
    before = two_files(lake)
    on_storage = metadata_files_on_disk(before)
    wanted = batch(lake)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with failpoints.armed("before-swap", interrupt), pytest.raises(KeyboardInterrupt):
        run(lake, wanted, before)
    table = landed(lake, [1, 2])
    assert metadata_files_on_disk(table) == on_storage
    assert not data_files_on_disk(table) & wanted.paths()


def test_an_interrupt_during_the_swap_deletes_nothing(mini: MiniRest) -> None:
    """Ctrl-C while the catalog works: the commit lands, and its files are all there."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    committer = PyIcebergCommitter(catalog, before, lambda: NOW_MS)
    compare_and_swap = committer.commit

    def interrupted(loaded: Any, staged: Any) -> None:
        compare_and_swap(loaded, staged)
        raise KeyboardInterrupt

    committer.commit = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        commit_by(committer, wanted, before)
    landed(catalog, [1, 2, 3])


def test_a_silent_catalog_ends_as_unknown(mini: MiniRest) -> None:
    """Landed, then only errors: the caller is told to look, and what landed is readable."""
    catalog = mini.catalog("lake")
    before = two_files(catalog)
    wanted = batch(catalog)
    mini.fail_next_commit(Fault(500, "after"))
    committer = PyIcebergCommitter(catalog, before, lambda: NOW_MS)
    load, calls = committer.load, []

    def first_only() -> Any:
        calls.append(1)
        if len(calls) > 1:
            raise ConnectionError("no route to catalog")
        return load()

    committer.load = first_only  # type: ignore[method-assign]
    with pytest.raises(CommitStateUnknown, match=f"Look for a snapshot whose summary has {RUN_ID}={wanted.run_id}"):
        commit_by(committer, wanted, before)
    landed(catalog, [1, 2, 3])


@pytest.mark.parametrize(("fault", "reads"), [(None, 0), (Fault(409, "before"), 0), (Fault(500, "after"), 2)])
def test_manifests_of_a_known_commit_are_not_read_again(mini: MiniRest, fault: Fault | None, reads: int) -> None:
    """The store has their facts once the catalog has confirmed the commit, and none of a commit of unknown outcome."""
    catalog, store, io = mini.catalog("lake"), ManifestStore(), CountingIO()
    before = two_files(catalog)
    if fault:
        mini.fail_next_commit(fault)
    run(catalog, batch(catalog), before, store=store)
    table = landed(catalog, [1, 2, 3])
    assert LayoutReader(LIMIT, store=store).read(table.metadata, io) == layout_of(table)
    assert len(io.manifests) == reads


@pytest.mark.parametrize("version", ["1", "2"])
def test_time_never_goes_back_in_the_history(lake: SqlCatalog, version: str) -> None:
    """A clock a day behind others gives timestamps after the newest; readers refuse anything else."""
    before = two_files(lake, properties={"format-version": version})
    wanted = batch(lake)
    run(lake, wanted, before, now_ms=NOW_MS - 86_400_000)
    table = landed(lake, [1, 2, 3])
    times = [s.timestamp_ms for s in table.metadata.snapshots]
    assert times == sorted(set(times))
    with table.transaction() as change:
        change.set_properties({"a": "b"})
    behind = lake.load_table("db.t")
    run(lake, request_on(behind, [write(behind, [4])]), behind, now_ms=1_000)
    after = lake.load_table("db.t").metadata
    assert after.last_updated_ms >= max(entry.timestamp_ms for entry in after.metadata_log)


def test_manifests_stay_few_over_many_batches(lake: SqlCatalog) -> None:
    """Forty batches with a merge every fourth: a handful of manifests, all totals right."""
    make_table(lake, properties={"write.metadata.previous-versions-max": "5"})
    for number in range(40):
        kind = "ab"[number % 2]
        table = lake.load_table("db.t")
        inputs = small_files(table, kind)
        groups = [merged(table, inputs)] if len(inputs) >= 4 else []
        run(lake, request_on(table, [write(table, [number], kind)], groups, batch=number), table)
    table = landed(lake, list(range(40)))
    head = table.metadata.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) <= 8
    assert len(live_paths(table)) <= 8


def test_appends_alone_are_folded_too(lake: SqlCatalog) -> None:
    """Without merges small manifests are written together at Iceberg's own threshold, entries unchanged."""
    make_table(lake, properties={"commit.manifest.min-count-to-merge": "4"})
    for number in range(12):
        table = append(lake, [number], "ab"[number % 2], batch=number)
    head = table.metadata.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) <= 4
    assert [f.sequence_number for f in small_files(table)] == list(range(1, 13))
    landed(lake, list(range(12)))


def test_folding_can_be_turned_off(lake: SqlCatalog) -> None:
    """`commit.manifest-merge.enabled` = false leaves one manifest for each append."""
    off = {"commit.manifest.min-count-to-merge": "4", "commit.manifest-merge.enabled": "false"}
    make_table(lake, properties=off)
    for number in range(6):
        table = append(lake, [number])
    head = table.metadata.current_snapshot()
    assert head is not None
    assert len(head.manifests(table.io)) == 6


def test_all_listings_of_a_file_can_be_replaced(lake: SqlCatalog) -> None:
    """A table that lists one file in two manifests shows its rows twice; as many go as are wanted."""
    table = make_table(lake)
    file = write(table, [1])
    for _ in range(2):
        table = lake.load_table("db.t")
        run(lake, request_on(table, [file]), table)
    table = lake.load_table("db.t")
    run(lake, request_on(table, groups=[merged(table, small_files(table))]), table)
    assert ids_of(lake) == [1, 1]
    check(lake.load_table("db.t"))


def test_a_file_that_is_listed_again_while_it_is_merged_stays(lake: SqlCatalog) -> None:
    """Were it removed, the new listing would be live, and an expiry by Java would delete its file."""
    table = two_files(lake)
    inputs = small_files(table)
    group = merged(table, inputs)
    again = write(table, [1])
    rival = replace(again, path=inputs[0].path, size_bytes=inputs[0].size_bytes)
    run(lake, request_on(lake.load_table("db.t"), [rival]), lake.load_table("db.t"))
    table.io.delete(again.path)
    outcome = run(lake, request_on(table, groups=[group]), table)
    assert outcome.conflicts == ("merge of 2 files dropped: another writer listed a file of it again",)
    assert ids_of(lake) == [1, 1, 2]
    assert not removed_and_live(lake.load_table("db.t"))


def test_the_same_work_by_another_run_is_told_by_its_ledger(lake: SqlCatalog) -> None:
    """A restarted driver with a new run id finds the batch done, and deletes nothing that is live."""
    two_files(lake)
    wanted = batch(lake)
    run(lake, wanted, lake.load_table("db.t"))
    assert not run(lake, with_run_id(wanted), lake.load_table("db.t")).already_committed
    landed(lake, [1, 2, 3])


def test_a_catalog_without_the_table_says_so_at_the_swap(lake: SqlCatalog) -> None:
    """NoSuchTableError of a catalog without HTTP is a definite no as well."""
    table = two_files(lake)
    wanted = batch(lake)

    class Gone(SqlCatalog):
        def commit_table(self, *_: Any) -> Any:
            raise NoSuchTableError("Table does not exist: db.t")

    gone = Gone("lake", **lake.properties)
    with pytest.raises(TableError, match="the catalog refused it"):
        run(gone, wanted, table)
    gone.close()
    assert not data_files_on_disk(table) & wanted.paths()
