"""A catalog without files or network for the commit protocol: states, a compare-and-swap, and answers to order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyroaring import BitMap

from icesize.environment import Environment
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.parquet.files.uncommitted import uncommitted
from icesize.planning.files import FileFact, Head, PartitionKey
from icesize.policy import SizePolicy
from icesize.table.commit.attempted_steps import CommitOutcome, commit_steps, steps_of
from icesize.table.commit.compared_inputs import DELETED, REMOVED, InputChange
from icesize.table.commit.protocol import (
    Base,
    CatalogBusy,
    CommitLost,
    CommitRefused,
    CommitRequest,
    Step,
    StepDone,
)
from icesize.table.commit.steps.absorb import Absorb
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.records.ledger import LedgerEntry, is_done, parse

PART = PartitionKey(0, ("a",))
INPUTS = tuple(FileFact(f"v{i}", 10, 1, PART) for i in range(4))
ENTRY = LedgerEntry("s", "q", 7)


@dataclass(frozen=True)
class RunStorage:
    """The storage that a run writes to."""

    delete_data_files: Callable[[Collection[str]], object]

    def discard(self, locations: Iterable[str]) -> set[str]:
        self.delete_data_files(gone := set(locations))
        return gone


def commit_of_run(request: CommitRequest, catalog: Any, environment: Environment) -> CommitOutcome:
    """Commit, and remove files of the run that were not committed; `catalog` is the fake one or a `ScriptedCatalog`."""
    with uncommitted(RunStorage(catalog.delete_data_files), "run", environment) as (owner, told):  # type: ignore[arg-type]
        owner.note(request.paths())
        return commit_steps(request, catalog, told, SizePolicy().commit_deadline_ms / 1000)


def written(path: str) -> NewDataFile:
    """A file that a test names."""
    return NewDataFile(path, 10, 1, PART)


NEW = (written("new"),)
MERGES = (MergeResult(INPUTS[:2], (written("m0"),)), MergeResult(INPUTS[2:], (written("m1"),)))
BASE = Base(Head(1, 1))


def request(
    appended: Iterable[NewDataFile] = NEW,
    merged: Iterable[MergeResult] = MERGES,
    absorbed: Iterable[FileFact] = (),
    **changes: Any,
) -> CommitRequest:
    """One new file and two merges of two input files each, batch 7, planned on the first state."""
    whole = CommitRequest("u", "run", BASE, steps_of(appended, merged, absorbed), ENTRY)
    return replace(whole, **changes)


def inputs_of(request: CommitRequest) -> set[str]:
    """The files that a request takes away."""
    absorbed = {file.path for step in request.steps if isinstance(step, Absorb) for file in step.removed}
    return absorbed | {file.path for step in request.steps if isinstance(step, Merge) for file in step.inputs}


OPERATIONS: Mapping[type[Step], str] = {Append: "append", Absorb: "overwrite", Merge: "replace"}


def first_step(request: CommitRequest) -> Append | Absorb | None:
    """The step that brings new rows."""
    return next((step for step in request.steps if isinstance(step, (Append, Absorb))), None)


@dataclass(frozen=True)
class State:
    """One version of the table. `snapshots` are (id, operation, run id); `deleted` maps files to a delete's number.

    `line` are the head and those it came from, `aside` is what main would be after a move to a branch beside it.
    `unfit` is why new files could not be read in it.
    """

    uuid: str = "u"
    sequence_number: int = 1
    schema_id: int = 0
    spec_id: int = 0
    head_id: int | None = 1
    snapshots: tuple[tuple[int, str, str], ...] = ((1, "append", "other"),)
    live: frozenset[str] = frozenset(v.path for v in INPUTS)
    deleted: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    line: frozenset[int] = frozenset({1})
    aside: State | None = None
    moves: int = 0
    unfit: str | None = None

    def last_of(self, entry: LedgerEntry) -> LedgerEntry | None:
        """The stream's entry."""
        value = self.properties.get(entry.key)
        return None if value is None else parse(value)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for equal states, and can be looked up."""
        whole = (self.uuid, self.sequence_number, self.schema_id, self.spec_id, self.head_id, self.snapshots)
        rows = self.live, frozenset(self.deleted.items()), frozenset(self.properties.items())
        return *whole, *rows, self.line, self.aside and self.aside.key, self.moves

    def then(self, operation: str, run: str = "other", **changes: object) -> State:
        """The state after one more snapshot."""
        number = self.sequence_number + 1
        snapshots = (*self.snapshots, (number, operation, run))
        moved = replace(self, sequence_number=number, head_id=number, snapshots=snapshots, line=self.line | {number})
        return replace(moved, **changes)  # type: ignore[arg-type]

    def beside(self, operation: str, **changes: object) -> State:
        """The state after one more snapshot on a branch beside main."""
        branch = self.then(operation, **changes)
        return replace(self, sequence_number=branch.sequence_number, snapshots=branch.snapshots, aside=branch)

    def moved_aside(self) -> State:
        """Main is moved to that branch: no new snapshot, and what came to main meanwhile is on no branch any more."""
        if self.aside is None:
            return self
        branch = self.aside
        there = replace(self, head_id=branch.head_id, live=branch.live, deleted=branch.deleted, line=branch.line)
        return replace(there, moves=self.moves + 1)


@dataclass(frozen=True)
class FakeLoaded:
    state: State
    name: str = "db.t"
    format_version: int = 2

    @property
    def uuid(self) -> str:
        return self.state.uuid

    @property
    def schema_id(self) -> int:
        return self.state.schema_id

    @property
    def spec_id(self) -> int:
        return self.state.spec_id

    @property
    def head(self) -> Head:
        return Head(self.state.head_id, self.state.sequence_number)

    @property
    def properties(self) -> Mapping[str, str]:
        return self.state.properties

    def has_batch(self, entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
        return is_done(self.state.last_of(entry), entry, accept_new_checkpoint)

    def snapshots_of(self, run_id: str) -> list[int]:
        return [i for i, _, run in self.state.snapshots if run == run_id]

    def live(self, paths: Collection[str], refs: Iterable[str] = ()) -> set[str]:
        return set(self.state.live & set(paths))

    def misfit(self, schema: object, spec: object) -> str | None:
        return self.state.unfit

    @property
    def has_deletes(self) -> bool:
        return bool(self.state.deleted)

    def changed_inputs(self, base: Head, files: Collection[FileFact], own: object = None) -> dict[str, InputChange]:
        inputs = [file.path for file in files]
        lost = {v: InputChange(REMOVED, is_live=False) for v in inputs if v not in self.state.live}
        hit = {v for v in inputs if v in self.state.deleted}
        return dict.fromkeys(hit, InputChange(DELETED, deleted=BitMap([0]))) | lost

    def later_than(self, before: FakeLoaded) -> bool:
        mine, theirs = self.state, before.state
        if mine.head_id != theirs.head_id and mine.sequence_number != theirs.sequence_number:
            return not self.hides_commits_on(before)
        return (mine.sequence_number, mine.schema_id, mine.spec_id, mine.moves) > (
            theirs.sequence_number,
            theirs.schema_id,
            theirs.spec_id,
            theirs.moves,
        )

    def hides_commits_on(self, before: FakeLoaded) -> bool:
        mine, theirs = self.state, before.state
        if mine.head_id == theirs.head_id or mine.sequence_number == theirs.sequence_number:
            return False
        # the first commit since; an expired one may have been anybody's
        return theirs.sequence_number + 1 not in {number for number, _, _ in mine.snapshots}


@dataclass
class FakeStaged:
    request: CommitRequest
    on: State
    done: tuple[StepDone, ...]
    manifest: str

    @property
    def snapshot_ids(self) -> tuple[int, ...]:
        return tuple(each.snapshot_id for each in self.done if each.snapshot_id is not None)

    @property
    def summaries(self) -> tuple[dict[str, str], ...]:
        return tuple({} for _ in self.snapshot_ids)

    @cached_property
    def key(self) -> tuple[object, ...]:
        """Equal for attempts that would do the same."""
        return self.manifest, self.on.key, frozenset(self.request.paths()), frozenset(inputs_of(self.request))


class FakeCatalog:
    """The truth (`states`, newest last), what is on storage, and how the next swaps and loads are answered.

    `answers`: ok, busy, refused, 409 (landed or not, as the swap would go), lie (409, landed), lost (409, not landed),
    unknown (no answer, not landed), gone (no answer, landed), late (no answer, lands at a later load if it still can),
    ctrl-c. `rivals`, other writers, run before the swap they belong to. `loads`: fresh, stale, down.
    """

    def __init__(self, state: State | None = None) -> None:
        self.states = [state or State()]
        self.answers: list[str] = []
        self.rivals: list[Callable[[FakeCatalog], object]] = []
        self.loads: list[str] = []
        self.late: list[FakeStaged] = []
        self.data = {v.path for v in INPUTS} | {"new", "m0", "m1"}
        self.manifests: set[str] = set()
        self.stage_failures: list[Exception] = []
        self.on_stage: Callable[[], object] = lambda: None
        self.attempts = 0
        self.landed: dict[str, FakeStaged] = {}
        self.between: dict[int, frozenset[str]] = {}

    @property
    def name(self) -> str:
        return "lake.db.t"

    @property
    def state(self) -> State:
        return self.states[-1]

    def change(self, state: State) -> None:
        """Somebody else's commit."""
        self.states.append(state)

    def load(self) -> FakeLoaded:
        how = self.loads.pop(0) if self.loads else "fresh"
        if how == "down":
            raise ConnectionError("no route to catalog")
        if how == "land-late":
            self.land_late()
        stale = how == "stale" and len(self.states) > 1
        return FakeLoaded(self.states[-2] if stale else self.state)

    def land_late(self) -> None:
        """What hung in the network arrives now."""
        while self.late:
            self._apply(self.late.pop(0))

    def stage(self, loaded: FakeLoaded, request: CommitRequest) -> tuple[FakeStaged, tuple[StepDone, ...]]:
        if self.stage_failures:
            raise self.stage_failures.pop(0)
        self.on_stage()
        self.attempts += 1
        self.manifests.add(f"manifest-{self.attempts}")
        number = loaded.state.sequence_number
        done = tuple(StepDone(step, number + i, OPERATIONS[type(step)]) for i, step in enumerate(request.steps, 1))
        return FakeStaged(request, loaded.state, done, f"manifest-{self.attempts}"), done

    def commit(self, loaded: FakeLoaded, staged: FakeStaged) -> None:
        assert staged.on == loaded.state
        if self.rivals:
            self.rivals.pop(0)(self)
        answer = self.answers.pop(0) if self.answers else "ok"
        if answer == "busy":
            raise CatalogBusy("429")
        if answer == "refused":
            raise CommitRefused("Cannot commit: 403")
        if answer == "late":
            self.late.append(staged)
        landed = answer not in ("lost", "unknown", "late") and self._apply(staged)
        if answer == "ctrl-c":
            raise KeyboardInterrupt
        if answer in ("unknown", "gone", "late"):
            raise TimeoutError("no answer")
        if answer in ("lie", "lost") or not landed:
            raise CommitLost("409")

    def _apply(self, staged: FakeStaged) -> bool:
        """The compare-and-swap, and what must hold at the moment at which something lands."""
        now, on, wanted = self.state, staged.on, staged.request
        if (now.uuid, now.head_id, now.schema_id, now.spec_id) != (on.uuid, on.head_id, on.schema_id, on.spec_id):
            return False
        if now.sequence_number != on.sequence_number:
            return False  # another branch took the number
        inputs, added = inputs_of(wanted), wanted.paths()
        assert wanted.run_id not in {run for _, _, run in now.snapshots}, "the same work landed twice"
        assert inputs <= now.live, "a merge brings back a file that somebody removed"
        known = wanted.base.head.sequence_number
        assert not any(now.deleted.get(v, 0) > known for v in inputs), "deleted rows are back"
        assert added <= self.data, "a file that was deleted became visible"
        assert staged.manifest in self.manifests, "manifests were deleted before they landed"
        for step in staged.done:
            now = now.then(step.operation, wanted.run_id)
        if len(staged.done) > 1 and (first := first_step(wanted)):
            gone = {file.path for file in first.removed} if isinstance(first, Absorb) else set()
            self.between[staged.snapshot_ids[0]] = frozenset(now.live - gone | set(first.paths))
        self.landed[staged.manifest] = staged
        entry = wanted.ledger
        properties = {**now.properties, **({entry.key: entry.after(now.last_of(entry)).to_json()} if entry else {})}
        self.states.append(replace(now, live=now.live - inputs | added, properties=properties))
        return True

    def discard(self, staged: FakeStaged) -> None:
        assert not self._may_need(staged), "manifests of a commit that landed were deleted"
        self.manifests.discard(staged.manifest)

    def _may_need(self, staged: FakeStaged) -> bool:
        """Whether a snapshot that the table still has may list manifests of this attempt: it has a file of it."""
        return staged.manifest in self.landed and any(staged.request.paths() & files for files in self.held.values())

    def delete_data_files(self, paths: Iterable[str]) -> None:
        gone = set(paths)
        assert not gone & self.state.live, "a live file was deleted"
        self.data -= gone

    def arrive(self, which: int) -> None:
        """One of the requests that hang in the network arrives now."""
        self._apply(self.late.pop(which))

    @property
    def held(self) -> dict[int, frozenset[str]]:
        """By snapshot that the table still has the files it needs."""
        live = {state.head_id: state.live for state in self.states if state.head_id is not None} | self.between
        return {number: live[number] for number, _, _ in self.state.snapshots if number in live}

    @property
    def ever_live(self) -> frozenset[str]:
        """Every file that was in the table once."""
        return frozenset().union(*(state.live for state in self.states))

    def fork(self) -> FakeCatalog:
        """The same truth and storage, which then go their own way; ordered answers and other writers stay behind."""
        other = copy(self)
        other.answers, other.rivals, other.loads = [], [], []
        other.states, other.late = list(self.states), list(self.late)
        other.data, other.manifests = set(self.data), set(self.manifests)
        other.landed, other.between = dict(self.landed), dict(self.between)
        return other

    @property
    def key(self) -> tuple[object, ...]:
        """Equal for catalogs of which nobody can tell any difference, now or later."""
        now, before = self.state, self.states[-2 if len(self.states) > 1 else -1]
        manifests = frozenset(self.manifests), frozenset(self.landed)
        storage = frozenset(self.data), frozenset(self.data & self.ever_live), *manifests
        return now.key, before.key, frozenset(self.held.items()), *storage, tuple(s.key for s in self.late)
