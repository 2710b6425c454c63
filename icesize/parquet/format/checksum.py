"""CRC-32 of pages, as fast as memory is read: zlib-ng computes it 4-10 times as fast as most builds of zlib."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from zlib import crc32
else:
    try:
        from zlib_ng.zlib_ng import crc32
    except ImportError:  # workers that got icesize as an archive have what is installed there
        from zlib import crc32

__all__ = ["crc32"]
