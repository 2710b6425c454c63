"""Fixtures of tests against the S3 server; `conftest.py` takes them over."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from integration.go_tools import GoToolUnavailableError
from integration.object_store import (
    ObjectStore,
    Toxiproxy,
    object_store,
    object_store_proxy,
    toxiproxy_server,
)
from integration.s3_faulted_table import BUCKET, CATALOG, Network, S3Story, s3_faulted
from integration.servers import rest_catalog

STORE_LOGS = pytest.StashKey[list[Path]]()
"""Logs of the servers that were started here."""


@pytest.fixture(scope="session")
def store(servers_dir: Path, pytestconfig: pytest.Config) -> Iterator[ObjectStore]:
    """A real S3 server with one bucket."""
    try:
        with object_store(servers_dir) as server:
            pytestconfig.stash.setdefault(STORE_LOGS, []).append(server.log)
            server.client().create_bucket(Bucket=BUCKET)
            yield server
    except GoToolUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def s3_rest_uri(store: ObjectStore, servers_dir: Path, pytestconfig: pytest.Config) -> Iterator[str]:
    """A second REST catalog server, whose warehouse is the bucket: it writes metadata by Iceberg's S3FileIO."""
    log = servers_dir / "s3-rest.log"
    pytestconfig.stash.setdefault(STORE_LOGS, []).append(log)
    settings = {"warehouse": f"s3://{BUCKET}/warehouse", **store.java_properties()}
    with rest_catalog(servers_dir / "s3-rest.db", log, settings) as uri:
        yield uri


@pytest.fixture(scope="session")
def toxiproxy(servers_dir: Path) -> Iterator[Toxiproxy]:
    """Makes TCP proxies that spoil connections."""
    try:
        with toxiproxy_server(servers_dir) as server:
            yield server
    except GoToolUnavailableError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def _network(store: ObjectStore, toxiproxy: Toxiproxy, servers_dir: Path) -> Iterator[Network]:
    with object_store_proxy(servers_dir, store.endpoint) as proxy:
        yield Network(toxiproxy.proxy("s3", proxy.endpoint), proxy)


@pytest.fixture
def network(_network: Network) -> Iterator[Network]:
    """The way to the S3 server, on which everything can go wrong; all is well at the beginning and after the test."""
    _network.heal()
    yield _network
    _network.heal()


@pytest.fixture
def s3_spark(spark: SparkSession, store: ObjectStore, s3_rest_uri: str) -> SparkSession:
    """The session, with the catalog of the S3 server as Iceberg's Java side reaches it."""
    settings = {"type": "rest", "uri": s3_rest_uri, "cache-enabled": "false", **store.java_properties()}
    spark.conf.set(f"spark.sql.catalog.{CATALOG}", "org.apache.iceberg.spark.SparkCatalog")
    for key, value in settings.items():
        spark.conf.set(f"spark.sql.catalog.{CATALOG}.{key}", value)
    return spark


@pytest.fixture
def in_store(s3_spark: SparkSession, store: ObjectStore, s3_rest_uri: str) -> Iterator[S3Story]:
    """A table in the S3 server, which icesize reaches directly."""
    with s3_faulted(s3_spark, store, s3_rest_uri) as faulted:
        yield faulted


@pytest.fixture
def far_away(s3_spark: SparkSession, store: ObjectStore, s3_rest_uri: str, network: Network) -> Iterator[S3Story]:
    """A table in the S3 server, which icesize, the executors included, reaches by the network."""
    with s3_faulted(s3_spark, store, s3_rest_uri, network.tcp.endpoint) as faulted:
        network.heal()
        yield faulted
