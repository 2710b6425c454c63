"""A whole deployment on loopback: tables in a real S3 server under Iceberg's Java REST catalog.

The driver and Spark's executors write `s3://` by PyIceberg's FileIO, the REST server writes metadata and Spark reads by
Iceberg's S3FileIO. `S3Story.holds` asks the store itself what is left there.
"""

from __future__ import annotations

from datetime import timedelta
from random import Random

import pyarrow as pa
import pytest

import icesize
from icesize.environment import Environment
from integration.object_store import ObjectStore
from integration.s3_faulted_table import BUCKET, CATALOG, S3Story
from integration.tools import POLICY
from tests.support.spark_lake import events

K = 3
PART_BYTES = 5 * 2**20
"""The least that S3 takes as a part of an upload, but for the last one."""

BATCHES = [events(range(60 * n, 60 * n + 60), hours=3) for n in range(6)]


@pytest.fixture(params=["driver", "executors"])
def writer(request: pytest.FixtureRequest, in_store: S3Story) -> str:
    """Who writes the batches."""
    if request.param == "executors":
        in_store.without_driver()
    return str(request.param)


def test_a_stream_into_s3_is_exact(in_store: S3Story, store: ObjectStore, writer: str) -> None:
    """Batches with merges inline, by the session's own settings; k holds, and no upload is left unfinished."""
    environment = Environment(limits=in_store.limits)
    table = icesize.open(in_store.spark, f"{CATALOG}.db.events", policy=POLICY, environment=environment)
    sink = table.sink("s", query_id="q")
    for number, rows in enumerate(BATCHES):
        report = sink.run(in_store.batch(rows), number)
        in_store.reports.append(report)
        in_store.expect(rows)
        assert report.rows == 60
        assert report.small_files_max == max(in_store.files_per_partition().values()) <= K
    assert sink.run(in_store.batch(BATCHES[5]), 5).already_committed
    assert in_store.operations().count("append") == 6
    assert in_store.operations().count("replace") >= 1
    assert in_store.leftovers() == set()
    assert store.uploads(BUCKET) == []
    in_store.holds()


def test_maintenance_in_s3(in_store: S3Story, store: ObjectStore) -> None:
    """Compaction, restore, expiry and orphan cleanup; what lies in the bucket is counted after each."""
    sized = in_store.sized()
    sink = sized.sink("s", query_id="q", merge="off")
    for number, rows in enumerate(BATCHES[:5]):
        sink.run(in_store.batch(rows), number)
    before = in_store.table().metadata.current_snapshot_id or 0
    assert set(in_store.files_per_partition().values()) == {5}
    sized.compact()
    assert set(in_store.files_per_partition().values()) == {1}
    in_store.spark.sql(f"DELETE FROM {CATALOG}.db.events WHERE hour = 'h1' AND id < 200")
    sized.restore({"p0_hour": "h1"}, before)
    assert in_store.files_per_partition() == {("h0",): 1, ("h1",): 5, ("h2",): 1}
    sized.compact()
    sink.run(in_store.batch(BATCHES[5]), 5)
    stored = len(in_store.on_disk())
    expired = sized.expire_snapshots(older_than=timedelta(0), retain_last=1)
    assert (expired.files_failed, in_store.leftovers()) == (0, set())
    # three times five small files, the first merge of h1, what the delete made of that one, and five restored copies
    assert expired.files_deleted["data_files"] == stored - len(in_store.on_disk()) == 15 + 1 + 1 + 5
    in_store.expect(*BATCHES)
    in_store.holds()
    assert store.uploads(BUCKET) == []


@pytest.mark.slow
def test_files_of_many_parts(in_store: S3Story, store: ObjectStore) -> None:
    """A file is uploaded in parts of 5 MB or more; what is stored is as large as its manifest records."""
    random = Random(1)
    rows = events(range(400))
    wide = rows.set_column(2, "text", pa.array([random.randbytes(2**15).hex() for _ in range(rows.num_rows)]))
    sized = icesize.open(in_store.spark, "db.events", catalog=in_store.catalog)
    report = sized.append(in_store.batch(wide))
    sizes = {file.file_path: file.file_size_in_bytes for file in in_store.files()}
    assert sum(sizes.values()) == report.bytes_written
    assert max(sizes.values()) > 2 * PART_BYTES
    assert sizes.items() <= in_store.sizes().items()
    assert store.uploads(BUCKET) == []
    in_store.expect(wide)
    in_store.holds()
