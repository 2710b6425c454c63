"""A stream from a real Kafka broker: every offset is in the table once, whatever dies, and the ledger says how far.

Rows that retention removes before a stream has read them are not in here: Spark's option `failOnDataLoss` says what
happens then, before a sink sees the batch.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation
from pyiceberg.types import IntegerType, LongType, NestedField, StringType
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from icesize import failpoints
from icesize.table.records.ledger import LedgerEntry, entries, parse
from integration import kafka
from integration.kafka import Sent
from integration.kafka_child import MAX_OFFSETS
from integration.servers import tail
from tests.support.spark_lake import Lake, lake_catalog, rows_of
from tests.support.tables import check

ROOT = Path(__file__).parents[1]
K = 3
TIMEOUT_S = 300
KILLED = -signal.SIGKILL
SCHEMA = Schema(
    NestedField(1, "kafka_partition", IntegerType()),
    NestedField(2, "kafka_offset", LongType()),
    NestedField(3, "hour", StringType()),
    NestedField(4, "text", StringType()),
)


class _LogOfFailed:
    """Adds the end of the broker's log to the report of a test that failed."""

    def __init__(self, broker: kafka.Broker) -> None:
        self._broker = broker

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            report.sections.append((f"Kafka broker ({self._broker.log})", tail(self._broker.log)))
        return report


@pytest.fixture(scope="module")
def servers(
    tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Iterator[tuple[kafka.Broker, kafka.Client]]:
    """One broker for the tests of this module, and its client."""
    with kafka.running(tmp_path_factory.mktemp("kafka") / "broker") as running:
        shown = _LogOfFailed(running[0])
        pytestconfig.pluginmanager.register(shown)
        yield running
        pytestconfig.pluginmanager.unregister(shown)


class Stream(Lake):
    """A topic of its own, the table that it is streamed into, and all that was sent."""

    def __init__(self, folder: Path, broker: kafka.Broker, client: kafka.Client) -> None:
        catalog = lake_catalog(folder)
        super().__init__(catalog, folder)
        catalog.create_namespace("db")
        self.create(schema=SCHEMA)
        self.broker, self.client, self.topic = broker, client, folder.name
        self.sent: Sent = {}
        self._children: list[subprocess.Popen[str]] = []

    def send(self, count: int, partitions: int) -> None:
        """So many more rows, which take turns in the partitions."""
        self.sent |= self.client.send(self.topic, self.values(count, partitions))

    def values(self, count: int, partitions: int) -> list[tuple[int, str]]:
        """(partition, value) pairs; values are told apart, hours take turns."""
        first = len(self.sent)
        return [(i % partitions, f"h{i % 3} row-{i}") for i in range(first, first + count)]

    def start(self, until: str, points: str = "") -> subprocess.Popen[str]:
        """A driver on the way."""
        command = [sys.executable, "-m", "integration.kafka_child"]
        command += [str(self.folder), self.broker.address, self.topic, until]
        environment = os.environ | {"PYSPARK_PYTHON": sys.executable} | failpoints.for_child(points)
        pipe = subprocess.PIPE
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )
        self._children.append(child)
        return child

    def run(self, points: str = "") -> int:
        """Exit code of a driver that streams all there is."""
        return ended(self.start("all", points))

    def close(self) -> None:
        """End what a test that failed has left running."""
        for child in self._children:
            if child.returncode is None:
                child.kill()
                child.communicate()
        self.catalog.close()

    def wait_for_rows(self, least: int) -> None:
        """Return when the table has that many rows."""
        attempts = Retrying(
            stop=stop_after_delay(TIMEOUT_S), wait=wait_fixed(0.2), retry=retry_if_result(lambda rows: rows < least)
        )
        attempts(lambda: self.table().scan().count())

    def checkpointed(self) -> dict[int, dict[int, int]]:
        """Where each batch ends: offset by partition, by batch id."""
        folder = self.folder / "checkpoint" / "offsets"
        logged = {int(path.name): path.read_text().splitlines()[-1] for path in folder.glob("[0-9]*")}
        return {b: {int(p): end for p, end in json.loads(logged[b])[self.topic].items()} for b in sorted(logged)}

    def appended(self) -> dict[int, int]:
        """Snapshot that appended each batch."""
        found = [
            (parse(s.summary.additional_properties["icesize.ledger"]).batch_id, s.snapshot_id)
            for s in self.table().metadata.snapshots
            if s.summary and s.summary.operation == Operation.APPEND
        ]
        assert len(found) == len(dict(found)), "a batch was appended twice"
        return dict(found)

    def expected(self, ends: dict[int, int] | None = None) -> list[tuple[object, ...]]:
        """All rows sent, or those before the end offsets."""
        return sorted(
            ((p, o, *value.split()) for (p, o), value in self.sent.items() if ends is None or o < ends.get(p, 0)),
            key=repr,
        )

    def holds(self) -> None:
        """Each batch has appended, once, what the checkpoint says; nothing else is in the table; k is held."""
        table, ends = self.table(), self.checkpointed()
        check(table)
        assert rows_of(table.scan().to_arrow()) == self.expected()
        appended = self.appended()
        # a batch whose offsets are all taken by markers of transactions has no rows to append
        with_rows = [b for b in ends if self.expected(ends[b]) != self.expected(ends.get(b - 1, {}))]
        assert sorted(appended) == with_rows
        for batch, snapshot in appended.items():
            assert rows_of(table.scan(snapshot_id=snapshot).to_arrow()) == self.expected(ends[batch])
        assert max(self.files_per_partition().values()) <= K
        query = json.loads((self.folder / "checkpoint" / "metadata").read_text())["id"]
        assert entries(table.metadata.properties) == [LedgerEntry("s", query, max(with_rows))]
        assert max(int(path.name) for path in (self.folder / "checkpoint" / "commits").glob("[0-9]*")) == max(ends)


def ended(child: subprocess.Popen[str]) -> int:
    """Exit code of a driver after the end of its input; it may have been killed, not have failed."""
    output, _ = child.communicate(timeout=TIMEOUT_S)
    assert child.returncode in (0, KILLED), output
    return child.returncode


@pytest.fixture
def stream(tmp_path: Path, servers: tuple[kafka.Broker, kafka.Client]) -> Iterator[Stream]:
    """A topic of two partitions with 250 rows, of which nothing was streamed yet."""
    broker, client = servers
    broker.check_alive()
    begun = Stream(tmp_path, broker, client)
    begun.client.create(begun.topic, 2)
    begun.send(250, partitions=2)
    yield begun
    begun.close()


@pytest.mark.slow
@pytest.mark.parametrize(("point", "landed"), [("files-written", 1), ("after-swap", 2)])
def test_a_killed_driver_goes_on_from_its_offsets(stream: Stream, point: str, landed: int) -> None:
    """SIGKILL in the second batch, more rows, a restart: the batch has the same offsets and is in the table once."""
    assert stream.run(f"{point}@2=kill") == KILLED
    ends = stream.checkpointed()
    assert list(ends) == [0, 1]
    assert stream.rows() == stream.expected(ends[landed - 1])
    assert len(stream.rows()) == landed * MAX_OFFSETS
    orphans = stream.orphans()
    assert bool(orphans) is (point == "files-written")
    stream.send(100, partitions=2)
    assert stream.run() == 0
    assert stream.checkpointed()[1] == ends[1]
    assert len(stream.appended()) == 4
    assert stream.orphans() == orphans
    stream.holds()


@pytest.mark.slow
def test_partitions_that_are_added_while_it_runs(stream: Stream) -> None:
    """A running query takes partitions that the topic gets, is killed, and a restart finds two more."""
    running = stream.start("told")
    stream.wait_for_rows(250)
    stream.client.grow(stream.topic, 4)
    stream.send(400, partitions=4)
    stream.wait_for_rows(650)
    stream.send(400, partitions=4)
    stream.wait_for_rows(750)
    running.kill()
    assert ended(running) == KILLED
    stream.client.grow(stream.topic, 6)
    stream.send(300, partitions=6)
    again = stream.start("told")
    stream.wait_for_rows(len(stream.sent))
    assert ended(again) == 0
    assert {len(ends) for ends in stream.checkpointed().values()} == {2, 4, 6}
    stream.holds()


@pytest.mark.slow
def test_offsets_with_gaps(stream: Stream) -> None:
    """Transactions leave gaps in the offsets: committed rows are in the table once, aborted ones never."""
    for commit in (True, False, True):
        sent = stream.client.transact(stream.topic, stream.values(70, partitions=2), commit)
        stream.sent |= sent if commit else {}
    assert stream.run("before-swap@4=kill") == KILLED
    assert stream.client.transact(stream.topic, stream.values(120, partitions=2), commit=False)
    stream.send(50, partitions=2)
    assert stream.run() == 0
    offsets = [offset for partition, offset in stream.sent if partition == 0]
    # aborted rows, half of them here, and the markers that end four transactions
    assert max(offsets) + 1 - len(offsets) == (70 + 120) // 2 + 4
    stream.holds()


@pytest.mark.slow
def test_a_broker_that_dies(stream: Stream) -> None:
    """The broker is killed in mid-stream and started again: the query goes on, without a restart of its own."""
    running = stream.start("told")
    stream.wait_for_rows(250)
    stream.send(400, partitions=2)
    stream.broker.kill()
    stream.broker.start()
    stream.client.wait_for(stream.broker)
    stream.send(100, partitions=2)
    assert ended(running) == 0
    stream.holds()
