"""Rows of input files that cannot be copied, encoded as row groups that can be copied into the output."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.schema import Schema
from pyroaring import BitMap

from icesize.parquet.files.metrics import FloatFacts, leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.footer import Footer, read_footer
from icesize.parquet.format.schema import REQUIRED, Element, top_level
from icesize.parquet.format.sources import BytesSource
from icesize.parquet.reading.conservation import Conservation
from icesize.parquet.reading.extremes import without_rows
from icesize.parquet.reading.inputs import Stream, read_inputs
from icesize.parquet.reading.prefetch import Fetched
from icesize.parquet.row_groups.footer_lineage import without_lineage
from icesize.parquet.writing.encoding import Encoding, dictionary_columns, leaf_values
from icesize.parquet.writing.file_writer import parquet_writer
from icesize.planning.plan import FileGroup


@dataclass(frozen=True, slots=True)
class EncodedRows:
    """Rows as a Parquet file in memory with one row group, and the facts of columns that hold NaN, by field id.

    The columns of the row lineage are apart from those of the `footer` (`without_lineage`).
    """

    source: BytesSource
    footer: Footer
    metadata: pq.FileMetaData
    floats: dict[int, FloatFacts] = field(default_factory=dict)


def empty_like(settings: WriteSettings, copied: Sequence[Element]) -> EncodedRows:
    """Return the result of `encoded_rows` for no rows, which shows whether its schema is that of the copied files."""
    settings, schema = _like(copied, settings)
    return _encode(without_rows(settings.arrow_schema), schema, settings)


def encoded_rows(
    group: FileGroup,
    settings: WriteSettings,
    copied: Sequence[Element],
    fetched: Fetched,
    deleted: Mapping[str, BitMap],
    counted: Conservation,
) -> Iterator[EncodedRows]:
    """Yield the rows of all input files, except the `deleted` ones, in runs of one row group each.

    Memory holds one run at a time. `copied` is the schema of the files that the rows are joined with. The rows read are
    `counted`. Raises `RewriteFailed` for an input file that cannot be read.
    """
    settings, schema = _like(copied, settings)
    inputs = read_inputs(group, settings, fetched, deleted, counted)
    tables = Stream(inputs, settings.limits.decoded_bytes)
    live = left = group.rows - sum(len(deleted.get(file.path, ())) for file in group.inputs)
    groups = settings.parquet.row_groups(group.size_bytes, left)
    while left:
        rows = tables.take(min(left, math.ceil(live / groups)))
        left -= rows.num_rows
        yield _encode(rows, schema, settings)
    for _ in tables.rest():  # reads to the end, where a file with more rows than its manifest records is noticed
        continue


def _like(copied: Sequence[Element], settings: WriteSettings) -> tuple[WriteSettings, pa.Schema]:
    """Return settings and an Arrow schema with the names of the copied columns, required if the copied columns are.

    Columns may have been renamed since the copied files were written. Readers match columns by field ids. Bloom filters
    are requested by name, however, so a table with bloom filters keeps its names, and nothing is copied. Spark writes a
    column as required if its rows cannot be null.
    """
    columns, fields = [copied[at.start] for at in top_level(copied)], settings.schema.fields
    if len(columns) != len(fields):
        return settings, settings.arrow_schema
    names = [column.name.decode() for column in columns]
    if not settings.parquet.bloom_fpp and names != [field.name for field in fields]:
        renamed = [field.model_copy(update={"name": name}) for field, name in zip(fields, names, strict=True)]
        settings = settings.with_schema(Schema(*renamed, schema_id=settings.schema_id))
    schema = settings.arrow_schema
    strict = [column.repetition == REQUIRED for column in columns]
    required = [f.with_nullable(False) if strict[i] else f for i, f in enumerate(schema)]
    return settings, pa.schema(required, metadata=schema.metadata)


def _encode(rows: pa.Table, schema: pa.Schema, settings: WriteSettings) -> EncodedRows:
    columns = [leaf for leaf in leaves(settings) if leaf.is_float]
    floats = {leaf.field_id: FloatFacts.of(values) for leaf, values in leaf_values(columns, rows)}
    # a null in a required column makes it optional, which the schema check finds before anything is copied
    schema = pa.schema([f.with_nullable(f.nullable or c.null_count > 0) for f, c in zip(schema, rows, strict=True)])
    with_nan = {field_id: facts for field_id, facts in floats.items() if facts.nans}
    encoding = Encoding(dictionary_columns(settings, rows), frozenset(with_nan))
    sink = pa.BufferOutputStream()
    with parquet_writer(settings, sink, encoding, rows.num_rows, schema) as writer:
        writer.write_table(pa.Table.from_arrays(rows.columns, schema=schema), row_group_size=max(1, rows.num_rows))
    source = BytesSource(memoryview(sink.getvalue()))
    return EncodedRows(source, without_lineage(read_footer(source)), writer.writer.metadata, with_nan)
