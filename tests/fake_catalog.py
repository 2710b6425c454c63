"""A catalog without files or network for the commit protocol: states, a compare-and-swap, and answers to order."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact, PartitionKey
from icesize.table.ledger import LedgerEntry
from icesize.table.request import BASE_EXPIRED, CommitRequest, MergedGroup, SwapBusy, SwapLost, SwapRefused

PART = PartitionKey(0, ("a",))
VICTIMS = tuple(FileFact(f"v{i}", 10, 1, PART) for i in range(4))
ENTRY = LedgerEntry("s", "q", 7)


def written(path: str) -> WrittenFile:
    """A file that a test names."""
    return WrittenFile(path, 10, 1, PART)


def request(**changes: object) -> CommitRequest:
    """One new file and two merges of two victims each, batch 7, planned on the first state."""
    groups = (MergedGroup(VICTIMS[:2], (written("m0"),)), MergedGroup(VICTIMS[2:], (written("m1"),)))
    whole = CommitRequest("u", 1, 1, 0, 0, "run", (written("new"),), groups, ENTRY)
    return replace(whole, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class State:
    """One version of the table. `snapshots` are (id, operation, run id); `deleted` maps files to a delete's number."""

    uuid: str = "u"
    sequence_number: int = 1
    schema_id: int = 0
    spec_id: int = 0
    head_id: int | None = 1
    snapshots: tuple[tuple[int, str, str], ...] = ((1, "append", "other"),)
    live: frozenset[str] = frozenset(v.path for v in VICTIMS)
    deleted: Mapping[str, int] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)

    def then(self, operation: str, run: str = "other", **changes: object) -> State:
        """The state after one more snapshot."""
        number = self.sequence_number + 1
        snapshots = (*self.snapshots, (number, operation, run))
        return replace(self, sequence_number=number, head_id=number, snapshots=snapshots, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True)
class FakeLoaded:
    state: State
    name: str = "db.t"

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
    def head_id(self) -> int | None:
        return self.state.head_id

    @property
    def properties(self) -> Mapping[str, str]:
        return self.state.properties

    def snapshots_of(self, run_id: str) -> list[tuple[int, str]]:
        return [(i, operation) for i, operation, run in self.state.snapshots if run == run_id]

    def any_live(self, paths: Collection[str]) -> bool:
        return bool(self.state.live & set(paths))

    def lost_victims(self, request: CommitRequest) -> dict[str, str]:
        victims = [v.path for v in (*request.absorbed, *(v for g in request.merged for v in g.victims))]
        if self.state.head_id == request.base_snapshot_id:
            return {}
        if request.base_snapshot_id not in {i for i, _, _ in self.state.snapshots}:
            return dict.fromkeys(victims, BASE_EXPIRED)
        lost = {v: "another writer removed a file of it" for v in victims if v not in self.state.live}
        hit = {v for v in victims if self.state.deleted.get(v, 0) > request.base_sequence_number}
        return dict.fromkeys(hit, "another writer deleted rows of it") | lost

    def later_than(self, before: FakeLoaded) -> bool:
        mine, theirs = self.state, before.state
        return (mine.sequence_number, mine.schema_id, mine.spec_id) > (
            theirs.sequence_number,
            theirs.schema_id,
            theirs.spec_id,
        )


@dataclass
class FakeStaged:
    request: CommitRequest
    on: State
    snapshots: list[tuple[int, str]]
    manifest: str


class FakeCatalog:
    """The truth (`states`, newest last), what is on storage, and how the next swaps and loads are answered.

    `answers`: ok, busy, refused, 409 (landed or not, as the swap would go), lie (409, landed), lost (409, not landed),
    unknown (no answer, not landed), gone (no answer, landed), late (no answer, lands at a later load if it still can),
    ctrl-c. `rivals` run before the swap they belong to. `loads`: fresh, stale, down.
    """

    def __init__(self, state: State | None = None) -> None:
        self.states = [state or State()]
        self.answers: list[str] = []
        self.rivals: list[Callable[[FakeCatalog], object]] = []
        self.loads: list[str] = []
        self.late: list[FakeStaged] = []
        self.data = {v.path for v in VICTIMS} | {"new", "m0", "m1"}
        self.manifests: set[str] = set()
        self.stage_failures: list[Exception] = []
        self.on_stage: Callable[[], object] = lambda: None
        self.attempts = 0

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

    def stage(self, loaded: FakeLoaded, request: CommitRequest) -> FakeStaged:
        if self.stage_failures:
            raise self.stage_failures.pop(0)
        self.on_stage()
        self.attempts += 1
        self.manifests.add(f"manifest-{self.attempts}")
        first = "overwrite" if request.absorbed else "append"
        operations = [first] * bool(request.appended) + ["replace"] * bool(request.merged)
        number = loaded.state.sequence_number
        snapshots = [(number + i, operation) for i, operation in enumerate(operations, 1)]
        return FakeStaged(request, loaded.state, snapshots, f"manifest-{self.attempts}")

    def swap(self, loaded: FakeLoaded, staged: FakeStaged) -> None:
        assert staged.on == loaded.state
        if self.rivals:
            self.rivals.pop(0)(self)
        answer = self.answers.pop(0) if self.answers else "ok"
        if answer == "busy":
            raise SwapBusy("429")
        if answer == "refused":
            raise SwapRefused("Cannot commit: 403")
        if answer == "late":
            self.late.append(staged)
        landed = answer not in ("lost", "unknown", "late") and self._apply(staged)
        if answer == "ctrl-c":
            raise KeyboardInterrupt
        if answer in ("unknown", "gone", "late"):
            raise TimeoutError("no answer")
        if answer in ("lie", "lost") or not landed:
            raise SwapLost("409")

    def _apply(self, staged: FakeStaged) -> bool:
        """The compare-and-swap, and what must hold at the moment at which something lands."""
        now, on, wanted = self.state, staged.on, staged.request
        if (now.uuid, now.head_id, now.schema_id, now.spec_id) != (on.uuid, on.head_id, on.schema_id, on.spec_id):
            return False
        if now.sequence_number != on.sequence_number:
            return False  # another branch took the number
        victims = {v.path for v in (*wanted.absorbed, *(v for g in wanted.merged for v in g.victims))}
        added = {f.path for f in wanted.appended} | {f.path for g in wanted.merged for f in g.outputs}
        assert wanted.run_id not in {run for _, _, run in now.snapshots}, "the same work landed twice"
        assert victims <= now.live, "a merge brings back a file that somebody removed"
        assert not any(now.deleted.get(v, 0) > wanted.base_sequence_number for v in victims), "deleted rows are back"
        assert added <= self.data, "a file that was deleted became visible"
        assert staged.manifest in self.manifests, "manifests were deleted before they landed"
        for _, operation in staged.snapshots:
            now = now.then(operation, wanted.run_id)
        entry = wanted.ledger
        properties = {**now.properties, **({entry.key: entry.to_json()} if entry else {})}
        self.states.append(replace(now, live=now.live - victims | added, properties=properties))
        return True

    def discard(self, staged: FakeStaged) -> None:
        self.manifests.discard(staged.manifest)

    def delete_data_files(self, paths: Iterable[str]) -> None:
        gone = set(paths)
        assert not gone & self.state.live, "a live file was deleted"
        self.data -= gone
