"""Merges of small files that take the ways of large ones: row groups copied whole, pages copied, and rows decoded."""

from __future__ import annotations

import io
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import IO

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.types import DoubleType, LongType, StringType, TimestamptzType

from icesize.parquet.files.names import FileNames
from icesize.parquet.files.settings import Limits, WriteSettings
from icesize.parquet.format.footer import Footer
from icesize.parquet.format.sources import Source
from icesize.parquet.pages.column_plan import ColumnPlan, Part, plan_columns
from icesize.parquet.pages.page_copy import merge_row_groups, runs_of
from icesize.parquet.rewriting.output_file import works
from icesize.parquet.row_groups.assembly import Assembled, Assembly
from icesize.parquet.row_groups.row_groups import copy_row_group
from icesize.planning.files import FileFact, PartitionKey
from tests.support.footers import Tree
from tests.support.parquet_files import fact, files_below, local, schema_of, write_one

KEY = PartitionKey(0)
MERGED = FileNames("s1-9", 0, 0)
SCHEMA = schema_of(("id", LongType()), ("at", TimestamptzType()), ("value", DoubleType()), ("word", StringType()))

WHOLE_ROWS, PAGED_ROWS, TINY_ROWS = 1_200, 700, 20
"""Rows of files whose row groups are copied whole, whose pages are copied, and which are decoded, by
the limits of `SMALL`."""
SMALL = Limits(
    good_group_rows=WHOLE_ROWS,
    least_chunk_bytes=512,
    least_page_rows=50,
    least_page_bytes=512,
    least_copied_bytes=1_000,
)
"""Small files are copied as large ones are."""


@cache
def rows(count: int, start: int = 0) -> pa.Table:
    """Rows of SCHEMA that hardly compress, ids from `start` on."""
    chance, begin = random.Random(f"{start}-{count}"), datetime(2024, 1, 1, tzinfo=timezone.utc)
    return pa.table(
        {
            "id": pa.array(range(start, start + count), pa.int64()),
            "at": pa.array(
                [begin + timedelta(microseconds=chance.getrandbits(40)) for _ in range(count)],
                pa.timestamp("us", "UTC"),
            ),
            "value": pa.array([chance.random() for _ in range(count)], pa.float64()),
            "word": [chance.randbytes(16).hex() for _ in range(count)],
        }
    )


def copy_row_groups(sources: Sequence[Source], footers: Sequence[Footer], out: IO[bytes]) -> Assembled:
    """One file with the row groups of all `sources`, whole and in their order."""
    assembly = Assembly(out, footers)
    for source, footer in zip(sources, footers, strict=True):
        for group in footer.row_groups:
            copy_row_group(source, group, assembly)
    return assembly.finish()


def merge_files(
    sources: Sequence[Source],
    footers: Sequence[Footer],
    out: IO[bytes],
    rows_per_group: int = 2**20,
    bytes_per_group: int = 128 * 2**20,
) -> Assembled:
    """One file with the rows of all `sources` in their order, in row groups that are made of their pages."""
    files = zip(sources, footers, strict=True)
    parts = [Part(source, footer, group) for source, footer in files for group in footer.row_groups]
    assembly = Assembly(out, footers)
    for group in runs_of(parts, rows_per_group, bytes_per_group):
        merge_pages(group, plan_columns(group), assembly)
    return assembly.finish()


def merge_pages(parts: Sequence[Part], plan: ColumnPlan, assembly: Assembly, level: int | None = None) -> int:
    """One row group of all parts, whose columns are changed when it is their turn."""
    return merge_row_groups(parts, plan, assembly, (work(level) for work in works(parts, plan)))


def with_ids(data: pa.Table, first: int = 1) -> pa.Table:
    """The same rows with the field ids that a table of these columns has."""
    fields = [f.with_metadata({"PARQUET:field_id": str(i)}) for i, f in enumerate(data.schema, first)]
    return data.cast(pa.schema(fields))


def foreign_bytes(data: pa.Table, **how: object) -> bytes:
    """These rows as another writer's file, which can be copied unless `how`, arguments of pyarrow's, differs."""
    out = io.BytesIO()
    arguments = {"compression": "zstd", "use_dictionary": False, "store_schema": False, "write_page_index": True}
    pq.write_table(data, out, **{**arguments, **how})
    return out.getvalue()


def written(options: WriteSettings, *counts: int, start: int = 0) -> list[FileFact]:
    """One file of our own for each number of rows, ids running on."""
    starts = [start + sum(counts[:i]) for i in range(len(counts))]
    return [fact(write_one(options, rows(*each)), i) for i, each in enumerate(zip(counts, starts, strict=True), 1)]


def stored(folder: Path, data: bytes, rows_in: int) -> FileFact:
    """Bytes as a file of the table."""
    path = folder / "data" / f"bad-{random.Random(data).getrandbits(32)}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return FileFact(str(path), len(data), rows_in, KEY)


def bytes_of(file: FileFact) -> bytes:
    """What is stored."""
    return Path(local(file.path)).read_bytes()


def content(paths: Iterable[str], columns: list[str] | None = None) -> Counter[str]:
    """All rows of these files, each one spelt: NaN equals itself and -0.0 is not 0.0."""
    tables = [pq.read_table(local(path), columns=columns) for path in paths]
    return Counter(spelt for table in tables for spelt in spelt_rows(table))


def spelt_rows(table: pa.Table) -> list[str]:
    """Each row as text, of columns in their order."""
    return [repr(row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


def indexes_swapped(tree: Tree) -> None:
    """The OffsetIndexes of the first two columns of each row group stand for each other's."""
    for first, second, *_ in tree.chunks:
        for field_id in (4, 5):
            first[field_id], second[field_id] = second[field_id], first[field_id]


def files_of_table(settings: WriteSettings) -> list[Path]:
    """Return all data files below the table's location, committed or not."""
    return files_below(Path(local(settings.table_location)))
