"""Any name that another writer gives to a file makes the round trip: listed once, looked up and read as itself."""

from __future__ import annotations

import itertools
import os
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.maintenance.verify.storage import Stored, size_of
from icesize.storage.locations import names_one_file, normalised
from icesize.storage.table_storage import Storage
from icesize.table.manifests.live_arrays import path_numbers
from icesize.table.storage.listing import list_files
from tests.support.examples import examples

PIECES = ("#", "?", "%", "%20", "%2F", "+", " ", "ü", "日本", "e\u0301", ";", ":", "&", "=", "*", "[a]", "~", "a")
OTHERS = st.text(st.characters(exclude_categories=["C"], exclude_characters="/"), min_size=1, max_size=8)
WORDS = st.lists(st.sampled_from(PIECES) | OTHERS, min_size=1, max_size=4).map("".join)
READ_AS: tuple[Callable[[str], str], ...] = (
    lambda name: name.partition("#")[0],
    lambda name: name.partition("?")[0],
    lambda name: name.replace("%20", " "),
    lambda name: name.replace(" ", "%20"),
    lambda name: name.replace("+", " "),
    lambda name: unicodedata.normalize("NFC", name),
    lambda name: f"{name}#",
    lambda name: f"{name}?x",
    lambda name: f"{name}~",
)
"""Other files that a reader of a URL might take a file for."""
_numbers = itertools.count()

Names = tuple[frozenset[str], frozenset[str]]
"""Files that are there, and others that are not."""


@st.composite
def names(draw: st.DrawFn, *separators: str) -> Names:
    """A few names, with some of those that they might be taken for; directories have other names than files."""
    found, confused = set[str](), set[str]()
    for _ in range(draw(st.integers(1, 3))):
        folders = [f"k={word}" for word in draw(st.lists(WORDS, max_size=2))]
        name = draw(st.sampled_from(separators)).join(["d", *folders, f"f{draw(WORDS)}"])
        found.add(name)
        confused |= {other for read in READ_AS if (other := read(name)).count("/") == name.count("/")}
    some = sorted(confused - found)
    found |= draw(st.sets(st.sampled_from(some), max_size=4))
    return frozenset(found), frozenset(confused - found)


SHORT = (frozenset({"d/f#b", "d/f?b", "d/f", "d/f%20b", "d/f b", "d/f%"}), frozenset({"d/f+b"}))


def assert_exact(io: FileIO, files: Mapping[str, bytes], absent: Iterable[str]) -> None:
    """Each reader has the bytes of this file, and of no other."""
    storage = Storage(io)
    for location, body in files.items():
        assert size_of(Storage.of(io), location) == storage.size(location) == len(body), location
        assert storage.fetch(location) == b"".join(storage.pieces(location, len(body), 5)) == body
        assert storage.tail(location, len(body), 2) == body[-2:]
        with storage.open(location, len(body)) as stream:
            assert bytes(stream.read()) == body
        assert Storage.of(io).inspect(location).modified_ms > 0
    assert Storage.of(io).missing(list(files)) == []
    for location in absent:
        assert (size_of(Storage.of(io), location), storage.exists(location)) == (None, False), location


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
@examples(100)
@example(SHORT)
@given(names("/"))
def test_local_files(tmp_path: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO], prefix: str, names: Names) -> None:
    """Java opens local files by exactly their names, and so does icesize, through both FileIOs."""
    folder = tmp_path / str(next(_numbers))
    io, root = kind({}), f"{prefix}{folder}"
    for name in names[0]:
        path = folder / name
        os.makedirs(path.parent, exist_ok=True)
        path.write_bytes(name.encode())
    located = {f"{root}/{name}": name.encode() for name in names[0]}
    assert sorted(file.location for file in list_files(io, root)) == sorted(located)
    assert_exact(io, located, [f"{root}/{name}" for name in names[1]])


@pytest.mark.engine
@examples(30)
@example(SHORT)
@given(names("/", "//"))
def test_objects_in_s3(client: Any, bucket: str, properties: dict[str, str], names: Names) -> None:
    """Each key is listed once. Those that all clients read alike are read exactly; the others never as a third one."""
    folder = f"t{next(_numbers)}"
    io, root = load_file_io(properties), f"s3://{bucket}/{folder}"
    for name in names[0]:
        client.put_object(Bucket=bucket, Key=f"{folder}/{name}", Body=name.encode())
    located = {f"{root}/{name}": name.encode() for name in names[0]}
    listed = list(list_files(io, root))
    assert sorted(file.location for file in listed) == sorted(located)
    stored = Stored.of(listed, [root], True, lambda count: None)
    sizes = np.array([len(body) for body in located.values()])
    places, spelled = stored.places(path_numbers(list(located)), sizes), Counter(map(normalised, located))
    lost = [location for location, place in zip(located, places, strict=True) if place < 0]
    # of two keys that differ by `//`, `verify` looks up the one that it takes for the other
    assert all(spelled[normalised(location)] > 1 for location in lost)
    plain = {location: body for location, body in located.items() if names_one_file(location)}
    absent = [f"{root}/{name}" for name in names[1]]
    assert_exact(io, plain, filter(names_one_file, absent))
    for location, body in located.items() - plain.items():
        cut = location.partition("#")[0].partition("?")[0]  # as Iceberg's S3FileIO reads it
        try:
            assert Storage(io).fetch(location) in (body, located.get(cut))
        except FileNotFoundError:
            assert cut not in located
        except OSError:
            assert Storage.of(io).cannot_open(location) or cut.endswith("/")
