"""Bytes of files from their rows, on invented and on real files."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg.types import DoubleType, LongType, StringType, TimestamptzType

from icesize.parquet.writing.encoding import encoded_bytes
from icesize.parquet.writing.row_writer import RowWriter
from icesize.planning.routing.row_sizes import CLAMP_RATIO, DEFAULT_ROW_SIZE, RowSize, RowSizes, fitted
from icesize.planning.routing.traffic import MOST_KEYS, PartitionWrites
from tests.support.examples import sampled
from tests.support.late_events import batch
from tests.support.parquet_files import NAMES, schema_of, settings_of, spec_of

FILES = st.builds(PartitionWrites, st.integers(0, 10**12), st.integers(0, 10**15), st.integers(0, 10**4))
STREAM = st.lists(st.dictionaries(st.integers(0, 9), FILES, max_size=6), max_size=8)
PRIORS = st.none() | st.builds(RowSize, st.floats(0, 1e6), st.floats(1e-3, 1e6))
EVENTS = schema_of(
    ("id", LongType()),
    ("event_time", TimestamptzType()),
    ("hour", StringType()),
    ("user_id", LongType()),
    ("amount", DoubleType()),
    ("status", StringType()),
    ("payload", StringType()),
)


def learned(stream: list[dict[int, PartitionWrites]], prior: RowSize | None = None) -> RowSizes[int]:
    """Row sizes after these batches."""
    sizes: RowSizes[int] = RowSizes(prior)
    for written in stream:
        sizes.observe(written)
    return sizes


def linear(rows: int, files: int = 1, overhead: int = 3_000, per_row: int = 40) -> PartitionWrites:
    """Files that are exactly as large as their rows and footers."""
    return PartitionWrites(rows, files * overhead + rows * per_row, files)


def test_nothing_is_known_without_files_and_prior() -> None:
    """Before a file was seen rows are all alike; with a prior it is the answer."""
    assert (RowSizes[int]().is_known, RowSizes[int]().table) == (False, DEFAULT_ROW_SIZE)
    assert RowSizes[int]().size_of(1, 10) == 10 * DEFAULT_ROW_SIZE.bytes_per_row
    prior = RowSize(1_000, 50)
    assert RowSizes[int](prior).table == prior
    assert RowSizes[int](prior).size_of(1, 10, files=2) == 2_500
    assert prior.bytes_of(10) == 1_500


@given(STREAM, PRIORS, st.floats(0, 1e12), st.integers(1, 100))
def test_sizes_are_finite_and_positive(
    stream: list[dict[int, PartitionWrites]], prior: RowSize | None, rows: float, n: int
) -> None:
    """Whatever manifests say, a file has a positive finite size, of keys that were seen and of others."""
    sizes = learned(stream, prior)
    if not sizes.is_known:
        assert not any(min(s.rows, s.size_bytes, s.files) for written in stream for s in written.values())
        return
    for key in (0, 1, 77):
        assert 0 < sizes.size_of(key, rows + 1, n) < math.inf


@given(STREAM, PRIORS, st.floats(0, 1e9), st.floats(0, 1e9))
def test_more_rows_are_never_fewer_bytes(
    stream: list[dict[int, PartitionWrites]], prior: RowSize | None, one: float, other: float
) -> None:
    """Sizes grow with rows and with files."""
    sizes = learned(stream, prior)
    if not sizes.is_known:
        return
    low, high = sorted((one, other))
    assert sizes.size_of(1, low) <= sizes.size_of(1, high) <= sizes.size_of(1, high, files=2)


@given(STREAM, PRIORS, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_is_no_matter(
    stream: list[dict[int, PartitionWrites]], prior: RowSize | None, dice: random.Random
) -> None:
    """The same batches in another order of their partitions give exactly the same sizes."""
    shuffled = []
    for written in stream:
        items = list(written.items())
        dice.shuffle(items)
        shuffled.append(dict(items))
    one, other = learned(stream, prior), learned(shuffled, prior)
    assert one.table == other.table
    assert all(one.size_of(key, 100) == other.size_of(key, 100) for key in range(10))


@given(STREAM, st.builds(RowSize, st.floats(0, 1e6), st.floats(1e-3, 1e6)))
def test_bytes_per_row_stay_near_the_prior(stream: list[dict[int, PartitionWrites]], prior: RowSize) -> None:
    """Absurd files move bytes per row by a factor of 32 at most."""
    table = learned(stream, prior).table
    assert abs(math.log(table.bytes_per_row / prior.bytes_per_row)) <= math.log(CLAMP_RATIO) + 1e-9


@pytest.mark.parametrize("prior", [None, RowSize(4_096, 100), RowSize(20_000, 10)])
def test_footers_and_rows_are_told_apart(prior: RowSize | None) -> None:
    """Files of all sizes give overhead and bytes per row, whatever the prior; also where partitions have many files."""
    written = {i: linear(10 * 2**i, files=1 + i % 3) for i in range(14)}
    table = learned([written] * 8, prior).table
    assert table.overhead_bytes == pytest.approx(3_000, rel=0.05)
    assert table.bytes_per_row == pytest.approx(40, rel=0.01)


@pytest.mark.parametrize("rows", [[10_000], [10_000] * 5, [10_000, 10_010, 9_990]])
def test_files_of_one_size_keep_the_overhead_of_the_prior(rows: list[int]) -> None:
    """What equal files cannot tell is not invented from their noise; bytes per row take what is left."""
    noise = [0, 900, -700, 300, -500]
    written = {i: PartitionWrites(n, 403_000 + noise[i]) for i, n in enumerate(rows)}
    table = learned([written] * 5, RowSize(2_000, 100)).table
    assert table.overhead_bytes == pytest.approx(2_000, rel=0.05)
    assert table.bytes_of(10_000) == pytest.approx(403_000, rel=0.01)


def test_a_single_tiny_file_without_prior() -> None:
    """At most half of the smallest file is taken for overhead, so that rows weigh something."""
    table = learned([{1: PartitionWrites(5, 1_000)}]).table
    assert table.overhead_bytes == pytest.approx(500, rel=0.01)
    assert table.bytes_of(5) == pytest.approx(1_000, rel=0.01)


def test_a_thousand_tiny_files_tell_little() -> None:
    """Files of one row, all footer, do not move what one real file says of rows by more than a tenth."""
    assert fitted([]) is None
    assert fitted([PartitionWrites(0, 0), PartitionWrites(0, 500), PartitionWrites(5, 0)]) is None
    table = fitted([PartitionWrites(500_000, 50_000_000)] + [PartitionWrites(1, 2_000)] * 1_000)
    assert table is not None
    assert table.bytes_per_row == pytest.approx(100, rel=0.1)
    assert table.overhead_bytes == pytest.approx(1_900, rel=0.1)


def test_a_partition_with_longer_rows_has_its_own_factor() -> None:
    """Rows twice as long in one of ten partitions are known to be so; one more is like the table."""
    written = {i: linear(5_000, per_row=80 if i == 3 else 40) for i in range(10)} | {99: linear(50)}
    sizes = learned([written] * 4)
    assert sizes.size_of(3, 5_000) == pytest.approx(403_000, rel=0.05)
    assert sizes.size_of(4, 5_000) == pytest.approx(203_000, rel=0.05)
    assert sizes.size_of(1_000, 5_000) == sizes.table.bytes_of(5_000)


def test_a_tiny_partition_is_like_the_table() -> None:
    """A file of a few hundred bytes too much says little about the next one."""
    written = {i: linear(1_000) for i in range(10)} | {99: PartitionWrites(1, 4_500)}
    sizes = learned([written])
    assert sizes.size_of(99, 1) == pytest.approx(sizes.table.bytes_of(1), rel=0.15)


def test_rows_that_change_are_followed() -> None:
    """Rows that became three times as long are believed after a few batches."""
    before = {i: linear(100 * 3**i) for i in range(8)}
    now = {i: linear(100 * 3**i, per_row=120) for i in range(8)}
    table = learned([before] * 10 + [now] * 12).table
    assert table.bytes_per_row == pytest.approx(120, rel=0.15)


def test_partitions_are_forgotten_and_bounded() -> None:
    """A partition long gone is like the table again; more partitions than the bound leave the light ones out."""
    odd = {1: linear(1_000, per_row=90), 2: linear(1_000)}
    sizes = learned([odd] + [{2: linear(1_000)}] * 60)
    assert sizes.size_of(1, 1_000) == sizes.table.bytes_of(1_000)
    many = {
        i: PartitionWrites(100 + i, 2 * (3_000 + 40 * (100 + i)) if i % 2 else 3_000) for i in range(MOST_KEYS + 50)
    }
    skewed_partition = learned([many])
    assert skewed_partition.size_of(20, 1_000) == skewed_partition.table.bytes_of(1_000)
    assert skewed_partition.size_of(MOST_KEYS + 49, 1_000) > skewed_partition.table.bytes_of(1_000)


def written_by(folder: Path, number: int, rows: int) -> dict[int, PartitionWrites]:
    """Files of one batch of the stream benchmark, by hour."""
    writer = RowWriter(settings_of(folder, EVENTS, spec_of(EVENTS, hour="identity")), NAMES)
    writer.write(batch(number, rows))
    return {
        int(str(file.partition.values[0])[1:]): PartitionWrites(file.rows, file.size_bytes) for file in writer.close()
    }


def errors(written: Mapping[int, PartitionWrites], told: Callable[[int, int], float]) -> tuple[float, float, float]:
    """|predicted / written - 1|: the median over partitions, of the largest one, and of all bytes of the batch."""
    each = {key: abs(told(key, seen.rows) / seen.size_bytes - 1) for key, seen in written.items()}
    largest = max(written, key=lambda key: written[key].rows)
    all_told = math.fsum(told(key, seen.rows) for key, seen in written.items())
    return median(each.values()), each[largest], abs(all_told / sum(s.size_bytes for s in written.values()) - 1)


@pytest.mark.parametrize("rows", sampled([20_000, 100_000], 2))
def test_sizes_of_real_files(tmp_path: Path, rows: int) -> None:
    """Files of a few rows and of most rows of a batch: within 25 % by a sample, within 10 % after three batches."""
    settings = settings_of(tmp_path, EVENTS, spec_of(EVENTS, hour="identity"))
    sample = batch(0, rows).select(settings.arrow_schema.names).cast(settings.arrow_schema).slice(0, 4_000)
    few, many = encoded_bytes(sample.slice(0, 20), settings), encoded_bytes(sample, settings)
    per_row = (many - few) / (4_000 - 20)
    sizes: RowSizes[int] = RowSizes(RowSize(few - 20 * per_row, per_row))
    for number, bound in enumerate([0.25, 0.15, 0.15, 0.10]):
        written = written_by(tmp_path / str(number), number, rows)
        assert max(errors(written, lambda key, n: sizes.size_of(key, n))) <= bound
        sizes.observe(written)
