"""Any name that another writer gives to a file makes the round trip: listed once, looked up and read as itself."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.maintenance.verify_storage import Stored, size_of
from icesize.parquet.files.storage import Storage, cannot_open, missing_files
from icesize.table.catalog.locations import names_one_file
from icesize.table.manifests.listing import path_numbers
from icesize.table.storage.listing import list_files, modified_ms

PIECES = (
    "#",
    "?",
    "%",
    "%20",
    "%2F",
    "+",
    " ",
    "ü",
    "€",
    "日本",
    "e\u0301",
    ";",
    ":",
    "&",
    "=",
    "*",
    "[a]",
    "~",
    "a",
    ".parquet",
)


def some_names(count: int, *separators: str) -> dict[str, bytes]:
    """Names with their contents; every odd character is in some of them, beside its escaped and shortened forms."""
    random = Random(count)
    names = {f"d/{piece}" for piece in PIECES} | {"d/a#b", "d/a?b", "d/a", "d/a%20b", "d/a b"}
    while len(names) < count:
        words = ["".join(random.choices(PIECES, k=random.randint(1, 4))) for _ in range(random.randint(1, 3))]
        names.add("d/" + random.choice(separators).join(f"k={word}" for word in words) + ".f")
    return {name: name.encode() for name in sorted(names)}


def assert_exact(io: FileIO, files: Mapping[str, bytes], absent: Iterable[str]) -> None:
    """Each reader has the bytes of this file, and of no other."""
    storage = Storage(io)
    for location, body in files.items():
        assert size_of(io, location) == storage.size(location) == len(body), location
        assert storage.fetch(location) == b"".join(storage.pieces(location, 5)) == body
        assert storage.tail(location, len(body), 2) == body[-2:]
        with storage.open(location, len(body)) as stream:
            assert bytes(stream.read()) == body
        assert modified_ms(io, location) > 0
    assert missing_files(io, list(files)) == []
    for location in absent:
        assert (size_of(io, location), storage.exists(location)) == (None, False), location


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_local_files(tmp_path: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO], prefix: str) -> None:
    """Java opens local files by exactly their names, and so does icesize, through both FileIOs."""
    io, root = kind({}), f"{prefix}{tmp_path}/t"
    files = some_names(200, "/")
    for name, body in files.items():
        path = tmp_path / "t" / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(body)
    located = {f"{root}/{name}": body for name, body in files.items()}
    assert sorted(file.location for file in list_files(io, root)) == sorted(located)
    assert_exact(io, located, [f"{location}#" for location in located] + [f"{location}?x" for location in located])


def test_objects_in_s3(client: Any, bucket: str, properties: dict[str, str]) -> None:
    """Each key is listed once. Those that all clients read alike are read exactly; the others never as a third one."""
    io, root, files = load_file_io(properties), f"s3://{bucket}/t", some_names(40, "/", "//")
    for name, body in files.items():
        client.put_object(Bucket=bucket, Key=f"t/{name}", Body=body)
    located = {f"{root}/{name}": body for name, body in files.items()}
    listed = list(list_files(io, root))
    assert sorted(file.location for file in listed) == sorted(located)
    stored = Stored.of(listed, [root], True, lambda count: None)
    sizes = np.array([len(body) for body in located.values()])
    assert (stored.places(path_numbers(list(located)), sizes) >= 0).all()
    plain = {location: body for location, body in located.items() if names_one_file(location)}
    assert len(plain) > 15
    assert_exact(io, plain, [f"{location}~" for location in plain])
    for location, body in located.items() - plain.items():
        cut = location.partition("#")[0].partition("?")[0]  # as Iceberg's S3FileIO reads it
        try:
            assert Storage(io).fetch(location) in (body, located.get(cut))
        except FileNotFoundError:
            assert cut not in located
        except OSError:
            assert cannot_open(io, location) or cut.endswith("/")
