"""Tests of the simulated stream: no row is lost, bounds hold after each batch, and manifests are those of commits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from html import unescape
from itertools import count
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from benchmarks import peers, simulate
from benchmarks.simulate_costs import PART_BYTES, Tally, puts
from benchmarks.simulate_metadata import ENTRY_BYTES, MANIFEST_BYTES, Manifests
from benchmarks.simulate_stream import MOST_DAYS_LATE, Stream
from benchmarks.simulate_writers import DELTA_MIN_FILES, MIN_INPUT_FILES, WRITERS
from benchmarks.snapshots import NOW_MS, create_table, data_file
from icesize.parquet.files.data_file import MergeResult, NewDataFile
from icesize.planning.files import FileFact, Layout, PartitionKey
from icesize.planning.merging.simulation import Exchange
from icesize.planning.merging.standing import Standing
from icesize.table.commit.snapshot_builder import SnapshotBuilder
from icesize.table.commit.steps.append import Append
from icesize.table.commit.steps.merge import Merge
from icesize.table.manifests.packing import live_entries

SMALL = Stream(partitions=10, touched=6, late=2, batches_per_day=90, batch_bytes=600_000_000, seed=7)


def live_bytes(simulation: simulate.Simulation) -> int:
    return sum(facts.size_bytes for facts in simulation.table.layout.partitions.values())


@pytest.mark.parametrize("name", WRITERS)
def test_no_byte_or_row_is_lost(name: str) -> None:
    """After two days, live bytes and rows are those of the batches, and each live file is in one manifest."""
    simulation, days = simulate.Simulation(SMALL, WRITERS[name]), 2
    tally = simulation.run(days)
    batches = [SMALL.batch(number) for number in range(days * SMALL.batches_per_day)]
    assert live_bytes(simulation) == tally.ingested_bytes == sum(sum(batch.values()) for batch in batches)
    partitions = simulation.table.layout.partitions
    assert sum(facts.rows for facts in partitions.values()) == sum(map(len, batches))
    listed = Counter(number for m in simulation.manifests.manifests.values() for number in m.files.tolist())
    assert len(listed) == listed.total() == sum(facts.files for facts in partitions.values())
    assert {int(file.path) for facts in partitions.values() for file in facts.small} <= listed.keys()
    assert tally.written_bytes >= tally.ingested_bytes


def test_icesize_keeps_its_bound_after_each_batch() -> None:
    """At most k small files stay in a partition, and what is kept of the layout is what is made from nothing."""
    simulation = simulate.Simulation(SMALL, WRITERS["icesize"])
    policy = simulation.writer.policy
    for number in range(2 * SMALL.batches_per_day):
        simulation.step(number, Tally())
        layout: Layout = simulation.table.layout
        assert max(len(facts.small) for facts in layout.partitions.values()) <= policy.max_small_files
        assert layout.standing == Standing(policy).changed((), layout.partitions.values())
        small = [file for facts in layout.partitions.values() for file in facts.small]
        assert all(file.size_bytes < policy.small_file_limit_bytes for file in small)
    plan = simulation.table.plan(SMALL.batch(number + 1)).plan
    simulation.table.layout = replace(layout, standing=None)
    assert simulation.table.plan(SMALL.batch(number + 1)).plan.skipped_by_reason == plan.skipped_by_reason


def test_peers_follow_their_rules() -> None:
    """Always merging leaves one small file; nights leave few of each partition; Delta's rule waits for fifty."""
    always, night, fifty = (
        simulate.Simulation(SMALL, WRITERS[name]) for name in list(WRITERS)[1:]
    )  # fmt: skip
    assert max(always.run(2).small_files) == 1
    assert max(night.run(2).small_files) > MIN_INPUT_FILES
    assert max(len(facts.small) for facts in night.table.layout.partitions.values()) < MIN_INPUT_FILES
    tiny = simulate.Simulation(replace(SMALL, batch_bytes=6_000_000), fifty.writer)
    assert max(tiny.run(2).small_files) == DELTA_MIN_FILES - 1


def test_batches_depend_on_seed_and_number_alone() -> None:
    """A batch has its bytes, in few partitions, none of which is older than ten days; some are late."""
    batches = [SMALL.batch(number) for number in range(0, 20 * SMALL.batches_per_day, 7)]
    assert batches == [SMALL.batch(number) for number in range(0, 20 * SMALL.batches_per_day, 7)]
    assert SMALL.batch(5) != replace(SMALL, seed=8).batch(5) != SMALL.batch(6)
    ages = Counter[int]()
    for number, batch in zip(range(0, 20 * SMALL.batches_per_day, 7), batches, strict=True):
        assert sum(batch.values()) == SMALL.batch_bytes
        assert len(batch) <= SMALL.touched
        ages.update(SMALL.day(number) - int(str(key.values[0])) for key in batch)
    assert set(ages) == set(range(MOST_DAYS_LATE + 1))


@pytest.mark.parametrize("name", WRITERS)
def test_a_table_grows_by_finished_partitions(name: str) -> None:
    """Copies of the first day are not merged, and stay as they are while the stream goes on."""
    simulation = simulate.Simulation(SMALL, WRITERS[name])
    simulation.run(2)
    bytes_before, files_before = live_bytes(simulation), dict(simulation.table.layout.partitions)
    simulation.grow(3)
    copies = {key: facts for key, facts in simulation.table.layout.partitions.items() if key not in files_before}
    assert len({key.values[0] for key in copies}) == 3
    assert live_bytes(simulation) == bytes_before + sum(facts.size_bytes for facts in copies.values())
    tally = simulation.run(1)
    assert {key: simulation.table.layout.partitions[key] for key in copies} == copies
    assert live_bytes(simulation) == bytes_before + tally.ingested_bytes + sum(f.size_bytes for f in copies.values())


def test_manifests_are_those_of_the_snapshot_builder(tmp_path: Path) -> None:
    """Appends, merges of hot and cold partitions, merged manifests: each manifest has the entries of a real one."""
    catalog = peers.catalog(tmp_path)
    table, random = create_table(catalog, tmp_path), Random(7)
    table = table.transaction().set_properties({"commit.manifest.min-count-to-merge": "20"}).commit_transaction()
    builder, model = SnapshotBuilder(table, NOW_MS), Manifests(100, min_to_merge=20)
    real, stamps, live, paths = dict[str, NewDataFile](), dict[str, int](), list[FileFact](), count()
    for batch in range(60):
        keys = [PartitionKey(0, (batch // 20, tenant)) for tenant in random.sample(range(100), 60)]
        new = [FileFact(str(next(paths)), 1, 1, key, batch) for key in keys]
        merges = _merges(random, live, paths) if batch % 3 else []
        real |= {file.path: _real(file, table.location()) for file in new}
        Append(tuple(real[file.path] for file in new)).stage(builder, {})
        stamps |= {file.path: _sequence_number(builder) for file in new}
        for merge in merges:
            [output] = merge.outputs
            stamps[output.path] = max(stamps[file.path] for file in merge.inputs)
            real[output.path] = replace(_real(output, table.location()), sequence_number=stamps[output.path])
        if merges:
            Merge(tuple(_result(merge, real) for merge in merges)).stage(builder, {})
        model.commit([[Exchange((), (file,)) for file in new], *([merges] if merges else [])])
        gone = {file.path for merge in merges for file in merge.inputs}
        live = [file for file in live if file.path not in gone] + new + [merge.outputs[0] for merge in merges]
        counts = Counter((live_entries(m), m.deleted_files_count or 0) for m in builder.manifests)
        modelled = model.manifests.values()
        assert Counter((m.files.size, m.entries - m.files.size) for m in modelled) == counts
    assert max(entries for entries, _ in counts) > 1_000
    assert len(counts) > 2
    catalog.close()


def _merges(random: Random, live: list[FileFact], paths: Iterator[int]) -> list[Exchange]:
    """Return merges of the three oldest files of some partitions."""
    by_partition = defaultdict[PartitionKey, list[FileFact]](list)
    for file in live:
        by_partition[file.partition].append(file)
    many = [tuple(files[:3]) for files in by_partition.values() if len(files) > 3]
    return [
        Exchange(inputs, (replace(inputs[-1], path=str(next(paths))),))
        for inputs in random.sample(many, min(8, len(many)))
    ]


def _real(file: FileFact, location: str) -> NewDataFile:
    day, tenant = file.partition.values
    return data_file(f"{location}/data/{file.path}.parquet", f"{day:04}-{tenant:04}")


def _result(merge: Exchange, real: dict[str, NewDataFile]) -> MergeResult:
    inputs = (real[file.path] for file in merge.inputs)
    facts = tuple(FileFact(file.path, file.size_bytes, file.rows, file.partition) for file in inputs)
    return MergeResult(facts, tuple(real[file.path] for file in merge.outputs))


def _sequence_number(builder: SnapshotBuilder) -> int:
    return max(manifest.sequence_number or 0 for manifest in builder.manifests)


def test_manifests_are_about_as_large_as_real_ones(tmp_path: Path) -> None:
    """Bytes of a manifest and of an entry are those that the writer of manifests needs for random statistics."""
    catalog = peers.catalog(tmp_path)
    table, random, columns = create_table(catalog, tmp_path), Random(7), range(1, 8)
    for entries in (1, 1_000):
        builder = SnapshotBuilder(table, NOW_MS)
        files = [
            replace(
                data_file(f"{table.location()}/data/{UUID(int=random.getrandbits(128))}.parquet", f"h{number:04}"),
                size_bytes=random.randrange(10**8),
                column_sizes={column: random.randrange(10**7) for column in columns},
                lower_bounds={column: random.randbytes(8) for column in columns},
                upper_bounds={column: random.randbytes(8) for column in columns},
            )
            for number in range(entries)
        ]
        Append(tuple(files)).stage(builder, {})
        [manifest] = builder.manifests
        assert manifest.manifest_length == pytest.approx(MANIFEST_BYTES + entries * ENTRY_BYTES, rel=0.15)
    catalog.close()


def test_large_files_are_written_in_parts() -> None:
    """A small file is one request, a large one as many as it has parts and two."""
    assert [puts(1), puts(PART_BYTES), puts(16 * PART_BYTES)] == [1, 1, 18]


def test_the_benchmark_prints_a_row_for_each_period(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Each writer has the days of its periods, its table grows between them, and its name is in the picture."""
    days = ["--days", "1", "--periods", "2", "--length", "9"]
    batches = ["--partitions", "10", "--touched", "6", "--late", "2", "--batches", "40", "--tb", "0.02"]
    result = simulate.main([*days, *batches, "--picture", str(tmp_path / "costs.svg"), "--json"])
    assert json.loads(capsys.readouterr().out) == result
    assert [(row["writer"], row["day"]) for row in result["rows"]] == [
        (name, day) for name in WRITERS for day in (1, 9)
    ]
    assert all(row["write_amplification"] >= 1 for row in result["rows"])
    assert [row["partitions"] for row in result["rows"][:2]] == [10, 90]
    picture = unescape((tmp_path / "costs.svg").read_text(encoding="utf-8"))
    assert all(name in picture for name in WRITERS)
