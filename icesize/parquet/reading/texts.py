"""Texts of few values as Arrow dictionaries: the rows are numbers then, and no value is moved more than once.

Measured on TPC-H's lineitem as Spark writes it: pyarrow reads its four short texts as dictionaries in a fourth of the
time, in 0.6 of it when they are plain values afterwards; decoding all columns of 200 such files into one takes about
0.9 of the CPU time, and 0.88 of the memory. Texts within structs and lists are read as they are.
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
"""What a value needs outside of dictionaries even when it is empty; an index into one hardly ever needs as much."""
_PLACE_BYTES = 8
"""In Arrow memory, for text as PyIceberg's schemas have it."""
_UNKNOWN_BYTES = 2**12
"""Assumed length of a value where the footer does not show it: values that repeat the one before are stored short."""
_NO_ENCODING = -1
_SHORT_BYTES = 2**20
"""Texts that are no more are not counted one by one, which takes 3 % of the time of reading them all."""


def texts_of_few(footer: Footer, among: Collection[str]) -> list[str]:
    """Those of these columns whose values are all in dictionaries, as far as sizes tell: where many are behind one,
    pyarrow would look each of them up."""
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
    """Return an upper limit of the bytes of a chunk's values as plain Arrow values, without their places.

    Pages of few or similar values hold far fewer bytes than these values. The footer states the size, or every value
    counts as the longest of the dictionary.
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
    except CopyRefused:  # reading the values meets the damage again
        return _UNKNOWN_BYTES


def are_text(*kinds: pa.DataType) -> bool:
    """Whether these types hold the same texts, or the same bytes, without being looked at."""
    text, data = (types.is_string, types.is_large_string), (types.is_binary, types.is_large_binary)
    return any(all(any(is_one(kind) for is_one in alike) for kind in kinds) for alike in (text, data))


def check_indices(column: pa.ChunkedArray) -> None:
    """pyarrow gives indices of damaged pages as they are, and reads beyond the dictionary when it uses them."""
    for array in column.chunks:
        found = pc.min_max(array.indices).as_py()
        if found["min"] is not None and not 0 <= found["min"] <= found["max"] < len(array.dictionary):
            raise pa.ArrowInvalid("an index is larger than its dictionary")


def plain_bytes(rows: pa.Table) -> int:
    """Arrow memory of the rows when no column is a dictionary; short columns count as if all texts were the longest."""
    return sum(_plain_bytes(column) if _holds_text(column.type) else column.nbytes for column in rows.columns)


def _holds_text(kind: pa.DataType) -> bool:
    # files can ask for dictionaries of other types, too
    return types.is_dictionary(kind) and are_text(kind.value_type)


def _plain_bytes(column: pa.ChunkedArray) -> int:
    return sum(_PLACE_BYTES * len(array) + _text_bytes(array) for array in column.chunks)


def _text_bytes(array: pa.DictionaryArray) -> int:
    lengths = pc.binary_length(array.dictionary)
    most = len(array) * (pc.max(lengths).as_py() or 0)
    return most if most <= _SHORT_BYTES else pc.sum(lengths.take(array.indices)).as_py() or 0


def bounded(rows: pa.Table, most_bytes: int) -> Iterator[pa.Table]:
    """The rows in pieces that need no more when no column is a dictionary, or are of one row."""
    if rows.num_rows <= 1 or plain_bytes(rows) <= most_bytes:
        yield rows
        return
    half = rows.num_rows // 2
    yield from bounded(rows.slice(0, half), most_bytes)
    yield from bounded(rows.slice(half), most_bytes)


def as_read(schema: pa.Schema, columns: Sequence[pa.ChunkedArray]) -> pa.Schema:
    """The schema, with dictionaries for those of its columns that are."""
    # types of arrays lack the field ids within them
    read = [f.with_type(c.type) if types.is_dictionary(c.type) else f for f, c in zip(schema, columns, strict=True)]
    return pa.schema(read, schema.metadata)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """Return the type without dictionaries at any level; those of pandas' categories have room for 128 values, so
    those of two files do not fit into one."""
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
    """Return whether pyarrow makes no dictionaries of some pages of these columns."""
    return any(
        column.top in dictionaries and not _encodings(chunk) <= _READ_AS_DICTIONARIES
        for group in footer.row_groups
        for column, chunk in zip(footer.columns, group.chunks, strict=True)
    )


def without_arrow_schema(footer: pq.FileMetaData) -> pq.FileMetaData:
    """Return the footer without its keys, of which one holds the Arrow schema: columns have the types of Parquet."""
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
    """The same rows, with dictionaries where the schema has them."""
    if rows.schema.equals(schema):
        return rows
    columns = [_as(column, kind) for column, kind in zip(rows.columns, schema.types, strict=True)]
    return pa.Table.from_arrays(columns, schema=schema)


def _as(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if column.type.equals(kind):
        return column
    return column.dictionary_encode() if types.is_dictionary(kind) else column.cast(kind)


def with_short_dictionaries(rows: pa.Table, most_bytes: int) -> pa.Table:
    """The same rows; longer dictionaries are plain values: pyarrow writes a dictionary whatever limit it is given."""
    short = [longest_dictionary(rows.select([i])) <= most_bytes for i in range(rows.num_columns)]
    fields = [f if kept else f.with_type(f.type.value_type) for f, kept in zip(rows.schema, short, strict=True)]
    return of_schema(rows, pa.schema(fields, rows.schema.metadata))


def with_used_values(rows: pa.Table) -> pa.Table:
    """The same rows; dictionaries have no value that no row has: pyarrow may take it into the bounds where there are
    nulls, and calls them exact."""
    columns = [_used(column) if types.is_dictionary(column.type) else column for column in rows.columns]
    return pa.Table.from_arrays(columns, schema=rows.schema)


def _used(column: pa.ChunkedArray) -> pa.ChunkedArray:
    longest = {len(array.dictionary) for array in column.chunks}
    # those of few values have mostly all of them in the first rows
    for indices in (column.chunks[:1], column.chunks):
        found = pa.chunked_array([array.indices for array in indices], column.type.index_type).unique()
        if longest <= {len(found.drop_null())}:
            return column
    return column.cast(column.type.value_type).dictionary_encode()


def longest_dictionary(rows: pa.Table) -> int:
    """Arrow memory of the largest dictionary, 0 when there is none."""
    columns = (column for column in rows.columns if types.is_dictionary(column.type))
    return max((array.dictionary.nbytes for column in columns for array in column.chunks), default=0)


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table; what is a dictionary in any of them is one in it, the same for all rows."""
    schema = tables[0].schema
    for table in tables[1:]:
        if not table.schema.equals(schema):
            both = zip(schema, table.schema, strict=True)
            schema = pa.schema([b if types.is_dictionary(b.type) else a for a, b in both], schema.metadata)
    return pa.concat_tables([of_schema(table, schema) for table in tables]).unify_dictionaries()
