"""Arrays in a folder of bounded size. Tests of its two users are in `table/manifests/test_spill.py` and
`table/upserts/test_index_files.py`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from icesize.array_files import ArrayFolder
from icesize.private_folder import PrivateFolder


def test_a_file_that_is_too_large_does_not_keep_others_out(tmp_path: Path) -> None:
    """A smaller one takes the place of files from before `begin`."""
    folder, rows = ArrayFolder(tmp_path, "arrays", 20_000), np.arange(1_000)
    assert folder.write(("old-1",), rows.nbytes, [rows])
    assert folder.write(("old-2",), rows.nbytes, [rows])
    folder.begin()
    large = np.arange(10_000)
    assert not folder.write(("large",), large.nbytes, [large])
    assert folder.write(("new",), rows.nbytes, [rows])
    assert [folder.read((name,)) is None for name in ("old-1", "large", "new")] == [True, True, False]


def test_a_full_folder_is_not_listed_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It makes room in steps, keeps its bound, and has the newest files."""
    files, lists, most_bytes = PrivateFolder.files, list[int](), 200_000

    def counted(folder: PrivateFolder, *suffixes: str) -> object:
        lists.append(1)
        return files(folder, *suffixes)

    monkeypatch.setattr(PrivateFolder, "files", counted)
    folder, rows = ArrayFolder(tmp_path, "arrays", most_bytes), np.arange(100)
    for number in range(600):
        folder.begin()
        assert folder.write((f"file-{number}",), rows.nbytes, [rows])
    assert len(lists) <= 80
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.arrays")) <= most_bytes
    assert folder.read(("file-0",)) is None
    found = folder.read(("file-599",))
    assert found is not None
    assert found[0].tolist() == rows.tolist()
