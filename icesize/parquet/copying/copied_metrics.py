"""Iceberg counts and sizes of a file that was made by copying, from its footer as icesize reads it.

The footer holds statistics of other writers. pyarrow ends the process for some that are damaged, so it is not asked.
"""

from __future__ import annotations

from collections.abc import Sequence

from icesize.parquet.copying.assembly import Assembled
from icesize.parquet.files.data_file import WrittenFile
from icesize.parquet.files.metrics import leaves
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.format.fields import Statistics
from icesize.parquet.format.footer import Chunk, parse_footer
from icesize.parquet.format.refusals import CopyRefused, Refusal
from icesize.parquet.format.thrift import MalformedError, integer
from icesize.planning.files import PartitionKey


def describe_copied(settings: WriteSettings, path: str, partition: PartitionKey, assembled: Assembled) -> WrittenFile:
    """Column sizes, value counts and null counts by the table's metrics modes; no bounds and no NaN counts.

    A column has a null count where all its chunks have one that can be true. Raises `CopyRefused` for a footer or
    statistics that cannot be read.
    """
    footer = parse_footer(assembled.footer, assembled.size_bytes)
    columns = [(leaf, [group.chunks[leaf.position] for group in footer.row_groups]) for leaf in leaves(settings)]
    counted = [(leaf.field_id, chunks) for leaf, chunks in columns if leaf.counts]
    nulls = {field_id: _null_count(chunks) for field_id, chunks in counted}
    return WrittenFile(
        path,
        assembled.size_bytes,
        footer.rows,
        partition,
        column_sizes={leaf.field_id: sum(chunk.size_bytes for chunk in chunks) for leaf, chunks in columns},
        value_counts={field_id: sum(chunk.values for chunk in chunks) for field_id, chunks in counted},
        null_value_counts={field_id: count for field_id, count in nulls.items() if count is not None},
        split_offsets=assembled.split_offsets,
    )


def _null_count(chunks: Sequence[Chunk]) -> int | None:
    total = 0
    for chunk in chunks:
        try:
            count = integer(chunk.statistics, Statistics.NULL_COUNT)
        except MalformedError as error:
            raise CopyRefused(Refusal.CORRUPT_FOOTER, f"statistics: {error}") from error
        if count is None or not 0 <= count <= chunk.values:
            return None
        total += count
    return total
