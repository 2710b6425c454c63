"""Parquet files in memory, and their footers taken apart, changed and put together again."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.format.fields import ColumnMetaData, Statistics
from icesize.parquet.format.footer import MAGIC, Footer, read_footer
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.thrift import (
    I16,
    I32,
    I64,
    STRUCT,
    Fields,
    bytes_field,
    read_struct,
    struct_field,
    struct_of,
    structs_field,
    structs_of,
    write_struct,
    zigzag,
)

PER_GROUP = 10
"""Rows in each row group of the files made here."""


def sample(rows: int = 20, start: int = 0) -> pa.Table:
    """Rows of flat and nested columns, with nulls, all of them different."""
    numbers = range(start, start + rows)
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "small": pa.array([i % 7 for i in numbers], pa.int32()),
            "text": [None if i % 5 == 0 else f"text {i}" for i in numbers],
            "number": [None if i % 3 == 0 else i / 4 for i in numbers],
            "money": [Decimal(i) / 100 for i in numbers],
            "day": pa.array(numbers, pa.date32()),
            "at": pa.array([datetime(2024, 1, 1, 0, i % 60) for i in numbers], pa.timestamp("us", "UTC")),
            "flag": [i % 2 == 0 for i in numbers],
            "items": [list(range(i % 4)) for i in numbers],
            "record": [{"a": i, "b": {"c": str(i)}} for i in numbers],
            "pairs": pa.array([[("k", i)] for i in numbers], pa.map_(pa.string(), pa.int64())),
        }
    )


def make_file(rows: pa.Table | None = None, **options: object) -> bytes:
    """A file of `sample()` or of other rows, ten in a row group, written by pyarrow with these options."""
    out = io.BytesIO()
    pq.write_table(sample() if rows is None else rows, out, **{"row_group_size": PER_GROUP, **options})
    return out.getvalue()


def footer_of(data: bytes) -> Footer:
    """The footer, read by icesize."""
    return read_footer(BytesSource(data))


def raw_footer(data: bytes) -> bytes:
    """The bytes of FileMetaData."""
    (length,) = struct.unpack("<I", data[-8:-4])
    return data[len(data) - 8 - length : len(data) - 8]


def with_footer(data: bytes, raw: bytes) -> bytes:
    """The same pages under another footer."""
    return data[: len(data) - 8 - len(raw_footer(data))] + raw + struct.pack("<I", len(raw)) + MAGIC


@dataclass
class Tree:
    """A footer taken apart; what a test changes in `schema`, `groups`, `chunks` and `metadata` is in `raw`.

    `chunks` and `metadata` are the ColumnChunks and ColumnMetaDatas of each row group.
    """

    file: Fields
    schema: list[Fields]
    groups: list[Fields]
    chunks: list[list[Fields]]
    metadata: list[list[Fields]]

    @staticmethod
    def of(data: bytes) -> Tree:
        """Take the footer of a file apart."""
        file, _ = read_struct(raw_footer(data))
        schema, groups = structs_of(file, 2), structs_of(file, 4)
        chunks = [structs_of(group, 1) for group in groups]
        metadata = [[read_struct(chunk[3][1])[0] for chunk in each] for each in chunks]
        return Tree(file, schema, groups, chunks, metadata)

    @property
    def raw(self) -> bytes:
        """The footer put together; a struct that was removed from the one it is in stays away."""
        groups = []
        for group, chunks, metadata in zip(self.groups, self.chunks, self.metadata, strict=True):
            inner = [_put(c, 3, struct_field(m)) for c, m in zip(chunks, metadata, strict=True)]
            groups.append(_put(group, 1, structs_field(inner)))
        return write_struct(_put(_put(self.file, 2, structs_field(self.schema)), 4, structs_field(groups)))

    @property
    def first(self) -> dict[str, Fields]:
        """The first struct of each kind that holds offsets, by its name in parquet.thrift."""
        return {
            "FileMetaData": self.file,
            "RowGroup": self.groups[0],
            "ColumnChunk": self.chunks[0][0],
            "ColumnMetaData": self.metadata[0][0],
        }

    def structs(self) -> list[Fields]:
        """All structs that it is made of."""
        inner = [fields for each in (*self.chunks, *self.metadata) for fields in each]
        return [self.file, *self.schema, *self.groups, *inner]


def _put(fields: Fields, field_id: int, value: tuple[int, bytes]) -> Fields:
    """Without what a test removed, or made something else."""
    return {**fields, field_id: value} if fields.get(field_id, (0, b""))[0] == value[0] else fields


def edited(data: bytes, edit: Callable[[Tree], object]) -> bytes:
    """The same pages under a changed footer."""
    tree = Tree.of(data)
    edit(tree)
    return with_footer(data, tree.raw)


def inject(fields: Fields, *, below: int | None = None, field_id: int = 99) -> None:
    """Give a struct a field that nobody knows; or, `below` a field of it, that struct or the first one of that list."""
    new = {field_id: bytes_field(b"not known")}
    if below is None:
        fields.update(new)
    elif fields[below][0] == STRUCT:
        fields[below] = struct_field({**read_struct(fields[below][1])[0], **new})
    else:
        first, *others = structs_of(fields, below)
        fields[below] = structs_field([{**first, **new}, *others])


def rebuilt(footer: Footer) -> bytes:
    """The bytes of a parsed footer whose row groups all have rows."""
    groups = []
    for group in footer.row_groups:
        chunks = [{**chunk.fields, 3: struct_field(chunk.metadata)} for chunk in group.chunks]
        groups.append({**group.fields, 1: structs_field(chunks)})
    return write_struct({**footer.fields, 4: structs_field(groups)})


def mutants(data: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Damaged footers of a file: half of them by bytes, half of them by fields that are lost or of another value."""
    chance, raw = random.Random(seed), raw_footer(data)
    for number in range(count):
        yield _by_bytes(raw, chance) if number % 2 else _by_fields(data, chance)


def with_other_bounds(
    path: Path, column: int, bounds: Mapping[int, Any] = MappingProxyType({}), edit: Callable[[Tree], object] = id
) -> int:
    """Give the pages of a file another footer, and return the size of the file.

    In it a column has as its least value the greatest one, and `bounds`; `edit` changes more of it.
    """

    def change(tree: Tree) -> None:
        for metadata in tree.metadata:
            statistics = struct_of(metadata[column], ColumnMetaData.STATISTICS) or {}
            least = {Statistics.MIN_VALUE: statistics[Statistics.MAX_VALUE]}
            metadata[column][ColumnMetaData.STATISTICS] = struct_field({**statistics, **least, **bounds})
        edit(tree)

    return path.write_bytes(edited(path.read_bytes(), change))


def _by_bytes(raw: bytes, chance: random.Random) -> bytes:
    out = bytearray(raw)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(out))
        length = chance.randint(0, 9)
        kind = chance.randrange(4)
        if kind == 0:
            out[at] = chance.randrange(256)
        elif kind == 1:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            out[at : at + length] = chance.randbytes(chance.randint(0, 9))
        else:
            other = chance.randrange(len(out))
            out[at : at + length] = out[other : other + length]
    return bytes(out or b"\0")


_EXTREMES = (0, 1, -1, 3, 4, 7, 2**15, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))


def _by_fields(data: bytes, chance: random.Random) -> bytes:
    tree = Tree.of(data)
    structs = tree.structs()
    for _ in range(chance.randint(1, 2)):
        fields = chance.choice(structs)
        field_id = chance.choice([*fields, 99])
        kind = fields.get(field_id, (I64, b""))[0]
        change = chance.randrange(4)
        if change == 0:
            fields.pop(field_id, None)
        elif change == 1:
            fields[field_id] = (kind if kind in (I16, I32, I64) else I64, zigzag(chance.choice(_EXTREMES)))
        elif change == 2:
            fields[field_id] = chance.choice(list(chance.choice(structs).values()))
        else:
            fields[field_id] = (kind, chance.randbytes(chance.randint(0, 6)))
    return tree.raw
