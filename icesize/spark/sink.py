"""The function for `foreachBatch`: a plain value of names and options, so that Spark can pickle it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from icesize.environment import Environment
from icesize.errors import BatchError
from icesize.report import Report
from icesize.spark import runtime, session
from icesize.spark.batch import BatchOptions, run_batch
from icesize.table.ledger import LedgerEntry

LOG = logging.getLogger("icesize")

_CHOICES = {
    "placement": ("append",),
    "merge": ("inline", "off"),
    "schema_evolution": ("refuse", "add"),
}


@dataclass(frozen=True)
class Sink:
    """Takes micro-batches of one stream into one table, each exactly once: `sink(df, batch_id)`.

    It holds names and options only. What makes it fast (manifests read, catalog sessions) stays in the process that
    runs it; on Spark Connect that is the server's, so `last_report` is None on the client there.
    """

    source: runtime.TableSource
    stream_id: str
    placement: str = "append"
    merge: str = "inline"
    schema_evolution: str = "refuse"
    accept_new_checkpoint: bool = False
    query_id: str | None = None
    listener: Callable[[Report], object] | None = None
    environment: Environment = field(default_factory=Environment, repr=False)

    def __post_init__(self) -> None:
        if not self.stream_id:
            raise ValueError("Cannot make a sink: 'stream_id' is empty, and it is what makes replayed batches known")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"'{name}' ({getattr(self, name)!r}) must be one of {', '.join(map(repr, allowed))}")

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Commit the batch, or find that it is committed. Raises what the README lists; then nothing is visible."""
        self.run(df, batch_id)

    def run(self, df: DataFrame, batch_id: int) -> Report:
        """The same, returning the report."""
        if not isinstance(batch_id, int) or batch_id < 0:
            raise BatchError(f"Cannot commit batch {batch_id!r}: a batch id is a number from 0 on")
        state = self._state
        query_id = self.query_id or session.query_id_of(df.sparkSession) or self.stream_id
        options = BatchOptions(
            self.source, self.merge, self.schema_evolution, self.accept_new_checkpoint,
            LedgerEntry(self.stream_id, query_id, batch_id), self.environment,
        )  # fmt: skip
        report = run_batch(df, options, state)
        state.last_report = report
        LOG.info("%s: %s", report.table, report)
        self._tell(report)
        return report

    @property
    def last_report(self) -> Report | None:
        """What the newest batch in this process came to; None before the first."""
        return self._state.last_report

    @property
    def _state(self) -> runtime.StreamState:
        return runtime.state_of(self.source, self.stream_id)

    def _tell(self, report: Report) -> None:
        """The batch is committed: a listener that fails must not make Spark replay it."""
        if self.listener is not None:
            try:
                self.listener(report)
            except Exception:
                LOG.exception("the listener failed after batch %s was committed", report.batch_id)
