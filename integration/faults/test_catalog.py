"""Faults of the catalog: it says no, says nothing, says something untrue, or what it said is lost on the way."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from tenacity import Retrying, stop_after_delay, wait_fixed

from icesize.errors import CommitConflict, CommitStateUnknown, TableError
from icesize.failpoints import armed
from icesize.table.catalog.opening import with_timeout
from integration.faults.faulted_table import FaultedTable
from integration.faults.write_or_merge import (
    BATCHES,
    HOWS,
    INLINE,
    OPERATIONS,
    RAISING,
    SINKS,
    WriteOrMerge,
    each,
    rival_append,
)
from tests.support.rest_faults import Fault, Moment
from tests.support.rest_server import MiniRest

LOST = (500, 502, 503, 504, "reset", "truncated", "html")
"""What may come in place of an answer. All are tried on batches; other work meets one of each sort."""
EACH_SORT = (503, "reset", "html")
FOREVER = 10_000


@contextmanager
def spoiled(mini: MiniRest, operation: WriteOrMerge, *faults: Fault) -> Iterator[None]:
    """The next commit of this work meets the faults; with "async" that of its merges."""
    if operation.how != "async":
        mini.fail_next_commit(*faults)
        yield
        return
    with armed("background", operation.once(lambda: mini.fail_next_commit(*faults))):
        yield


def state(faulted: FaultedTable) -> tuple[str, set[str]]:
    """What must not change when a commit is refused: metadata, and files that nothing refers to."""
    return faulted.table().metadata_location, faulted.leftovers()


@pytest.mark.fault(9)
@pytest.mark.parametrize("how", HOWS)
def test_a_conflict_is_tried_again(rest_faulted: FaultedTable, mini: MiniRest, how: str) -> None:
    """A commit that conflicts with another writer is retried on top of the new snapshot."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    posts = len(mini.posts)
    with armed("before-swap", operation.once(lambda: rival_append(rest_faulted, 1000))):
        report = operation.act()
    assert report.operations == OPERATIONS[how]
    # with "async" the batch has a commit of its own, and `maintain` has more steps
    assert how == "maintain" or len(mini.posts) - posts == 3 + (how == "async")
    assert rest_faulted.leftovers() == set()


@pytest.mark.fault(10)
@pytest.mark.parametrize("how", RAISING)
def test_rivals_come_first_until_the_deadline(rest_faulted: FaultedTable, how: str) -> None:
    """If other writers commit first until `commit-deadline-ms`, the call fails and leaves no file."""
    operation = WriteOrMerge(rest_faulted, how, {"commit_deadline_ms": 1000})
    operation.prepare()
    ids = iter(range(1000, 2000))
    with armed("before-swap", lambda: rival_append(rest_faulted, next(ids))), pytest.raises(CommitConflict) as raised:
        operation.act()
    assert "other writers committed first" in str(raised.value)
    assert "nothing was committed" in str(raised.value)
    waits = rest_faulted.time.sleeps
    assert len(waits) == raised.value.attempts
    # never the same wait twice: two writers that have met once do not go on meeting
    assert len(set(waits)) == len(waits)
    assert rest_faulted.leftovers() == set()
    assert rest_faulted.operations()[2:] == ["append"] * len(waits)
    assert operation.again().snapshot_ids


@pytest.mark.fault(10)
def test_merges_beside_a_stream_lose_until_the_deadline(rest_faulted: FaultedTable) -> None:
    """Background merges that conflict until the deadline leave no file, fail no batch, and are reported."""
    operation = WriteOrMerge(rest_faulted, "async", {"commit_deadline_ms": 1000})
    operation.prepare()
    ids = iter(range(1000, 2000))

    # a new `once` each time: every attempt of the merges meets a rival
    with armed("before-swap", lambda: operation.once(lambda: rival_append(rest_faulted, next(ids)))()):
        report = operation.act()
    assert report.notes[0].startswith("background merge failed: CommitConflict: Cannot commit to")
    assert "other writers committed first" in report.notes[0]
    assert rest_faulted.leftovers() == set()
    # delivered again, the batch is skipped and its merges have another try
    assert operation.again().operations == ("replace",)


@pytest.mark.fault(10)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.any_format
def test_a_catalog_refuses_for_ever(rest_faulted: FaultedTable, mini: MiniRest, how: str) -> None:
    """If a catalog reports conflicts although no other writer commits, the commit state is unknown, and the caller must
    check."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    before, _ = state(rest_faulted)
    mini.fail_next_commit(*[Fault(409)] * 10)
    with pytest.raises(CommitStateUnknown, match="Nothing was deleted"):
        operation.act()
    assert state(rest_faulted)[0] == before
    assert operation.again().operations == OPERATIONS[how]


@pytest.mark.fault(11)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.any_format
def test_a_lost_answer_of_a_landed_commit(rest_faulted: FaultedTable, mini: MiniRest, how: str) -> None:
    """A commit that succeeded although its response was lost is reported as done, and not repeated."""
    operation = WriteOrMerge(rest_faulted, how)
    for kind in LOST if how == "append" else EACH_SORT:
        operation.prepare()
        known, posts = len(rest_faulted.operations()), len(mini.posts)
        with spoiled(mini, operation, Fault(kind, "after")):
            report = operation.act()
        assert report.operations == OPERATIONS[how], kind
        # with "async" the batch has a commit of its own
        assert len(mini.posts) - posts == 1 + (how == "async"), kind
        assert len(rest_faulted.operations()) - known == len(report.operations) + (how == "async"), kind
        assert set(report.snapshot_ids) <= {s.snapshot_id for s in rest_faulted.table().metadata.snapshots}


@pytest.mark.fault(12)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.any_format
def test_a_lost_answer_of_a_commit_that_did_not_land(rest_faulted: FaultedTable, mini: MiniRest, how: str) -> None:
    """A commit that failed and whose response was lost is repeated once."""
    operation = WriteOrMerge(rest_faulted, how)
    for kind in (409, *LOST) if how == "append" else (409, *EACH_SORT):
        operation.prepare()
        known, posts = len(rest_faulted.operations()), len(mini.posts)
        with spoiled(mini, operation, Fault(kind)):
            report = operation.act()
        assert report.operations == OPERATIONS[how], kind
        assert len(mini.posts) - posts == 2 + (how == "async"), kind
        assert len(rest_faulted.operations()) - known == len(report.operations) + (how == "async"), kind


def until_all_are_answered(mini: MiniRest) -> None:
    """Wait for commits that were held and let go: their clients have left, so nobody else hears of their end."""
    for attempt in Retrying(stop=stop_after_delay(30), wait=wait_fixed(0.01), reraise=True):
        with attempt:
            answers = [line for line in mini.requests if line.startswith("POST") and "/tables/" in line]
            assert len(answers) == len(mini.posts)


def impatient(mini: MiniRest) -> RestCatalog:
    """A client whose commits get half a second; all else gets icesize's minute."""
    catalog = mini.catalog("lake")
    with_timeout(catalog)
    adapters: Any = catalog._session.adapters
    for adapter in adapters.values():
        adapter.send = _short_for_commits(adapter.send)
    return catalog


def _short_for_commits(send: Any) -> Any:
    def short(request: Any, **options: Any) -> Any:
        return send(request, **options | ({"timeout": 0.5} if request.method == "POST" else {}))

    return short


@pytest.mark.fault(13)
@pytest.mark.parametrize("how", each("append", slow=("absorb once", "compact")))
@pytest.mark.any_format
def test_a_catalog_that_never_answers(rest_faulted: FaultedTable, mini: MiniRest, how: str) -> None:
    """icesize waits a limited time for a catalog without response, then checks the outcome of the commit."""
    operation = WriteOrMerge(rest_faulted.seen_by(impatient(mini)), how)
    moments: tuple[Moment, ...] = ("after", "before")
    for when in moments:
        operation.prepare()
        known = len(rest_faulted.operations())
        mini.fail_next_commit(Fault("hang", when))
        report = operation.act()
        assert report.operations == OPERATIONS[how]
        # what was held comes too late, or lands a second time if nothing stands in its way
        mini.release()
        until_all_are_answered(mini)
        assert len(rest_faulted.operations()) - known == len(report.operations)


@pytest.mark.fault(14)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize(("kinds", "told"), [([403], r"refused it \(403\)"), ([401, 401], "the catalog refused it")])
@pytest.mark.any_format
def test_a_commit_without_the_right(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, kinds: list[int], told: str
) -> None:
    """A commit that the catalog does not permit fails immediately: the table is unchanged, and no file remains."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    before = state(rest_faulted)
    mini.fail_next_commit(*map(Fault, kinds))
    with pytest.raises(TableError, match=told):
        operation.act()
    assert state(rest_faulted) == before
    assert before[1] == set()
    assert operation.again().operations == OPERATIONS[how]


@pytest.mark.fault(14)
@pytest.mark.any_format
def test_merges_beside_a_stream_without_the_right(rest_faulted: FaultedTable, mini: MiniRest) -> None:
    """Background merges that the catalog does not permit leave no file, fail no batch, and are reported."""
    operation = WriteOrMerge(rest_faulted, "async")
    operation.prepare()
    with spoiled(mini, operation, Fault(403)):
        report = operation.act()
    assert report.notes[0].startswith("background merge failed: TableError: Cannot commit to 'db.events'")
    assert rest_faulted.operations() == ["append"] * 3
    assert rest_faulted.leftovers() == set()


@pytest.mark.fault(14)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("point", ["planned", "files-written", "before-swap"])
@pytest.mark.any_format
def test_a_token_expires_between_write_and_commit(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, point: str
) -> None:
    """A token that expires while files are written is renewed, and the commit uses the new one."""
    mini.token = "first"
    login = {"credential": "client:secret", "oauth2-server-uri": f"{mini.uri}/v1/oauth/tokens"}
    operation = WriteOrMerge(rest_faulted.seen_by(mini.catalog("lake", **login)), how)
    operation.prepare()
    with armed(point, operation.once(lambda: setattr(mini, "token", "second"))):
        assert operation.act().operations == OPERATIONS[how]
    assert [line for line in mini.requests if line.endswith(" 401")]
    mini.token = None


@pytest.mark.fault(14)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("point", ["files-written", "before-swap"])
@pytest.mark.any_format
def test_a_token_that_nobody_renews_expires(rest_faulted: FaultedTable, mini: MiniRest, how: str, point: str) -> None:
    """A token that expires and cannot be renewed fails the call: the table is unchanged, and no file remains."""
    mini.token = "first"
    operation = WriteOrMerge(rest_faulted.seen_by(mini.catalog("lake", token="first")), how)
    operation.prepare()
    with armed(point, operation.once(lambda: setattr(mini, "token", "second"))), pytest.raises(TableError):
        operation.act()
    mini.token = None
    assert rest_faulted.operations() == ["append"] * 2
    assert rest_faulted.leftovers() == set()
    assert operation.of(rest_faulted).again().operations == OPERATIONS[how]


@pytest.mark.fault(32)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(("point", "loads"), [("batch-started", 1), ("planned", 1), ("files-written", 2)])
@pytest.mark.any_format
def test_a_catalog_shows_an_old_state(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, point: str, loads: int
) -> None:
    """A catalog that shows an older state costs another attempt or a merge, but never a row."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    with armed(point, operation.once(lambda: setattr(mini, "stale_loads", loads))):
        report = operation.act()
    if point != "batch-started" or how in SINKS:
        assert mini.stale_loads < loads
    mini.stale_loads = 0
    if how in INLINE:
        assert report.snapshot_ids
        assert report.operations[0] in ("append", "overwrite")


@pytest.mark.fault(15, 32)
@pytest.mark.parametrize("how", BATCHES)
@pytest.mark.parametrize("loads", [1, 2])
@pytest.mark.any_format
def test_an_old_state_hides_a_committed_batch(rest_faulted: FaultedTable, mini: MiniRest, how: str, loads: int) -> None:
    """A batch delivered again while the catalog still shows an older state is not committed twice."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    operation.act()
    before = state(rest_faulted)
    with armed("batch-started", operation.once(lambda: setattr(mini, "stale_loads", loads))):
        report = operation.again()
    assert report.already_committed
    assert mini.stale_loads == 0
    assert state(rest_faulted) == before


@pytest.mark.fault(32)
@pytest.mark.any_format
def test_a_catalog_shows_an_old_state_for_ever(rest_faulted: FaultedTable, mini: MiniRest) -> None:
    """If a catalog never shows the newest state, the commit state is unknown: nothing is deleted, and a later retry
    succeeds."""
    operation = WriteOrMerge(rest_faulted)
    operation.prepare()
    before = rest_faulted.table().metadata_location
    for_ever = operation.once(lambda: setattr(mini, "stale_loads", FOREVER))
    with armed("files-written", for_ever), pytest.raises(CommitStateUnknown, match="Nothing was deleted"):
        operation.act()
    mini.stale_loads = 0
    assert rest_faulted.table().metadata_location == before
    assert operation.again().operations == OPERATIONS["append"]


@pytest.mark.fault(11, 12)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("when", ["after", "before"])
@pytest.mark.any_format
def test_the_answer_is_lost_and_then_the_way_to_look(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, when: Moment
) -> None:
    """After a lost response, icesize queries the unavailable catalog until it responds and shows the outcome."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    known = len(rest_faulted.operations())

    def go_away() -> None:
        mini.fail_next_commit(Fault(500, when))
        mini.fail_next_load(Fault(503), Fault("reset"), Fault("html"))

    with armed("before-swap", operation.once(go_away)):
        report = operation.act()
    assert report.operations == OPERATIONS[how]
    assert len(rest_faulted.operations()) - known == len(report.operations) + (how == "async")


@pytest.mark.fault(11, 12)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("when", ["after", "before"])
@pytest.mark.any_format
def test_the_catalog_is_gone_after_it_was_asked(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, when: Moment
) -> None:
    """If the catalog stays unavailable, the commit state is unknown: nothing is deleted, and the same call later
    succeeds."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()

    def go_away() -> None:
        mini.fail_next_commit(Fault("reset", when))
        mini.fail_next_load(*[Fault(503)] * 9)

    with (
        armed("before-swap", operation.once(go_away)),
        pytest.raises(CommitStateUnknown, match="running the same batch"),
    ):
        operation.act()
    landed = when == "after"
    assert rest_faulted.operations()[2:] == (list(OPERATIONS[how]) if landed else [])
    report = operation.again()
    if how == "compact":
        assert report.snapshot_ids == () if landed else report.snapshot_ids
    else:
        assert report.already_committed == landed


def succeeded_and_expired(faulted: FaultedTable, tag: bool) -> None:
    """Another writer appends on top of the newest commit, merges all files, and expires every snapshot before that."""
    rival_append(faulted, 1000, 1001)
    table = faulted.table()
    head = table.metadata.current_snapshot()
    assert head is not None
    if tag:
        table.manage_snapshots().create_tag(head.snapshot_id, "kept").commit()
    faulted.sized(max_small_files=1).compact()
    table = faulted.table()
    kept = {table.metadata.current_snapshot_id, *([head.snapshot_id] if tag else [])}
    gone = [s.snapshot_id for s in table.metadata.snapshots if s.snapshot_id not in kept]
    table.maintenance.expire_snapshots().by_ids(gone).commit()


@pytest.mark.fault(9, 11)
@pytest.mark.parametrize("how", RAISING)
@pytest.mark.parametrize("kind", [409, 500])
@pytest.mark.parametrize("tag", [False, True], ids=["", "tagged"])
def test_a_landed_commit_is_hidden_by_its_successors(
    rest_faulted: FaultedTable, mini: MiniRest, how: str, kind: int, tag: bool
) -> None:
    """icesize does not repeat a successful commit that the catalog reported as failed, even if its snapshot has
    expired."""
    operation = WriteOrMerge(rest_faulted, how)
    operation.prepare()
    rival = rest_faulted.seen_by(mini.catalog("rival"))
    rest_faulted.time.on_sleep = operation.once(lambda: succeeded_and_expired(rival, tag))
    mini.fail_next_commit(Fault(kind, "after"))
    report = operation.act()
    assert report.already_committed == (how != "compact")
    if tag:
        kept = rest_faulted.table().metadata.refs["kept"].snapshot_id
        assert rest_faulted.table().scan(snapshot_id=kept).to_arrow().num_rows == 2 + 10 * (operation.number + 1)
