"""Vended credentials: each batch is written with its own, workers get those alone, and one that ends costs no rows."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import icesize
from icesize.environment import Environment, WorkLimits
from icesize.errors import RewriteFailed
from tests.support.rest_server import MiniRest
from tests.support.secrets import OF_CATALOG, KeyRing, leaks, printed
from tests.support.spark_lake import EVENTS, TARGET_BYTES, events, rows_of

POLICY = {"target-file-size-bytes": TARGET_BYTES, "max-small-files": 1}


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    """Keys of which each load of a table ends the one before."""
    return KeyRing(tmp_path / "ring")


@pytest.fixture
def vending(tmp_path: Path, ring: KeyRing) -> Iterator[MiniRest]:
    """A REST catalog with an empty table `db.events` that gives out a new key with each load."""
    with MiniRest(tmp_path) as server:
        server.create_namespace(("db",), {})
        server.catalog("mini").create_table("db.events", EVENTS)
        server.credentials = ring.vend
        yield server


def opened(spark: SparkSession, mini: MiniRest, **limits: int) -> icesize.SizedTable:
    """The table, by a client whose own properties are secret."""
    own = {key: value for key, value in OF_CATALOG.items() if key != "credential"}
    environment = Environment(limits=WorkLimits(**limits))
    catalog = mini.catalog("mini", **own)
    return icesize.open(spark, "db.events", catalog=catalog, policy=POLICY, environment=environment)


def rows(mini: MiniRest) -> list[tuple[object, ...]]:
    """What is in the table, as anybody with a new key sees it."""
    return rows_of(mini.catalog("mini").load_table("db.events").scan().to_arrow())


@pytest.mark.smoke
@pytest.mark.parametrize("by", [pytest.param("spark", marks=pytest.mark.slow), "driver"])
def test_each_batch_is_written_with_its_own_key(spark: SparkSession, vending: MiniRest, ring: KeyRing, by: str) -> None:
    """Every load ends the key before it: batches and their merges land, and workers see no property of the catalog."""
    sink = opened(spark, vending, **({"driver_source_bytes": -1} if by == "spark" else {})).sink("s")
    keys: list[set[str]] = []
    for number in range(3):
        before = len(ring.done("create", ".parquet"))
        sink(spark.createDataFrame(events(range(10 * number, 10 * number + 10))), number)
        keys.append({key for _, key, *_ in ring.done("create", ".parquet")[before:]})
    assert [len(each) for each in keys] == [1] * 3, "one batch, one key"
    assert len(set.union(*keys)) == 3, "and no two batches the same"
    assert rows(vending) == rows_of(events(range(30)))
    snapshots = vending.catalog("mini").load_table("db.events").metadata.snapshots
    assert "replace" in [s.summary.operation.value for s in snapshots if s.summary]
    created = ring.done("create", ".parquet")
    given = {name for *_, names in created for name in names}
    assert given == {"py-io-impl", "s3.access-key-id", "s3.secret-access-key", "keyring.folder"}
    workers = {process for _, _, _, process, _ in created} - {os.getpid()}
    assert bool(workers) is (by == "spark")


def test_a_commit_after_a_long_write_uses_the_key_of_its_own_load(
    spark: SparkSession, vending: MiniRest, ring: KeyRing
) -> None:
    """Manifests are written with the newest key: that of the rows has ended by then."""
    opened(spark, vending).append(spark.createDataFrame(events(range(10))))
    (of_rows,) = {key for _, key, *_ in ring.done("create", ".parquet")}
    (of_manifests,) = {key for _, key, *_ in ring.done("create", ".avro")}
    assert int(of_manifests.removeprefix("key")) > int(of_rows.removeprefix("key"))


def test_a_key_that_ends_in_the_middle_fails_the_batch_and_the_replay_lands(
    spark: SparkSession, vending: MiniRest, ring: KeyRing
) -> None:
    """The error says that the key has ended and not what it was; nothing is visible, and a new key writes it all."""
    sink = opened(spark, vending).sink("s", write_tasks=2)
    df = spark.createDataFrame(events(range(1_000))).repartition(2)
    ring.most = 1
    with pytest.raises(RewriteFailed, match=r"Cannot write the batch: .*ExpiredToken: the key key") as raised:
        sink(df, 0)
    assert leaks(printed(raised.value)) == []
    assert rows(vending) == []
    ring.most = None
    sink(df, 0)
    assert rows(vending) == rows_of(events(range(1_000)))
    sink(df, 0)
    assert len(rows(vending)) == 1_000
