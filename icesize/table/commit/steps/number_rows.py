"""Row ids for the rows of a table that was upgraded to format v3."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyiceberg.manifest import ManifestContent
from pyiceberg.table.snapshots import Operation, Snapshot

from icesize.parquet.files.lineage_fields import FIRST_WITH_LINEAGE
from icesize.table.commit.protocol import Step
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.manifests.manifest_lists import first_row_id_of
from icesize.table.records.summary import CommitKind


@dataclass(frozen=True)
class NumberRows(Step):
    """List the same manifests again, if some of them have no row ids: the new list assigns them.

    Without that, files of different commits could not be merged: the ids of their rows are not known.
    """

    kind = CommitKind.ROW_IDS

    def stage(self, builder: SnapshotBuilder, summary: Mapping[str, str]) -> Snapshot | None:
        data = (manifest for manifest in builder.manifests if manifest.content == ManifestContent.DATA)
        has_ids = builder.metadata.format_version >= FIRST_WITH_LINEAGE
        if not has_ids or all(first_row_id_of(manifest) is not None for manifest in data):
            return None
        return builder.finish(Operation.REPLACE, builder.manifests, dict(summary))
