"""Any order of batches, replays, faults, rivals, deletes and expiry, on a real catalog: rows stay exact."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from icesize.errors import TableError
from icesize.table.request import CommitRequest
from tests.rest_faults import Fault
from tests.rest_server import MiniRest
from tests.rival_deletes import delete_rows
from tests.tables import (
    append,
    check,
    expire,
    ids_of,
    local,
    make_table,
    merged,
    request_on,
    run,
    small_files,
    write,
)

KINDS = ("a", "b")
FAULTS = st.sampled_from(
    [None, None, *(Fault(k, w) for k in (409, 500, 503, "reset", "html") for w in ("before", "after")), Fault(403)]
)


class TableMachine(RuleBasedStateMachine):
    """`rows` is what must be in the table, `pending` a batch whose answer was an error: Spark will replay it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.mini = MiniRest(Path(self.folder.name))
        self.mini.__enter__()
        self.mini.create_namespace(("db",), {})
        self.catalog = self.mini.catalog("lake")
        self.rival = self.mini.catalog("rival")
        self.rows: Counter[int] = Counter()
        self.next_id = 0
        self.next_batch = 0
        self.pending: tuple[list[int], str] | None = None

    def teardown(self) -> None:
        self.mini.__exit__(None, None, None)
        self.folder.cleanup()

    @initialize(version=st.sampled_from(["1", "2"]))
    def create(self, version: str) -> None:
        make_table(self.catalog, properties={"format-version": version, "commit.manifest.min-count-to-merge": "3"})
        self.version = version

    def new_ids(self, count: int) -> list[int]:
        self.next_id += count
        return list(range(self.next_id - count, self.next_id))

    def prepare(self, ids: list[int], kind: str, groups: int) -> CommitRequest:
        table = self.catalog.load_table("db.t")
        chosen = []
        for each in KINDS[:groups]:
            victims = [f for f in small_files(table, each) if f.obstacle is None]
            if len(victims) > 1:
                chosen.append(merged(table, victims))
        return request_on(table, [write(table, ids, kind)], chosen, batch=self.next_batch)

    @rule(kind=st.sampled_from(KINDS), groups=st.integers(0, 2), fault=FAULTS, rival=st.sampled_from(["", *"acdx"]))
    def batch(self, kind: str, groups: int, fault: Fault | None, rival: str) -> None:
        """A new batch, or the replay of one that failed, with rivals between plan and swap."""
        ids, kind = self.pending or (self.new_ids(2), kind)
        wanted = self.prepare(ids, kind, groups)
        if fault is not None:
            self.mini.fail_next_commit(fault)
        elif rival:
            self.mini.before_swap = lambda: self.act_as_rival(rival, wanted)
        try:
            outcome = run(self.catalog, wanted, self.catalog.load_table("db.t"))
        except TableError:
            assert fault == Fault(403)
            self.pending = (ids, kind)
        else:
            assert not outcome.already_committed
            self.rows.update(ids)
            self.next_batch, self.pending = self.next_batch + 1, None

    def act_as_rival(self, what: str, wanted: CommitRequest) -> None:
        victims: list[Any] = [v for g in wanted.merged for v in g.victims]
        if what == "a":
            self.rows.update(ids := self.new_ids(1))
            append(self.rival, ids, "b")
        elif what == "d" and self.version == "2" and victims:
            self.delete_first_row(victims[0])
        elif what == "c" and len(victims) > 1:
            table = self.rival.load_table("db.t")
            kind = victims[0].partition.values[0]
            files = [f for f in small_files(table, kind) if f.obstacle is None]
            run(self.rival, request_on(table, groups=[merged(table, files)]), table)
        elif what == "x":
            self.rows.update(ids := self.new_ids(1))
            expire(append(self.rival, ids, "a"))

    def delete_first_row(self, file: Any) -> None:
        before = Counter(ids_of(self.rival))
        delete_rows(self.rival, file)
        self.rows -= before - Counter(ids_of(self.rival))

    @precondition(lambda self: self.next_batch > 0)
    @rule()
    def replay(self) -> None:
        """The newest committed batch once more, as Spark does after a crash."""
        table = self.catalog.load_table("db.t")
        wanted = request_on(table, [write(table, [-1])], batch=self.next_batch - 1)
        assert run(self.catalog, wanted, table).already_committed
        assert not local(wanted.appended[0].path).exists()

    @rule(kind=st.sampled_from(KINDS), lag=st.booleans())
    def maintain(self, kind: str, lag: bool) -> None:
        """A compaction of one partition, perhaps with a catalog that lags."""
        table = self.catalog.load_table("db.t")
        files = [f for f in small_files(table, kind) if f.obstacle is None]
        if len(files) > 1:
            wanted = request_on(table, groups=[merged(table, files)])
            self.mini.stale_loads = int(lag)
            run(self.catalog, wanted, table)
            self.mini.stale_loads = 0

    @precondition(lambda self: self.version == "2")
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        """Somebody deletes a row of a file that has none deleted yet."""
        files = [f for f in small_files(self.catalog.load_table("db.t")) if f.obstacle is None]
        if files:
            self.delete_first_row(data.draw(st.sampled_from(files)))

    @rule()
    def forget_history(self) -> None:
        """All snapshots but the newest expire."""
        expire(self.catalog.load_table("db.t"))

    @invariant()
    def rows_are_exact(self) -> None:
        """A reader sees each row once, all files are there, no batch was appended twice."""
        if hasattr(self, "version"):
            assert Counter(ids_of(self.catalog)) == self.rows
            check(self.catalog.load_table("db.t"))


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(
    max_examples=15, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
