"""The map of a merge's rows leads from each row of an input file to the same row in an output."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, StringType
from pyroaring import BitMap

from icesize.parquet.deletes.position_files import write_positions
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.parquet.files.new_files import NewFiles
from icesize.parquet.files.row_map import Ordered, RowMap
from icesize.parquet.files.settings import WriteSettings
from icesize.parquet.ordering.cluster_order import RowOrder
from icesize.parquet.rewriting.cluster import write_clustered
from icesize.parquet.rewriting.merge import merge
from icesize.planning.cluster_by import HILBERT, SORT, ClusterBy
from icesize.planning.files import DeleteFile, FileFact, PartitionKey
from icesize.planning.plan import MergeTask
from tests.support.copying import SMALL
from tests.support.parquet_files import NAMES, fact, schema_of, settings_of, with_limits, write_one
from tests.support.row_maps import check

KEY = PartitionKey(0)
SORTED_BY_A = SortOrder(
    SortField(2, IdentityTransform(), SortDirection.ASC, NullOrder.NULLS_FIRST), order_id=1
).model_dump_json()
COLUMNS = schema_of(("id", LongType()), ("a", LongType()), ("text", StringType()))


def rows_of(first: int, count: int, chance: random.Random) -> pa.Table:
    """Rows with ids from `first` on."""
    values = [chance.randrange(50) for _ in range(count)]
    texts = pa.array([f"{value:09}" * 3 for value in values], pa.large_string())
    return pa.table({"id": pa.array(range(first, first + count)), "a": pa.array(values), "text": texts})


def inputs_of(options: WriteSettings, chance: random.Random) -> tuple[FileFact, ...]:
    """Files of different sizes; of some, rows are deleted by position."""
    files, first = list[FileFact](), 0
    unsorted = replace(options, sort_order_json="")
    for number in range(chance.randrange(1, 6)):
        count = chance.choice([1, 30, 400, 3_000])
        file = fact(write_one(unsorted, rows_of(first, count, chance)), number)
        if chance.random() < 0.6:
            gone = BitMap(chance.sample(range(count), chance.randrange(count + 1)))
            file = replace(file, deletes=deletes_of(options, file, gone)) if gone else file
        files.append(file)
        first += count
    return tuple(files)


def deletes_of(options: WriteSettings, file: FileFact, gone: BitMap) -> tuple[DeleteFile, ...]:
    """A delete file for these rows of a data file."""
    new = write_positions(NewFiles(options, NAMES), {file: gone}, 9)
    return (DeleteFile(new.path, new.size_bytes, new.rows, KEY, 9, referenced_path=file.path),)


def copied(options: WriteSettings, inputs: tuple[FileFact, ...], outputs: int) -> MergeResult[NewDataFile]:
    small = replace(SMALL, good_group_rows=300, least_chunk_bytes=1, least_page_rows=1, least_page_bytes=1)
    return merge(MergeTask(inputs, KEY, outputs), replace(options, limits=small), NAMES)  # type: ignore[return-value]


def decoded(options: WriteSettings, inputs: tuple[FileFact, ...], outputs: int) -> MergeResult[NewDataFile]:
    return merge(MergeTask(inputs, KEY, outputs), replace(options, merge_by_copying=False), NAMES)  # type: ignore[return-value]


def in_sort_order(options: WriteSettings, inputs: tuple[FileFact, ...], outputs: int) -> MergeResult[NewDataFile]:
    few = with_limits(replace(options, sort_order_json=SORTED_BY_A), decoded_bytes=20_000)
    return merge(MergeTask(inputs, KEY, outputs), few, NAMES)  # type: ignore[return-value]


def clustered(options: WriteSettings, inputs: tuple[FileFact, ...], outputs: int) -> MergeResult[NewDataFile]:
    order = RowOrder.of(ClusterBy(("a",), (2,), SORT, 2**40), options)
    return write_clustered(MergeTask(inputs, KEY, outputs), order, options, NAMES)


def in_parts(options: WriteSettings, inputs: tuple[FileFact, ...], outputs: int) -> MergeResult[NewDataFile]:
    few = with_limits(options, sorted_bytes=30_000, scattered_bytes=8_000, decoded_bytes=30_000)
    order = RowOrder.of(ClusterBy(("a", "id"), (2, 1), HILBERT, 2**40), few)
    return write_clustered(MergeTask(inputs, KEY, outputs), order, few, NAMES)


Rewrite = Callable[[WriteSettings, tuple[FileFact, ...], int], MergeResult[NewDataFile]]


@pytest.mark.parametrize("rewrite", [copied, decoded, in_sort_order, clustered, in_parts])
@pytest.mark.parametrize("seed", range(6))
def test_deleted_rows_are_followed_into_the_outputs(tmp_path: Path, rewrite: Rewrite, seed: int) -> None:
    """Copied, decoded, sorted, clustered, in memory and on the disk, with and without rows that are left out."""
    chance = random.Random(seed)
    options = settings_of(tmp_path, COLUMNS)
    check(rewrite(options, inputs_of(options, chance), chance.randrange(1, 4)), chance)


def test_a_large_order_lies_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has the same places there, and no file with a name."""
    monkeypatch.setattr("icesize.parquet.files.row_map.IN_MEMORY_BYTES", 100)
    monkeypatch.setenv("SPARK_LOCAL_DIRS", str(tmp_path))
    ordered = Ordered(1_000)
    numbers = np.random.default_rng(1).permutation(1_000)
    for run in np.split(numbers, [10, 500]):
        ordered.write(run)
    made = ordered.row_map([FileFact("a", 1, 1_000, KEY)])
    assert isinstance(made, RowMap)
    assert isinstance(made.order, np.memmap)
    assert [*made.follow({"a": BitMap(numbers[[3, 999]])}, [500, 500])] == [BitMap([3]), BitMap([499])]
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_merge_without_a_map(monkeypatch: pytest.MonkeyPatch) -> None:
    """The map only saves work after a conflict, so the merge goes on."""

    def full(rows: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("icesize.parquet.files.row_map.IN_MEMORY_BYTES", 100)
    monkeypatch.setattr("icesize.parquet.files.row_map.on_disk", full)
    ordered = Ordered(1_000)
    ordered.write(np.arange(1_000))
    assert ordered.row_map([]) is None
