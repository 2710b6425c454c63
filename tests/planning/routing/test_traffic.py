"""What the next batch holds, learned from the last ones."""

from __future__ import annotations

import heapq
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.routing.traffic import MOST_KEYS, PartitionWrites, Prediction, Traffic, heaviest
from tests.support.examples import examples, sampled

ROWS = st.dictionaries(st.integers(0, 12), st.integers(0, 100_000), max_size=8)
STREAM = st.lists(ROWS, min_size=1, max_size=12)
BALANCED = 1.25
"""The heaviest writer's rows over the mean that a stream may have once it was learned."""


def after(stream: Iterable[Mapping[int, int]]) -> Prediction[int]:
    """The prediction after batches of rows by key; at least one of them has rows."""
    traffic: Traffic[int] = Traffic()
    for batch in stream:
        traffic.observe(seen(batch))
    prediction = traffic.predict()
    assert prediction is not None
    return prediction


def seen(batch: Mapping[int, int]) -> dict[int, PartitionWrites]:
    """Rows as partitions of one file with 40 bytes per row."""
    return {key: PartitionWrites(rows, 40 * rows) for key, rows in batch.items()}


def hours(newest: int, rows: int, dice: random.Random | None = None, first: int = 0) -> dict[int, int]:
    """A batch of the stream benchmark: 60 % in the newest hour, the rest by 1 / (age + 1) ** 1.2; drawn with dice."""
    tail = [1 / (age + 1) ** 1.2 for age in range(1, newest - first + 1)]
    shares = [0.6, *(0.4 * weight / math.fsum(tail) for weight in tail)]
    if dice is None:
        return {newest - age: round(rows * share) for age, share in enumerate(shares)}
    return {newest - age: count for age, count in Counter(dice.choices(range(len(shares)), shares, k=rows)).items()}


def skew(prediction: Prediction[int], batch: Mapping[int, int], tasks: int = 4) -> float:
    """Rows of the busiest of `tasks` writers over their mean, when partitions are placed as predicted.

    Heaviest first on the least loaded tasks; what would be more than a fair share is split evenly; all unknown keys
    are split over as many tasks as the heaviest of them is expected to need.
    """
    fair = prediction.total_rows / tasks
    parts: list[tuple[float, int, int | None]] = []
    for key, rows in [*prediction.rows.items(), (None, prediction.unknown_rows)]:
        count = min(tasks, max(1, math.ceil(rows / fair / (1 if key is None else 1.1))))
        parts.append((rows / count, count, key))
    load = [(0.0, task) for task in range(tasks)]
    places: dict[int | None, list[int]] = {}
    for share, count, key in sorted(parts, key=lambda part: (-part[0], repr(part[2]))):
        chosen = [heapq.heappop(load) for _ in range(count)]
        places[key] = [task for _, task in chosen]
        for carried, task in chosen:
            heapq.heappush(load, (carried + share, task))
    written = [0.0] * tasks
    for key, rows in batch.items():
        at = places.get(key, places[None])
        for task in at:
            written[task] += rows / len(at)
    return max(written) * tasks / sum(written)


def skews(stream: list[dict[int, int]]) -> list[float]:
    """The skew of each batch but the first, placed by what was learned from those before it."""
    traffic: Traffic[int] = Traffic()
    found = []
    for batch in stream:
        prediction = traffic.predict()
        if prediction is not None:
            found.append(skew(prediction, batch))
        traffic.observe(seen(batch))
    return found


def test_nothing_is_known_at_first() -> None:
    """There is no prediction before rows were observed, and empty batches are no observation."""
    traffic: Traffic[str] = Traffic()
    assert traffic.predict() is None
    traffic.observe({})
    traffic.observe({"a": PartitionWrites(0, 0, 0)})
    assert traffic.predict() is None
    traffic.observe({"a": PartitionWrites(10, 100)})
    assert traffic.predict() is not None


def test_after_one_batch_the_next_is_alike_and_may_have_a_key_as_heavy() -> None:
    """Known keys keep their proportions; of a new key nothing is known but how heavy keys can be."""
    prediction = after([{1: 600, 2: 300, 3: 100}])
    assert prediction.total_rows == 1_000
    assert prediction.unknown_rows == pytest.approx(1_000 * 0.6 / 1.6)
    assert prediction.rows == pytest.approx({1: 600 / 1.6, 2: 300 / 1.6, 3: 100 / 1.6})


def test_the_first_batch_is_no_novelty() -> None:
    """Once a second batch brought no new key, none is expected."""
    prediction = after([{1: 600, 2: 400}] * 2)
    assert prediction.unknown_rows == 0.0
    assert prediction.rows == pytest.approx({1: 600, 2: 400})


@given(STREAM)
def test_predictions_are_finite_and_within_the_batch(stream: list[dict[int, int]]) -> None:
    """Rows are finite, not negative, of keys that were seen, and not more than a batch; batches stay as large."""
    totals = [total for batch in stream if (total := sum(batch.values()))]
    if not totals:
        return
    prediction = after(stream)
    rows = [*prediction.rows.values(), prediction.unknown_rows]
    assert all(math.isfinite(value) and value >= 0 for value in rows)
    assert math.fsum(rows) <= prediction.total_rows * (1 + 1e-9)
    assert min(totals) * (1 - 1e-9) <= prediction.total_rows <= max(totals) * (1 + 1e-9)
    assert prediction.rows.keys() <= {key for batch in stream for key, count in batch.items() if count}


@given(STREAM, st.randoms(use_true_random=False))
def test_the_order_of_a_batch_is_no_matter(stream: list[dict[int, int]], dice: random.Random) -> None:
    """The same batches in another order of their partitions give exactly the same prediction."""
    one: Traffic[int] = Traffic()
    other: Traffic[int] = Traffic()
    for batch in stream:
        items = list(batch.items())
        dice.shuffle(items)
        one.observe(seen(batch))
        other.observe(seen(dict(items)))
        assert one.predict() == other.predict()


@given(STREAM, st.lists(st.integers(0, 3), min_size=12, max_size=12))
def test_batches_without_rows_are_not_counted(stream: list[dict[int, int]], gaps: list[int]) -> None:
    """Gaps of empty batches, or of batches whose partitions have no rows, change nothing."""
    one: Traffic[int] = Traffic()
    other: Traffic[int] = Traffic()
    for batch, gap in zip(stream, gaps, strict=False):
        for _ in range(gap):
            other.observe({3: PartitionWrites(0, 0)})
        one.observe(seen(batch))
        other.observe(seen(batch))
    assert one.predict() == other.predict()


@given(
    st.dictionaries(st.integers(0, 30), st.integers(1, 1_000), min_size=1), st.lists(st.integers(1, 500), min_size=2)
)
def test_keys_that_stay_are_predicted_exactly_whatever_the_size_of_batches(
    batch: dict[int, int], sizes: list[int]
) -> None:
    """Batches in the same proportions but of any size have the same shares."""
    prediction = after({key: rows * size for key, rows in batch.items()} for size in sizes)
    factor = prediction.total_rows / sum(batch.values())
    assert prediction.rows == pytest.approx({key: rows * factor for key, rows in batch.items()})
    assert prediction.unknown_rows == pytest.approx(0, abs=1e-6 * prediction.total_rows)


@pytest.mark.parametrize("seed", sampled([None, *range(8)], 3))
@pytest.mark.parametrize("rows", [5_000, pytest.param(50_000, marks=pytest.mark.engine)])
def test_the_benchmarks_stream_is_balanced_after_three_batches(rows: int, seed: int | None) -> None:
    """Where the newest hour is always a new one with 60 % of the rows, four writers are equally busy all the same."""
    dice = None if seed is None else random.Random(seed)
    found = skews([hours(168 + i, rows, dice) for i in range(24)])
    assert max(found[2:]) <= BALANCED
    assert max(found[10:]) <= 1.1


def test_what_the_benchmarks_stream_is_predicted_to_hold() -> None:
    """The new hour, the one that was newest and the one before it are each expected as they come."""
    prediction = after(hours(168 + i, 200_000) for i in range(10))
    batch = hours(178, 200_000)
    assert prediction.unknown_rows == pytest.approx(batch[178], rel=0.05)
    assert prediction.rows[177] == pytest.approx(batch[177], rel=0.1)
    assert prediction.rows[176] == pytest.approx(batch[176], rel=0.1)
    missed = math.fsum(abs(prediction.rows[hour] - rows) for hour, rows in batch.items() if hour != 178)
    assert missed <= 0.05 * 200_000


@pytest.mark.parametrize("seed", sampled(range(6), 3))
def test_traffic_that_jumps_to_new_hours_is_balanced_two_batches_later(seed: int) -> None:
    """After all rows moved to hours never seen before, two batches are enough to learn it."""
    dice = random.Random(seed)
    before = [hours(168 + i, 50_000, dice) for i in range(8)]
    jumped = [hours(10_168 + i, 50_000, dice, first=10_000) for i in range(10)]
    found = skews([*before, *jumped])
    assert max(found[len(before) + 1 :]) <= BALANCED


def test_light_keys_that_vanish_say_nothing_of_a_heavy_new_one() -> None:
    """Though keys with half a percent of the rows never came twice, a new one with a third is expected to stay."""
    stream = [{1: 600, 2: 395, 100 + i: 5} for i in range(8)]
    assert after([*stream, {1: 400, 2: 265, 3: 335}]).rows[3] > 250


def test_partitions_of_one_batch_each_are_expected_to_be_over() -> None:
    """Where every batch has a partition of its own, the next one is new and the old ones get nothing."""
    prediction = after({i: 1_000} for i in range(6))
    assert prediction.unknown_rows == pytest.approx(1_000, rel=0.01)
    assert sum(prediction.rows.values()) < 10


def test_keys_that_stay_are_balanced_one_batch_after_they_were_replaced() -> None:
    """Twenty keys that never age, all of them other ones from the ninth batch on."""
    weights = range(100, 2_100, 100)
    found = skews([dict(enumerate(weights))] * 8 + [dict(enumerate(weights, 1_000))] * 8)
    assert max(found[:7]) <= BALANCED
    assert max(found[8:]) <= BALANCED


@pytest.mark.parametrize("every", [2, 3, 5, 10])
def test_hours_that_move_every_few_batches_are_learned(every: int) -> None:
    """From the fourth new hour on also the batch in which the hour moves is balanced, and all between them."""
    dice = random.Random(every)
    found = skews([hours(168 + i // every, 20_000, dice) for i in range(7 * every)])
    assert max(found[3 * every - 1 :]) <= BALANCED


def test_traffic_that_follows_the_sun_is_balanced() -> None:
    """Thirty countries, each with its own time of day; 24 batches are a day."""
    day = [{key: round(5_000 * (1.1 + math.sin(i / 24 * math.tau + key))) for key in range(30)} for i in range(48)]
    assert max(skews(day)[1:]) <= BALANCED


def test_keys_that_take_turns_keep_half_of_their_rows() -> None:
    """Keys seen in every other batch are not given up: their own mean is the better guess."""
    prediction = after({i % 2: 1_000, 2: 1_000} for i in range(20))
    assert prediction.rows[0] > 200
    assert prediction.rows[1] > 200
    assert prediction.rows[2] == pytest.approx(1_000, rel=0.05)


def test_light_keys_that_come_late_are_no_heavy_novelty() -> None:
    """A new key of a thousandth of the rows in each batch is expected to be followed by one as light."""
    prediction = after({1: 600, 2: 399, 100 + i: 1} for i in range(12))
    assert 0 <= prediction.unknown_rows <= 1.5


def test_batches_grow() -> None:
    """The size of the next batch follows that of the last ones."""
    assert after([{1: 100}] * 5 + [{1: 1_000}] * 4).total_rows > 900


def test_dead_keys_are_forgotten() -> None:
    """A key of a thousand rows is known ten batches after it was last seen, and forgotten after thirty."""
    stream = [{1: 1_000, 2: 1_000}, *[{1: 1_000}] * 30]
    assert 2 in after(stream[:11]).rows
    assert set(after(stream).rows) == {1}


def test_memory_is_bounded_and_the_heaviest_keys_are_kept() -> None:
    """Of more keys than can be named the light ones are left out, and unknown ones are expected to be light."""
    weights = dict(enumerate(range(1, MOST_KEYS + 501)))
    prediction = after([weights] * 3)
    assert prediction.rows.keys() == set(range(500, MOST_KEYS + 500))
    assert prediction.rows[MOST_KEYS + 499] == pytest.approx(MOST_KEYS + 500)
    assert prediction.unknown_rows == 0.0
    assert prediction.total_rows == pytest.approx(sum(weights.values()))


def test_a_stream_of_ever_new_keys_does_not_pile_up() -> None:
    """Thousands of keys that appear once and never again leave at most the number that can be named."""
    stream = [{3_000 * i + n: 1_000 + n for n in range(3_000)} for i in range(6)]
    assert len(after(stream).rows) <= MOST_KEYS


@examples(50)
@given(st.dictionaries(st.integers(), st.integers(0, 20).map(float), max_size=30), st.integers(0, 30))
def test_the_heaviest_keys_do_not_depend_on_order(weights: dict[int, float], most: int) -> None:
    """At most `most` keys stay, none lighter than one that went, and reversing the mapping changes nothing."""
    kept = heaviest(weights, most)
    assert kept == heaviest(dict(reversed(weights.items())), most)
    assert len(kept) <= max(most, 0)
    gone = [weight for key, weight in weights.items() if key not in kept]
    assert not gone or not kept or min(kept.values()) > max(gone)
