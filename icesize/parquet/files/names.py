"""Names and locations of data files."""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field
from urllib.parse import quote_plus

from pyiceberg.partitioning import PartitionFieldValue, PartitionSpec
from pyiceberg.partitioning import PartitionKey as IcebergPartitionKey
from pyiceberg.schema import Schema
from pyiceberg.table.locations import LocationProvider
from pyiceberg.typedef import Record

from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.files.uncommitted import Uncommitted
from icesize.planning.files import PartitionKey

_END = r"-(\d+)-\d+-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.parquet$"
_TASK = re.compile(_END)
_SET = re.compile(r"(?:^|[/-])k([0-9a-f]{8})([fo])-([0-9a-f]+)" + _END)


@dataclass(frozen=True, slots=True)
class FileNames:
    """Names of the files of one task attempt: `<prefix>-<task>-<attempt>-<uuid>.parquet`.

    `prefix` is `<stream hash>-<batch>`, so that an uncommitted file can be traced to its writer. The uuid keeps two
    attempts with the same number (one a zombie executor's) from overwriting each other's files. `owner` exists in the
    process that commits the files, and records each of them before it exists.
    """

    prefix: str
    task: int
    attempt: int
    owner: Uncommitted | None = field(default=None, compare=False)

    def next(self, ending: str = "parquet") -> str:
        """Return an unused name, without a directory."""
        return f"{self.prefix}-{self.task}-{self.attempt}-{uuid.uuid4()}.{ending}"


def writer_of(path: str) -> int | None:
    """Return the task that wrote a file, from its name; None for a name that a location provider has changed."""
    found = _TASK.search(path)
    return int(found[1]) if found else None


def set_prefix(key: str, run: str, group: int, full: bool) -> str:
    """Return the prefix of `FileNames` for a set, the files of one clustering.

    `key` identifies the clustering columns (`ClusterBy.key`). The prefix also records whether the set is full, so that
    manifests show both facts for each file. The set's id is the run's id, hexadecimal, and the number of the `group` in
    the run.
    """
    return f"k{key}{'f' if full else 'o'}-{run}{group:04x}"


def set_of(path: str) -> tuple[str, str, bool] | None:
    """Return (key, set id, full) of a clustered file, from its name; None for any other file.

    A location provider may put a hash before the name, as Iceberg's for object stores does. After any other change of
    the name, the result is None.
    """
    found = _SET.search(path)
    return (found[1], found[3], found[2] == "f") if found else None


def copy_prefix(path: str, run_prefix: str) -> str:
    """Return the prefix of `FileNames` for a copy of a file: the run's, or that of a clustered file's set."""
    found = _SET.search(path)
    return f"k{found[1]}{found[2]}-{found[3]}" if found else run_prefix


class _LocationKey(IcebergPartitionKey):
    """The partition key for location providers: PyIceberg's own key refuses two fields over one source column."""

    @property
    def partition(self) -> Record:
        return Record(*(pair.value for pair in self.field_values))

    def to_path(self) -> str:
        try:
            return super().to_path()
        except (OverflowError, ValueError):
            # Python cannot format dates outside the years 1-9999; the directory is only a label
            return "/".join(f"{quote_plus(p.field.name, safe='')}={p.value}" for p in self.field_values)


def data_location(settings: WriteSettings, partition: PartitionKey, file_name: str) -> str:
    """Return the full location of a new data file, from the table's location provider.

    The provider depends on `write.data.path`, `write.object-storage.*` and `write.py-location-provider.impl`. Partition
    values are percent-encoded as in Iceberg.
    """
    return location_by(settings.locations, settings.spec, settings.schema, partition, file_name)


def location_by(
    provider: LocationProvider, spec: PartitionSpec, schema: Schema, partition: PartitionKey, file_name: str
) -> str:
    """Return the location that a provider gives to a new data file of a partition."""
    if not partition.values:
        return provider.new_data_location(file_name)
    pairs = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, partition.values, strict=True)]
    key = _LocationKey(field_values=pairs, partition_spec=spec, schema=schema)
    return provider.new_data_location(file_name, key)
