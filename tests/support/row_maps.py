"""Maps of the rows of merges, held against the rows themselves, which have a column `id`."""

from __future__ import annotations

import random

import pyarrow.parquet as pq
from pyroaring import BitMap

from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import FileFact
from tests.support.parquet_files import local


def ids_in(file: FileFact | NewDataFile) -> list[int]:
    """The ids of all rows of a file, in their order."""
    found: list[int] = pq.read_table(local(file.path)).column("id").to_pylist()
    return found


def check(done: MergeResult[NewDataFile], chance: random.Random) -> None:
    """Rows that somebody deletes in the inputs are followed to the outputs, except those that were left out."""
    assert done.row_map is not None
    deleted = {
        file.path: BitMap(chance.sample(range(file.rows), chance.randrange(file.rows + 1)))
        for file in done.inputs
        if chance.random() < 0.7
    }
    left_out = done.row_map.left_out
    wanted = {
        ids_in(file)[position]
        for file in done.inputs
        for position in deleted.get(file.path, BitMap()) - left_out.get(file.path, BitMap())
    }
    found = done.row_map.follow(deleted, [file.rows for file in done.files])
    assert len(found) == len(done.files)
    assert sorted(ids_in(file)[at] for file, rows in zip(done.files, found, strict=True) for at in rows) == sorted(
        wanted
    )
