"""Some streams of upserts whose tables must stay small; `python -m integration.keyed.growth` runs more and longer."""

from __future__ import annotations

import pytest

from integration.keyed.growth import Stream, run

STREAMS = {
    "vectors of some files are replaced": Stream(3, 1, 300, 9, has_large=False, is_young=False),
    "one large file in each of 16 partitions": Stream(2, 16, 10_000, 1, has_large=True, is_young=False),
    "one large file in each of 17 partitions": Stream(2, 17, 10_000, 1, has_large=True, is_young=False),
    "young keys": Stream(3, 3, 300, 20, has_large=True, is_young=True),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_table_stays_small_under_a_long_stream(name: str) -> None:
    """Files, delete files, dead rows, manifests and the bytes written for a batch stay within their bounds."""
    run(STREAMS[name], batches=16)
