"""Position deletes that tell bounds of paths, of which a partition may have as many as data files."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.deletes.delete_reach import DataFiles, PartitionDeletes, may_hit
from icesize.planning.files import DeleteFile, FileFact
from tests.support.examples import examples
from tests.support.layouts import key

A = key("a")
PATHS = st.builds(
    "{}{}".format,
    st.sampled_from(["", "/", "file:/", "file:///"]),
    st.text(st.sampled_from(["a", "b", "\xff", "\ud800", "\uffff", "\U0010ffff"]), max_size=3),
)
"""Short paths, so that one is often the prefix of another; the last characters sort after all others."""
NUMBERS = st.integers(1, 4)
DELETES = st.builds(
    lambda number, rows, bounds: DeleteFile("d", 1, rows, A, number, lowest_path=bounds[0], highest_path=bounds[1]),
    NUMBERS,
    st.integers(1, 9),
    st.tuples(st.none() | PATHS, st.none() | PATHS).filter(lambda bounds: bounds[0] != bounds[1]),
)
FILES = st.builds(
    lambda path, number, later: FileFact(path, 9, 99, A, number, file_sequence_number=number + later),
    PATHS,
    NUMBERS,
    st.integers(0, 2),
)


@examples(1_000)
@given(st.lists(DELETES, max_size=9), FILES)
def test_many_deletes_are_counted_as_one_by_one(deletes: list[DeleteFile], file: FileFact) -> None:
    """Whatever the order of the bounds, whether they are prefixes, and however the paths are spelled."""
    index, hits = PartitionDeletes(deletes), [delete for delete in deletes if may_hit(delete, file)]
    avoidable = sum(delete.sequence_number >= file.file_sequence_number for delete in hits)
    assert index.hitting(file) == (len(hits), 0, avoidable)
    assert index.rows_without_target(file) == sum(delete.rows for delete in hits)


@examples(1_000)
@given(st.lists(FILES, max_size=9), DELETES)
def test_many_files_are_looked_at_as_one_by_one(files: list[FileFact], delete: DeleteFile) -> None:
    """A delete may apply to the files together if it may apply to one of them."""
    assert DataFiles(files).may_be_hit(delete) == any(may_hit(delete, file) for file in files)
