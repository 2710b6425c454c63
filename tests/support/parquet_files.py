"""Small tables and files for the tests of the parquet floor."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog.memory import InMemoryCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.transforms import parse_transform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, IcebergType, LongType, NestedField, StringType

from icesize.parquet.files.data_file import CopiedFile, FileMetrics, FinishedFile, NewDataFile
from icesize.parquet.files.metrics import carry_over
from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.writing.row_writer import write_rows
from icesize.planning.files import FileFact


class RemoteLike(FileIO):
    """A FileIO that is not the local file system to icesize, though its files are here."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        super().__init__(dict(properties))
        self._io = PyArrowFileIO(dict(properties))

    def new_input(self, location: str) -> InputFile:
        return self._io.new_input(location)

    def new_output(self, location: str) -> OutputFile:
        return self._io.new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        self._io.delete(location)


REMOTE = {"py-io-impl": "tests.support.parquet_files.RemoteLike"}
NAMES = FileNames("s1-7", 3, 0)


def schema_of(*columns: tuple[str, IcebergType] | tuple[str, IcebergType, bool]) -> Schema:
    """A schema of (name, type) or (name, type, required), field ids from 1 on."""
    fields = [NestedField(i, c[0], c[1], required=len(c) > 2 and bool(c[2])) for i, c in enumerate(columns, 1)]
    return Schema(*fields)


def spec_of(schema: Schema, **transforms: str) -> PartitionSpec:
    """A spec with a field per keyword: `ts="day"`; a second field over one column is written `ts__2="bucket[4]"`."""
    fields = []
    for i, (name, transform) in enumerate(transforms.items()):
        source = schema.find_field(name.split("__")[0].replace("_dot_", "."))
        parsed = parse_transform(transform)
        label = source.name if transform == "identity" else f"{name}_{transform.split('[')[0]}"
        fields.append(PartitionField(source.field_id, 1000 + i, parsed, label))
    return PartitionSpec(*fields, spec_id=0)


def metadata_of(
    location: Path | str,
    schema: Schema,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: Mapping[str, str] | None = None,
) -> TableMetadata:
    """Metadata of a new format v2 table."""
    return new_table_metadata(schema, spec, UNSORTED_SORT_ORDER, str(location), dict(properties or {}))


def settings_of(
    location: Path | str,
    schema: Schema,
    spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    properties: Mapping[str, str] | None = None,
    target: int = 2**29,
) -> WriteSettings:
    """Settings of a new table."""
    return WriteSettings.of(metadata_of(location, schema, spec, properties), {}, target)


def with_limits(settings: WriteSettings, **limits: int) -> WriteSettings:
    """The same settings with these other `Limits`."""
    return replace(settings, limits=replace(settings.limits, **limits))


def local(path: str) -> str:
    """The operating system's path of a location."""
    return path.removeprefix("file://").removeprefix("file:")


def write_one(settings: WriteSettings, rows: pa.Table) -> NewDataFile:
    """Rows of one partition as exactly one file."""
    (file,) = write_rows([rows], settings, NAMES)
    return file


def complete(file: FinishedFile, settings: WriteSettings, inputs: Mapping[str, FileMetrics]) -> NewDataFile:
    """A finished file with the metrics of the files that it copies, which are `inputs`."""
    return carry_over(file, settings, inputs) if isinstance(file, CopiedFile) else file


def rows_decoded(files: Sequence[FinishedFile]) -> int:
    """Rows that were decoded beside others that were copied."""
    return sum(part.rows for file in files if isinstance(file, CopiedFile) for part in file.decoded)


def sources_of(files: Sequence[FinishedFile]) -> set[str]:
    """Paths of the files that were copied."""
    return {copied.path for file in files if isinstance(file, CopiedFile) for copied in file.copied_from}


def fact(file: FinishedFile, sequence_number: int = 0) -> FileFact:
    """A written file as planning sees it."""
    return FileFact(file.path, file.size_bytes, file.rows, file.partition, sequence_number)


def foreign_file(folder: Path, rows: pa.Table, name: str = "foreign.parquet", **options: object) -> Path:
    """A file that another writer made."""
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, folder / name, **options)
    return folder / name


def files_below(folder: Path) -> list[Path]:
    """All data files in a folder."""
    return sorted(folder.rglob("*.parquet"))


def catalog_in(folder: Path) -> InMemoryCatalog:
    """A PyIceberg catalog with namespace `db`."""
    catalog = InMemoryCatalog("test", warehouse=f"file://{folder}")
    catalog.create_namespace("db")
    return catalog


def append(table: Table, files: Sequence[NewDataFile]) -> None:
    """Commit written files with PyIceberg's own append."""
    with table.transaction() as tx, tx.update_snapshot().fast_append() as producer:
        for file in files:
            producer.append_data_file(data_file(file))


def data_file(file: NewDataFile) -> DataFile:
    """The manifest entry of a written file."""
    entry = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=file.path,
        file_format=FileFormat.PARQUET,
        partition=Record(*file.partition.values),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        column_sizes=file.column_sizes,
        value_counts=file.value_counts,
        null_value_counts=file.null_value_counts,
        nan_value_counts=file.nan_value_counts,
        lower_bounds=file.lower_bounds,
        upper_bounds=file.upper_bounds,
        split_offsets=list(file.split_offsets) or None,
        sort_order_id=file.sort_order_id,
        equality_ids=None,
        key_metadata=None,
    )
    entry.spec_id = file.partition.spec_id
    return entry


HOURLY = schema_of(("id", LongType()), ("hour", StringType()), ("x", DoubleType()), ("text", StringType()))


def hourly(folder: Path, target: int = 2**29, limit: int = 0) -> WriteSettings:
    """A table partitioned by hour."""
    options = settings_of(folder, HOURLY, spec_of(HOURLY, hour="identity"), target=target)
    return replace(options, small_file_limit_bytes=limit)


def hourly_rows(hours: list[int], start: int = 0) -> pa.Table:
    """A row for each number, in the partition of that hour, with text that hardly compresses."""
    ids, chance = range(start, start + len(hours)), random.Random(start)
    return pa.table(
        {
            "id": list(ids),
            "hour": [f"h{hour}" for hour in hours],
            "x": [math.nan if i % 50 == 49 else i / 7 for i in ids],
            "text": [chance.randbytes(20).hex() for _ in ids],
        }
    )
