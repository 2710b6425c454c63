"""The files that clustering looks at: all live ones, with bounds of the columns that they are clustered by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from threading import Lock
from typing import Any, cast

from pyiceberg.avro.decoder import new_decoder
from pyiceberg.io import FileIO
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import DecimalType, PrimitiveType, StringType
from pyiceberg.utils.decimal import unscaled_to_decimal

from icesize.errors import TableError
from icesize.parquet.files.data_file import FileMetrics, NewDataFile
from icesize.parquet.files.metrics import bound_value
from icesize.parquet.files.names import set_of
from icesize.planning.cluster_by import Bounds, ClusterBy, ClusterFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.table.catalog.access_errors import readable
from icesize.table.manifests.entries import Entry
from icesize.table.state.input_metrics import metrics_reader
from icesize.table.state.live_files import Keep, LiveFiles, fact_of

_Columns = Mapping[int, PrimitiveType]
"""Columns that files are clustered by: field id -> its type now, older bounds may be of a narrower one."""


class ClusterReader:
    """Reads the files of one table again and again, for one layout; each manifest is read once.

    Losing it costs time, never correctness. Threads may share it: one reads at a time. Measured: 100,000 new entries of
    20 columns take 3 s and 76 MB, known ones 0.03 s.
    """

    def __init__(self, by: ClusterBy, apply_deletes: bool = True) -> None:
        self.by = by
        self._lock = Lock()
        self._files = LiveFiles[ClusterFile](lambda file: file.fact, apply_deletes)

    def read(
        self, metadata: TableMetadata, io: FileIO, keep: Keep = lambda manifest: True
    ) -> dict[PartitionKey, list[ClusterFile]]:
        """The live data files of the current snapshot, of any size and any spec, by partition, each with what hinders
        it as a layout says it; manifests that `keep` refuses (pruning by bounds) are not read.

        Bounds are None for a file that holds NaN or does not tell, and for one that is older than the column, as every
        reader has to open it. Raises TableError when storage does not give manifests, or a column is gone.
        """
        with self._lock:
            return self._read(metadata, io, keep)

    def _read(self, metadata: TableMetadata, io: FileIO, keep: Keep) -> dict[PartitionKey, list[ClusterFile]]:
        columns, layout = _columns(metadata.schema(), self.by), self.by.key

        # what was decoded before stays right: the promotion of a column changes no value
        def described(entry: Entry, key: PartitionKey, manifest_path: str) -> ClusterFile:
            metrics = metrics_reader(entry.schema)(new_decoder(entry.data))
            return _cluster_file(fact_of(entry, key, manifest_path), metrics, columns, layout)

        with readable(metadata.location):
            live = self._files.read(metadata, io, described, keep)
        found: dict[PartitionKey, list[ClusterFile]] = {}
        for key, some in live.partitions.items():
            facts = live.obstacles.noted([file.fact for file in some.picked], key)
            pairs = zip(some.picked, facts, strict=True)
            found[key] = [file if file.fact is fact else replace(file, fact=fact) for file, fact in pairs]
        return found


def cluster_file_of(file: NewDataFile, by: ClusterBy, schema: Schema) -> ClusterFile:
    """A file that was just written under `schema`."""
    fact = FileFact(file.path, file.size_bytes, file.rows, file.partition, file.sequence_number or 0)
    return _cluster_file(fact, FileMetrics.of(file), _columns(schema, by), by.key)


def _columns(schema: Schema, by: ClusterBy) -> _Columns:
    types = {field.field_id: field.field_type for field in schema.fields}
    for name, field_id in zip(by.columns, by.field_ids, strict=True):
        if not isinstance(types.get(field_id), PrimitiveType):
            raise TableError(f"Cannot look how files are clustered by '{name}': the column was dropped", column=name)
    return {field_id: cast(PrimitiveType, types[field_id]) for field_id in by.field_ids}


def _cluster_file(fact: FileFact, metrics: FileMetrics, columns: _Columns, key: str) -> ClusterFile:
    bounds = tuple([_bounds(metrics, field_id, kind) for field_id, kind in columns.items()])
    tag = set_of(fact.path)
    if tag is None or tag[0] != key:
        return ClusterFile(fact, bounds)
    return ClusterFile(fact, bounds, tag[1], tag[2])


def _bounds(metrics: FileMetrics, field_id: int, kind: PrimitiveType) -> Bounds:
    if metrics.null_value_counts.get(field_id) == metrics.rows:
        return ()
    lower = _plain(kind, metrics.lower_bounds.get(field_id))
    upper = _plain(kind, metrics.upper_bounds.get(field_id))
    if lower is None or upper is None or lower > upper or metrics.nan_value_counts.get(field_id):
        return None
    return lower, upper


def _plain(kind: PrimitiveType, bound: bytes | None) -> Any | None:
    """A bound as a value that compares as the column does, None for one that says nothing (NaN among them)."""
    value = bound_value(kind, bound)
    if value is None:
        return None
    if isinstance(kind, StringType):
        return value.decode()
    return unscaled_to_decimal(value, kind.scale) if isinstance(kind, DecimalType) else value
