"""Many delete files into few, where the data files stay: what is written, what goes, and what others do meanwhile."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any, cast

import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.errors import CommitConflict, CommitStateUnknown
from icesize.failpoints import FailpointReached, armed
from icesize.parquet.deletes import position_files
from icesize.parquet.deletes.deleted_rows import DeletedPositions
from icesize.planning.files import FileFact, PartitionKey
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from tests.support.armed import failing_at
from tests.support.delete_files import delete_equal, delete_positions, live_deletes
from tests.support.examples import sampled
from tests.support.machine import Reader
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    NOW_MS,
    append,
    check,
    compact,
    data_files_on_disk,
    expire,
    head_id,
    ids_of,
    layout_of,
    live_paths,
    local,
    make_table,
    make_visible,
    merged,
    metadata_files_on_disk,
    overwritten,
    referenced_metadata,
    request_on,
    run,
    small_files,
    write,
)

A = PartitionKey(0, ("a",))
POLICY = {"target_file_size_bytes": 1, "small_file_limit_bytes": 1, "close_file_cost_bytes": 0}
"""Every file is well sized, and one more file costs nothing."""
NOWHERE = 1_000


def opened(lake: SqlCatalog, limits: WorkLimits | None = None, **policy: object) -> SizedTable:
    """An hour after the newest commit: no partition is being changed by others."""
    environment = Environment(
        now_ms=lambda: lake.load_table("db.t").metadata.last_updated_ms + 3_600_000,
        sleep=lambda seconds: None,
        limits=limits or WorkLimits(),
    )
    return icesize.open(None, "db.t", catalog=lake, policy={**POLICY, **policy}, environment=environment)


def seen(lake: SqlCatalog) -> list[int]:
    """The rows of a table that is whole, by id, both kinds of deletes applied."""
    table = lake.load_table("db.t")
    head = table.metadata.current_snapshot()
    assert head is not None
    check(table)
    return sorted(Counter({row[0]: n for (_, row), n in Reader().rows(head, table.io).items()}).elements())


def upserted(lake: SqlCatalog, times: int = 7, rows: int = 100) -> Table:
    """Two files of partition `a`, and equality deletes, each of one row of the first and of one that is nowhere."""
    make_table(lake)
    append(lake, range(rows))
    append(lake, range(rows, 2 * rows))
    for number in range(times):
        delete_equal(lake.load_table("db.t"), ["id"], [(3 * number,), (NOWHERE + number,)], A)
    return lake.load_table("db.t")


def left_over(table: Table) -> set[str]:
    """Files on storage that no snapshot needs."""
    needed = set[str]()
    for snapshot in table.metadata.snapshots:
        for manifest in snapshot.manifests(table.io):
            needed |= {entry.data_file.file_path for entry in manifest.fetch_manifest_entry(table.io, False)}
    files = {path for path in data_files_on_disk(table) if path not in needed}
    return files | (metadata_files_on_disk(table) - referenced_metadata(table))


def test_equality_deletes_become_positions(lake: SqlCatalog) -> None:
    """One file for each data file with deleted rows, of the greatest number; the data files are the same ones, and
    PyIceberg, which reads no equality deletes, reads the table then."""
    table = upserted(lake)
    data, number = live_paths(table), table.metadata.last_sequence_number
    first = small_files(table, "a")[0].path
    report = opened(lake).rewrite_deletes()
    after = lake.load_table("db.t")
    rows = [row for row in range(200) if row not in range(0, 21, 3)]
    assert (seen(lake), ids_of(lake), live_paths(after)) == (rows, rows, data)
    [entry] = live_deletes(after)
    file = entry.data_file
    assert (entry.sequence_number, entry.file_sequence_number) == (number, number + 1)
    assert (file.content.value, file.record_count, file.file_size_in_bytes) == (1, 7, report.bytes_written)
    assert (file.equality_ids, file.sort_order_id) == (None, None)
    assert file.lower_bounds[2147483546] == file.upper_bounds[2147483546] == first.encode()
    assert pq.read_table(local(file.file_path)).to_pylist() == [
        {"file_path": first, "pos": position} for position in range(0, 21, 3)
    ]
    assert (report.snapshot_ids, report.operations) == ((head_id(after),), ("delete",))
    assert (report.data_files, report.files_removed, report.files_added, report.rows) == (2, 7, 1, 7)
    assert str(report).startswith("7 delete files of 2 files in lake.db.t merged into 1, ")
    assert left_over(after) == set()
    assert opened(lake).rewrite_deletes().snapshot_ids == ()


def test_what_the_summary_says(lake: SqlCatalog) -> None:
    """Of the files and rows under Iceberg's names, and in sum."""
    upserted(lake)
    opened(lake).rewrite_deletes()
    head = lake.load_table("db.t").metadata.current_snapshot()
    assert head is not None
    assert head.summary is not None
    facts = head.summary.additional_properties
    names = ("added-delete-files", "added-position-delete-files", "added-position-deletes", "removed-delete-files",
             "removed-equality-deletes", "total-delete-files", "total-position-deletes", "total-equality-deletes",
             "total-records", "changed-partition-count")  # fmt: skip
    assert [int(facts[name]) for name in names] == [1, 1, 7, 7, 14, 1, 7, 0, 200, 1]
    assert not {"added-data-files", "added-records", "deleted-data-files"} & facts.keys()


@pytest.mark.parametrize("granularity", ["partition", "file"])
def test_position_deletes_become_one_for_each_file(lake: SqlCatalog, granularity: str) -> None:
    """Those of one file and of several, some of them more than once; no data file is opened, and it is a `replace`."""
    make_table(lake)
    append(lake, range(100))
    append(lake, range(100, 200))
    first, second = small_files(lake.load_table("db.t"), "a")
    for n in range(7):
        positions = {first.path: [n, 50], second.path: [2 * n]}
        delete_positions(lake.load_table("db.t"), positions, granularity=granularity)  # type: ignore[arg-type]
    local(first.path).rename(hidden := local(first.path).with_suffix(".hidden"))
    report = opened(lake).rewrite_deletes()
    hidden.rename(local(first.path))
    assert (report.operations, report.files_removed, report.files_added, report.rows) == (
        ("replace",), 7 if granularity == "partition" else 14, 2, 15,
    )  # fmt: skip
    assert seen(lake) == [i for i in range(200) if i not in (*range(7), 50, *range(100, 114, 2))]
    assert {f.delete_files for f in layout_of(lake.load_table("db.t")).partitions[A].small} == {1}


def test_files_that_no_shared_delete_hits_are_left_alone(lake: SqlCatalog) -> None:
    """Seven delete files of one data file become one; the only one of another stays."""
    make_table(lake)
    append(lake, range(100))
    append(lake, range(100, 200))
    first, second = small_files(lake.load_table("db.t"), "a")
    for n in range(7):
        delete_rows(lake, first, [n])
    delete_rows(lake, second)
    [before] = [e.data_file.file_path for e in live_deletes(lake.load_table("db.t")) if e.sequence_number == 10]
    report = opened(lake).rewrite_deletes()
    assert (report.data_files, report.files_removed, report.files_added) == (1, 7, 1)
    assert before in {entry.data_file.file_path for entry in live_deletes(lake.load_table("db.t"))}


def test_both_kinds_and_what_came_before(lake: SqlCatalog) -> None:
    """Positions and keys, a file younger than some of the deletes, and rows that come again after their delete."""
    table = upserted(lake, 4)
    first = small_files(table, "a")[0]
    delete_rows(lake, first, [0, 1])
    append(lake, [0, 3, NOWHERE + 10])
    for number in range(4):
        delete_equal(lake.load_table("db.t"), ["id"], [(3,), (NOWHERE + 10,), (40 + number,)], A)
    before = seen(lake)
    report = opened(lake).rewrite_deletes()
    assert (report.data_files, report.files_removed, report.files_added) == (3, 9, 2)
    assert seen(lake) == before == ids_of(lake)
    append(lake, [3])
    assert seen(lake) == sorted([*before, 3])


def test_deletes_that_hit_nothing_go_without_anything_in_their_place(lake: SqlCatalog) -> None:
    """No row equals a key: a `replace` that only removes."""
    make_table(lake)
    append(lake, range(100))
    for n in range(7):
        delete_ids(lake, small_files(lake.load_table("db.t"))[0], [NOWHERE + n])
    report = opened(lake).rewrite_deletes()
    assert (report.operations, report.files_removed, report.files_added) == (("replace",), 7, 0)
    assert live_deletes(lake.load_table("db.t")) == []
    assert seen(lake) == list(range(100))


def test_an_unpartitioned_table(lake: SqlCatalog) -> None:
    """Its equality deletes hit every file, also those of partitions that it had before, and then stay."""
    make_table(lake, {})
    append(lake, range(100))
    for n in range(7):
        delete_equal(lake.load_table("db.t"), ["id"], [(n,)])
    report = opened(lake).rewrite_deletes()
    assert (report.operations, report.files_removed, report.files_added) == (("delete",), 7, 1)
    assert ids_of(lake) == list(range(7, 100))


def test_files_of_older_partitions_keep_global_deletes(lake: SqlCatalog) -> None:
    """The table was partitioned before: nothing is done, and its rows are what they were."""
    make_table(lake)
    append(lake, range(100))
    with lake.load_table("db.t").update_spec() as update:
        update.remove_field("kind")
    append(lake, range(100, 200))
    for n in range(7):
        delete_equal(lake.load_table("db.t"), ["id"], [(n,), (100 + n,)], PartitionKey(1))
    report = opened(lake).rewrite_deletes()
    assert (report.snapshot_ids, report.conflicts) == ((), ())
    assert len(live_deletes(lake.load_table("db.t"))) == 7


def test_a_share_of_deleted_rows_is_rewritten(lake: SqlCatalog) -> None:
    """`maintain` writes a file again of which a third is gone, whatever the number of delete files; of another with as
    many it puts these together, and its next pass finds nothing to do."""
    make_table(lake)
    append(lake, range(100))
    append(lake, range(100, 200))
    first, second = small_files(lake.load_table("db.t"), "a")
    for n in range(7):
        delete_rows(lake, first, range(5 * n, 5 * n + 5))
        delete_rows(lake, second, [n])
    report = opened(lake).maintain()
    assert report.failed == {}
    assert [(merge.files_removed, merge.rows_deleted) for merge in report.merges] == [(1, 35)]
    assert report.rewritten_deletes is not None
    assert (report.rewritten_deletes.files_removed, report.rewritten_deletes.files_added) == (7, 1)
    assert seen(lake) == [*range(35, 100), *range(107, 200)]
    again = opened(lake).maintain()
    assert again.merges == ()
    assert again.to_dict()["rewritten_deletes"]["snapshot_ids"] == []
    # a threshold that the table has says that files are to be written again
    strict = opened(lake, delete_file_threshold=1).maintain()
    assert [merge.files_removed for merge in strict.merges] == [1]


def test_maintain_rewrites_where_that_is_cheaper(lake: SqlCatalog) -> None:
    """A file of a few kB is less than what one more file costs a scan."""
    upserted(lake)
    report = opened(lake, close_file_cost_bytes=65_536).maintain()
    assert [merge.files_removed for merge in report.merges] == [2]
    assert report.rewritten_deletes is not None
    assert report.rewritten_deletes.snapshot_ids == ()


def test_after_batch_puts_them_together(lake: SqlCatalog) -> None:
    """In a commit of its own, which is in the report; a budget that pays neither for that nor for a merge is named."""
    upserted(lake)
    before = seen(lake)
    strict = opened(lake, merge_budget_bytes=1).after_batch()
    assert (strict.snapshot_ids, strict.skipped["OVER_BUDGET"] > 0) == ((), True)
    upserted_again = lake.load_table("db.t")
    for number in range(7):
        delete_equal(upserted_again, ["id"], [(150 + number,)], A)
    report = opened(lake).after_batch()
    assert report.operations == ("delete",)
    assert report.snapshot_ids == (head_id(lake.load_table("db.t")),)
    assert any(note.startswith("14 delete files of ") for note in report.notes)
    assert report.delete_files_max <= 6
    assert seen(lake) == [row for row in before if row not in range(150, 157)]
    assert opened(lake).after_batch().snapshot_ids == ()


def upserted_twice(lake: SqlCatalog) -> None:
    """Two partitions of one file and seven equality deletes each."""
    make_table(lake)
    for kind in "ab":
        append(lake, range(100), kind)
        for number in range(7):
            delete_equal(lake.load_table("db.t"), ["id"], [(number,)], PartitionKey(0, (kind,)))


@pytest.mark.internal_error
@pytest.mark.parametrize("where", ["reading", "writing"])
def test_a_bug_fails_its_partition_alone(lake: SqlCatalog, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """The report names it as one of icesize, nothing of the partition stays, and the other one is done."""
    upserted_twice(lake)
    before, right, bug = seen(lake), position_files.deleted_rows, IndexError("list index out of range")

    def with_a_bug(inputs: Sequence[FileFact], *rest: Any) -> DeletedPositions:
        if where == "reading" and inputs[0].partition == A:
            raise bug
        return right(inputs, *rest)

    monkeypatch.setattr(position_files, "deleted_rows", with_a_bug)
    with failing_at(1 if where == "writing" else 0, "writing", bug):
        report = opened(lake).rewrite_deletes()
    table = lake.load_table("db.t")
    assert (report.files_removed, report.files_added, len(live_deletes(table))) == (7, 1, 8)
    assert "internal error IndexError: list index out of range, report this" in report.notes[0]
    assert report.internal_errors == report.notes[:1]
    assert (seen(lake), left_over(table)) == (before, set())


def test_a_conflict_of_a_later_round_is_reported(lake: SqlCatalog) -> None:
    """Others that win against a later round end the call; the report has the round before and what is left."""
    upserted_twice(lake)
    table = opened(lake, limits=WorkLimits(round_bytes=1))
    with failing_at(2, "files-written", CommitConflict("others won")):
        report = table.rewrite_deletes()
    after = lake.load_table("db.t")
    assert (report.snapshot_ids, report.conflicts) == ((head_id(after),), ("1 partition left: others won",))
    assert (report.table, report.files_removed, report.rows) == ("lake.db.t", 7, 7)
    assert (len(live_deletes(after)), left_over(after)) == (8, set())
    assert table.rewrite_deletes().files_removed == 7


def test_a_later_round_loads_the_table_again(lake: SqlCatalog) -> None:
    """It writes with the properties, and so with the credentials, that the catalog gives at that time."""
    upserted_twice(lake)

    def change() -> None:
        with lake.load_table("db.t").transaction() as change:
            change.set_properties({"write.parquet.compression-codec": "snappy"})

    with armed("files-written", once(change)):
        report = opened(lake, limits=WorkLimits(round_bytes=1)).rewrite_deletes()
    files = [local(entry.data_file.file_path) for entry in live_deletes(lake.load_table("db.t"))]
    codecs = [pq.read_metadata(file).row_group(0).column(0).compression for file in files]
    assert (len(report.snapshot_ids), sorted(codecs)) == (2, ["SNAPPY", "ZSTD"])


class Silent(SqlCatalog):
    """A catalog whose first response to a commit is lost, after others have committed and expired its snapshot."""

    others: Callable[[], object] | None = None

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> Any:
        response = super().commit_table(table, requirements, updates)
        if others := self.others:
            self.others = None
            others()
            raise ConnectionError("no response")
        return response


def test_a_commit_whose_snapshot_expired_is_known_by_its_delete_files(lake: SqlCatalog) -> None:
    """The response was lost and the snapshot is gone: the live delete files show that the commit was successful."""
    upserted(lake)
    silent = Silent(lake.name, **lake.properties)
    silent.others = lambda: expire(append(lake, [200], "b"))
    environment = Environment(sleep=lambda seconds: None)
    report = icesize.open(None, "db.t", catalog=silent, policy=POLICY, environment=environment).rewrite_deletes()
    assert (report.conflicts, report.files_removed, report.files_added) == ((), 7, 1)
    assert seen(lake) == [row for row in range(201) if row not in range(0, 21, 3)]


@pytest.mark.parametrize("rounds", [0, 1])
@pytest.mark.parametrize("error", [CommitStateUnknown("lost"), OSError("no storage")])
def test_commits_before_an_error_are_all_reported(lake: SqlCatalog, rounds: int, error: Exception) -> None:
    """The report has the merges of `after_batch` and the rounds of delete files that were committed after them."""
    upserted_twice(lake)
    append(lake, range(200, 300), "c")
    table = lake.load_table("db.t")
    delete_positions(table, {small_files(table, "c")[0].path: range(50)}, partition=PartitionKey(0, ("c",)))
    before = len(lake.load_table("db.t").metadata.snapshots)
    with failing_at(2 + rounds, "files-written", error):
        try:
            report = opened(lake, limits=WorkLimits(round_bytes=1)).after_batch()
        except CommitStateUnknown as unknown:
            report = cast(Report, unknown.report)
        else:
            assert any("OSError: no storage" in note for note in report.notes)
    made = lake.load_table("db.t").metadata.snapshots[before:]
    assert report.snapshot_ids == tuple(snapshot.snapshot_id for snapshot in made)
    assert report.operations == ("replace", "delete")[: 1 + rounds]
    assert any(note.startswith("7 delete files of 1 file became ") for note in report.notes) == bool(rounds)


def test_damaged_delete_files_are_left_with_a_reason(lake: SqlCatalog) -> None:
    """The partition that has one stays as it is, nothing is lost, and the other one is done."""
    upserted(lake)
    append(lake, range(300, 400), "b")
    for n in range(7):
        delete_equal(lake.load_table("db.t"), ["id"], [(300 + n,)], PartitionKey(0, ("b",)))
    before = seen(lake)
    damaged = next(e.data_file for e in live_deletes(lake.load_table("db.t")) if e.data_file.partition[0] == "a")
    content = local(damaged.file_path).read_bytes()
    local(damaged.file_path).write_bytes(b"x" * len(content))
    report = opened(lake).rewrite_deletes()
    assert (report.files_removed, report.files_added, report.conflicts) == (7, 1, ())
    [note] = report.notes
    assert damaged.file_path in note
    local(damaged.file_path).write_bytes(content)
    assert seen(lake) == before
    assert left_over(lake.load_table("db.t")) == set()


@pytest.mark.parametrize("point", ["planned", "writing", "files-written", "before-swap", "after-swap"])
def test_an_error_at_any_point_loses_nothing(lake: SqlCatalog, point: str) -> None:
    """Either all of it is there or nothing, and no file is left over."""
    upserted(lake)
    before = seen(lake)

    def fail() -> None:
        raise FailpointReached(point)

    with armed(point, fail), pytest.raises(FailpointReached):
        opened(lake).rewrite_deletes()
    table = lake.load_table("db.t")
    assert seen(lake) == before
    assert len(live_deletes(table)) == (1 if point == "after-swap" else 7)
    assert left_over(table) == set()
    opened(lake).rewrite_deletes()
    assert len(live_deletes(lake.load_table("db.t"))) == 1


class Others:
    """Who else is at work on a table, and the rows that are in it by what was done."""

    def __init__(self, lake: SqlCatalog) -> None:
        self.lake, self.ids = lake, Counter(range(200))
        make_table(lake)
        append(lake, range(100))
        table = append(lake, range(100, 200))
        for rows in ((0, 3, 6, 9), (12, 15, 18)):
            table = delete_equal(table, ["id"], [(row,) for row in rows], A, files=len(rows))
        self.ids -= Counter(range(0, 21, 3))

    def act(self, event: str) -> None:
        """Do it, as another process would."""
        getattr(self, event)(self.lake.load_table("db.t"))

    def position(self, table: Table) -> None:
        """Row 70 is deleted by its position."""
        for file in small_files(table, "a"):
            for position, row in enumerate(Reader().rows_in(file.path)):
                if row[0] == 70 and self.ids[70]:
                    delete_positions(table, {file.path: [position]}, A)
                    self.ids[70] = 0
                    return

    def equality(self, table: Table) -> None:
        """Rows of either file are deleted by their values, and one that may come again."""
        delete_equal(table, ["id"], [(0,), (71,), (171,)], A)
        self.ids[0] = self.ids[71] = self.ids[171] = 0

    def data(self, table: Table) -> None:
        """Rows come again that were deleted."""
        append(self.lake, [0, 3, 71])
        self.ids.update([0, 3, 71])

    def merge(self, table: Table) -> None:
        """All files become one, without deleted rows."""
        compact(self.lake)

    def rewrite(self, table: Table) -> None:
        """The oldest file is written again by somebody who began before all equality deletes, under its own number, as
        Iceberg's compaction does. It fails where position deletes came since, so here it is left out then."""
        oldest = small_files(table, "a")[0]
        if oldest.deleted_rows or oldest.sequence_number != 1:
            return
        rows = [row[0] for row in Reader().rows_in(oldest.path)]
        file = replace(write(table, rows), sequence_number=1)
        builder = SnapshotBuilder(table, NOW_MS)
        split = builder.split([oldest.path])
        make_visible(self.lake, table, [builder.exchange(Operation.REPLACE, split, [file], {})])

    def taken(self, table: Table) -> None:
        """A delete file is taken away together with the files that it hits: new ones have their rows."""
        files = small_files(table, "a")
        rows = sorted(self.ids.elements())
        builder = SnapshotBuilder(table, NOW_MS)
        make_visible(self.lake, table, [overwritten(builder, [f.path for f in files], [write(table, rows)])])


EVENTS = ("position", "equality", "data", "merge", "rewrite", "taken")


@pytest.mark.parametrize(
    ("events", "plan", "commit"),
    [
        *(((event,), *places) for event in EVENTS for places in ((0, 0), (0, 1), (1, 1))),
        *sampled(((events, plan, 2) for events in permutations(EVENTS, 2) for plan in (0, 1)), 5),
    ],
)
def test_every_order(lake: SqlCatalog, events: tuple[str, ...], plan: int, commit: int) -> None:
    """Rows are exact after each event and after the commit, whatever comes before the plan, between plan and commit, or
    after. Where nobody rewrote files, delete files are put together, beside those that came meanwhile."""
    others = Others(lake)
    for event in events[:plan]:
        others.act(event)
    with armed("before-swap", once(lambda: [others.act(event) for event in events[plan:commit]])):
        report = opened(lake).rewrite_deletes()
    assert seen(lake) == sorted((+others.ids).elements())
    if not {"merge", "rewrite", "taken"} & {*events[:commit]}:
        came = len({"position", "equality"} & {*events[plan:commit]})
        assert len(live_deletes(lake.load_table("db.t"))) == report.files_added + came
        assert report.files_removed == 7 + len({"position", "equality"} & {*events[:plan]})
    for event in events[commit:]:
        others.act(event)
    assert seen(lake) == sorted((+others.ids).elements())
    assert left_over(lake.load_table("db.t")) == set()


def once(action: Callable[[], object]) -> Callable[[], None]:
    """Something to be done the first time only."""
    waiting = [action]

    def act() -> None:
        while waiting:
            waiting.pop()()

    return act


@pytest.mark.parametrize("planned", ["before", "after"])
def test_merges_that_were_under_way(lake: SqlCatalog, planned: str) -> None:
    """One that has applied all deletes lands, and takes the new delete files with it; one that began before the newest
    of them is dropped: that delete hits positions in the older files now, and not what would take their place."""
    table = upserted(lake)
    wanted = request_on(table, groups=[merged(table, small_files(table, "a"), keeps_map=True)])
    if planned == "before":
        delete_equal(table, ["id"], [(1,)], A)
    before = lake.load_table("db.t")
    assert opened(lake).rewrite_deletes().snapshot_ids
    outcome = run(lake, wanted, before)
    assert outcome.conflicts == (
        ("merge of 2 files dropped: another writer deleted rows of it",) if planned == "before" else ()
    )
    gone = {*range(0, 21, 3), *([1] if planned == "before" else [])}
    assert seen(lake) == [row for row in range(200) if row not in gone]
    assert len(live_deletes(lake.load_table("db.t"))) == (planned == "before")


def test_a_table_that_was_rolled_back(lake: SqlCatalog) -> None:
    """Deletes that are not in its history any more delete nothing."""
    table = upserted(lake)
    old = table.metadata.snapshots[-3].snapshot_id
    before_swap = once(lambda: lake.load_table("db.t").manage_snapshots().set_current_snapshot(old).commit())
    with armed("files-written", before_swap):
        report = opened(lake).rewrite_deletes()
    assert report.snapshot_ids == ()
    assert "no longer part of the table's current history" in report.conflicts[0]
    assert seen(lake) == [row for row in range(200) if row not in range(0, 15, 3)]


def test_delete_files_that_others_take_away(lake: SqlCatalog) -> None:
    """Who takes a delete file away may bring its rows back: they are not deleted again."""
    table = upserted(lake)
    [taken] = [e.data_file.file_path for e in live_deletes(table) if e.sequence_number == 5]

    def bring_back() -> None:
        table = lake.load_table("db.t")
        builder = SnapshotBuilder(table, NOW_MS)
        split = builder.split([taken], ManifestContent.DELETES)
        make_visible(lake, table, [builder.exchange(Operation.OVERWRITE, split, (), {})])

    with armed("before-swap", once(bring_back)):
        report = opened(lake).rewrite_deletes()
    assert report.snapshot_ids == ()
    assert report.conflicts == (
        "delete files of 'kind=a' stay as they are: another writer took delete files of it away",
    )
    assert seen(lake) == [row for row in range(200) if row not in (0, 3, 9, 12, 15, 18)]
    assert left_over(lake.load_table("db.t")) == set()
