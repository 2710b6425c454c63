"""What a snapshot summary says of files and rows, under Iceberg's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pyiceberg.table.snapshots import Operation, Snapshot, Summary, update_snapshot_summaries

from icesize.parquet.written import WrittenFile
from icesize.planning.layout import FileFact


def counts(added: Sequence[WrittenFile | FileFact], removed: Sequence[FileFact] = ()) -> dict[str, str]:
    """What one snapshot adds and removes; what there is none of is left out."""
    numbers = {
        "added-data-files": len(added),
        "added-records": sum(f.rows for f in added),
        "added-files-size": sum(f.size_bytes for f in added),
        "deleted-data-files": len(removed),
        "deleted-records": sum(f.rows for f in removed),
        "removed-files-size": sum(f.size_bytes for f in removed),
        "changed-partition-count": len({f.partition for f in added} | {f.partition for f in removed}),
    }
    return {k: str(v) for k, v in numbers.items() if v}


def with_totals(operation: Operation, facts: Mapping[str, str], parent: Snapshot | None) -> Summary:
    """A summary with running totals; PyIceberg's helper knows no REPLACE, whose totals are those of an overwrite."""
    helper = Operation.APPEND if operation == Operation.APPEND else Operation.OVERWRITE
    totals = update_snapshot_summaries(
        Summary(helper, **dict(facts)), parent.summary.additional_properties if parent and parent.summary else None
    )
    return Summary(operation, **totals.additional_properties)
