"""Listing what lies below a location, through each kind of FileIO."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileInfo, FileType, LocalFileSystem
from pyiceberg.io import FileIO
from pyiceberg.io.fsspec import FsspecFileIO
from pyiceberg.io.pyarrow import PyArrowFileIO

from icesize.errors import TableError, UnsupportedTable
from icesize.storage.stores import Listed
from icesize.storage.table_storage import Storage
from icesize.table.storage.listing import incomplete_uploads, list_files, storage_now_ms

FILES = {"a.txt": 1, "data/kind=a/b.parquet": 2, "data/kind=a b%2F/c.parquet": 3, "metadata/v1.metadata.json": 4}
MS = 1_700_000_000_123


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A table's folder with FILES, one of each size, a second apart."""
    root = tmp_path / "t"
    for seconds, (name, size) in enumerate(FILES.items()):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * size)
        os.utime(path, ns=(0, (MS + seconds * 1000) * 1_000_000))
    (root / "empty").mkdir()
    return root


def expected(location: str) -> set[Listed]:
    return {Listed(f"{location}/{name}", size, MS + i * 1000) for i, (name, size) in enumerate(FILES.items())}


class Elsewhere(PyArrowFileIO):
    """Local files under another scheme, so that they are reached through PyArrow's filesystem as in object stores."""

    def __init__(self, root: Path, wrap: Callable[[Any], Any] = lambda fs: fs) -> None:
        super().__init__({})
        self.root = root
        self.fs_by_scheme = lambda scheme, authority: wrap(LocalFileSystem())

    def parse(self, location: str, properties: Any = None) -> tuple[str, str, str]:
        return "gs", "bucket", f"{self.root}/{location.removeprefix('gs://bucket/')}"

    parse_location = parse  # type: ignore[assignment]


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
@pytest.mark.parametrize("prefix", ["file://", "file:", ""])
def test_local_folders(folder: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO], prefix: str) -> None:
    """Names, sizes and times of all files at any depth, spelt as the location is; folders are no files."""
    location = f"{prefix}{folder}"
    assert set(list_files(kind({}), location)) == expected(location)
    assert set(list_files(kind({}), location + "/")) == expected(location)


def test_other_filesystems_of_pyarrow(folder: Path) -> None:
    """What PyArrow's filesystem finds gets the table's own spelling."""
    assert set(list_files(Elsewhere(folder.parent), "gs://bucket/t")) == expected("gs://bucket/t")


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    """A link leads out of the table: what is behind it is not listed, and neither is the link itself."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "theirs").write_text("theirs")
    (folder / "link").symlink_to(outside)
    (folder / "single").symlink_to(outside / "theirs")
    (folder / "dangling").symlink_to(tmp_path / "unmounted")
    assert set(list_files(PyArrowFileIO(), str(folder))) == expected(str(folder))


def test_a_listing_that_fails_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that were listed before do not hide the failure, whatever the storage raises."""

    def failing(self: Storage, folder: str) -> Iterator[Listed]:
        yield Listed(f"{folder}/a", 1, MS)
        raise PermissionError("no right to list that")

    monkeypatch.setattr(Storage, "list", failing)
    listing = list_files(PyArrowFileIO(), "gs://bucket/t")
    with pytest.raises(TableError) as failed:
        list(listing)
    assert str(failed.value) == (
        "Cannot list gs://bucket/t: PermissionError: no right to list that; nothing was deleted"
    )


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_a_missing_folder_is_an_error(tmp_path: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO]) -> None:
    """Nothing there is not the same as nothing in it: a table has a folder."""
    with pytest.raises(TableError, match=r"Cannot list .*/none: FileNotFoundError"):
        list(list_files(kind({}), f"file://{tmp_path}/none"))


def test_a_storage_that_answers_with_other_paths(folder: Path) -> None:
    """A path that does not lie below what was asked for is not taken for one of the table."""

    class Lying(LocalFileSystem):  # type: ignore[misc]
        def get_file_info(self, what: Any) -> Sequence[FileInfo]:
            return [FileInfo("/etc/passwd", FileType.File, size=1, mtime_ns=1)]

    with pytest.raises(TableError, match="answered with '/etc/passwd', which does not lie below"):
        list(list_files(Elsewhere(folder.parent, lambda fs: Lying()), "gs://bucket/t"))


def test_a_storage_without_times_is_refused(folder: Path) -> None:
    """Age decides what is deleted: without one nothing can be."""

    class Timeless(LocalFileSystem):  # type: ignore[misc]
        def get_file_info(self, what: Any) -> Sequence[FileInfo]:
            return [FileInfo(f"{what.base_dir}/a", FileType.File, size=1)]

    with pytest.raises(TableError, match="its storage does not report when it was modified"):
        list(list_files(Elsewhere(folder.parent, lambda fs: Timeless()), "gs://bucket/t"))


def test_another_file_io_is_refused() -> None:
    """A FileIO that somebody wrote has no filesystem to list by."""

    class Own(FileIO):
        def new_input(self, location: str) -> Any: ...
        def new_output(self, location: str) -> Any: ...
        def delete(self, location: Any) -> None: ...

    with pytest.raises(UnsupportedTable) as refused:
        list(list_files(Own(), "s3://b/t"))
    assert str(refused.value) == (
        "Cannot list s3://b/t: icesize cannot list files with 'Own'; set 'py-io-impl' to PyIceberg's PyArrowFileIO or "
        "FsspecFileIO"
    )
    with pytest.raises(UnsupportedTable):
        Storage.of(Own()).inspect("s3://b/t")


@pytest.mark.parametrize("location", ["file:///", "", "s3://bucket", "/w/../x"])
def test_roots_are_not_listed(location: str) -> None:
    """Refused before storage is asked."""
    with pytest.raises(TableError, match="Cannot list"):
        list(list_files(PyArrowFileIO(), location))


@pytest.mark.parametrize("kind", [PyArrowFileIO, FsspecFileIO])
def test_the_clock_of_the_storage(folder: Path, kind: type[PyArrowFileIO] | type[FsspecFileIO]) -> None:
    """The time is that of a file that was written now, and the file is gone afterwards."""
    before = set(list_files(kind({}), f"file://{folder}"))
    now_ms = storage_now_ms(kind({}), f"file://{folder}", lambda: "x")
    (folder / "later").write_text("")
    assert MS < now_ms <= Storage.of(kind({})).inspect(f"file://{folder}/later").modified_ms
    (folder / "later").unlink()
    assert set(list_files(kind({}), f"file://{folder}")) == before


def test_a_storage_that_cannot_be_written_has_no_clock(tmp_path: Path) -> None:
    """Without the time no age is known: a sentence, not a guess."""
    (tmp_path / "metadata").write_text("a file in the place of the folder")
    with pytest.raises(TableError, match="Cannot read the clock of the storage of"):
        storage_now_ms(PyArrowFileIO(), str(tmp_path), lambda: "x")


@pytest.mark.parametrize("location", ["file:///w/t", "gs://b/t", "abfss://c@a.dfs.core.windows.net/t"])
def test_only_s3_tells_of_unfinished_uploads(location: str) -> None:
    """Elsewhere there is no number, which is not zero."""
    assert incomplete_uploads(PyArrowFileIO(), location) is None
