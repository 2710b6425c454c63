"""Columns worth clustering by, and the files that queries would skip, estimated from metadata and bounds."""

from __future__ import annotations

from collections.abc import Iterator

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    DateType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    UUIDType,
)

from icesize.planning.advice.clustering import ColumnCandidate, advise_clustering
from icesize.planning.cluster_by import BY_PROPERTY, SORT, ClusterBy
from icesize.planning.files import Layout
from icesize.results import Advice
from icesize.table.manifests.store import store_of
from icesize.table.state.cluster_reader import ClusterReader
from icesize.table.state.filter_scan import partition_columns
from icesize.table.state.handle import Current
from icesize.table.state.live_files import Keep

MOST_FILES = 10_000
"""Most files whose bounds are read for unrequested advice. Measured: half a second of CPU time."""
MOST_COLUMNS = 16
"""Most columns whose bounds are compared; columns with a reason in the table's metadata come first."""

_ASKED_FOR = (IntegerType, LongType, DateType, TimestampType, TimestamptzType, StringType, UUIDType)
"""Types of columns that queries filter by single values: no measures, no columns with only two values."""


def columns_advised(current: Current, layout: Layout, keep: Keep = lambda manifest: True) -> tuple[Advice, ...]:
    """Return at most one piece of advice. Manifests that `keep` rejects are not read.

    There is none for a table with clustering properties or with more than 10,000 files. Raises TableError if storage
    does not return manifests.
    """
    metadata = current.table.metadata
    if BY_PROPERTY in metadata.properties or layout.files > MOST_FILES:
        return ()
    fields, candidates = zip(*chosen, strict=True) if (chosen := _chosen(metadata)) else ((), ())
    if not fields:
        return ()
    by = ClusterBy(tuple(f.name for f in fields), tuple(f.field_id for f in fields), SORT, sealed_set_bytes=1)
    reader = ClusterReader(by, current.policy.apply_deletes, store_of(current.uuid))
    files = reader.read(metadata, current.table.io, keep)
    owned = {key: some for key, some in files.items() if key in layout.partitions}
    return advise_clustering(current.name, owned, candidates, current.policy)


def _chosen(metadata: TableMetadata) -> list[tuple[NestedField, ColumnCandidate]]:
    """Return the candidate columns: first those with a reason, then the others in the order of the schema."""
    apart, values = partition_columns(metadata), dict(_known_values(metadata))
    columns = [
        (field, ColumnCandidate(field.name, _why(metadata, field.field_id), values.get(field.field_id, 0)))
        for field in metadata.schema().fields
        if isinstance(field.field_type, _ASKED_FOR) and field.name not in apart
    ]
    return sorted(columns, key=lambda pair: not pair[1].why)[:MOST_COLUMNS]


def _why(metadata: TableMetadata, field_id: int) -> str:
    """Return the reason to prefer a column, in words to print beside its name."""
    order = metadata.sort_order().fields
    if order and order[0].source_id == field_id and isinstance(order[0].transform, IdentityTransform):
        return "the first of the table's sort order"
    return "an identifier field" if field_id in metadata.schema().identifier_field_ids else ""


def _known_values(metadata: TableMetadata) -> Iterator[tuple[int, int]]:
    """Yield field ids with the number of distinct values that engines have counted."""
    for statistics in metadata.statistics:
        for blob in statistics.blob_metadata:
            count = (blob.properties or {}).get("ndv", "")
            if len(blob.fields) == 1 and count.isdecimal():
                yield blob.fields[0], int(count)
