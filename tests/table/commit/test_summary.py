"""Running totals of snapshot summaries: carried on where they are known, never made up."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

from icesize.parquet.files.data_file import NewDeleteFile
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.table.records.summary import counts, with_totals

FILE = FileFact("x", 10, 100, PartitionKey(0, ()))
KNOWN = {"total-records": "500", "total-data-files": "5", "total-files-size": "5000", "total-delete-files": "0",
         "total-position-deletes": "0", "total-equality-deletes": "0"}  # fmt: skip
OPERATIONS = [Operation.APPEND, Operation.REPLACE, Operation.OVERWRITE]


def _parent(summary: Summary | None) -> Snapshot:
    return Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="m", summary=summary)


def _totals(operation: Operation, facts: dict[str, str], parent: Snapshot | None) -> dict[str, str]:
    found = with_totals(operation, facts, parent).additional_properties
    return {key: value for key, value in found.items() if key.startswith("total-")}


@pytest.mark.parametrize("operation", OPERATIONS)
@given(lost=st.sets(st.sampled_from(sorted(KNOWN))), gone=st.integers(0, 3), broken=st.booleans())
def test_totals_that_the_parent_lacks_are_left_out(
    operation: Operation, lost: set[str], gone: int, broken: bool
) -> None:
    """Those that it has are what PyIceberg makes of them; of the others, numbers or not, nothing is said."""
    facts = counts([FILE], [FILE] * gone)
    has = {**KNOWN, **dict.fromkeys(lost, "many")} if broken else {k: v for k, v in KNOWN.items() if k not in lost}
    helper = Operation.APPEND if operation == Operation.APPEND else Operation.OVERWRITE
    expected = update_snapshot_summaries(Summary(helper, **facts), KNOWN).additional_properties
    assert _totals(operation, facts, _parent(Summary(Operation.APPEND, **has))) == {
        key: expected[key] for key in KNOWN if key not in lost
    }


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_parent_without_summary_has_no_totals(operation: Operation) -> None:
    """The table holds files that nobody counted, so a sum that begins at zero would be wrong."""
    for parent in (_parent(None), _parent(Summary(Operation.APPEND))):
        assert _totals(operation, counts([FILE]), parent) == {}


def test_the_first_snapshot_begins_at_zero() -> None:
    """A table without snapshots holds nothing, and its first one knows all totals."""
    known = {"total-records": "100", "total-data-files": "1", "total-files-size": "10"}
    assert _totals(Operation.APPEND, counts([FILE]), None) == {**dict.fromkeys(KNOWN, "0"), **known}


def test_totals_below_nothing_are_left_out() -> None:
    """A parent that counted too little says so by a negative sum; Iceberg leaves that one out."""
    wrong = {**KNOWN, "total-records": "50"}
    found = _totals(Operation.REPLACE, counts([], [FILE]), _parent(Summary(Operation.APPEND, **wrong)))
    assert "total-records" not in found
    assert found["total-data-files"] == "4"


def test_new_deletes_count_by_their_kind() -> None:
    """By position and by equality, in files and in deleted rows; files of both have one sum."""
    key = FILE.partition
    new = [NewDeleteFile("p", 1, 2, key, deletes_of="x"), NewDeleteFile("e", 10, 30, key, equality_ids=(1,))]
    facts = counts([], new_deletes=new)
    assert facts == {
        "added-files-size": "11",
        "added-delete-files": "2",
        "added-position-delete-files": "1",
        "added-position-deletes": "2",
        "added-equality-delete-files": "1",
        "added-equality-deletes": "30",
        "changed-partition-count": "1",
    }
    totals = _totals(Operation.OVERWRITE, facts, None)
    assert (totals["total-delete-files"], totals["total-equality-deletes"]) == ("2", "30")


def test_vectors_count_as_icebergs() -> None:
    """They are position deletes in files of their own kind, and no longer than their part of a Puffin file."""
    path, key = "v.puffin", FILE.partition
    new = [NewDeleteFile(path, 900, rows, key, content_offset=4, content_size_bytes=40) for rows in (2, 3)]
    old = DeleteFile(path, 900, 1, key, 1, "PUFFIN", content_offset=44, content_size_bytes=50)
    assert counts([], deletes=[old], new_deletes=new) == {
        "added-files-size": "80",
        "added-delete-files": "2",
        "added-dvs": "2",
        "added-position-deletes": "5",
        "removed-files-size": "50",
        "removed-delete-files": "1",
        "removed-dvs": "1",
        "removed-position-deletes": "1",
        "changed-partition-count": "1",
    }
