"""The ledger of committed batches: equal is done, greater is next, smaller or another query is refused."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import BatchError, BatchOutOfOrder, StreamMismatch
from icesize.table.records import ledger
from icesize.table.records.ledger import LedgerEntry, entries, parse, stream_hash

LAST = LedgerEntry("clicks", "q1", 7)
PROPERTIES = {LAST.key: LAST.to_json(), "owner": "me", "icesize.policy.max-small-files": "4"}


def last_of(properties: Mapping[str, str], entry: LedgerEntry) -> LedgerEntry | None:
    """The entry of the same stream and branch in a table of these properties."""
    value = properties.get(entry.key)
    return None if value is None else parse(value)


def is_done(properties: Mapping[str, str], entry: LedgerEntry, accept_new_checkpoint: bool = False) -> bool:
    return ledger.is_done(last_of(properties, entry), entry, accept_new_checkpoint)


def test_an_unknown_stream_is_next() -> None:
    """The first batch of a stream goes on, whatever its id."""
    assert not is_done({}, LedgerEntry("clicks", "q1", 5))
    assert not is_done(PROPERTIES, LedgerEntry("views", "q1", 0))


@pytest.mark.parametrize(("batch_id", "done"), [(7, True), (8, False), (12, False)])
def test_equal_is_done_and_greater_is_next(batch_id: int, done: bool) -> None:
    """The same batch is skipped; gaps, which empty batches leave, are normal."""
    assert is_done(PROPERTIES, LedgerEntry("clicks", "q1", batch_id)) is done


def test_a_smaller_batch_is_refused_with_the_way_on() -> None:
    """Going back means an older checkpoint: refused, and the message says what to do."""
    with pytest.raises(BatchOutOfOrder, match=r"batch 6 .*batch 7 is committed.*accept_new_checkpoint=True") as raised:
        is_done(PROPERTIES, LedgerEntry("clicks", "q1", 6))
    assert raised.value.last == LAST
    assert raised.value.stream_id == "clicks"


@pytest.mark.parametrize("batch_id", [0, 7, 8])
def test_another_query_is_refused_with_both_ways_on(batch_id: int) -> None:
    """Whatever its batch id, another query under the same stream id is refused before anything is written."""
    with pytest.raises(StreamMismatch, match=r"two queries.*accept_new_checkpoint=True.*--forget clicks"):
        is_done(PROPERTIES, LedgerEntry("clicks", "q2", batch_id))


def test_the_command_of_a_message_is_one_of_a_shell() -> None:
    """A stream id can be any text."""
    entry = LedgerEntry("it's; ls", "q1", 7)
    with pytest.raises(StreamMismatch) as raised:
        is_done({entry.key: entry.to_json()}, replace(entry, query_id="q2"))
    command = str(raised.value).rpartition("`icesize ")[2].removesuffix("`")
    assert shlex.split(command) == ["streams", "TABLE", "--forget", "it's; ls"]


def test_an_accepted_checkpoint_starts_its_own_count() -> None:
    """Accepted, another query may begin anywhere; the known query is still held to its order."""
    assert not is_done(PROPERTIES, LedgerEntry("clicks", "q2", 0), accept_new_checkpoint=True)
    assert is_done(PROPERTIES, LAST, accept_new_checkpoint=True)
    with pytest.raises(BatchOutOfOrder):
        is_done(PROPERTIES, LedgerEntry("clicks", "q1", 3), accept_new_checkpoint=True)


def test_a_query_without_an_id_continues_under_one_once() -> None:
    """The stream id in place of the query's id is replaced by later batches only: an equal one may be of another
    checkpoint. After that, neither another id nor the stream id is accepted.
    """
    unnamed = LedgerEntry("clicks", "clicks", 7)
    assert ledger.is_done(unnamed, unnamed)
    continues = "query clicks wrote batch 7 .* wrote batch 7 without 'query_id', set query_id='clicks'"
    for batch_id in (0, 7):
        with pytest.raises(StreamMismatch, match=continues):
            ledger.is_done(unnamed, LedgerEntry("clicks", "q1", batch_id))
    named = LedgerEntry("clicks", "q1", 8)
    assert not ledger.is_done(unnamed, named)
    last = named.after(unnamed)
    assert ledger.is_done(last, named)
    for query_id in ("q2", "clicks"):
        with pytest.raises(StreamMismatch):
            ledger.is_done(last, LedgerEntry("clicks", query_id, 9))


def test_a_checkpoint_without_an_id_continues_under_the_stream_id() -> None:
    """As the message says: a replay is recognized, later batches are next, and a new checkpoint is refused as such."""
    unnamed = LedgerEntry("clicks", "clicks", 7)
    last = unnamed
    for batch_id, done in ((7, True), (8, False), (9, False)):
        entry = LedgerEntry("clicks", "clicks", batch_id)
        assert ledger.is_done(last, entry) == done
        last = entry.after(last)
    with pytest.raises(StreamMismatch, match="query_id='clicks'"):
        ledger.is_done(last, LedgerEntry("clicks", "/checkpoints/2", 0))
    with pytest.raises(StreamMismatch) as raised:
        is_done(PROPERTIES, LedgerEntry("clicks", "q2", 0))
    assert "query_id=" not in str(raised.value)


def taken_over(*queries: str) -> dict[str, str]:
    """Properties of a table after each of these queries has committed its batch 7 to one stream."""
    properties: dict[str, str] = {}
    for query in queries:
        entry = LedgerEntry("clicks", query, 7)
        assert not is_done(properties, entry, accept_new_checkpoint=True)
        properties[entry.key] = entry.after(last_of(properties, entry)).to_json()
    return properties


@pytest.mark.parametrize("accept", [False, True])
@pytest.mark.parametrize("batch_id", [0, 7, 8])
def test_a_query_that_has_retired_does_not_come_back(accept: bool, batch_id: int) -> None:
    """Two programs that both may take over would each forget how far the other had got."""
    with pytest.raises(StreamMismatch, match=r"query q2 replaced this query \(q1\); .*--forget clicks") as raised:
        is_done(taken_over("q1", "q2"), LedgerEntry("clicks", "q1", batch_id), accept_new_checkpoint=accept)
    assert raised.value.last.query_id == "q2"
    assert not is_done(taken_over("q1", "q2"), LedgerEntry("clicks", "q3", batch_id), accept_new_checkpoint=True)


def test_the_newest_hundred_are_remembered_in_a_bounded_property() -> None:
    """Ids of queries may be long, and there may be many of them: a property of 4,000 characters is enough."""
    queries = [f"{'q' * 1000}{i}" for i in range(150)]
    properties = taken_over(*queries)
    assert max(map(len, properties.values())) - 1004 < 2_000
    for query in queries[49:149]:
        with pytest.raises(StreamMismatch, match="replaced this query"):
            is_done(properties, LedgerEntry("clicks", query, 9), accept_new_checkpoint=True)
    assert is_done(properties, LedgerEntry("clicks", queries[149], 7))


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=12))
def test_no_batch_is_taken_twice_whatever_the_order_of_programs(attempts: list[tuple[str, int]]) -> None:
    """Programs that all accept new checkpoints and replay as they like: each batch of each query lands once."""
    properties: dict[str, str] = {}
    taken: list[tuple[str, int]] = []
    for query, batch_id in attempts:
        entry = LedgerEntry("clicks", query, batch_id)
        try:
            done = is_done(properties, entry, accept_new_checkpoint=True)
        except (StreamMismatch, BatchOutOfOrder):
            continue
        if not done:
            taken.append((query, batch_id))
            properties[entry.key] = entry.after(last_of(properties, entry)).to_json()
    assert len(taken) == len(set(taken))


def test_entries_of_before_can_be_read() -> None:
    """Nothing has retired as long as nobody took over, and then the property is as earlier releases write it."""
    old = '{"version": 1, "stream-id": "clicks", "query-id": "q1", "batch-id": 7}'
    assert parse(old) == LAST
    assert LAST.to_json() == old
    later = parse(LedgerEntry("clicks", "q2", 0).after(parse(old)).to_json())
    assert later == LedgerEntry("clicks", "q2", 0, (stream_hash("q1"),))
    assert later.alone == LedgerEntry("clicks", "q2", 0)


def test_all_streams_are_listed_by_id() -> None:
    """Entries are told from other properties and sorted by stream id."""
    views = LedgerEntry("a-views", "q9", 1)
    assert entries({**PROPERTIES, views.key: views.to_json()}) == [views, LAST]


@pytest.mark.parametrize("value", ["", "7", "[]", "{}", "null", json.dumps({"version": 2, "batch-id": 3})])
def test_what_cannot_be_read_is_refused_not_skipped(value: str) -> None:
    """A damaged or newer entry stops the batch with a sentence; taken for absent it would let a batch in twice."""
    with pytest.raises(BatchError, match=r"Cannot read the ledger entry.*icesize streams TABLE"):
        is_done({LAST.key: value}, LAST)


@given(st.text(), st.text(), st.integers(min_value=0))
def test_entries_survive_their_property(stream_id: str, query_id: str, batch_id: int) -> None:
    """Any names and numbers come back, and the key is fit for a file name."""
    entry = LedgerEntry(stream_id, query_id, batch_id)
    assert parse(entry.to_json()) == entry
    assert is_done({entry.key: entry.to_json()}, entry)
    assert entry.key == f"icesize.stream.{stream_hash(stream_id)}"
    assert stream_hash(stream_id).isalnum()
    assert len(stream_hash(stream_id)) == 12
