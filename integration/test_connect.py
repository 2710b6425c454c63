"""Spark Connect: a real server and clients in processes of their own; batches of a stream are handled by the server."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from icesize import failpoints
from integration.connect import ConnectServer, connect_server
from integration.servers import FRUGAL, catalog_settings
from tests.support.spark_lake import Lake, await_file, events, lake_catalog, rows_of, write_json

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600


@pytest.fixture
def lake(tmp_path: Path) -> Iterator[Lake]:
    """A SQLite catalog that the server has, too, with an empty table of hours and four files of a stream."""
    catalog = lake_catalog(tmp_path)
    catalog.create_namespace("db")
    lake = Lake(catalog, tmp_path)
    lake.create()
    for number in range(4):
        write_json(tmp_path / "in", number, events(range(number * 30, number * 30 + 30), hours=3))
    yield lake
    catalog.close()


@contextmanager
def client(server: ConnectServer, lake: Lake, *steps: str) -> Iterator[subprocess.Popen[str]]:
    """A client with these steps (`integration.connect_child`); it is killed when the block ends early."""
    command = [sys.executable, "-m", "integration.connect_child", server.url, str(lake.folder), *steps]
    with (lake.folder / "client.log").open("w") as log:
        child = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=log, text=True)
    with child:
        try:
            yield child
        finally:
            child.kill()


def run(server: ConnectServer, lake: Lake, *steps: str) -> dict[str, Any]:
    """What the steps of a client came to."""
    with client(server, lake, *steps) as child:
        printed, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode == 0, (lake.folder / "client.log").read_text()[:8000]
    told: dict[str, Any] = json.loads(printed.splitlines()[-1])
    return told


def settings(lake: Lake) -> dict[str, str]:
    """The server's: many shuffle partitions, as is Spark's default, and a catalog of its own."""
    return catalog_settings("http://127.0.0.1:1", lake.folder) | FRUGAL | {"spark.sql.shuffle.partitions": "200"}


def test_stream_append_and_compact(lake: Lake) -> None:
    """A catalog object travels with the sink, tasks follow the server's cores, a batch lands once: rows are exact,
    files few."""
    with connect_server(lake.folder, settings(lake)) as server:
        told = run(server, lake, "cores", "unnamed", "stream", "append", "compact")
    assert told["cores"] == 2
    assert "on Spark Connect without 'query_id'" in told["unnamed"]
    assert "For a checkpoint that has written without one, use the stream id 's'" in told["unnamed"]
    assert lake.rows() == rows_of(events([*range(120), *range(1000, 1600)], hours=3))
    assert set(lake.files_per_partition().values()) == {1}
    assert set(lake.operations()) == {"append", "replace"}
    assert lake.orphans() == set()


@pytest.mark.slow
def test_clustering_and_maintenance(lake: Lake) -> None:
    """The same by the server's own catalog: a stream that is clustered, clustering on demand, and maintenance."""
    with lake.table().transaction() as transaction:
        transaction.set_properties({"icesize.cluster.by": "id"})
    with connect_server(lake.folder, settings(lake)) as server:
        told = run(server, lake, "named_stream", "append", "maintain_all", "cluster", "maintain", "compact")
    assert (told["maintain_all"]["failed"], len(told["maintain_all"]["tables"])) == ({}, 1)
    assert lake.rows() == rows_of(events([*range(120), *range(1000, 1600)], hours=3))
    assert set(lake.files_per_partition().values()) == {1}
    assert lake.orphans() == set()


@pytest.mark.slow
@pytest.mark.parametrize("point", ["files-written", "after-swap"])
def test_a_server_that_is_killed(lake: Lake, point: str) -> None:
    """A server that dies before or after a batch was committed: on another one the query goes on, and each row is there
    once."""
    killed = lake.folder / "killed"
    worker = failpoints.for_child(f"{point}@2=kill-once:{killed}")
    with connect_server(lake.folder, settings(lake), worker) as server, client(server, lake, "stream"):
        await_file(killed, TIMEOUT_S)
        server.kill()
    assert len(lake.rows()) == (30 if point == "files-written" else 60)
    with connect_server(lake.folder, settings(lake)) as server:
        run(server, lake, "stream")
    assert lake.rows() == rows_of(events(range(120), hours=3))


@pytest.mark.slow
def test_a_client_that_is_killed(lake: Lake) -> None:
    """A query whose client dies goes on in the server; another client that starts it anew repeats nothing."""
    go = lake.folder / "go"
    waits = failpoints.for_child(f"statistics@2=wait:{go}")
    with connect_server(lake.folder, settings(lake), waits) as server:
        with client(server, lake, "stream"):
            await_file(lake.folder / "checkpoint" / "offsets" / "1", TIMEOUT_S)
        go.touch()
        run(server, lake, "stream")
    assert lake.rows() == rows_of(events(range(120), hours=3))
