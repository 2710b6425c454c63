"""By what a table is clustered, and what planning knows of the files of such a table."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from icesize.planning.files import FileFact
from icesize.policy import ignored

SORT, ZORDER, HILBERT = "sort", "zorder", "hilbert"
STRATEGIES = (SORT, ZORDER, HILBERT)

NEW_SHARE = 0.2
"""New bytes, per byte of the set they are to join, from which on both are written anew. Bytes are then written at most
1 + 1 / 0.2 = 6 times, on average over a set, until it is sealed, and never again."""

FULL_SET_TARGETS = 64
"""Files of the target size after which a set is sealed: 32 GiB at 512 MiB. Delta closes its Z-cubes at 100 GB."""

Bounds: TypeAlias = "tuple[Any, Any] | tuple[()] | None"
"""Lowest and highest value of a column in one file, both inclusive, as plain comparable values of one type; empty where
the file has no value that a comparison can find (nulls only); None where they are not known."""


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """The layout that is wanted: `columns` by their names, `field_ids` theirs, the first one weighing most in a sort.

    Files that were clustered together are a *set*. A set takes new files in when these have `new_share` of its bytes,
    until it has `sealed_set_bytes`.
    """

    columns: tuple[str, ...]
    field_ids: tuple[int, ...]
    strategy: str
    sealed_set_bytes: int
    new_share: float = NEW_SHARE

    @property
    def key(self) -> str:
        """Eight hexadecimal digits that tell layouts apart; file names have them."""
        text = f"{self.strategy} {self.field_ids}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def __str__(self) -> str:
        return f"{self.strategy} by {', '.join(self.columns)}"


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """One live data file of any size, with the `bounds` of each column that the table is clustered by.

    `set_id` names the set that the file was written in, None for a file that was not clustered, or by other columns;
    `full` says that this set was sealed when it was written.
    """

    fact: FileFact
    bounds: tuple[Bounds, ...]
    set_id: str | None = None
    full: bool = False


BY_PROPERTY = "icesize.cluster.by"
STRATEGY_PROPERTY = "icesize.cluster.strategy"
FIELD_IDS_PROPERTY = "icesize.cluster.field-ids"
"""`1:user_id,3:event_time`: which columns the names of `icesize.cluster.by` meant when they were stored. They stand
here too, as ids hold for the names beside them only: somebody may still set others by hand."""
NEW_SHARE_PROPERTY = "icesize.cluster.new-share"
SEALED_SET_PROPERTY = "icesize.cluster.full-set-bytes"
KNOWN = (BY_PROPERTY, STRATEGY_PROPERTY, FIELD_IDS_PROPERTY, NEW_SHARE_PROPERTY, SEALED_SET_PROPERTY)
PROPERTY_PREFIX = "icesize.cluster."


def unknown_properties(properties: Mapping[str, str]) -> list[str]:
    """Sentences about properties that look like settings of clustering and are none that this version knows."""
    mine = (name for name in properties if name.startswith(PROPERTY_PREFIX) and name not in KNOWN)
    return [ignored(name, KNOWN) for name in sorted(mine)]
