"""Live files as arrays: those of few partitions, and the difference of two sets of manifests."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.manifest import ManifestFile

from icesize.planning.files import PartitionKey
from icesize.table.manifests.entries import ADDED, DELETED, EXISTING
from icesize.table.manifests.file_columns import EntryColumns, ManifestFacts
from icesize.table.manifests.live_arrays import Listing, difference
from tests.support.examples import examples

File = tuple[int, int, str | None, int]
"""Path, partition spec, partition value and size."""

FILES = st.dictionaries(
    st.integers(0, 30), st.tuples(st.integers(0, 1), st.sampled_from(["a", "b", "c", None]), st.integers(1, 2))
).map(lambda files: [(path, *rest) for path, rest in files.items()])


def listings(files: list[File], manifests: int, shift: int) -> list[Listing]:
    """The files in so many manifests, each of one spec; `shift` changes who lies where, and deleted entries."""
    parts = defaultdict[tuple[int, int], list[File]](list)
    for file in files:
        parts[(file[0] + shift) % manifests, file[1]].append(file)
    made = []
    for (number, spec_id), part in parts.items():
        rows = [
            [ADDED if shift else EXISTING, 7, 5, 5, f"s3://b/{path}", "PARQUET", (value,), 10, size, None, None, None]
            for path, _, value, size in part
        ]
        rows.append([DELETED, 7, 5, 5, "s3://b/gone", "PARQUET", ("gone",), 10, 1, None, None, None])
        manifest = ManifestFile.from_args(
            manifest_path=f"m{number}", partition_spec_id=spec_id, sequence_number=5, added_snapshot_id=7
        )
        made.append(Listing.of(ManifestFacts(manifest, EntryColumns.of(spec_id, rows, deletes=False))))
    return made


@examples(200)
@given(before=FILES, after=FILES, manifests=st.tuples(st.integers(1, 3), st.integers(1, 3)))
def test_partitions_of_other_files_differ(before: list[File], after: list[File], manifests: tuple[int, int]) -> None:
    """Those in which a file is new, gone or another one; where the same files lie makes no difference."""
    found = difference(listings(before, manifests[0], 0), listings(after, manifests[1], 1))
    assert found is not None
    assert found.keys == {PartitionKey(spec_id, (value,)) for _, spec_id, value, _ in {*before} ^ {*after}}
    assert sorted(found.numbers.tolist()) == sorted(hash(f"s3://b/{path}") for path, *_ in {*after} - {*before})


@examples(200)
@given(files=FILES, manifests=st.integers(1, 3), values=st.sets(st.sampled_from(["a", "b", "none", "gone", None])))
def test_files_of_partitions(files: list[File], manifests: int, values: set[str | None]) -> None:
    """The live files of some partitions are those of a walk over all entries, and no other number is listed."""
    found = set[str]()
    for listing in listings(files, manifests, 0):
        spec_id = listing.facts.manifest.partition_spec_id
        wanted = {(value,): PartitionKey(spec_id, (value,)) for value in values}
        if listed := listing.of_partitions(wanted):
            found |= {*listing.facts.paths(listed.rows)}
            counted = [
                key for key, count in zip(listed.keys, listed.counts.tolist(), strict=True) for _ in range(count)
            ]
            assert counted == [file.partition for file in listing.facts.files(listed.rows)]
        assert all(listing.lists(listing.numbers[place : place + 1]) for place in range(listing.numbers.size))
    assert found == {f"s3://b/{path}" for path, _, value, _ in files if value in values}


def test_a_file_that_is_listed_twice_has_no_difference() -> None:
    """Its listings cannot be told apart by the path, so all partitions are made anew."""
    twice = [listing for _ in range(2) for listing in listings([(1, 0, "a", 1)], 1, 0)]
    assert difference([], twice) is None
    moved = difference(twice[:1], twice[1:])
    assert moved is not None
    assert (moved.keys, moved.numbers.size) == (set(), 0)


def test_equal_values_of_two_specs_are_two_partitions() -> None:
    """True and 1 are equal in Python; each changed partition keeps the value of its own spec."""
    files: list[Any] = [(1, 0, True, 1), (2, 1, 1, 1)]
    found = difference([], listings(files, 1, 0))
    assert found is not None
    assert {(key.spec_id, repr(key.values)) for key in found.keys} == {(0, "(True,)"), (1, "(1,)")}
