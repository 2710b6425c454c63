"""The rule by which the rows of a table are replaced: its key, its order, and the events that delete rows.

The rule is a property of the table. All writers of icesize follow it, so that a key has one live row.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from icesize.errors import PolicyError
from icesize.policy import SizePolicy

PROPERTY = "icesize.upsert"
"""The table property that has the rule, as JSON."""
VERSION = 1

TIES = ("error", "last_delete", "max_row")
"""The treatment of different events of one key that have the same order.

"error": the batch is refused. "last_delete": a delete wins; without one, the batch is refused. "max_row": a delete
wins; without one, the greatest row wins, compared column by column.
"""


DEAD_SHARE, DEAD_SPREAD = 0.2, 0.4
"""In a table with upserts, a file is due between 12 and 20 % deleted rows, unless the policy has another threshold.

At 20 %, five rows are rewritten for each deleted one, and a scan reads a quarter more than it returns. Files of equal
size, in which each batch deletes equally many rows, do not fall due in one batch.
"""


def policy_in(properties: Mapping[str, str], policy: SizePolicy) -> SizePolicy:
    """Return the policy for a table with these properties: with upserts, deletes fall due earlier.

    A threshold or a spread that the user has set stays.
    """
    if PROPERTY not in properties or "delete_ratio_threshold" in policy.given:
        return policy
    spread = {} if "delete_ratio_spread" in policy.given else {"delete-ratio-spread": DEAD_SPREAD}
    return policy.changed({"delete-ratio-threshold": DEAD_SHARE, **spread})


@dataclass(frozen=True)
class UpsertRule:
    """The rule by which events of one key become one row. Columns are field ids, so that renames do not change it.

    Attributes:
        key: The columns that identify a row.
        order: The columns by which a later event is recognized, the first one first; empty for the order of arrival.
        delete_when: The condition on the columns of a batch that makes an event a delete; None if no event is.
        ties: One of `TIES`.
        tombstones_ms: How long deletes are remembered, so that older events that come later are left out; None: not.
    """

    key: tuple[int, ...]
    order: tuple[int, ...] = ()
    delete_when: str | None = None
    ties: str = "error"
    tombstones_ms: int | None = None

    def __post_init__(self) -> None:
        if self.ties not in TIES:
            raise ValueError(f"'ties' ({self.ties!r}) must be one of {', '.join(map(repr, TIES))}")
        if self.tombstones_ms is not None and not self.order:
            raise ValueError("'tombstones' needs 'order_by': without an order, no event is older than a delete")

    @cached_property
    def bounded(self) -> tuple[int, ...]:
        """The columns whose bounds show whether a file may have a key, and newer rows: each of them once."""
        return tuple(dict.fromkeys((*self.key, *self.order[:1])))

    def to_json(self) -> str:
        """Return the value of the property; `version` lets later releases change the format."""
        facts: dict[str, Any] = {"version": VERSION, "key": self.key}
        facts |= {"order": self.order} if self.order else {}
        facts |= {"delete-when": self.delete_when} if self.delete_when is not None else {}
        facts |= {} if self.tombstones_ms is None else {"tombstones-ms": self.tombstones_ms}
        return json.dumps({**facts, "ties": self.ties})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> UpsertRule | None:
        """Return the rule of a table with these properties; None if it has none.

        Raises PolicyError for a value that this release cannot read.
        """
        text = properties.get(PROPERTY)
        if text is None:
            return None
        try:
            facts = json.loads(text)
            if facts["version"] != VERSION:
                raise ValueError(f"version {facts['version']}")
            key, order = (tuple(map(int, facts.get(name, ()))) for name in ("key", "order"))
            if not key:
                raise ValueError("it has no key")
            delete_when, horizon_ms = facts.get("delete-when"), facts.get("tombstones-ms")
            return cls(
                key, order, None if delete_when is None else str(delete_when), str(facts.get("ties", "error")),
                None if horizon_ms is None else int(horizon_ms),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise PolicyError(
                f"Cannot read '{PROPERTY}' ({text!r}): {error}; a newer icesize may have written it, or it was edited "
                "by hand. Remove the property, and pass the key again",
                key=PROPERTY,
                value=text,
            ) from error

    def carries_deletes_of(self, earlier: UpsertRule) -> bool:
        """Return whether deletes that are remembered by an earlier rule compare with events by this one.

        They have the earlier rule's columns. So the key must have the same columns, and the order may only gain or lose
        columns at its end.
        """
        same = min(len(self.order), len(earlier.order))
        has_same_order = same > 0 and self.order[:same] == earlier.order[:same]
        return self.tombstones_ms is not None and has_same_order and set(self.key) == set(earlier.key)

    def differences(self, other: UpsertRule, names: Mapping[int, str]) -> list[str]:
        """Return sentences' parts about what differs: "'key' is (id) in the table and (id, day) here".

        `names` are the columns' names by field id.
        """

        def listed(field_ids: tuple[int, ...]) -> str:
            return f"({', '.join(names.get(each, f'field {each}') for each in field_ids)})"

        pairs = [
            ("key", listed(self.key), listed(other.key)),
            ("order_by", listed(self.order), listed(other.order)),
            ("delete_when", repr(self.delete_when), repr(other.delete_when)),
            ("ties", repr(self.ties), repr(other.ties)),
            ("tombstones", _horizon(self.tombstones_ms), _horizon(other.tombstones_ms)),
        ]
        return [f"'{name}' is {mine} in the table and {theirs} here" for name, mine, theirs in pairs if mine != theirs]


def _horizon(duration_ms: int | None) -> str:
    return "off" if duration_ms is None else f"{duration_ms / 1000:g} s"
