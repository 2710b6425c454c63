"""The history of a table: what each commit did, who made it, and what it cost, read from snapshot summaries alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table.refs import SnapshotRef, SnapshotRefType
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

import icesize
from icesize.environment import Environment
from icesize.planning.files import FileFact, PartitionKey
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.past.commits import PastCommit, commit_runs, history_of
from icesize.table.records.ledger import LedgerEntry
from icesize.table.records.summary import KIND, LEDGER, RUN_ID, SECONDS, SMALL_FILES_MAX, CommitKind
from tests.support.delete_files import delete_equal, delete_positions, upsert
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    NOW_MS,
    append,
    arrow,
    batch,
    head_id,
    make_table,
    merged,
    merges,
    new_files,
    request_on,
    rewrite_manifests,
    run,
    small_files,
    sqlite_catalog,
    two_files,
    write,
)

TOTALS = {"total_files": "total-data-files", "total_delete_files": "total-delete-files",
          "total_bytes": "total-files-size", "total_rows": "total-records"}  # fmt: skip


def opened(lake: SqlCatalog, **policy: object) -> SizedTable:
    """The table by the facade, with a clock that goes on whenever somebody looks at it."""
    looks = iter(range(1_000_000))
    environment = Environment(lambda: next(looks) * 0.5, lambda: NOW_MS, lambda seconds: None)
    return icesize.open(None, "db.t", catalog=lake, policy=policy or None, environment=environment)


def kinds(lake: SqlCatalog) -> list[str]:
    """What each commit was for, oldest first."""
    return [commit.kind for commit in reversed(opened(lake).history().commits)]


def same_as(report: Report, commit: PastCommit) -> None:
    """A commit and the report of the call that made it tell the same, the seconds up to the commit alone."""
    names = (
        "snapshot_ids", "rows", "rows_deleted", "files_added", "files_removed", "bytes_ingested", "bytes_written",
        "write_amplification", "small_files_max",
    )  # fmt: skip
    assert {n: getattr(commit, n) for n in names} == {n: getattr(report, n) for n in names}
    assert commit.seconds == pytest.approx(report.seconds["total"] - report.seconds["commit"], abs=0.001)


def test_a_table_without_snapshots_has_no_history(lake: SqlCatalog) -> None:
    """Nothing was written: no commits, no W, and a sentence that says so."""
    make_table(lake)
    history = opened(lake).history()
    assert (history.commits, history.commits_kept, history.since_ms) == ((), 0, None)
    assert str(history) == "lake.db.t  no history: nothing was ever written to it"
    assert history.to_dict() == {
        "table": "lake.db.t", "commits_kept": 0, "since_ms": None, "write_amplification": None,
        "seconds_per_batch": None, "commits": [],
    }  # fmt: skip


def test_a_batch_is_its_append_and_its_replace(lake: SqlCatalog) -> None:
    """One commit with the stream, both snapshots, W of all bytes, and totals of the table after it."""
    two_files(lake)
    request = batch(lake, 7)
    run(lake, request, lake.load_table("db.t"))
    table = lake.load_table("db.t")
    new, (merge,) = new_files(request)[0], merges(request)
    newest, *older = opened(lake).history().commits
    assert newest.snapshot_ids == tuple(s.snapshot_id for s in table.metadata.snapshots[-2:])
    assert (newest.kind, newest.operation, newest.author) == ("batch", "append+replace", "s batch 7")
    assert (newest.rows, newest.rows_deleted, newest.files_added, newest.files_removed) == (1, 0, 2, 2)
    assert newest.bytes_ingested == new.size_bytes
    assert newest.bytes_written == new.size_bytes + merge.files[0].size_bytes
    assert newest.write_amplification == newest.bytes_written / new.size_bytes
    assert (newest.total_files, newest.total_rows, newest.total_delete_files) == (2, 3, 0)
    assert newest.timestamp_ms == table.metadata.snapshots[-1].timestamp_ms
    assert [(commit.kind, commit.rows, commit.write_amplification) for commit in older] == [("append", 1, 1.0)] * 2


def test_compactions_tell_what_their_reports_told(lake: SqlCatalog) -> None:
    """Files, bytes, deleted rows and the small files that are left; the seconds are those before the commit."""
    table = two_files(lake)
    append(lake, [5], "b")
    delete_rows(lake, small_files(table)[0])
    report = opened(lake).compact()
    newest = opened(lake).history(limit=1).commits[0]
    same_as(report, newest)
    assert (newest.kind, newest.author, newest.rows, newest.rows_deleted) == ("merge", "icesize", 0, 1)
    assert (newest.bytes_ingested, newest.delete_files_removed) == (0, 1)


def test_each_kind_of_commit_is_told_apart(lake: SqlCatalog) -> None:
    """Batches, appends, merges, clustering, manifests, deletes, restores, and other writers."""
    make_table(lake)
    append(lake, [1, 2], batch=0)
    append(lake, [3])
    first = lake.load_table("db.t").metadata.snapshots[0].snapshot_id
    sized = opened(lake)
    sized.compact()
    lake.load_table("db.t").append(arrow([4]))
    for start in range(6):
        append(lake, range(start, 4000, 6))
    opened(lake, **{"target-file-size-bytes": 4000, "small-file-limit-bytes": 1500}).cluster(["id"])
    delete_ids(lake, small_files(lake.load_table("db.t"))[0], [99])
    sized.restore({"kind": "a"}, first)
    delete_ids(lake, FileFact("", 0, 0, PartitionKey(0, ("nowhere",))), [99])
    sized.remove_dangling_deletes()
    append(lake, [5], "b")
    rewrite_manifests(lake)
    table = lake.load_table("db.t")
    run(lake, request_on(table, [write(table, [6], "b")], absorbed=small_files(table, "b")), table)
    run(lake, batch(lake, 7), lake.load_table("db.t"))
    expected = [
        "batch", "append", "merge", "other", *["append"] * 6, "cluster", "other", "restore", "other", "deletes",
        "append", "manifests", "append", "batch",
    ]  # fmt: skip
    assert kinds(lake) == expected


@pytest.mark.parametrize("operation", ["overwrite", "delete", "replace"])
def test_a_rewrite_of_delete_files_brings_no_rows(lake: SqlCatalog, operation: str) -> None:
    """Whatever operation it took over from the equality deletes, it is no batch, and its bytes are not ingested."""
    make_table(lake)
    append(lake, range(40))
    for number in range(7):
        table = lake.load_table("db.t")
        if operation == "overwrite":
            upsert(table, arrow([number]), ["id"])
        elif operation == "delete":
            delete_equal(table, ["id"], [(number,)], PartitionKey(0, ("a",)))
        else:
            delete_positions(table, {small_files(table)[0].path: [number]})
    sizes = {"target-file-size-bytes": 1, "small-file-limit-bytes": 1, "close-file-cost-bytes": 0}
    report = opened(lake, **sizes).rewrite_deletes()
    assert report.operations == (operation,)
    history = history_of(lake.load_table("db.t").metadata, "t")
    newest = history.commits[0]
    assert (newest.kind, newest.rows, newest.bytes_ingested) == ("deletes", 0, 0)
    assert newest.bytes_written == report.bytes_written
    assert [commit.kind for commit in history.batches] == ["append"]


def test_other_writers_are_named_by_their_engine(lake: SqlCatalog) -> None:
    """Iceberg's Java library says where it runs; PyIceberg does not, and an overwrite does not tell what is new."""
    table = make_table(lake)
    table.append(arrow([1]), snapshot_properties={"engine-name": "spark", "engine-version": "4.1.4"})
    table.append(arrow([2]))
    table.overwrite(arrow([3]))
    history = opened(lake).history()
    told = [(c.operation, c.author, c.seconds, c.small_files_max) for c in reversed(history.commits)]
    assert told[:2] == [("append", "spark 4.1.4", None, None), ("append", "", None, None)]
    known = [c for c in history.commits if c.operation == "append"]
    assert [c.bytes_ingested for c in known] == [c.bytes_written for c in known]
    assert history.batches == []
    assert history.seconds_per_batch is None


def test_an_overwrite_of_others_counts_in_no_amplification(lake: SqlCatalog) -> None:
    """What it rewrote and what is new in it is not known, so W is that of the commits around it."""
    table = make_table(lake)
    table.append(arrow([1, 2]))
    lake.load_table("db.t").delete("id == 1")
    newest = opened(lake).history().commits[0]
    assert (newest.operation, newest.bytes_ingested, newest.write_amplification) == ("overwrite", None, None)
    assert newest.amplification_so_far == 1.0
    assert newest.rows_deleted == 1


def test_commits_before_this_release_show_blanks(lake: SqlCatalog) -> None:
    """No seconds and no count of small files; everything that Iceberg's own keys tell is there."""
    two_files(lake)
    commit = opened(lake).history().commits[0]
    assert (commit.seconds, commit.small_files_max) == (None, None)
    assert (commit.files_added, commit.rows, commit.total_files) == (1, 1, 2)


def test_the_newest_come_first_and_a_limit_leaves_the_sums_alone(lake: SqlCatalog) -> None:
    """W so far counts from the oldest commit that is kept, however few are listed."""
    two_files(lake)
    run(lake, batch(lake, 7), lake.load_table("db.t"))
    sized = opened(lake)
    whole, one = sized.history(), sized.history(limit=1)
    assert one.commits == whole.commits[:1]
    assert (one.commits_kept, one.since_ms) == (3, whole.commits[-1].timestamp_ms)
    assert one.write_amplification == whole.write_amplification
    written = sum(c.bytes_written or 0 for c in whole.commits)
    assert whole.write_amplification == written / sum(c.bytes_ingested or 0 for c in whole.commits)
    assert [c.timestamp_ms for c in whole.commits] == sorted((c.timestamp_ms for c in whole.commits), reverse=True)
    with pytest.raises(ValueError, match=r"'limit' \(0\) must be >= 1"):
        sized.history(limit=0)


def test_expired_commits_are_gone(lake: SqlCatalog) -> None:
    """Only what the table keeps is counted; half of a batch that expired leaves the other half."""
    two_files(lake)
    run(lake, batch(lake, 7), lake.load_table("db.t"))
    *older, head = (s.snapshot_id for s in lake.load_table("db.t").metadata.snapshots)
    lake.load_table("db.t").maintenance.expire_snapshots().by_ids(older).commit()
    assert head == head_id(lake.load_table("db.t"))
    history = opened(lake).history()
    assert [(c.kind, c.operation, c.rows) for c in history.commits] == [("merge", "replace", 0)]
    assert (history.commits_kept, history.write_amplification) == (1, None)


def test_a_lost_merge_leaves_no_count_of_small_files(lake: SqlCatalog) -> None:
    """The count was made with all merges; with one of them lost nobody knows it."""
    two_files(lake)
    table = lake.load_table("db.t")
    inputs = small_files(table, "a")
    told = {SECONDS: "1.5", SMALL_FILES_MAX: "1"}
    request = request_on(table, [write(table, [9], "b")], [merged(table, inputs)], summary=told)
    delete_rows(lake, inputs[0])
    outcome = run(lake, request, table)
    assert outcome.conflicts
    newest = opened(lake).history().commits[0]
    assert (newest.operation, newest.seconds, newest.small_files_max) == ("append", 1.5, None)


def test_no_manifest_is_read(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the table's metadata: storage that refuses everything is not noticed."""
    table = two_files(lake)
    for path in (tmp_path / "warehouse").rglob("*.avro"):
        path.unlink()
    assert len(history_of(table.metadata, "t").commits) == 2


def snapshot(number: int, operation: Operation, facts: dict[str, str], parent: int | None) -> Snapshot:
    """A snapshot of these facts."""
    return Snapshot(
        snapshot_id=number, parent_snapshot_id=parent, timestamp_ms=NOW_MS + number, manifest_list="m",
        sequence_number=number, summary=Summary(operation, **facts),
    )  # fmt: skip


FACTS = st.fixed_dictionaries(
    {},
    optional={
        **{
            key: st.integers(0, 2**62).map(str)
            for key in ("added-records", "deleted-records", "added-data-files", "added-files-size", *TOTALS.values())
        },
        RUN_ID: st.sampled_from("ab"),
        KIND: st.sampled_from([*CommitKind, "squash", ""]),
        LEDGER: st.sampled_from(["{}", "x", LedgerEntry("s", "q", 3).to_json()]),
        "icesize.seconds": st.sampled_from(["1.25", "-1", "nan", "inf", "soon", ""]),
        "icesize.bytes-ingested": st.sampled_from(["7", "many", "-3"]),
        "icesize.clustered-by": st.just("id"),
        "total-data-files": st.sampled_from(["5", "five", "-1"]),
        "engine-name": st.text(max_size=5),
    },
)  # fmt: skip


@given(told=st.lists(st.tuples(st.sampled_from(list(Operation)), FACTS), max_size=6), cut=st.sets(st.integers(0, 5)))
def test_any_summary_can_be_read(
    lake_metadata: Any, told: list[tuple[Operation, dict[str, str]]], cut: set[int]
) -> None:
    """Whatever summaries hold, nothing raises, every snapshot is in one commit, and sums are those of the parts."""
    chain = [snapshot(n, op, facts, None if n in cut else n - 1) for n, (op, facts) in enumerate(told, 1)]
    commits = [c for each in commit_runs(reversed(chain)) for c in each]
    assert [s for c in commits for s in c.snapshots] == chain[::-1]
    head = {"main": SnapshotRef(snapshot_id=len(chain), snapshot_ref_type=SnapshotRefType.BRANCH)} if chain else {}
    shown = {"snapshots": chain, "refs": head, "current_snapshot_id": len(chain) or None}
    history = history_of(lake_metadata.model_copy(update=shown), "t")
    assert bool(history.commits) == bool(chain)
    assert len(str(history)) > 0
    known = [c for c in history.commits if c.bytes_ingested is not None and c.bytes_written is not None]
    ingested = sum(c.bytes_ingested or 0 for c in known)
    expected = sum(c.bytes_written or 0 for c in known) / ingested if ingested else None
    assert history.write_amplification == expected
    for commit in history.commits:
        assert len(str(commit)) > 0
        assert commit.seconds in (None, 1.25)
        assert commit.total_files is None or commit.total_files >= 0
        assert commit.to_dict()["snapshot_ids"] == [*map(str, commit.snapshot_ids)]


@pytest.fixture(scope="module")
def lake_metadata(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Metadata of an empty table."""
    return make_table(sqlite_catalog(tmp_path_factory.mktemp("lake"))).metadata
