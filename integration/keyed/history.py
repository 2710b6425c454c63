"""Runs one random history: batches, their replays, crashes, lost answers, and other writers in the middle."""

from __future__ import annotations

import errno
import random
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from zlib import crc32

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from icesize import failpoints
from icesize.environment import Environment
from icesize.errors import CommitStateUnknown, IcesizeError
from icesize.report import Report
from icesize.table.manifests.store import ManifestStore
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import Current, TableHandle
from icesize.table.upserts import deletes
from icesize.table.upserts.batch import FetchSlice
from icesize.table.upserts.settings import WantedRule
from integration.keyed.bounds import Held, check_batch
from integration.keyed.catalog import FAULTS, UnreliableCatalog
from integration.keyed.covering import Case
from integration.keyed.maps import Maps
from integration.keyed.model import Effect, Event, Model, Row, newest
from integration.keyed.shape import PROMOTABLE_ORDERS, Shape
from integration.keyed.table import Contents, Live, Watch
from integration.keyed.writers import CHANGE_ROWS, Writers, chosen
from tests.support.machine import Killed, now_ms
from tests.support.tables import FakeTime, check
from tests.support.upserts import upsert

POINTS = ("planned", "writing", "files-written", "before-swap", "after-swap", "cleanup")
"""Points at which a process may die."""
MIDDLE = ("planned", "writing", "files-written", "before-swap", "before-swap", "swap", "swap", "swap")
"""Points at which other writers may come: `swap` is just before the compare-and-swap."""
MOST_PARTS = "abc"


@dataclass(frozen=True)
class Trouble:
    """What happens during one batch: `writers` come at points, and the process dies or fails at one, or answers get
    lost."""

    writers: tuple[tuple[str, str], ...] = ()
    dies_at: tuple[str, int] | None = None
    fails_at: tuple[str, int] | None = None
    faults: tuple[str, ...] = ()

    @classmethod
    def of(cls, chance: random.Random, writer: Callable[[], str]) -> Trouble:
        """Trouble, by chance; none in three batches of ten. `writer` chooses one of the other writers."""
        if chance.random() < 0.3:
            return cls()
        writers = tuple((chance.choice(MIDDLE), writer()) for _ in range(chance.choice([0, 1, 1, 1, 2, 3])))
        at = chance.choice(POINTS), chance.choice([1, 1, 1, 2])
        if at[0] == "writing":  # later ones write rows again, for a state that another writer made
            at = at[0], chance.randrange(1, 8)
        kind = chance.random()
        faults = tuple(chance.choices(FAULTS, k=chance.choice([1, 1, 2, 12]))) if kind > 0.75 else ()
        return cls(writers, at if kind < 0.15 else None, at if 0.15 <= kind < 0.25 else None, faults)

    @property
    def may_stop_the_batch(self) -> bool:
        return bool(self.dies_at or self.fails_at or self.faults)

    @property
    def leaves_files(self) -> bool:
        """Whether files may stay that no snapshot lists: of an attempt whose outcome is not certain, for one.

        If the snapshots that came first have expired, nothing proves that an attempt did not land.
        """
        cleans = self.fails_at is None or self.fails_at[0] != "cleanup"
        is_unproven = any(name in ("expire", "expire-files") for _, name in self.writers)
        return bool(self.dies_at) or not cleans or bool(set(self.faults) - {"busy"}) or is_unproven


@dataclass
class Batch:
    """One batch: `effect` is what it did when it landed, None before; `tries` counts its runs.

    `has_landed` is False of a batch that had nothing to commit.
    """

    number: int
    events: list[Event]
    effect: Effect | None = None
    has_landed: bool = False
    before: dict[Row, tuple[int | None, int | None]] = field(default_factory=dict)
    tries: int = 0


@dataclass
class History:
    """One table, the model of its rows, and what happens to it, decided by a seed."""

    seed: int
    folder: Path
    told: list[str] = field(default_factory=list)
    reached: Counter[str] = field(default_factory=Counter)
    _inside: bool = False
    _versions: int = 0
    _events: list[Event] = field(default_factory=list)
    _orders: set[tuple[object, ...]] = field(default_factory=set)
    _others: int = 0
    _changed: set[Row] = field(default_factory=set)
    rows_changed: bool = False
    wrong_writer: BaseException | None = None
    case: Case | None = None
    steps: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.shape = Shape.of(self.chance)
        if (case := self.case) is not None:
            # each step finds something to do: types that can become wider, a field that can be removed
            orders = PROMOTABLE_ORDERS if "promote" in case.steps else (self.shape.order.replace("none", "long"),)
            partitions = self.shape.partitions.replace("none", "part" if "remove-field" in case.steps else "none")
            self.shape = replace(
                self.shape, version=case.version, remembers=case.remembers, order=self.chance.choice(orders),
                partitions=partitions,
            )  # fmt: skip
        self.keys = self.chance.choice([6, 20, 60])
        self.delete_share = self.chance.choice([0.0, 0.1, 0.3])
        self.only_streams = self.chance.random() < 0.35
        self.metadata_share = self.chance.choice([0.0, 0.1, 0.3])
        self.model = Model(bool(self.shape.order_ids), {} if self.shape.remembers else None)
        self.maps = Maps(self.folder, self.shape.map_bytes)
        self.contents = Contents(shape=self.shape)
        self.watch = Watch(self.folder, self.contents)
        self.clock = 0
        self.told.append(f"{self.shape}, {self.keys} keys")

    @cached_property
    def places(self) -> dict[str, str]:
        return {"uri": f"sqlite:///{self.folder}/catalog.db", "warehouse": (self.folder / "warehouse").as_uri()}

    @cached_property
    def catalog(self) -> UnreliableCatalog:
        return UnreliableCatalog("lake", **self.places)

    @cached_property
    def other_catalog(self) -> SqlCatalog:
        return SqlCatalog("lake", **self.places)

    @cached_property
    def writers(self) -> Writers:
        return Writers(
            self.shape, self.other_catalog, self.model, self.watch, self.chance, self.environment(), self.new_event,
            self._events, self._upsert_by_others, self._changed,
        )  # fmt: skip

    def environment(self) -> Environment:
        """No waiting."""
        return replace(FakeTime().environment, now_ms=now_ms)

    def run(self, then: Callable[[History], object]) -> None:
        """Raise AssertionError, or any error that nothing explains, where a promise is broken. `then` comes last."""
        with _most_single_deletes(self.shape.most_single):
            try:
                self.shape.create(self.other_catalog)
                if self.case is None:
                    self._run()
                else:
                    self._cover(self.case.steps)
                check(self.table)
                self._check_fold()
                then(self)
            finally:
                self.catalog.close()
                self.other_catalog.close()

    def _run(self) -> None:
        self.process = self._new_process()
        for number in range(self.chance.randrange(4, 9)):
            if number and self.chance.random() < 0.35:
                self._others_come()
            batch = Batch(number, self._new_events())
            while not self._tried(batch):
                self.maps.move(self.chance)
                self.process = self._new_process()
                if self.chance.random() < 0.3:
                    self._others_come()
            if self.chance.random() < 0.15:
                self._replay(batch)

    def _cover(self, steps: Sequence[str]) -> None:
        """Take all steps in this order, with a batch before each of them, which is replayed after some."""
        self.process = self._new_process()
        for number, step in enumerate(steps):
            batch = Batch(number, self._new_events())
            while not self._tried(batch):
                self.process = self._new_process()
            self._others_come(step)
            if self.chance.random() < 0.4:
                self._replay(batch)
        last = Batch(len(steps), self._new_events())
        while not self._tried(last):
            self.process = self._new_process()

    def _check_fold(self) -> None:
        """If nobody else changed rows, the table is the fold of all events, in whatever batches they came.

        Without a memory of deletes, an older event makes a deleted row again.
        """
        if self.rows_changed or not self.shape.order_ids or not (self.shape.remembers or self.delete_share == 0):
            return
        wanted = [e.row for e in newest(self._events, self.model.order_of).values() if not e.is_delete]
        assert Counter(wanted) == Counter(each.row for each in self.watch.rows(self.table)), (
            "not the fold of all events"
        )

    # events

    def new_event(self) -> Event:
        """An event whose order no other event of its key has, mostly near the newest one."""
        while True:
            key = self.shape.key_of(self.chance.randrange(self.keys))
            late = self.chance.randrange(12) if self.chance.random() < 0.3 else 0
            order = self.shape.order_of(self.clock - late)
            self.clock += self.chance.random() < 0.4
            if not order or (key, order) not in self._orders:
                break
            self.clock += 1
        self._orders.add((key, order))
        self._versions += 1
        row = Row(key, order, self.chance.choice([*MOST_PARTS, None]), self._versions)
        return Event(row, self.chance.random() < self.delete_share)

    def _new_events(self) -> list[Event]:
        """Events of a batch: new ones, and repeats of these and of older ones, in any order."""
        events = [self.new_event() for _ in range(self.chance.choice([1, 3, 10, 40, 100]))]
        if not self.shape.order_ids:
            events = list({event.row.key: event for event in events}.values())
        self._events += events
        if self.shape.order_ids:
            events += self.chance.choices(self._events, k=self.chance.choice([0, 0, 2, 10]))
        else:
            events += self.chance.choices(events, k=self.chance.choice([0, 2]))
        self.chance.shuffle(events)
        return events

    # runs of batches

    def _new_process(self) -> TableHandle:
        self.catalog.calm()
        return _process(self.catalog)

    def _rule(self) -> WantedRule:
        """The rule by names, or what the table stores."""
        table = self.table
        is_stored = "icesize.upsert" in table.properties and self.chance.random() < 0.5
        return WantedRule() if is_stored else self.shape.rule_of(table, self.model.rule)

    def _tried(self, batch: Batch) -> bool:
        """Run a batch once, in trouble; return whether it is committed."""
        batch.tries += 1
        trouble = Trouble.of(self.chance, partial(self._writer, 0.12)) if batch.tries < 4 else Trouble()
        self.told.append(f"batch {batch.number}, {len(batch.events)} events, {trouble}")
        if self.chance.random() < 0.2:
            self.maps.spoil(self.chance)
        was_landed, table = batch.effect is not None, self.table
        self._before, held = self.watch.rows(table), Held.of(table, self.contents)
        self._changed.clear()
        self.catalog.landed[:] = [partial(self._landed, batch)]
        failure: BaseException | None = None
        report: Report | None = None
        try:
            with self._in(trouble):
                report = self._committed(self.process, batch.events, batch.number)
        except (IcesizeError, Killed, failpoints.FailpointReached) as error:
            failure = error
        finally:
            self.catalog.landed.clear()
            self.catalog.calm()
        if self.wrong_writer is not None:
            raise self.wrong_writer
        self._check_answer(batch, trouble, report, failure, was_landed)
        leaves_files = trouble.leaves_files or isinstance(failure, CommitStateUnknown)
        self._look(batch, leaves_files, is_new=batch.effect is not None and not was_landed)
        if report is not None and trouble == Trouble():
            self._check_growth(held, report)
        return report is not None

    def _check_growth(self, before: Held, report: Report) -> None:
        """A batch that nobody disturbed keeps the table within its bounds."""
        current = TableHandle(self.other_catalog, ("db", "t")).load()
        spec_id = current.table.metadata.default_spec_id
        check_batch(before, Held.of(current.table, self.contents), report, current.policy, spec_id)

    @property
    def table(self) -> Table:
        table: Table = self.other_catalog.load_table("db.t")
        return table

    def _committed(self, process: TableHandle, events: Sequence[Event], number: int, stream: str = "s") -> Report:
        # a third of the batches are larger than what the process holds
        slices = 3 if number % 3 == 2 else 1

        def fetch_slice(table: Table, some: list[Event]) -> tuple[pa.Table, NDArray[np.bool_]]:
            rows, is_delete = self.shape.events(table, some)
            return rows, np.array(is_delete, np.bool_)

        def fetch(current: Current, rule: object) -> list[FetchSlice]:
            parts: list[list[Event]] = [[] for _ in range(slices)]
            for event in events:
                parts[crc32(repr(event.row.key).encode()) % slices].append(event)
            return [partial(fetch_slice, current.table, part) for part in parts]

        entry = LedgerEntry(stream, "q", number)
        return upsert(
            process, self._rule(), fetch, entry, self.environment(),
            maps=self.maps.settings,
        )  # fmt: skip

    def _landed(self, batch: Batch) -> None:
        """A commit of the batch is visible: from now on it is in the model."""
        assert batch.effect is None, "a batch landed twice"
        batch.effect, batch.has_landed = self.model.apply(batch.events), True

    def _upsert_by_others(self, events: Sequence[Event]) -> None:
        process = _process(self.other_catalog)
        self._events += events
        self._committed(process, events, self._others, "other")
        self._others += 1
        effect = self.model.apply(events)
        self._changed.update(effect.written)

    def _check_answer(
        self, batch: Batch, trouble: Trouble, report: Report | None, failure: BaseException | None, was_landed: bool
    ) -> None:
        """The answer of a run must say what has happened."""
        self.told.append(f"    -> {failure!r}" if failure else f"    -> {report.operations if report else ''}")
        if failure is not None:
            # the caller names columns of the rule, and another writer may rename one before it is stored
            is_renamed = "is no column" in str(failure) and any(name == "rename" for _, name in trouble.writers)
            is_renamed |= "icesize rekey" in str(failure) and any(name == "rekey" for _, name in trouble.writers)
            assert trouble.may_stop_the_batch or is_renamed, f"a batch failed that nothing stopped: {failure!r}"
            if isinstance(failure, IcesizeError) and not isinstance(failure, CommitStateUnknown):
                assert batch.effect is None or was_landed, f"the batch landed, and the answer is {failure!r}"
            return
        assert report is not None
        assert report.already_committed or not was_landed, "a batch ran again that had landed"
        assert not report.already_committed or was_landed or trouble.writers, "it was this run that committed it"
        if batch.effect is None:
            # nothing to write: the batch must change nothing in the state that there is now
            before = Counter(self.model.all()), dict(self.model.tombstones or {})
            batch.effect = self.model.apply(batch.events)
            assert not report.operations
            after = Counter(self.model.all()), dict(self.model.tombstones or {})
            assert after == before, "a batch made no commit, and should have changed rows"
        elif not report.already_committed:
            self._check_report(batch.effect, report)
            if trouble == Trouble():
                assert report.conflicts == (), f"nobody came between: {report.conflicts}"

    def _check_report(self, effect: Effect, report: Report) -> None:
        facts = report.upsert or {}
        wanted = {
            "keys": effect.keys, "updated": effect.updated, "deleted": effect.deleted, "late": effect.late,
            "doubled": effect.doubled,
        }  # fmt: skip
        found = {name: facts[name] for name in wanted}
        assert found == wanted, f"the report says {found}, it was {wanted}"
        kind = "overwrite" if effect.written and effect.removed else "append" if effect.written else "delete"
        if report.operations and report.operations[0] != "replace":
            # rows that were written and were late then make an append an overwrite
            assert report.operations[0] == kind or report.conflicts or report.operations[0] == "overwrite"

    def _look(self, batch: Batch, leaves_files: bool, *, is_new: bool) -> None:
        table = self.table
        live = self.watch.look(table, self.model.all(), may_leave_files=leaves_files)
        if is_new and batch.effect is not None:
            touched = {event.row.key for event in batch.events}
            assert max(Counter(e.row.key for e in live if e.row.key in touched).values(), default=0) <= 1
        self._check_lineage(table, live, batch.effect if is_new else None)

    def _check_lineage(self, table: Table, live: Sequence[Live], effect: Effect | None) -> None:
        """A row that is updated keeps its row id; the last change of a row is that of its newest version."""
        if table.metadata.format_version < 3:
            return
        before = {each.row: each for each in self._before}
        written = effect.written if effect else frozenset[Row]()
        for each in live:
            old = before.get(each.row)
            if each.row in self._changed or (old is not None and old.row_id is None):
                continue
            if each.row in written:
                older = [before[row].row_id for row in (effect.replaces[each.row] if effect else ()) if row in before]
                older = [number for number in older if number is not None]
                if older and not self._interfered:
                    assert each.row_id in older, f"{each.row} had row id {older}, has {each.row_id}"
                    assert old is None or each.last_updated != old.last_updated, f"{each.row} was written again"
            elif old is not None:
                now, then = (each.row_id, each.last_updated), (old.row_id, old.last_updated)
                assert now == then, f"{each.row} had {then}, has {now}"

    def _replay(self, batch: Batch) -> None:
        """The newest batch once more, as after a crash before the checkpoint."""
        self.told.append(f"batch {batch.number} again")
        self.process = self._new_process()
        if not batch.has_landed:  # all of its events were late: nothing was committed, so it runs on what is there now
            batch.effect = None
            while not self._tried(batch):
                self.process = self._new_process()
            return
        before = Counter(self.model.all())
        self._before = self.watch.rows(self.table)
        report = self._committed(self.process, batch.events, batch.number)
        is_noted = any(each.startswith("icesize.stream.") for each in self.table.metadata.properties)
        assert report.already_committed or not report.operations or not is_noted
        assert Counter(self.model.all()) == before
        self._interfered = False
        self.watch.look(self.table, self.model.all(), may_leave_files=False)

    # trouble

    def _writer(self, metadata_share: float) -> str:
        """A writer, by chance; in some histories none that changes rows beside the streams."""
        while self.only_streams and (name := chosen(self.chance, metadata_share)) in CHANGE_ROWS:
            continue
        return name if self.only_streams else chosen(self.chance, metadata_share)

    def _others_come(self, name: str | None = None) -> None:
        name = name or self._writer(self.metadata_share)
        self._before = self.watch.rows(self.table)
        self._changed.clear()
        did = self.writers.act(name)
        self.told.append(f"others: {did}")
        self.steps += [name] if did == name else []
        self.rows_changed |= name in CHANGE_ROWS
        self._interfered = True
        live = self.watch.look(self.table, self.model.all(), may_leave_files=False)
        self._check_lineage(self.table, live, None)

    @contextmanager
    def _in(self, trouble: Trouble) -> Iterator[None]:
        self._interfered = False
        queues = {
            point: [name for at, name in trouble.writers if at == point] for point in (*failpoints.POINTS, "swap")
        }
        passed, dead, lock = Counter[str](), list[bool](), threading.Lock()

        def reach(point: str) -> None:
            if self._inside:
                return
            with lock:
                passed[point] += 1
                self.reached[point] += 1
                if dead or trouble.dies_at == (point, passed[point]):
                    dead.append(True)
                    raise Killed(point)
                if trouble.fails_at == (point, passed[point]):
                    raise OSError(errno.ENOSPC, point) if point == "writing" else failpoints.FailpointReached(point)
                if queues[point]:
                    self._act(point, queues[point].pop(0))

        self.catalog.faults[:] = trouble.faults
        self.catalog.before_swap[:] = [partial(self._act, "swap", name) for name in queues["swap"]]
        with ExitStack() as armed:
            for point in failpoints.POINTS:
                armed.enter_context(failpoints.armed(point, partial(reach, point)))
            yield

    def _act(self, point: str, name: str) -> None:
        self._inside = True
        landed, self.catalog.landed[:] = list(self.catalog.landed), []
        try:
            self.watch.note(self.table)
            self.told.append(f"    at {point}: {self.writers.act(name)}")
            self.rows_changed |= name in CHANGE_ROWS
            self.watch.note(self.table)
            self._interfered = True
        except BaseException as error:
            self.wrong_writer = error  # icesize would take it for a lost answer
            raise
        finally:
            self.catalog.landed[:] = landed
            self._inside = False


def _process(catalog: SqlCatalog) -> TableHandle:
    """A process, which remembers nothing of the table yet."""
    return TableHandle(catalog, ("db", "t"), stores=cache(partial(ManifestStore, None)))


@contextmanager
def _most_single_deletes(most: int) -> Iterator[None]:
    before, deletes.MOST_SINGLE_DELETES = deletes.MOST_SINGLE_DELETES, most
    try:
        yield
    finally:
        deletes.MOST_SINGLE_DELETES = before


def run(seed: int, then: Callable[[History], object] = lambda history: None, case: Case | None = None) -> History:
    """Run the history of a seed; `then` looks at the table at its end. Raises what the history raises.

    With a `case`, the seed decides what the case leaves open.
    """
    with tempfile.TemporaryDirectory(prefix="keyed-") as folder:
        history = History(seed, Path(folder), case=case)
        try:
            history.run(then)
        except BaseException as error:
            if hasattr(error, "add_note"):  # from Python 3.11 on
                error.add_note("\n".join(history.told))
            raise
        return history
