"""What data files are called and where they lie."""

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

    `prefix` is `<stream hash>-<batch>`, so that files nobody committed can be traced to what wrote them. The uuid
    keeps two attempts that believe to be the same one (a zombie executor) from writing over each other. `owner` knows
    of the files from before they exist, in the process that commits them.
    """

    prefix: str
    task: int
    attempt: int
    owner: Uncommitted | None = field(default=None, compare=False)

    def next(self, ending: str = "parquet") -> str:
        """A name never given before, without a folder."""
        return f"{self.prefix}-{self.task}-{self.attempt}-{uuid.uuid4()}.{ending}"


def writer_of(path: str) -> int | None:
    """The task that wrote a file, from its name; None for a name that a location provider has changed."""
    found = _TASK.search(path)
    return int(found[1]) if found else None


def set_prefix(key: str, run: str, group: int, full: bool) -> str:
    """The prefix of `FileNames` for files that are clustered together, a set: by what (`ClusterBy.key`), and whether
    the set is full, so that manifests say it of each file.

    The set's id is the run's, hexadecimal, and the number of the `group` in it.
    """
    return f"k{key}{'f' if full else 'o'}-{run}{group:04x}"


def set_of(path: str) -> tuple[str, str, bool] | None:
    """(key, set id, full) of a clustered file, from its name; None for any other, and where a location provider has
    changed more of the name than to put a hash before it, as Iceberg's for object stores does."""
    found = _SET.search(path)
    return (found[1], found[3], found[2] == "f") if found else None


def copy_prefix(path: str, run_prefix: str) -> str:
    """The prefix of `FileNames` for a copy of a file: the run's, but a clustered file stays in the set it is in."""
    found = _SET.search(path)
    return f"k{found[1]}{found[2]}-{found[3]}" if found else run_prefix


class _LocationKey(IcebergPartitionKey):
    """What location providers get: PyIceberg's key, which by itself refuses two fields over one source column."""

    @property
    def partition(self) -> Record:
        return Record(*(pair.value for pair in self.field_values))

    def to_path(self) -> str:
        try:
            return super().to_path()
        except (OverflowError, ValueError):
            # dates outside the years 1-9999 have no text in Python; the folder is only a label
            return "/".join(f"{quote_plus(p.field.name, safe='')}={p.value}" for p in self.field_values)


def data_location(settings: WriteSettings, partition: PartitionKey, file_name: str) -> str:
    """Full location of a new data file, from the table's location provider (`write.data.path`,
    `write.object-storage.*`, `write.py-location-provider.impl`), partition values percent-encoded as Iceberg does.
    """
    return location_by(settings.locations, settings.spec, settings.schema, partition, file_name)


def location_by(
    provider: LocationProvider, spec: PartitionSpec, schema: Schema, partition: PartitionKey, file_name: str
) -> str:
    """The location that a provider gives to a new data file of a partition."""
    if not partition.values:
        return provider.new_data_location(file_name)
    pairs = [PartitionFieldValue(field, value) for field, value in zip(spec.fields, partition.values, strict=True)]
    key = _LocationKey(field_values=pairs, partition_spec=spec, schema=schema)
    return provider.new_data_location(file_name, key)
