"""The network fails between icesize and a real S3 server, and between icesize and a real REST catalog.

Each test puts the network right again at its end; then `S3Story.holds` is asserted. Tries are bounded by counting what
the store was asked, never by time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator

import pyarrow.parquet as pq
import pytest
from pyiceberg.io import load_file_io
from pyspark.sql import SparkSession

from icesize import failpoints
from icesize.errors import IcesizeError
from icesize.storage.object_store import PART_BYTES
from icesize.storage.table_storage import Storage
from icesize.table.catalog.opening import with_timeout
from integration.object_store import ObjectStore, ToxicProxy, Toxiproxy
from integration.s3_faulted_table import BUCKET, Network, S3Story, s3_faulted
from integration.s3_proxy import Trouble
from tests.support.spark_lake import events

TRIES = 11
"""How often the client sends a request that a store does not answer."""

ALWAYS = 10**6
ROWS = [events(range(1500 * n, 1500 * n + 1500), hours=3) for n in range(5)]
Spoil = Callable[[ToxicProxy], None]


def spoil(kind: str, stream: str, **attributes: int) -> Spoil:
    return lambda line: line.add(kind, stream, **attributes)


def write(faulted: S3Story, batches: range) -> None:
    """Batches of 1,500 rows in three partitions; the fourth is the first one that merges."""
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    for number in batches:
        sink.run(faulted.batch(ROWS[number]), number)
        faulted.expect(ROWS[number])


def most_tries(network: Network) -> int:
    """How often one upload was asked for the same step; reads of one object ask for different parts of it."""
    asked = [(method, path) for method, path, _ in network.http.seen() if method in ("PUT", "POST")]
    counts = Counter(each for each in asked if not each[1].endswith("?delete"))
    return max(counts.values(), default=0)


def check_objects_are_whole(faulted: S3Story) -> None:
    """Whatever can be seen in the bucket, of the table or not, is a Parquet file with a footer."""
    table = faulted.table()
    for location in faulted.sizes():
        if location.endswith(".parquet"):
            with table.io.new_input(location).open() as stream:
                assert pq.read_metadata(stream).num_rows > 0


@pytest.fixture
def executors(far_away: S3Story) -> None:
    """No batch is written by the driver."""
    far_away.without_driver()


SINGLE = [
    pytest.param(kind, method, path, when, id=f"{name}-{kind}-{when}", marks=[] if fast else [pytest.mark.slow])
    for name, (method, path), kind, when, fast in [
        ("write", ("PUT", ""), "slow-down", "before", False),
        ("write", ("PUT", ""), "slow-down", "after", False),
        ("write", ("PUT", ""), "drop", "before", False),
        ("write", ("PUT", ""), "drop", "after", True),
        ("read", ("GET", ""), "slow-down", "before", False),
        ("read", ("GET", ""), "drop", "after", False),
    ]
]


@pytest.mark.parametrize(("kind", "method", "path", "when"), SINGLE)
def test_a_request_that_fails_twice_is_tried_again(
    far_away: S3Story, network: Network, kind: str, method: str, path: str, when: str
) -> None:
    """Whether the store has done it or not, the batch and its merge land, once, after a few more requests."""
    write(far_away, range(3))
    network.http.trouble(Trouble(kind, method, 2, when, path))  # type: ignore[arg-type]
    write(far_away, range(3, 4))
    assert [trouble for _, _, trouble in network.http.seen(method) if trouble] == [f"{kind} {when}"] * 2
    assert most_tries(network) <= TRIES + 1
    assert far_away.operations()[3:] == ["append", "replace"]
    far_away.holds()


CUTS = [
    pytest.param(spoil("limit_data", "upstream", bytes=4_000), id="upload cut after 4 kB"),
    pytest.param(spoil("reset_peer", "upstream", timeout=0), id="upload reset", marks=pytest.mark.slow),
    pytest.param(spoil("reset_peer", "downstream", timeout=0), id="answer reset", marks=pytest.mark.slow),
    pytest.param(spoil("limit_data", "downstream", bytes=60), id="answer cut", marks=pytest.mark.slow),
    pytest.param(spoil("timeout", "upstream", timeout=0), id="nothing arrives", marks=pytest.mark.slow),
    pytest.param(spoil("timeout", "downstream", timeout=0), id="no answer", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("writer", ["driver", pytest.param("executors", marks=pytest.mark.slow)])
def test_uploads_that_cannot_succeed(
    request: pytest.FixtureRequest, far_away: S3Story, network: Network, cut: Spoil, writer: str
) -> None:
    """The batch fails with the store's own words and nothing of it is visible; delivered again, it lands."""
    if writer == "executors":
        request.getfixturevalue("executors")
    write(far_away, range(2))
    before = far_away.table().metadata
    network.http.trouble()
    with failpoints.armed("planned", lambda: cut(network.tcp)), pytest.raises(IcesizeError) as failed:
        write(far_away, range(2, 3))
    assert re.search("PutObject of s3://.* failed: HTTP error", str(failed.value))
    assert most_tries(network) <= TRIES
    network.heal()
    assert far_away.table().metadata == before
    check_objects_are_whole(far_away)
    write(far_away, range(2, 4))
    far_away.holds()


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param(spoil("limit_data", "downstream", bytes=4_000), id="cut after 4 kB"),
        pytest.param(spoil("bandwidth", "downstream", rate=1), id="1 kB/s", marks=pytest.mark.slow),
    ],
)
def test_downloads_that_are_cut(far_away: S3Story, network: Network, cut: Spoil) -> None:
    """Files that cannot be read are not merged, or after more tries; the rows land, and a report says what is due."""
    write(far_away, range(3))
    with failpoints.armed("planned", lambda: cut(network.tcp)), failpoints.armed("files-written", network.tcp.heal):
        write(far_away, range(3, 4))
    assert far_away.operations()[:4] == ["append"] * 4
    assert far_away.reports[-1].rows == 1500
    far_away.holds()


@pytest.mark.parametrize(
    "slow",
    [
        pytest.param(spoil("latency", "downstream", latency=20, jitter=10), id="latency", marks=pytest.mark.slow),
        pytest.param(spoil("bandwidth", "upstream", rate=100), id="bandwidth", marks=pytest.mark.slow),
        pytest.param(spoil("slow_close", "downstream", delay=200), id="slow close", marks=pytest.mark.slow),
        pytest.param(spoil("slicer", "upstream", average_size=500, size_variation=300, delay=10), id="small pieces",
                     marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_a_slow_network_only_takes_longer(far_away: S3Story, network: Network, executors: None, slow: Spoil) -> None:
    """Batches and merges of executors land with as many requests as ever."""
    slow(network.tcp)
    write(far_away, range(4))
    assert most_tries(network) == 1
    assert far_away.operations() == ["append"] * 4 + ["replace"]
    far_away.holds()


@pytest.mark.parametrize(
    ("point", "lands"),
    [
        pytest.param("files-written", False, id="before the commit", marks=pytest.mark.slow),
        pytest.param("before-swap", True, id="in the commit", marks=pytest.mark.slow),
        pytest.param("after-swap", True, id="after the commit", marks=pytest.mark.slow),
    ],
)
def test_a_store_that_is_gone_around_the_commit(far_away: S3Story, network: Network, point: str, lands: bool) -> None:
    """Before its manifests are written the batch fails and is invisible; what has landed is a success."""
    write(far_away, range(3))
    before = far_away.table().metadata
    gone = [Trouble("drop", method, ALWAYS) for method in ("GET", "HEAD", "PUT", "POST")]
    with failpoints.armed(point, lambda: network.http.trouble(*gone)):
        if lands:
            write(far_away, range(3, 4))
        else:
            with pytest.raises(IcesizeError, match="HTTP error"):
                write(far_away, range(3, 4))
    network.heal()
    if not lands:
        assert far_away.table().metadata == before
        write(far_away, range(3, 4))
    assert far_away.operations() == ["append"] * 4 + ["replace"]
    far_away.holds()


@pytest.fixture
def line(toxiproxy: Toxiproxy, s3_rest_uri: str, request: pytest.FixtureRequest) -> Iterator[ToxicProxy]:
    """The way to the REST catalog server."""
    proxy = toxiproxy.proxy(f"catalog-{request.node.name}", s3_rest_uri)
    yield proxy
    proxy.heal()


@pytest.fixture
def behind_line(s3_spark: SparkSession, store: ObjectStore, line: ToxicProxy) -> Iterator[S3Story]:
    """A table whose catalog icesize reaches by that way; the store is reached directly."""
    with s3_faulted(s3_spark, store, line.endpoint) as faulted:
        with_timeout(faulted.catalog, 2.0)
        yield faulted


LOST = [
    pytest.param(spoil("reset_peer", "downstream", timeout=0), True, id="answer reset"),
    pytest.param(spoil("limit_data", "downstream", bytes=200), True, id="answer cut"),
    pytest.param(spoil("timeout", "downstream", timeout=0), True, id="no answer", marks=pytest.mark.slow),
    pytest.param(spoil("reset_peer", "upstream", timeout=0), False, id="request reset"),
    pytest.param(spoil("limit_data", "upstream", bytes=500), False, id="request cut", marks=pytest.mark.slow),
    pytest.param(spoil("timeout", "upstream", timeout=0), False, id="request lost", marks=pytest.mark.slow),
]


@pytest.mark.parametrize(("lose", "landed"), LOST)
def test_a_commit_whose_answer_is_lost(
    behind_line: S3Story, store: ObjectStore, line: ToxicProxy, s3_rest_uri: str, lose: Spoil, landed: bool
) -> None:
    """Whether it landed in the catalog server or not, the batch has one snapshot and is reported as a success."""
    faulted = behind_line
    sink = faulted.hasty().sink("s", query_id="q", listener=faulted.reports.append)
    sink.run(faulted.batch(ROWS[0]), 0)
    there: list[int] = []

    def heal() -> None:
        line.heal()
        there.append(len(faulted.table().metadata.snapshots))

    faulted.time.on_sleep = heal
    with failpoints.armed("before-swap", lambda: lose(line) if not there else None):
        report = sink.run(faulted.batch(ROWS[1]), 1)
    assert there == [2 if landed else 1]
    assert (report.rows, report.already_committed, len(report.snapshot_ids)) == (1500, False, 1)
    assert faulted.operations() == ["append"] * 2
    # of an attempt that could still land nothing is removed at once: its manifest and its list stay for cleanup
    assert len(faulted.leftovers()) == (0 if landed else 2)
    assert store.uploads(BUCKET) == []
    faulted.expect(ROWS[0], ROWS[1])
    faulted.holds()


PARTS = [
    pytest.param(kind, method, path, when, id=f"{name}-{kind}-{when}")
    for name, (method, path) in {
        "begin": ("POST", r"\?uploads"), "part": ("PUT", "partNumber"), "complete": ("POST", r"\?uploadId"),
    }.items()
    for kind, when in (("slow-down", "before"), ("slow-down", "after"), ("drop", "before"), ("drop", "after"))
]  # fmt: skip


@pytest.mark.parametrize(("kind", "method", "path", "when"), PARTS)
def test_each_step_of_a_large_upload_is_tried_again(
    store: ObjectStore, network: Network, kind: str, method: str, path: str, when: str
) -> None:
    """Whether the store has done it or not, all bytes are stored, by a few more requests."""
    storage = Storage(load_file_io(store.properties(network.tcp.endpoint)))
    location, data = f"s3://{BUCKET}/large/{kind}-{method}-{when}", bytes(range(256)) * (3 * PART_BYTES // 256 + 1)
    network.http.trouble(Trouble(kind, method, 2, when, path))  # type: ignore[arg-type]
    failed = None
    try:
        with storage.create(location) as stream:
            stream.write(data)
    except OSError as error:
        failed = error
    network.heal()
    if failed is None:
        assert storage.fetch(location) == data
    else:
        assert not storage.exists(location)
