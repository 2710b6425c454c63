"""What clustering by a column would spare: exact where it is defined, and silent where bounds do not tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.advice.clustering import FEWEST_FILES, ColumnCandidate, PointFiles, advise_clustering, point_files
from icesize.planning.cluster_by import Bounds, ClusterFile
from icesize.planning.files import FileFact, PartitionKey
from icesize.policy import MIB, SizePolicy
from icesize.results import Advice
from tests.support.examples import examples

POLICY = SizePolicy(target_file_size_bytes=100 * MIB)
Owned = list[tuple[Bounds, int]]

SPANS = st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda pair: (min(pair), max(pair)))
PARTITIONS = st.lists(
    st.lists(st.tuples(st.one_of(SPANS, SPANS, st.just(())), st.integers(1, 9)), max_size=6), max_size=4
)


def outputs(size_bytes: int) -> int:
    return max(1, size_bytes // 4)


def naive(partitions: Sequence[Owned]) -> PointFiles:
    """The definition: for each file the middle of its bounds among all bounds, and what covers that."""
    spans = [(*bounds, size) for owned in partitions for bounds, size in owned if bounds]
    ends = sorted({value for low, high, _ in spans for value in (low, high)})

    def covered(low: int, high: int, by: Sequence[tuple[int, int]]) -> int:
        inside = [value for value in ends if low <= value <= high]
        half = (len(inside) - 1) // 2
        first, last = inside[half], inside[min(half + 1, len(inside) - 1)]
        return sum(begin <= first and end >= last for begin, end in by)

    def mean(by: Sequence[tuple[int, int]]) -> float:
        return sum(size * covered(low, high, by) for low, high, size in spans) / sum(size for *_, size in spans)

    whole = [
        ((min(b[0] for b, _ in owned if b), max(b[1] for b, _ in owned if b)), outputs(sum(size for _, size in owned)))
        for owned in partitions
        if any(bounds for bounds, _ in owned)
    ]
    values = max(len({low for low, *_ in spans}), len({high for _, high, _ in spans}))
    stretch = max(1.0, max(made for _, made in whole) / values)
    every = [span for span, made in whole for _ in range(made)]
    return PointFiles(mean([(low, high) for low, high, _ in spans]), mean(every), stretch * mean([s for s, _ in whole]))


@examples(300)
@given(PARTITIONS)
def test_point_files_are_what_their_definition_says(partitions: list[Owned]) -> None:
    """In any order of files and partitions; each value is in one file at least, and merging spares no more than
    clustering does."""
    found = point_files(partitions, outputs, values=1000)
    if not any(bounds for owned in partitions for bounds, _ in owned):
        assert found is None
        return
    assert found is not None
    assert found == point_files([owned[::-1] for owned in partitions[::-1]], outputs, values=1000)
    assert 1 <= found.clustered <= found.merged
    assert found.now >= 1
    counted = point_files(partitions, outputs)
    if counted is not None:
        expected = naive(partitions)
        assert counted.now == pytest.approx(expected.now)
        assert counted.merged == pytest.approx(expected.merged)
        assert counted.clustered == pytest.approx(expected.clustered)


@examples(200)
@given(PARTITIONS, st.data())
def test_nothing_is_said_without_bounds(partitions: list[Owned], data: st.DataObject) -> None:
    """One file that does not tell is enough: every query opens it, and why is not known."""
    number = data.draw(st.integers(0, len(partitions)))
    partitions.insert(number, [(None, 5)])
    assert point_files(partitions, outputs, values=1000) is None


@examples(200)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=30))
def test_files_side_by_side_are_in_order(widths: list[int]) -> None:
    """However wide they are, clustering has nothing to spare."""
    spans, low = list[tuple[Bounds, int]](), 0
    for width in widths:
        spans.append(((low, low + width), 4))
        low += width + 1
    found = point_files([spans], outputs)
    assert found == PointFiles(1.0, float(len(spans)), 1.0)
    assert not found.gains
    assert found.in_order == (len(spans) > 1)


@pytest.mark.parametrize(("values", "clustered"), [(1, None), (2, None), (9, 12 / 9), (12, 1.0), (1_000_000, 1.0)])
def test_few_values_are_told_from_many(values: int, clustered: float | None) -> None:
    """Twelve files from `back` to `sent` may hold four values or a million: only statistics tell, and with few values
    each is in several files however they are laid out."""
    found = point_files([[(("back", "sent"), 4)] * 12], outputs, values)
    assert (found and found.clustered) == (clustered and pytest.approx(clustered))


def clustered_files(
    *columns: Sequence[Bounds], kind: str = "a", size_bytes: int = 100 * MIB
) -> dict[PartitionKey, list[ClusterFile]]:
    """Files of one partition, with bounds column by column."""
    key = PartitionKey(0, (kind,))
    return {
        key: [
            ClusterFile(FileFact(f"{kind}{n}", size_bytes, 1_000, key), bounds)
            for n, bounds in enumerate(zip(*columns, strict=True))
        ]
    }


IN_ORDER = [(100 * n, 100 * n + 99) for n in range(12)]
SPREAD = [(n, 1_000_000 - n) for n in range(12)]


def told(*columns: tuple[ColumnCandidate, Sequence[Bounds]], table: str = "lake.db.t") -> tuple[Advice, ...]:
    return advise_clustering(table, clustered_files(*(b for _, b in columns)), [c for c, _ in columns], POLICY)


def test_a_column_with_a_reason_comes_with_the_command() -> None:
    """What is in order already, what a query opens now and then, and what to type."""
    key = ColumnCandidate("customer_id", "an identifier field")
    assert told((key, SPREAD), (ColumnCandidate("ts"), IN_ORDER), (ColumnCandidate("other"), SPREAD)) == (
        Advice(
            "files are already ordered by ts; a query for one value of customer_id, an identifier field, opens "
            "12.0 of 12 files on average, about 1.0 after clustering: `icesize cluster lake.db.t --by customer_id`",
            "icesize cluster lake.db.t --by customer_id",
        ),
    )


def test_columns_without_a_reason_come_without_one() -> None:
    """The table does not say what queries ask: `--filter` does."""
    names = [ColumnCandidate(name) for name in "abcde"]
    assert told(*((name, SPREAD) for name in names)) == (
        Advice(
            "a query for one value of a opens 12.0 of 12 files on average, about 1.0 after clustering by it "
            "(the same holds for b, c, d, 1 more column); to see the columns to cluster by, run "
            "`icesize inspect` with `--filter` and your query filters"
        ),
    )


def test_a_table_that_gains_nothing_gets_no_advice() -> None:
    """In order; few files; merging makes them as few as clustering would; no bounds; several specs; no columns."""
    assert told((ColumnCandidate("ts", "an identifier field"), IN_ORDER)) == ()
    assert told((ColumnCandidate("a"), SPREAD[: FEWEST_FILES - 1])) == ()
    assert advise_clustering("t", clustered_files(SPREAD, size_bytes=MIB), [ColumnCandidate("a")], POLICY) == ()
    assert told((ColumnCandidate("a"), [*SPREAD[:-1], None])) == ()
    one, other = clustered_files(SPREAD), clustered_files(SPREAD, kind="b")
    [old] = other
    assert advise_clustering("t", one | {replace(old, spec_id=7): other[old]}, [ColumnCandidate("a")], POLICY) == ()
    assert advise_clustering("t", {}, [ColumnCandidate("a")], POLICY) == ()
    assert advise_clustering("t", clustered_files(SPREAD), [], POLICY) == ()


def test_partitions_that_rule_files_out_count() -> None:
    """A time is in one day only, so its files are in order across partitions; a customer is in each of them, and each
    becomes one file of every partition at best."""
    files: dict[PartitionKey, list[ClusterFile]] = {}
    for day in range(5):
        times = [(10_000 * day + 100 * n, 10_000 * day + 100 * n + 99) for n in range(12)]
        files |= clustered_files(times, SPREAD, kind=str(day))
    [sentence] = map(
        str, advise_clustering("lake.db.t", files, [ColumnCandidate("ts"), ColumnCandidate("customer_id")], POLICY)
    )
    assert sentence.startswith(
        "files are already ordered by ts; a query for one value of customer_id opens 60.0 of 60 files on average, "
    )


def test_what_a_compaction_spares_is_no_merit_of_clustering() -> None:
    """Small files that would be merged anyway are told apart."""
    [sentence] = map(
        str, advise_clustering("t", clustered_files(SPREAD * 4, size_bytes=12 * MIB), [ColumnCandidate("a")], POLICY)
    )
    assert (
        "a query for one value of a opens 48.0 of 48 files on average (6.0 after a compaction), about 1.0 after"
        in sentence
    )
