"""Numbers in human-readable form: sizes in MiB and GiB, durations, counts with separators, times in UTC."""

from __future__ import annotations

import re
from contextlib import suppress
from datetime import datetime, timezone

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def format_bytes(size_bytes: float) -> str:
    """Return a size such as `512 MiB`, `9.6 GiB` or `830 B`, in powers of 1024.

    Sizes below 100 have one decimal unless it is zero.
    """
    value, unit = float(size_bytes), 0
    # from 1023.95 on, the rounded value would be printed as 1024.0
    while value >= 1023.95 and unit < len(_UNITS) - 1:
        value /= 1024
        unit += 1
    text = f"{value:,.1f}" if value < 100 else f"{value:,.0f}"
    return f"{text.removesuffix('.0')} {_UNITS[unit]}"


def format_count(number: int, noun: str) -> str:
    """Return a count with its noun: `1 file`, `1,212 files`, `2 batches`."""
    plural = "es" if noun.endswith(("s", "x", "ch", "sh")) else "s"
    return f"{number:,} {noun}{'' if number == 1 else plural}"


def format_seconds(seconds: float) -> str:
    """Return a duration such as `26 ms`, `1.1 s` or `60 s`."""
    return f"{1000 * seconds:.0f} ms" if seconds < 1 else f"{seconds:,.1f}".removesuffix(".0") + " s"


def format_time(timestamp_ms: int) -> str:
    """Return milliseconds since 1970 as a time in UTC: `2026-11-20 14:05:01`."""
    return datetime.fromtimestamp(timestamp_ms / 1000, timezone.utc).strftime("%Y-%m-%d %H:%M:%S")


def time_of(text: str) -> datetime:
    """Return a time in ISO 8601, which has a zone if the text has one; raise `ValueError` for other text.

    Python 3.10 does not read `Z`.
    """
    return datetime.fromisoformat(re.sub("[Zz]$", "+00:00", text))  # noqa: TID251


_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGTP]iB|B)")
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_WORDS = r"(?:econds?|inutes?|ours?|ays?|eeks?)?"
"""Ends of units that are written out: `2 days` means `2d`."""
_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
SIZE_EXAMPLES = "such as 64MiB or 1.5GiB, in powers of 1024"
DURATION_EXAMPLES = "such as 90s, 30m or 1h30m"


def parse_bytes(text: str) -> int | None:
    """Return the bytes of a size with a unit, `64MiB` or `1.5 GiB`; None for other text.

    Units are powers of 1024. `512MB` is rejected because its meaning is ambiguous.
    """
    if match := _SIZE.fullmatch(text.strip()):
        return round(float(match[1]) * (1 << 10 * _UNITS.index(match[2])))
    return None


def bytes_of(value: int | str) -> int | None:
    """Return a number of bytes, passed as a number or as text with or without a unit; None for other text."""
    if not isinstance(value, str):
        return value
    return int(value) if value.isdecimal() else parse_bytes(value)


def seconds_of(value: float | str) -> float | None:
    """Return a number of seconds, passed as a number or as text with or without units; None for other text."""
    if not isinstance(value, str):
        return value
    with suppress(ValueError):
        if float(value) >= 0:
            return float(value)
    duration_ms = parse_ms(value)
    return None if duration_ms is None else duration_ms / 1000


def parse_ms(text: str) -> int | None:
    """Return the milliseconds of a duration with units, `500ms`, `2h` or `1h30m`; None for other text."""
    text = text.strip()
    if not re.fullmatch(rf"({_DURATION.pattern}{_WORDS}\s*)+", text):
        return None
    return round(sum(float(number) * _MS[unit] for number, unit in _DURATION.findall(text)))
