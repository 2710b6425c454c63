"""The facade's clustering without Spark: what is laid out, what is remembered, and what is left alone."""

from __future__ import annotations

import random
import re
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import LongType

import icesize
from icesize import failpoints
from icesize.environment import Environment, WorkLimits
from icesize.errors import ClusteringOff, CommitConflict, RewriteFailed, TableError
from icesize.events import Planned, Progress
from icesize.sized_table import SizedTable
from icesize.table.commit.compared_inputs import REMOVED
from tests.support.armed import failing_at
from tests.support.events import Observe, done_bytes, no_observer, plans_of
from tests.support.examples import examples, sampled
from tests.support.row_deletes import delete_rows
from tests.support.tables import (
    FakeTime,
    append,
    arrow,
    check,
    compact,
    data_files_on_disk,
    head_id,
    ids_of,
    layout_of,
    live_paths,
    local,
    make_table,
    operations,
    small_files,
    sqlite_catalog,
)
from tests.support.v3_tables import as_v3

ROWS = 1_500
TARGET_BYTES = 20_000


@pytest.fixture
def lake(tmp_path: Path) -> SqlCatalog:
    return sqlite_catalog(tmp_path)


def fill(lake: SqlCatalog, files: int, kinds: str = "a", seed: int = 1) -> Table:
    """PyIceberg's own appends: files of about 20 kB in each partition, ids in any order."""
    table = lake.load_table("db.t")
    chance = random.Random(seed)
    for _ in range(files):
        for kind in kinds:
            table.append(arrow([chance.randrange(10**6) for _ in range(ROWS)], kind))
    return lake.load_table("db.t")


def opened(lake: Any, limits: WorkLimits | None = None, observe: Observe = no_observer, **policy: object) -> SizedTable:
    """The table with files of 20 kB."""
    time = FakeTime()
    environment = Environment(
        monotonic=lambda: time.seconds, sleep=time.sleep, limits=limits or WorkLimits(), observe=observe
    )
    policy = {"target-file-size-bytes": TARGET_BYTES, "small-file-limit-bytes": 8_000} | policy
    return icesize.open(None, "db.t", catalog=lake, policy=policy, environment=environment)


def test_a_sort_lays_rows_out_once_and_is_remembered(lake: SqlCatalog) -> None:
    """A value is in one file or two where it was in all; rows are the same, and nothing is left to do."""
    make_table(lake)
    before = ids_of_filled(lake, 8)
    table = opened(lake)
    planned = table.plan_clustering(["id"])
    assert planned is not None
    report = table.cluster(["id"])
    assert ids_of(lake) == before
    assert report.operations == ("replace",)
    assert (report.files_removed, report.rows) == (8, 0)
    # sorted rows take fewer bytes
    assert 4 <= report.files_added <= planned.groups[0].outputs
    assert report.clustering is not None
    opens = report.clustering["before"]["id"]["point_files"], report.clustering["after"]["id"]["point_files"]
    assert opens[0] >= 7
    assert opens[1] == 1.0
    assert report.clustering["amplification"] < 1.1
    loaded = lake.load_table("db.t")
    check(loaded)
    properties = loaded.metadata.properties
    assert (properties["icesize.cluster.by"], "icesize.cluster.strategy" in properties) == ("id", False)
    assert [field.source_id for field in loaded.sort_order().fields] == [1]
    assert set(loaded.inspect.files()["sort_order_id"].to_pylist()) == {loaded.sort_order().order_id}
    again = table.cluster()
    assert (again.snapshot_ids, again.skipped) == ((), {"CLUSTERED": report.files_added})
    assert table.compact().snapshot_ids == ()


def ids_of_filled(lake: SqlCatalog, files: int, kinds: str = "a") -> list[int]:
    """The ids of a table after `fill`."""
    fill(lake, files, kinds)
    return ids_of(lake)


@pytest.mark.parametrize("strategy", sampled(["hilbert", "zorder"], 2))
def test_curves_serve_queries_by_each_column(lake: SqlCatalog, strategy: str) -> None:
    """Of two independent columns both are in fewer files than before, and the table gets no sort order."""
    make_table(lake)
    table = lake.load_table("db.t")
    chance = random.Random(3)
    for _ in range(16):
        rows = arrow([chance.randrange(10**6) for _ in range(ROWS)])
        shuffled = rows["ts"].take([chance.randrange(ROWS) for _ in range(ROWS)])
        table.append(rows.set_column(2, "ts", shuffled))
    before = ids_of(lake)
    sized = opened(lake)
    report = sized.cluster(["id", "ts"], strategy)
    assert ids_of(lake) == before
    assert report.clustering is not None
    for column in ("id", "ts"):
        opens = (report.clustering[when][column]["point_files"] for when in ("before", "after"))
        was, now = opens
        assert now < 0.6 * was
    loaded = lake.load_table("db.t")
    check(loaded)
    assert loaded.sort_order().is_unsorted
    assert sized.cluster().snapshot_ids == ()
    assert sized.plan_clustering(["id"], "sort") is not None
    assert sized.cluster(["id"], "sort").clustering is not None


def test_new_files_wait_until_they_are_a_fifth(lake: SqlCatalog) -> None:
    """Less than that is left alone; then what is new and what it joins are written together."""
    make_table(lake)
    fill(lake, 12)
    table = opened(lake)
    first = table.cluster(["id"])
    fill(lake, 1, seed=5)
    waits = table.cluster()
    assert waits.snapshot_ids == ()
    assert waits.skipped == {"CLUSTERED": first.files_added, "TOO_FEW": 1}
    fill(lake, 1, seed=6)
    before = ids_of(lake)
    report = table.cluster()
    assert report.files_removed == first.files_added + 2
    assert ids_of(lake) == before
    assert report.clustering is not None
    assert report.clustering["after"]["id"]["point_files"] == 1.0
    assert 3 < report.clustering["amplification"] <= 6


def test_a_budget_and_a_filter_choose_partitions(lake: SqlCatalog) -> None:
    """Of three partitions a filter takes one, a budget what it pays for; the last call does the rest."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abc")
    table = opened(lake)
    assert table.cluster(["id"], where="kind = 'b'").partitions_touched == 1
    report = table.cluster(budget_bytes=110_000)
    assert report.partitions_touched == 1
    assert report.skipped["OVER_BUDGET"] == 5
    assert any("is too small to cluster" in note for note in report.notes)
    assert table.cluster().partitions_touched == 1
    assert table.cluster().snapshot_ids == ()
    assert ids_of(lake) == before


def test_appends_that_land_meanwhile_do_not_touch_what_was_written(lake: SqlCatalog) -> None:
    """The commit is made again on top of them with the same files."""
    make_table(lake)
    before = ids_of_filled(lake, 6)
    table = opened(lake)
    late = [[7], [8]]

    def rival() -> None:
        if late:
            append(lake, late.pop())

    written: list[set[str]] = []
    with (
        failpoints.armed("files-written", lambda: written.append(data_files_on_disk(lake.load_table("db.t")))),
        failpoints.armed("before-swap", rival),
    ):
        report = table.cluster(["id"])
    loaded = lake.load_table("db.t")
    check(loaded)
    assert (report.operations, report.conflicts) == (("replace",), ())
    assert len(set(live_paths(loaded)) & written[0]) == report.files_added
    assert ids_of(lake) == sorted([*before, 7, 8])
    assert operations(loaded)[-3:] == ["append", "append", "replace"]


def test_an_error_says_what_the_table_remembers_all_the_same(lake: SqlCatalog) -> None:
    """No row could be moved, and the table has been told by what it is clustered: the error says both."""
    make_table(lake)
    for file in small_files(fill(lake, 5, "a")):
        local(file.path).unlink()
    with pytest.raises(RewriteFailed, match=r"every merge failed.* stored in the table: .* --forget` removes them$"):
        opened(lake).cluster(["id"])
    assert operations(lake.load_table("db.t")) == ["append"] * 5


def test_an_upgrade_before_the_columns_are_stored(lake: SqlCatalog) -> None:
    """Another writer upgrades the table to format v3 after the first plan: its rows get ids, and are clustered."""
    make_table(lake)
    before = ids_of_filled(lake, 8)

    def upgrade(event: object) -> None:
        if isinstance(event, Planned):
            as_v3(lake)

    report = opened(lake, observe=upgrade).cluster(["id"])
    assert (report.operations, report.files_removed) == (("replace",), 8)
    assert ids_of(lake) == before
    table = lake.load_table("db.t")
    check(table)
    assert table.format_version == 3


def test_a_group_whose_files_are_taken_is_dropped_alone(lake: SqlCatalog) -> None:
    """Another compaction of one partition and a delete in another come first: the second one and the third land."""
    make_table(lake)
    fill(lake, 5, "abc")
    table = opened(lake)

    def rival() -> None:
        if len(lake.load_table("db.t").metadata.snapshots) == 15:
            compact(lake, "a")
            delete_rows(lake, small_files(lake.load_table("db.t"), "b")[0])

    with failpoints.armed("files-written", rival):
        report = table.cluster(["id"])
    loaded = lake.load_table("db.t")
    check(loaded)
    assert report.partitions_touched == 2
    assert [sentence.split(": ")[1] for sentence in report.conflicts] == [REMOVED]
    assert data_files_on_disk(loaded) >= set(live_paths(loaded))


def test_nothing_to_go_by_is_said(lake: SqlCatalog) -> None:
    """Neither an argument nor a property: the sentence names both; plans and rounds have nothing to do."""
    make_table(lake)
    fill(lake, 2)
    table = opened(lake)
    with pytest.raises(TableError, match=r"neither the argument 'by' nor the table's property 'icesize.cluster.by'"):
        table.cluster()
    assert (table.plan_clustering(), table.maintain().clusterings) == (None, ())
    with pytest.raises(TableError, match=r"Cannot cluster 'lake\.db\.t' by 'idd': the table has no such column"):
        table.cluster(["idd"])
    with pytest.raises(ValueError, match=r"'budget-bytes' \(-1\) must be >= 0"):
        table.cluster(["id"], budget_bytes=-1)


def rounds_of(lake: SqlCatalog, partitions: int) -> WorkLimits:
    """Limits by which this process commits after about so many partitions of a filled table."""
    sizes = [partition.size_bytes for partition in layout_of(lake.load_table("db.t")).partitions.values()]
    return WorkLimits(bytes_without_spark=partitions * max(sizes))


def test_more_than_one_process_rewrites_at_once_is_committed_in_rounds(lake: SqlCatalog) -> None:
    """Five partitions, two at a time: three commits, and in sum the report of one."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abcde")
    events = list[object]()
    table = opened(lake, rounds_of(lake, 2), events.append)
    report = table.cluster(["id"])
    [plan] = plans_of(events)
    after = lake.load_table("db.t")
    check(after)
    assert ids_of(lake) == before
    assert operations(after)[25:] == ["replace"] * 3 == list(report.operations)
    assert list(report.snapshot_ids) == [snapshot.snapshot_id for snapshot in after.snapshots()[25:]]
    assert (report.files_removed, report.partitions_touched, report.conflicts) == (25, 5, ())
    assert report.files_added == len(live_paths(after))
    assert done_bytes(events) == plan.bytes_to_write
    assert "with a commit after each" in plan.notes[-1]
    assert sum("with a commit after each" in note for note in report.notes) == 1
    assert report.clustering is not None
    opens = [report.clustering[when]["id"]["point_files"] for when in ("before", "after")]
    assert (opens[0] >= 5 * 3, opens[1]) == (True, 5.0)
    assert report.clustering["new_bytes"] == bytes_appended(lake)
    assert report.clustering["amplification"] == pytest.approx(report.bytes_written / bytes_appended(lake), abs=0.001)
    assert table.cluster().snapshot_ids == ()


@pytest.mark.parametrize("strategy", sampled(["sort", "hilbert"], 2))
def test_a_set_larger_than_a_round_is_clustered_whole(lake: SqlCatalog, strategy: str) -> None:
    """Bounds that pay for no set at all do not keep any from being one, by `cluster` or in a pass of maintenance."""
    make_table(lake, properties={"icesize.cluster.by": "id,ts", "icesize.cluster.strategy": strategy})
    before = ids_of_filled(lake, 8, "ab")
    table = opened(lake, WorkLimits(bytes_without_spark=1, round_bytes=1))
    report = table.cluster(where="kind = 'a'")
    assert (report.files_removed, len(report.snapshot_ids)) == (8, 1)
    passed = table.maintain()
    assert (passed.not_started, passed.failed) == ((), {})
    assert [round_.files_removed for round_ in passed.clusterings][-1] >= 2
    assert table.cluster().snapshot_ids == ()
    assert ids_of(lake) == before
    check(lake.load_table("db.t"))


def test_a_budget_bounds_all_rounds(lake: SqlCatalog) -> None:
    """What is written by all rounds of one call is what the budget pays for; a later call does the rest."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abcd")
    table = opened(lake, rounds_of(lake, 1))
    report = table.cluster(["id"], budget_bytes=3 * rounds_of(lake, 1).bytes_without_spark)
    assert (len(report.snapshot_ids), report.partitions_touched, report.skipped["OVER_BUDGET"]) == (3, 3, 5)
    assert table.cluster().partitions_touched == 1
    assert ids_of(lake) == before


def test_an_interrupt_keeps_the_rounds_before_it(lake: SqlCatalog) -> None:
    """What is committed stays, the round that was under way leaves no file behind, and the next call goes on."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abc")
    reached: list[int] = []

    def interrupt() -> None:
        reached.append(1)
        if len(reached) == 2:
            raise KeyboardInterrupt

    table = opened(lake, rounds_of(lake, 1))
    with failpoints.armed("files-written", interrupt), pytest.raises(KeyboardInterrupt):
        table.cluster(["id"])
    after = lake.load_table("db.t")
    check(after)
    assert operations(after)[15:] == ["replace"]
    inputs_of_the_round = 5
    assert len(data_files_on_disk(after) - set(live_paths(after))) == inputs_of_the_round
    assert table.cluster().partitions_touched == 2
    assert ids_of(lake) == before


@pytest.mark.parametrize("work", ["delete rows", "merge"])
def test_what_others_change_between_rounds_is_left_to_the_next_call(lake: SqlCatalog, work: str) -> None:
    """Rows that are deleted while an earlier round runs stay deleted, and rows that are moved are there once."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abc")
    table = opened(lake, rounds_of(lake, 1), lambda event: change(event))
    planned = table.plan_clustering(["id"])
    assert planned is not None
    late = planned.groups[-1]

    def change(event: object) -> None:
        if isinstance(event, Progress) and event.done and len(lake.load_table("db.t").snapshots()) == 15:
            delete_rows(lake, late.inputs[0]) if work == "delete rows" else compact(lake, late.label[-1])

    report = table.cluster(["id"])
    check(lake.load_table("db.t"))
    assert len(ids_of(lake)) == len(before) - (work == "delete rows")
    if work == "delete rows":
        assert (len(report.snapshot_ids), report.rows_deleted, report.conflicts) == (3, 1, ())
        return
    assert len(report.snapshot_ids) == 2
    [conflict] = report.conflicts
    assert f"in '{late.label}' dropped: another writer" in conflict


@pytest.mark.parametrize("what", ["partition spec", "columns", "forgotten"])
def test_rounds_end_where_the_layout_becomes_another(lake: SqlCatalog, what: str) -> None:
    """Another partition spec, or others who want other columns: the rest is left as it is, no row is lost."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abc")
    table = opened(lake, rounds_of(lake, 1))

    def change() -> None:
        loaded = lake.load_table("db.t")
        if operations(loaded)[-1] == "append" or len(loaded.specs()) > 1:
            return
        if what == "partition spec":
            with loaded.update_spec() as update:
                update.add_identity("id")
        elif what == "forgotten":
            opened(lake).forget_clustering()
        else:
            with loaded.transaction() as changes:
                changes.set_properties({"icesize.cluster.by": "ts", "icesize.cluster.strategy": "hilbert"})
                changes.remove_properties("icesize.cluster.field-ids")

    with failpoints.armed("planned", change):
        report = table.cluster(["id"])
    assert ids_of(lake) == before
    assert len(report.snapshot_ids) < 3
    left = "1 merge left: another writer changed the partition spec, or by what the table is clustered"
    assert report.notes[-1] == left
    check(lake.load_table("db.t"))


def test_a_conflict_of_a_later_round_is_reported(lake: SqlCatalog) -> None:
    """Others that win against a later round end the call; the report has the round before and what is left."""
    make_table(lake)
    before = ids_of_filled(lake, 5, "abc")
    with failing_at(2, "files-written", CommitConflict("others won")):
        report = opened(lake, rounds_of(lake, 1)).cluster(["id"])
    after = lake.load_table("db.t")
    check(after)
    assert (report.snapshot_ids, report.conflicts) == ((head_id(after),), ("2 merges left: others won",))
    assert ids_of(lake) == before


def test_a_round_that_fails_keeps_no_other_from_being_done(lake: SqlCatalog) -> None:
    """Partitions that can be clustered are, also after one that cannot; the report begins with why."""
    make_table(lake)
    fill(lake, 5, "abc")
    table = opened(lake, rounds_of(lake, 1))
    planned = table.plan_clustering(["id"])
    assert planned is not None
    first = planned.groups[0].inputs[0].path
    local(first).write_bytes(b"no parquet")
    report = table.cluster(["id"])
    assert (len(report.snapshot_ids), report.partitions_touched) == (2, 2)
    assert "every merge failed, and its files are unchanged" in report.notes[0]
    assert first in report.notes[0]


def test_maintenance_clusters_after_merging(lake: SqlCatalog) -> None:
    """A pass lays the rows out of a table that wants it, and the next pass has nothing to do."""
    make_table(lake, properties={"icesize.cluster.by": "id"})
    before = ids_of_filled(lake, 8)
    table = opened(lake)
    report = table.maintain()
    assert report.failed == {}
    assert [clustering.files_removed for clustering in report.clusterings] == [8]
    assert table.maintain().clusterings == ()
    assert ids_of(lake) == before


KINDS = "abc"
appends = st.tuples(st.just("append"), st.sampled_from(KINDS), st.integers(1, 2_000))
clusterings = st.tuples(
    st.just("cluster"),
    st.sampled_from([("id", "sort"), ("ts,id", "sort"), ("id,ts", "zorder"), ("id,ts", "hilbert"), ("id", "hilbert")]),
    st.sampled_from([None, None, 0, 20_000, 60_000, 200_000]),
)


@examples(6)
@given(steps=st.lists(st.one_of(appends, appends, clusterings), min_size=4, max_size=16), last=clusterings)
def test_any_clusterings_between_any_appends_keep_rows_and_converge(steps: list[Any], last: Any) -> None:
    """After appends of any size and clusterings of any kind and budget rows are exact, no budget is exceeded, and of
    two runs without a bound the second has nothing to do."""
    with tempfile.TemporaryDirectory() as folder:
        lake, rows, chance = sqlite_catalog(Path(folder)), Counter[int](), random.Random(len(steps))
        make_table(lake)
        for what, choice, size in (*steps, ("append", "a", 2_000), last):
            if what == "append":
                ids = [chance.randrange(10**6) for _ in range(size)]
                shuffled = arrow([chance.randrange(10**6) for _ in ids])["ts"]
                lake.load_table("db.t").append(arrow(ids, choice).set_column(2, "ts", shuffled))
                rows.update(ids)
                continue
            report = opened(lake).cluster(choice[0].split(","), choice[1], budget_bytes=size)
            assert size is None or report.bytes_written <= 1.1 * size
        opened(lake).cluster()
        assert opened(lake).cluster().snapshot_ids == ()
        loaded = lake.load_table("db.t")
        check(loaded)
        assert Counter(ids_of(lake)) == rows
        summaries = [snapshot.summary for snapshot in loaded.metadata.snapshots if snapshot.summary]
        replaced = [each for each in summaries if each.operation == Operation.REPLACE]
        assert [each["added-records"] for each in replaced] == [each["deleted-records"] for each in replaced]
        lake.close()


@pytest.mark.engine
def test_bytes_are_written_about_six_times_at_most(lake: SqlCatalog) -> None:
    """Ever more appends with a clustering after each: what was written in all stays within the bound that is told."""
    make_table(lake)
    table, written, repeated = opened(lake), 0, 0
    for number in range(14):
        fill(lake, 1, seed=number)
        report = table.cluster(["id"])
        written += report.bytes_written
        repeated += bool(report.snapshot_ids)
    assert repeated >= 4
    assert written <= (1 + 1 / 0.2) * bytes_appended(lake)
    check(lake.load_table("db.t"))


def bytes_appended(lake: SqlCatalog) -> int:
    """Of all appends, as their snapshots tell."""
    snapshots = lake.load_table("db.t").metadata.snapshots
    summaries = [snapshot.summary for snapshot in snapshots if snapshot.summary]
    return sum(int(each["added-files-size"] or 0) for each in summaries if each.operation == Operation.APPEND)


def test_rounds_grow_where_a_set_is_larger_than_one(lake: SqlCatalog) -> None:
    """Sets that rounds of maintenance have made are joined in the end, unless a budget forbids it, which is said."""
    make_table(lake, properties={"icesize.cluster.by": "id"})
    before = ids_of_filled(lake, 12)
    table = opened(lake, WorkLimits(round_bytes=60_000))
    poor = table.maintain(budget_bytes=30_000)
    assert [round_.snapshot_ids for round_ in poor.clusterings] == [()]
    assert "clustering" in poor.not_started
    assert any("is too small to cluster" in note for note in poor.clusterings[0].notes)
    report = table.maintain()
    assert len(report.clusterings) > 1
    assert report.not_started == ()
    planned = table.plan_clustering()
    assert planned is not None
    assert planned.groups == ()
    assert planned.clustering is not None
    assert planned.clustering.before["id"].point_files == 1.0
    assert ids_of(lake) == before


def test_what_is_refused_is_not_remembered(lake: SqlCatalog) -> None:
    """A filter or a budget that makes no sense, or too many bytes for this process: the table is as it was."""
    make_table(lake)
    fill(lake, 2)
    table = opened(lake)
    before = lake.load_table("db.t").metadata_location
    for wrong in ({"where": "nope = 3"}, {"budget_bytes": -1}):
        with pytest.raises((TableError, ValueError)):
            table.cluster(["id"], **wrong)  # type: ignore[arg-type]
    with pytest.raises(TableError, match="columns are given by their names"):
        table.cluster(["id", 1])  # type: ignore[list-item]
    assert lake.load_table("db.t").metadata_location == before


@pytest.mark.parametrize("strategy", sampled(["zorder", "sort"], 2))
def test_a_renamed_column_goes_on_being_clustered(lake: SqlCatalog, strategy: str) -> None:
    """What lies in order stays so, new files join it, and reports call the column by its new name, whoever got the
    old one."""
    make_table(lake, {})
    fill(lake, 8)
    table = opened(lake)
    table.cluster(["id", "ts"], strategy)
    lake.load_table("db.t").update_schema().rename_column("id", "number").commit()
    lake.load_table("db.t").update_schema().add_column("id", LongType()).commit()
    planned = table.plan_clustering()
    assert planned is not None
    assert (planned.groups, planned.clustering and planned.clustering.by.columns) == ((), ("number", "ts"))
    chance = random.Random(7)
    for _ in range(4):
        rows = arrow([chance.randrange(10**6) for _ in range(ROWS)])
        lake.load_table("db.t").append(rows.rename_columns(["number", *rows.column_names[1:]]))
    before = lake.load_table("db.t").scan().to_arrow().sort_by("number")
    [report] = table.maintain().clusterings
    assert report.clustering is not None
    opens = [report.clustering[when]["number"]["point_files"] for when in ("before", "after")]
    assert opens[1] < 0.7 * opens[0]
    assert table.cluster().snapshot_ids == ()
    loaded = lake.load_table("db.t")
    check(loaded)
    assert loaded.properties["icesize.cluster.by"] == "number,ts"
    assert loaded.scan().to_arrow().sort_by("number").equals(before)


def test_a_dropped_column_ends_clustering_alone(lake: SqlCatalog) -> None:
    """One sentence without a trace: where clustering was asked for as an error, in a pass beside what goes on."""
    make_table(lake, {"kind": "identity"})
    fill(lake, 4)
    table = opened(lake)
    table.cluster(["id", "ts"], "zorder")
    with lake.load_table("db.t").update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("ts")
    for _ in range(2):
        lake.load_table("db.t").append(arrow(range(100)).drop_columns(["ts"]))
    said = r"Cannot cluster 'lake\.db\.t': column 'ts' \(field 3\) was dropped; run `icesize cluster TABLE` with --by"
    for asked in (table.cluster, table.plan_clustering):
        with pytest.raises(ClusteringOff, match=said):
            asked()  # type: ignore[operator]
    report = table.maintain()
    assert (report.failed, list(report.unsupported)) == ({}, ["clustering"])
    assert re.match(said, report.unsupported["clustering"])
    assert (len(report.merges), report.succeeded) == (1, True)
    assert table.cluster(["id"]).clustering is not None


def test_names_behind_the_hashes_of_an_object_store_tell_their_sets(lake: SqlCatalog) -> None:
    """Iceberg's layout for object stores puts a hash before the name when partitions are no folders."""
    layout = {"write.object-storage.enabled": "true", "write.object-storage.partitioned-paths": "false"}
    make_table(lake, properties=layout)
    fill(lake, 6)
    table = opened(lake)
    assert table.cluster(["id", "ts"], "zorder").files_removed == 6
    assert all("-k" in path.rpartition("/")[2] for path in live_paths(lake.load_table("db.t")))
    assert table.cluster().snapshot_ids == ()
