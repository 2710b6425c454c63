"""Numbers as people read them: sizes in MiB and GiB, counts with separators, times in UTC."""

from __future__ import annotations

from datetime import datetime, timezone

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(size_bytes: float) -> str:
    """`512 MiB`, `9.6 GiB`, `830 B`: powers of 1024, one decimal below 100 unless it is zero."""
    value, unit = float(size_bytes), 0
    # 1023.95 would be printed as 1024.0
    while value >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    text = f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{text.removesuffix('.0')} {_UNITS[unit]}"


def format_count(number: int, noun: str) -> str:
    """`1 file`, `1,212 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def format_strategies(bytes_copied: int, pages_copied: int, bytes_decoded: int) -> str:
    """`7.9 GiB copied in 1,200 pages, 1.7 GiB decoded`, without what is zero."""
    pages = f" in {format_count(pages_copied, 'page')}" if pages_copied else ""
    parts = [(bytes_copied, f"copied{pages}"), (bytes_decoded, "decoded")]
    return ", ".join(f"{format_bytes(size)} {word}" for size, word in parts if size)


def format_time(timestamp_ms: int) -> str:
    """`2026-11-20 14:05:01` of milliseconds since 1970, in UTC."""
    return datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")
