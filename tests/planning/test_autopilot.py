"""The choice of settings: it costs no more than what it replaces, and follows reads, arrivals and what users set."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icesize.planning.advice.autopilot import (
    LEAST_GAIN,
    MAX_SMALL_FILES,
    MOST_ARRIVALS,
    UNSURE,
    Outcome,
    Question,
    Settings,
    Spent,
    Trial,
    Workload,
    choose,
    tried,
)
from icesize.planning.files import PartitionKey
from icesize.planning.merging.simulation import Batch
from icesize.planning.reads import Reads
from icesize.planning.scan_cost import Prices
from icesize.policy import MIB, SizePolicy
from tests.support.examples import examples

DEFAULTS = Settings.of(SizePolicy())


def key(*values: object, spec_id: int = 0) -> PartitionKey:
    """A partition."""
    return PartitionKey(spec_id, values)


def every_minute(batches: int = 150, size_bytes: int = MIB) -> tuple[Batch, ...]:
    """The same bytes for one partition, again and again."""
    return tuple({key(): size_bytes} for _ in range(batches))


def question(**others: object) -> Question:
    """What may be chosen for a table with default settings on local disks."""
    return replace(Question(SizePolicy(), DEFAULTS), **others)


WORKLOADS = st.builds(
    Workload,
    st.lists(
        st.dictionaries(st.integers(0, 3).map(key), st.integers(MIB // 10, 40 * MIB), min_size=1),
        min_size=5,
        max_size=30,
    ).map(tuple),
    st.floats(0.2, 3),
    st.lists(
        st.builds(
            Reads, st.floats(1, 500), st.none() | st.integers(1, 3), st.integers(0, 2), st.just(("u",)) | st.just(())
        ),
        min_size=1,
        max_size=3,
    ).map(tuple),
    st.dictionaries(st.integers(0, 5).map(key), st.integers(1, 3 * 1024 * MIB), max_size=3),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from((1.0, 24.0)),
)


@examples(15)
@given(WORKLOADS, st.booleans(), st.booleans())
def test_a_choice_costs_no_more_than_what_it_replaces(workload: Workload, knows: bool, has_prices: bool) -> None:
    """A change saves at least 5 % of the costs; without one the settings and the costs stay as they are."""
    asked = question(columns=("u",), knows_reads=knows, prices=Prices() if has_prices else None)
    choice = choose(workload, asked)
    if choice.then.settings == DEFAULTS:
        assert choice.price_then == choice.price_now
    else:
        assert choice.price_then <= (1 - LEAST_GAIN) * choice.price_now


@examples(25)
@given(WORKLOADS, st.sampled_from(MAX_SMALL_FILES), st.sampled_from((32 * MIB, 512 * MIB)), st.booleans())
def test_no_byte_is_lost(workload: Workload, k: int, target_bytes: int, is_clustered: bool) -> None:
    """The table of a trial has the bytes before and those of all batches, under any settings, also after a change."""
    trial = Trial(workload, SizePolicy(), Settings(k, target_bytes, ("u",) if is_clustered else ()))
    for number, batch in enumerate(workload.batches):
        trial.take(batch)
        if number % 3 == 0:
            trial.maintain()
        if number == 4:
            trial.use(Settings(2, 128 * MIB))
    expected = sum(workload.before.values()) + sum(sum(batch.values()) for batch in workload.batches)
    assert trial.table.layout.size_bytes == expected
    assert trial.written >= trial.ingested == sum(sum(batch.values()) for batch in workload.batches)


def test_many_reads_ask_for_few_small_files_and_few_for_many() -> None:
    """The more often the newest partition is read, the fewer small files it may have."""
    many, few = (
        choose(Workload(every_minute(), 0.5, (Reads(per_day, 1),)), question()).then for per_day in (20_000.0, 1.0)
    )
    assert many.settings.max_small_files < DEFAULTS.max_small_files < few.settings.max_small_files
    assert many.write_amplification > few.write_amplification


def test_columns_that_reads_select_are_clustered_by_if_that_pays() -> None:
    """Queries for single values open one file of a partition in order; without such queries nothing is clustered."""
    before = {key(): 20 * 1024 * MIB}
    reads = Reads(500.0, None, 0, ("u",))
    workload = Workload(every_minute(50), 1.0, (reads,), before)
    chosen = choose(workload, question(columns=("u",))).then
    assert chosen.settings.cluster_by == ("u",)
    assert chosen.files_per_read < 20
    in_bounds = replace(workload, reads=(replace(reads, share=0.02),))
    assert choose(in_bounds, question(columns=("u",))).then.settings.cluster_by == ()
    assert choose(replace(workload, reads=(Reads(500.0),)), question(columns=("u",))).then.settings.cluster_by == ()


@pytest.mark.parametrize("name", ["max_small_files", "target_file_size_bytes", "cluster_by"])
def test_what_users_set_stays(name: str) -> None:
    """A fixed setting keeps its value, and the others are chosen around it."""
    workload = Workload(every_minute(50), 1.0, (Reads(5_000.0, None, 0, ("u",)),), {key(): 20 * 1024 * MIB})
    free = choose(workload, question(columns=("u",))).then.settings
    assert getattr(free, name) != getattr(DEFAULTS, name)
    fixed = choose(workload, question(columns=("u",), fixed=frozenset({name}))).then.settings
    assert getattr(fixed, name) == getattr(DEFAULTS, name)


def test_without_known_reads_a_choice_is_right_for_more_and_for_fewer() -> None:
    """With a 64th of the assumed reads, 64 times as many, or reads of all, it costs no more than the defaults."""
    workload = Workload(every_minute(), 0.5, (Reads(24.0, 1),), {key(0): 2048 * MIB, key(1): 2048 * MIB})
    sure, unsure = (choose(workload, question(knows_reads=knows)).then for knows in (True, False))
    assert sure.price(None) < unsure.price(None)
    for reads in (workload.reads[0], Reads(24.0)):
        tries = replace(workload, reads=(reads,))
        default, chosen = (tried(tries, SizePolicy(), each) for each in (DEFAULTS, unsure.settings))
        assert all(chosen.price(None, rate) <= default.price(None, rate) for rate in (1 / UNSURE, 1.0, UNSURE))


def test_a_part_of_many_partitions_stands_for_all() -> None:
    """Of more arrivals than are simulated a part of the partitions is taken; costs are about those of all."""
    batches = tuple({key(n): 5 * MIB for n in range(200)} for _ in range(40))
    workload = Workload(batches, 1.0, (Reads(50.0), Reads(10.0, 40)), {key(n): 600 * MIB for n in range(200)})
    sample = workload.sampled(2_000)
    assert sum(map(len, sample.batches)) < 3_000 < MOST_ARRIVALS + 1
    assert sample.scale == pytest.approx(8_000 / sum(map(len, sample.batches)))
    whole, part = (tried(each, SizePolicy(), DEFAULTS) for each in (workload, sample))
    assert part.price(None) == pytest.approx(whole.price(None), rel=0.1)
    assert part.write_amplification == pytest.approx(whole.write_amplification, rel=0.05)
    assert workload.sampled(10_000) is workload


def test_a_sample_has_rows() -> None:
    """If no partition is chosen by its hash, the one with the most bytes is."""
    batches = tuple({key(0): 1, key(1): 2} for _ in range(100))
    sample = Workload(batches, 1.0).sampled(1)
    assert sum(map(len, sample.batches)) >= 100
    assert sample.scale == pytest.approx(300 / sum(sum(batch.values()) for batch in sample.batches))


def test_passes_merge_what_others_wrote() -> None:
    """Without merges of batches, files wait for the next pass, and then at most one of each partition is small."""
    workload = Workload(every_minute(48), 1.0, (Reads(24.0),), is_inline=False, files_per_arrival=4, passes_per_day=2.0)
    trial = Trial(workload, SizePolicy(), DEFAULTS)
    for batch in workload.batches:
        trial.take(batch)
    assert trial.table.layout.files == 192
    trial.maintain()
    assert trial.table.layout.files == 1
    assert workload.batches_per_pass == 24
    assert tried(workload, SizePolicy(), DEFAULTS).write_amplification > 1.5


def test_a_partition_of_another_spec_stays() -> None:
    """Rows under the present partition spec are merged, whatever its number is."""
    workload = Workload(tuple({key(spec_id=3): MIB} for _ in range(30)), 1.0, (), {key(spec_id=2): 700 * MIB})
    trial = Trial(workload, SizePolicy(), DEFAULTS)
    for batch in workload.batches:
        trial.take(batch)
    assert trial.table.layout.partitions[key(spec_id=3)].files <= DEFAULTS.max_small_files


def test_a_larger_target_counts_what_it_rewrites_once() -> None:
    """What lies in the table in smaller files is part of the price, so that a tiny gain does not rewrite all of it."""
    small = Settings(6, 32 * MIB)
    workload = Workload(every_minute(50), 1.0, (Reads(1.0),), {key(n): 900 * MIB for n in range(400)})
    asked = question(
        present=small, policy=SizePolicy(target_file_size_bytes=32 * MIB), fixed=frozenset({"max_small_files"})
    )
    assert choose(workload, asked).then.settings == small
    often = replace(workload, reads=(Reads(2_000.0),))
    assert choose(often, asked).then.settings.target_file_size_bytes > 32 * MIB


def test_prices() -> None:
    """Seconds without prices; with prices requests cost money, and the time of a core that waits for them."""
    spent = Spent(3_600.0, 1_000.0, 1_000.0)
    prices = Prices(per_1000_gets=1.0, per_1000_puts=2.0, per_core_hour=10.0)
    assert spent.price(None) == 3_600.0
    assert spent.price(prices) == pytest.approx(3.0 + 10.0 * (3_600 + 0.025 * 2_000) / 3_600)
    outcome = Outcome(DEFAULTS, spent, spent.times(2), 1.0, 1.0)
    assert outcome.price(None, 0.5) == 7_200.0
