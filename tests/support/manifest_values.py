"""Manifest entries as PyIceberg reads them, in a form that can be compared."""

from __future__ import annotations

from typing import Any

from pyiceberg.manifest import ManifestFile
from pyiceberg.typedef import Record


def plain(value: Any) -> Any:
    """A value that equals itself: NaN as text, lazy maps as dicts, records as tuples."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Record):
        return tuple(plain(value[i]) for i in range(len(value)))
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    return dict(value) if hasattr(value, "items") else value


def without_zero_sign(summary: Any, manifest: ManifestFile, i: int) -> Any:
    """0.0 and -0.0 are equal, so either may be the bound; take the one that was written."""
    assert manifest.partitions is not None
    zeros = (bytes(4), bytes(8), b"\0\0\0\x80", b"\0\0\0\0\0\0\0\x80")
    return tuple(
        ours if ours in zeros and value in zeros else value
        for value, ours in zip(plain(summary), plain(manifest.partitions[i]), strict=True)
    )
