"""Passes over tables in an object store send as many requests as files, partitions and manifests need, and no more.

Each command is a process of its own, which knows nothing of the table, and its requests go through a proxy that notes
them. The counts do not depend on the machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

import icesize
from icesize.environment import Environment
from icesize.events import JobFinished
from icesize.storage.table_storage import Storage
from icesize.table.storage.bulk_delete import delete_all
from integration.object_store import ObjectStore, ObjectStoreProxy, object_store_proxy
from integration.s3_proxy import Trouble

BUCKET = "passes"
EXPIRING = {"history.expire.max-snapshot-age-ms": "1", "history.expire.min-snapshots-to-keep": "1"}


@dataclass(frozen=True)
class Lake:
    """Tables in a bucket of a store; commands reach it through a proxy that counts."""

    folder: Path
    store: ObjectStore
    proxy: ObjectStoreProxy

    def catalog(self, endpoint: str = "") -> SqlCatalog:
        """The catalog as a process sees it that reaches the store at this URL."""
        return SqlCatalog("lake", **self._properties(endpoint))

    def _properties(self, endpoint: str) -> dict[str, str]:
        database = f"sqlite:///{self.folder}/catalog.db"
        return {"uri": database, "warehouse": f"s3://{BUCKET}/wh", **self.store.properties(endpoint)}

    def table(self, name: str, appends: int, partitions: int = 1) -> None:
        """A table with one file in each partition from each append, and with one manifest for each append."""
        catalog, rows = self.catalog(), pa.table({"p": [i % partitions for i in range(60)], "a": range(60)})
        table = catalog.create_table(f"db.{name}", rows.schema, properties=EXPIRING)
        with table.update_spec() as change:
            change.add_identity("p")
        for _ in range(appends):
            table.append(rows)
        catalog.close()

    def requests(self, *command: str) -> Counter[str]:
        """Run a command, and count its requests: methods, or what a listing or a deletion is."""
        names = {
            f"PYICEBERG_CATALOG__LAKE__{key.upper().replace('.', '__').replace('-', '_')}": value
            for key, value in {"type": "sql", **self._properties(self.proxy.endpoint)}.items()
        }
        self.proxy.trouble()
        program = [sys.executable, "-m", "icesize", *command]
        done = subprocess.run(program, env=os.environ | names, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return Counter(_kind(method, path) for method, path, _ in self.proxy.seen())


def _kind(method: str, path: str) -> str:
    return next((kind for kind in ("list-type", "uploads", "delete") if kind in path.partition("?")[2]), method)


@pytest.fixture
def lake(store: ObjectStore, tmp_path: Path) -> Iterator[Lake]:
    """An empty catalog, whose bucket is empty, too."""
    if BUCKET not in [each["Name"] for each in store.client().list_buckets()["Buckets"]]:
        store.client().create_bucket(Bucket=BUCKET)
    with object_store_proxy(tmp_path, store.endpoint) as proxy:
        made = Lake(tmp_path, store, proxy)
        catalog = made.catalog()
        catalog.create_namespace("db")
        catalog.close()
        yield made
    store.empty(BUCKET)


def test_a_table_with_nothing_due(lake: Lake) -> None:
    """After a pass, each command reads metadata, lists and manifests once."""
    lake.table("t", appends := 8)
    assert lake.requests("scan", "lake.db.t") == {"GET": 2 + appends}
    lake.requests("maintain", "lake.db.t", "--yes")
    lists, manifests = 2, appends + 1
    # the metadata, and the journal of the expiry, which is gone
    assert lake.requests("maintain", "lake.db.t", "--yes") == {"GET": 2 + lists + manifests, "list-type": 1}
    assert lake.requests("expire-snapshots", "lake.db.t", "--yes") == {"GET": 2}
    orphans = lake.requests("remove-orphan-files", "lake.db.t")
    assert orphans == {"GET": 1 + lists + manifests, "list-type": 1, "uploads": 1}
    assert lake.requests("verify", "lake.db.t") == {"GET": 1 + lists + manifests, "list-type": 1}


@pytest.mark.parametrize(("appends", "partitions"), [(8, 1), (11, 3)])
def test_a_table_with_work_to_do(lake: Lake, appends: int, partitions: int) -> None:
    """Each file is read by one request and written by one; files of a kind are deleted together."""
    lake.table("t", appends, partitions)
    found = lake.requests("maintain", "lake.db.t", "--yes")
    commits = 1 if partitions == 1 else 2
    files, lists, manifests = appends * partitions, appends, appends
    # the metadata of the table, and for each commit at most one older metadata file
    assert found["GET"] <= 1 + lists + manifests + files + commits
    # a manifest, a list and metadata for each commit; the journal and the metadata of the expiry
    assert found["PUT"] <= partitions + 3 * commits + 2
    # the lists of expired snapshots; the journal
    assert (found["delete"], found["list-type"]) == (2, 1)
    assert found.keys() == {"GET", "PUT", "delete", "list-type"}


def test_an_expiry(lake: Lake) -> None:
    """It reads the metadata, each list and manifest once, and the oldest metadata file that the table names."""
    lake.table("t", appends := 6)
    found = lake.requests("expire-snapshots", "lake.db.t", "--yes")
    assert found == {"GET": 1 + appends + appends + 1, "PUT": 2, "delete": 2}


def test_old_metadata_files(lake: Lake) -> None:
    """Those that the log of the oldest known one names are found by one listing, if they are many."""
    lake.table("t", 2)
    table = lake.catalog().load_table("db.t")
    with table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": (logged := "20")})
    for number in range(2 * int(logged)):
        with table.transaction() as change:
            change.set_properties({"n": str(number)})
    found = lake.requests("expire-snapshots", "lake.db.t", "--yes")
    # twenty by a listing; the five before them are so few that each is looked up
    assert (found["list-type"], found["HEAD"]) == (1, 5)
    assert found["delete"] == 3
    folder = lake.store.folder / BUCKET / "wh" / "db" / "t" / "metadata"
    assert len([*folder.glob("*.metadata.json")]) == int(logged) + 1


def test_a_catalog(lake: Lake) -> None:
    """A pass over all tables asks for each as much as one over the table alone."""
    for number in range(4):
        lake.table(f"t{number}", appends := 4)
    lists, manifests, files = appends, appends, appends
    found = lake.requests("maintain", "lake", "--all", "--yes")
    assert found["GET"] <= 4 * (1 + lists + manifests + files + 1)
    assert found.total() - found["GET"] <= 4 * (1 + 3 + 2 + 2 + 1)


def test_small_tables_are_maintained_at_once(lake: Lake) -> None:
    """Eight tables wait for each other in the middle of their passes, which a pass over fewer at once never ends."""
    for number in range(8):
        lake.table(f"small{number}", 2)
    together, first = Barrier(8, timeout=60), set[str]()

    def observe(event: object) -> None:
        if isinstance(event, JobFinished) and event.table not in first:
            first.add(event.table)
            together.wait()

    environment = Environment(observe=observe)
    report = icesize.maintain("lake.db.small*", catalog=lake.catalog(), environment=environment)
    assert (report.succeeded, len(first)) == (True, 8)


def test_orphan_files_are_deleted_a_thousand_at_a_time(lake: Lake) -> None:
    """2,500 files need three requests, and as many to list them."""
    lake.table("left", 1)
    folder = lake.store.folder / BUCKET / "wh" / "db" / "left" / "data"
    for number in range(2_500):
        (folder / f"left-{number}.parquet").write_text("left")
    lake.store.age(BUCKET, 4 * 86_400)
    found = lake.requests("remove-orphan-files", "lake.db.left", "--delete", "--yes")
    assert found["delete"] == 3 + 1, "the fourth is the file that shows the time of the store"
    assert found["list-type"] == 3
    assert len([path for path in folder.iterdir() if path.name.startswith("left-")]) == 0


def test_a_store_that_rejects_deletions_for_now(lake: Lake) -> None:
    """The client repeats the request, then we do; files are never tried one by one, and no failure is reported."""
    folder = lake.store.folder / BUCKET / "slow"
    folder.mkdir(exist_ok=True)
    names = [f"{number}.parquet" for number in range(1_500)]
    for name in names:
        (folder / name).write_text("x")
    storage = Storage(lake.store.properties(lake.proxy.endpoint), f"s3://{BUCKET}/slow")
    lake.proxy.trouble(Trouble("slow-down", "POST", rejected := 25))
    pauses = list[float]()
    failures = delete_all([f"s3://{BUCKET}/slow/{name}" for name in names], storage, Environment(sleep=pauses.append))
    assert (failures, [*folder.glob("*.parquet")], bool(pauses)) == ({}, [], True)
    assert len(lake.proxy.seen("POST")) == rejected + 2
