"""An overloaded object store, on a real S3 server behind a proxy that answers for it; executors write there too."""

from __future__ import annotations

import re
from collections import Counter
from datetime import timedelta

import pytest

from icesize.environment import Environment
from icesize.errors import IcesizeError
from integration.s3_faulted_table import Network, S3Story
from integration.s3_proxy import Trouble
from tests.support.spark_lake import events

TRIES = 3
"""How often PyArrow asks a store the same, by its default retry strategy."""

ALWAYS = 10**6
ROWS = [events(range(90 * n, 90 * n + 90), hours=3) for n in range(5)]


@pytest.fixture
def faulted(far_away: S3Story) -> S3Story:
    """A table in an S3 server that icesize reaches by a network with troubles."""
    return far_away


@pytest.fixture(params=["driver", pytest.param("executors", marks=pytest.mark.slow)])
def writer(request: pytest.FixtureRequest, faulted: S3Story) -> str:
    """Who writes the batches."""
    if request.param == "executors":
        faulted.without_driver()
    return str(request.param)


def write(faulted: S3Story, batches: range) -> None:
    sink = faulted.sized().sink("s", query_id="q", listener=faulted.reports.append)
    for number in batches:
        sink.run(faulted.batch(ROWS[number]), number)
        faulted.expect(ROWS[number])


def tries(network: Network) -> list[int]:
    """How often each thing was asked that was refused at least once."""
    refused = {(method, path) for method, path, trouble in network.http.seen() if trouble}
    return list(Counter((m, path) for m, path, _ in network.http.seen() if (m, path) in refused).values())


@pytest.mark.fault(29)
def test_a_store_that_is_overloaded_now_and_then(faulted: S3Story, network: Network, writer: str) -> None:
    """A store that sometimes responds 503 SlowDown only slows a batch: requests are retried, and the batch is committed
    once."""
    write(faulted, range(3))
    slow = [Trouble("slow-down", "PUT", 2), Trouble("slow-down", "POST", 2), Trouble("slow-down", "GET", 2)]
    network.http.trouble(*slow)
    write(faulted, range(3, 4))
    assert sum(trouble != "" for _, _, trouble in network.http.seen()) == 6
    assert faulted.operations() == ["append"] * 4 + ["replace"]
    assert faulted.leftovers() == set()


@pytest.mark.fault(29)
@pytest.mark.parametrize("method", ["PUT", pytest.param("POST", marks=pytest.mark.slow)])
def test_a_store_that_takes_nothing(faulted: S3Story, network: Network, writer: str, method: str) -> None:
    """A store that rejects every upload fails the batch after three attempts; nothing is visible, and later the batch
    succeeds."""
    write(faulted, range(2))
    before = faulted.table().metadata
    network.http.trouble(Trouble("slow-down", method, ALWAYS))
    with pytest.raises(IcesizeError, match="SLOW_DOWN"):
        write(faulted, range(2, 3))
    assert max(tries(network)) == TRIES
    network.heal()
    assert faulted.table().metadata == before
    assert faulted.leftovers() == set()
    write(faulted, range(2, 4))


@pytest.mark.fault(29)
def test_a_store_that_gives_no_data_files(faulted: S3Story, network: Network, writer: str) -> None:
    """Small files that an overloaded store does not return stay unmerged; the rows are committed, and the report names
    the merge."""
    write(faulted, range(3))
    network.http.trouble(Trouble("slow-down", "GET", ALWAYS, path=r"\.parquet"))
    write(faulted, range(3, 4))
    assert max(tries(network)) <= TRIES
    network.heal()
    assert faulted.operations() == ["append"] * 4
    # the store's word for it, or what its client makes of the status alone
    notes = faulted.reports[-1].notes
    assert any(re.search(r"dropped.*(SLOW_DOWN|SERVICE_UNAVAILABLE)", note) for note in notes), notes
    assert faulted.leftovers() == set()


@pytest.mark.fault(29)
def test_a_store_that_gives_no_metadata(faulted: S3Story, network: Network) -> None:
    """While manifests cannot be read, nothing is written, and the error gives the reason."""
    write(faulted, range(2))
    before = faulted.sizes()
    network.http.trouble(Trouble("slow-down", "GET", ALWAYS, path=r"\.avro"))
    # the store's word for it, or what its client makes of the status alone
    with pytest.raises(IcesizeError, match=r"SLOW_DOWN|SERVICE_UNAVAILABLE"):
        write(faulted, range(2, 3))
    network.heal()
    assert faulted.sizes() == before
    write(faulted, range(2, 3))


@pytest.mark.fault(29)
@pytest.mark.parametrize(
    ("properties", "method", "path"),
    [
        pytest.param({}, "DELETE", "", id="one by one"),
        pytest.param(
            {"py-io-impl": "pyiceberg.io.fsspec.FsspecFileIO"}, "POST", r"\?delete", id="batch delete",
            marks=pytest.mark.slow,
        ),
    ],
)  # fmt: skip
def test_a_store_that_deletes_nothing(
    faulted: S3Story, network: Network, properties: dict[str, str], method: str, path: str
) -> None:
    """Files that an overloaded store does not delete are counted; the snapshots expire, and the next expiry deletes the
    files."""
    faulted.catalog.properties.update(properties)
    write(faulted, range(4))
    faulted.sized().compact()
    network.http.trouble(Trouble("slow-down", method, ALWAYS, path=path))
    # the client of the store has pauses of its own, so that five minutes of ours must be few attempts
    time = faulted.time
    hasty = Environment(monotonic=lambda: time.seconds, sleep=lambda seconds: time.sleep(100 * seconds))
    first = faulted.sized_at(hasty).expire_snapshots(keep_versions=1, older_than=timedelta(0))
    assert first.files_failed > 0
    assert first.files_deleted == {}
    network.heal()
    second = faulted.sized().expire_snapshots(keep_versions=1, older_than=timedelta(0))
    assert sum(second.files_deleted.values()) == first.files_failed
    assert faulted.leftovers() == set()
