"""A real Kafka broker of one node on free loopback ports, and a client that makes topics and sends rows.

The client is Kafka's own, in a JVM that Py4J (which PySpark brings) talks to: it tells the offset of each row, so a
test knows exactly what a stream has to deliver.
"""

from __future__ import annotations

import base64
import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from integration.jars import kafka_broker_jars
from integration.servers import STOP_TIMEOUT_S, end, free_ports, tail

_START_TIMEOUT_S = 60
_ANSWER_TIMEOUT_MS = 5000
_CLUSTER_ID = base64.urlsafe_b64encode(b"icesize-kafka-01").decode().rstrip("=")

Sent = dict[tuple[int, int], str]
"""What a topic holds: value by (partition, offset)."""


class Broker:
    """One process that is broker and controller. It can be killed and started again with what it has on disk."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        port, controller = free_ports(2)
        self.address = f"127.0.0.1:{port}"
        self.log = folder / "kafka.log"
        self._settings = folder / "server.properties"
        self._settings.write_text(_settings(folder / "data", port, controller))
        self._process: subprocess.Popen[bytes] | None = None

    def format(self) -> None:
        """Prepare the empty folder, once."""
        with self.log.open("ab") as output:
            command = [*_java("kafka.tools.StorageTool"), "format", "-t", _CLUSTER_ID, "-c", str(self._settings)]
            subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=True, timeout=_START_TIMEOUT_S)

    def start(self) -> None:
        """Start the process; who needs its answers waits for them: `Client.wait_for`."""
        with self.log.open("ab") as output:
            command = [*_java("kafka.Kafka"), str(self._settings)]
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)

    def check_alive(self) -> None:
        """Raises ChildProcessError with the end of the log when the process has ended."""
        if self._process is None or self._process.poll() is not None:
            raise ChildProcessError(f"The Kafka broker does not run\n{tail(self.log)}")

    def kill(self) -> None:
        """SIGKILL, as when its machine dies."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def end(self) -> None:
        """Ask it to end; kill it when it does not."""
        if self._process is not None:
            end(self._process)


class Client:
    """Kafka's Java client for one broker."""

    def __init__(self, address: str) -> None:
        jars = os.pathsep.join(str(jar) for jar in kafka_broker_jars())
        options = ["-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC"]
        self._gateway = JavaGateway.launch_gateway(
            classpath=jars, javaopts=options, die_on_exit=True, daemonize_redirect=False, enable_auth=True
        )
        self._kafka = self._gateway.jvm.org.apache.kafka.clients
        self._reach = {"bootstrap.servers": address}
        self._closing = ExitStack()
        self._closing.callback(self._end_jvm)
        self._admin = self._closed_later(self._kafka.admin.Admin.create(self._map(self._reach | _patience())))
        self._producer = self._new_producer()

    def wait_for(self, broker: Broker) -> None:
        """Return when the broker answers. Raises ChildProcessError, with the end of its log, when it does not."""
        attempts = Retrying(
            stop=stop_after_delay(_START_TIMEOUT_S), wait=wait_fixed(0.1), retry=retry_if_exception_type(Py4JJavaError)
        )
        try:
            attempts(self._ask, broker)
        except RetryError:
            raise ChildProcessError(f"The Kafka broker does not answer\n{tail(broker.log)}") from None

    def create(self, topic: str, partitions: int) -> None:
        """A topic with that many partitions, on this broker only."""
        optional = self._gateway.jvm.java.util.Optional
        new = self._kafka.admin.NewTopic(topic, optional.of(partitions), optional.empty())
        topics = self._gateway.jvm.java.util.ArrayList()
        topics.add(new)
        self._admin.createTopics(topics).all().get()

    def grow(self, topic: str, partitions: int) -> None:
        """Add partitions until the topic has that many."""
        more = self._kafka.admin.NewPartitions.increaseTo(partitions)
        self._admin.createPartitions(self._map({topic: more})).all().get()

    def send(self, topic: str, rows: Iterable[tuple[int, str]]) -> Sent:
        """Send (partition, value) pairs; returns them by the offsets that the broker gave."""
        return _send(self._producer, self._record, topic, rows)

    def transact(self, topic: str, rows: Iterable[tuple[int, str]], commit: bool) -> Sent:
        """The same in one transaction, which is committed or aborted; its marker takes an offset in each partition."""
        producer = self._new_producer(**{"transactional.id": topic})
        producer.initTransactions()
        producer.beginTransaction()
        sent = _send(producer, self._record, topic, rows)
        if commit:
            producer.commitTransaction()
        else:
            producer.abortTransaction()
        return sent

    def close(self) -> None:
        """Close connections and end the JVM."""
        self._closing.close()

    def _ask(self, broker: Broker) -> None:
        broker.check_alive()
        self._admin.describeCluster().nodes().get()

    def _record(self, topic: str, partition: int, value: str) -> Any:
        return self._kafka.producer.ProducerRecord(topic, partition, None, value)

    def _new_producer(self, **settings: str) -> Any:
        serializer = "org.apache.kafka.common.serialization.StringSerializer"
        settings |= {"key.serializer": serializer, "value.serializer": serializer}
        # one request after the other: a retry (a new topic's partitions have no leader at first) cannot overtake
        settings |= {"max.in.flight.requests.per.connection": "1"}
        return self._closed_later(self._kafka.producer.KafkaProducer(self._map(self._reach | settings)))

    def _closed_later(self, closeable: Any) -> Any:
        self._closing.callback(closeable.close)
        return closeable

    def _map(self, values: dict[str, Any]) -> Any:
        result = self._gateway.jvm.java.util.HashMap()
        for key, value in values.items():
            result.put(key, value)
        return result

    def _end_jvm(self) -> None:
        process = self._gateway.java_process
        self._gateway.shutdown()
        # the JVM ends when its standard input does
        process.stdin.close()
        process.wait(STOP_TIMEOUT_S)


@contextmanager
def running(folder: Path) -> Iterator[tuple[Broker, Client]]:
    """A broker with its files in `folder` (which must not exist) that answers, and a client of it."""
    with ExitStack() as ending:
        broker = Broker(folder)
        broker.format()
        broker.start()
        ending.callback(broker.end)
        client = Client(broker.address)
        ending.callback(client.close)
        client.wait_for(broker)
        yield broker, client


def _send(producer: Any, record: Callable[[str, int, str], Any], topic: str, rows: Iterable[tuple[int, str]]) -> Sent:
    pending = [(partition, value, producer.send(record(topic, partition, value))) for partition, value in rows]
    return {(partition, future.get().offset()): value for partition, value, future in pending}


def _patience() -> dict[str, str]:
    return {"request.timeout.ms": str(_ANSWER_TIMEOUT_MS), "default.api.timeout.ms": str(_ANSWER_TIMEOUT_MS)}


def _java(main: str) -> list[str]:
    jars = os.pathsep.join(str(jar) for jar in kafka_broker_jars())
    return ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", jars, main]


def _settings(data: Path, port: int, controller: int) -> str:
    """A node that is alone needs neither copies nor time for others to join."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "log.dirs": str(data),
        "auto.create.topics.enable": "false",
        "default.replication.factor": "1",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())
