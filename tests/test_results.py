"""Results are documents, and those of rounds are one."""

from __future__ import annotations

from icesize.report import Report
from icesize.results import Advice, document

MARKED = {
    "rows_deleted", "files_added", "files_removed", "bytes_written", "bytes_copied", "bytes_decoded", "pages_copied",
    "partitions_touched", "metadata_bytes_written",
}  # fmt: skip
"""Numbers of a report that rounds have a share in; of all others the last round has the newest."""


def round_of(number: int) -> Report:
    """A round in which every number is this one, and that names itself in every tuple."""
    numbers = {name: number for name, value in Report().to_dict().items() if type(value) is int}
    clustering = {"columns": ("a",), "before": {"a": number}, "after": {"a": number}, "new_bytes": 2 * number}
    return Report(
        "t", snapshot_ids=(number,), operations=("replace",), conflicts=("lost",), notes=("slow", f"round {number}"),
        seconds={"merge": number / 3, "total": number}, decode_reasons={"tiny": number, f"because {number}": 1},
        skipped={"TOO_FEW": number}, clustering={**clustering, "amplification": 9.0}, **numbers,
    )  # fmt: skip


def test_rounds_are_one_call() -> None:
    """Shares are added up, sentences joined, a note that all rounds have is there once, and the rest is the last's."""
    whole = Report.together([round_of(1), round_of(4)])
    assert {name for name in Report().to_dict() if getattr(whole, name) == 5} == MARKED
    assert (whole.snapshot_ids, whole.operations, whole.conflicts) == ((1, 4), ("replace", "replace"), ("lost", "lost"))
    assert whole.notes == ("slow", "round 1", "round 4")
    assert whole.seconds == {"merge": 1.6667, "total": 5}
    assert whole.decode_reasons == {"tiny": 5, "because 1": 1, "because 4": 1}
    assert (whole.rows, whole.small_files_max, whole.skipped) == (4, 4, {"TOO_FEW": 4})
    # from before the first round to after the last one; 5 bytes were written for 10 new ones
    assert whole.clustering == {
        "columns": ("a",), "before": {"a": 1}, "after": {"a": 4}, "new_bytes": 10, "amplification": 0.5,
    }  # fmt: skip


def test_ids_in_documents_are_texts() -> None:
    """Also those of results within results; what is no id stays a number."""
    inner = Report(snapshot_ids=(2**62,), batch_id=7)
    assert document({"merges": (inner,)})["merges"][0]["snapshot_ids"] == [str(2**62)]
    assert inner.to_dict()["batch_id"] == 7
    assert document([Advice("do it", "icesize compact t")]) == [{"sentence": "do it", "command": "icesize compact t"}]
