"""Changes of accounts for the story of upserts: updates, new accounts, deletes and late events, and what they leave.

A batch is a function of its number and of the batches before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

FIRST_BATCHES = 20
"""The number of batches whose rows the table begins with."""
_DELETED, _NEW, _LATE = 0.03, 0.03, 0.02
"""Shares of deletes, of new accounts and of late events in a batch; the other events are updates."""
_SEED = 3


@dataclass
class Accounts:
    """The accounts after the changes so far: the order of the newest change by id.

    Attributes:
        rows: Events of a batch.
        newest: Id -> the order of the account's newest change.
    """

    rows: int
    newest: dict[int, int] = field(default_factory=dict)

    def first(self) -> pa.Table:
        """Return the first accounts, of order 0."""
        ids = range(FIRST_BATCHES * self.rows)
        self.newest = dict.fromkeys(ids, 0)
        return _events(list(ids), [0] * len(ids), ["c"] * len(ids))

    def batches(self, count: int) -> Iterator[pa.Table]:
        """Yield batches of changes, each with at most one event per account."""
        rng = np.random.default_rng(_SEED)
        for number in range(count):
            yield self._batch(rng, 1 + number * self.rows)

    def _batch(self, rng: np.random.Generator, order: int) -> pa.Table:
        known = rng.permutation(np.fromiter(self.newest, np.int64, len(self.newest)))
        late = [key for key in known.tolist() if self.newest[key] > 1][: int(self.rows * _LATE)]
        others = np.setdiff1d(known, late, assume_unique=True)
        new = (max(self.newest) + 1 + np.arange(int(self.rows * _NEW))).tolist()
        changed = rng.permutation(others)[: self.rows - len(new) - len(late)].tolist()
        deleted = int(self.rows * _DELETED)
        ids = [*changed, *new, *late]
        operations = ["d"] * deleted + ["u"] * (len(changed) - deleted) + ["c"] * len(new) + ["u"] * len(late)
        orders = [*range(order, order + len(changed) + len(new)), *([1] * len(late))]
        for key in changed[:deleted]:
            del self.newest[key]
        self.newest |= dict(zip([*changed[deleted:], *new], orders[deleted:], strict=False))
        return _events(ids, orders, operations)


def _events(ids: Sequence[int], orders: Sequence[int], operations: Sequence[str]) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "change": pa.array(orders, pa.int64()),
            "balance": pa.array([(key * 31 + order * 17) % 100_000 for key, order in zip(ids, orders, strict=True)]),
            "owner": pa.array([f"owner {key * 2_654_435_761 % 10**12:012}" for key in ids]),
            "op": pa.array(operations),
        }
    )
