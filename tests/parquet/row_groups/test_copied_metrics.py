"""The metrics of copied files are those of files that are written, or unknown."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from icesize.parquet.files.data_file import CopiedFile, NewDataFile
from icesize.parquet.files.metrics import describe
from icesize.parquet.format.refusals import CopyRefused
from icesize.parquet.format.thrift import I64, bytes_field, i64, integers_field, read_struct, struct_field
from icesize.parquet.rewriting.output_file import describe_copied
from icesize.parquet.row_groups.assembly import Assembled
from tests.support.copying import KEY, SCHEMA, foreign_bytes, rows, with_ids
from tests.support.footers import Tree, edited, footer_of, raw_footer
from tests.support.parquet_files import settings_of

DATA = foreign_bytes(with_ids(rows(50)), row_group_size=20)


def described(folder: Path, data: bytes, **properties: str) -> CopiedFile:
    """What is known of a file of SCHEMA."""
    options = settings_of(folder, SCHEMA, properties=properties)
    assembled = Assembled(len(data), (4, 99), raw_footer(data), footer_of(data))
    return describe_copied(options, "a.parquet", KEY, assembled)


def statistics(**changes: tuple[int, bytes]) -> Callable[[Tree], None]:
    """Change those of the first column of the last row group."""

    def change(tree: Tree) -> None:
        metadata = tree.metadata[-1][0]
        fields, _ = read_struct(metadata[12][1])
        metadata[12] = struct_field({**fields, **{int(k[1:]): v for k, v in changes.items()}})

    return change


@pytest.mark.parametrize("mode", ["none", "counts", "full"])
def test_counts_are_those_of_files_that_are_written(tmp_path: Path, mode: str) -> None:
    """By any metrics mode; bounds and NaN counts are left to what manifests say."""
    properties = {"write.metadata.metrics.default": mode, "write.metadata.metrics.column.word": "counts"}
    options = settings_of(tmp_path, SCHEMA, properties=properties)
    file = described(tmp_path, DATA, **properties)
    own = describe(NewDataFile("a.parquet", len(DATA), 0, KEY), options, pq.read_metadata(io.BytesIO(DATA)), {})
    assert (file.rows, file.size_bytes, file.split_offsets) == (50, len(DATA), (4, 99))
    assert file.column_sizes == own.column_sizes
    assert file.value_counts == own.value_counts
    assert file.null_value_counts == own.null_value_counts
    assert set(file.value_counts) == ({4} if mode == "none" else {1, 2, 3, 4})
    assert (file.nan_value_counts, file.lower_bounds, file.upper_bounds) == ({}, {}, {})


@pytest.mark.parametrize(
    "edit",
    [
        statistics(f6=bytes_field(b"abc")),
        statistics(f5=bytes_field(b"\xff\xfe")),
        lambda tree: tree.metadata[0][0].update({16: struct_field({3: integers_field([1, 2, 3], I64)})}),
    ],
)
def test_what_pyarrow_stumbles_over_is_not_looked_at(tmp_path: Path, edit: Callable[[Tree], object]) -> None:
    """Bounds that are no values, histograms of too many levels."""
    file, good = described(tmp_path, edited(DATA, edit)), described(tmp_path, DATA)
    assert (file.value_counts, file.null_value_counts) == (good.value_counts, good.null_value_counts)


@pytest.mark.parametrize("nulls", [-1, 10, 51])
def test_null_counts_that_cannot_be_true_are_unknown(tmp_path: Path, nulls: int) -> None:
    """Those of all entries beside bounds, too; so is that of a column of which one chunk has none."""
    assert set(described(tmp_path, edited(DATA, statistics(f3=i64(nulls)))).null_value_counts) == {2, 3, 4}
    without = edited(DATA, lambda tree: tree.metadata[0][1].pop(12))
    assert 12 not in footer_of(without).row_groups[0].chunks[1].metadata
    assert set(described(tmp_path, without).null_value_counts) == {1, 3, 4}


def test_unreadable_statistics_are_refused(tmp_path: Path) -> None:
    """By our own error."""
    with pytest.raises(CopyRefused, match="statistics"):
        described(tmp_path, edited(DATA, statistics(f3=bytes_field(b"1"))))
