"""`append()`: rows of no stream, and batches that are given by hand."""

from __future__ import annotations

from functools import partial

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import icesize
from icesize.errors import BatchOutOfOrder, EngineUnavailable, PolicyError, TableError, TableNotFound
from icesize.planning.files import SkipReason
from icesize.table.manifests import store
from tests.support.meeting import Meeting, all_at_once
from tests.support.spark_lake import Lake, conf, counted, events, rows_of


def test_append_without_ids_adds_each_time(spark: SparkSession, lake: Lake) -> None:
    """Rows that belong to no stream are appended as often as they are given."""
    lake.create()
    table = lake.open(spark)
    rows = events(range(100), hours=2)
    for _ in range(2):
        report = table.append(counted(spark, rows))
        assert (report.rows, report.files_added, report.operations) == (100, 2, ("append",))
    assert lake.rows() == sorted(rows_of(rows) * 2, key=repr)
    assert table.streams() == []


@pytest.mark.smoke
def test_append_with_ids_is_done_once(spark: SparkSession, lake: Lake) -> None:
    """The same stream and batch id append once; a smaller id is refused; the ledger lists the newest."""
    lake.create()
    table = lake.open(spark)
    first = table.append(counted(spark, events([1])), stream_id="s", batch_id=4)
    again = table.append(counted(spark, events([1])), stream_id="s", batch_id=4)
    assert (first.batch_id, first.already_committed, again.already_committed) == (4, False, True)
    assert again.snapshot_ids == ()
    with pytest.raises(BatchOutOfOrder, match="batch 4 is committed already"):
        table.append(counted(spark, events([1])), stream_id="s", batch_id=3)
    assert len(lake.rows()) == 1
    assert [(s.stream_id, s.query_id, s.batch_id) for s in table.streams()] == [("s", "s", 4)]


def test_append_needs_both_ids(spark: SparkSession, lake: Lake) -> None:
    """One id without the other is a mistake of the caller."""
    lake.create()
    with pytest.raises(ValueError, match="given together or not at all"):
        lake.open(spark).append(counted(spark, events([1])), batch_id=1)


def test_forgotten_stream_starts_anew(spark: SparkSession, lake: Lake) -> None:
    """After `forget_stream` any batch id is next; forgetting a stream that is not there is an error."""
    lake.create()
    table = lake.open(spark)
    table.append(counted(spark, events([1])), stream_id="s", batch_id=4)
    table.forget_stream("s")
    assert not table.append(counted(spark, events([2])), stream_id="s", batch_id=0).already_committed
    with pytest.raises(TableError, match="has no such stream"):
        table.forget_stream("t")


def test_policy_of_the_newest_open_holds(spark: SparkSession, lake: Lake) -> None:
    """Opening a table again with another policy uses that policy, in the same process."""
    lake.create()
    lake.open(spark).append(counted(spark, events([1])))
    again = lake.open(spark, max_small_files=9)
    assert again.policy.max_small_files == 9
    for i in range(6):
        assert again.append(counted(spark, events([i]))).files_removed == 0


def test_policy_is_checked_when_opened(spark: SparkSession, lake: Lake) -> None:
    """A policy key that does not exist is told by `open`, not by the first batch."""
    lake.create()
    with pytest.raises(PolicyError, match="did you mean 'max-small-files'"):
        lake.open(spark, max_smal_files=3)


def test_session_catalog_without_icebergs_runtime(spark: SparkSession, lake: Lake) -> None:
    """A catalog configured for Spark is opened by name; that Spark itself cannot load it does not fail a batch."""
    lake.create()
    name = f"own{lake.folder.name.replace('-', '_')}"
    SqlCatalog(name, uri=f"sqlite:///{lake.folder}/own.db", warehouse=f"file://{lake.folder}/own").close()
    settings = {
        f"spark__sql__catalog__{name}": "org.apache.iceberg.spark.SparkCatalog",
        f"spark__sql__catalog__{name}__type": "jdbc",
        f"spark__sql__catalog__{name}__uri": f"jdbc:sqlite:file:{lake.folder}/own.db",
        f"spark__sql__catalog__{name}__warehouse": f"file://{lake.folder}/own",
    }
    with conf(spark, **settings):
        with pytest.raises(TableNotFound, match="there is no namespace 'db'"):
            icesize.open(spark, f"{name}.db.events")
        own = SqlCatalog(name, uri=f"sqlite:///{lake.folder}/own.db", warehouse=f"file://{lake.folder}/own")
        own.create_namespace("db")
        own.create_table("db.events", lake.table().schema())
        report = icesize.open(spark, f"{name}.db.events").append(counted(spark, events([1])))
        assert report.rows == 1
        assert own.load_table("db.events").scan().to_arrow().num_rows == 1
        own.close()


def test_without_spark_append_and_sink_are_refused(lake: Lake) -> None:
    """A table opened without a session says what it needs."""
    lake.create()
    table = icesize.open(None, "db.events", catalog=lake.catalog)
    with pytest.raises(EngineUnavailable, match="Cannot sink: it needs Spark"):
        table.sink("s")


def test_eight_threads_work_on_two_handles_of_one_table(
    spark: SparkSession, lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two tables opened in one session share what is known of manifests: calls of eight threads disturb no other call,
    all is merged in the end and no row is lost."""
    lake.create()
    table = lake.open(spark)
    for number, hours in ((0, 1), (1, 1), (7, 8)):
        table.append(counted(spark, events([number], hours)))
    # other readers than before, which remember nothing yet
    one, other = lake.open(spark, max_small_files=5), lake.open(spark, max_small_files=5)
    monkeypatch.setattr(store, "read_facts", Meeting().ahead_of(store.read_facts))
    batches = [counted(spark, events([number])) for number in (2, 3)]
    appends = [partial(table.append, batch) for table, batch in zip((one, other), batches, strict=True)]
    all_at_once([one.inspect, other.plan, one.compact, other.compact, other.inspect, one.plan, *appends])
    one.append(counted(spark, events([15], 8)))
    other.compact()
    assert one.plan().skipped_by_reason == other.plan().skipped_by_reason == {SkipReason.TOO_FEW: 2}
    assert [row[0] for row in lake.rows()] == [0, 1, 15, 2, 3, 7]
