"""Tables that need maintenance, made without Spark.

`db.events` is full of small files, of a stream of small batches without merges. `db.orders` has delete files, orphan
files and the ledger entry of a stream. A data file of `db.clicks` is missing. A batch follows the merge of
all files of `db.visits`. `db.views` has the batches of a stream that icesize wrote, with merges.
"""

from __future__ import annotations

import datetime
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from unittest import mock
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyiceberg.catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, LongType, NestedField, StringType, TimestampType
from pyiceberg.utils.config import Config

import icesize
from icesize.planning.files import PartitionKey
from icesize.table.records.ledger import LedgerEntry
from tests.support.delete_files import delete_positions

EVENTS = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "hour", StringType()),
    NestedField(3, "user_id", LongType()),
    NestedField(4, "event_time", TimestampType()),
    NestedField(5, "amount", DoubleType()),
)
HOURS = 12
BATCHES = 16
_ROWS = 12_000
_DELETES = 8
"""Delete files that apply to each data file of `db.orders`: more than a data file may have."""
_PROPERTIES = {"write.target-file-size-bytes": str(320 * 1024)}
"""A small target, so that few rows make well-sized files."""


def batch_of(number: int, rows: int = _ROWS) -> pa.Table:
    """Return the events of one batch, over all hours, with users in random order."""
    ids = range(number * rows, (number + 1) * rows)
    random = Random(number)
    start = datetime.datetime(2026, 1, 1)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "hour": pa.array([f"h{i % HOURS:02}" for i in ids], pa.string()),
            "user_id": pa.array([random.getrandbits(48) for _ in ids], pa.int64()),
            "event_time": pa.array([start + datetime.timedelta(seconds=i) for i in ids], pa.timestamp("us")),
            "amount": pa.array([random.random() for _ in ids], pa.float64()),
        }
    )


def fill(catalog: SqlCatalog, name: str = "db.events", batches: int = BATCHES, folder: str | None = None) -> Table:
    """Create the table in a catalog, partitioned by hour, and append to it like a stream without merges."""
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "hour"))
    location = f"{catalog.properties['warehouse']}/{folder or uuid.uuid4().hex}"
    table = catalog.create_table(name, EVENTS, location, spec, properties=_PROPERTIES)
    for number in range(batches):
        table.append(batch_of(number))
    return table


def add_clicks(catalog: SqlCatalog) -> None:
    """Create `db.clicks`, which lacks a data file."""
    table = fill(catalog, "db.clicks", folder="db/clicks")
    lost = f"{table.location()}/data/hour=h07/part-00042.parquet"
    file = Path(urlsplit(lost).path)
    pq.write_table(batch_of(BATCHES).filter(pc.field("hour") == "h07"), file)
    table.add_files([lost])
    file.unlink()


def add_visits(catalog: SqlCatalog) -> None:
    """Create `db.visits`, whose small files are merged, and append a batch."""
    table = fill(catalog, "db.visits", folder="db/visits")
    icesize.open(None, "db.visits", catalog=catalog).compact()
    table.refresh().append(batch_of(BATCHES))


def add_views(catalog: SqlCatalog) -> None:
    """Create `db.views`, to which icesize writes the batches of a stream, with merges."""
    location = f"{catalog.properties['warehouse']}/db/views"
    catalog.create_table("db.views", EVENTS, location, properties=_PROPERTIES)
    table = icesize.open(None, "lake.db.views", catalog=catalog)
    for number in range(BATCHES):
        table.upsert(batch_of(number, 2_000), key="id", stream_id="clicks", batch_id=number)


def add_orders(catalog: SqlCatalog) -> None:
    """Create `db.orders`, whose rows another engine deletes again and again, with files of a job that was killed."""
    location = f"{catalog.properties['warehouse']}/db/orders"
    ledger = LedgerEntry("orders_raw", "6f1d0c0e-5f1e-4c0b-9a57-2b0f8a9d7c11", 41)
    table = catalog.create_table("db.orders", EVENTS, location, properties={ledger.key: ledger.to_json()})
    for number in range(3):
        table.append(batch_of(number))
    paths = [task.file.file_path for task in table.scan().plan_files()]
    for position in range(_DELETES):
        delete_positions(table, {path: [position] for path in paths})
    delete_positions(table, {f"{location}/data/gone.parquet": [0]}, PartitionKey.of(0, ()))
    long_ago = time.time() - 10 * 86_400
    for number in range(2):
        orphan = Path(urlsplit(location).path) / "data" / f"00000-{number}-left-by-a-killed-job.parquet"
        pq.write_table(batch_of(number), orphan)
        os.utime(orphan, (long_ago, long_ago))


@contextmanager
def configured(uri: str, name: str = "lake") -> Iterator[None]:
    """Configure the catalog in PyIceberg while the block runs, as if its variables had been exported."""
    variable = {f"PYICEBERG_CATALOG__{name.upper()}__URI": uri}
    # PyIceberg reads its configuration only once, during its import.
    with mock.patch.dict(os.environ, variable), mock.patch.object(pyiceberg.catalog, "_ENV_CONFIG", Config()):
        yield


@contextmanager
def gone_bad(folder: Path) -> Iterator[SqlCatalog]:
    """Yield a catalog `lake` in a directory with the table `db.events`; commands find it by its name."""
    uri = f"sqlite:///{folder}/catalog.db"
    catalog = SqlCatalog("lake", uri=uri, warehouse=folder.as_uri())
    try:
        catalog.create_namespace("db")
        fill(catalog)
        with configured(uri):
            yield catalog
    finally:
        catalog.close()
