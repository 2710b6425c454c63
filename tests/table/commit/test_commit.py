"""The commit protocol against a fake catalog: every order of answers, rivals, stale loads and interruptions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from icesize import failpoints
from icesize.errors import BatchOutOfOrder, CommitConflict, CommitStateUnknown, IcesizeError, StreamMismatch, TableError
from icesize.planning.files import Head, PartitionKey
from icesize.table.commit.attempted_steps import CommitOutcome
from icesize.table.commit.attempts import UNKNOWN_ATTEMPTS
from icesize.table.commit.loaded import Loaded
from icesize.table.commit.protocol import Base, CommitRequest, ConcurrentChange, Kept, Step
from icesize.table.commit.steps.merge import Merge
from icesize.table.records.ledger import LedgerEntry, stream_hash
from tests.support.examples import examples
from tests.support.fake_catalog import (
    ENTRY,
    INPUTS,
    MERGES,
    PART,
    FakeCatalog,
    FakeLoaded,
    State,
    commit_of_run,
    request,
    written,
)
from tests.support.internal_errors import watched
from tests.support.tables import FakeTime

OURS = {"new", "m0", "m1"}


def run(catalog: FakeCatalog, wanted: CommitRequest | None = None, time: FakeTime | None = None) -> CommitOutcome:
    return commit_of_run(wanted or request(), catalog, (time or FakeTime()).environment)


def rival_append(catalog: FakeCatalog) -> None:
    catalog.change(catalog.state.then("append"))


def rival_compaction(catalog: FakeCatalog) -> None:
    catalog.change(catalog.state.then("replace", live=catalog.state.live - {"v0"}))


def rival_delete(catalog: FakeCatalog) -> None:
    number = catalog.state.sequence_number + 1
    catalog.change(catalog.state.then("delete", deleted={**catalog.state.deleted, "v2": number}))


def rival_schema(catalog: FakeCatalog) -> None:
    catalog.change(replace(catalog.state, schema_id=catalog.state.schema_id + 1))


def rival_spec(catalog: FakeCatalog) -> None:
    catalog.change(replace(catalog.state, spec_id=catalog.state.spec_id + 1))


def other_branch(catalog: FakeCatalog) -> None:
    catalog.change(replace(catalog.state, sequence_number=catalog.state.sequence_number + 1))


def expiry(catalog: FakeCatalog) -> None:
    rival_append(catalog)
    catalog.change(replace(catalog.state, snapshots=catalog.state.snapshots[-1:]))


def twin(catalog: FakeCatalog) -> None:
    """A zombie driver commits the same batch from other files."""
    if ENTRY.key not in catalog.state.properties:
        rows = catalog.state.live | {"twin"}
        catalog.data.add("twin")
        catalog.change(catalog.state.then("append", "zombie", live=rows, properties={ENTRY.key: ENTRY.to_json()}))


def dropped(catalog: FakeCatalog) -> None:
    catalog.change(State(uuid="another", live=frozenset(), snapshots=(), head_id=None))


def test_rows_and_merges_become_visible_together() -> None:
    """Append, replace and ledger entry land in one swap, and nothing is deleted."""
    catalog = FakeCatalog()
    outcome = run(catalog)
    assert outcome.snapshot_ids == (2, 3)
    assert outcome.operations == ("append", "replace")
    assert outcome.merged == MERGES
    assert catalog.state.live == OURS
    assert catalog.state.properties == {ENTRY.key: ENTRY.to_json()}
    assert catalog.attempts == 1
    assert catalog.data >= OURS


@pytest.mark.parametrize("answer", ["lie", "gone"])
def test_what_landed_behind_a_lost_answer_is_found(answer: str) -> None:
    """A 409 or no answer at all after landing is a success: looked up, not repeated, nothing of it deleted."""
    catalog = FakeCatalog()
    catalog.answers = [answer]
    assert run(catalog).operations == ("append", "replace")
    assert catalog.attempts == 1
    assert catalog.manifests == {"manifest-1"}
    assert catalog.state.live == OURS <= catalog.data


@pytest.mark.parametrize("answer", ["lost", "unknown", "late", "busy"])
def test_what_did_not_land_is_tried_again(answer: str) -> None:
    """A commit that the catalog lost, answered or not, lands by the next attempt, once."""
    catalog = FakeCatalog()
    catalog.answers = [answer]
    assert run(catalog).operations == ("append", "replace")
    catalog.land_late()
    assert [i for i, _, run_id in catalog.state.snapshots if run_id == "run"] == [2, 3]


def test_a_late_landing_meets_the_attempt_that_followed() -> None:
    """An attempt taken for lost that lands before the next swap is found by its run id, with what it merged."""
    catalog = FakeCatalog()
    catalog.answers = ["late"]
    catalog.rivals = [lambda c: None, FakeCatalog.land_late]
    outcome = run(catalog)
    assert outcome.snapshot_ids == (2, 3)
    assert outcome.merged == MERGES
    assert catalog.state.live == OURS <= catalog.data


def test_the_merges_of_a_late_landing_are_reported_though_dropped_since() -> None:
    """When a dropped merge lands after all the outcome names it."""
    catalog = FakeCatalog()
    catalog.answers = ["late"]
    catalog.rivals = [lambda c: None, FakeCatalog.land_late]
    catalog.loads = ["fresh", "fresh"]
    catalog.stage_failures = []
    stage, calls = catalog.stage, []

    def fail_second(loaded, wanted):  # type: ignore[no-untyped-def]
        calls.append(1)
        if len(calls) == 2:
            raise OSError("disk full")
        return stage(loaded, wanted)

    catalog.stage = fail_second  # type: ignore[method-assign]
    outcome = run(catalog)
    assert outcome.merged == MERGES
    assert outcome.operations == ("append", "replace")


def test_a_conflict_removes_the_attempts_manifests_only() -> None:
    """After an honest 409 the manifests of that attempt go, the data files serve the next one."""
    catalog = FakeCatalog()
    catalog.rivals = [rival_append]
    assert run(catalog).operations == ("append", "replace")
    assert catalog.manifests == {"manifest-2"}
    assert catalog.data >= OURS


def test_nothing_is_deleted_once_an_answer_was_lost() -> None:
    """After an unknown attempt even files that a later refusal leaves behind stay for orphan cleanup."""
    catalog = FakeCatalog()
    catalog.answers = ["unknown", "refused"]
    with pytest.raises(CommitStateUnknown, match=r"Nothing was deleted.*icesize\.run-id=run") as raised:
        run(catalog)
    assert raised.value.run_id == "run"
    assert catalog.data >= OURS


def test_a_refusal_removes_everything() -> None:
    """A definite no at the first attempt leaves neither data files nor manifests."""
    catalog = FakeCatalog()
    catalog.answers = ["refused"]
    with pytest.raises(TableError, match="403"):
        run(catalog)
    assert not catalog.data & OURS
    assert not catalog.manifests


@pytest.mark.parametrize(
    ("rival", "kept", "why"),
    [
        (rival_compaction, {"new", "m1"}, "merge of 2 files dropped: another writer removed a file of it"),
        (
            rival_delete,
            {"new", "m0"},
            "merge of 2 files dropped: another writer deleted rows of it, and the merge keeps no map of its rows",
        ),
    ],
)
def test_a_touched_victim_drops_its_group_and_no_other(
    rival: Callable[[FakeCatalog], None], kept: set[str], why: str
) -> None:
    """Files taken or rows deleted by others cost that merge; the append and the other merge land."""
    catalog = FakeCatalog()
    catalog.rivals = [rival]
    outcome = run(catalog)
    assert outcome.conflicts == (why,)
    assert outcome.contested == (PART,)
    assert kept <= catalog.state.live
    assert not catalog.state.live & (OURS - kept)
    assert catalog.data & OURS == kept


def test_a_delete_is_seen_behind_later_commits() -> None:
    """Delete, then append, then the first attempt: the delete counts from the planning base on."""
    catalog = FakeCatalog()
    rival_delete(catalog)
    rival_append(catalog)
    outcome = run(catalog)
    assert outcome.conflicts == (
        "merge of 2 files dropped: another writer deleted rows of it, and the merge keeps no map of its rows",
    )
    assert "v2" in catalog.state.live


@pytest.mark.parametrize("rival", [rival_schema, rival_spec])
def test_a_changed_schema_or_spec_drops_merges_and_keeps_rows(rival: Callable[[FakeCatalog], None]) -> None:
    """Schema or spec changed while the merge ran: rows are committed, merged files removed."""
    catalog = FakeCatalog()
    catalog.rivals = [rival]
    outcome = run(catalog)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == ("merge of 4 files dropped: schema or partition spec changed while the merge ran",)
    assert outcome.contested == ()
    assert catalog.data & OURS == {"new"}


def test_an_expired_planning_base_costs_no_merge() -> None:
    """States are compared, not histories: the input files are as they were, so all of it is committed."""
    catalog = FakeCatalog()
    expiry(catalog)
    outcome = run(catalog)
    assert (outcome.operations, outcome.conflicts, outcome.contested) == (("append", "replace"), (), ())


def absorbing() -> CommitRequest:
    """One new file that also holds the rows of v0 and v1, and a merge of v2 and v3."""
    return request(absorbed=INPUTS[:2], merged=MERGES[1:])


def test_absorbed_files_go_with_the_new_ones() -> None:
    """One overwrite instead of an append; the merges follow as ever."""
    catalog = FakeCatalog()
    assert run(catalog, absorbing()).operations == ("overwrite", "replace")
    assert catalog.state.live == {"new", "m1"}


@pytest.mark.parametrize(
    ("rival", "why", "partitions"),
    [
        (rival_compaction, "another writer removed a file of it", (PART,)),
        (rival_schema, "schema or partition spec changed while the merge ran", (PART,)),
        (rival_spec, "schema or partition spec changed while the merge ran", (PART,)),
    ],
)
def test_a_lost_absorbed_file_fails_the_request(
    rival: Callable[[FakeCatalog], None], why: str, partitions: tuple[PartitionKey, ...]
) -> None:
    """Nobody else has its rows, so nothing of the request may land: all its files are removed, to be written again."""
    catalog = FakeCatalog()
    catalog.rivals = [rival]
    with pytest.raises(ConcurrentChange, match=why) as raised:
        run(catalog, absorbing())
    assert raised.value.partitions == partitions
    assert not catalog.data & {"new", "m1"}
    assert "new" not in catalog.state.live


def test_new_files_that_do_not_fit_the_table_do_not_land() -> None:
    """Before each attempt they are held against the table as it is then; all files are removed, to be written again."""
    catalog = FakeCatalog()
    catalog.rivals = [lambda c: c.change(replace(c.state, schema_id=1, unfit="column 'k' was dropped"))]
    with pytest.raises(ConcurrentChange, match="column 'k' was dropped") as raised:
        run(catalog)
    assert (raised.value.partitions, catalog.attempts) == ((), 1)
    assert not catalog.data & OURS
    assert not catalog.manifests
    assert "new" not in catalog.state.live


def test_a_merge_alone_has_no_new_files_that_could_not_fit() -> None:
    """It is outdated by a new schema, and that is told as ever."""
    catalog = FakeCatalog(State(schema_id=1, unfit="column 'k' was dropped"))
    outcome = run(catalog, request(appended=(), ledger=None))
    assert (outcome.operations, catalog.attempts) == ((), 0)


def test_an_absorbed_file_lost_behind_an_unknown_answer_deletes_nothing() -> None:
    """The first attempt may still land, with the files that it needs."""
    catalog = FakeCatalog()
    catalog.answers, catalog.rivals = ["unknown", "ok"], [lambda c: None, rival_compaction]
    with pytest.raises(CommitStateUnknown, match="Nothing was deleted"):
        run(catalog, absorbing())
    assert catalog.data >= {"new", "m1"}


def test_a_rival_that_leaves_absorbed_files_alone_costs_an_attempt() -> None:
    """Rows that somebody appends meanwhile are no reason to write again."""
    catalog = FakeCatalog()
    catalog.rivals = [rival_append]
    assert run(catalog, absorbing()).operations == ("overwrite", "replace")
    assert catalog.attempts == 2


def test_the_second_loss_drops_the_merges() -> None:
    """Two lost races are enough: the rows go alone, as appending is cheap."""
    catalog = FakeCatalog()
    catalog.rivals = [rival_append, rival_append]
    outcome = run(catalog)
    assert outcome.operations == ("append",)
    assert outcome.conflicts == ("merge of 4 files dropped: other commits kept coming first",)
    assert catalog.attempts == 3
    assert catalog.data & OURS == {"new"}


@pytest.mark.parametrize(("seconds", "operations"), [(0.5, ("append", "replace")), (1.5, ("append",))])
def test_a_slow_merge_is_dropped_at_the_first_loss(seconds: float, operations: tuple[str, ...]) -> None:
    """Staging that took longer than a second is not repeated for the merge's sake."""
    catalog, time = FakeCatalog(), FakeTime()
    catalog.rivals = [rival_append]
    catalog.on_stage = lambda: time.sleep(seconds)
    assert run(catalog, time=time).operations == operations


def test_a_merge_alone_is_retried_like_an_append() -> None:
    """Maintenance has nothing else to save: three losses do not drop its merges."""
    catalog = FakeCatalog()
    catalog.rivals = [rival_append] * 3
    outcome = run(catalog, request(appended=(), ledger=None))
    assert outcome.operations == ("replace",)


def test_a_merge_alone_that_lost_its_inputs_commits_nothing() -> None:
    """Nothing left to commit is an outcome without snapshots, and its files are removed."""
    catalog = FakeCatalog()
    rival_compaction(catalog)
    rival_delete(catalog)
    outcome = run(catalog, request(appended=(), ledger=None))
    assert outcome.snapshot_ids == ()
    assert len(outcome.conflicts) == 2
    assert not catalog.data & {"m0", "m1"}
    assert catalog.attempts == 0


def test_conflicts_until_the_deadline_end_with_one() -> None:
    """Rivals that always come first: CommitConflict, nothing visible, our files and manifests removed."""
    catalog, time = FakeCatalog(), FakeTime()
    catalog.rivals = [rival_append] * 100_000
    with pytest.raises(
        CommitConflict, match=r"other writers committed first \d+ times in 600 s.*nothing was committed"
    ) as raised:
        run(catalog, time=time)
    assert time.seconds > 600
    assert raised.value.attempts == catalog.attempts > 10
    assert max(time.sleeps) <= 10
    assert not catalog.data & OURS
    assert not catalog.manifests
    assert "run" not in {r for _, _, r in catalog.state.snapshots}


def test_a_commit_to_another_branch_is_a_conflict_that_can_be_believed() -> None:
    """Main did not move, sequence numbers did: retried, and the lost attempt's manifests are removed."""
    catalog = FakeCatalog()
    catalog.rivals = [other_branch]
    assert run(catalog).operations == ("append", "replace")
    assert catalog.manifests == {"manifest-2"}


def test_a_busy_catalog_is_no_unknown_outcome() -> None:
    """ "Come again later" until the deadline is a conflict: nothing can have landed, so our files go."""
    catalog = FakeCatalog()
    catalog.answers = ["busy"] * 100_000
    with pytest.raises(CommitConflict):
        run(catalog)
    assert not catalog.data & OURS
    assert not catalog.manifests


def test_a_stale_load_after_a_false_conflict_deletes_nothing() -> None:
    """409 although landed, then a replica that lags: not believed, and found at the next load."""
    catalog = FakeCatalog()
    catalog.answers = ["lie"]
    catalog.loads = ["fresh", "stale"]
    outcome = run(catalog)
    assert outcome.operations == ("append", "replace")
    assert catalog.state.live == OURS <= catalog.data
    assert "manifest-1" in catalog.manifests


def test_a_replica_older_than_the_attempt_proves_nothing() -> None:
    """409 although landed, then a state older than the one the attempt was made on: still nothing is deleted."""
    catalog = FakeCatalog()
    rival_append(catalog)
    catalog.answers = ["lie"]
    first = catalog.states[0]
    loads = iter([catalog.state, first])

    load = catalog.load

    def lagging():  # type: ignore[no-untyped-def]
        state = next(loads, None)
        return load() if state is None else replace(load(), state=state)

    catalog.load = lagging  # type: ignore[method-assign]
    assert run(catalog).operations == ("append", "replace")
    assert catalog.state.live == OURS <= catalog.data


def test_a_stale_first_load_costs_an_attempt() -> None:
    """Staged on an old head the swap fails, and the next attempt lands on the new one."""
    catalog = FakeCatalog()
    rival_append(catalog)
    catalog.loads = ["stale"]
    assert run(catalog, request(base=Base(Head(2, 2)))).operations[0] == "append"
    assert catalog.attempts == 2


def test_a_twin_that_committed_the_batch_first_wins() -> None:
    """The loser reports the batch as committed and removes its data files and manifests."""
    catalog = FakeCatalog()
    catalog.rivals = [twin]
    outcome = run(catalog)
    assert outcome.already_committed
    assert outcome.snapshot_ids == ()
    assert not catalog.data & OURS
    assert not catalog.manifests
    assert "twin" in catalog.state.live


def test_a_committed_batch_is_not_staged_again() -> None:
    """A replay finds the ledger entry at the first load."""
    catalog = FakeCatalog()
    twin(catalog)
    assert run(catalog).already_committed
    assert catalog.attempts == 0
    assert not catalog.data & OURS


def test_our_landing_is_known_after_its_snapshots_expired() -> None:
    """Landed, answer lost, snapshots expired at once: the live files tell, and stay."""

    class ExpiringCatalog(FakeCatalog):
        def load(self):  # type: ignore[no-untyped-def]
            if self.attempts:
                self.states.append(replace(self.state, snapshots=((99, "append", "other"),)))
            return super().load()

    catalog = ExpiringCatalog()
    catalog.answers = ["lie"]
    outcome = run(catalog)
    assert not outcome.already_committed
    assert outcome.merged == MERGES
    assert catalog.state.live == OURS <= catalog.data


@pytest.mark.parametrize(
    ("last", "error"),
    [(replace(ENTRY, batch_id=8), BatchOutOfOrder), (replace(ENTRY, query_id="p"), StreamMismatch)],
)
def test_a_batch_that_the_ledger_refuses_leaves_nothing(last: LedgerEntry, error: type[IcesizeError]) -> None:
    """A smaller batch id or another query id is refused before anything is staged, our files removed."""
    catalog = FakeCatalog(State(properties={last.key: last.to_json()}))
    with pytest.raises(error):
        run(catalog)
    assert not catalog.data & OURS
    assert catalog.attempts == 0


def test_a_successor_that_hides_our_false_conflict_deletes_nothing() -> None:
    """409 although landed, expired, and the next batch is there already: refused, but our files are live."""
    catalog = FakeCatalog()
    catalog.answers = ["lie"]
    time = FakeTime()
    later = replace(ENTRY, batch_id=8)

    def successor() -> None:
        state = catalog.state.then("append", properties={later.key: later.to_json()})
        catalog.change(replace(state, snapshots=state.snapshots[-1:]))

    time.on_sleep = successor
    with pytest.raises(BatchOutOfOrder):
        run(catalog, time=time)
    assert catalog.state.live == OURS <= catalog.data


def test_a_new_checkpoint_may_take_over() -> None:
    """With accept_new_checkpoint another query id goes on, and its entry replaces the old one."""
    old = replace(ENTRY, query_id="p", batch_id=50)
    catalog = FakeCatalog(State(properties={old.key: old.to_json()}))
    assert run(catalog, request(accept_new_checkpoint=True)).operations == ("append", "replace")
    assert catalog.state.properties == {ENTRY.key: replace(ENTRY, retired=(stream_hash("p"),)).to_json()}


def test_a_recreated_table_gets_nothing() -> None:
    """Another UUID under the name: error before staging, our files removed."""
    catalog = FakeCatalog()
    dropped(catalog)
    with pytest.raises(TableError, match=r"dropped and recreated.*nothing was written to the new table"):
        run(catalog)
    assert catalog.attempts == 0
    assert not catalog.data & OURS


def test_a_catalog_that_is_down_before_the_first_attempt_is_an_error() -> None:
    """Nothing was asked yet, so nothing is unknown: TableError, our files removed."""
    catalog, time = FakeCatalog(), FakeTime()
    catalog.loads = ["down"] * 100_000
    with pytest.raises(TableError, match=r"the catalog does not answer.*no route to catalog"):
        run(catalog, time=time)
    assert time.seconds > 600
    assert max(time.sleeps) <= 10
    assert not catalog.data & OURS


def test_a_catalog_that_comes_back_before_the_first_attempt_is_waited_for() -> None:
    """The files are written by then; they land once somebody answers."""
    catalog = FakeCatalog()
    catalog.loads = ["down"] * 5
    assert run(catalog).operations == ("append", "replace")
    assert catalog.state.live == OURS <= catalog.data


def test_a_catalog_that_stays_silent_ends_as_unknown_in_about_a_minute() -> None:
    """After a bounded number of answers that tell nothing the caller is asked to look; nothing is deleted."""
    catalog, time = FakeCatalog(), FakeTime()
    catalog.answers = ["gone"]
    catalog.loads = ["fresh", *["down"] * 50]
    with pytest.raises(CommitStateUnknown, match="Commit state unknown"):
        run(catalog, time=time)
    assert len(time.sleeps) == UNKNOWN_ATTEMPTS - 1
    assert time.seconds <= 63
    assert catalog.state.live == OURS <= catalog.data


@pytest.mark.parametrize("landed", [True, False])
def test_an_interrupt_during_the_swap_deletes_nothing(landed: bool) -> None:
    """Ctrl-C while the catalog is asked: it may land still, so data files and manifests stay."""
    catalog = FakeCatalog()
    catalog.answers = ["ctrl-c"]
    catalog.rivals = [(lambda c: None) if landed else rival_append]
    with pytest.raises(KeyboardInterrupt):
        run(catalog)
    assert catalog.data >= OURS
    assert catalog.manifests == {"manifest-1"}


def test_an_interrupt_after_a_false_conflict_deletes_nothing() -> None:
    """Ctrl-C between a 409 and looking whether it was true: what landed stays readable."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    catalog = FakeCatalog()
    catalog.answers = ["lie"]
    with pytest.raises(KeyboardInterrupt):
        run(catalog, time=FakeTime(interrupt))
    assert catalog.state.live == OURS <= catalog.data
    assert catalog.manifests == {"manifest-1"}


def test_an_interrupt_before_the_swap_removes_everything() -> None:
    """Nobody was asked yet: data files and manifests go."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    catalog = FakeCatalog()
    with failpoints.armed("before-swap", interrupt), pytest.raises(KeyboardInterrupt):
        run(catalog)
    assert not catalog.data & OURS
    assert not catalog.manifests


def test_a_merge_that_cannot_be_staged_does_not_cost_the_rows() -> None:
    """Manifests of the merge that cannot be written drop the merge; the append lands."""
    catalog = FakeCatalog()
    catalog.stage_failures = [OSError("disk full")]
    outcome = run(catalog)
    assert (outcome.operations, outcome.internal_errors) == (("append",), ())
    assert outcome.conflicts == (
        "merge of 4 files dropped: its manifests could not be read or written (OSError: disk full)",
    )
    assert catalog.data & OURS == {"new"}


@pytest.mark.internal_error
def test_a_mistake_of_ours_in_a_merge_is_not_taken_for_a_conflict() -> None:
    """The append lands, and the mistake is in the log as an error, so that any other test with it fails."""
    catalog = FakeCatalog()
    catalog.stage_failures = [TypeError("'NoneType' object is not subscriptable")]
    with watched() as logged:
        outcome = run(catalog)
    assert (outcome.operations, outcome.conflicts) == (("append",), ())
    assert outcome.internal_errors == (
        "merge of 4 files dropped: internal error TypeError: 'NoneType' object is not subscriptable, report this with "
        "the log",
    )
    assert catalog.data & OURS == {"new"}
    assert ["Traceback" in each for each in logged] == [True]


@pytest.mark.internal_error
def test_a_mistake_of_ours_in_the_check_of_a_merge_does_not_cost_the_rows() -> None:
    """A merge is also optional while it is compared with the newest state."""

    class Broken(Merge):
        def validate(self, state: Loaded, base: Base, earlier: Sequence[Step]) -> Kept:
            raise KeyError("v0")

    catalog = FakeCatalog()
    outcome = run(catalog, request(steps=(*request(merged=()).steps, Broken(MERGES))))
    assert outcome.operations == ("append",)
    assert outcome.internal_errors == (
        "merge of 4 files dropped: internal error KeyError: 'v0', report this with the log",
    )
    assert catalog.data & OURS == {"new"}


def test_a_mistake_of_ours_fails_a_job_that_only_merges() -> None:
    """It is raised, and the files are removed."""
    catalog = FakeCatalog()
    catalog.stage_failures = [TypeError("'NoneType' object is not subscriptable")]
    with pytest.raises(TypeError):
        run(catalog, request(appended=()))
    assert catalog.data.isdisjoint({"m0", "m1"})


def test_an_append_that_cannot_be_staged_is_an_error() -> None:
    """Storage that fails for the append too fails the commit, with our files removed."""
    catalog = FakeCatalog()
    catalog.stage_failures = [OSError("disk full"), OSError("disk full")]
    with pytest.raises(TableError, match=r"could not be read or written \(OSError: disk full\)\. Nothing is visible"):
        run(catalog)
    assert not catalog.data & OURS


def test_an_error_after_the_swap_deletes_nothing() -> None:
    """Once landed, whatever fails next cannot take the files away."""
    catalog = FakeCatalog()

    def fail() -> None:
        raise RuntimeError("the reporter broke")

    with failpoints.armed("after-swap", fail), pytest.raises(RuntimeError):
        run(catalog)
    assert catalog.state.live == OURS <= catalog.data


def test_waits_grow_and_are_jittered() -> None:
    """Waits between attempts differ between two writers and never exceed ten seconds."""
    runs = []
    for _ in range(2):
        catalog, time = FakeCatalog(), FakeTime()
        catalog.rivals = [rival_append] * 12
        run(catalog, time=time)
        runs.append(time.sleeps)
    assert runs[0] != runs[1]
    assert all(0 <= s <= min(10, 0.1 * 2**i) for sleeps in runs for i, s in enumerate(sleeps))


RIVALS = {
    "none": lambda c: None,
    "append": rival_append,
    "compaction": rival_compaction,
    "delete": rival_delete,
    "schema": rival_schema,
    "spec": rival_spec,
    "branch": other_branch,
    "expiry": expiry,
    "twin": twin,
    "late": FakeCatalog.land_late,
}
ANSWERS = ["ok", "busy", "refused", "lie", "lost", "unknown", "gone", "late", "ctrl-c"]


@examples(400)
@given(
    rivals=st.lists(st.sampled_from(sorted(RIVALS)), max_size=6),
    answers=st.lists(st.sampled_from(ANSWERS), max_size=6),
    loads=st.lists(st.sampled_from(["fresh", "fresh", "stale", "down", "land-late"]), max_size=8),
    between=st.lists(st.sampled_from(sorted(RIVALS)), max_size=4),
    merges=st.booleans(),
)
@example(rivals=[], answers=["lie"], loads=["fresh", "stale"], between=["append"], merges=True)
@example(rivals=["none", "late"], answers=["late"], loads=[], between=["expiry"], merges=True)
def test_whatever_happens_rows_land_at_most_once_and_nothing_live_is_deleted(
    rivals: list[str], answers: list[str], loads: list[str], between: list[str], merges: bool
) -> None:
    """Any mix of answers, rivals, stale loads and late landings keeps the promises; the fake checks each landing."""
    catalog, time = FakeCatalog(), FakeTime()
    catalog.rivals, catalog.answers, catalog.loads = [RIVALS[r] for r in rivals], answers, loads
    meanwhile = iter(between)
    time.on_sleep = lambda: RIVALS[next(meanwhile, "none")](catalog)
    wanted = request() if merges else request(merged=())
    outcome, error = None, None
    try:
        outcome = run(catalog, wanted, time)
    except (IcesizeError, KeyboardInterrupt) as raised:
        error = raised
    known = isinstance(error, TableError | CommitConflict)
    if known:
        assert not catalog.state.live & OURS
    if outcome is not None and not outcome.already_committed:
        assert "new" in catalog.state.live
        outputs = {f.path for g in outcome.merged for f in g.files}
        assert outputs == catalog.state.live & {"m0", "m1"}
    catalog.land_late()
    landed = [operation for _, operation, run_id in catalog.state.snapshots if run_id == "run"]
    assert landed.count("append") <= 1
    assert landed.count("replace") <= 1
    assert catalog.state.live <= catalog.data
    if known:
        assert not catalog.state.live & OURS


def test_two_threads_with_one_batch_land_it_once() -> None:
    """A barrier before the swap makes both stage the same batch on the same head; one lands, one finds it there."""
    catalog = FakeCatalog()
    catalog.data |= {"b-new"}
    barrier, lock, compare_and_swap = threading.Barrier(2), threading.Lock(), catalog.commit
    outcomes: list[CommitOutcome] = []

    def locked(loaded, staged):  # type: ignore[no-untyped-def]
        with lock:
            compare_and_swap(loaded, staged)

    catalog.commit = locked  # type: ignore[method-assign]
    requests = [request(merged=()), request(run_id="b", appended=(written("b-new"),), merged=())]
    threads = [threading.Thread(target=lambda r=r: outcomes.append(run(catalog, r))) for r in requests]
    with failpoints.armed("before-swap", lambda: barrier.wait(20)):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert sorted(o.already_committed for o in outcomes) == [False, True]
    assert len(catalog.state.live & {"new", "b-new"}) == 1
    assert catalog.data & {"new", "b-new"} == catalog.state.live & {"new", "b-new"}


def test_storage_that_fails_after_a_lost_answer_leaves_the_outcome_unknown() -> None:
    """The next attempt cannot be staged, and the first lands late: no known failure, and nothing of it deleted."""
    catalog = FakeCatalog()
    catalog.answers = ["late"]

    def disk_full() -> None:
        if catalog.attempts:
            raise OSError("disk full")

    catalog.on_stage = disk_full
    with pytest.raises(CommitStateUnknown, match=r"Commit state unknown: OSError: disk full\."):
        run(catalog)
    catalog.land_late()
    assert catalog.state.live == OURS <= catalog.data
    assert catalog.manifests == {"manifest-1"}


def test_storage_that_fails_after_a_false_conflict_leaves_the_outcome_unknown() -> None:
    """Told 409 though it has landed, and the history cannot be read to find that: no known failure."""

    class Unreadable(FakeLoaded):
        def snapshots_of(self, run_id: str) -> list[tuple[int, str]]:
            raise OSError("connection reset")

    class Failing(FakeCatalog):
        def load(self) -> FakeLoaded:
            return Unreadable(self.state) if self.attempts else super().load()

    catalog = Failing()
    catalog.answers = ["lie"]
    with pytest.raises(CommitStateUnknown, match=r"Commit state unknown: OSError: connection reset\."):
        run(catalog)
    assert catalog.state.live == OURS <= catalog.data
    assert catalog.manifests == {"manifest-1"}
