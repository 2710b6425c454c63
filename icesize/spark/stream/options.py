"""Options of a sink, as plain values, validated on creation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from icesize.environment import Environment
from icesize.report import Report
from icesize.table.upserts.settings import UpsertOptions

_CHOICES = {
    "placement": ("append", "absorb"),
    "stream_safe": (True, False),
    "merge": ("inline", "async", "off"),
    "cluster": ("off", "inline", "async"),
    "statistics": ("auto", "recent", "exact"),
    "schema_evolution": ("refuse", "add"),
    "allow_duplicate_keys": (True, False),
}
_COUNTS = {
    "write_tasks": "tasks >= 1, or None: then it follows from the bytes of each batch and the cores",
    "expire_every": "batches >= 1, or None to expire snapshots only on request",
}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """Options that set how the batches of a stream are written and merged.

    Attributes:
        placement: The files for new rows. "append": few new files, and older small files are merged. "absorb": the
            partition's small file.
        stream_safe: False, with "absorb" only: rows are written once, in `overwrite` snapshots that stop stream
            readers.
        merge: The time of merges. "inline": in the commit of the batch. "async": beside the batches, in separate
            commits. "off": never in the sink.
        statistics: The method to determine the number of rows per partition before the write. "exact" counts the rows
            in one more pass over the partition columns. "recent" predicts them from recent batches; the first
            predictions use the table's history. "auto" counts only if the batch is cheap to read again, and only until
            predictions are as good.
        write_tasks: The number of Spark tasks that write a batch; None derives it from the bytes of the batch and the
            cores.
        schema_evolution: The treatment of columns that the table lacks. "refuse": the batch fails. "add": they are
            added to the table.
        accept_new_checkpoint: True accepts batches of another query under the same stream id.
        expire_every: The number of batch ids after which snapshots expire by the table's own rules; None for never. It
            counts batch ids, not calls: a query that restarts for each batch also expires snapshots.
        query_id: The id of the query; Spark Connect needs it, because Spark does not provide it there. None uses
            Spark's id, or else the stream id.
        listener: Called with the report of each batch. It is also called with the report of each background run, from
            another thread and with `batch_id` None.
        cluster: The time of clustering by the table's `icesize.cluster.by`, in separate commits. "inline": after the
            batch, limited to the bytes that its merges may rewrite. Unless `merge-budget-bytes` is set, that limit is
            at least four files of the target size. "async": beside the batches. "off": never in the sink.
        upsert: How rows with known keys replace older ones; None appends all rows.
        allow_duplicate_keys: True appends rows to a table with a key, and does not look for older rows of their keys.
        environment: Clocks and limits of this process, for tests.
    """

    placement: str = "append"
    stream_safe: bool = True
    merge: str = "inline"
    statistics: str = "auto"
    write_tasks: int | None = None
    schema_evolution: str = "refuse"
    accept_new_checkpoint: bool = False
    expire_every: int | None = None
    query_id: str | None = None
    listener: Callable[[Report], object] | None = None
    cluster: str = "off"
    upsert: UpsertOptions | None = None
    allow_duplicate_keys: bool = False
    environment: Environment = field(default_factory=Environment, repr=False)

    def __post_init__(self) -> None:
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise ValueError(f"'{name}' ({getattr(self, name)!r}) must be one of {', '.join(map(repr, allowed))}")
        if not self.stream_safe and self.placement != "absorb":
            raise ValueError(
                f"'stream_safe' (False) needs placement='absorb': with {self.placement!r} every snapshot is safe for "
                "stream readers, and there is nothing to gain from giving that up"
            )
        if not self.stream_safe and self.statistics == "recent":
            raise ValueError(
                "'statistics' ('recent') needs stream_safe=True: rows that are written together with older ones have "
                "to be counted, so that their writers know which"
            )
        if self.placement == "absorb" and self.merge != "inline":
            raise ValueError(
                f"'merge' ({self.merge!r}) must be 'inline' with placement='absorb': absorb merges with the rows, so "
                "there are no merges to make later or to leave out"
            )
        if self.upsert is not None and self.placement != "append":
            raise ValueError(
                f"'placement' ({self.placement!r}) must be 'append' with mode='upsert': merges that are due rewrite "
                "files together with their deleted rows"
            )
        if self.upsert is not None and self.allow_duplicate_keys:
            raise ValueError(
                "'allow_duplicate_keys' (True) needs mode='append': an upsert replaces the rows of its keys"
            )
        for name, meaning in _COUNTS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"'{name}' ({value!r}) must be a number of {meaning}")
