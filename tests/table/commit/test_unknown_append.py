"""The advice after an append with an unknown outcome."""

from __future__ import annotations

import pytest

from icesize.environment import Environment, Stopwatch
from icesize.errors import CommitStateUnknown
from icesize.parquet.files.data_file import Written
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.merging.planner import plan_merges
from icesize.policy import SizePolicy
from icesize.storage.table_storage import Storage
from icesize.table.commit.batch_commit import Batch, commit_written
from icesize.table.commit.batch_report import MergeResults, WrittenBatch
from icesize.table.records.ledger import LedgerEntry
from icesize.table.state.handle import TableHandle
from tests.support.rest_faults import Fault
from tests.support.rest_server import MiniRest
from tests.support.tables import layout_of, make_table, write


@pytest.mark.parametrize(
    ("entry", "advice"),
    [
        (None, "only if there is none, append the rows again"),
        (LedgerEntry("clicks", "q", 0), "running the same batch again is safe"),
    ],
)
def test_only_a_batch_of_a_stream_is_safe_to_repeat(mini: MiniRest, entry: LedgerEntry | None, advice: str) -> None:
    """Without an entry in the ledger, a second append adds its rows again, so the message asks for a look first."""
    table = make_table(mini.catalog("lake"), properties={"icesize.policy.commit-deadline-ms": "1"})
    handle, layout, environment = TableHandle(mini.catalog("lake"), ("db", "t")), layout_of(table), Environment()
    plan, rows = plan_merges(layout, SizePolicy()), Written((write(table, [1]),))
    written = WrittenBatch(handle.load(), layout, plan, MergeResults(()), rows)
    batch = Batch(handle, environment, Stopwatch(environment), entry)
    mini.fail_next_commit(*[Fault(503)] * 30)
    with pytest.raises(CommitStateUnknown, match=advice):
        commit_written(written, batch, Uncommitted(Storage.of(table.io), "p"), environment)
