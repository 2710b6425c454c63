"""How large rows are before a batch has told: by the policy, or by the table's files."""

from __future__ import annotations

import pytest

from icesize.planning.files import Head, Layout, PartitionFacts, PartitionKey, Partitions
from icesize.policy import SizePolicy
from icesize.spark.routing.learning import Learned


def layout(*partitions: tuple[int, float, int]) -> Layout:
    """A table of files of a million rows: (spec id, bytes per row, commits since the newest rows) by partition."""
    facts = {
        (key := PartitionKey(spec, (number,))): PartitionFacts(
            key, f"n={number}", 1, int(size * 10**6), 10**6, (), -commits
        )
        for number, (spec, size, commits) in enumerate(partitions)
    }
    return Layout(Head(1, 1), 0, 2**20, Partitions.of(facts))


def bytes_per_row(files: Layout, policy: SizePolicy | None = None) -> float | None:
    """What is known of rows when there was no batch."""
    sizes = Learned().sizes(policy or SizePolicy(), files)
    return sizes.table.bytes_per_row if sizes.is_known else None


def test_recently_written_partitions_tell() -> None:
    """Rows are like those of the partitions that are not cold; like all of them where all are."""
    assert bytes_per_row(layout((0, 100, 0), (0, 400, 50))) == pytest.approx(100, rel=0.01)
    assert bytes_per_row(layout((0, 100, 60), (0, 400, 50))) == pytest.approx(160, rel=0.01)


def test_files_of_other_specs_and_an_empty_table_tell_nothing() -> None:
    """Only files of the current spec count; without any nothing is known."""
    assert bytes_per_row(layout((1, 400, 0), (0, 100, 50))) == pytest.approx(100, rel=0.01)
    assert bytes_per_row(layout((1, 400, 0))) is None
    assert bytes_per_row(layout()) is None


def test_the_policy_pins_the_size() -> None:
    """What the policy says is not learned."""
    assert bytes_per_row(layout((0, 100, 0)), SizePolicy(bytes_per_row=7)) == 7
