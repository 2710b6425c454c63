"""Deletion vectors written by hand, without a table and without icesize's writer."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyroaring import BitMap64

from icesize.planning.files import DeleteFile
from tests.support.unit_deletes import UNPARTITIONED

MAGIC = bytes.fromhex("d1d33964")
BEFORE = b"PFA1"
"""The bytes before the first vector of a Puffin file."""


def framed(bitmap: bytes, magic: bytes = MAGIC) -> bytes:
    """A vector with this bitmap."""
    data = magic + bitmap
    return len(data).to_bytes(4, "big") + data + zlib.crc32(data).to_bytes(4, "big")


def vector(positions: Iterable[int]) -> bytes:
    """A vector of these positions, which may be larger than 2**32."""
    return framed(BitMap64(positions).serialize())


def stored(
    path: Path, vectors: Mapping[str, tuple[bytes, int]], number: int = 1, gap_bytes: int = 0
) -> list[DeleteFile]:
    """A new file with one vector for each path of a data file: its bytes, and its number of positions."""
    data, places = BEFORE, list[int]()
    for blob, _ in vectors.values():
        data += bytes(gap_bytes)
        places.append(len(data))
        data += blob
    path.write_bytes(data)
    return [
        DeleteFile(
            str(path), len(data), rows, UNPARTITIONED, number, "PUFFIN", referenced_path=named,
            content_offset=at, content_size_bytes=len(blob),
        )
        for (named, (blob, rows)), at in zip(vectors.items(), places, strict=True)
    ]  # fmt: skip


def vectors_in(
    path: Path, positions: Mapping[str, Iterable[int]], number: int = 1, gap_bytes: int = 0
) -> list[DeleteFile]:
    """A new file with the vectors of these positions, by the path of the data file."""
    sets = {name: set(some) for name, some in positions.items()}
    return stored(path, {name: (vector(some), len(some)) for name, some in sets.items()}, number, gap_bytes)
