"""Any order of batches, replays, faults, rivals and maintenance, on a real catalog: rows stay exact."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.errors import CommitConflict, CommitStateUnknown, TableError
from icesize.maintenance.jobs.restore import restore
from icesize.planning.cluster_by import STRATEGIES
from icesize.planning.files import PartitionKey
from icesize.sized_table import SizedTable
from icesize.table.commit.protocol import CommitRequest, ConcurrentChange
from icesize.table.records.ledger import entries
from icesize.table.records.summary import RESTORED_ID
from icesize.table.state.handle import PolicyArgument, TableHandle
from tests.support.examples import examples
from tests.support.jobs import context_of
from tests.support.machine import HookedCatalog, Killed, ModelledTable, Rows, killed_at, plain
from tests.support.machine_writers import Rival
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest
from tests.support.tables import (
    FakeTime,
    append,
    compact,
    ids_of,
    landed,
    local,
    merged,
    new_files,
    request_on,
    run,
    two_files,
    write,
)

HOUR_MS = 3_600_000
FAILURES = (TableError, CommitConflict, CommitStateUnknown, ConcurrentChange, Killed)
MOMENTS: tuple[Moment, ...] = ("before", "after")
DOUBTFUL = [Fault(kind, when) for kind in (409, 500, 502, 503, 504, "reset", "truncated", "html") for when in MOMENTS]
REFUSED = [Fault(kind) for kind in (400, 401, 403, 404, 419, 429)]
"""These are a no whenever they come: a catalog that has committed does not say them."""
STORM = [Fault(503)] * 12
"""So many that icesize gives up, and does not know what became of it."""

CONFLICTS = (
    "does not exist: [", "older than last sequence number", "to unknown snapshot", "than the table's next-row-id",
    "without first row id",
)  # fmt: skip
"""How PyIceberg, which is inside of the server, says that somebody else came first: not by a conflict."""

faults: st.SearchStrategy[list[Fault]] = st.one_of(
    st.sampled_from([[], [], [], STORM]), st.lists(st.sampled_from([*DOUBTFUL, *REFUSED]), max_size=3)
)
kinds = st.sampled_from("ab")
acts = st.lists(st.tuples(st.sampled_from([*Rival.ACTS, *Rival.OF_FILES * 3]), st.integers(0, 7)), max_size=2)
races = st.lists(st.tuples(st.sampled_from(Rival.OF_FILES), st.integers(0, 7)), min_size=1, max_size=2)
"""Those who are after the same files."""
FEW_DELETES = {
    "small_file_limit_bytes": 1, "target_file_size_bytes": 1, "max_delete_files": 1, "close_file_cost_bytes": 0,
    "delete_ratio_threshold": 1,
}  # fmt: skip
"""Two delete files of a data file are too many, and one of its own is always cheaper than to write it again."""
deaths = st.sampled_from([None] * 5 + ["before-swap", "after-swap"])


class TableMachine(RuleBasedStateMachine):
    """`pending` is a batch that failed: Spark will run it again, whether it has landed or not."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.modelled = ModelledTable(Path(self.folder.name))
        self.mini = self.modelled.mini
        self.mini.__enter__()
        self.rival = Rival(self.modelled)
        self.next_batch = 0
        self.pending: tuple[list[int], str, bool] | None = None

    def teardown(self) -> None:
        self.mini.__exit__(None, None, None)
        self.folder.cleanup()

    @initialize(version=st.sampled_from("1233"))
    def create(self, version: str) -> None:
        self.modelled.begin(version)
        self.fill("a", 2)
        self.fill("b", 2)

    @invariant()
    def all_is_well(self) -> None:
        """Every snapshot has the rows of the model and all of its files."""
        if self.modelled.version:
            self.modelled.look()

    @contextmanager
    def trouble(
        self, bad: Sequence[Fault] = (), others: Sequence[tuple[str, int]] = (), death: str | None = None
    ) -> Iterator[None]:
        """What goes wrong with the commits of the block; rivals come just before the first swap that is tried.

        Rivals talk to the same catalog: a second fault would be theirs.
        """
        self.mini.fail_next_commit(*bad)
        if len(bad) < 2 and others:
            self.mini.before_swap = lambda: self.act(others)
        with killed_at(death):
            yield

    def calm(self) -> None:
        """What of it did not come."""
        self.mini.before_swap, self.mini.stale_loads = None, 0
        while self.mini.next_fault({}) is not None:
            continue
        self.mini.errors[:] = [e for e in self.mini.errors if not any(text in str(e) for text in CONFLICTS)]

    def act(self, others: Sequence[tuple[str, int]]) -> None:
        for name, pick in others:
            self.rival.act(name, pick)

    def opened(self, later_ms: int = 0, policy: PolicyArgument = None) -> SizedTable:
        environment = self.modelled.environment(later_ms)
        return icesize.open(None, "db.t", catalog=self.modelled.own_catalog, policy=policy, environment=environment)

    @rule(kind=kinds, files=st.integers(1, 3))
    def fill(self, kind: str, files: int) -> None:
        """Small files of others, for all that comes to work on."""
        for _ in range(files):
            self.rival.act("append", "ab".index(kind))

    @rule(kind=kinds, merges=st.integers(0, 2), absorb=st.booleans(), bad=faults, others=acts, death=deaths)
    def batch(
        self,
        kind: str,
        merges: int,
        absorb: bool,
        bad: Sequence[Fault],
        others: Sequence[tuple[str, int]],
        death: str | None,
    ) -> None:
        """A new batch, or one that failed once more, with rivals between plan and swap."""
        ids, kind, landed = self.pending or (self.modelled.new_ids(2), kind, False)
        wanted = self.wanted(ids, kind, merges, absorb)
        new: Rows = Counter({k: n for k, n in self.modelled.rows_of(new_files(wanted)).items() if k[1][0] in ids})
        try:
            with self.trouble(bad, others, death):
                outcome = self.modelled.commit(wanted, self.modelled.table())
        except FAILURES:
            known = [e.batch_id for e in entries(self.modelled.table().metadata.properties)]
            if not landed and known == [self.next_batch]:
                self.modelled.rows += new
                landed = True
            self.pending = ids, kind, landed
        else:
            assert outcome.already_committed is landed
            if not landed:
                self.modelled.rows += new
            self.next_batch, self.pending = self.next_batch + 1, None
        self.calm()

    @rule(kind=kinds, merges=st.integers(0, 2), absorb=st.booleans(), others=races)
    def race(self, kind: str, merges: int, absorb: bool, others: Sequence[tuple[str, int]]) -> None:
        """A batch, or a merge, that has files to take, and others who take some of them first."""
        self.fill(kind, 2)
        if merges:
            self.batch(kind, merges, absorb, [], others, None)
        else:
            self.merge(int(absorb), [], others, None, lag=False)

    def wanted(self, ids: list[int], kind: str, merges: int, absorb: bool) -> CommitRequest:
        table = self.modelled.table()
        there = self.modelled.mergeable(table)
        together = [files for key, files in there.items() if absorb and key.values[0] == kind]
        old = [file for files in together for file in files]
        groups = [merged(table, files) for files in list(there.values())[:merges] if files not in together]
        new = self.modelled.write(table, ids, kind, together)
        return request_on(table, new, groups, batch=self.next_batch, absorbed=tuple(old))

    @precondition(lambda self: self.next_batch > 0 and self.pending is None)
    @rule(lag=st.booleans())
    def replay(self, lag: bool) -> None:
        """The newest committed batch once more, as Spark does after a crash."""
        table = self.modelled.table()
        wanted = request_on(table, self.modelled.write(table, [-1], "a"), batch=self.next_batch - 1)
        self.mini.stale_loads = int(lag)
        assert self.modelled.commit(wanted, table).already_committed
        assert not local(new_files(wanted)[0].path).exists()
        self.calm()

    @rule(pick=st.integers(0, 3), bad=faults, others=acts, death=deaths, lag=st.booleans())
    def merge(
        self, pick: int, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None, lag: bool
    ) -> None:
        """A compaction of one partition, perhaps with a catalog that lags."""
        table = self.modelled.table()
        if groups := list(self.modelled.mergeable(table).values()):
            wanted = request_on(table, groups=[merged(table, groups[pick % len(groups)])])
            self.mini.stale_loads = int(lag)
            self.attempt(lambda: self.modelled.commit(wanted, table), bad, [] if lag else others, death)

    @rule(bad=faults, death=deaths)
    def compact(self, bad: Sequence[Fault], death: str | None) -> None:
        """All partitions by the facade; unless something went wrong no more than one file is left in each."""
        done = self.attempt(self.opened().compact, bad, [], death)
        assert not done or not self.modelled.mergeable(self.modelled.table())

    @rule(strategy=st.sampled_from(STRATEGIES), bad=faults, others=acts, death=deaths)
    def cluster(
        self, strategy: str, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None
    ) -> None:
        """Rows in order, in files of a few rows; unless something went wrong nothing is left to do."""
        now = self.modelled.table()
        files = [file for kind in "ab" * 3 for file in self.modelled.write(now, self.modelled.new_ids(3), kind)]
        self.modelled.commit(request_on(now, files), now)
        self.modelled.rows += self.modelled.rows_of(files)
        table = self.opened(policy={"target-file-size-bytes": 1_000, "small-file-limit-bytes": 300})
        columns = [now.schema().find_field(i).name for i in (1, 3)]
        done = self.attempt(lambda: table.cluster(columns, strategy), bad, others, death)
        if done and not (bad or others or death):
            plan = table.plan_clustering()
            assert plan is not None
            assert plan.groups == ()

    @rule(others=acts)
    def rivals(self, others: Sequence[tuple[str, int]]) -> None:
        """Others, while nobody of us is there."""
        self.act(others)

    @rule(others=st.lists(st.tuples(st.sampled_from(Rival.DELETES), st.integers(0, 7)), min_size=2, max_size=4))
    def delete(self, others: Sequence[tuple[str, int]]) -> None:
        """Several deletes of others, for those that put them together or apply them."""
        self.act(others)

    @rule(
        keep=st.sampled_from([None, 1, 2, 3]),
        bad=faults,
        others=acts,
        death=st.sampled_from([None, None, None, "expiry-decided", "before-swap", "after-swap", "before-delete"]),
    )
    def expire(
        self, keep: int | None, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None
    ) -> None:
        """Ours, an hour later. A branch or tag that comes between is more than the REST protocol can assert."""
        seen = [each for each in others if each[0] not in ("tag", "branch")]
        last = None if keep else 2
        age = timedelta(0) if keep else None
        work = lambda: self.opened(HOUR_MS).expire_snapshots(keep, age, last)  # noqa: E731
        self.attempt(work, bad, seen, death)

    @rule(pick=st.integers(0, 40), bad=faults, others=acts, death=deaths)
    def restore(self, pick: int, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None) -> None:
        """A partition as it was at some snapshot, or nothing changed."""
        handle = TableHandle(self.modelled.own_catalog, ("db", "t"))
        current = handle.load()
        spec_id = current.table.metadata.default_spec_id
        known = [
            (i, key) for i, rows in self.modelled.history.items() for key in sorted({k for k, _ in rows}, key=repr)
        ]
        known = [(i, key) for i, key in known if key.spec_id == spec_id]
        if known:
            snapshot_id, key = known[pick % len(known)]
            context = context_of(handle, self.modelled.environment())
            work = lambda: restore(context, current, key, snapshot_id)  # noqa: E731
            done = self.attempt(work, bad, others, death)
            self.restored(snapshot_id, key)
            plain_case = not (bad or others or death or self.modelled.specs_changed)
            assert done or not plain_case, "nothing stood in the way of this restore"

    def restored(self, snapshot_id: int, key: PartitionKey) -> None:
        """What it means for the rows, if it landed."""
        new = [s for s in self.modelled.table().metadata.snapshots if s.snapshot_id not in self.modelled.history]
        if any(s.summary and s.summary.additional_properties.get(RESTORED_ID) == str(snapshot_id) for s in new):
            stays = {k: n for k, n in self.modelled.rows.items() if k[0] != key}
            again = {k: n for k, n in self.modelled.history[snapshot_id].items() if k[0] == key}
            self.modelled.rows = Counter({**stays, **again})

    @rule(bad=faults, others=acts, death=deaths)
    def rewrite_manifests(self, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None) -> None:
        """Fewer manifests of the same files."""
        self.attempt(self.opened().rewrite_manifests, bad, others, death)

    @rule(bad=faults, others=acts, death=deaths)
    def remove_dangling_deletes(
        self, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None
    ) -> None:
        """Delete files that hit nothing go, and no row comes back."""
        self.attempt(self.opened().remove_dangling_deletes, bad, others, death)

    @rule(bad=faults, others=acts, death=deaths)
    def rewrite_deletes(self, bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None) -> None:
        """Many delete files become few, and no row comes back or goes."""
        self.attempt(self.opened(policy=FEW_DELETES).rewrite_deletes, bad, others, death)

    @rule(days=st.sampled_from([0, 4]))
    def clean_up(self, days: int) -> None:
        """Orphan cleanup: days later it leaves exactly what some snapshot needs; PyIceberg's reader agrees."""
        self.modelled.age(days)
        report = self.opened().remove_orphan_files(dry_run=False)
        assert report.files_failed == 0
        if days:
            assert self.modelled.on_storage() == self.modelled.needed()
        if not self.modelled.equality_deletes:
            assert ids_of(self.modelled.own_catalog) == sorted(row[0] for row in plain(self.modelled.rows).elements())

    def attempt(
        self, work: Callable[[], object], bad: Sequence[Fault], others: Sequence[tuple[str, int]], death: str | None
    ) -> bool:
        """Whether it was done; where not, the rows have to be what they were."""
        try:
            with self.trouble(bad, others, death):
                work()
        except FAILURES:
            return False
        finally:
            self.calm()
        return True


class SqliteMachine(TableMachine):
    """The same in a catalog whose answers are never lost, and in which PyIceberg writes the metadata."""

    def __init__(self) -> None:
        super().__init__()
        warehouse = self.modelled.folder = self.modelled.folder / "warehouse"
        places = {"uri": f"sqlite:///{self.folder.name}/catalog.db", "warehouse": warehouse.as_uri()}
        self.catalog = self.modelled.own_catalog = HookedCatalog("lake", **places)
        self.modelled.other_catalog = SqlCatalog("lake", **places)

    def teardown(self) -> None:
        self.catalog.close()
        self.modelled.other_catalog.close()
        super().teardown()

    @contextmanager
    def trouble(
        self, bad: Sequence[Fault] = (), others: Sequence[tuple[str, int]] = (), death: str | None = None
    ) -> Iterator[None]:
        self.catalog.before_swap[:] = [lambda: self.act(others)]
        with killed_at(death):
            yield

    def calm(self) -> None:
        self.catalog.before_swap.clear()


TestTableMachine = TableMachine.TestCase
TestSqliteMachine = SqliteMachine.TestCase
TestSqliteMachine.pytestmark = [pytest.mark.engine]  # type: ignore[attr-defined]
TestTableMachine.settings = TestSqliteMachine.settings = examples(8, stateful_step_count=25)


@pytest.mark.slow
class TestLongSqliteMachine(SqliteMachine.TestCase):  # type: ignore[misc,valid-type]
    """100 tables of up to 50 steps each: 5,000 steps."""

    settings = examples(100, stateful_step_count=50)


@pytest.mark.slow
class TestLongTableMachine(TableMachine.TestCase):  # type: ignore[misc,valid-type]
    """100 tables of up to 50 steps each: 5,000 steps."""

    settings = examples(100, stateful_step_count=50)


def test_a_tag_keeps_its_rows_when_a_batch_landed_unseen_and_expired(mini: MiniRest) -> None:
    """Told 409 after landing, its snapshot expired and its file compacted away: what a tag needs of it stays."""
    catalog, rival = mini.catalog("lake"), mini.catalog("rival")
    before = two_files(catalog)

    def meanwhile() -> None:
        ours = rival.load_table("db.t").metadata.current_snapshot_id
        after = append(rival, [9], "b")
        after.manage_snapshots().create_tag(after.metadata.snapshots[-1].snapshot_id, "audit").commit()
        compact(rival).maintenance.expire_snapshots().by_ids([ours]).commit()

    mini.fail_next_commit(Fault(409, "after"))
    wanted = request_on(before, [write(before, [3])], batch=1)
    assert run(catalog, wanted, before, FakeTime(meanwhile)).already_committed
    table = landed(catalog, [1, 2, 3, 9])
    tagged = table.scan(snapshot_id=table.metadata.refs["audit"].snapshot_id).to_arrow()
    assert sorted(tagged["id"].to_pylist()) == [1, 2, 3, 9]
