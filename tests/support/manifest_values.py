"""Manifest entries as PyIceberg reads them, in a form that can be compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from pyiceberg.io import FileIO
from pyiceberg.manifest import ManifestFile
from pyiceberg.typedef import Record

from icesize.table.manifests.file_columns import EntryColumns, Texts, read_facts


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


def check_written_facts(io: FileIO, manifests: Iterable[ManifestFile], facts: Mapping[str, EntryColumns]) -> None:
    """The facts that a writer has of its manifests are those that a reader gets."""
    read = {manifest.manifest_path: read_facts(io, manifest).columns for manifest in manifests}
    assert {path: _columns(each) for path, each in facts.items()} == {
        path: _columns(each) for path, each in read.items()
    }


def _columns(columns: EntryColumns) -> list[Any]:
    values = (getattr(columns, field.name) for field in dataclasses.fields(columns))
    return [_column(value) for value in values]


def _column(value: Any) -> Any:
    if isinstance(value, Texts):
        return value.at(np.arange(len(value.ends) - 1))
    return (value.dtype, value.tolist()) if isinstance(value, np.ndarray) else repr(value)
