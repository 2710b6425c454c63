"""Few missing files beside others are lost; directories and many files are not, unless their number is confirmed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.lost_files import LostFiles, folder_of

DISK = "file:///disk/t/data"


def lost(
    *paths: str, rows: int = 1, files: int = 100, table_rows: int = 100, there: tuple[str, ...] = (DISK,)
) -> LostFiles:
    return LostFiles(dict.fromkeys(paths, rows), files, table_rows, there)


def test_a_file_beside_others_is_lost() -> None:
    """Its directory is there, and it is a small part of the table."""
    assert lost(f"{DISK}/1.parquet", f"{DISK}/2.parquet").why_kept() == {}


def test_a_directory_without_other_files_may_be_a_mount() -> None:
    """The reason names the directory, and the exact number that confirms the loss; the other files are lost."""
    path = "file:///other/t/p=1/1.parquet"
    found = lost(path, f"{DISK}/2.parquet")
    assert found.why_kept() == {
        path: "No other file of the table is in file:///other/t/p=1, which may not be mounted; if they are lost, "
        "confirm with `--lost-files 2`"
    }
    assert found.why_kept(2) == {}


def test_more_than_a_tenth_of_the_files_or_rows() -> None:
    """Of either, all are kept until their number is confirmed."""
    for found in (lost(f"{DISK}/1", files=9), lost(f"{DISK}/1", rows=11), lost(f"{DISK}/1", files=1, table_rows=1)):
        (why,) = found.why_kept().values()
        assert "missing: the storage may not be mounted, or be another one; if they are lost" in why
        assert found.why_kept(1) == {}
    assert lost(f"{DISK}/1", files=10, rows=10).why_kept() == {}


def test_another_number_confirms_nothing() -> None:
    """The table changed after the number was read, or somebody guessed."""
    found = lost(f"{DISK}/1.parquet", f"{DISK}/2.parquet")
    assert set(found.why_kept(3).values()) == {"2 data files of the table are missing, not 3"}
    assert found.why_kept(3).keys() == found.rows.keys()


@given(st.dictionaries(st.sampled_from(range(40)), st.integers(0, 50)), st.sets(st.integers(0, 7)), st.integers(0, 60))
def test_what_is_believed_is_a_small_part_beside_live_files(rows: dict[int, int], there: set[int], others: int) -> None:
    """Without a confirmation, at most a tenth of the files and of the rows goes, and never a whole directory."""
    paths = {f"file:///d{number % 8}/{number}": count for number, count in rows.items()}
    found = LostFiles(paths, len(paths) + others, sum(rows.values()) + others, {f"file:///d{n}" for n in there})
    gone = paths.keys() - found.why_kept().keys()
    assert 10 * len(gone) <= found.table_files
    assert 10 * sum(paths[path] for path in gone) <= found.table_rows
    assert {folder_of(path) for path in gone} <= set(found.folders)
