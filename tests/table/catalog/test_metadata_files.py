"""Older metadata files: read however they are compressed, never taken for empty."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.errors import TableError
from icesize.table.catalog.metadata_files import read_metadata_file

DATA = {"refs": {"ü": 1}, "metadata-log": [{"metadata-file": "a"}]}


@pytest.mark.parametrize("name", ["v1.metadata.json", "v1.gz.metadata.json", "v1.metadata.json.gz"])
@pytest.mark.parametrize("compressed", [True, False])
def test_metadata_files_are_read(tmp_path: Path, name: str, compressed: bool) -> None:
    """By what is in them, whatever their names promise."""
    text = json.dumps(DATA).encode()
    (tmp_path / name).write_bytes(gzip.compress(text) if compressed else text)
    assert read_metadata_file(PyArrowFileIO(), f"file://{tmp_path}/{name}") == DATA


def test_a_file_that_is_gone_is_none(tmp_path: Path) -> None:
    """Tables may delete what drops out of their log."""
    assert read_metadata_file(PyArrowFileIO(), f"file://{tmp_path}/v1.metadata.json") is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[1]",
        b"null",
        b"\xff\xfe",
        gzip.compress(b"{}", mtime=0)[:12],
        gzip.compress(b"{", mtime=0),
        b"\x1f\x8bxxxxxxx",
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, data: bytes) -> None:
    """Taken for empty it would say that nobody made a tag, and that the table has no older files."""
    (tmp_path / "v1.metadata.json").write_bytes(data)
    with pytest.raises(TableError, match=r"Cannot read the metadata file .*v1\.metadata\.json: it is damaged"):
        read_metadata_file(PyArrowFileIO(), f"file://{tmp_path}/v1.metadata.json")
