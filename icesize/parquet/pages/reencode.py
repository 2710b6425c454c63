"""Columns whose pages cannot be copied, encoded again by pyarrow; the caller sets pyarrow's memory pool.

Texts that are all in small dictionaries are read and written as Arrow dictionaries. `benchmarks deletes` on lineitem
with random deletes takes 1.5 of the CPU time without that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby
from weakref import WeakKeyDictionary

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import types

from icesize.parquet.files.properties import ParquetOptions
from icesize.parquet.format.fields import ColumnMetaData, LogicalType, Statistics
from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.pages import CODEC_NAMES, LEVELLED_CODECS
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.schema import BYTE_ARRAY, INT32, INT64, Column, top_level_trees
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.format.statistics import bounds_differ, count_of, merge_statistics
from icesize.parquet.format.thrift import Fields, struct_field
from icesize.parquet.pages.column_plan import ColumnPlan, Part, Piece
from icesize.parquet.pages.page_copy import read_indexes, read_piece
from icesize.parquet.reading.inputs import open_parquet
from icesize.parquet.reading.value_bytes import most_value_bytes
from icesize.parquet.writing.encoding import DICTIONARY_RATIO, flatten, repeats

_DICTIONARY_BYTES = 2**20
_OPENED: WeakKeyDictionary[Footer, pq.FileMetaData] = WeakKeyDictionary()
"""Footers as pyarrow reads them, which takes as long as reading a column of 10,000 rows: files are opened for each."""


def reencode(parts: Sequence[Part], top: str, plan: ColumnPlan, level: int | None) -> list[Piece]:
    """Decode a top-level column of all parts, in their order, and encode it: a chunk for each of its leaves.

    The codec is that of the first part, at `level` if the codec has levels (None is its default). Chunks with NaN have
    no bounds. Raises `CopyRefused` if pyarrow cannot read the pages, would write the column in another form, or writes
    values that contradict the footers.
    """
    try:
        return _reencode(parts, top, plan, level)
    except (pa.ArrowException, OSError) as error:
        raise CopyRefused(Refusal.PAGES, f"{top}: {error}") from error


def most_decoded_bytes(parts: Sequence[Part], plan: ColumnPlan) -> int:
    """Return an upper limit of the Arrow memory of a column that `plan` encodes again, all of it in memory."""
    taken = Counter[str]()
    for index, column in enumerate(parts[0].footer.columns):
        if column.top in plan.reencode:
            chunks = ((part.source, part.group.chunks[index]) for part in parts)
            taken[column.top] += sum(most_value_bytes(source, chunk, column) for source, chunk in chunks)
    return max(taken.values(), default=0)


def _reencode(parts: Sequence[Part], top: str, plan: ColumnPlan, level: int | None) -> list[Piece]:
    columns = parts[0].footer.columns
    indices = [index for index, column in enumerate(columns) if column.top == top]
    first = parts[0].group.chunks[indices[0]]
    if first.codec not in CODEC_NAMES:
        raise CopyRefused(Refusal.CODEC, f"{top} has codec {first.codec}")
    leaves = [columns[index] for index in indices]
    few = [_few_by_dictionaries(parts, plan, index) for index in indices]
    table = _read(parts, top, as_dictionary=few[0] and _is_text(leaves))
    arrays = flatten(table.column(0))
    if len(arrays) != len(leaves):
        raise CopyRefused(Refusal.SCHEMA_DIFFERS, f"{top} has {len(arrays)} leaves of {len(leaves)}")
    nan = [_holds_nan(array) for array in arrays]
    codec = CODEC_NAMES[first.codec]
    level = level if codec in LEVELLED_CODECS else None
    names = [".".join(leaf.path) for leaf in leaves]
    low = [name for name, array, known in zip(names, arrays, few, strict=True) if known or _has_few_values(array)]
    # readers take bounds as a promise that no value is NaN
    bounded = [name for name, holds_nan in zip(names, nan, strict=True) if not holds_nan]
    options = ParquetOptions(codec, level, dictionary_bytes=_DICTIONARY_BYTES)
    as_integer = any(_is_decimal(leaf) and leaf.element.type in (INT32, INT64) for leaf in leaves)
    # page limits are checked only once per batch; indices into a dictionary are small
    batch = {"write_batch_size": options.page_rows} if types.is_dictionary(table.schema.types[0]) else {}
    source = BytesSource(options.in_memory(table, low, bounded, store_decimal_as_integer=as_integer, **batch))
    footer = read_footer(source)
    _check_same(footer, parts[0].footer, top)
    chunks, rows = footer.row_groups[0].chunks, sum(part.rows for part in parts)
    indexes = read_indexes(source, chunks)
    return [
        _checked(
            read_piece(source, chunk, rows, leaf, indexes, memoryview(bytearray(chunk.size_bytes))),
            leaf, array, _known_statistics(parts, index), holds_nan,
        )
        for chunk, leaf, array, index, holds_nan in zip(chunks, leaves, arrays, indices, nan, strict=True)
    ]  # fmt: skip


def _checked(piece: Piece, leaf: Column, array: pa.ChunkedArray, known: Fields, holds_nan: bool) -> Piece:
    """Return a chunk with the values of `array`; with NaN, it keeps only the number of NULLs of `known`."""
    chunk = piece.chunk
    entries, nulls = count_of(chunk, leaf)
    is_short = nulls is not None and entries - nulls != len(array) - array.null_count
    if is_short or bounds_differ(leaf.element, known, chunk.statistics):
        raise CopyRefused(Refusal.COUNTS, ".".join(leaf.path))
    if not holds_nan:
        return piece
    kept = {field_id: known[field_id] for field_id in known.keys() & {Statistics.NULL_COUNT}}
    return replace(
        piece, chunk=replace(chunk, metadata={**chunk.metadata, ColumnMetaData.STATISTICS: struct_field(kept)})
    )


def _known_statistics(parts: Sequence[Part], index: int) -> Fields:
    """Join the statistics of the older chunks; there are none if rows of a part are deleted."""
    if any(part.deleted for part in parts):
        return {}
    chunks = [part.group.chunks[index] for part in parts]
    return merge_statistics(parts[0].footer.columns[index].element, [(c.statistics, c.values) for c in chunks]) or {}


def _read(parts: Sequence[Part], top: str, *, as_dictionary: bool) -> pa.Table:
    files = [list(same) for _, same in groupby(parts, key=lambda part: part.footer)]
    tables = [_read_file(file, top, as_dictionary=as_dictionary) for file in files]
    if as_dictionary and any(table.schema.types[0] != tables[0].schema.types[0] for table in tables):
        tables = [_read_file(file, top) for file in files]
    optional = any(top in part.footer.strict for part in parts) or any(t.schema.field(0).nullable for t in tables)
    schema = pa.schema([tables[0].schema.remove_metadata().field(0).with_nullable(optional)])
    # the Arrow schemas that writers leave in files differ, for example in the kind of strings
    alike = [table if table.schema.equals(schema) else table.cast(schema) for table in tables]
    return _with_used_values(_live(pa.concat_tables(alike), parts))


def _live(rows: pa.Table, parts: Sequence[Part]) -> pa.Table:
    """Return the rows of all parts except the deleted ones."""
    if not any(part.deleted for part in parts):
        return rows
    firsts = accumulate((part.group.rows for part in parts), initial=0)
    gone = np.concatenate([first + part.deleted_rows for first, part in zip(firsts, parts, strict=False)])
    kept = np.ones(rows.num_rows, bool)
    kept[gone] = False
    bits = pa.py_buffer(np.packbits(kept, bitorder="little"))
    # Arrow filters a table row by row, and a column run by run: half the time if few rows are deleted
    live = rows.column(0).filter(pa.BooleanArray.from_buffers(pa.bool_(), len(kept), [None, bits]))
    return pa.Table.from_arrays([live], schema=rows.schema)


def _with_used_values(rows: pa.Table) -> pa.Table:
    """Return the same rows; a dictionary holds only values of rows.

    If there are nulls, pyarrow may include unused values in the bounds, and marks these bounds as exact.
    """
    if not types.is_dictionary(rows.schema.types[0]):
        return rows
    rows = rows.unify_dictionaries()
    column = rows.column(0)
    used = pa.chunked_array([array.indices for array in column.chunks], column.type.index_type).unique().drop_null()
    if any(len(array.dictionary) != len(used) for array in column.chunks):
        column = column.cast(column.type.value_type).dictionary_encode()
    return pa.Table.from_arrays([column], schema=rows.schema)


def read_column(parts: Sequence[Part], top: str) -> pa.ChunkedArray:
    """Return a column of row groups of one file; raises `CopyRefused` if pyarrow cannot read it."""
    try:
        return _read_file(parts, top).column(0)
    except (pa.ArrowException, OSError) as error:
        raise CopyRefused(Refusal.PAGES, f"{top}: {error}") from error


def _read_file(parts: Sequence[Part], top: str, *, as_dictionary: bool = False) -> pa.Table:
    """Read the rows of row groups of one file."""
    footer = parts[0].footer
    ordinals = {group: ordinal for ordinal, group in enumerate(footer.row_groups)}
    with parts[0].source.stream() as stream:
        file = open_parquet(stream, _OPENED.get(footer), [top] if as_dictionary else None)
        _OPENED[footer] = metadata = file.metadata
        groups = range(metadata.num_row_groups)
        filled = [group for group in groups if metadata.row_group(group).num_rows]
        wanted = [filled[ordinals[part.group]] for part in parts]
        table = file.read_row_groups(wanted, columns=[top], use_threads=False)
    if table.column_names != [top]:
        raise CopyRefused(Refusal.SCHEMA_DIFFERS, f"{top} is read as {table.column_names}")
    if types.is_dictionary(table.schema.types[0]):
        _check_indices(table.column(0))
    return table.replace_schema_metadata(None)


def _check_indices(column: pa.ChunkedArray) -> None:
    """Raise `ArrowInvalid` for an index beyond its dictionary.

    pyarrow returns indices of damaged pages unchanged, and reads beyond the dictionary when it uses them.
    """
    for array in column.chunks:
        found = pc.min_max(array.indices).as_py()
        if found["min"] is not None and not 0 <= found["min"] <= found["max"] < len(array.dictionary):
            raise pa.ArrowInvalid("an index is larger than its dictionary")


def _is_text(leaves: Sequence[Column]) -> bool:
    """Return whether pyarrow can read a column as indices into a dictionary."""
    first = leaves[0]
    return len(leaves) == 1 and len(first.path) == 1 and first.element.type == BYTE_ARRAY and not _is_decimal(first)


def _few_by_dictionaries(parts: Sequence[Part], plan: ColumnPlan, index: int) -> bool:
    """Return whether a dictionary is worth it, judged from the column's present dictionaries."""
    at_most, values = plan.leaves[index].entries, sum(part.group.chunks[index].values for part in parts)
    return at_most is not None and at_most <= DICTIONARY_RATIO * values


def _is_decimal(leaf: Column) -> bool:
    return leaf.element.logical is not None and leaf.element.logical[0] == LogicalType.DECIMAL


def _has_few_values(array: pa.ChunkedArray) -> bool:
    if types.is_float16(array.type):
        return False
    try:
        return repeats(array, _DICTIONARY_BYTES)
    except pa.ArrowNotImplementedError:  # an Arrow schema in a file can request such a type
        return False


def _holds_nan(array: pa.ChunkedArray) -> bool:
    if types.is_float16(array.type):
        return True  # some readers do not support the order of its bounds
    return bool(types.is_floating(array.type)) and bool(pc.any(pc.is_nan(array)).as_py())


def _check_same(footer: Footer, original: Footer, top: str) -> None:
    """Raise `CopyRefused` if the trees differ: definition and repetition levels mean the same only in equal trees."""
    written = top_level_trees(footer.schema).get(top)
    if written != top_level_trees(original.schema)[top] or len(footer.row_groups) != 1:
        raise CopyRefused(Refusal.SCHEMA_DIFFERS, f"{top} would be written in another form")
