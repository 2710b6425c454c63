"""What a table lets merges copy, and which files are likely to be copied: as far as manifests and footers tell."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

from icesize.parquet.footer import Footer, read_footer
from icesize.parquet.lanes import Wanted, is_tiny
from icesize.parquet.metrics import leaves
from icesize.parquet.refusal import UNREADABLE, CopyRefused, Refusal
from icesize.parquet.settings import WriteSettings
from icesize.parquet.sorting import sorter_of
from icesize.parquet.source import BytesSource, Readable
from icesize.planning.layout import FileFact

_CODECS = {"none": 0, "snappy": 1, "gzip": 2, "zstd": 6, "lz4": 7}
"""Names of `ParquetOptions.codec` -> CompressionCodec of parquet.thrift."""
_CODEC_PROPERTY = "write.parquet.compression-codec"


def forbidden(settings: WriteSettings) -> Refusal | None:
    """Why no merge of this table may copy anything; None when they may."""
    if not settings.merge_by_copying:
        return Refusal.COPYING_OFF
    return None if sorter_of(settings) is None else Refusal.SORTED


def likely_copied(files: Iterable[FileFact], settings: WriteSettings) -> list[FileFact]:
    """The files that are not too small to be worth a look at their footers, by their manifest entries."""
    columns = len(leaves(settings))
    return [file for file in files if not is_tiny(file.size_bytes, file.rows, columns)]


def footer_or_refusal(source: Readable) -> Footer | CopyRefused:
    """The footer of a file, or what is wrong with it, to be kept."""
    try:
        return read_footer(source)
    except CopyRefused as refused:
        return refused.alone()
    except UNREADABLE as error:
        return CopyRefused(Refusal.SHORT_READ, str(error))


def wanted_of(settings: WriteSettings) -> Wanted:
    """What the table asks of files, read from the footer that our own writer gives to one without rows."""
    sink = pa.BufferOutputStream()
    options = settings.parquet
    pq.write_table(settings.arrow_schema.empty_table(), sink, store_schema=False, store_decimal_as_integer=True)
    schema = read_footer(BytesSource(memoryview(sink.getvalue()))).schema
    codec = _CODECS[options.codec] if _CODEC_PROPERTY in settings.properties else None
    filters = frozenset(leaf.field_id for leaf in leaves(settings) if leaf.name in options.bloom_fpp)
    return Wanted(schema, codec, filters)
