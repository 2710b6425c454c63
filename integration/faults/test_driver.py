"""Faults of the process that drives a stream: it is killed, and a real child process goes on from its checkpoint."""

from __future__ import annotations

import pytest

from integration.faults.story import Story
from tests.spark.tools import events


@pytest.mark.fault(15)
def test_a_replayed_batch_is_skipped(story: Story) -> None:
    """A batch that is delivered again after its commit is skipped, and the report says so."""
    sink = story.sized().sink("s", query_id="q", listener=story.reports.append)
    rows = events(range(30), hours=3)
    sink.run(story.batch(rows), 0)
    assert sink.run(story.batch(rows), 0).already_committed
    story.expect(rows)
