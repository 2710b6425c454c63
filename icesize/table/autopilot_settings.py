"""The choices of the autopilot for a table: kept as one table property, and stored together with the clustering.

Some catalogs keep at most 4,000 characters in a property: reads of few kinds need less than half.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pyiceberg.table.update import (
    AssertCurrentSchemaId,
    RemovePropertiesUpdate,
    SetPropertiesUpdate,
    TableUpdate,
)

from icesize.planning.cluster_by import ClusterBy
from icesize.planning.reads import Reads
from icesize.policy import AUTO_PROPERTY
from icesize.table.cluster_settings import stored_columns, stored_keys, to_properties
from icesize.table.commit.loaded import Loaded, Staged
from icesize.table.commit.metadata_change import MetadataChange

VERSION = 1


@dataclass(frozen=True)
class AutopilotRecord:
    """The choices of the autopilot.

    Attributes:
        looked_ms: The time at which it last compared settings.
        changed_ms: The time at which it last changed one; 0 if it never did.
        policy: The policy keys that it set.
        cluster_by: The columns by which it lets the table be clustered.
        reads: The reads of the newest log of queries; empty if there was none.
        why: The reason for its last change.
        missed: What other settings would have saved since they first cost least, in USD or seconds.
    """

    looked_ms: int = 0
    changed_ms: int = 0
    policy: Mapping[str, int] = field(default_factory=dict)
    cluster_by: tuple[str, ...] = ()
    reads: tuple[Reads, ...] = ()
    why: str = ""
    missed: float = 0.0

    def to_json(self) -> str:
        """Return the property's value; `version` lets later releases change the format."""
        facts: dict[str, Any] = {"version": VERSION, "looked-ms": self.looked_ms, "changed-ms": self.changed_ms}
        facts |= {"policy": dict(self.policy), "cluster-by": self.cluster_by, "why": self.why, "missed": self.missed}
        return json.dumps({**facts, "reads": [each.to_dict() for each in self.reads]})

    @classmethod
    def of(cls, properties: Mapping[str, str]) -> AutopilotRecord:
        """Return the record of a table; an empty one if there is none, or one that this version cannot read."""
        try:
            facts = json.loads(properties[AUTO_PROPERTY])
            return cls(
                int(facts["looked-ms"]), int(facts["changed-ms"]), dict(facts["policy"]),
                tuple(facts["cluster-by"]), tuple(map(Reads.of, facts["reads"])), str(facts["why"]),
                float(facts["missed"]),
            )  # fmt: skip
        except (KeyError, TypeError, ValueError, AttributeError):
            return cls()


def keep_choice(
    record: AutopilotRecord, by: ClusterBy | None, old: AutopilotRecord, run_id: str
) -> MetadataChange[bool]:
    """Return the change that stores a record; its result is False if another process stored one after `old`.

    If the clustering changed, the table is clustered by `by` from then on, or no longer for None. A clustering that
    another program stored after `old` stays. The table's sort order stays, too: other writers need not sort.
    """
    value = record.to_json()

    def build(loaded: Loaded) -> tuple[Staged | None, bool]:
        metadata = loaded.table.metadata
        if AutopilotRecord.of(metadata.properties) != old:
            return None, False
        properties, updates = {AUTO_PROPERTY: value}, list[TableUpdate]()
        if record.cluster_by != old.cluster_by and stored_columns(metadata) == old.cluster_by:
            properties |= to_properties(by, metadata) if by else {}
            updates += [] if by else [RemovePropertiesUpdate(removals=stored_keys(metadata))]
        same_schema = AssertCurrentSchemaId(current_schema_id=metadata.current_schema_id)
        return loaded.staged([SetPropertiesUpdate(updates=properties), *updates], same_schema), True

    advice = f"Look whether the table's properties have {AUTO_PROPERTY}; choosing again is safe"
    return MetadataChange(run_id, advice, build, lambda loaded: loaded.properties.get(AUTO_PROPERTY) == value)
