"""Options of a sink, as plain values, checked when they are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from icesize.environment import Environment
from icesize.report import Report

_CHOICES = {
    "placement": ("append", "absorb"),
    "stream_safe": (True, False),
    "merge": ("inline", "async", "off"),
    "cluster": ("off", "inline", "async"),
    "statistics": ("auto", "recent", "exact"),
    "schema_evolution": ("refuse", "add"),
}
_COUNTS = {
    "write_tasks": "tasks >= 1, or None: then it follows from the bytes of each batch and the cores",
    "expire_every": "batches >= 1, or None to expire snapshots only on request",
}


@dataclass(frozen=True, kw_only=True)
class SinkOptions:
    """How the batches of a stream are written and merged.

    placement         "append": new rows become few files, older small ones are merged; "absorb": new rows end up in the
                      partition's small file
    stream_safe       False, with "absorb" only: rows are written once, in `overwrite` snapshots that end stream readers
    merge             "inline": in the commit of the batch; "async": beside the batches, with commits of its own, also
                      heard by the listener (`batch_id` None, from another thread); "off"
    cluster           lay rows out by the table's `icesize.cluster.by`, with commits of their own: "inline": after the
                      batch, as much as its merges may rewrite; "async": beside the batches; "off"
    statistics        how rows per partition are known before they are written: "exact": counted, by one more pass over
                      the columns of the partition values; "recent": expected from the last batches, those of the table
                      at first; "auto": counted only where reading again is cheap, and only until expecting is as good
    write_tasks       Spark tasks that write a batch; None: by its bytes and the cores
    schema_evolution  columns that the table lacks: "refuse" the batch, or "add" them
    expire_every      batch ids after which snapshots are expired by the table's own rules; None: never. Ids are
                      counted, not calls, so that a query that is started anew for each batch expires too
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
        for name, meaning in _COUNTS.items():
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise ValueError(f"'{name}' ({value!r}) must be a number of {meaning}")
