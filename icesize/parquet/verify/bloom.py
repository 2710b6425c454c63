"""Whether a column chunk's bloom filter can be read and has all values.

Specification: parquet-format/BloomFilter.md, split block bloom filters with xxHash.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import xxhash

from icesize.parquet.format.fields import BloomFilterHeader, ColumnMetaData
from icesize.parquet.format.footer import Chunk
from icesize.parquet.format.schema import BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY, INT32, INT64
from icesize.parquet.format.sources import Source
from icesize.parquet.format.thrift import Fields, MalformedError, integer, read_struct, required_integer, struct_of
from icesize.parquet.verify.values import Leaves

_HEADER_BYTES = 128
"""More than a header can have."""
_BLOCK_BYTES = 32
_SALT = np.array(
    [0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31], dtype=np.uint32
)


def check_bloom_filter(source: Source, footer_start: int, chunk: Chunk, leaves: Leaves) -> Iterator[str]:
    """Look up every value of integers and bytes in the filter; raises `MalformedError`, `CopyRefused`."""
    offset = integer(chunk.metadata, ColumnMetaData.BLOOM_FILTER_OFFSET)
    if offset is None:
        return
    header, header_bytes = read_struct(source.read(offset, max(0, min(_HEADER_BYTES, footer_start - offset))))
    size_bytes = required_integer(header, BloomFilterHeader.NUM_BYTES)
    length = integer(chunk.metadata, ColumnMetaData.BLOOM_FILTER_LENGTH)
    if size_bytes <= 0 or size_bytes % _BLOCK_BYTES or offset + header_bytes + size_bytes > footer_start:
        yield f"the bloom filter has {size_bytes} bytes at {offset}"
    elif length is not None and length != header_bytes + size_bytes:
        yield f"bloom_filter_length is {length}, it has {header_bytes + size_bytes}"
    elif _is_known(header):
        bits = np.frombuffer(source.read(offset + header_bytes, size_bytes), dtype="<u4").reshape(-1, 8)
        missing = int((~_contains(bits, _hashes(leaves.values, chunk))).sum())
        if missing:
            yield f"the bloom filter lacks {missing} values"


def _is_known(header: Fields) -> bool:
    """Blocks, xxHash, no compression: the only ones there are."""
    fields = (BloomFilterHeader.ALGORITHM, BloomFilterHeader.HASH, BloomFilterHeader.COMPRESSION)
    unions = [struct_of(header, field_id) for field_id in fields]
    if any(union is None for union in unions):
        raise MalformedError("a bloom filter without algorithm, hash or compression")
    return all(union is not None and 1 in union for union in unions)


def _hashes(values: Any, chunk: Chunk) -> npt.NDArray[np.uint64]:
    kind = chunk.type
    unique = pc.unique(values.drop_null())
    if kind in (INT32, INT64):
        width = 4 if kind == INT32 else 8
        data = unique.to_numpy().astype(f"<i{width}").tobytes()
        plain = [data[at : at + width] for at in range(0, len(data), width)]
    else:
        plain = unique.to_pylist() if kind in (BYTE_ARRAY, FIXED_LEN_BYTE_ARRAY) else []
    return np.array([xxhash.xxh64_intdigest(value) for value in plain], dtype=np.uint64)


def _contains(blocks: npt.NDArray[np.uint32], hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
    numbers = (hashes >> np.uint64(32)) * np.uint64(len(blocks)) >> np.uint64(32)
    keys = hashes.astype(np.uint32)  # the lower half
    masks = np.uint32(1) << ((keys[:, None] * _SALT) >> np.uint32(27))
    return np.asarray((blocks[numbers] & masks != 0).all(axis=1), dtype=np.bool_)
