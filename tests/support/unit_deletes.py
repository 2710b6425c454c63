"""Delete files and the data files that they hit, written directly, without a table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.planning.files import DeleteFile, FileFact, PartitionKey

UNPARTITIONED = PartitionKey(0)


def field(field_id: int, name: str, kind: pa.DataType) -> pa.Field:
    """An Arrow field with Iceberg's id."""
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})


PATH = field(2147483546, "file_path", pa.string())
POSITION = field(2147483545, "pos", pa.int64())


def written(folder: Path, name: str, rows: pa.Table, **options: Any) -> tuple[str, int]:
    """The path and the bytes of a new Parquet file."""
    path = folder / name
    pq.write_table(rows, path, **options)
    return str(path), path.stat().st_size


def position_rows(named: Iterable[tuple[str | None, int | None]]) -> pa.Table:
    """Rows of a position delete file."""
    paths, positions = zip(*named, strict=True) if (named := list(named)) else ((), ())
    return pa.table([pa.array(paths, pa.string()), pa.array(positions, pa.int64())], schema=pa.schema([PATH, POSITION]))


def delete_file(
    path: str, size_bytes: int, rows: int, number: int = 1, ids: Sequence[int] = (), **others: Any
) -> DeleteFile:
    """Its manifest entry; an equality delete where there are ids."""
    partition = others.pop("partition", UNPARTITIONED)
    return DeleteFile(path, size_bytes, rows, partition, number, equality_ids=tuple(ids), **others)


def position_deletes(
    folder: Path, name: str, named: Iterable[tuple[str | None, int | None]], number: int = 1, **others: Any
) -> DeleteFile:
    """A new position delete file."""
    rows = position_rows(named)
    return delete_file(*written(folder, name, rows), rows.num_rows, number, **others)


def data_file(path: str, rows: int, deletes: Sequence[DeleteFile], number: int = 0, size_bytes: int = 100) -> FileFact:
    """An input file, which need not be there for position deletes."""
    return FileFact(path, size_bytes, rows, UNPARTITIONED, number, deletes=tuple(deletes))
