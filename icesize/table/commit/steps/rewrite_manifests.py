"""The same files in fewer manifests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.manifest import ManifestFile
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.packing import worth_packing
from icesize.table.manifests.writer import target_manifest_bytes
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class RewriteManifests(Step):
    """Merge small data manifests, sorted by partition, if that reduces their number.

    Delete manifests stay. Data manifests filled to half of `commit.manifest.target-size-bytes` also stay. Entries are
    copied as bytes. Their numbers, their snapshots and the table's totals stay unchanged.
    """

    kind = CommitKind.MANIFESTS

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        created: list[ManifestFile] = []
        replaced: set[str] = set()
        for spec_id, small in worth_packing(builder.manifests, target_manifest_bytes(builder.metadata)).items():
            if packed := builder.packed(spec_id, small):
                created += packed
                replaced |= {m.manifest_path for m in small}
        if not replaced:
            return None
        kept = [m for m in builder.manifests if m.manifest_path not in replaced]
        facts = {
            "manifests-created": len(created),
            "manifests-kept": len(kept),
            "manifests-replaced": len(replaced),
            "entries-processed": sum(m.existing_files_count or 0 for m in created),
        }
        named = {key: str(value) for key, value in facts.items()}
        return builder.finish(Operation.REPLACE, [*created, *kept], {**named, **summary})
