"""Text columns of few distinct values as Arrow dictionaries: rows are numbers, and each value moves at most once.

Measured on TPC-H's lineitem as Spark writes it: pyarrow reads its four short text columns as dictionaries in 0.25 of
the time, or in 0.6 of it if they become plain values afterwards. Decoding all columns of 200 such files into one takes
about 0.9 of the CPU time, and 0.88 of the memory. Texts within structs and lists are read as plain values.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from icesize.parquet.format.fields import FileMetaData, SizeStatistics
from icesize.parquet.format.footer import MAGIC, Chunk, Footer
from icesize.parquet.format.page_values import longest_entry
from icesize.parquet.format.pages import DICTIONARY_ENCODINGS, PLAIN, data_encodings, dictionary_page
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.schema import BYTE_ARRAY, Column
from icesize.parquet.format.sources import Readable
from icesize.parquet.format.thrift import integer, read_struct, write_struct

_LENGTH_BYTES = 4
"""Bytes of a value outside of dictionaries even when it is empty; an index into one hardly ever needs as much."""
_PLACE_BYTES = 8
"""In Arrow memory, for text as PyIceberg's schemas have it."""
_UNKNOWN_BYTES = 2**12
"""Assumed length of a value where the footer does not show it: values that repeat the one before are stored short."""
_NO_ENCODING = -1
_SHORT_BYTES = 2**20
"""Texts that are no more are not counted one by one, which takes 3 % of the time of reading them all."""


def texts_of_few(footer: Footer, among: Collection[str]) -> list[str]:
    """Return the columns of `among` whose values are all in dictionaries, judged from sizes.

    If many values follow a dictionary page as plain values, pyarrow would look up each of them.
    """
    chunks = (
        (c.top, chunk) for group in footer.row_groups for c, chunk in zip(footer.columns, group.chunks, strict=True)
    )
    others = {top for top, chunk in chunks if not _all_in_dictionary(chunk)}
    return [name for name in among if name not in others]


_READ_AS_DICTIONARIES = DICTIONARY_ENCODINGS | {PLAIN}
"""pyarrow refuses to make a dictionary of pages with another encoding: writers of version 2 begin DELTA_BYTE_ARRAY when
they give up a dictionary."""


def _all_in_dictionary(chunk: Chunk) -> bool:
    if not 0 < chunk.dictionary_offset < chunk.data_offset or not _encodings(chunk) <= _READ_AS_DICTIONARIES:
        return False
    data_share = (chunk.end - chunk.data_offset) / chunk.size_bytes
    return data_share * chunk.raw_size_bytes < _LENGTH_BYTES * chunk.values


def most_value_bytes(source: Readable, chunk: Chunk, column: Column) -> int:
    """Return an upper limit of the bytes of a chunk's values as plain Arrow values, without their offsets.

    Pages of few or similar values hold far fewer bytes than these values. The footer states the size; otherwise, every
    value counts as the longest of the dictionary.
    """
    if column.element.type != BYTE_ARRAY:
        return max(chunk.raw_size_bytes, (column.element.length or 0) * chunk.values)
    stated = integer(chunk.size_statistics, SizeStatistics.UNENCODED_BYTE_ARRAY_DATA_BYTES)
    if stated is not None and stated >= 0:
        return stated
    encodings, longest = _encodings(chunk), 0
    if not encodings <= _READ_AS_DICTIONARIES:
        longest = _UNKNOWN_BYTES
    if DICTIONARY_ENCODINGS & encodings:
        longest = max(longest, _longest_entry(source, chunk))
    return max(chunk.raw_size_bytes, longest * chunk.values)


def _encodings(chunk: Chunk) -> set[int]:
    try:
        return data_encodings(chunk)
    except CopyRefused:
        return {_NO_ENCODING}


def _longest_entry(source: Readable, chunk: Chunk) -> int:
    try:
        page = dictionary_page(source, chunk)
        return 0 if page is None else longest_entry(page, chunk.codec)
    except CopyRefused:  # reading the values finds the damage again
        return _UNKNOWN_BYTES


def are_text(*kinds: pa.DataType) -> bool:
    """Return whether these types all hold texts, or all hold bytes, so that values need no conversion."""
    text, data = (types.is_string, types.is_large_string), (types.is_binary, types.is_large_binary)
    return any(all(any(is_one(kind) for is_one in alike) for kind in kinds) for alike in (text, data))


def check_indices(column: pa.ChunkedArray) -> None:
    """Raise `ArrowInvalid` for an index beyond its dictionary.

    pyarrow returns indices of damaged pages unchanged, and reads beyond the dictionary when it uses them.
    """
    for array in column.chunks:
        found = pc.min_max(array.indices).as_py()
        if found["min"] is not None and not 0 <= found["min"] <= found["max"] < len(array.dictionary):
            raise pa.ArrowInvalid("an index is larger than its dictionary")


def plain_bytes(rows: pa.Table) -> int:
    """Return the Arrow memory of the rows if no column were a dictionary.

    In a short column, every text counts as the longest one.
    """
    return sum(_plain_bytes(column) if _holds_text(column.type) else column.nbytes for column in rows.columns)


def _holds_text(kind: pa.DataType) -> bool:
    # a file's Arrow schema can request dictionaries of other types, too
    return types.is_dictionary(kind) and are_text(kind.value_type)


def _plain_bytes(column: pa.ChunkedArray) -> int:
    return sum(_PLACE_BYTES * len(array) + _text_bytes(array) for array in column.chunks)


def _text_bytes(array: pa.DictionaryArray) -> int:
    lengths = pc.binary_length(array.dictionary)
    most = len(array) * (pc.max(lengths).as_py() or 0)
    return most if most <= _SHORT_BYTES else pc.sum(lengths.take(array.indices)).as_py() or 0


def bounded(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """Yield the rows in pieces of at most `most_bytes` as plain values, or of one row."""
    if rows.num_rows <= 1 or plain_bytes(rows) <= most_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from bounded(rows.slice(0, half), most_bytes)
    yield from bounded(rows.slice(half), most_bytes)


def as_read(schema: pa.Schema, columns: Sequence[pa.ChunkedArray]) -> pa.Schema:
    """Return the schema, with dictionary types for the columns that are dictionaries."""
    # taken from the schema, because types of arrays lack the field ids within them
    read = [f.with_type(c.type) if types.is_dictionary(c.type) else f for f, c in zip(schema, columns, strict=True)]
    return pa.schema(read, schema.metadata)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries at any level.

    Dictionaries of pandas' categories have indices for 128 values only, so two files' dictionaries do not fit into one.
    """
    if types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if types.is_struct(kind):
        return pa.struct([_plain_field(kind.field(i)) for i in range(kind.num_fields)])
    if types.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field), kind.keys_sorted)
    if types.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    if types.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    return pa.list_(_plain_field(kind.value_field)) if types.is_list(kind) else kind


def _plain_field(field: pa.Field) -> pa.Field:
    return field.with_type(plain_type(field.type))


def asks_in_vain(footer: Footer, dictionaries: Collection[str]) -> bool:
    """Return whether pyarrow cannot make dictionaries of some pages of these columns."""
    return any(
        column.top in dictionaries and not _encodings(chunk) <= _READ_AS_DICTIONARIES
        for group in footer.row_groups
        for column, chunk in zip(footer.columns, group.chunks, strict=True)
    )


def without_arrow_schema(footer: pq.FileMetaData) -> pq.FileMetaData:
    """Return the footer without its keys, one of which holds the Arrow schema: columns have the types of Parquet."""
    alone = pa.BufferOutputStream()
    footer.write_metadata_file(alone)
    data = alone.getvalue().to_pybytes()
    (length,) = struct.unpack("<I", data[-8:-4])
    fields, _ = read_struct(data[-8 - length : -8])
    fields.pop(FileMetaData.KEY_VALUE_METADATA, None)
    raw = write_struct(fields)
    return pq.read_metadata(pa.BufferReader(MAGIC + raw + struct.pack("<I", len(raw)) + MAGIC))


def plain_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema without dictionaries."""
    return pa.schema([_plain_field(field) for field in schema], schema.metadata)


def of_schema(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Return the same rows, with dictionaries for the columns that have them in the schema."""
    if rows.schema.equals(schema):
        return rows
    columns = [_as(column, kind) for column, kind in zip(rows.columns, schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    return column.dictionary_encode() if types.is_dictionary(kind) else column.cast(kind)


def with_short_dictionaries(rows: pa.Table, most_bytes: int) -> pa.Table:
    """Return the same rows, with longer dictionaries as plain values.

    pyarrow writes a dictionary of any size, whatever limit it is given.
    """
    short = [longest_dictionary(rows.select([i])) <= most_bytes for i in range(rows.num_columns)]
    fields = [f if kept else f.with_type(f.type.value_type) for f, kept in zip(rows.schema, short, strict=True)]
    return of_schema(rows, pa.schema(fields, rows.schema.metadata))


def with_used_values(rows: pa.Table) -> pa.Table:
    """Return the same rows, with dictionaries that hold only values of rows.

    If there are nulls, pyarrow may include unused values in the bounds, and marks these bounds as exact.
    """
    columns = [_used(column) if types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _used(column: pa.ChunkedArray) -> pa.ChunkedArray:
    longest = {len(array.dictionary) for array in column.chunks}
    # a column of few values usually has all of them in its first rows
    for indices in (column.chunks[:1], column.chunks):
        found = pa.chunked_array([array.indices for array in indices], column.type.index_type).unique()
        if longest <= {len(found.drop_null())}:
            return column
    return column.cast(column.type.value_type).dictionary_encode()


def longest_dictionary(rows: pa.Table) -> int:
    """Return the Arrow memory of the largest dictionary, 0 without any."""
    columns = (column for column in rows.columns if types.is_dictionary(column.type))
    return max((array.dictionary.nbytes for column in columns for array in column.chunks), default=0)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return one table; a column that is a dictionary in any table has one dictionary for all rows."""
    schema = tables[0].schema
    for table in tables[1:]:
        if not table.schema.equals(schema):
            both = zip(schema, table.schema, strict=True)
            schema = pa.schema([b if types.is_dictionary(b.type) else a for a, b in both], schema.metadata)
    return pa.concat_tables([of_schema(table, schema) for table in tables]).unify_dictionaries()
