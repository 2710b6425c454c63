"""The commit protocol in every order of two writers, a compactor, a delete, an expiry and what the catalog answers."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from icesize.environment import Environment
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import FileFact, Head
from icesize.table.commit.attempted_steps import steps_of
from icesize.table.commit.protocol import Base, CommitRequest, ConcurrentChange
from icesize.table.records.ledger import LedgerEntry
from tests.support.fake_catalog import PART, FakeCatalog, State, commit_of_run, written
from tests.support.interleavings import Ended, Program, Rival, ScriptedCatalog, Search, SearchState

ENVIRONMENT = Environment(lambda: 0.0, sleep=lambda seconds: None)
"""A sleep is no choice: nobody can tell it from being late with what comes after it, which is one."""


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Warnings of a million interleavings."""
    logger = logging.getLogger("icesize")
    logger.disabled = True
    yield
    logger.disabled = False


def rows_in(path: str) -> list[str]:
    """What a data file holds: its name says so."""
    return path.partition(":")[2].split(",") if ":" in path else [path]


def named(prefix: str, rows: Sequence[str]) -> str:
    return f"{prefix}:{','.join(rows)}"


def visible(state: State) -> Counter[str]:
    """Rows that a reader sees; deletes only ever hit row `v0`."""
    return Counter(r for p in state.live for r in rows_in(p) if not (r == "v0" and p in state.deleted))


def mergeable(state: State) -> list[FileFact]:
    """Live files without deletes, those with the fewest rows first."""
    paths = sorted((p for p in state.live if p not in state.deleted), key=lambda p: (len(rows_in(p)), p))
    return [FileFact(path, 10, len(rows_in(path)), PART) for path in paths]


def planned(
    state: State,
    run_id: str,
    appended: Sequence[NewDataFile] = (),
    merged: Sequence[MergeResult] = (),
    absorbed: Sequence[FileFact] = (),
    ledger: LedgerEntry | None = None,
) -> CommitRequest:
    """A request for work that was planned on this state; here a snapshot's id is its sequence number as well."""
    base = Base(Head(state.head_id, state.head_id or 0))
    return CommitRequest(state.uuid, run_id, base, steps_of(appended, merged, absorbed), ledger)


def group(name: str, inputs: Sequence[FileFact]) -> MergeResult:
    rows = [row for input_file in inputs for row in rows_in(input_file.path)]
    return MergeResult(tuple(inputs), (written(named(name, rows)),))


def writer(stream: str, absorb: bool = False, merge: int = 2) -> Callable[[str], Program]:
    """Batch 7 of a stream, with a merge of some small files, or with these inside its own file; planned again twice."""

    def of(run_id: str) -> Program:
        def program(desk: ScriptedCatalog) -> None:
            for again in (1, 2, 0):
                state = desk.plan()
                small = mergeable(state)[:merge]
                together = small if absorb and again else []
                rows = [f"{stream}7", *(row for f in together for row in rows_in(f.path))]
                groups = (group(f"{run_id}.{again}m", small),) if len(small) > 1 and not absorb else ()
                wanted = planned(
                    state,
                    run_id,
                    appended=(written(named(f"{run_id}.{again}", rows)),),
                    merged=groups,
                    absorbed=tuple(together),
                    ledger=LedgerEntry(stream, "q", 7),
                )
                desk.write(wanted.paths())
                try:
                    commit_of_run(wanted, desk, ENVIRONMENT)
                except ConcurrentChange:
                    continue
                return

        return program

    return of


def compactor(run_id: str) -> Program:
    """All small files into one, once."""

    def program(desk: ScriptedCatalog) -> None:
        state = desk.plan()
        if len(small := mergeable(state)) > 1:
            wanted = planned(state, run_id, merged=(group(f"{run_id}.m", small),))
            desk.write(wanted.paths())
            commit_of_run(wanted, desk, ENVIRONMENT)

    return program


def delete_row(catalog: FakeCatalog) -> None:
    """DELETE WHERE row = 'v0', wherever that row is by now."""
    now = catalog.state
    (path,) = (p for p in now.live if "v0" in rows_in(p))
    catalog.change(now.then("delete", deleted={**now.deleted, path: now.sequence_number + 1}))


def expire(keep: int) -> Rival:
    """Somebody's expiry, which leaves the newest snapshots."""
    return lambda catalog: catalog.change(replace(catalog.state, snapshots=catalog.state.snapshots[-keep:]))


def move_main(catalog: FakeCatalog) -> None:
    """Main is moved to a branch that left it before everybody began; there row 'v0' was deleted."""
    if not catalog.state.moves:
        catalog.change(catalog.state.moved_aside())


def right(*streams: str) -> Callable[[SearchState, tuple[Ended | None, ...]], None]:
    """What has to hold whenever all programs have ended."""

    def check(now: SearchState, ends: tuple[Ended | None, ...]) -> None:
        catalog, rows = now.catalog, visible(now.catalog.state)
        expected = Counter([*catalog.states[0].live, *(f"{stream}7" for stream in streams)])
        expected["v0"] -= any("v0" in rows_in(path) for state in catalog.states for path in state.deleted)
        expected -= left_behind(catalog)
        assert rows == +expected, f"the rows are {sorted(rows.elements())}"
        assert catalog.state.live <= catalog.data, "a live file is gone"
        # after an expiry nobody can tell whose commit took the place of one that was lost: its files stay
        if now.clean and not catalog.late and catalog.state.snapshots[0][0] == 1:
            leaked = catalog.data - catalog.ever_live
            assert not leaked, f"left behind: {sorted(leaked)}"
            unused = catalog.manifests - catalog.landed.keys()
            assert not unused, f"manifests left behind: {sorted(unused)}"

    return check


def left_behind(catalog: FakeCatalog) -> Counter[str]:
    """Rows of batches that main had when it was moved: they are marked as committed, and not written again."""
    before = next((old for old, new in pairwise(catalog.states) if new.moves > old.moves), None)
    return Counter(r for r in visible(before) if not r.startswith("v")) if before else Counter()


LONE = (writer("s"),)
PAIR = (writer("s"), compactor)
ABSORBING_PAIR = (writer("s", absorb=True), compactor)
PLAIN_PAIR = (writer("s", merge=0), compactor)
TWINS = (writer("s"), writer("s"), compactor)
STREAMS = (writer("s"), writer("t"), compactor)
ABSORBING = (writer("s", absorb=True), writer("t"), compactor)


def search(programs: Sequence[Callable[[str], Program]], files: int, faults: int, rivals: Sequence[Rival]) -> int:
    """Walk all interleavings; how many there were. Writers are started again when they die or fail."""
    streams = {"s", "t"} if programs in (STREAMS, ABSORBING) else {"s"}
    start = State(live=frozenset(f"v{i}" for i in range(files)))
    if move_main in rivals:
        # main is the younger of the two, so that numbers do not tell of the delete
        start = start.beside("delete", deleted={"v0": 2}).then("append")
    writers = [i for i, program in enumerate(programs) if program is not compactor]
    return Search(tuple(programs), right(*streams), start, writers, tuple(rivals), faults).run().interleavings


@pytest.mark.parametrize(
    ("programs", "files", "faults", "rivals", "interleavings"),
    [
        pytest.param(TWINS, 2, 1, [], 42_800_000, id="twins, a fault", marks=pytest.mark.engine),
        pytest.param(LONE, 2, 1, [delete_row, expire(1)], 1_150, id="a lone writer, a fault, a delete and an expiry"),
        pytest.param(STREAMS, 2, 0, [], 73_000, id="two streams"),
        pytest.param(ABSORBING, 2, 0, [], 160_000, id="one stream absorbs"),
        pytest.param(ABSORBING_PAIR, 2, 1, [delete_row], 410_000, id="a delete while files are absorbed"),
        pytest.param(PAIR, 2, 2, [], 330_000, id="two faults"),
        pytest.param(PAIR, 2, 1, [move_main], 150_000, id="main is moved while files are merged"),
        pytest.param(ABSORBING_PAIR, 2, 1, [move_main], 410_000, id="main is moved while files are absorbed"),
    ],
)
def test_every_order_ends_well(
    programs: Sequence[Callable[[str], Program]],
    files: int,
    faults: int,
    rivals: Sequence[Rival],
    interleavings: int,
) -> None:
    """In 43 million interleavings, rows are there once, deleted ones stay away, and exactly the files not needed go."""
    assert search(programs, files, faults, rivals) >= interleavings, "the search has shrunk"


@pytest.mark.engine
def test_a_batch_that_landed_unseen_and_expired_keeps_what_older_snapshots_need() -> None:
    """A batch gets a 409 after its commit; others delete, compact and expire at once: 2 million interleavings."""
    assert search(PLAIN_PAIR, 3, 1, [delete_row, expire(2)]) >= 1_950_000, "the search has shrunk"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("programs", "files", "faults", "rivals", "interleavings"),
    [
        pytest.param(TWINS, 2, 1, [delete_row], 26_000_000_000, id="twins, a fault and a delete"),
        pytest.param(TWINS, 2, 0, [delete_row, expire(1)], 1_480_000_000, id="twins, a delete and an expiry"),
        pytest.param(STREAMS, 2, 1, [], 65_000_000, id="two streams, a fault"),
        pytest.param(ABSORBING, 2, 1, [], 128_000_000, id="one stream absorbs, a fault"),
        pytest.param(ABSORBING_PAIR, 2, 2, [delete_row], 43_000_000, id="absorbing, two faults and a delete"),
        pytest.param(PAIR, 2, 1, [delete_row, expire(1)], 2_380_000, id="a fault, a delete and an expiry"),
    ],
)
def test_every_order_ends_well_with_more_going_wrong(
    programs: Sequence[Callable[[str], Program]],
    files: int,
    faults: int,
    rivals: Sequence[Rival],
    interleavings: int,
) -> None:
    """The same with faults and rivals together: 29 billion interleavings of up to 30 choices each."""
    assert search(programs, files, faults, rivals) >= interleavings, "the search has shrunk"
