"""Clusterings that meet lost answers, rivals, full disks, damaged files and their own death: rows stay exact."""

from __future__ import annotations

import errno
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet as pq
import pytest
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io import OutputFile
from pyiceberg.transforms import BucketTransform
from pyiceberg.types import IntegerType

import icesize
from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import ClusteringOff, CommitConflict, CommitStateUnknown, RewriteFailed, TableError
from icesize.planning.files import FileFact
from icesize.report import Report
from icesize.sized_table import SizedTable
from icesize.table.commit.compared_inputs import REMOVED
from icesize.table.commit.merge_despite_changes import TOO_MANY
from tests.support.machine import Killed, ModelledTable
from tests.support.parquet_files import RemoteLike
from tests.support.rest_faults import Fault, Moment
from tests.support.row_deletes import delete_ids, delete_rows
from tests.support.tables import (
    compact,
    data_files_on_disk,
    expire,
    live_paths,
    local,
    make_table,
    operations,
    request_on,
    run,
    small_files,
    sqlite_catalog,
)

FILES, ROWS = 4, 300
POLICY: dict[str, object] = {"target-file-size-bytes": 3_000, "small-file-limit-bytes": 1_200}
OUTDATED = "schema or partition spec changed while the merge ran"
MOMENTS: tuple[Moment, ...] = ("before", "after")
Act = Callable[[ModelledTable], object]


def slow(*values: object) -> Any:
    """A case that only `.ci/full` runs."""
    return pytest.param(*values, marks=pytest.mark.slow)


def filled(modelled: ModelledTable, **properties: str) -> ModelledTable:
    """Partitions `a` and `b` of four files each, ids in any order; the table knows that it is sorted by `id`."""
    modelled.begin("2")
    if properties:
        with modelled.table().transaction() as changes:
            changes.set_properties(properties)
    add(modelled, "ab", FILES)
    assert opened(modelled).cluster(["id"], budget_bytes=0).snapshot_ids == ()
    return modelled


def add(modelled: ModelledTable, kinds: str, files: int) -> None:
    """Files of others in these partitions, in one commit; each has ids from all over the place."""
    table = modelled.other_catalog.load_table("db.t")
    written = [file for kind in kinds * files for file in modelled.write(table, modelled.new_ids(ROWS), kind)]
    run(modelled.other_catalog, request_on(table, written), table)
    modelled.rows += modelled.rows_of(written)


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[ModelledTable]:
    """A table of a REST catalog that can fail."""
    modelled = ModelledTable(tmp_path)
    with modelled.mini:
        yield filled(modelled)


@pytest.fixture
def sqlite(tmp_path: Path) -> Iterator[ModelledTable]:
    """One of a catalog in SQLite."""
    catalog, modelled = sqlite_catalog(tmp_path), ModelledTable(tmp_path / "warehouse")
    modelled.own_catalog = modelled.other_catalog = catalog
    yield filled(modelled)
    catalog.close()


@pytest.fixture(params=["rest", "sqlite"])
def modelled(request: pytest.FixtureRequest) -> ModelledTable:
    """Both kinds."""
    found: ModelledTable = request.getfixturevalue(request.param)
    return found


def opened(modelled: ModelledTable, **policy: object) -> SizedTable:
    """The table as we open it: files of 3 kB, no waiting."""
    return icesize.open(
        None, "db.t", catalog=modelled.own_catalog, policy=POLICY | policy, environment=modelled.environment()
    )


def rival(modelled: ModelledTable) -> SizedTable:
    """The table as others open it."""
    return icesize.open(None, "db.t", catalog=modelled.other_catalog, policy=POLICY, environment=modelled.environment())


def one_by_one(*actions: Callable[[], object]) -> Callable[[], None]:
    """For a failpoint: one of the actions each time that we get there; they may pass it themselves."""
    left, busy = list(actions), list[bool]()

    def act() -> None:
        if left and not busy:
            busy.append(True)
            left.pop(0)()
            busy.clear()

    return act


def leftovers(modelled: ModelledTable) -> set[Path]:
    """Files (metadata JSON aside) that no snapshot needs; all else about the table is as it has to be."""
    modelled.look()
    return modelled.on_storage() - modelled.needed()


def data_files(paths: set[Path]) -> set[Path]:
    return {path for path in paths if path.suffix == ".parquet"}


def settled(modelled: ModelledTable, **policy: object) -> None:
    """Clustering once more does what is left, and then nothing: rows are exact, each value is in one file of a set."""
    opened(modelled, **policy).cluster()
    modelled.look()
    again = opened(modelled, **policy).plan_clustering()
    assert again is not None
    assert again.groups == ()


def sorted_files(modelled: ModelledTable, kind: str) -> bool:
    """Whether the bounds of `id` of a partition's files overlap nowhere."""
    spans = []
    for file in small_files(modelled.table(), kind):
        ids = [row[0] for row in modelled.reader.rows_in(file.path)]
        spans.append((min(ids), max(ids)))
    spans.sort()
    return all(first[1] < second[0] for first, second in pairwise(spans))


def test_without_faults_both_partitions_are_laid_out(modelled: ModelledTable) -> None:
    """One replace, sorted partitions, nothing left over and nothing left to do: what the other tests disturb."""
    report = opened(modelled).cluster()
    assert (report.operations, report.partitions_touched, report.files_removed) == (("replace",), 2, 2 * FILES)
    assert report.files_added >= 6
    assert leftovers(modelled) == set()
    assert sorted_files(modelled, "a")
    assert sorted_files(modelled, "b")
    settled(modelled)
    assert operations(modelled.table()).count("replace") == 1


DOUBTFUL = [Fault(kind, when) for kind in (409, 500, 502, 503, 504, "reset", "truncated", "html") for when in MOMENTS]
FAST_DOUBTS = (Fault(409, "after"), Fault(409), Fault("reset", "after"), Fault(503))


@pytest.mark.parametrize(
    "fault",
    [f if f in FAST_DOUBTS else slow(f) for f in DOUBTFUL],
    ids=str,
)
def test_an_answer_that_is_lost_is_looked_up(rest: ModelledTable, fault: Fault) -> None:
    """Whether it landed is found out before it is tried again; the same files land, once, and no data file is lost."""
    written: list[set[str]] = []
    rest.mini.fail_next_commit(fault)
    with failpoints.armed("files-written", lambda: written.append(data_files_on_disk(rest.table()))):
        report = opened(rest).cluster()
    assert (report.operations, report.files_removed) == (("replace",), 2 * FILES)
    assert data_files_on_disk(rest.table()) == written[0]
    assert operations(rest.table()).count("replace") == 1
    left = leftovers(rest)
    # manifests of an attempt that may still land stay
    assert data_files(left) == set()
    assert fault.when == "before" or left == set()
    settled(rest)


@pytest.mark.parametrize("status", [403, slow(400), slow(404)])
def test_a_refusal_leaves_nothing(rest: ModelledTable, status: int) -> None:
    """A definite no: the error tells it, the table is as it was, our files are gone; later it lands."""
    before = rest.table().metadata.current_snapshot_id
    rest.mini.fail_next_commit(Fault(status))
    with pytest.raises(TableError, match=r"Cannot commit to 'db\.t': the catalog refused it"):
        opened(rest).cluster()
    assert rest.table().metadata.current_snapshot_id == before
    assert leftovers(rest) == set()
    settled(rest)
    assert sorted_files(rest, "a")


@pytest.mark.parametrize("when", MOMENTS)
def test_a_catalog_that_is_gone_after_it_was_asked(rest: ModelledTable, when: Moment) -> None:
    """Nobody can tell whether it landed: nothing is deleted, the same call later does it or finds it done."""

    def go_away() -> None:
        rest.mini.fail_next_commit(Fault("reset", when))
        rest.mini.fail_next_load(*[Fault(503)] * 9)

    with (
        failpoints.armed("before-swap", one_by_one(go_away)),
        pytest.raises(CommitStateUnknown, match=r"Commit state unknown.*Nothing was deleted"),
    ):
        opened(rest).cluster()
    landed = when == "after"
    assert operations(rest.table()).count("replace") == landed
    first = data_files(leftovers(rest))
    assert bool(first) is not landed
    assert bool(opened(rest).cluster().snapshot_ids) is not landed
    assert data_files(leftovers(rest)) == first
    settled(rest)
    rest.age()
    assert opened(rest).remove_orphan_files(dry_run=False).files_failed == 0
    assert leftovers(rest) == set()


@pytest.mark.parametrize("fault", [Fault("reset", "after"), slow(Fault(503)), slow(Fault(409, "after"))], ids=str)
def test_the_answer_to_what_is_remembered_is_lost(rest: ModelledTable, fault: Fault) -> None:
    """Columns and sort order are stored once, and rows are laid out by them all the same."""
    rest.mini.fail_next_commit(fault)
    report = opened(rest).cluster(["ts", "id"])
    table = rest.table()
    assert report.operations == ("replace",)
    assert table.properties["icesize.cluster.by"] == "ts,id"
    assert [field.source_id for field in table.sort_order().fields] == [3, 1]
    assert len(table.metadata.sort_orders) == 3
    settled(rest)


@pytest.mark.parametrize("rivals", [1, slow(4)])
def test_appends_into_the_same_partitions_cost_attempts_but_no_row(modelled: ModelledTable, rivals: int) -> None:
    """Each time another append comes first: the files that were written once land on top of all of them."""
    written: list[set[str]] = []
    appends = one_by_one(*[lambda: add(modelled, "ab", 1)] * rivals)
    with (
        failpoints.armed("files-written", lambda: written.append(data_files_on_disk(modelled.table()))),
        failpoints.armed("before-swap", appends),
    ):
        report = opened(modelled).cluster()
    assert (report.operations, report.conflicts, len(written)) == (("replace",), (), 1)
    assert len(written[0] & set(live_paths(modelled.table()))) == report.files_added
    assert data_files_on_disk(modelled.table()) - written[0] == set(live_paths(modelled.table())) - written[0]
    assert operations(modelled.table())[-rivals - 1 :] == [*["append"] * rivals, "replace"]
    assert leftovers(modelled) == set()
    settled(modelled)


def test_appends_that_always_come_first_end_in_a_conflict(rest: ModelledTable) -> None:
    """At the deadline nothing has landed, our files are gone, and what others wrote is there."""
    endless = one_by_one(*[lambda: add(rest, "a", 1)] * 20)
    with (
        failpoints.armed("before-swap", endless),
        pytest.raises(CommitConflict, match=r"other writers committed first \d+ times.*nothing was committed"),
    ):
        opened(rest, **{"commit-deadline-ms": 200}).cluster()
    assert set(operations(rest.table())) == {"append"}
    assert leftovers(rest) == set()
    settled(rest)


def first_file(modelled: ModelledTable, kind: str = "a") -> FileFact:
    return small_files(modelled.other_catalog.load_table("db.t"), kind)[0]


def compact_a(modelled: ModelledTable) -> None:
    compact(modelled.other_catalog)


def delete_by_position(modelled: ModelledTable) -> None:
    input_file = first_file(modelled)
    modelled.rows -= Counter(
        {(input_file.partition, modelled.reader.rows_in(input_file.path)[position]): 1 for position in (0, 7)}
    )
    delete_rows(modelled.other_catalog, input_file, (0, 7))


def delete_by_equality(modelled: ModelledTable) -> None:
    input_file = first_file(modelled)
    gone = modelled.reader.rows_in(input_file.path)[3]
    modelled.rows -= Counter({(input_file.partition, gone): 1})
    delete_ids(modelled.other_catalog, input_file, [gone[0]])


def drop_a(modelled: ModelledTable) -> None:
    modelled.rows = Counter({key: n for key, n in modelled.rows.items() if key[1][1] != "a"})
    modelled.other_catalog.load_table("db.t").delete("kind = 'a'")


def roll_back(modelled: ModelledTable) -> None:
    """To before the newest append, which was one into `a`."""
    table = modelled.other_catalog.load_table("db.t")
    snapshot_id = table.metadata.snapshots[-2].snapshot_id
    table.manage_snapshots().rollback_to_snapshot(snapshot_id).commit()
    modelled.rows = Counter(modelled.history[snapshot_id])


RIVALS: list[tuple[Act, str]] = [(compact_a, REMOVED), (drop_a, REMOVED)]
SWAPS = [(*each, "before-swap") for each in RIVALS]
SWAPS += [slow(*each, moment) for each in RIVALS for moment in ("planned", "files-written")]


@pytest.mark.parametrize(("act", "why", "moment"), SWAPS)
def test_inputs_that_others_touch_cost_their_group_alone(rest: ModelledTable, act: Act, why: str, moment: str) -> None:
    """Partition `a` stays as the rival left it, as the table has no deletes; `b` lands; files for `a` go."""
    with failpoints.armed(moment, one_by_one(lambda: act(rest))):
        report = opened(rest).cluster()
    assert (report.operations, report.partitions_touched) == (("replace",), 1)
    assert report.conflicts == (f"merge of {FILES} files dropped: {why}",)
    assert leftovers(rest) == set()
    assert sorted_files(rest, "b")
    settled(rest)
    assert leftovers(rest) == set()


@pytest.mark.parametrize("moment", ["planned", "files-written", "before-swap"])
def test_rows_deleted_by_equality_meanwhile_are_deleted_in_new_files(rest: ModelledTable, moment: str) -> None:
    """New files carry numbers of their inputs, so deletes of others reach them, and nothing is in vain."""
    with failpoints.armed(moment, one_by_one(lambda: delete_by_equality(rest))):
        report = opened(rest).cluster()
    assert (report.operations, report.partitions_touched, report.conflicts) == (("replace",), 2, ())
    settled(rest)


@pytest.mark.parametrize("moment", ["planned", "files-written", "before-swap"])
def test_rows_deleted_by_position_meanwhile_are_deleted_in_new_files(rest: ModelledTable, moment: str) -> None:
    """The places of all rows are known, so the deletes move to the new files, whatever came after them."""

    def meanwhile() -> None:
        delete_by_position(rest)
        add(rest, "b", 1)

    with failpoints.armed(moment, one_by_one(meanwhile)):
        report = opened(rest).cluster()
    assert (report.operations, report.partitions_touched, report.conflicts) == (("replace",), 2, ())
    assert leftovers(rest) == set()
    rest.look()
    settled(rest)


def test_deletes_of_most_rows_of_a_new_file_drop_its_group(rest: ModelledTable) -> None:
    """It would be due again at once."""

    def meanwhile() -> None:
        for file in small_files(rest.other_catalog.load_table("db.t"), "a"):
            rows = rest.reader.rows_in(file.path)
            rest.rows -= Counter({(file.partition, rows[position]): 1 for position in range(file.rows // 2)})
            delete_rows(rest.other_catalog, file, tuple(range(file.rows // 2)))

    with failpoints.armed("planned", one_by_one(meanwhile)):
        report = opened(rest).cluster()
    assert report.conflicts == (f"merge of {FILES} files dropped: {TOO_MANY}",)
    assert report.partitions_touched == 1
    assert leftovers(rest) == set()
    settled(rest)


def test_a_rollback_brings_no_row_back(rest: ModelledTable) -> None:
    """One input file is not listed any more: its group is dropped, and due again; the other one is as it was."""
    rest.look()
    add(rest, "a", 1)
    with failpoints.armed("files-written", one_by_one(lambda: roll_back(rest))):
        report = opened(rest).cluster()
    assert report.conflicts == (f"merge of {FILES + 1} files dropped: {REMOVED}",)
    assert report.partitions_touched == 1
    assert leftovers(rest) == set()
    settled(rest)


def add_column(modelled: ModelledTable) -> None:
    modelled.other_catalog.load_table("db.t").update_schema().add_column("number", IntegerType()).commit()


def rename_key(modelled: ModelledTable) -> None:
    modelled.other_catalog.load_table("db.t").update_schema().rename_column("id", "identity").commit()


def drop_key(modelled: ModelledTable) -> None:
    modelled.other_catalog.load_table("db.t").update_schema().delete_column("id").commit()


def add_field(modelled: ModelledTable) -> None:
    modelled.other_catalog.load_table("db.t").update_spec().add_field("id", BucketTransform(2), "bucket").commit()


@pytest.mark.parametrize("moment", ["before-swap", "planned"])
def test_an_expired_base_costs_no_group(rest: ModelledTable, moment: str) -> None:
    """The snapshot that was planned on is gone; the input files are as they were."""

    def expire_base() -> None:
        add(rest, "b", 1)
        expire(rest.other_catalog.load_table("db.t"))

    with failpoints.armed(moment, one_by_one(expire_base)):
        report = opened(rest).cluster()
    assert (report.conflicts, report.operations) == ((), ("replace",))
    settled(rest)


@pytest.mark.parametrize(
    ("act", "why", "moment"),
    [
        (add_column, OUTDATED, "before-swap"),
        slow(add_column, OUTDATED, "planned"),
        (rename_key, OUTDATED, "files-written"),
        (add_field, OUTDATED, "before-swap"),
        slow(add_field, OUTDATED, "files-written"),
    ],
)
def test_what_makes_the_whole_plan_wrong_drops_it(rest: ModelledTable, act: Act, why: str, moment: str) -> None:
    """Another schema or another partitioning: nothing lands, nothing is left over, all is told."""
    with failpoints.armed(moment, one_by_one(lambda: act(rest))):
        report = opened(rest).cluster()
    assert report.snapshot_ids == ()
    assert why in report.conflicts[0]
    assert report.clustering is not None
    assert report.clustering["before"] == report.clustering["after"]
    assert leftovers(rest) == set()
    assert "replace" not in operations(rest.table())
    if act is rename_key:
        again = opened(rest).cluster()
        assert again.clustering is not None
        assert again.clustering["columns"] == ["identity"]
    settled(rest)
    assert ("replace" in operations(rest.table())) is (act is not add_field)


def test_a_key_that_is_dropped_meanwhile_is_told(sqlite: ModelledTable) -> None:
    """The clustering is dropped, the next one names the column that is gone; rows are as they were."""
    add(sqlite, "ab", 2 * FILES)
    before = live_paths(sqlite.table())
    # a column of the table's sort order cannot be dropped, one of a curve can
    opened(sqlite).cluster(["id", "ts"], "zorder", budget_bytes=0)
    with failpoints.armed("files-written", one_by_one(lambda: drop_key(sqlite))):
        report = opened(sqlite).cluster()
    assert (report.snapshot_ids, report.conflicts) == ((), (f"merge of {6 * FILES} files dropped: {OUTDATED}",))
    with pytest.raises(ClusteringOff, match=r"column 'id' \(field 1\) was dropped"):
        opened(sqlite).cluster()
    assert sorted(live_paths(sqlite.table())) == sorted(before)
    assert {local(path) for path in data_files_on_disk(sqlite.table())} == {local(path) for path in before}


@pytest.mark.parametrize("moment", ["before-swap", slow("files-written")])
def test_a_twin_that_is_faster_wins(sqlite: ModelledTable, moment: str) -> None:
    """Of two that cluster the same files one lands; the other drops all it wrote and says so."""
    with failpoints.armed(moment, one_by_one(lambda: rival(sqlite).cluster())):
        report = opened(sqlite).cluster()
    assert (report.snapshot_ids, report.partitions_touched) == ((), 0)
    assert report.conflicts == (f"merge of {FILES} files dropped: {REMOVED}",) * 2
    assert operations(sqlite.table()).count("replace") == 1
    assert leftovers(sqlite) == set()
    settled(sqlite)
    assert operations(sqlite.table()).count("replace") == 1


def test_two_threads_cluster_at_once(sqlite: ModelledTable) -> None:
    """Both stage on the same head: one lands, the other finds its files gone."""
    barrier, met, reports = threading.Barrier(2), set[int](), list[Report]()

    def meet() -> None:
        if threading.get_ident() not in met:
            met.add(threading.get_ident())
            barrier.wait(60)

    tables = [opened(sqlite), opened(sqlite)]
    threads = [threading.Thread(target=lambda each=each: reports.append(each.cluster())) for each in tables]
    with failpoints.armed("before-swap", meet):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert sorted(report.operations for report in reports) == [(), ("replace",)]
    assert leftovers(sqlite) == set()
    settled(sqlite)


def test_others_that_want_another_order_meanwhile_win(rest: ModelledTable) -> None:
    """The table is sorted by what was stored last; a set that was sorted by something else counts as new files."""

    def elsewhere() -> None:
        rival(rest).cluster(["ts"], where="kind = 'b'")

    with failpoints.armed("files-written", one_by_one(elsewhere)):
        report = opened(rest).cluster(where="kind = 'a'")
    table = rest.table()
    assert (report.operations, report.conflicts) == (("replace",), ())
    assert table.properties["icesize.cluster.by"] == "ts"
    known = {order.order_id for order in table.metadata.sort_orders}
    assert set(table.inspect.files()["sort_order_id"].to_pylist()) <= known
    assert leftovers(rest) == set()
    plan = opened(rest).plan_clustering()
    assert plan is not None
    assert plan.clustering is not None
    assert plan.clustering.by.columns == ("ts",)
    settled(rest)


def test_an_order_that_is_stored_just_before_ours_is_replaced(rest: ModelledTable) -> None:
    """Another call comes first with all it does: ours is stored on top, and finds rows in the order that it wants."""
    rest.mini.before_swap = one_by_one(lambda: rival(rest).cluster(["ts", "id"]))
    report = opened(rest).cluster(["kind", "id"])
    assert (report.operations, operations(rest.table()).count("replace")) == ((), 1)
    assert rest.table().properties["icesize.cluster.by"] == "kind,id"
    assert [field.source_id for field in rest.table().sort_order().fields] == [2, 1]
    assert leftovers(rest) == set()
    assert sorted_files(rest, "a")
    settled(rest)


AGAIN = r"dropped and recreated.*nothing was written to the new table"


@pytest.mark.parametrize("point", ["files-written", "before-swap"])
def test_a_table_that_was_made_again_gets_nothing(modelled: ModelledTable, point: str) -> None:
    """Dropped and created between planning and swap: an error, and the new table is empty. Its cleanup removes our
    files, and those of the old table only when the metadata files of that table are gone.
    """

    def make_again() -> None:
        modelled.other_catalog.drop_table("db.t")
        make_table(modelled.other_catalog)
        modelled.rows.clear()

    old = modelled.table()
    before = data_files_on_disk(old)
    with failpoints.armed(point, one_by_one(make_again)), pytest.raises(TableError, match=AGAIN):
        opened(modelled).cluster()
    assert modelled.table().metadata.current_snapshot() is None
    assert (data_files_on_disk(old) > before) == (point == "before-swap")
    modelled.age()
    report = opened(modelled).remove_orphan_files(dry_run=False)
    assert any("metadata files of another table" in note for note in report.notes), report.notes
    assert data_files_on_disk(old) == before
    metadata = Path(local(modelled.table().metadata_location))
    for path in set(metadata.parent.glob("*.metadata.json")) - {metadata}:
        path.unlink()
    assert opened(modelled).remove_orphan_files(dry_run=False).files_failed == 0
    assert leftovers(modelled) == set()


def test_a_conflict_of_a_table_that_is_gone_is_not_believed(
    sqlite: ModelledTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit lands, the table gets another name and its old one another table, and the answer is "conflict", as of
    a request that was sent twice: nothing is deleted, the renamed table has its rows."""
    ask, rows = sqlite.own_catalog.commit_table, sorted(sqlite.table().scan().to_arrow()["id"].to_pylist())

    def lands(*request: Any) -> None:
        ask(*request)
        monkeypatch.undo()
        sqlite.own_catalog.rename_table("db.t", "db.renamed")
        make_table(sqlite.own_catalog)
        raise CommitFailedException("Requirement failed: UUID does not match")

    monkeypatch.setattr(sqlite.own_catalog, "commit_table", lands)
    with pytest.raises(TableError, match=AGAIN):
        opened(sqlite).cluster()
    renamed = sqlite.own_catalog.load_table("db.renamed")
    assert operations(renamed)[-1] == "replace"
    assert sorted(renamed.scan().to_arrow()["id"].to_pylist()) == rows
    sqlite.age()
    with pytest.raises(TableError, match=r"'db\.renamed' has the same location"):
        opened(sqlite).remove_orphan_files(dry_run=False)
    assert sorted(renamed.scan().to_arrow()["id"].to_pylist()) == rows


class Disk(RemoteLike):
    """Storage that takes no file whose name ends so."""

    full: ClassVar[str] = "never"

    def new_output(self, location: str) -> OutputFile:
        if location.endswith(self.full):
            raise OSError(errno.ENOSPC, "No space left on device", location)
        return super().new_output(location)


@pytest.mark.parametrize("full", [".parquet", slow(".avro")])
def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path, full: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For data each group fails and is named, for manifests the commit does; with room again it lands."""
    modelled = ModelledTable(tmp_path / "warehouse")
    modelled.own_catalog = modelled.other_catalog = sqlite_catalog(tmp_path)
    filled(modelled, **{"py-io-impl": "tests.maintenance.jobs.test_clustering_faults.Disk"})
    monkeypatch.setattr(Disk, "full", full)
    if full == ".parquet":
        with pytest.raises(RewriteFailed, match=r"Cannot cluster 'lake\.db\.t': every merge failed") as caught:
            opened(modelled).cluster()
        assert str(caught.value).count("No space left on device") == 2
    else:
        with pytest.raises(TableError, match=r"could not be read or written \(OSError.*No space left on device"):
            opened(modelled).cluster()
    monkeypatch.undo()
    assert leftovers(modelled) == set()
    assert set(operations(modelled.table())) == {"append"}
    settled(modelled)
    assert sorted_files(modelled, "b")
    modelled.own_catalog.close()


def test_a_disk_that_fills_up_costs_the_group_that_it_hits(rest: ModelledTable) -> None:
    """That group is named and its files are gone; the other one lands; with room again the rest does."""

    def no_space() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    # reached in several threads: the first one has bad luck
    with failpoints.armed("writing", one_by_one(no_space)):
        report = opened(rest).cluster()
    assert (report.operations, report.partitions_touched) == (("replace",), 1)
    (note,) = [note for note in report.notes if "No space left on device" in note]
    assert f"merge of {FILES} files in 'kind=" in note
    assert leftovers(rest) == set()
    assert opened(rest).cluster().partitions_touched == 1
    settled(rest)


def hurt(path: Path, damage: str) -> None:
    """Damage a file of the table."""
    content = path.read_bytes()
    match damage:
        case "missing":
            path.unlink()
        case "truncated":
            path.write_bytes(content[: len(content) // 2])
        case "garbage":
            path.write_bytes(b"\0" * len(content))
        case "flipped bit":
            path.write_bytes(content[:300] + bytes([content[300] ^ 16]) + content[301:])
        case "fewer rows":
            pq.write_table(pq.read_table(path, partitioning=None).slice(0, 200), path)


@pytest.mark.parametrize(
    "damage", ["truncated", slow("missing"), slow("garbage"), slow("flipped bit"), slow("fewer rows")]
)
def test_a_damaged_victim_costs_its_group_alone(rest: ModelledTable, damage: str) -> None:
    """It is named, no half of a group is left over, the other partition lands; restored it is clustered, too."""
    input_file = small_files(rest.table(), "a")[1]
    path = local(input_file.path)
    content = path.read_bytes()
    hurt(path, damage)
    report = opened(rest).cluster()
    assert (report.operations, report.partitions_touched, report.files_removed) == (("replace",), 1, FILES)
    (note,) = report.notes
    assert f"merge of {FILES} files in 'kind=a' dropped" in note
    assert input_file.path in note
    path.write_bytes(content)
    assert leftovers(rest) == set()
    assert sorted_files(rest, "b")
    assert opened(rest).cluster().partitions_touched == 1
    assert sorted_files(rest, "a")
    settled(rest)


POINTS = {
    "planned": (False, False),
    "writing": (False, True),
    "files-written": (False, True),
    "before-swap": (False, True),
    "after-swap": (True, False),
}
"""Where it ends -> whether it has landed then, and whether one that dies leaves files."""


@pytest.mark.parametrize(
    ("point", "ending"),
    [
        *((point, Killed) for point in POINTS),
        ("files-written", KeyboardInterrupt),
        *(slow(point, KeyboardInterrupt) for point in POINTS if point != "files-written"),
    ],
)
def test_an_end_at_any_point_is_before_or_after(rest: ModelledTable, point: str, ending: type[BaseException]) -> None:
    """The table is old or new; Ctrl-C leaves nothing, death at most files of ours; the next call does what is left."""
    landed, leaves = POINTS[point]
    dead: list[bool] = []

    def end() -> None:
        dead.append(True)
        raise ending(point)

    def stay_dead() -> None:
        if dead:
            raise Killed(point)

    with ExitStack() as stack:
        stack.enter_context(failpoints.armed(point, end))
        if ending is Killed:
            stack.enter_context(failpoints.armed("cleanup", stay_dead))
        stack.enter_context(pytest.raises(BaseException, match=point))
        opened(rest).cluster()
    assert dead
    assert operations(rest.table()).count("replace") == landed
    first = leftovers(rest)
    assert bool(first) is (leaves and ending is Killed)
    assert bool(opened(rest).cluster().snapshot_ids) is not landed
    assert leftovers(rest) == first
    settled(rest)
    rest.age()
    assert opened(rest).remove_orphan_files(dry_run=False).files_failed == 0
    assert leftovers(rest) == set()


def test_a_cleanup_that_fails_hides_no_error(rest: ModelledTable) -> None:
    """What the catalog refused is told although our files cannot be removed; these are orphans, found days later."""

    def stuck() -> None:
        raise PermissionError("read-only file system")

    rest.mini.fail_next_commit(Fault(403))
    with failpoints.armed("cleanup", stuck), pytest.raises(TableError, match="the catalog refused it \\(403\\)"):
        opened(rest).cluster()
    assert data_files(leftovers(rest))
    assert set(operations(rest.table())) == {"append"}
    settled(rest)
    rest.age()
    assert opened(rest).remove_orphan_files(dry_run=False).files_failed == 0
    assert leftovers(rest) == set()


def test_maintenance_goes_on_when_its_clustering_is_refused(rest: ModelledTable) -> None:
    """The step is named as failed, the others run, nothing is left over; the next pass does it."""
    rest.mini.fail_next_commit(Fault(403))
    report = opened(rest).maintain()
    assert set(report.failed) == {"clustering"}
    assert "the catalog refused it (403)" in report.failed["clustering"]
    assert report.orphans is not None
    assert leftovers(rest) == set()
    again = opened(rest).maintain()
    assert (again.failed, [each.partitions_touched for each in again.clusterings]) == ({}, [2])
    settled(rest)


def test_files_that_orphan_cleanup_took_fail_the_run(rest: ModelledTable) -> None:
    """A run of days finds its files gone before it commits: told, the table is as it was."""
    seconds = [0.0]
    environment = Environment(monotonic=lambda: seconds[0], sleep=lambda waits: None)
    table = icesize.open(None, "db.t", catalog=rest.own_catalog, policy=POLICY, environment=environment)

    def days_pass() -> None:
        seconds[0] += 4 * 86_400
        rest.age()
        opened(rest).remove_orphan_files(dry_run=False)

    with failpoints.armed("files-written", one_by_one(days_pass)), pytest.raises(RewriteFailed, match="are gone"):
        table.cluster()
    assert leftovers(rest) == set()
    settled(rest)
