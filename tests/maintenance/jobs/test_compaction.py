"""The facade without Spark: plan, compact, inspect and after_batch on tables that PyIceberg filled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyiceberg.types import StringType

import icesize
from icesize import failpoints
from icesize.environment import Environment, WorkLimits
from icesize.errors import (
    CommitConflict,
    CommitStateUnknown,
    EngineUnavailable,
    PolicyError,
    RewriteFailed,
    TableError,
    TableNotFound,
    UnsupportedTable,
)
from icesize.events import Progress
from icesize.planning.plan import Plan
from icesize.report import Report
from icesize.results import Advice
from icesize.sized_table import SizedTable
from icesize.table.manifests.store import ManifestStore
from icesize.table.state.layouts import LayoutReader
from icesize.table.state.partition_changes import partitions_changed
from tests.support.armed import failing_at
from tests.support.delete_files import live_deletes
from tests.support.events import Observe, done_bytes, no_observer, plans_of
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    FakeTime,
    append,
    arrow,
    check,
    compact,
    data_files_on_disk,
    ids_of,
    layout_of,
    live_paths,
    local,
    make_table,
    metadata_files_on_disk,
    operations,
    referenced_metadata,
    small_files,
    sqlite_catalog,
)


def fill(lake: Any, appends: int, kinds: str = "ab", first: int = 0) -> Table:
    """PyIceberg's own appends, one small file in each of the partitions."""
    table = lake.load_table("db.t")
    for number in range(first, first + appends):
        for i, kind in enumerate(kinds):
            table.append(arrow([number * len(kinds) + i], kind))
    return lake.load_table("db.t")  # type: ignore[no-any-return]


def opened(lake: Any, limits: WorkLimits | None = None, observe: Observe = no_observer, **policy: object) -> SizedTable:
    time = FakeTime()
    environment = Environment(
        monotonic=lambda: time.seconds, sleep=time.sleep, limits=limits or WorkLimits(), observe=observe
    )
    return icesize.open(None, "db.t", catalog=lake, policy=policy or None, environment=environment)


def files_by_kind(table: Table) -> dict[str, int]:
    return {p.label.split("=")[1]: p.files for p in layout_of(table).partitions.values()}


def test_compact_merges_every_partition_in_one_replace(lake: SqlCatalog) -> None:
    """Each partition ends with one file, rows and totals unchanged, by one `replace` snapshot."""
    make_table(lake)
    before = metadata_files_on_disk(fill(lake, 5))
    report = opened(lake).compact()
    table = lake.load_table("db.t")
    check(table)
    assert ids_of(lake) == list(range(10))
    assert files_by_kind(table) == {"a": 1, "b": 1}
    assert operations(table) == ["append"] * 10 + ["replace"]
    assert report.operations == ("replace",)
    assert (report.files_added, report.files_removed, report.rows) == (2, 10, 0)
    assert report.bytes_written == sum(f.size_bytes for f in small_files(table))
    assert report.small_files_max == 1
    assert metadata_files_on_disk(table) == referenced_metadata(table)
    new = metadata_files_on_disk(table) - before
    assert report.metadata_bytes_written == sum(local(path).stat().st_size for path in new)


def test_a_second_compact_does_nothing(lake: SqlCatalog) -> None:
    """Converged: no group, no commit, and the report says so."""
    make_table(lake)
    fill(lake, 3)
    table = opened(lake)
    table.compact()
    report = table.compact()
    assert table.plan().groups == ()
    assert report.snapshot_ids == ()
    assert str(report).startswith("nothing to do in lake.db.t")
    assert operations(lake.load_table("db.t")).count("replace") == 1


def test_the_plan_changes_nothing_and_is_what_is_done(lake: SqlCatalog) -> None:
    """The observer gets the same plan as `plan` gives, progress ends with its bytes, and the report counts the same
    files."""
    make_table(lake)
    before = fill(lake, 3)
    events = list[object]()
    table = opened(lake, observe=events.append)
    plan = table.plan()
    assert lake.load_table("db.t").metadata_location == before.metadata_location
    report = table.compact()
    assert plans_of(events) == [plan]
    assert done_bytes(events) == plan.bytes_to_write
    assert (report.files_removed, report.files_added) == (plan.files_removed, plan.files_added)


def test_a_filter_limits_the_work_and_tells_what_it_left_out(lake: SqlCatalog) -> None:
    """Only wholly covered partitions are merged; those that match in part are counted."""
    make_table(lake, {"ts": "day"})
    for hour in (1, 2, 25, 26):
        append(lake, [hour])
    sized = opened(lake)
    where = "ts < '1970-01-02T02:00:00'"
    note = "1 partitions match the filter only in part and were left out"
    assert note in sized.plan(where).notes
    assert Advice(note) in sized.inspect(where).advice
    report = sized.compact(where)
    assert report.notes[0] == note
    assert report.files_removed == 2
    assert {p.label: p.files for p in layout_of(lake.load_table("db.t")).partitions.values()} == {
        "ts_day=1970-01-01": 1,
        "ts_day=1970-01-02": 2,
    }


def test_an_unpartitioned_table_is_compacted(lake: SqlCatalog) -> None:
    """No partition fields: all files are one group."""
    make_table(lake, {})
    fill(lake, 4, "a")
    assert opened(lake).compact().files_removed == 4
    assert len(live_paths(lake.load_table("db.t"))) == 1
    assert ids_of(lake) == [0, 1, 2, 3]


def test_a_v1_table_is_compacted(lake: SqlCatalog) -> None:
    """Format v1 takes the same `replace`."""
    make_table(lake, properties={"format-version": "1"})
    fill(lake, 3)
    opened(lake).compact()
    table = lake.load_table("db.t")
    check(table)
    assert files_by_kind(table) == {"a": 1, "b": 1}
    assert ids_of(lake) == list(range(6))


def test_deletes_are_applied_and_go(lake: SqlCatalog) -> None:
    """Rows deleted by position and by equality are left out, and no delete file is left that could hit any."""
    make_table(lake)
    first, second, _ = small_files(fill(lake, 3, "a"))
    delete_rows(lake, first)
    delete_ids(lake, second, [1, 2])
    append(lake, [1])
    report = opened(lake).compact()
    table = lake.load_table("db.t")
    check(table)
    assert ids_of(lake) == [1]
    assert (report.rows_deleted, files_by_kind(table)) == (3, {"a": 1})
    assert live_deletes(table) == []


def test_a_policy_may_leave_files_with_deletes_alone(lake: SqlCatalog) -> None:
    """A file whose rows were deleted is not merged then, its rows stay deleted, its partition is named."""
    make_table(lake, properties={"icesize.policy.apply-deletes": "false"})
    delete_rows(lake, small_files(fill(lake, 3, "a"))[0])
    report = opened(lake).compact()
    assert ids_of(lake) == [1, 2]
    assert report.skipped["HAS_DELETES"] == 1
    assert report.ineligible == {"kind=a": 1}
    assert files_by_kind(lake.load_table("db.t")) == {"a": 2}


@pytest.mark.parametrize("damage", ["missing", "truncated", "garbage"])
def test_a_damaged_file_costs_its_group_only(lake: SqlCatalog, damage: str) -> None:
    """A corrupt or missing data file drops that merge with its name; other partitions are merged."""
    make_table(lake)
    table = fill(lake, 3)
    input_file = small_files(table, "a")[0]
    replaced = {f.path for f in small_files(table, "b")}
    path = local(input_file.path)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(content[: len(content) // 2] if damage == "truncated" else b"\0" * len(content))
    report = opened(lake).compact()
    assert files_by_kind(lake.load_table("db.t")) == {"a": 3, "b": 1}
    assert report.files_removed == 3
    (note,) = report.notes
    assert "merge of 3 files in 'kind=a' dropped" in note
    assert input_file.path in note
    table = lake.load_table("db.t")
    assert data_files_on_disk(table) - set(live_paths(table)) == replaced, "no half of a merge is left over"


@pytest.mark.parametrize("call", ["compact", "after_batch"])
def test_all_groups_damaged_is_an_error(lake: SqlCatalog, call: str) -> None:
    """Nothing could be merged, which is not the same as nothing to do: the error names partitions and files."""
    make_table(lake)
    gone = [small_files(fill(lake, 9), kind)[0].path for kind in ("a", "b")]
    for path in gone:
        local(path).unlink()
    with pytest.raises(RewriteFailed, match=r"Cannot compact 'lake\.db\.t': every merge failed.*unchanged") as caught:
        getattr(opened(lake), call)()
    reasons = cast("tuple[str, ...]", caught.value.reasons)
    for kind, path in zip(("a", "b"), gone, strict=True):
        (reason,) = (r for r in reasons if f"'kind={kind}' dropped" in r)
        assert path in reason
        assert reason in str(caught.value)
    table = lake.load_table("db.t")
    assert operations(table) == ["append"] * len(operations(table))
    assert data_files_on_disk(table) == set(live_paths(table)) - set(gone)


def test_an_error_tells_the_first_reasons_and_counts_the_others(lake: SqlCatalog) -> None:
    """Thousands of partitions on a storage that is away are no message of a megabyte; all reasons are at hand."""
    make_table(lake)
    for file in small_files(fill(lake, 2, "abcd")):
        local(file.path).unlink()
    with pytest.raises(RewriteFailed, match=r"; and 1 more$") as caught:
        opened(lake).compact()
    assert str(caught.value).count("merge of 2 files in 'kind=") == 3
    assert len(cast("tuple[str, ...]", caught.value.reasons)) == 4


def test_merges_that_failed_come_first(lake: SqlCatalog) -> None:
    """In the notes and in the text, before what the table's settings make worth knowing."""
    make_table(lake, properties={"icesize.policy.nonsense": "1"})
    local(small_files(fill(lake, 3), "a")[0].path).unlink()
    report = opened(lake).compact()
    failed, warning = report.notes
    assert failed.startswith("merge of 3 files in 'kind=a' dropped: Cannot read")
    assert "nonsense" in warning
    assert str(report).index(failed) < str(report).index(warning)


def test_a_rival_compaction_is_told_and_nothing_is_left_over(mini: MiniRest) -> None:
    """Another compaction comes first: its result stands, ours is dropped, named and removed."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    fill(catalog, 3, "a")

    def faster() -> None:
        opened(mini.catalog("rival")).compact()

    mini.before_swap = faster
    report = opened(catalog).compact()
    assert report.snapshot_ids == ()
    assert report.conflicts == ("merge of 3 files dropped: another writer removed a file of it",)
    assert str(report) == f"nothing was committed to lake.db.t  {report.conflicts[0]}"
    table = catalog.load_table("db.t")
    check(table)
    assert operations(table).count("replace") == 1
    assert len(data_files_on_disk(table)) == 4
    assert metadata_files_on_disk(table) == referenced_metadata(table)


def test_a_lost_answer_is_looked_up(mini: MiniRest) -> None:
    """A compaction that landed behind a reset connection is reported as done."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    fill(catalog, 3, "a")
    mini.fail_next_commit(Fault("reset", "after"))
    assert opened(catalog).compact().operations == ("replace",)
    assert operations(catalog.load_table("db.t")).count("replace") == 1


def test_an_interrupt_after_the_merges_leaves_nothing(lake: SqlCatalog) -> None:
    """Ctrl-C with merged files written: they are removed, the table is as before."""
    make_table(lake)
    before = fill(lake, 3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    with failpoints.armed("files-written", interrupt), pytest.raises(KeyboardInterrupt):
        opened(lake).compact()
    assert data_files_on_disk(before) == set(live_paths(lake.load_table("db.t")))


def test_the_schema_of_the_moment_is_written(lake: SqlCatalog) -> None:
    """Columns added since the files were written are NULL in the merged file."""
    make_table(lake)
    with fill(lake, 2, "a").update_schema() as update:
        update.add_column("note", StringType())
    opened(lake).compact()
    rows = lake.load_table("db.t").scan().to_arrow()
    assert rows["note"].null_count == 2
    assert sorted(rows["id"].to_pylist()) == [0, 1]


def test_after_batch_keeps_a_partition_at_its_bound(lake: SqlCatalog) -> None:
    """Another writer appends without end; after each call no touched partition holds more than k small files."""
    make_table(lake)
    total = 0
    for number in range(14):
        fill(lake, 1, "a", first=number)
        report = opened(lake, max_small_files=3).after_batch()  # opened anew each time: as after a restart
        total += report.files_removed
        assert files_by_kind(lake.load_table("db.t"))["a"] <= 3
    assert ids_of(lake) == list(range(14))
    assert total < 14 * 3, "merging everything each time would be no policy"


def test_after_batch_leaves_partitions_within_their_bound(lake: SqlCatalog) -> None:
    """What changed since our last merge is looked at, and what an earlier call left above the bound; nothing else."""
    make_table(lake)
    fill(lake, 5, "ab")
    fill(lake, 2, "c", first=10)
    table = lake.load_table("db.t")
    assert partitions_changed(table.metadata, table.io, ManifestStore()) is None
    opened(lake).compact("kind = 'b'")
    fill(lake, 3, "b", first=20)
    table = lake.load_table("db.t")
    changed = partitions_changed(table.metadata, table.io, ManifestStore())
    assert changed is not None
    assert {key.values for key in changed} == {("b",)}
    untouched = {f.path for f in small_files(table, "c")}
    report = opened(lake, max_small_files=2).after_batch()
    table = lake.load_table("db.t")
    counts = files_by_kind(table)
    assert report.partitions_touched == 2
    assert counts["a"] <= 2
    assert counts["b"] <= 2
    assert {f.path for f in small_files(table, "c")} == untouched


def test_after_batch_sees_what_came_between_our_plan_and_its_commit(mini: MiniRest) -> None:
    """Rows that a rival added while we merged are older than our snapshot, yet not forgotten."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    fill(catalog, 4, "a")
    fill(catalog, 4, "b")

    def rival() -> None:
        fill(mini.catalog("rival"), 1, "b", first=90)

    mini.before_swap = rival
    opened(catalog).compact("kind = 'a'")
    table = catalog.load_table("db.t")
    assert operations(table)[-1] == "replace"
    changed = partitions_changed(table.metadata, table.io, ManifestStore())
    assert changed is not None
    assert {key.values for key in changed} == {("b",)}


def test_rivals_whose_manifests_we_rewrote_are_seen_too(mini: MiniRest) -> None:
    """A rival's entry that our snapshot copied into its own manifest still tells whose it is."""
    catalog = mini.catalog("lake")
    make_table(catalog, properties={"commit.manifest.min-count-to-merge": "2"})
    append(catalog, [1])
    append(catalog, [2])

    def rivals() -> None:
        append(mini.catalog("rival"), [90], "b")
        append(mini.catalog("rival"), [91], "c")

    mini.before_swap = rivals
    opened(catalog).compact("kind = 'a'")
    table = catalog.load_table("db.t")
    assert operations(table)[-1] == "replace"
    changed = partitions_changed(table.metadata, table.io, ManifestStore())
    assert changed is not None
    assert {key.values for key in changed} == {("b",), ("c",)}


def test_an_overwrite_by_others_is_a_change(lake: SqlCatalog) -> None:
    """A row-level job (copy on write, as MERGE INTO does) counts as new files in its partition."""
    make_table(lake)
    fill(lake, 2, "ab")
    opened(lake).compact()
    table = lake.load_table("db.t")
    table.overwrite(arrow([70], "a"), "kind = 'a'")
    table = lake.load_table("db.t")
    changed = partitions_changed(table.metadata, table.io, ManifestStore())
    assert changed is not None
    assert {key.values for key in changed} == {("a",)}


def test_inspect_counts_what_is_there(lake: SqlCatalog) -> None:
    """Partitions, files, bytes and the worst partition, as values that JSON can hold."""
    make_table(lake)
    table = fill(lake, 2, "ab")
    append(lake, [50], "a")
    inspection = opened(lake).inspect()
    data = json.loads(json.dumps(inspection.to_dict()))
    assert (data["partitions"], data["files"], data["rows"], data["small_files"]) == (2, 5, 5, 5)
    assert data["size_bytes"] == sum(f.size_bytes for f in small_files(lake.load_table("db.t")))
    assert data["worst"][0]["partition"] == {"kind": "a"}
    assert data["worst"][0]["small_files"] == 3
    assert opened(lake).inspect("kind = 'b'").files == 2
    assert table.metadata.table_uuid == lake.load_table("db.t").metadata.table_uuid


def test_policies_come_from_the_table_unless_given(lake: SqlCatalog) -> None:
    """Argument over table property over Iceberg's own; 0 turns merging off and says so; unknown properties warn."""
    properties = {
        "write.target-file-size-bytes": "1000000",
        "icesize.policy.max-small-files": "4",
        "icesize.policy.max-smal-files": "5",
    }
    make_table(lake, properties=properties)
    fill(lake, 3, "a")
    assert opened(lake).policy.target_file_size_bytes == 1_000_000
    assert opened(lake).policy.max_small_files == 4
    assert opened(lake, max_small_files=2).policy.max_small_files == 2
    assert any("max-smal-files" in advice.sentence for advice in opened(lake).inspect().advice)
    off = opened(lake, small_file_limit_bytes=0)
    assert off.compact().snapshot_ids == ()
    assert any("merging is off" in note for note in off.compact().notes)
    with pytest.raises(PolicyError, match="did you mean 'max-small-files'"):
        opened(lake, max_smal_files=2)


def rounds_of(lake: Any, partitions: int) -> WorkLimits:
    """Limits by which this process commits after about so many partitions of a filled table."""
    sizes = sorted(partition.size_bytes for partition in layout_of(lake.load_table("db.t")).partitions.values())
    return WorkLimits(bytes_without_spark=partitions * sizes[-1])


def test_more_than_one_process_rewrites_at_once_is_committed_in_rounds(lake: SqlCatalog) -> None:
    """Five partitions, two at a time: three commits, and in sum what one would have done."""
    make_table(lake)
    fill(lake, 4, "abcde")
    events = list[object]()
    table = opened(lake, rounds_of(lake, 2), events.append)
    report = table.compact()
    [plan] = plans_of(events)
    after = lake.load_table("db.t")
    check(after)
    assert ids_of(lake) == list(range(20))
    assert files_by_kind(after) == dict.fromkeys("abcde", 1)
    assert operations(after)[20:] == ["replace"] * 3
    assert report.operations == ("replace",) * 3
    assert list(report.snapshot_ids) == [snapshot.snapshot_id for snapshot in after.snapshots()[20:]]
    assert (report.files_added, report.files_removed, report.partitions_touched) == (5, 20, 5)
    assert report.bytes_written == sum(f.size_bytes for f in small_files(after))
    assert plan.files_removed == 20
    assert done_bytes(events) == plan.bytes_to_write
    assert table.compact().snapshot_ids == ()


def test_a_group_larger_than_a_round_is_merged(lake: SqlCatalog) -> None:
    """A bound that pays for no partition at all does not keep any from being merged."""
    make_table(lake)
    fill(lake, 3, "ab")
    report = opened(lake, WorkLimits(bytes_without_spark=1)).compact()
    assert len(report.snapshot_ids) == 2
    assert files_by_kind(lake.load_table("db.t")) == {"a": 1, "b": 1}


def test_an_interrupt_keeps_the_rounds_before_it(lake: SqlCatalog) -> None:
    """What is committed stays; the round that was under way leaves no file behind."""
    make_table(lake)
    fill(lake, 3, "abc")
    reached: list[int] = []

    def interrupt() -> None:
        reached.append(1)
        if len(reached) == 2:
            raise KeyboardInterrupt

    with failpoints.armed("files-written", interrupt), pytest.raises(KeyboardInterrupt):
        opened(lake, rounds_of(lake, 1)).compact()
    after = lake.load_table("db.t")
    check(after)
    assert sorted(files_by_kind(after).values()) == [1, 3, 3]
    inputs_of_the_round = 3
    assert len(data_files_on_disk(after) - set(live_paths(after))) == inputs_of_the_round


def test_a_round_of_which_every_merge_fails_keeps_no_other_from_being_merged(lake: SqlCatalog) -> None:
    """Partitions that can be merged are, also after it; the report begins with why one could not."""
    make_table(lake)
    fill(lake, 3, "abc")
    table = opened(lake, rounds_of(lake, 1))
    first = table.plan().groups[0].inputs[0].path
    local(first).write_bytes(b"no parquet")
    report = table.compact()
    assert sorted(files_by_kind(lake.load_table("db.t")).values()) == [1, 1, 3]
    assert len(report.snapshot_ids) == 2
    assert "every merge failed, and its files are unchanged" in report.notes[0]
    assert first in report.notes[0]
    with pytest.raises(RewriteFailed, match="every merge failed"):
        table.compact()


@pytest.mark.parametrize("work", ["delete rows", "merge"])
def test_what_others_change_between_rounds_is_left_to_the_next_call(lake: SqlCatalog, work: str) -> None:
    """Rows that are deleted while an earlier round runs stay deleted, and rows that are moved are there once."""
    make_table(lake)
    fill(lake, 3, "abc")
    table = opened(lake, rounds_of(lake, 1), lambda event: change(event))
    late = table.plan().groups[-1]

    def change(event: object) -> None:
        if isinstance(event, Progress) and event.done and len(lake.load_table("db.t").snapshots()) == 9:
            delete_rows(lake, late.inputs[0]) if work == "delete rows" else compact(lake, late.label[-1])

    report = table.compact()
    after = lake.load_table("db.t")
    check(after)
    assert len(ids_of(lake)) == (8 if work == "delete rows" else 9)
    assert files_by_kind(after)[late.label[-1]] == 1
    if work == "delete rows":
        assert (len(report.snapshot_ids), report.rows_deleted, report.conflicts) == (3, 1, ())
        return
    assert len(report.snapshot_ids) == 2
    [conflict] = report.conflicts
    assert f"in '{late.label}' dropped: another writer" in conflict


def test_rounds_end_where_partitions_become_others(lake: SqlCatalog) -> None:
    """A partition spec that changes between two rounds leaves the rest to the next call; no row is lost."""
    make_table(lake)
    fill(lake, 3, "abc")
    table = opened(lake, rounds_of(lake, 1), lambda event: change(event))

    def change(event: object) -> None:
        if isinstance(event, Progress) and event.done and len(lake.load_table("db.t").specs()) == 1:
            with lake.load_table("db.t").update_spec() as update:
                update.add_identity("id")

    report = table.compact()
    after = lake.load_table("db.t")
    assert ids_of(lake) == list(range(9))
    assert len(live_paths(after)) in (7, 9)
    assert len(report.snapshot_ids) + len(report.conflicts) == 1
    assert report.notes[-1] == "2 merges left: another writer changed the partition spec"


@pytest.mark.parametrize("what", ["late", "dropped"])
def test_rounds_before_the_end_are_reported(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """A call that is late loads the table no more; one whose table is gone reports what it has committed."""
    make_table(lake)
    fill(lake, 3, "abc")
    time, loads = FakeTime(), list[object]()
    environment = Environment(monotonic=lambda: time.seconds, sleep=time.sleep, limits=rounds_of(lake, 1))
    table = icesize.open(None, "db.t", catalog=lake, environment=environment)

    def gone(identifier: object) -> Table:
        loads.append(identifier)
        raise NoSuchTableError("gone")

    def end() -> None:
        time.seconds += 60 if what == "late" else 0
        monkeypatch.setattr(lake, "load_table", gone)

    with failpoints.armed("after-swap", end):
        report = table.compact(budget_seconds=30)
    why = "the budget of 30 s is used up" if what == "late" else "Cannot find table 'lake.db.t'; did you mean 't'?"
    assert (len(report.snapshot_ids), report.notes[-1]) == (1, f"2 merges left: {why}")
    assert len(loads) == (what == "dropped")
    monkeypatch.undo()
    assert ids_of(lake) == list(range(9))


@pytest.mark.parametrize(
    "error", [CommitConflict("others won"), TableError("no answer"), CommitStateUnknown("lost"), OSError("no storage")]
)
def test_rounds_before_an_error_are_reported(lake: SqlCatalog, error: Exception) -> None:
    """A commit that fails in a later round ends the call; a report has the round before it and what is left."""
    make_table(lake)
    fill(lake, 3, "abc")
    with failing_at(2, "files-written", error) as reached:
        if isinstance(error, CommitStateUnknown):
            with pytest.raises(CommitStateUnknown, match="lost") as raised:
                opened(lake, rounds_of(lake, 1)).compact()
            report = raised.value.report
        else:
            report = opened(lake, rounds_of(lake, 1)).compact()
    assert len(reached) == 2
    after = lake.load_table("db.t")
    check(after)
    assert isinstance(report, Report)
    assert report.snapshot_ids == (after.metadata.current_snapshot_id,)
    assert (report.files_added, report.files_removed) == (1, 3)
    if not isinstance(error, CommitStateUnknown):
        sentences = report.conflicts if isinstance(error, CommitConflict) else report.notes[-1:]
        why = f"OSError: {error}" if isinstance(error, OSError) else str(error)
        assert sentences == (f"2 merges left: {why}",)
    assert ids_of(lake) == list(range(9))


def test_an_error_while_a_later_round_is_planned_is_reported(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storage that fails while manifests are read again ends the call; a report has the round before it."""
    make_table(lake)
    fill(lake, 3, "abc")
    table, right, reads = opened(lake, rounds_of(lake, 1)), LayoutReader.read, list[None]()

    def read(*given: Any, **options: Any) -> Any:
        reads.append(None)
        if len(reads) == 2:
            raise OSError("no storage")
        return right(*given, **options)

    monkeypatch.setattr(LayoutReader, "read", read)
    report = table.compact()
    assert (len(report.snapshot_ids), report.notes[-1]) == (1, "2 merges left: OSError: no storage")


@pytest.mark.internal_error
def test_a_bug_in_a_later_round_is_raised(lake: SqlCatalog) -> None:
    """No report makes a mistake in icesize look like a property of the table."""
    make_table(lake)
    fill(lake, 3, "abc")
    with failing_at(2, "files-written", IndexError("a bug")), pytest.raises(IndexError, match="a bug"):
        opened(lake, rounds_of(lake, 1)).compact()


@pytest.mark.parametrize("error", [CommitConflict("others won"), OSError("no storage")])
def test_an_error_of_the_first_round_is_raised(lake: SqlCatalog, error: Exception) -> None:
    """A call that has committed nothing raises what hindered it."""
    make_table(lake)
    fill(lake, 3, "abc")
    with (
        failing_at(1, "files-written", error),
        pytest.raises(type(error), match=str(error)),
    ):
        opened(lake, rounds_of(lake, 1)).compact()
    assert operations(lake.load_table("db.t"))[-1] == "append"


@pytest.mark.parametrize("work", ["append", "sink"])
def test_writing_needs_spark(lake: SqlCatalog, work: str) -> None:
    """Without a session there is nothing to write rows from."""
    make_table(lake)
    table = opened(lake)
    with pytest.raises(EngineUnavailable, match=f"Cannot {work}: it needs Spark"):
        table.append(None) if work == "append" else table.sink("s")  # type: ignore[arg-type]


def test_a_table_prints_its_name(lake: SqlCatalog) -> None:
    """In a notebook or a debugger it is told from another one."""
    make_table(lake)
    assert repr(opened(lake)) == "SizedTable('lake.db.t')"


def test_wrong_names_are_told_when_the_table_is_opened(lake: SqlCatalog) -> None:
    """Table, namespace and unsupported features are told by `open`, not by the first batch."""
    make_table(lake)
    with pytest.raises(TableNotFound, match=r"Cannot find table 'lake\.db\.tt'; did you mean 't'\?"):
        icesize.open(None, "db.tt", catalog=lake)
    make_table(lake, name="db.secret", properties={"encryption.key-id": "k"})
    with pytest.raises(UnsupportedTable, match=r"encryption\.key-id"):
        icesize.open(None, "lake.db.secret", catalog=lake)


def test_a_catalog_that_does_not_answer_is_told_in_a_sentence(lake: SqlCatalog) -> None:
    """Whatever the catalog's client raises becomes one TableError."""

    class Down(SqlCatalog):
        def load_table(self, *_: Any) -> Any:
            raise ConnectionError("no route to host\nlong page")

    down = Down("lake", **lake.properties)
    with pytest.raises(TableError, match=r"Cannot load 'lake\.db\.t': ConnectionError: no route to host$"):
        icesize.open(None, "db.t", catalog=down)
    down.close()


def test_a_table_is_opened_by_pyicebergs_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark and catalog object the first part of the name is a catalog that PyIceberg knows."""
    mine = sqlite_catalog(tmp_path)
    make_table(mine)
    fill(mine, 2, "a")
    properties = {"type": "sql", "uri": f"sqlite:///{tmp_path}/catalog.db"}
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG.get_catalog_config", lambda name: properties)
    table = icesize.open(None, "lake.db.t")
    assert table.name == "lake.db.t"
    assert table.compact().files_removed == 2
    assert ids_of(mine) == [0, 1]
    mine.close()
    table._handle.catalog.close()


def test_streams_are_listed_and_forgotten(lake: SqlCatalog) -> None:
    """Each stream shows its newest batch; a forgotten one may start anywhere; an unknown one is told."""
    make_table(lake)
    append(lake, [1], batch=7)
    table = opened(lake)
    assert [(e.stream_id, e.batch_id) for e in table.streams()] == [("s", 7)]
    table.forget_stream("s")
    assert table.streams() == []
    append(lake, [2], batch=0)
    with pytest.raises(TableError, match=r"Cannot forget stream 'nope': 'lake.db.t' has no such stream"):
        table.forget_stream("nope")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stream_is_forgotten_once_whatever_the_catalog_answers(mini: MiniRest, when: Moment) -> None:
    """An answer that is lost is looked up, and is no unknown stream then."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    append(catalog, [1], batch=7)
    mini.fail_next_commit(Fault(503, when))
    table = opened(catalog)
    table.forget_stream("s")
    assert table.streams() == []


def test_a_batch_that_comes_meanwhile_is_forgotten_with_its_stream(mini: MiniRest) -> None:
    """The entry that goes is one that was seen: the swap fails where a batch came first, and is tried again."""
    catalog = mini.catalog("lake")
    make_table(catalog)
    append(catalog, [1], batch=7)
    rival = mini.catalog("rival")
    again = []

    def come_first() -> None:
        append(rival, [2], batch=8)
        mini.before_swap = lambda: again.append(True)

    mini.before_swap = come_first
    table = opened(catalog)
    table.forget_stream("s")
    assert (table.streams(), ids_of(catalog)) == ([], [1, 2])
    assert again == [True]


def test_nothing_to_do_on_an_empty_table(lake: SqlCatalog) -> None:
    """A table without a snapshot can be planned, compacted and inspected."""
    make_table(lake)
    table = opened(lake)
    assert table.compact().snapshot_ids == ()
    assert table.after_batch().snapshot_ids == ()
    assert table.inspect().files == 0


def test_many_partitions_are_merged_in_one_commit(lake: SqlCatalog) -> None:
    """Forty partitions of three files each become forty files in one snapshot."""
    make_table(lake, {"id": "identity"})
    table = lake.load_table("db.t")
    for _ in range(3):
        table.append(arrow(range(40)))
    report = opened(lake).compact()
    assert (report.files_removed, report.files_added) == (120, 40)
    assert len(live_paths(lake.load_table("db.t"))) == 40
    check(lake.load_table("db.t"))


@pytest.mark.engine
def test_passes_over_a_growing_table_write_little_again(lake: Any) -> None:
    """Of 24 files with a pass after each at most three small ones stay, and rows are not written again each time."""
    make_table(lake)
    sized = opened(lake, max_small_files=3)
    rewritten = 0
    for number in range(24):
        fill(lake, 1, "a", number)
        report = sized.maintain()
        rewritten += sum(merge.bytes_written for merge in report.merges)
        assert len(small_files(lake.load_table("db.t"))) <= 3
    table = lake.load_table("db.t")
    assert ids_of(lake) == list(range(24))
    # merged to one each time, the 24 files would be written again 12 times over
    assert rewritten < 4 * 24 * max(file.size_bytes for file in small_files(table))


def test_a_table_that_has_stopped_growing_is_merged_to_the_fewest_files(lake: Any) -> None:
    """An hour after the newest rows a pass leaves one small file; what it would do is told before."""
    make_table(lake)
    sized, later = opened_later(lake, 0), opened_later(lake, 3_600_001)
    fill(lake, 4, "a")
    assert len(sized.maintain().merges) == 1
    fill(lake, 2, "a", 4)
    assert cast(Plan, sized.plan_maintenance().merges).files_removed == 0
    assert sized.maintain().merges == ()
    assert len(live_paths(lake.load_table("db.t"))) == 3
    assert cast(Plan, later.plan_maintenance().merges).files_removed == 3
    assert [merge.files_removed for merge in later.maintain().merges] == [3]
    assert ids_of(lake) == list(range(6))


def opened_later(lake: Any, passed_ms: int) -> SizedTable:
    """The table as so long after its last commit."""
    environment = Environment(now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + passed_ms)
    return icesize.open(None, "db.t", catalog=lake, policy={"max-small-files": 3}, environment=environment)
