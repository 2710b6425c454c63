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
    """The options of a sink, as `SizedTable.sink` explains them.

    `upsert` has those of upserts; None appends all rows. `environment` has the clocks and limits of this process.
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
