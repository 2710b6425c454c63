"""A `FaultedTable` whose table lies in a real S3 server, under Iceberg's Java REST catalog, and the network to both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from integration.faults.faulted_table import LONG_AGO_S, FaultedTable, needed
from integration.object_store import ObjectStore, ObjectStoreProxy, ToxicProxy
from integration.tools import local_path, spark_rows
from tests.support.tables import check_batches, live_paths

BUCKET = "lake"
CATALOG = "s3rest"
"""The name of the catalog for Spark and for PyIceberg."""

_HASTE = {"s3.connect-timeout": "2", "s3.request-timeout": "2"}
"""Seconds without a byte after which a request has failed, so that tests of that are short."""


@dataclass
class S3Story(FaultedTable):
    """The same invariants, asked of the store itself. Spark reads by Iceberg's S3FileIO, without any proxy."""

    store: ObjectStore = field(kw_only=True)

    def sizes(self) -> dict[str, int]:
        """Every object of the table, by location, with its bytes."""
        return self.store.sizes(BUCKET, self.table().location().removeprefix(f"s3://{BUCKET}/") + "/")

    def leftovers(self) -> set[str]:
        """Objects of the table (metadata JSON aside) that no snapshot of it needs."""
        found = {local_path(each) for each in self.sizes() if not each.endswith(".metadata.json")}
        return found - needed(self.table())

    def spark_rows(self) -> list[tuple[Any, ...]]:
        """What Spark reads from the table now."""
        return spark_rows(self.spark, f"SELECT {', '.join(self.columns)} FROM {CATALOG}.db.events")

    def _second_readers_rows(self, table: Table) -> list[tuple[Any, ...]]:
        return self.spark_rows()

    def _files_are_as_listed(self, table: Table) -> None:
        check_batches(table.metadata)
        paths, stored = live_paths(table), self.sizes()
        assert len(paths) == len(set(paths)), "a file is listed twice"
        for task in table.scan().plan_files():
            assert stored[task.file.file_path] == task.file.file_size_in_bytes
            with table.io.new_input(task.file.file_path).open() as stream:
                assert pq.read_metadata(stream).num_rows == task.file.record_count

    def _cleanup_leaves_what_is_needed(self) -> None:
        self.store.age(BUCKET, LONG_AGO_S)
        report = self.sized().remove_orphan_files(dry_run=False)
        assert report.files_failed == 0
        assert report.incomplete_uploads == len(self.store.uploads(BUCKET))
        assert self.leftovers() == set(), "leaked"
        there = {local_path(each) for each in self.sizes()}
        assert needed(self.table()) - there == set(), "an object that a snapshot needs is gone"

    def _folder(self, table: Table) -> Path:
        return self.store.folder / table.location().removeprefix("s3://")


@dataclass(frozen=True)
class Network:
    """Two proxies one after the other, both before the store: `tcp` spoils connections, `http` single answers.

    What `tcp` lets through is seen by `http`, which counts it.
    """

    tcp: ToxicProxy
    http: ObjectStoreProxy

    def heal(self) -> None:
        """All is well again."""
        self.tcp.heal()
        self.http.trouble()


@contextmanager
def s3_faulted(
    spark: SparkSession,
    store: ObjectStore,
    rest_uri: str,
    endpoint: str = "",
    properties: Mapping[str, str] | None = None,
) -> Iterator[S3Story]:
    """A faulted in an empty bucket. icesize goes to the store by `endpoint` when one is given; `properties` are the
    catalog client's."""
    store.empty(BUCKET)
    settings = store.properties(endpoint) | _HASTE | dict(properties or {})
    catalog = RestCatalog(CATALOG, uri=rest_uri, **settings)
    catalog.create_namespace_if_not_exists("db")
    for name in ("events", "neighbour"):
        try:
            catalog.drop_table(f"db.{name}")
        except NoSuchTableError:
            continue
    faulted = S3Story(catalog, store.folder, spark=spark, store=store)  # type: ignore[arg-type]
    faulted.begin()
    yield faulted
    catalog.close()
