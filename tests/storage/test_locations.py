"""Locations as text: equal spellings are equal, and nothing is inside of a folder that only looks alike."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.errors import TableError
from icesize.storage.locations import check_folder, is_addressable, is_inside, is_object_store, normalised

SEGMENT = st.text(string.ascii_letters + string.digits + "-_=%. é", min_size=1).filter(lambda s: s.strip(".") != "")
PATH = st.lists(SEGMENT, min_size=1, max_size=6).map("/".join)
ROOT = st.sampled_from(["file:///", "s3://bucket/", "gs://bucket/", "abfs://c@account.dfs.core.windows.net/"])


@pytest.mark.parametrize(
    ("spelt", "normal"),
    [
        ("/w/t/a.parquet", "file:///w/t/a.parquet"),
        ("file:/w/t/a.parquet", "file:///w/t/a.parquet"),
        ("file:///w/t/a.parquet", "file:///w/t/a.parquet"),
        ("file://localhost/w/t", "file:///w/t"),
        ("FILE:////w//t/", "file:///w/t"),
        ("file:///w/./t/.", "file:///w/t"),
        ("file:///w/.hidden/a", "file:///w/.hidden/a"),
        ("/w/../t", "file:///w/../t"),
        ("s3a://b/k", "s3://b/k"),
        ("s3n://b//k/", "s3://b/k"),
        ("S3://b/k", "s3://b/k"),
        ("s3://b/./k", "s3://b/./k"),
        ("s3://b", "s3://b/"),
        ("gcs://b/k", "gs://b/k"),
        ("abfss://c@a.dfs.core.windows.net/k", "abfs://c@a.dfs.core.windows.net/k"),
        ("hdfs://host:8020/k", "hdfs://host:8020/k"),
        ("hdfs:/k", "hdfs:///k"),
        ("s3://b/k=a%2Fb/x:y", "s3://b/k=a%2Fb/x:y"),
    ],
)
def test_equal_spellings(spelt: str, normal: str) -> None:
    """Aliases of schemes, slashes and the forms of local paths are evened out, and nothing else."""
    assert normalised(spelt) == normal


@given(ROOT, PATH)
def test_normalising_is_done_once(root: str, path: str) -> None:
    """The normal spelling is its own, and one that has nothing to even out is kept as it is."""
    once = normalised(root + path)
    assert normalised(once) == once
    if "/./" not in f"/{path}/":
        assert once == root + path


@given(PATH, st.sampled_from(["file:", "file://", "file://localhost", ""]), st.integers(1, 3))
def test_local_spellings_are_equal(path: str, prefix: str, slashes: int) -> None:
    """Java's, Python's and the shell's spelling of a local path are one, whatever slashes are doubled."""
    assert normalised(f"{prefix}/{path.replace('/', '/' * slashes)}") == normalised(f"file:///{path}")


@given(ROOT, PATH, PATH)
def test_what_is_below_is_inside(root: str, folder: str, below: str) -> None:
    """A path is inside of each of its folders, and not of itself."""
    assert is_inside(f"{root}{folder}/{below}", root + folder)
    assert is_inside(f"{root}{folder}/{below}", f"{root}{folder}/")
    assert not is_inside(root + folder, root + folder)


@given(ROOT, PATH, PATH, st.text(string.ascii_letters, min_size=1))
def test_a_longer_name_is_not_inside(root: str, folder: str, below: str, more: str) -> None:
    """`t2` is not below `t`: segments are compared, not characters."""
    assert not is_inside(f"{root}{folder}{more}/{below}", root + folder)


@pytest.mark.parametrize(
    ("location", "folder"),
    [
        ("s3://b/t/../u/a", "s3://b/t"),
        ("s3://b/t/a", "s3://b/u/../t"),
        ("s3://b/t/..", "s3://b/t"),
        ("s3://c/t/a", "s3://b/t"),
        ("gs://b/t/a", "s3://b/t"),
        ("s3://b/T/a", "s3://b/t"),
    ],
)
def test_nothing_else_is_inside(location: str, folder: str) -> None:
    """Parent segments, other buckets, other stores and other letters are outside."""
    assert not is_inside(location, folder)


def test_spellings_do_not_matter_inside() -> None:
    """A table that Java made and files that Python wrote belong together."""
    assert is_inside("s3a://b/t/a", "s3://b/t")
    assert is_inside("file:/w/t/..a/b..", "/w/t")


@pytest.mark.parametrize(
    ("name", "fine"), [("a b=c%3F;,&+é*[d].parquet", True), *((f"a{c}b", False) for c in "?#\n\t\0")]
)
def test_names_that_would_be_misread(name: str, fine: bool) -> None:
    """Query and fragment characters make a FileIO act on another file."""
    assert is_addressable(f"s3://b/t/{name}") is fine


@pytest.mark.parametrize("location", ["", "/", "//", "file:/", "file:///", "s3://bucket", "s3://bucket/", "gs://b//"])
def test_roots_are_refused(location: str) -> None:
    """A whole storage is no table's folder."""
    with pytest.raises(TableError) as refused:
        check_folder(location)
    assert str(refused.value) == (
        f"Cannot list {location!r}: it is the root of its storage and may contain other files; set the table's "
        "location to a directory of its own"
    )


@pytest.mark.parametrize("location", ["s3://b/t/../u", "/w/t/..", "file:/../w"])
def test_parent_segments_are_refused(location: str) -> None:
    """Where `..` leads is not for us to guess."""
    with pytest.raises(TableError, match="leads outside of it; set the table's location to the real path"):
        check_folder(location)


def test_a_folder_is_given_without_its_slash() -> None:
    """What is listed is spelt as the table spells it."""
    assert check_folder("s3a://b/t/") == "s3a://b/t"


@pytest.mark.parametrize(
    ("location", "is_charged"),
    [
        ("s3://lake/t", True),
        ("s3a://lake/t", True),
        ("gs://lake/t", True),
        ("abfss://c@a.dfs.core.windows.net/t", True),
        ("file:///lake/t", False),
        ("/lake/t", False),
        ("hdfs://name/t", False),
    ],
)
def test_object_stores_are_known_by_their_scheme(location: str, is_charged: bool) -> None:
    """Requests have a price there, and none on local disks or HDFS."""
    assert is_object_store(location) == is_charged
