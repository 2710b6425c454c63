"""The ledger of committed batches: equal is done, greater is next, smaller or another query is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import BatchError, BatchOutOfOrder, StreamMismatch
from icesize.table.ledger import LedgerEntry, entries, is_done, parse, stream_hash

LAST = LedgerEntry("clicks", "q1", 7)
PROPERTIES = {LAST.key: LAST.to_json(), "owner": "me", "icesize.policy.max-small-files": "4"}


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
    with pytest.raises(StreamMismatch, match=r"accept_new_checkpoint=True.*--forget clicks.*two queries"):
        is_done(PROPERTIES, LedgerEntry("clicks", "q2", batch_id))


def test_an_accepted_checkpoint_starts_its_own_count() -> None:
    """Accepted, another query may begin anywhere; the known query is still held to its order."""
    assert not is_done(PROPERTIES, LedgerEntry("clicks", "q2", 0), accept_new_checkpoint=True)
    assert is_done(PROPERTIES, LAST, accept_new_checkpoint=True)
    with pytest.raises(BatchOutOfOrder):
        is_done(PROPERTIES, LedgerEntry("clicks", "q1", 3), accept_new_checkpoint=True)


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
