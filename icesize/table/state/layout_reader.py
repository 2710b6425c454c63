"""The layout of a table: every partition counted, and its small files as values."""

from __future__ import annotations

from pyiceberg.io import FileIO
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record

from icesize.planning.files import FileFact, Layout, PartitionFacts, PartitionKey
from icesize.table.catalog.access_errors import readable
from icesize.table.manifests.entries import Entry
from icesize.table.state.live_files import Keep, LiveFiles, fact_of


class LayoutReader:
    """Reads layouts of one table again and again; each manifest is read once while the small file limit stays.

    Losing it costs time, never correctness. Not shared between threads.
    """

    def __init__(self, small_file_limit_bytes: int) -> None:
        self.small_file_limit_bytes = small_file_limit_bytes
        self._files = LiveFiles[FileFact](lambda fact: fact)

    def read(self, metadata: TableMetadata, io: FileIO, keep: Keep = lambda manifest: True) -> Layout:
        """The layout of the current snapshot; manifests that `keep` refuses (pruning by bounds) are not read.

        Raises TableError when storage does not give them.
        """
        with readable(metadata.location):
            live = self._files.read(metadata, io, self._small, keep)
        labels, head = Labels(metadata), metadata.current_snapshot()
        return Layout(
            snapshot_id=head.snapshot_id if head else None,
            sequence_number=(head.sequence_number or 0) if head else 0,
            spec_id=metadata.default_spec_id,
            small_file_limit_bytes=self.small_file_limit_bytes,
            partitions={
                key: PartitionFacts(
                    key, labels.of(key), some.files, some.size_bytes, some.rows,
                    live.obstacles.noted(some.picked, key),
                    live.ages.since(some.newest),
                )
                for key, some in live.partitions.items()
            },
            complete=live.complete,
        )  # fmt: skip

    def _small(self, entry: Entry, key: PartitionKey, manifest_path: str) -> FileFact | None:
        return fact_of(entry, key, manifest_path) if entry.size_bytes < self.small_file_limit_bytes else None


class Labels:
    """Partitions as people write them: `hour=h191/kind=3`, values as Iceberg prints them."""

    def __init__(self, metadata: TableMetadata) -> None:
        self._schema: Schema = metadata.schema()
        self._schemas = [metadata.schema(), *reversed(metadata.schemas)]
        self._specs: dict[int, PartitionSpec] = metadata.specs()

    def of(self, key: PartitionKey) -> str:
        """The label of a partition, `` for an unpartitioned one."""
        return "/".join(f"{name}={value}" for name, value in self.values(key).items())

    def values(self, key: PartitionKey) -> dict[str, str]:
        """Partition field name -> printed value."""
        spec = self._specs[key.spec_id]
        named = {}
        for field_, value in zip(spec.fields, Record(*key.values)._data, strict=True):
            source = next((t for s in self._schemas if (t := _type_of(s, field_.source_id)) is not None), None)
            named[field_.name] = (
                str(value) if source is None else field_.transform.to_human_string(source, value)  # type: ignore[arg-type]
            )
        return named


def _type_of(schema: Schema, field_id: int) -> object | None:
    try:
        return schema.find_type(field_id)
    except ValueError:
        return None  # the source column was dropped from this schema
