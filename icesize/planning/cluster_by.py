"""The columns that a table is clustered by, and the facts about its files that clustering needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from icesize.planning.files import FileFact
from icesize.policy import ignored

SORT, ZORDER, HILBERT = "sort", "zorder", "hilbert"
STRATEGIES = (SORT, ZORDER, HILBERT)

MOST_CURVE_COLUMNS = 4
"""Most columns of a curve.

Each further column makes a curve narrow every one less: a point query on one of d columns opens n^((d-1)/d) of n files.
"""

NEW_SHARE = 0.2
"""New bytes, per byte of the set that they join, from which on icesize rewrites both together. On average over a set,
bytes are then written at most 1 + 1 / 0.2 = 6 times until the set is full, and never again.
"""

FULL_SET_TARGETS = 64
"""Files of the target size from which on a set is full: 32 GiB at 512 MiB. Delta closes its Z-cubes at 100 GB."""

Bounds: TypeAlias = "tuple[Any, Any] | tuple[()] | None"
"""Lowest and highest value of a column in one file, both inclusive, as plain comparable values of one type.

Empty if the file has no value that a comparison can find (nulls only); None if the bounds are unknown.
"""


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """The requested clustering: `columns` by their names and, in the same order, their `field_ids`.

    The first column weighs most in a sort. Files that were clustered together are a *set*. A set accepts new files when
    they have `new_share` of its bytes, until it has `sealed_set_bytes`.
    """

    columns: tuple[str, ...]
    field_ids: tuple[int, ...]
    strategy: str
    sealed_set_bytes: int
    new_share: float = NEW_SHARE

    @property
    def key(self) -> str:
        """Eight hexadecimal digits that identify the strategy and its columns. They are part of file names."""
        text = f"{self.strategy} {self.field_ids}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.strategy} by {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """One live data file of any size, with the `bounds` of each column that the table is clustered by.

    `set_id` identifies the set that the file was written in. It is None for a file that was not clustered, or was
    clustered by other columns. `full` is True if this set was full when it was written.
    """

    fact: FileFact
    bounds: tuple[Bounds, ...]
    set_id: str | None = None
    full: bool = False


BY_PROPERTY = "icesize.cluster.by"
STRATEGY_PROPERTY = "icesize.cluster.strategy"
FIELD_IDS_PROPERTY = "icesize.cluster.field-ids"
"""`1:user_id,3:event_time`: the field ids that the names of `icesize.cluster.by` had when they were stored.

The names are repeated here because the ids are valid for these names only: a user may edit `icesize.cluster.by`.
"""
NEW_SHARE_PROPERTY = "icesize.cluster.new-share"
SEALED_SET_PROPERTY = "icesize.cluster.full-set-bytes"
KNOWN = (BY_PROPERTY, STRATEGY_PROPERTY, FIELD_IDS_PROPERTY, NEW_SHARE_PROPERTY, SEALED_SET_PROPERTY)
PROPERTY_PREFIX = "icesize.cluster."


def unknown_properties(properties: Mapping[str, str]) -> list[str]:
    """Return sentences about properties with the prefix `icesize.cluster.` that this version does not support."""
    mine = (name for name in properties if name.startswith(PROPERTY_PREFIX) and name not in KNOWN)
    return [ignored(name, KNOWN) for name in sorted(mine)]
