"""The memory of a process for catalogs, tables and streams: bounded, by table, and no catalog waits for another."""

from __future__ import annotations

import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from uuid import uuid4
from weakref import ref

import pytest
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

import icesize
from icesize.spark.stream import process_state
from icesize.spark.stream.process_state import MOST_STATES, Remembered, TableSource, stream_state
from icesize.table.catalog import opening
from tests.support.meeting import Meeting, all_at_once
from tests.support.spark_lake import Lake, counted, events, lake_catalog


@dataclass(frozen=True)
class Value:
    """Something that can be referred to weakly."""

    number: int = 0


def test_a_value_is_made_once() -> None:
    """Threads that want a value at the same time get the same one."""
    remembered, make = Remembered[Value](8), Meeting().ahead_of(Value)
    one, other = all_at_once([lambda: remembered.get("key", make)] * 2)
    assert one is other


def test_the_least_recently_used_goes() -> None:
    """No more values stay than there is room for; those that are used stay longest."""
    remembered = Remembered[Value](2)
    found = [remembered.get(key, partial(Value, number)).number for number, key in enumerate("abacab")]
    assert found == [0, 1, 0, 3, 0, 5]


def test_a_value_in_use_is_not_made_again() -> None:
    """What something refers to is found however many others were used since."""
    remembered = Remembered[Value](2)
    used = remembered.get("used", Value)
    for key in "abc":
        remembered.get(key, Value)
    assert remembered.get("used", Value) is used


def test_a_value_that_cannot_be_made_is_tried_again() -> None:
    """An error is raised and not remembered."""
    remembered = Remembered[Value](2)
    with pytest.raises(ZeroDivisionError):
        remembered.get("key", lambda: Value(1 // 0))
    assert remembered.get("key", lambda: Value(7)) == Value(7)


def test_a_catalog_that_hangs_keeps_no_other_from_being_opened(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one catalog does not answer, a table of another is opened and appended to; later the first works, too."""
    lake.create()
    hangs, asked, answers = f"hangs-{uuid4().hex}", threading.Event(), threading.Event()

    def open_catalog(name: str, properties: object = None) -> Catalog:
        if name == hangs:
            asked.set()
            answers.wait(60)
        return lake.catalog

    monkeypatch.setattr(opening, "open_catalog", open_catalog)
    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(icesize.open, spark, f"{hangs}.db.events")
        assert asked.wait(60)
        try:
            table = threads.submit(icesize.open, spark, f"answers-{uuid4().hex}.db.events").result(20)
            assert table.append(counted(spark, events([1]))).rows == 1
            assert not waiting.done()
        finally:
            answers.set()
        assert waiting.result(60).inspect().files == 1


def test_a_table_that_takes_a_name_has_a_state_of_its_own(spark: SparkSession, lake: Lake) -> None:
    """States are those of tables, not of names; two tables opened alike share one."""
    lake.create()
    first, same = (lake.open(spark)._in_spark("test")[1] for _ in range(2))
    lake.catalog.drop_table("db.events")
    lake.create()
    later = lake.open(spark)._in_spark("test")[1]
    assert stream_state(first, "s") is stream_state(same, "s")
    assert stream_state(first, "s") is not stream_state(first, "t")
    assert stream_state(first, "s") is not stream_state(later, "s")


def use_other_states() -> None:
    """As many as a process remembers."""
    for number in range(MOST_STATES):
        stream_state(TableSource(f"other.db.t{number}"), "s")


def test_states_are_bounded_and_catalogs_go_with_them(spark: SparkSession, lake: Lake) -> None:
    """Of many streams the newest and those with a sink are remembered; a catalog object goes with the last of them."""
    lake.create()
    own = lake_catalog(lake.folder)
    table = icesize.open(spark, "db.events", catalog=own)
    sink, gone = table.sink("s"), ref(own)
    own.close()
    del own, table
    gc.collect()
    assert gone() is not None
    sink(counted(spark, events([1])), 0)
    report = sink.last_report
    use_other_states()
    gc.collect()
    assert report is not None
    assert sink.last_report is report
    use_other_states()
    sink(counted(spark, events([2])), 1)
    del sink
    use_other_states()
    gc.collect()
    assert gone() is None


def test_a_source_keeps_its_catalog_object_though_its_states_were_forgotten(lake: Lake) -> None:
    """A table or sink that has not been used for long still finds the catalog object it was made with."""
    given = lake_catalog(lake.folder)
    given.close()
    source, gone = TableSource("db.events", catalog=process_state.remember_catalog(given)), ref(given)
    del given
    gc.collect()
    catalog, identifier = process_state._open(source, {})
    assert (catalog is gone(), identifier) == (True, ("db", "events"))
    copy = pickle.loads(pickle.dumps(source))
    del source, catalog
    gc.collect()
    assert process_state._open(copy, {})[0] is gone()
    del copy
    gc.collect()
    assert gone() is None


def test_a_source_without_a_table_goes_by_its_name() -> None:
    """A source that was made by hand is known by its name."""
    state = stream_state(TableSource("lake.db.by_hand"), "s")
    assert stream_state(TableSource("lake.db.by_hand"), "s") is state
    assert stream_state(TableSource("lake.db.other"), "s") is not state
