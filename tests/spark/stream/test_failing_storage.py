"""Storage of which one call fails, is cut short or finds a full disk, under a batch of a stream."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

import icesize
from icesize.errors import IcesizeError
from tests.support.failing_storage import KINDS, FailingLake, Saved
from tests.support.spark_lake import counted
from tests.support.tables import FakeTime, append, arrow, make_table

OLD, NEW = range(60), range(100, 110)
_streams = itertools.count()


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[FailingLake, Saved]]:
    """A table of three small files in one partition, which the next batch merges."""
    lake = FailingLake(tmp_path_factory.mktemp("lake"))
    make_table(lake.catalog, properties={"format-version": "2", "icesize.policy.max-small-files": "2"})
    for number in range(3):
        append(lake.catalog, OLD[number::3])
    yield lake, lake.save()
    lake.close()


def batch(lake: FailingLake, spark: SparkSession, stream: str) -> None:
    """Batch 0 of a stream, written by the driver."""
    table = icesize.open(spark, "lake.db.t", catalog=lake.catalog, environment=FakeTime().environment)
    table.sink(stream, query_id="q").run(counted(spark, arrow(NEW)), 0)


def test_a_call_of_storage_fails_under_a_batch(start: tuple[FailingLake, Saved], spark: SparkSession) -> None:
    """Only icesize's own errors come out, the batch is in the table whole or not at all, and delivered again it is in
    once; orphan cleanup takes what is left over."""
    for kind in KINDS:
        tried(start, spark, kind, most=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_storage_fails_under_a_batch(
    start: tuple[FailingLake, Saved], spark: SparkSession, kind: str
) -> None:
    """The same at every call."""
    tried(start, spark, kind)


def tried(start: tuple[FailingLake, Saved], spark: SparkSession, kind: str, most: int | None = None) -> None:
    """Try each call of a batch to which this kind of failure can happen, or so many of them."""
    lake, saved = start
    lake.restore(saved)
    batch(lake, spark, f"s{next(_streams)}")
    due = lake.faults.numbers(list(lake.faults.calls), kind)
    for number in due if most is None else random.Random(kind).sample(due, min(most, len(due))):
        try_with(start, spark, number, kind)
    lake.restore(saved)


def try_with(start: tuple[FailingLake, Saved], spark: SparkSession, number: int, kind: str) -> None:
    """Let one call under a batch fail, deliver it again, and clean up."""
    lake, saved = start
    stream = f"s{next(_streams)}"
    lake.restore(saved, number, kind)
    error: Exception | None = None
    try:
        batch(lake, spark, stream)
    except Exception as raised:
        error = raised
    about = f"{kind} at call {number} ({lake.faults.struck[:1]}) raises {error!r}"
    lake.heal()
    assert error is None or isinstance(error, IcesizeError), about
    assert lake.facts()["rows"] in ([*OLD], [*OLD, *NEW]), about
    batch(lake, spark, stream)
    assert lake.facts()["rows"] == [*OLD, *NEW], about
    lake.store.age(4)
    icesize.open(None, "lake.db.t", catalog=lake.catalog).remove_orphan_files(dry_run=False)
    assert lake.store.files.keys() == lake.needed(), about
