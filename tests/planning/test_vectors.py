"""Deletion vectors in plans: which files they hit, what they put out of force, and when they are dangling."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.dangling_rule import DanglingCandidates
from icesize.planning.deletes.delete_plan import plan_delete_rewrites
from icesize.planning.deletes.delete_reach import (
    DeleteHits,
    PartitionDeletes,
    is_due,
    may_hit,
    only_path,
    vectors_hitting,
)
from icesize.planning.files import DeleteFile, FileFact
from icesize.policy import SizePolicy
from tests.support.examples import examples
from tests.support.layouts import SMALL_TARGET, equality_delete, key, layout_of, partition, position_delete

A = key("a")


def vector(path: str | None, number: int = 60, rows: int = 3, offset: int = 4) -> DeleteFile:
    """A deletion vector of a data file, in a Puffin file with others."""
    return DeleteFile(
        "v.puffin", 900, rows, A, number, "PUFFIN", referenced_path=path, content_offset=offset, content_size_bytes=40
    )


def data(path: str, number: int = 0, rows: int = 100) -> FileFact:
    return FileFact(path, 1_000, rows, A, number, file_sequence_number=number)


def test_a_vector_takes_the_place_of_position_deletes() -> None:
    """Of its file, however these name it; equality deletes stay, and all of it stays for other files."""
    deletes = [
        vector("a", rows=7),
        equality_delete(A, 61),
        *(position_delete(A, 62, path, 20) for path in ("a", "b")),
        replace(position_delete(A, 63, None, 9), lowest_path="a", highest_path="b"),
        position_delete(A, 64, None, 9),
    ]
    of_partition = PartitionDeletes(deletes)
    assert of_partition.hitting(data("a")) == DeleteHits(2, 7, 2)
    assert of_partition.hitting(data("b")) == DeleteHits(4, 20, 4)
    assert of_partition.hitting(data("a", 61)) == DeleteHits(3, 20, 3)  # the vector is older than the file


@examples(500)
@given(
    st.lists(
        st.tuples(st.sampled_from(["vector", "equality", "path", "bounds", "any"]), st.sampled_from("ab"),
                  st.integers(1, 6)),
        max_size=6,
    ),
    st.sampled_from("ab"),
    st.integers(1, 6),
)  # fmt: skip
def test_the_index_says_what_readers_apply(some: list[tuple[str, str, int]], path: str, number: int) -> None:
    """Whatever the deletes are, they are the ones that apply one by one, without position deletes beside a vector."""
    made = {
        "vector": lambda path, n: vector(path, n, offset=n),
        "equality": lambda path, n: equality_delete(A, n),
        "path": lambda path, n: position_delete(A, n, path, 1),
        "bounds": lambda path, n: replace(position_delete(A, n, None, 1), lowest_path="a", highest_path=path + "a"),
        "any": lambda path, n: position_delete(A, n, None, 1),
    }
    deletes = [replace(made[kind](target, n), rows=3 + 7 * place) for place, (kind, target, n) in enumerate(some)]
    file = data(path, number)
    hits = [delete for delete in deletes if may_hit(delete, file)]
    vectors = [delete for delete in hits if delete.is_vector]
    applied = [delete for delete in hits if not vectors or delete.is_vector or delete.equality_ids]
    index = PartitionDeletes(deletes)
    assert sorted(index.applying(file), key=repr) == sorted(applied, key=repr)
    assert index.hitting(file).delete_files == len(applied)
    of_several = (delete for delete in applied if delete.equality_ids or only_path(delete) is None)
    assert index.rows_without_target(file) == sum(delete.rows for delete in of_several)
    assert vectors_hitting([file], deletes) == ({path: vectors} if vectors else {})


@pytest.mark.parametrize(
    ("changes", "readable"),
    [
        ({}, True),
        ({"content_offset": None}, False),
        ({"content_size_bytes": None}, False),
        ({"referenced_path": None}, False),
        ({"file_format": "PARQUET"}, False),
        ({"equality_ids": (1,)}, False),
        ({"referenced_path": "b", "content_size_bytes": None}, True),
    ],
)
def test_what_a_reader_of_vectors_needs(changes: dict[str, object], readable: bool) -> None:
    """A Puffin entry without its place is no vector that can be read, but one of another data file does not matter."""
    delete = replace(vector("a"), **changes)  # type: ignore[arg-type]
    assert PartitionDeletes([delete]).are_readable(data("a")) is readable


def test_two_vectors_of_one_file_cannot_be_read() -> None:
    """Iceberg allows one; nobody knows which of two holds."""
    deletes = PartitionDeletes([vector("a"), vector("a", offset=44), vector("b", offset=84)])
    assert (deletes.are_readable(data("a")), deletes.are_readable(data("b"))) == (False, True)


def test_a_vector_is_dangling_without_its_file() -> None:
    """It is told apart from the other vectors of its Puffin file, which stay."""
    deletes = [vector("a"), vector("file:/b", offset=44), vector("c", offset=84), vector(None, offset=124)]
    candidates = DanglingCandidates.of({A: deletes}, (), [A], {}, {})
    assert candidates.asked == {"a", "/b", "c"}
    assert candidates.dangling({A: 1}, ["/b"]) == {("v.puffin", 4), ("v.puffin", 84)}


def test_a_table_of_one_vector_for_each_file_has_nothing_to_do() -> None:
    """Such files are not due, and their deletes are as few as can be."""
    paths = [f"a/{n}.parquet" for n in range(20)]
    vectors = [vector(path, offset=n) for n, path in enumerate(paths)]
    facts = partition("a", [50_000_000] * 20, deletes=vectors)
    assert not any(is_due(file, SMALL_TARGET) for file in facts.with_deletes)
    assert plan_delete_rewrites(layout_of(facts), SizePolicy(max_delete_files=1)) == ()


def test_deletes_beside_a_vector_are_written_into_it() -> None:
    """More than may be read with a file are due, also beside a vector; files with vectors alone are not taken along."""
    facts = partition(
        "a",
        [50_000_000] * 3,
        deletes=[
            *(vector(f"a/{n}.parquet", offset=n) for n in range(3)),
            *(equality_delete(A, n) for n in (1, 1, 1)),
            *(position_delete(A, 70 + n, None, 10) for n in range(9)),
        ],
    )
    [rewrite] = plan_delete_rewrites(layout_of(facts), SizePolicy(max_delete_files=3))
    assert [file.path for file in rewrite.due] == ["a/0.parquet"]
